"""Arrow record batches as bytes: each piece is an IPC stream of its own, so that it can be read without the others."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from inorder.errors import InvalidArgument

MAX_BYTES = 4_000_000  # of a piece: below the 4 MiB that gRPC's clients take, with what stands around it


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
    """The batches of a piece, checked: whoever sent it may have meant harm."""
    try:
        with pa.ipc.open_stream(piece) as reader:
            for batch in reader:
                batch.validate(full=True)
                yield batch
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise InvalidArgument(f"batches: not an Arrow IPC stream, {error}") from None
