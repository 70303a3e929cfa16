"""A stream that a test owns: a file per micro-batch, times that are told, and what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from inorder.spark.streams import OrderedStream

from ..unit.spark.histories import History, comparable

SECOND = 1_000_000
SCHEMA = "key STRING, number BIGINT, position BIGINT"


class Times:
    """A clock that tells one time after the other, one for each batch."""

    def __init__(self, times_us: Iterable[int]) -> None:
        self._times_us = iter(times_us)

    def now_us(self) -> int:
        return next(self._times_us)

    def call_at(self, when_us: int, callback: Callable[[], object]) -> Any:
        raise NotImplementedError


class Stream:
    """Files in a folder, each a micro-batch, and a query that has read them all when `run` returns."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str = SCHEMA) -> None:
        self.spark = spark
        self.source, self.out, self.checkpoint = folder / "in", folder / "out", folder / "checkpoint"
        self.source.mkdir(exist_ok=True)
        self.schema = schema
        self.batches = 0

    def put(self, *rows: Iterable[Any]) -> None:
        """The rows of the next micro-batch."""
        names = [column.strip().split()[0] for column in self.schema.split(",")]
        file = self.source / f"{self.batches:04}.json"
        unfinished = self.source / f"_{file.name}"
        unfinished.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        os.utime(unfinished, (1_000_000_000 + self.batches,) * 2)  # by which the source sorts them
        unfinished.rename(file)
        self.batches += 1

    def rows(self) -> DataFrame:
        return self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.source))

    def run(self, ordered: Any, times_us: Iterable[int] = iter(lambda: SECOND, None)) -> None:
        assert isinstance(ordered, OrderedStream)
        if ordered.sink is None:
            ordered = ordered.to_parquet(str(self.out))
        query = ordered.start(str(self.checkpoint), trigger={"availableNow": True}, clock=Times(times_us))
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def failure(self, ordered: Any) -> str:
        """What a run fails with."""
        try:
            self.run(ordered)
        except StreamingQueryException as error:
            return str(error)
        raise AssertionError("the query went through")

    def told(self) -> list[tuple[str, Any]]:
        """The outcomes of all batches, in order, as fates with rows or gaps."""
        return [one for batch in range(self.batches) for one in self.told_in(batch)]

    def told_in(self, batch: int) -> list[tuple[str, Any]]:
        return list(_told(self.out / f"batch_id={batch}"))

    @property
    def state(self) -> Path:
        return self.checkpoint / "inorder"

    def state_files(self) -> dict[str, bytes]:
        found = (path for path in sorted(self.state.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.state)): path.read_bytes() for path in found if path.suffix != ".crc"}

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died after our commit and before Spark's."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def _told(folder: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet as pq

    for file in sorted(folder.glob("*.parquet")):
        yield from outcomes(pq.read_table(file).to_pylist())


def outcomes(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Rows of an operator as fates, each with what it is the fate of."""
    for row in rows:
        fate, gap = row.pop("_fate"), row.pop("_gap")
        yield fate, (row["key"], *gap.values()) if gap else tuple(row.values())


def by_key(told: list[tuple[str, Any]]) -> Any:
    keys: dict[str, list[tuple[str, Any]]] = {}
    for fate, what in told:
        keys.setdefault(what[0], []).append((fate, what))
    return comparable(keys)


def generated(seed: int, batches: int, rows: int) -> History:
    """Disordered within and between batches, with holes and repetitions."""
    random = Random(seed)
    keys = [f"key-{number}" for number in range(6)]
    events = [(key, number) for key in keys for number in range(rows * batches // len(keys))]
    events = [event for event in events if random.random() > 0.03]
    events += random.sample(events, len(events) // 10)
    events.sort(key=lambda event: event[1] + random.uniform(0, 12))
    size = -(-len(events) // batches)
    return [
        (
            (batch + 1) * SECOND,
            [(*event, position) for position, event in enumerate(events)][batch * size : (batch + 1) * size],
        )
        for batch in range(batches)
    ]
