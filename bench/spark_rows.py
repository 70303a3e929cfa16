"""A session of Spark, and rows in files of Parquet that queries are timed with. It knows no operator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.workload import WrongResult

CORES = 2
FAR = 20_000  # places that a row may be from its own
FILES_PER_BATCH = 2
ALL = {"availableNow": True}
UNASKED = 2**31 - 1  # bytes at which Spark does not ask for the size of a batch, as docs/spark.md says of narrow rows
MISSING = "pyspark; pip install 'inorder[spark]'"


def new_session() -> Any:
    from pyspark.sql import SparkSession

    import inorder.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.sql.shuffle.partitions", CORES)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", UNASKED)
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)  # all of them, by which rows are counted
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    inorder.spark.register(session)
    return session


@contextmanager
def session() -> Iterator[Any]:
    spark = new_session()
    try:
        yield spark
    finally:
        spark.stop()


def nowhere(rows: Any, batch_id: int = 0) -> None:
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class Timed:
    """A query from its start to its end."""

    rows: int
    seconds: float
    batch_ms: list[int]  # of each micro-batch, from trigger to commit
    checkpoint: Path

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def typical_ms(self) -> float:
        return median(self.batch_ms)

    @property
    def state_bytes(self) -> int:
        """Of the state that an operator of ours keeps: its last version and the one before."""
        return sum(path.stat().st_size for path in (self.checkpoint / "inorder").rglob("*") if path.is_file())


def timed(rows: int, checkpoint: Path, start: Callable[[str], Any]) -> Timed:
    """Run a query that ends by itself, and must have read all rows."""
    begin = perf_counter()
    query = start(str(checkpoint))
    query.awaitTermination()
    seconds = perf_counter() - begin
    progress = query.recentProgress
    read = sum(one["numInputRows"] for one in progress)
    if read != rows:
        raise WrongResult(f"{read:,} rows were read of {rows:,}")
    durations = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
    return Timed(rows, seconds, durations, checkpoint)


@dataclass(slots=True)
class Rows:
    """Events of some keys, numbered within each, disordered, in some files for each micro-batch."""

    spark: Any
    rows: int
    keys: int
    batches: int
    folder: Path = field(init=False)
    schema: Any = field(init=False)
    _temporary: Any = field(init=False)
    _runs: Any = field(init=False)

    def __post_init__(self) -> None:
        self._temporary = TemporaryDirectory(prefix="inorder-bench-")
        self.folder, self._runs = Path(self._temporary.name), count()
        self._write()
        self.schema = self.table().schema

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def _write(self) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        random = np.random.default_rng(1)
        keys = random.integers(0, self.keys, self.rows)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        numbers = np.empty(self.rows, np.int64)
        numbers[order] = np.arange(self.rows) - np.repeat(starts, np.diff(np.append(starts, self.rows))) + 1
        place = np.argsort(np.arange(self.rows) + random.uniform(0, FAR, self.rows))
        names = np.array([f"order-{number}" for number in range(self.keys)], dtype=object)
        table = pa.table(
            {
                "key": pa.array(names[keys[place]], pa.string()),
                "number": numbers[place],
                "kind": pa.array(np.array(["a", "b"], dtype=object)[numbers[place] % 2], pa.string()),
                "value": pa.array(_values(random, self.rows), pa.binary()),
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

    def run(self, start: Callable[[str], Any]) -> Timed:
        """A query with a checkpoint of its own."""
        return timed(self.rows, self.folder / f"checkpoint-{next(self._runs)}", start)

    def written(self, rows: Any) -> float:
        """Rows a second of a table that is thrown away."""
        begin = perf_counter()
        nowhere(rows)
        return self.rows / (perf_counter() - begin)


def _values(random: Any, count: int) -> list[bytes]:
    whole = random.bytes(100 * count)
    return [whole[start : start + 100] for start in range(0, 100 * count, 100)]
