"""Events as bytes. What was published is kept in columns, so that reading them costs no step per message.

A frame's body is a row of entries, each with its kind and its length. Two kinds are as frequent as
messages and have a layout of their own; the rest is JSON, which a person can read.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from sys import byteorder
from typing import Any, NamedTuple

from inorder.core.events import ACKED as ACKED_EVENT
from inorder.core.events import PUBLISHED as PUBLISHED_EVENT
from inorder.core.events import (
    Acked,
    Attempted,
    DeadLettered,
    Elapsed,
    Event,
    Failed,
    Failure,
    HeadSkipped,
    KeyResumed,
    ProducerOpened,
    Published,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotUpdated,
    Sought,
    SoughtSnapshot,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionDetached,
    SubscriptionUpdated,
    TopicCreated,
    TopicDeleted,
    TopicUpdated,
    Written,
)
from inorder.core.holds import Hold
from inorder.core.ledger import (
    Book,
    Ledger,
    Lost,
    Missed,
    SnapshotLedger,
    TopicLedger,
    Wait,
    gaps_and_gone,
    key_of,
    missed_of,
    positions_of,
)
from inorder.core.producers import Attempt, Producer
from inorder.core.ranges import Ranges
from inorder.errors import FailedPrecondition
from inorder.message import DATA, POSITION, PUBLISH_US, SIZE, STORED_US, Gap, Record, to_columns
from inorder.message import Batch as CheckedColumns
from inorder.options import SubscriptionOptions, TopicOptions, build

# Kinds of entries. A number is never given another meaning.
PUBLISHED = 1
ACKED = 2
OTHER = 3

_ENTRY = struct.Struct("<BI")  # kind, length of what follows
# Topic, first position, messages, stored, bytes as limits count them; the lengths of: keys, data,
# attributes (0: none has any), who missed what (0: nobody); whether publish times are given one by one.
_PUBLISHED = struct.Struct("<IQIqQIIIIB")
_ACKED = struct.Struct("<HIB")  # length of the name, positions, whether they are one run (then only its first is given)

_data, _position, _size = itemgetter(DATA), itemgetter(POSITION), itemgetter(SIZE)


class Batch(NamedTuple):
    """A published batch as it stands in a frame; its messages are read only where somebody wants them."""

    serial: int  # of its topic
    first: int
    messages: int
    stored_us: int
    size: int
    missed: Mapping[str, Missed]
    columns: memoryview
    lengths: tuple[int, int, int]  # of keys, data and attributes
    own_times: bool

    @property
    def end(self) -> int:
        """The position behind its last message."""
        return self.first + self.messages

    @property
    def key_offsets(self) -> memoryview:
        """Where in `keys` each key begins, and the last one ends: one number more than there are messages."""
        return _offsets(self.columns[: 4 * (self.messages + 1)])

    @property
    def data_offsets(self) -> memoryview:
        """The same for `data`."""
        width = 4 * (self.messages + 1)
        return _offsets(self.columns[width : 2 * width])

    @property
    def keys(self) -> memoryview:
        """All keys in a row, as UTF-8; an empty one means that no order is promised."""
        return self._column(0)

    @property
    def data(self) -> memoryview:
        """The data of all messages in a row."""
        return self._column(1)

    def attributes(self) -> list[Mapping[str, str] | None] | None:
        """Those of each message; None if none has any."""
        return json.loads(bytes(self._column(2)))[0] if self.lengths[2] else None

    def publish_times_us(self) -> array[int] | None:
        """When each was published; None if that is when they were stored."""
        if not self.own_times:
            return None
        start = 8 * (self.messages + 1) + sum(self.lengths)
        return _numbers("q", self.columns[start : start + 8 * self.messages])

    def _column(self, number: int) -> memoryview:
        start = 8 * (self.messages + 1) + sum(self.lengths[:number])
        return self.columns[start : start + self.lengths[number]]

    def columns_back(self) -> CheckedColumns:
        """The messages as they are handed in, to be published."""
        records = self.records()
        _, keys, data, attributes, _, sizes, _ = zip(*records, strict=True)
        return list(keys), list(data), list(attributes), list(sizes)

    def records(self) -> list[Record]:
        """The messages, as they were."""
        key_offsets = self.key_offsets.tolist()
        keys = _slices(bytes(self.keys), key_offsets)
        blob = bytes(self.data)
        data = [blob[begin:end] for begin, end in pairwise(self.data_offsets.tolist())]
        attributes: Iterable[Any] = repeat(None)
        sizes = [d + k for d, k in zip(map(len, data), _lengths(key_offsets), strict=True)]
        if self.lengths[2]:
            attributes, extra = json.loads(bytes(self._column(2)))
            sizes = [size + more for size, more in zip(sizes, extra, strict=True)]
        times: Iterable[int] = self.publish_times_us() or repeat(self.stored_us)
        positions = range(self.first, self.end)
        return list(zip(positions, keys, data, attributes, times, sizes, repeat(self.stored_us)))


def _offsets(column: memoryview) -> memoryview:
    """Numbers where they stand; a copy, if this machine has their bytes the other way round."""
    return column.cast("I") if byteorder == "little" else memoryview(_numbers("I", column))


def _numbers(kind: str, column: memoryview) -> array[int]:
    numbers: array[int] = array(kind, bytes(column))
    if byteorder != "little":
        numbers.byteswap()
    return numbers


def _slices(joined: bytes, offsets: list[int]) -> list[str]:
    if joined.isascii():
        text = joined.decode()
        return [text[begin:end] for begin, end in pairwise(offsets)]
    return [joined[begin:end].decode() for begin, end in pairwise(offsets)]


def _lengths(offsets: list[int]) -> Iterator[int]:
    return (end - begin for begin, end in pairwise(offsets))


# -- writing ---------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """What an index needs to know of a published batch."""

    serial: int  # of its topic
    first: int
    end: int
    size: int
    stored_us: int


def encode(events: Iterable[Event], serial_of: Callable[[str], int]) -> tuple[list[bytes], list[Stored]]:
    """The body of a frame, in pieces, and what is published in it. `serial_of` knows topics by their names."""
    pieces: list[bytes] = []
    stored: list[Stored] = []
    for event in events:
        if event[0] == PUBLISHED_EVENT:
            _, topic, records, size, _, _ = event
            serial, (first, *_, stored_us) = serial_of(topic), records[0]
            pieces += _published(event, serial)
            stored.append(Stored(serial, first, first + len(records), size, stored_us))
        elif event[0] == ACKED_EVENT:
            pieces += _acked(event)
        elif not isinstance(event, Elapsed):  # time passes without being written down
            body = _json(_other(event))
            pieces += (_ENTRY.pack(OTHER, len(body)), body)
    return pieces, stored


def _published(event: Published, serial: int) -> Iterable[bytes]:
    _, _, records, size, refused, columns = event
    first, publish_us, stored_us = records[0][POSITION], records[0][PUBLISH_US], records[0][STORED_US]
    times = b""
    if columns is None:
        columns = to_columns([(key, data, attributes, size) for _, key, data, attributes, _, size, _ in records])
        times = _pack("q", [record[PUBLISH_US] for record in records])
    elif publish_us != stored_us:
        times = _pack("q", [publish_us] * len(records))
    keys, data, attributes, sizes = columns
    joined = "".join(keys).encode()
    # One character is one byte in most keys; where it is not, each has to be looked at.
    key_offsets = [0, *accumulate(map(len, keys if joined.isascii() else map(str.encode, keys)))]
    data_offsets = [0, *accumulate(map(len, data))]
    some = b""
    if any(attributes):
        plain = map(sum, zip(map(len, data), _lengths(key_offsets), strict=True))
        some = _json((attributes, [size - known for size, known in zip(sizes, plain, strict=True)]))
    missed = _json({name: missed_of(records, refused[name]) for name in refused}) if refused else b""
    offsets = _pack("I", key_offsets + data_offsets)
    lengths = len(joined), data_offsets[-1], len(some), len(missed)
    header = _PUBLISHED.pack(serial, first, len(records), stored_us, size, *lengths, bool(times))
    entry = _ENTRY.pack(PUBLISHED, _PUBLISHED.size + len(offsets) + sum(lengths) + len(times))
    # The data as it is: it is put together once, when the frame is written.
    return (entry + header, missed, offsets, joined, *data, some, times)


def columns_entry(columns: CheckedColumns) -> bytes:
    """Messages that are not published yet, as an entry: the topic, the positions and the time are still to come."""
    keys, data, attributes, sizes = columns
    records = list(zip(range(len(keys)), keys, data, attributes, repeat(0), sizes, repeat(0)))
    return b"".join(_published((PUBLISHED_EVENT, "", records, sum(sizes), {}, columns), 0))


def _acked(event: Acked) -> Iterable[bytes]:
    _, name, _, records = event
    # Gap records have no size, and hardly any message has none: so mostly the data need not be looked at.
    if not all(map(_size, records)) and Gap in {*map(type, map(_data, records))}:
        positions = positions_of(records)
    else:
        positions = [*map(_position, records)]
    positions.sort()  # they nearly are: it takes a quarter of what the least and the greatest would
    first, count = positions[0], len(positions)
    is_run = positions[-1] - first == count - 1
    numbers = _pack("Q", [first] if is_run else positions)
    encoded = name.encode()
    header = _ACKED.pack(len(encoded), count, is_run)
    return (_ENTRY.pack(ACKED, len(header) + len(encoded) + len(numbers)), header, encoded, numbers)


def _pack(kind: str, numbers: Sequence[int]) -> bytes:
    """Numbers of a kind that `array` knows, in a row: in half the time that `struct` takes for them."""
    packed = array(kind, numbers)
    if byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def _other(event: Event) -> Sequence[Any]:
    """The name of what happened, and its parts."""
    match event:
        case TopicCreated(topic, serial, id_prefix, options, now_us):
            return "topic_created", topic, serial, id_prefix, asdict(options), now_us
        case TopicUpdated(topic, options):
            return "topic_updated", topic, asdict(options)
        case TopicDeleted(topic):
            return "topic_deleted", topic
        case Written(topic, writer, epoch, part):
            return "written", topic, writer, epoch, part
        case ProducerOpened(topic, producer, epoch, now_us):
            return "producer_opened", topic, producer, epoch, now_us
        case Attempted(topic, attempt, first, count, now_us):
            return "attempted", topic, attempt, first, count, now_us
        case SubscriptionCreated(name, topic, serial, options, now_us):
            return "subscription_created", name, topic, serial, asdict(options), now_us
        case SubscriptionUpdated(name, options):
            return "subscription_updated", name, asdict(options)
        case SubscriptionDetached(name):
            return "subscription_detached", name
        case SubscriptionDeleted(name):
            return "subscription_deleted", name
        case Failed():
            returns = [(b.key, [*b.failures.items()], b.until_us, b.waits_for, key_of(b)) for b in event.returns]
            return "failed", event.subscription, returns
        case DeadLettered():
            return "dead_lettered", event.subscription, *gaps_and_gone(event)
        case KeyResumed(name, key):
            return "key_resumed", name, key
        case HeadSkipped(name, key):
            return "head_skipped", name, key
        case Sought(name, position, replay_from, visible):
            return "sought", name, position, replay_from, visible
        case SnapshotCreated(name, subscription, topic, done, expires_us, annotations, now_us):
            return "snapshot_created", name, subscription, topic, done, expires_us, annotations, now_us
        case SnapshotUpdated(name, expires_us, annotations):
            return "snapshot_updated", name, expires_us, annotations
        case SnapshotDeleted(name):
            return "snapshot_deleted", name
        case SoughtSnapshot(name, snapshot, visible):
            return "sought_snapshot", name, snapshot, visible
    raise TypeError(f"no way to write down {event!r}")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# -- reading ---------------------------------------------------------------------------------------


def entries(body: bytes) -> Iterator[tuple[int, memoryview]]:
    """The entries of a frame: their kinds and what is in them."""
    view, start = memoryview(body), 0
    while start < len(view):
        kind, length = _ENTRY.unpack_from(view, start)
        start += _ENTRY.size
        if start + length > len(view):
            raise ValueError("an entry is longer than its frame")
        yield kind, view[start : start + length]
        start += length


def batch(entry: memoryview) -> Batch:
    """A published batch, its messages still as columns."""
    serial, first, count, stored_us, size, keys, data, attributes, missed, own_times = _PUBLISHED.unpack_from(entry)
    start = _PUBLISHED.size + missed
    told: Mapping[str, Missed] = {}
    if missed:
        told = {
            name: Missed(*positions) for name, positions in json.loads(bytes(entry[_PUBLISHED.size : start])).items()
        }
    return Batch(serial, first, count, stored_us, size, told, entry[start:], (keys, data, attributes), bool(own_times))


def acked(entry: memoryview) -> tuple[str, Sequence[int]]:
    """The name of a subscription, and which positions it has done."""
    length, count, is_run = _ACKED.unpack_from(entry)
    start = _ACKED.size + length
    name = str(entry[_ACKED.size : start], "utf-8")
    positions = _numbers("Q", entry[start:])
    return name, range(positions[0], positions[0] + count) if is_run else positions


def replay(body: bytes, book: Book, names: dict[int, str]) -> list[Stored]:
    """Repeat a frame's events in the books; returns what was published. `names` are those of topics by serial."""
    published: list[Stored] = []
    for kind, entry in entries(body):
        if kind == PUBLISHED:
            found = batch(entry)
            book.published(names[found.serial], found.first, found.messages, found.stored_us, found.missed)
            published.append(Stored(found.serial, found.first, found.end, found.size, found.stored_us))
        elif kind == ACKED:
            name, positions = acked(entry)
            book.subscriptions[name].acked(positions)
        elif kind == OTHER:
            _replay_other(json.loads(bytes(entry)), book, names)
        else:
            raise unknown(f"of kind {kind}")
    return published


