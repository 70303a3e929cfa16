"""Arrow record batches as bytes: each piece is an IPC stream of its own, so that it can be read without the others."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from inorder.errors import InvalidArgument

MAX_BYTES = 4_000_000  # of a piece: below the 4 MiB that gRPC's clients take, with what stands around it

# Where the table of a message, and that of a record batch, have what is asked for here: see Message.fbs of Arrow.
_HEADER = 2
_COMPRESSION = 3


def packed(batch: pa.RecordBatch) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    """The batch in pieces, each as bytes and as it was; a row that is larger alone is a piece of its own."""
    if batch.num_rows > 1 and pa.ipc.get_record_batch_size(batch) > MAX_BYTES:
        half = batch.num_rows // 2
        yield from packed(batch.slice(0, half))
        yield from packed(batch.slice(half))
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    yield sink.getvalue().to_pybytes(), batch


def unpacked(piece: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of a piece, checked: whoever sent it may have meant harm, so nothing in it is larger than it."""
    try:
        messages = pa.ipc.MessageReader.open_stream(piece)
        schema = pa.ipc.read_schema(messages.read_next_message())
        for message in messages:
            if message.type != "record batch" or _is_compressed(message):
                raise InvalidArgument("batches: an Arrow IPC stream without dictionaries, and not compressed")
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, StopIteration, struct.error) as error:
        raise InvalidArgument(f"batches: not an Arrow IPC stream, {error}") from None


def _is_compressed(message: pa.Message) -> bool:
    """Whether a record batch is: pyarrow tells when it has made room for what it is told that comes out."""
    table = message.metadata
    (root,) = struct.unpack_from("<I", table, 0)
    at = root + _field(table, root, _HEADER)
    return _field(table, at + struct.unpack_from("<I", table, at)[0], _COMPRESSION) != 0


def _field(table: pa.Buffer, at: int, field: int) -> int:
    """Where in a table of FlatBuffers a field is, counted from its beginning; 0: it is not there."""
    (back,) = struct.unpack_from("<i", table, at)
    (size,) = struct.unpack_from("<H", table, at - back)
    place: int = struct.unpack_from("<H", table, at - back + 4 + 2 * field)[0] if 4 + 2 * field < size else 0
    return place
