"""One batch of one bucket, in a worker of Spark: rows and state in, outcomes out, and new state beside it.

The state is written before the first row is handed on, so whoever reads only some of the rows has all of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from inorder.errors import ResourceExhausted, StateDamaged
from inorder.spark import lines as lines_of
from inorder.spark.buckets import Bucket, Run
from inorder.spark.counts import noted
from inorder.spark.folders import Folder
from inorder.spark.nested import retyped
from inorder.spark.operations import Operation, Place

BUCKET: Final = "_inorder_bucket"  # a column that goes first; below 0 for a row that only names its bucket
ROWS_AT_ONCE: Final = 50_000  # handed on
MAX_COLUMN_BYTES: Final = 2**31 - 1  # what the text or bytes of one column may be in Arrow


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTask:
    """What a task needs: plain values, the same for all buckets."""

    operation: Operation
    folder: str
    buckets: int
    batch: int
    now_us: int
    runs: dict[int, list[Run]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: of one partition."""
        for number, rows in by_bucket(list(batches)).items():
            bucket = Bucket(Folder(self.folder), number, self.batch, self.runs.get(number, []))
            runs = bucket.read(self.operation.step.lines(rows.schema))
            ran = self.operation.run(rows, runs, Place(number, self.buckets), self.now_us)
            kept, run = runs.with_changes(ran.lines, self.now_us)
            bucket.write(kept, noted(run, runs.newest, ran.counts))
            for table in ran.outcomes:
                yield from table.to_batches(max_chunksize=ROWS_AT_ONCE)


def by_bucket(batches: list[pa.RecordBatch]) -> dict[int, pa.Table]:
    """The rows of each bucket that a partition has, without the column that says so."""
    whole = pa.Table.from_batches(batches)
    numbers = lines_of.as_numbers(whole.column(BUCKET))
    rows = in_utc(whole.remove_column(0))
    marks = np.flatnonzero(numbers < 0).tolist()
    own = [-1 - int(numbers[mark]) for mark in marks]
    strange = numbers[~np.isin(numbers, own) & (numbers >= 0)]
    if len(strange):
        raise StateDamaged("a task", f"it got rows of bucket {strange[0]}, which is not its own")
    if len(marks) == 1:
        rest = [rows.slice(0, marks[0]), rows.slice(marks[0] + 1)]  # what a filter would copy once more
        return {own[0]: _checked(pa.concat_tables(rest))}
    return {number: _checked(rows.filter(pa.array(numbers == number))) for number in own}


def _checked(rows: pa.Table) -> pa.Table:
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.nbytes > MAX_COLUMN_BYTES:
            raise ResourceExhausted(
                f"column {name!r}: a bucket has {column.nbytes} bytes of it in one batch, up to {MAX_COLUMN_BYTES} can "
                "be taken; make batches smaller (maxFilesPerTrigger, maxOffsetsPerTrigger, maxRowsPerTrigger)"
            )
    return rows.combine_chunks()


def in_utc(rows: pa.Table) -> pa.Table:
    """The same values, whatever time zone and width of texts the session has; and any column may have nulls."""
    return rows.cast(pa.schema([pa.field(field.name, retyped(field.type, _in_utc)) for field in rows.schema]))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    # `spark.sql.execution.arrow.useLargeVarTypes` may change from one start to the next, and the state stays.
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
