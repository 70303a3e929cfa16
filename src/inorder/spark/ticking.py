"""A stream of time without rows: beside another stream it makes batches come although nothing else does.

`foreachBatch` has no timers. A source whose offset moves with the clock starts a batch all the same, which is what a
gap timeout needs. With the trigger `availableNow` it stands still, or there would be no end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from inorder.clock import MICROSECONDS

NAME: Final = "inorder-ticks"


def with_ticks(rows: DataFrame, every_seconds: float | None) -> DataFrame:
    """The same stream, with a batch at least so often; None: never, but so that it may be another time.

    A checkpoint knows its sources by their number. So the ticks are there, or not, from the first run on.
    """
    spark = rows.sparkSession
    spark.dataSource.register(TickSource)
    ticks = spark.readStream.format(NAME).option("seconds", str(every_seconds or 0)).load()
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return rows.union(ticks.select(*nothing))


class TickSource(DataSource):
    """One row a tick, if anybody asked for the rows: there are none."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "tick BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TickReader(float(self.options["seconds"]))


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its offset is the number of the tick."""

    def __init__(self, every_seconds: float) -> None:
        self._every_us = round(every_seconds * MICROSECONDS)

    def initialOffset(self) -> dict[str, int]:
        return {"tick": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._every_us = 0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if not self._every_us:
            return start
        # Lower than before, if ticks are rarer now or the clock was set back: any other one makes a batch come.
        return {"tick": time.time_ns() // 1000 // self._every_us}

    def reportLatestOffset(self) -> dict[str, int] | None:
        return None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())
