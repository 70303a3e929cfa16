"""One batch of one bucket, in a worker of Spark: rows and state in, outcomes out, and new state beside it.

The state is written before the first row is handed on, so whoever reads only some of the rows has all of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidEvent, ResourceExhausted, StateDamaged
from inorder.options import MAX_ORDERING_KEY_BYTES, MAX_WHOLE
from inorder.patterns.sequencing import Resequencer
from inorder.patterns.step import QUARANTINED
from inorder.patterns.versioning import VersionGate
from inorder.spark import lines as lines_of
from inorder.spark.buckets import Bucket, Run
from inorder.spark.folders import Folder
from inorder.spark.hashing import buckets_of, hashes
from inorder.spark.kernels import Names, Rows, Sequencing, settle
from inorder.spark.outcomes import InvalidRows, told, unread
from inorder.spark.runs import Runs
from inorder.spark.sorting import Flags

BUCKET: Final = "_inorder_bucket"  # a column that goes first; below 0 for a row that only names its bucket
ROWS_AT_ONCE: Final = 50_000  # handed on
MAX_COLUMN_BYTES: Final = 2**31 - 1  # what the text or bytes of one column may be in Arrow

PATTERNS: Final[dict[str, type[Any]]] = {"resequence": Resequencer, "apply_versions": VersionGate}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTask:
    """What a task needs: plain values, the same for all buckets."""

    operator: str
    options: dict[str, Any]  # of the pattern
    names: Names
    invalid: InvalidRows
    keep_dropped: bool
    folder: str
    buckets: int
    batch: int
    now_us: int
    runs: dict[int, list[Run]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: of one partition."""
        for number, rows in by_bucket(list(batches)).items():
            bucket = Bucket(Folder(self.folder), number, self.batch, self.runs.get(number, []))
            for table in self._outcomes(bucket, rows):
                yield from table.to_batches(max_chunksize=ROWS_AT_ONCE)

    def _outcomes(self, bucket: Bucket, rows: pa.Table) -> list[pa.Table]:
        pattern: Sequencing = PATTERNS[self.operator](**self.options)
        good: Flags = readable(rows, self.names)
        bad = [] if good.all() else self._unread(rows.filter(pa.array(~good)))
        new = Rows.of(rows if good.all() else rows.filter(pa.array(good)).combine_chunks(), self.names)
        check_bucket(new.keys, bucket.number, self.buckets)
        runs = bucket.read(lines_of.empty(rows.schema))
        settled = settle(pattern, new, self._lines(runs, new.keys, pattern), self.now_us)
        bucket.write(*runs.with_changes(settled.lines))
        return [*bad, told(settled, self.names, self.keep_dropped)]

    def _lines(self, runs: Runs, keys: pa.StringArray, pattern: Sequencing) -> pa.Table:
        """Those of the keys, and others whose gap has timed out."""
        found = runs.find(keys)
        if pattern.gap_timeout_seconds is None:
            return found
        due = runs.waiting(self.now_us - round(pattern.gap_timeout_seconds * MICROSECONDS))
        others = due.filter(pc.invert(pc.is_in(due.column("key"), value_set=keys)))
        return lines_of.one_table([found, others]) if len(others) else found

    def _unread(self, rows: pa.Table) -> list[pa.Table]:
        if self.invalid == "error":
            key, number = rows.column(self.names.key)[0].as_py(), rows.column(self.names.number)[0].as_py()
            raise InvalidEvent(
                f"{len(rows)} rows cannot be read, the first with {self.names.key}={key!r} and {self.names.number}="
                f"{number!r}: a key of up to {MAX_ORDERING_KEY_BYTES} bytes and a number from 0 on are needed; "
                "invalid='quarantine' hands such rows on, and invalid='drop' leaves them out",
                (key, number),
            )
        return [unread(rows, QUARANTINED)] if self.invalid == "quarantine" else []


def by_bucket(batches: list[pa.RecordBatch]) -> dict[int, pa.Table]:
    """The rows of each bucket that a partition has, without the column that says so."""
    whole = pa.Table.from_batches(batches)
    numbers = lines_of.as_numbers(whole.column(BUCKET))
    rows = in_utc(whole.remove_column(0))
    marks = np.flatnonzero(numbers < 0).tolist()
    own = [-1 - int(numbers[mark]) for mark in marks]
    strange = np.setdiff1d(numbers[numbers >= 0], own)
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


def readable(rows: pa.Table, names: Names) -> Flags:
    """Which rows have a key and a number as patterns want them."""
    key = lines_of.one_chunk(rows.column(names.key)).cast(pa.string())
    number = lines_of.one_chunk(rows.column(names.number)).cast(pa.int64())
    size = pc.binary_length(key)
    conditions = [
        pc.greater(size, 0),
        pc.less_equal(size, MAX_ORDERING_KEY_BYTES),
        pc.greater_equal(number, 0),
        pc.less(number, MAX_WHOLE),  # another one must be able to follow
    ]
    good: Flags = np.ones(len(rows), np.bool_)
    for condition in conditions:
        good &= pc.fill_null(condition, False).to_numpy(zero_copy_only=False)
    return good


def check_bucket(keys: pa.StringArray, bucket: int, buckets: int) -> None:
    """Each key must be where its hash says, or it would be split in two."""
    wrong = np.flatnonzero(buckets_of(hashes(keys), buckets) != bucket)
    if len(wrong):
        key = keys[int(wrong[0])].as_py()
        raise StateDamaged("a task", f"key {key!r} came to bucket {bucket} of {buckets}, which is not its own")


def in_utc(rows: pa.Table) -> pa.Table:
    """The same moments, whatever time zone the session shows them in; and any column may have nulls."""
    return rows.cast(pa.schema([pa.field(field.name, _in_utc(field.type)) for field in rows.schema]))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _in_utc(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), _in_utc(kind.item_type))
    return kind
