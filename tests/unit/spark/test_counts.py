"""The figures of a batch are those of its state and of its rows, whatever came before."""

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from inorder.spark.buckets import Bucket, BucketState, Manifest
from inorder.spark.counts import Counts, last_counts
from inorder.spark.folders import Folder
from inorder.spark.operations import Operation
from inorder.spark.tasks import BUCKET, BucketTask

from .histories import NAMES, SCHEMA, table

KEPT = {"initial": 1, "capacity": 1_000, "when_full": "error", "late": "drop", "duplicates": "drop"}


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_is_what_is_parked_and_every_row_has_a_fate_or_waits(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    timeout = random.choice([None, 3e-6])
    operation = Operation(
        operator="resequence", options={**KEPT, "gap_timeout_seconds": timeout}, names=NAMES, keep_dropped=True
    )
    manifest = Manifest(operator="resequence", buckets=1, columns=NAMES._asdict(), schema={})
    state = BucketState(Folder(str(tmp_path)), manifest)
    state.open()
    assert last_counts(state.folder) == {}
    came, fates = 0, Counter[str]()
    for batch in range(12):
        rows = [(f"k{random.randrange(4)}", 1 + random.randrange(batch + 4), n) for n in range(random.randrange(9))]
        came += len(rows)
        pinned = state.begin(batch, batch + 1, {})
        task = BucketTask(
            operation=operation, folder=state.folder.uri, buckets=1, batch=batch, now_us=batch + 1, runs=pinned.runs
        )
        out = [row for one in task(iter([in_bucket(rows)])) for row in one.to_pylist()]
        state.commit(pinned)
        told = last_counts(state.folder, after=batch - 1)
        wanted = Counts(dict(Counter(row["_fate"] for row in out)), parked(state, batch + 1, operation))
        assert told == {batch: wanted}
        fates.update(wanted.fates)
        assert came == sum(fates.values()) - fates["gap"] + wanted.waiting
    assert [*last_counts(state.folder)] == [10, 11]  # the state keeps two versions
    assert fates["released"]


def in_bucket(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    """Rows as a task gets them: with their bucket, and a row that only names it."""
    marked = pa.concat_tables([table(rows), pa.Table.from_pylist([{}], SCHEMA)])
    numbers = pa.array([0] * len(rows) + [-1], pa.int32())
    [batch] = marked.add_column(0, BUCKET, numbers).combine_chunks().to_batches()
    return batch


def parked(state: BucketState, batch: int, operation: Operation) -> int:
    runs = Bucket(state.folder, 0, batch, state.begin(batch, batch + 1, {}).runs[0]).read(operation.step.lines(SCHEMA))
    return sum(len(line["parked"]) for line in runs.waiting(2**62).to_pylist())
