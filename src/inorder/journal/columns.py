"""Messages as Arrow record batches.

Straight from the columns of the journal, without a step per message; and rows as messages to be published, checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inorder.errors import InvalidArgument
from inorder.journal.reading import Stretch
from inorder.message import Batch, make_entry, to_columns
from inorder.patterns.partitioning import slot_of

ROWS = 50_000  # in a batch, about: enough that its cost is that of its bytes
BYTES = 64 * 1024 * 1024  # or so many, if its messages are large: Arrow has no column of 2 GiB
PUBLISHED_ROWS = 5_000  # of one published batch: the owner has others to serve between two of them

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordering_key", pa.string()),  # null: no order is promised
        pa.field("data", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

# -- out of the journal ----------------------------------------------------------------------------


def record_batches(stretches: Iterable[Stretch], rows: int = ROWS, size: int = BYTES) -> Iterator[pa.RecordBatch]:
    """The messages of all stretches, in order, in batches of about so many rows, or so many bytes if that is less."""
    collected: list[Stretch] = []
    count = taken = 0
    for stretch in stretches:
        if collected and (count >= rows or taken + stretch.batch.size > size):
            yield _record_batch(collected)
            collected, count, taken = [], 0, 0
        collected.append(stretch)
        count += stretch.end - stretch.first
        taken += stretch.batch.size
    if collected:
        yield _record_batch(collected)


def of_slots(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows whose keys are in the slots from `first` up to `end`; what has no key is in slot 0."""
    keys = batch.column("ordering_key").dictionary_encode()
    wanted = pa.array([first <= slot_of(key) < end for key in keys.dictionary.to_pylist()], pa.bool_())
    return batch.filter(wanted.take(keys.indices).fill_null(first == 0))


def _record_batch(stretches: list[Stretch]) -> pa.RecordBatch:
    keys = pa.concat_arrays([_keys(stretch) for stretch in stretches])
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays([pa.array(range(s.first, s.end), pa.int64()) for s in stretches]),
            pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, pa.string()), keys),
            pa.concat_arrays([_data(stretch) for stretch in stretches]),
            pa.concat_arrays([_attributes(stretch) for stretch in stretches]),
            pa.concat_arrays([_times(stretch) for stretch in stretches]),
        ],
        schema=SCHEMA,
    )


def _cut(stretch: Stretch, column: pa.Array) -> pa.Array:
    skipped = stretch.first - stretch.batch.first
    return column.slice(skipped, stretch.end - stretch.first)


def _keys(stretch: Stretch) -> pa.Array:
    batch = stretch.batch
    buffers = [None, pa.py_buffer(batch.key_offsets), pa.py_buffer(batch.keys)]
    return _cut(stretch, pa.Array.from_buffers(pa.string(), batch.messages, buffers))


def _data(stretch: Stretch) -> pa.Array:
    batch = stretch.batch
    buffers = [None, pa.py_buffer(batch.data_offsets), pa.py_buffer(batch.data)]
    return _cut(stretch, pa.Array.from_buffers(pa.binary(), batch.messages, buffers))


def _attributes(stretch: Stretch) -> pa.Array:
    kind = SCHEMA.field("attributes").type
    attributes = stretch.batch.attributes()
    if attributes is None:
        return pa.nulls(stretch.end - stretch.first, kind)
    return _cut(stretch, pa.array([None if one is None else list(one.items()) for one in attributes], kind))


def _times(stretch: Stretch) -> pa.Array:
    batch, kind = stretch.batch, SCHEMA.field("publish_time").type
    times = batch.publish_times_us()
    if times is None:
        return pa.repeat(pa.scalar(batch.stored_us, kind), stretch.end - stretch.first)
    return _cut(stretch, pa.array(times, pa.int64()).cast(kind))


# -- to be published -------------------------------------------------------------------------------


def checked(rows: pa.RecordBatch) -> Iterator[Batch]:
    """Rows as messages, some thousands at a time. What is none is refused, and a column that is no part of one."""
    if len(set(rows.schema.names)) < len(rows.schema.names):
        raise InvalidArgument(f"columns: each once, not {', '.join(rows.schema.names)}")
    for name, kind in zip(rows.schema.names, rows.schema.types, strict=True):
        if name not in COLUMNS:
            raise InvalidArgument(f"column {name!r} is no part of a message: there are {', '.join(COLUMNS)}")
        if not any(is_kind(kind) for is_kind in COLUMNS[name]):
            raise InvalidArgument(f"column {name!r}: bytes or text, attributes a map of texts, not {kind}")
    if "data" not in rows.schema.names:
        raise InvalidArgument("column 'data' is missing")
    for start in range(0, rows.num_rows, PUBLISHED_ROWS):
        yield _batch(rows.slice(start, PUBLISHED_ROWS))


def in_utf8(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same with data as bytes. Spark takes any bytes for text, so what is no text is refused by its column."""
    names = rows.schema.names
    columns = [
        rows.column(at).cast(pa.binary()) if name == "data" else rows.column(at) for at, name in enumerate(names)
    ]
    for name, column in zip(names, columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidArgument(
                f"column {name!r}: a text in it is not UTF-8; hex or base64 make one of any bytes"
            ) from None
    return pa.RecordBatch.from_arrays(columns, names)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_attributes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


COLUMNS = {
    "data": (pa.types.is_binary, pa.types.is_large_binary, _is_text),
    "ordering_key": (_is_text, pa.types.is_null),
    "attributes": (_is_attributes, pa.types.is_null),
}


def _batch(rows: pa.RecordBatch) -> Batch:
    def column(name: str) -> list[Any]:
        return rows.column(name).to_pylist() if name in rows.schema.names else [None] * rows.num_rows

    data = rows.column("data")
    if data.null_count:
        raise InvalidArgument(f"column 'data': {data.null_count} row(s) are null; a message has data, perhaps empty")
    if not pa.types.is_binary(data.type):
        data = data.cast(pa.binary())
    attributes = [None if pairs is None else dict(pairs) for pairs in column("attributes")]
    return to_columns(list(map(make_entry, data.to_pylist(), attributes, column("ordering_key"))))
