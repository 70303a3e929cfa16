"""An operator as a streaming DataFrame: the same step behind `applyInPandasWithState`, keyed by bucket.

That API hands over pandas, which has no nulls among whole numbers and other types than Arrow. So rows travel as what
they are: a task packs those of a bucket into one value, the group takes such values and makes one, and a task behind
it unpacks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from inorder.errors import StateRefused
from inorder.spark.hashing import buckets_of, hashes
from inorder.spark.lines import one_chunk, one_table
from inorder.spark.mapping import map_in_arrow
from inorder.spark.operations import Operation, Place
from inorder.spark.outcomes import with_outcome
from inorder.spark.runs import Runs
from inorder.spark.tasks import BUCKET, ROWS_AT_ONCE, in_utc

PACKED = f"{BUCKET} INT, packed BINARY"
STATE = "made_for STRING, lines BINARY"


def in_groups(rows: DataFrame, operation: Operation, buckets: int) -> DataFrame:
    """What an operator makes of a stream, as a stream."""
    packed = map_in_arrow(rows, Packing(operation.names.key, buckets), PACKED)
    group = Group(operation, buckets, {field.name: field.dataType.simpleString() for field in rows.schema.fields})
    # With a timeout, Spark always has one more batch to run, so only who needs it has it.
    waits = operation.step.due_us(0) is not None
    timeout = GroupStateTimeout.ProcessingTimeTimeout if waits else GroupStateTimeout.NoTimeout
    grouped = packed.groupBy(BUCKET).applyInPandasWithState(group, "packed BINARY", STATE, "append", timeout)
    return grouped.mapInArrow(unpacked, with_outcome(rows.schema))


@dataclass(frozen=True, slots=True)
class Packing:
    """Rows into one value for each bucket."""

    key: str
    buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`."""
        for batch in batches:
            rows = in_utc(pa.Table.from_batches([batch]))
            encoded = one_chunk(rows.column(self.key)).cast(pa.string()).dictionary_encode()
            of_keys = buckets_of(hashes(encoded.dictionary), self.buckets)
            codes = encoded.indices.fill_null(len(of_keys)).to_numpy(zero_copy_only=False)
            numbers = np.append(of_keys, 0)[codes]  # what has no key is in bucket 0
            for number in np.unique(numbers).tolist():
                packed = as_bytes(rows.filter(pa.array(numbers == number)))
                columns = [pa.array([number], pa.int32()), pa.array([packed], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, [BUCKET, "packed"])


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the rows in packed values."""
    for batch in batches:
        for packed in batch.column(0):
            yield from as_table(packed.as_buffer()).to_batches(max_chunksize=ROWS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Group:
    """The work of a bucket in a batch. Its clock is that of the batch, which Spark pins."""

    operation: Operation
    buckets: int
    schema: dict[str, str]

    def __call__(self, key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """For `applyInPandasWithState`."""
        step, now_us = self.operation.step, state.getCurrentProcessingTimeMs() * 1_000
        new = [as_table(packed) for frame in frames for packed in frame["packed"]]
        lines = self._stored(state)
        rows = one_table(new) if new else _no_rows(lines)
        empty = step.lines(rows.schema)
        runs = Runs([lines] if lines is not None else [], empty)
        ran = self.operation.run(rows, runs, Place(int(key[0]), self.buckets), now_us)
        whole = runs.merged_with(ran.lines, now_us)
        state.update((self._made_for, as_bytes(whole)))
        since_us = pc.min(whole.column("since_us")).as_py()
        due_us = step.due_us(now_us)
        if since_us is not None and due_us is not None:
            state.setTimeoutDuration(max(1, -(-(since_us - due_us) // 1_000)))
        yield pd.DataFrame({"packed": [as_bytes(table) for table in ran.outcomes if len(table)]}, dtype=object)

    @property
    def _made_for(self) -> str:
        names = self.operation.names._asdict()
        return json.dumps([self.operation.operator, self.buckets, names, self.schema])

    def _stored(self, state: GroupState) -> pa.Table | None:
        if not state.exists:
            return None
        made_for, lines = state.get
        if made_for != self._made_for:
            raise StateRefused("the checkpoint", f"it is of {made_for}, not of {self._made_for}; start with a new one")
        return as_table(lines)


def _no_rows(lines: pa.Table | None) -> pa.Table:
    """Of the schema of what is parked: only because of that a group is called without rows."""
    assert lines is not None
    parked = lines.schema.field("parked").type.value_type
    return pa.schema(list(parked.field("row").type)).empty_table()


def as_bytes(table: pa.Table) -> bytes:
    """A table as Arrow streams it."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def as_table(packed: Any) -> pa.Table:
    """What `as_bytes` wrote, in one piece."""
    return ipc.open_stream(packed).read_all().combine_chunks()