def _replay_other(parts: list[Any], book: Book, names: dict[int, str]) -> None:
    match parts:
        case ["topic_created", topic, serial, id_prefix, options, now_us]:
            names[serial] = topic
            book.topic_created(TopicCreated(topic, serial, id_prefix, build(TopicOptions, options), now_us))
        case ["topic_updated", topic, options]:
            book.topic_updated(TopicUpdated(topic, build(TopicOptions, options)))
        case ["topic_deleted", topic]:
            book.topic_deleted(TopicDeleted(topic))
        case ["written", topic, writer, epoch, part]:
            book.written(topic, writer, epoch, part)
        case ["producer_opened", *rest]:
            book.producer_opened(ProducerOpened(*rest))
        case ["attempted", topic, attempt, *rest]:
            book.attempted(Attempted(topic, Attempt(*attempt), *rest))
        case ["subscription_created", name, topic, serial, options, now_us]:
            checked = build(SubscriptionOptions, options)
            book.subscription_created(SubscriptionCreated(name, topic, serial, checked, now_us))
        case ["subscription_updated", name, options]:
            book.subscription_updated(SubscriptionUpdated(name, build(SubscriptionOptions, options)))
        case ["subscription_detached", name]:
            book.subscription_detached(SubscriptionDetached(name))
        case ["subscription_deleted", name]:
            book.subscription_deleted(SubscriptionDeleted(name))
        case ["failed", name, returns]:
            for key, failures, until_us, waits_for, of in returns:
                known = {position: Failure(*failure) for position, failure in failures}
                book.subscriptions[name].failed(key, known, until_us, waits_for, of)
        case ["dead_lettered", name, gaps, gone]:
            book.subscriptions[name].dead_lettered(gaps, gone)
        case ["key_resumed", name, key]:
            book.subscriptions[name].resumed(key)
        case ["head_skipped", name, key]:
            book.subscriptions[name].skipped(key)
        case ["sought", name, position, replay_from, visible]:
            book.subscriptions[name].sought(position, replay_from, visible)
        case ["snapshot_created", *rest]:
            book.snapshot_created(SnapshotCreated(*rest))
        case ["snapshot_updated", *rest]:
            book.snapshot_updated(SnapshotUpdated(*rest))
        case ["snapshot_deleted", name]:
            book.snapshot_deleted(SnapshotDeleted(name))
        case ["sought_snapshot", *rest]:
            book.sought_snapshot(SoughtSnapshot(*rest))
        case _:
            raise unknown(str(parts[:1]))


