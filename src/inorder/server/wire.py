"""Messages as bytes of google.pubsub.v1: split when they are published, joined when they are delivered.

Nobody makes an object of a message on its way. `split` reads what every client writes, fields in their order and
nothing unknown; of anything else it says so, and the caller has the request parsed by protobuf, which knows all.
The broker, and Spark behind it, get columns: keys, data, attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS
from inorder.message import Batch, Message
from inorder.server.status import parsed

Columns: TypeAlias = tuple[list[str], list[bytes], list[Mapping[str, str] | None], list[int]]

PublishRequest = pubsub.PublishRequest.pb()

# Tags: the number of a field times eight, and 2 where a length follows, 0 where a number does.
_TOPIC = _DATA = _NAME = _ENTRY_KEY = 0x0A
_MESSAGE = _ATTRIBUTE = _ENTRY_VALUE = 0x12
_KEY = 0x2A

_SMALL = 1 << 14


def varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits to a byte, the lowest first."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_VARINTS = [varint(number) for number in range(_SMALL)]


def length(of: int) -> bytes:
    """The same, for numbers that are mostly small."""
    return _VARINTS[of] if of < _SMALL else varint(of)


# -- what comes in ---------------------------------------------------------------------------------


def published(raw: bytes) -> tuple[str, Batch]:
    """The topic of a PublishRequest and its messages as columns."""
    return split(raw) or _parsed(raw)


def split(raw: bytes) -> tuple[str, Columns] | None:
    """The same, if the request is written as clients write it; None if protobuf should look at it."""
    try:
        return _split(raw)
    except (IndexError, UnicodeDecodeError, _Unusual):
        return None


class _Unusual(Exception):
    """Perhaps valid, but not what clients write."""


def _split(raw: bytes) -> tuple[str, Columns]:
    keys: list[str] = []
    data: list[bytes] = []
    attributes: list[Mapping[str, str] | None] = []
    sizes: list[int] = []
    end = len(raw)
    at, topic = 0, ""
    if raw and raw[0] == _TOPIC:
        begin, at = _span(raw, 1, end)
        topic = raw[begin:at].decode()
    while at < end:
        if raw[at] != _MESSAGE:
            raise _Unusual
        # Lengths below 128 are one byte, and read here: a call for each would double what a message costs.
        size, at = raw[at + 1], at + 2
        if size > 0x7F:
            size, at = _number(raw, at - 1)
        stop = at + size
        if stop > end:
            raise _Unusual
        one, own, key = b"", None, ""
        size = 0
        if at < stop and raw[at] == _DATA:
            size, at = raw[at + 1], at + 2
            if size > 0x7F:
                size, at = _number(raw, at - 1)
            begin, at = at, at + size
            one = raw[begin:at]
        if at < stop and raw[at] == _ATTRIBUTE:
            own, at, more = _attributes(raw, at, stop)
            size += more
        if at < stop and raw[at] == _KEY:
            width, at = raw[at + 1], at + 2
            if width > 0x7F:
                width, at = _number(raw, at - 1)
            begin, at = at, at + width
            key = raw[begin:at].decode()
            size += width
        if at != stop:
            raise _Unusual
        keys.append(key)
        data.append(one)
        attributes.append(own)
        sizes.append(size)
    return topic, (keys, data, attributes, sizes)


def _attributes(raw: bytes, at: int, stop: int) -> tuple[Mapping[str, str], int, int]:
    """The attributes that begin here, where they end, and their bytes."""
    found: dict[str, str] = {}
    total = 0
    while at < stop and raw[at] == _ATTRIBUTE:
        at, end = _span(raw, at + 1, stop)
        if raw[at] != _ENTRY_KEY:
            raise _Unusual
        begin, middle = _span(raw, at + 1, end)
        if raw[middle] != _ENTRY_VALUE:
            raise _Unusual
        value, at = _span(raw, middle + 1, end)
        name = raw[begin:middle].decode()
        if at != end or name in found:
            raise _Unusual
        found[name] = raw[value:end].decode()
        total += middle - begin + end - value
    return found, at, total


def _span(raw: bytes, at: int, stop: int) -> tuple[int, int]:
    """Where what has its length here begins and ends."""
    size, begin = _number(raw, at)
    if begin + size > stop:
        raise _Unusual
    return begin, begin + size


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """The number that stands here, and where it ends; no length has more than four bytes."""
    number = 0
    for shift in (0, 7, 14, 21):
        digit = raw[at]
        at += 1
        number |= (digit & 0x7F) << shift
        if digit < 0x80:
            return number, at
    raise _Unusual


def _parsed(raw: bytes) -> tuple[str, Batch]:
    request = parsed(PublishRequest, raw)
    return request.topic, columns_of(request.messages)


def columns_of(messages: Iterable[Any]) -> Columns:
    """Parsed messages as columns."""
    columns: Columns = ([], [], [], [])
    keys, data, attributes, sizes = columns
    for message in messages:
        own = dict(message.attributes) or None
        keys.append(message.ordering_key)
        data.append(message.data)
        attributes.append(own)
        texts = [message.ordering_key, *(own or {}), *(own or {}).values()]
        sizes.append(len(message.data) + sum(len(text.encode()) for text in texts))
    return columns


# -- what goes out ---------------------------------------------------------------------------------


def publish_response(ids: Sequence[str]) -> bytes:
    """A PublishResponse."""
    # None is longer than a length of one byte can say.
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
        body = b"\x1a%b%b%b" % (_VARINTS[len(own_id)], own_id, time)
        if attributes:
            body = b"".join(_written(attributes)) + body
        if data:
            body = b"\x0a%b%b%b" % (length(len(data)), data, body)
        if key:
            encoded = key.encode()
            body = b"%b\x2a%b%b" % (body, _VARINTS[len(encoded)], encoded)
        ack_id = b"%b%d" % (ack_id_prefix, message._lease)
        body = b"\x0a%b%b\x12%b%b" % (_VARINTS[len(ack_id)], ack_id, length(len(body)), body)
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
