"""The state of keys as a table: a row per key, with the rows that are parked inside it.

The table form of `inorder.patterns.parking.Line`. What is parked is a list of structs, so that a key and all that
waits for it are one row, which is found, replaced and merged as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.patterns.parking import Ranges
from inorder.spark.hashing import Hashes, Numbers

HASH = pa.field("hash", pa.uint32(), nullable=False)
KEY = pa.field("key", pa.string(), nullable=False)
SINCE = pa.field("since_us", pa.int64())  # when the oldest of the parked rows came; null: none is parked
RANGES = pa.list_(pa.int64())  # first, last, first, last, …
ARRIVED = "arrived_us"


def schema(rows: pa.Schema) -> pa.Schema:
    """Of the lines whose parked rows have this schema."""
    parked = pa.struct([pa.field("row", pa.struct(list(rows))), pa.field(ARRIVED, pa.int64())])
    return pa.schema(
        [
            HASH,
            KEY,
            SINCE,
            pa.field("expected", pa.int64(), nullable=False),
            pa.field("missed", RANGES),
            pa.field("parked", pa.list_(parked)),
        ]
    )


def empty(rows: pa.Schema) -> pa.Table:
    """No lines."""
    return schema(rows).empty_table()


@dataclass(frozen=True, slots=True)
class Parked:
    """All rows that are parked in some lines, line after line, each in order of its numbers."""

    rows: pa.Table
    arrived_us: Numbers
    line: Numbers  # of each row: the index of its line

    @classmethod
    def of(cls, lines: pa.Table) -> Parked:
        column = one_chunk(lines.column("parked"))
        entries = column.flatten()
        return cls(
            pa.Table.from_batches([pa.RecordBatch.from_struct_array(entries.field("row"))]),
            as_numbers(entries.field(ARRIVED)),
            as_numbers(pc.list_parent_indices(column)),
        )


def parked_lists(rows: pa.Table, arrived_us: Numbers, counts: Numbers) -> pa.ListArray:
    """The other way round: the first `counts[0]` rows are the first list, and so on."""
    inner = pa.StructArray.from_arrays([one_chunk(column) for column in rows.columns], fields=list(rows.schema))
    entries = pa.StructArray.from_arrays([inner, pa.array(arrived_us, pa.int64())], ["row", ARRIVED])
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), entries)


def range_lists(ranges: Iterable[Ranges]) -> pa.ListArray:
    """Ranges as a line has them."""
    return pa.array([[end for pair in one for end in pair] for one in ranges], RANGES)


def ranges_of(lists: pa.ListArray, index: int) -> Ranges:
    """Ranges as a pattern has them."""
    ends = lists[index].as_py()
    return tuple(zip(ends[::2], ends[1::2], strict=True))


def before_the_beginning(first: Numbers) -> pa.ListArray:
    """For lines that begin with these numbers: what is before is missed."""
    ends = np.stack([np.zeros_like(first), first - 1], axis=1)[first > 0].reshape(-1)
    offsets = np.concatenate([[0], np.cumsum(np.where(first > 0, 2, 0))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ends, pa.int64()))


def by_hash(keys: pa.StringArray, hashed: Hashes) -> Numbers:
    """How to sort lines as a run has them: by hash and key. Those of one key stay as they are."""
    order = np.argsort(hashed, kind="stable")
    arranged = hashed[order]
    alike = np.flatnonzero(arranged[1:] == arranged[:-1])
    differ = pc.not_equal(keys.take(pa.array(order[alike])), keys.take(pa.array(order[alike + 1])))
    if pc.any(differ).as_py():  # keys of one hash, which are few
        where = np.flatnonzero(np.isin(arranged, arranged[alike][differ.to_numpy(zero_copy_only=False)]))
        among = order[where]
        tied = {"hash": arranged[where], "key": keys.take(pa.array(among)), "place": np.arange(len(where))}
        by = pc.sort_indices(pa.table(tied), [(name, "ascending") for name in tied])
        order[where] = among[by.to_numpy()]
    return order


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def one_table(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables of one schema below each other, each column in one piece."""
    return pa.concat_tables(tables).combine_chunks()


def as_numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """A column without nulls as numpy has it."""
    numbers: Numbers = one_chunk(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