def unknown(entry: str) -> FailedPrecondition:
    return FailedPrecondition(f"the journal has an entry {entry}, which this version of inorder does not know")


# -- the books -------------------------------------------------------------------------------------


def book_to_json(book: Book) -> dict[str, Any]:
    """The books as plain values."""
    return {
        "serial": book.serial,
        "topics": [asdict(topic) for topic in book.topics.values()],
        "subscriptions": [_ledger_to_json(ledger) for ledger in book.subscriptions.values()],
        "snapshots": [{**vars(snapshot), "done": [*snapshot.done]} for snapshot in book.snapshots.values()],
    }


def _ledger_to_json(ledger: Ledger) -> dict[str, Any]:
    return {
        "name": ledger.name,
        "topic": ledger.topic,
        "serial": ledger.serial,
        "options": asdict(ledger.options),
        "created_us": ledger.created_us,
        "detached": ledger.detached,
        "on_request": ledger.on_request,
        "done": [*ledger.sorted_done()],
        "gaps": [*ledger.gaps.items()],
        "lost": [*ledger.lost.items()],
        "failures": [*ledger.failures.items()],
        "holds": [*ledger.holds.items()],
        "waits": [*ledger.waits.items()],
    }


def _producer(recent: list[list[int]], **rest: int) -> Producer:
    return Producer(recent=[(first, count) for first, count in recent], **rest)


