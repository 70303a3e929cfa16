"""Messages as bytes of the protocol: written for a Publish, read from the columns of a delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import add

from inorder.message import Batch, Gap, Leased, numbered
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.varints import VARINTS, length


def publish_request(topic: str, batches: Sequence[Batch]) -> bytes:
    """A google.pubsub.v1.PublishRequest, without an object for each message."""
    name = topic.encode()
    pieces = [b"\x0a%b%b" % (length(len(name)), name)]
    for batch in batches:
        pieces += _plain_messages(batch) or _messages(batch)
    return b"".join(pieces)


def publish_columns(topic: str, batches: Sequence[Batch]) -> bytes:
    """The same for a server that takes columns, which costs both sides half as much."""
    request = v1.PublishColumns(topic=topic)
    columns, place = request.messages, 0
    for keys, data, attributes, _ in batches:
        columns.ordering_keys.extend(keys)
        columns.data.extend(data)
        if any(attributes):
            for at, own in enumerate(attributes, place):
                if own:
                    columns.attributes[at].values.update(own)
        place += len(keys)
    raw: bytes = request.SerializeToString()
    return raw


def _plain_messages(batch: Batch) -> Iterable[bytes]:
    """The fields of messages that all have data and a key, and no attributes, as most have; else nothing.

    Data is copied once, when all is joined; and what stands before it is the same wherever the lengths are.
    """
    keys, data, attributes, _ = batch
    if any(attributes) or not (all(keys) and all(data)):
        return ()
    encoded = list(map(str.encode, keys))
    lengths = list(zip(map(len, data), map(len, encoded), strict=True))
    before = {pair: _before_data(*pair) for pair in {*lengths}}
    before_key = {size: b"\x2a%b" % VARINTS[size] for _, size in before}
    return chain.from_iterable(
        zip(
            map(before.__getitem__, lengths), data, map(before_key.__getitem__, map(len, encoded)), encoded, strict=True
        )
    )


def _before_data(data: int, key: int) -> bytes:
    """How a message begins that has so many bytes of data, and then a key of so many."""
    begin = b"\x0a%b" % length(data)
    return b"\x12%b%b" % (length(len(begin) + data + 1 + len(VARINTS[key]) + key), begin)


def _messages(batch: Batch) -> Iterator[bytes]:
    keys, data, attributes, _ = batch
    for key, one, own in zip(keys, data, attributes, strict=True):
        body = b"\x0a%b%b" % (length(len(one)), one) if one else b""
        if own:
            body += b"".join(_attributes(own))
        if key:
            encoded = key.encode()
            body = b"%b\x2a%b%b" % (body, VARINTS[len(encoded)], encoded)
        yield b"\x12%b%b" % (length(len(body)), body)


def _attributes(attributes: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in attributes.items():
        key, text = name.encode(), value.encode()
        entry = b"\x0a%b%b\x12%b%b" % (length(len(key)), key, length(len(text)), text)
        yield b"\x12%b%b" % (length(len(entry)), entry)


def published_ids(response: bytes) -> list[str]:
    """The ids in a google.pubsub.v1.PublishResponse."""
    return list(v1.Published.FromString(response).message_ids)


def ids_of_columns(response: bytes, count: int) -> list[str]:
    """The ids of so many messages that were published as columns."""
    published = v1.PublishedColumns.FromString(response)
    return numbered(published.id_prefix, published.first_position, count)


def arrived(columns: v1.Columns, offset: int = 0) -> Leased:
    """What a delivery has brought; leases are counted from `offset` on."""
    leases = list(columns.leases)
    if offset:
        leases = [lease + offset for lease in leases]
    keys, data = list(columns.ordering_keys), list(columns.data)
    sizes = list(map(add, map(len, data), map(len, keys if "".join(keys).isascii() else map(str.encode, keys))))
    contents: list[bytes | Gap] = data
    attributes: list[Mapping[str, str] | None] = [None] * len(keys)
    if columns.attributes:
        for place, own in columns.attributes.items():
            values = attributes[place] = dict(own.values)
            sizes[place] += sum(len(name.encode()) + len(value.encode()) for name, value in values.items())
    if columns.gaps:
        contents = [*data]
        for place, gap in columns.gaps.items():
            sizes[place] = 0
            contents[place] = Gap(gap.ordering_key, gap.first_position, gap.last_position, gap.count, gap.reason)
    times = list(columns.publish_us)
    records = list(zip(columns.positions, keys, contents, attributes, times, sizes, times, strict=True))
    return Leased(leases, list(columns.attempts), records)
