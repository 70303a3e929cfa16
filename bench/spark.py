"""The operators on Spark, against the least that any of them could do: a shuffle by key and a sort, without state.

Rows are files of Parquet, a few per micro-batch; what comes out is thrown away. Disordered rows are up to some
thousand places from where they belong. "by entity" is a resequencer written with `transformWithState`, the API that
Spark has for such things, with a state per key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import WrongResult

KEYS = 10_000
FAR = 20_000  # places that a row may be from its own
FILES_PER_BATCH = 2
CORES = 2

AS_FAST = Target(0.75)
BY_ENTITY = Target(4)
HALF = Target(0.5)


def measure(effort: Effort) -> Iterator[Table]:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        yield Table("Spark", "rows/s", [Row("operators", (), missing="pyspark; pip install 'inorder[spark]'")])
        return
    rows, batches = effort.of(1_000_000, 60_000), effort.of(5, 2)
    with TemporaryDirectory() as folder:
        work = _Work(Path(folder), rows, batches)
        try:
            yield _streams(work, effort)
            yield _by_entity(work, effort)
            yield _tables(work, effort)
        finally:
            work.spark.stop()


def _streams(work: _Work, effort: Effort) -> Table:
    from inorder.spark import latest, merge_fields, resequence

    def resequenced() -> float:
        told = resequence(work.stream(), key="key", sequence="number", position="position", capacity=FAR)
        return work.timed(lambda checkpoint: told.write(_nowhere).start(checkpoint, trigger=_ALL))

    def aggregated(make: Callable[[Any], Any]) -> float:
        return work.timed(
            lambda checkpoint: (
                make(work.stream())
                .writeStream.outputMode("update")
                .foreachBatch(_nowhere)
                .option("checkpointLocation", checkpoint)
                .trigger(**_ALL)
                .start()
            )
        )

    ours = {
        "resequence": resequenced,
        "latest": partial(aggregated, lambda rows: latest(rows, key="key", time="position", value="value")),
        "merge_fields": partial(
            aggregated,
            lambda rows: merge_fields(
                rows, key="key", event_type="kind", time="position", owns={"a": ["value"], "b": ["number"]}
            ),
        ),
    }
    rates = interleaved({**ours, "sort": work.sorted_stream}, effort)
    return Table(
        f"Spark, streams: {work.rows:,} rows of {KEYS:,} keys in {work.batches} batches, against a shuffle and a sort",
        "rows/s",
        [Row(name, rates[name], rates["sort"], AS_FAST) for name in ours],
        [f"{CORES} cores; a micro-batch and the start of a query are part of it"],
    )


def _by_entity(work: _Work, effort: Effort) -> Table:
    from bench.peers.spark_by_entity import resequenced_by_entity
    from inorder.spark import resequence

    title = "Spark, streams: resequence, against transformWithState keyed by entity"
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        missing = "protobuf, which transformWithState needs; make bench-peers installs it"
        return Table(title, "rows/s", [Row("resequence", (), target=BY_ENTITY, missing=missing)])

    def ours() -> float:
        told = resequence(work.stream(), key="key", sequence="number", position="position", capacity=FAR)
        return work.timed(lambda checkpoint: told.write(_nowhere).start(checkpoint, trigger=_ALL))

    def theirs() -> float:
        return work.timed(
            lambda checkpoint: (
                resequenced_by_entity(work.stream())
                .writeStream.foreachBatch(_nowhere)
                .option("checkpointLocation", checkpoint)
                .trigger(**_ALL)
                .start()
            )
        )

    rates = interleaved({"ours": ours, "by entity": theirs}, effort, warm_up=False)
    return Table(
        title,
        "rows/s",
        [Row("resequence", rates["ours"], rates["by entity"], BY_ENTITY)],
    )


def _tables(work: _Work, effort: Effort) -> Table:
    from inorder.spark import resequence

    def ours() -> float:
        return work.written(resequence(work.table(), key="key", sequence="number", position="position"))

    def plain() -> float:
        return work.written(work.table().repartition(CORES, "key").sortWithinPartitions("key", "number"))

    rates = interleaved({"ours": ours, "sort": plain}, effort)
    return Table(
        f"Spark, a table of {work.rows:,} rows, against a shuffle and a sort",
        "rows/s",
        [Row("resequence", rates["ours"], rates["sort"], HALF)],
    )


_ALL = {"availableNow": True}


def _nowhere(rows: Any, batch_id: int) -> None:
    rows.write.format("noop").mode("overwrite").save()


@dataclass(slots=True)
class _Work:
    """A session, and rows in files."""

    folder: Path
    rows: int
    batches: int
    spark: Any = None
    schema: Any = None
    runs: Any = None

    def __post_init__(self) -> None:
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        self.spark = (
            SparkSession.builder.master(f"local[{CORES}]")
            .config("spark.sql.shuffle.partitions", CORES)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config(
                "spark.sql.streaming.stateStore.providerClass",  # which transformWithState needs
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            )
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        self._write()
        self.schema = self.table().schema
        self.runs = count()

    def _write(self) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        random = np.random.default_rng(1)
        keys = random.integers(0, KEYS, self.rows)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        numbers = np.empty(self.rows, np.int64)
        numbers[order] = np.arange(self.rows) - np.repeat(starts, np.diff(np.append(starts, self.rows))) + 1
        place = np.argsort(np.arange(self.rows) + random.uniform(0, FAR, self.rows))
        names = np.array([f"order-{number}" for number in range(KEYS)], dtype=object)
        table = pa.table(
            {
                "key": pa.array(names[keys[place]], pa.string()),
                "number": numbers[place],
                "kind": pa.array(np.array(["a", "b"], dtype=object)[numbers[place] % 2], pa.string()),
                "value": pa.array([random.bytes(100) for _ in range(self.rows)], pa.binary()),
                "position": np.arange(self.rows),
            }
        )
        (self.folder / "rows").mkdir()
        files = self.batches * FILES_PER_BATCH
        size = -(-self.rows // files)
        for file in range(files):
            path = self.folder / "rows" / f"{file:04}.parquet"
            pq.write_table(table.slice(file * size, size), path)
            os.utime(path, (1_000_000_000 + file,) * 2)  # by which the source sorts them

    def table(self) -> Any:
        return self.spark.read.parquet(str(self.folder / "rows"))

    def stream(self) -> Any:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", FILES_PER_BATCH)
        return reader.parquet(str(self.folder / "rows"))

    def sorted_stream(self) -> float:
        def write(rows: Any, batch_id: int) -> None:
            _nowhere(rows.repartition(CORES, "key").sortWithinPartitions("key", "number"), batch_id)

        return self.timed(
            lambda checkpoint: (
                self.stream()
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", checkpoint)
                .trigger(**_ALL)
                .start()
            )
        )

    def timed(self, start: Callable[[str], Any]) -> float:
        """Rows a second of a query from its start to its end."""
        checkpoint = str(self.folder / f"checkpoint-{next(self.runs)}")
        begin = perf_counter()
        query = start(checkpoint)
        query.awaitTermination()
        seconds = perf_counter() - begin
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        if read != self.rows:
            raise WrongResult(f"{read:,} rows were read of {self.rows:,}")
        return self.rows / seconds

    def written(self, rows: Any) -> float:
        begin = perf_counter()
        _nowhere(rows, 0)
        return self.rows / (perf_counter() - begin)
