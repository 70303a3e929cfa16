"""How `resequence` on Spark grows: with the events of a stream, and with the keys that its state knows.

    python -m bench.spark_growth                        100,000 to 1,000,000 events, 5,000,000 known keys
    python -m bench.spark_growth --events 10000000      up to ten millions; gigabytes of memory, and minutes
    python -m bench.spark_growth --known 500000

The time of a query is a start and a cost for each event; both are fitted to the sizes that are measured, and printed
with how far the worst of them is from that line. A batch that touches few keys of many should cost what it touches.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.report import Effort, Row, Table, Target, machine, number
from bench.spark_rows import ALL, CORES, FAR, Rows, Timed, nowhere, session, timed

KEYS = 10_000
ROWS_PER_BATCH = 100_000
TOUCHED = 1_000
SMALL_BATCHES = 6


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.spark_growth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="the most events; 1,000,000 by default")
    parser.add_argument("--known", type=int, default=5_000_000, help="the most known keys; 5,000,000 by default")
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    for name, value in machine().items():
        print(f"{name:8} {value}")
    with session() as spark:
        print(f"\n{_with_events(spark, given.events, Effort(False, given.repetitions))}", flush=True)
        print(f"\n{_with_keys(spark, given.known)}", flush=True)


def sizes(most: int) -> list[int]:
    """From 100,000 on, about twice as many each time."""
    found = [most]
    while found[0] > 200_000:
        found.insert(0, found[0] // 2)
    return [100_000, *(size for size in found if size > 100_000)]


def _with_events(spark: Any, most: int, effort: Effort) -> Table:
    from inorder.spark import resequence

    runs: dict[int, list[Timed]] = {}
    state: dict[int, int] = {}
    for size in sizes(most):
        with Rows(spark, size, KEYS, max(1, size // ROWS_PER_BATCH)) as rows:
            told: Any = resequence(rows.stream(), key="key", sequence="number", position="position", capacity=FAR)
            writing = told.write(nowhere)
            if not runs:
                rows.run(lambda at, writing=writing: writing.start(at, trigger=ALL))  # which warms up
            runs[size] = [
                rows.run(lambda at, writing=writing: writing.start(at, trigger=ALL)) for _ in range(effort.repetitions)
            ]
            state[size] = runs[size][-1].state_bytes
    seconds = {size: median(run.seconds for run in found) for size, found in runs.items()}
    start, each, off = fitted([*seconds], [*seconds.values()])
    return Table(
        f"Spark, resequence: a stream of {KEYS:,} keys in batches of {ROWS_PER_BATCH:,} rows",
        "rows/s",
        [Row(f"{size:,} events", [run.rate for run in found]) for size, found in runs.items()],
        [
            f"fit: {start:.2f} s and {each * 1e6:.2f} s for a million events; the worst is {off:.0%} from it",
            *(f"{size:,} events: {number(state[size] / 1e6)} MB of state" for size in runs),
            f"{CORES} cores; {KEYS:,} keys are known and up to {FAR:,} rows wait, whatever the number of events",
        ],
    )


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """The start, the cost of one more, and how far the worst size is from the line, as a share of it.

    Each size counts alike, so the error that is made least is the relative one.
    """
    import numpy as np

    x, y = np.array(sizes, float), np.array(seconds, float)
    (start, each), *_ = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x)), rcond=None)
    line = start + each * x
    return float(start), float(each), float(np.max(np.abs(y - line) / line))


class _Small(NamedTuple):
    batch_ms: list[float]
    state_bytes: int


def _with_keys(spark: Any, most: int) -> Table:
    few = max(TOUCHED, most // 500)
    found = {known: _small_batches(spark, known) for known in (few, most)}
    return Table(
        f"Spark, resequence: a batch that touches {TOUCHED:,} keys, of {most:,} that are known",
        "ms",
        [Row("from the trigger to the commit", found[most].batch_ms, found[few].batch_ms, Target(1.5, below=True))],
        [
            f"peer: the same with {few:,} known keys",
            f"state: {number(found[most].state_bytes / 1e6)} MB in two versions",
        ],
    )


def _small_batches(spark: Any, known: int) -> _Small:
    """One batch that makes the keys known, then some that touch few of them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from inorder.spark import resequence

    with TemporaryDirectory(prefix="inorder-bench-") as folder:
        source = Path(folder, "rows")
        source.mkdir()

        def put(file: int, keys: Any, numbers: Any) -> None:
            path = source / f"{file:04}.parquet"
            pq.write_table(pa.table({"key": pa.array([f"order-{key}" for key in keys]), "number": numbers}), path)
            os.utime(path, (1_000_000_000 + file,) * 2)

        put(0, range(known), np.ones(known, np.int64))
        for batch in range(1, SMALL_BATCHES + 3):
            keys = np.arange(TOUCHED) * (known // TOUCHED)
            put(batch, keys.tolist(), np.full(TOUCHED, batch + 1, np.int64))
        rows = spark.readStream.schema("key STRING, number BIGINT").option("maxFilesPerTrigger", 1).parquet(str(source))
        told: Any = resequence(rows, key="key", sequence="number", gap_timeout="1 hour")
        count = known + TOUCHED * (SMALL_BATCHES + 2)
        run = timed(count, Path(folder, "state"), lambda at: told.write(nowhere).start(at, trigger=ALL))
        return _Small([float(one) for one in run.batch_ms[3:]], run.state_bytes)


if __name__ == "__main__":
    main()
