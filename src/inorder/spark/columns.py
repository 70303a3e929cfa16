"""Messages as Arrow record batches, straight from the columns of the journal: no step per message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from inorder.journal.reading import Stretch

ROWS = 50_000  # in a batch, about: enough that its cost is that of its bytes

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordering_key", pa.string()),  # null: no order is promised
        pa.field("data", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
SPARK_SCHEMA = (
    "position BIGINT NOT NULL, ordering_key STRING, data BINARY, attributes MAP<STRING, STRING>, "
    "publish_time TIMESTAMP NOT NULL"
)


def record_batches(stretches: Iterable[Stretch], rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """The messages of all stretches, in order, in batches of about so many rows."""
    collected: list[Stretch] = []
    count = 0
    for stretch in stretches:
        collected.append(stretch)
        count += stretch.end - stretch.first
        if count >= rows:
            yield _record_batch(collected)
            collected, count = [], 0
    if collected:
        yield _record_batch(collected)


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