def book_from_json(plain: Mapping[str, Any]) -> Book:
    """The books back from plain values."""
    book = Book(plain["serial"])
    for topic in plain["topics"]:
        changed = {
            "options": build(TopicOptions, topic["options"]),
            "writers": {writer: tuple(last) for writer, last in topic["writers"].items()},
            "producers": {name: _producer(**known) for name, known in topic.get("producers", {}).items()},
        }
        book.topics[topic["name"]] = TopicLedger(**{**topic, **changed})
    for values in plain["subscriptions"]:
        changed = {
            "options": build(SubscriptionOptions, values["options"]),
            "done": Ranges((start, end) for start, end in values["done"]),
            "gaps": dict(values["gaps"]),
            "lost": {position: Lost(*lost) for position, lost in values.get("lost", ())},  # not in the first journals
            "failures": {position: Failure(*failure) for position, failure in values["failures"]},
            "holds": {key: Hold(*hold) for key, hold in values["holds"]},
            "waits": {position: Wait(*wait) for position, wait in values["waits"]},
        }
        book.subscriptions[values["name"]] = Ledger(**{**values, **changed})
    for values in plain.get("snapshots", ()):  # there were none in the first journals
        book.snapshots[values["name"]] = SnapshotLedger(**{**values, "done": Ranges(values["done"])})
    return book
