"""Messages as bytes of google.pubsub.v1: split into columns when they are published, joined when they are delivered.

Nobody makes an object of a message on its way. To split, protobuf's own parser, which is C, is shown the request in
two other shapes that fit the same bytes: first the messages as plain bytes, then all of them one after another, as
if they were one message that has a column of data and one of keys. That is right if each has exactly both, which a
look at whole columns tells (measured: two thirds of what reading the fields of each message costs, and half of a
splitter written in Python). Of anything else each message is parsed.

The broker, and Spark behind it, get columns: keys, data, attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add, getitem, itemgetter
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS
from inorder.message import Batch, Ids, Message
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.varints import SMALL, VARINTS, length, varint
from inorder.server.status import invalid, parsed

Columns: TypeAlias = tuple[list[str], list[bytes], list[Mapping[str, str] | None], list[int]]

PublishRequest = pubsub.PublishRequest.pb()

_DATA = 0x0A  # how the field `data` of a message begins: its number times eight, and 2, as a length follows
_KEY = 0x2A  # and the field `ordering_key`


def _shapes() -> tuple[Any, Any]:
    """A request whose messages are bytes, and all messages as one that repeats its fields."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="inorder/server/wire.proto", package="inorder", syntax="proto3")
    request = file.message_type.add(name="Request")
    request.field.add(name="topic", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    request.field.add(name="messages", number=2, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    columns = file.message_type.add(name="Columns")
    columns.field.add(name="data", number=1, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    columns.field.add(name="keys", number=5, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = (pool.FindMessageTypeByName(f"inorder.{name}") for name in ("Request", "Columns"))
    first, second = map(message_factory.GetMessageClass, found)
    return first, second


_Request, _Columns = _shapes()
_WIDTHS = [1 + len(length(size)) + size for size in range(SMALL)]  # of a field with so many bytes
_first = itemgetter(0)


# -- what comes in ---------------------------------------------------------------------------------


def published(raw: bytes) -> tuple[str, Batch]:
    """The topic of a PublishRequest and its messages as columns."""
    return split(raw) or _parsed(raw)


def split(raw: bytes) -> tuple[str, Columns] | None:
    """The same, if all have data and no attributes, and all or none have a key; None if each must be parsed."""
    try:
        request = _Request.FromString(raw)
        bodies = list(request.messages)
        columns = _Columns.FromString(b"".join(bodies))
        data, keys = list(columns.data), list(columns.keys)
        widths = [*map(_WIDTHS.__getitem__, map(len, data))]
        if not bodies or len(data) != len(bodies) or {*map(_first, bodies)} != {_DATA}:
            return None
        if not keys:
            # One field of data fills each of them, so there is nothing else.
            if [*map(len, bodies)] != widths:
                return None
            keys = [""] * len(bodies)
        else:
            # The first field is data, where it ends a key begins, and both together fill the message.
            lengths = map(len, keys if "".join(keys).isascii() else map(str.encode, keys))
            whole = [*map(add, widths, map(_WIDTHS.__getitem__, lengths))]
            if len(keys) != len(bodies) or [*map(len, bodies)] != whole or {*map(getitem, bodies, widths)} != {_KEY}:
                return None
    except (DecodeError, IndexError):  # of which the second means: larger than what is worth this
        return None
    return request.topic, (keys, data, [None] * len(keys), _sizes(keys, data, {}))


def published_columns(raw: bytes) -> tuple[str, Batch]:
    """The same of a request whose messages are columns by themselves."""
    request = parsed(v1.PublishColumns, raw)
    columns = request.messages
    keys, data = list(columns.ordering_keys), list(columns.data)
    attributes = {place: dict(own.values) for place, own in columns.attributes.items() if own.values}
    if len(keys) != len(data) or max(attributes, default=-1) >= len(keys):
        raise invalid(
            f"messages: one ordering key and data for each, not {len(keys)} and {len(data)}, "
            f"and attributes for {max(attributes, default=-1) + 1}."
        )
    return request.topic, (keys, data, _by_place(attributes, len(keys)), _sizes(keys, data, attributes))


def _by_place(attributes: Mapping[int, Mapping[str, str]], count: int) -> list[Mapping[str, str] | None]:
    return [*map(attributes.get, range(count))] if attributes else [None] * count


def _sizes(keys: list[str], data: list[bytes], attributes: Mapping[int, Mapping[str, str]]) -> list[int]:
    """What each message counts for: its data, its key and its attributes, in bytes."""
    plain = "".join(keys).isascii()
    sizes = [*map(add, map(len, data), map(len, keys if plain else map(str.encode, keys)))]
    for place, own in attributes.items():
        texts = "".join((*own, *own.values()))
        sizes[place] += len(texts) if texts.isascii() else len(texts.encode())
    return sizes


def _parsed(raw: bytes) -> tuple[str, Batch]:
    request = parsed(PublishRequest, raw)
    return request.topic, columns_of(request.messages)


def columns_of(messages: Iterable[Any]) -> Columns:
    """Parsed messages as columns."""
    messages = list(messages)
    keys = [message.ordering_key for message in messages]
    data = [message.data for message in messages]
    attributes = {place: dict(message.attributes) for place, message in enumerate(messages) if message.attributes}
    return keys, data, _by_place(attributes, len(keys)), _sizes(keys, data, attributes)


# -- what goes out ---------------------------------------------------------------------------------


def publish_response(ids: Sequence[str]) -> bytes:
    """A PublishResponse, or what is said of columns."""
    if isinstance(ids, Ids):
        columns: bytes = v1.PublishedColumns(id_prefix=ids.prefix, first_position=ids.first).SerializeToString()
        return columns
    # None is longer than a length of one byte can say, and mostly all are of one length.
    if len({*map(len, ids)}) == 1:
        begin = f"\x0a{len(ids[0]):c}"
        return f"{begin}{begin.join(ids)}".encode()
    return b"".join([b"\x0a%c%b" % (len(one), one.encode()) for one in ids])


def received(messages: Sequence[Message], attempts: bool) -> list[bytes]:
    """Delivered messages, each as it stands in a response to Pull or StreamingPull. `attempts`: whether to count."""
    if not messages:
        return []
    source = messages[0]._source
    assert source is not None
    id_prefix, ack_id_prefix = source.id_prefix.encode(), source.ack_id_prefix.encode()
    time_us, time = -1, b""
    pieces: list[bytes] = []
    for message in messages:
        position, key, data, attributes, publish_us, _, _ = message._record
        if publish_us != time_us:  # mostly many were published together
            time_us, time = publish_us, _timestamp(publish_us)
        own_id = b"%b%d" % (id_prefix, position)
        body = b"\x1a%b%b%b" % (VARINTS[len(own_id)], own_id, time)
        if attributes:
            body = b"".join(_written(attributes)) + body
        if data:
            body = b"\x0a%b%b%b" % (length(len(data)), data, body)
        if key:
            encoded = key.encode()
            body = b"%b\x2a%b%b" % (body, VARINTS[len(encoded)], encoded)
        ack_id = b"%b%d" % (ack_id_prefix, message._lease)
        body = b"\x0a%b%b\x12%b%b" % (VARINTS[len(ack_id)], ack_id, length(len(body)), body)
        if attempts:
            body = b"%b\x18%b" % (body, length(message._attempt))
        pieces.append(b"\x0a%b%b" % (length(len(body)), body))
    return pieces


def _written(attributes: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in attributes.items():
        key, text = name.encode(), value.encode()
        entry = b"\x0a%b%b\x12%b%b" % (length(len(key)), key, length(len(text)), text)
        yield b"\x12%b%b" % (length(len(entry)), entry)


def _timestamp(time_us: int) -> bytes:
    """The field publish_time."""
    seconds, microseconds = divmod(time_us, MICROSECONDS)
    body = b"\x08" + varint(seconds) if seconds else b""
    if microseconds:
        body += b"\x10" + varint(1000 * microseconds)
    return b"\x22" + length(len(body)) + body
