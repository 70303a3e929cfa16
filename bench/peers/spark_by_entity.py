"""A resequencer as one would write it with Spark's own API: `transformWithState`, a state per key, rows one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

OUT = "key STRING, number BIGINT, value BINARY"


def resequenced_by_entity(rows: DataFrame) -> DataFrame:
    """The rows of each key in the order of their numbers."""
    grouped = rows.select("key", "number", "value").groupBy("key")
    return grouped.transformWithState(Resequencing(), OUT, "append", "none")


class Resequencing(StatefulProcessor):
    """The number that is expected next, and what waits for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._expected = handle.getValueState("expected", "number BIGINT")
        self._waiting = handle.getMapState("waiting", "number BIGINT", "value BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        expected = self._expected.get()[0] if self._expected.exists() else 1
        here = {row["number"]: row["value"] for row in rows}
        while True:
            if expected in here:
                value = here.pop(expected)
            elif self._waiting.containsKey((expected,)):
                value = self._waiting.getValue((expected,))[0]
                self._waiting.removeKey((expected,))
            else:
                break
            yield Row(key=key[0], number=expected, value=value)
            expected += 1
        for number, value in here.items():
            if number > expected:
                self._waiting.updateValue((number,), (value,))
        self._expected.update((expected,))

    def close(self) -> None:
        pass
