"""A message as users see it, and the plain tuple that the inside of the broker keeps instead.

Objects are for people. Everything below the API handles `Record` tuples, whole batches at a time
(measured: three times the speed of objects with slots).
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress, repeat
from operator import add, itemgetter
from time import sleep
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, overload

from inorder.clock import MICROSECONDS
from inorder.errors import FailedPrecondition, InvalidAckId, InvalidMessage, InvalidOrderingKey
from inorder.options import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    MAX_ORDERING_KEY_BYTES,
    RESERVED_ATTRIBUTE_PREFIX,
)
from inorder.pending import Pending

# One message that a publisher hands in, checked: key ("" means: no order promised), data, attributes,
# size. No attributes are None: then the garbage collector need not look into a million waiting tuples.
Entry: TypeAlias = tuple[str, bytes, Mapping[str, str] | None, int]

# The same for many, as columns: keys, data, attributes, sizes, all of one length.
Batch: TypeAlias = tuple[Sequence[str], Sequence[bytes], Sequence[Mapping[str, str] | None], Sequence[int]]


class Columns(NamedTuple):
    """Messages to publish, side by side: for whoever has many of them, and needs no object of each."""

    keys: Sequence[str | None]  # None: no order is promised
    data: Sequence[bytes]
    attributes: Sequence[Mapping[str, str] | None] | None = None  # None: none has any


# A stored message: position, key, data, attributes, publish time, size, time it was stored here.
# Data is a `Gap`, and the size 0, where a message is missing. Publish time and stored time differ for dead letters,
# which keep the first and are retained by the second.
Record: TypeAlias = tuple[int, str, Any, Mapping[str, str] | None, int, int, int]
_EPOCH_DIGITS: Final = 13  # of microseconds since 1970: enough until 2112

POSITION: Final = 0
KEY: Final = 1
DATA: Final = 2
ATTRIBUTES: Final = 3
PUBLISH_US: Final = 4
SIZE: Final = 5
STORED_US: Final = 6

_key, _data, _attributes, _size = map(itemgetter, (KEY, DATA, ATTRIBUTES, SIZE))
_TAILS = [f"{number:02}" for number in range(100)]  # the last two figures of every number of several


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one key that an ordered subscription will not get, told in their place."""

    ordering_key: str
    first_position: int
    last_position: int
    count: int
    reason: str  # "dropped", "dead_lettered", "expired" or "skipped"


class Recipient(Protocol):
    """Who takes messages of a subscription."""

    ack_id_prefix: str


class Source(Recipient, Protocol):
    """Where a delivered message came from, and so where its answer goes."""

    id_prefix: str

    def ack(self, message: Message, answer: Pending[None]) -> None:
        """Send it, and set `answer` when the broker has it."""

    def nack(self, message: Message, answer: Pending[None]) -> None:
        """As `ack`."""

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]: ...


class Message:
    """One message: to publish, or delivered, when it also has an id, a time and an answer to give."""

    __slots__ = ("_attempt", "_lease", "_record", "_settled", "_source", "_unsettled", "_until_us")

    # Set when delivered, and deleted by who settles the message: of several threads one can, and no lock is
    # needed, which would cost as much as the rest of an answer. The answer itself is set by who settles it.
    _unsettled: None
    _settled: Pending[None] | AckedTogether
    _lease: int
    _attempt: int
    _until_us: int  # when its lease is over; for the consumer that holds it, who sets it

    def __init__(
        self,
        data: bytes = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
    ) -> None:
        # Nothing is checked here: `entries` does it, so that a bad message is refused by the publish
        # it belongs to, together with its batch.
        self._record: Record = (-1, ordering_key, data, attributes)  # type: ignore[assignment]  # the rest comes later
        self._source: Source | None = None  # and what else a delivery has, only a delivered message has

    @property
    def data(self) -> bytes:
        return self._record[DATA]  # type: ignore[no-any-return]

    @property
    def attributes(self) -> dict[str, str]:
        """A copy: other subscribers of the message do not see what you change."""
        return dict(self._record[ATTRIBUTES] or ())

    @property
    def ordering_key(self) -> str | None:
        """The key within which order is kept; None means that no order is promised."""
        key = self._record[KEY]
        return None if self._source is not None and key == "" else key

    @property
    def length(self) -> int:
        """Bytes of data."""
        return len(self._record[DATA])

    @property
    def position(self) -> int:
        """Its place in the topic, which never changes; -1 before it is published."""
        return self._record[POSITION]

    @property
    def id(self) -> str:
        """Unique over topics and restarts; empty before the message is published."""
        return "" if self._source is None else f"{self._source.id_prefix}{self._record[POSITION]}"

    @property
    def ack_id(self) -> str:
        """Names this one delivery; empty unless the message was delivered."""
        return "" if self._source is None else f"{self._source.ack_id_prefix}{self._lease}"

    @property
    def fencing_token(self) -> int:
        """Grows with each delivery of the subscription, so that a store can refuse what belongs to an older one.

        Also over restarts of the broker, as long as its clock is not set back by more than it was away.
        """
        return 0 if self._source is None else started_us(self._source.ack_id_prefix) + self._lease

    @property
    def publish_time(self) -> datetime | None:
        """When the broker took it in (UTC); None before."""
        if self._source is None:
            return None
        seconds, microseconds = divmod(self._record[PUBLISH_US], MICROSECONDS)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery, one more after each that failed; 0 before any."""
        return 0 if self._source is None else self._attempt

    def ack(self) -> Pending[None]:
        """The work is done: the message is removed and its key goes on. The first answer wins."""
        answer: Pending[None] = Pending()
        try:
            del self._unsettled
        except AttributeError:
            return self._first_answer()
        self._settled = answer
        self._source.ack(self, answer)  # type: ignore[union-attr]
        return answer

    def nack(self) -> Pending[None]:
        """The work failed: the message comes again, in its place. The first answer wins."""
        answer: Pending[None] = Pending()
        try:
            del self._unsettled
        except AttributeError:
            return self._first_answer()
        self._settled = answer
        self._source.nack(self, answer)  # type: ignore[union-attr]
        return answer

    def modify_ack_deadline(self, seconds: float) -> Pending[None]:
        """Keep the message for `seconds` from now; 0 gives it back, as a nack does."""
        source = self._delivered_by()
        if not hasattr(self, "_unsettled"):
            return self._first_answer()
        if seconds == 0 and not isinstance(seconds, bool):
            return self.nack()
        return source.modify_ack_deadline(self._lease, seconds)

    def _first_answer(self) -> Pending[None]:
        """The answer that counts: somebody else's."""
        self._delivered_by()
        while not hasattr(self, "_settled"):  # another thread is between two lines of `ack` or `nack`
            sleep(0)
        settled = self._settled
        return settled.answer_to(self) if isinstance(settled, AckedTogether) else settled

    def _delivered_by(self) -> Source:
        if self._source is None:
            raise FailedPrecondition("only a delivered message can be answered; this one was never delivered")
        return self._source

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self._record, self.ack_id, self._source) == (other._record, other.ack_id, other._source)

    def __hash__(self) -> int:
        return hash((self.id, self.ack_id, self._record[DATA]))

    def __repr__(self) -> str:
        delivered = f", id={self.id!r}, delivery_attempt={self._attempt}" if self._source else ""
        data: object = self.data  # anything, before a publish has looked at it
        if isinstance(data, bytes):
            shown = repr(data if len(data) <= 40 else data[:40] + b"...")
        else:
            shown = reprlib.repr(data)
        return f"Message({shown}, ordering_key={self.ordering_key!r}{delivered})"


def new_epoch(now_us: int) -> str:
    """What all ids of one start of a broker begin with: when that was, and chance, as others may start as well."""
    return f"{now_us:0{_EPOCH_DIGITS}x}{os.urandom(3).hex()}-"


def started_us(prefix: str) -> int:
    """When the broker started whose ids begin so. It gives out fewer leases than microseconds pass."""
    return int(prefix[:_EPOCH_DIGITS], 16)


def delivered(
    records: Sequence[Record], attempts: Sequence[int], leases: Sequence[int], source: Source
) -> list[Message]:
    """The messages that a subscriber gets for records that were leased."""
    messages = list(map(Message.__new__, repeat(Message, len(records))))
    for message, record, lease, attempt in zip(messages, records, leases, attempts, strict=True):
        message._record = record
        message._lease = lease
        message._attempt = attempt
        message._source = source
        message._unsettled = None
    return messages


class AckedTogether:
    """Messages that were acked as one. Nobody makes an answer to each of them, but for who asks for it."""

    __slots__ = ("_over", "leases")

    def __init__(self) -> None:
        self.leases: list[int] = []
        self._over: Pending[list[int]] = Pending()

    def add(self, messages: Iterable[Message], source: Source) -> list[Message]:
        """Messages of one source whose first answer this is; returns the others."""
        others: list[Message] = []
        for message in messages:
            if message._source is source:
                try:
                    del message._unsettled
                except AttributeError:
                    others.append(message)
                else:
                    message._settled = self
                    self.leases.append(message._lease)
            else:
                others.append(message)
        return others

    def settle(self, settled: Pending[list[int]]) -> None:
        """The broker says which of the leases were over already, or what went wrong."""
        settled.hand_to(self._over)

    def answer_to(self, message: Message) -> Pending[None]:
        def answer(over: list[int]) -> None:
            if message._lease in over:
                raise InvalidAckId(message.ack_id)

        return self._over.map(answer)

    def answer(self, ack_id_prefix: str) -> Pending[None]:
        """To all of them: the first that was over is told."""

        def answer(over: list[int]) -> None:
            if over:
                raise InvalidAckId(f"{ack_id_prefix}{min(over, key=self.leases.index)}")

        return self._over.map(answer)


class Leased(NamedTuple):
    """Messages that are out, side by side: for whoever passes them on, and needs no object of each."""

    leases: Sequence[int]
    attempts: Sequence[int]
    records: list[Record]
    ack_id_prefix: str = ""  # of the leases; "" where whoever holds them knows it

    @property
    def keys(self) -> list[str]:
        """The ordering key of each; "" means that no order is promised."""
        return [*map(_key, self.records)]

    @property
    def data(self) -> list[Any]:
        """The data of each: bytes, or a `Gap` where messages are missing."""
        return [*map(_data, self.records)]

    def ack_ids(self) -> list[str]:
        return [f"{self.ack_id_prefix}{lease}" for lease in self.leases]

    def messages(self, source: Source) -> list[Message]:
        return delivered(self.records, self.attempts, self.leases, source)

    def size(self) -> int:
        """Of all of them, in bytes."""
        return sum(map(_size, self.records))

    def gaps(self) -> list[int]:
        """The leases of those that are none, but stand for messages that will not come."""
        if all(map(_size, self.records)):  # a gap record has no size
            return []
        return [lease for lease, record in zip(self.leases, self.records, strict=True) if isinstance(record[DATA], Gap)]

    def only(self, leases: Collection[int]) -> Leased:
        """Those with these leases."""
        return self._those([lease in leases for lease in self.leases] if leases else ())

    def without(self, over: Collection[int]) -> Leased:
        """All but those with these leases."""
        return self._those([lease not in over for lease in self.leases])

    def _those(self, wanted: Sequence[bool]) -> Leased:
        leases, attempts, records, prefix = self
        return Leased([*compress(leases, wanted)], [*compress(attempts, wanted)], [*compress(records, wanted)], prefix)


def before_their_place(records: Iterable[Record]) -> list[int]:
    """Which of these are gap records behind a message of their key, or behind such a one; by their indexes.

    Whoever gets all of them together would be told of the gap before the message in front of it was handled.
    """
    messages: set[str] = set()
    cut: set[str] = set()
    early: list[int] = []
    for index, record in enumerate(records):
        key = record[KEY]
        if isinstance(record[DATA], Gap) and key in messages:
            cut.add(key)
        if key in cut:
            early.append(index)
        elif not isinstance(record[DATA], Gap):
            messages.add(key)
    return early


def leases_of(messages: Sequence[object]) -> tuple[str, Sequence[int]] | None:
    """What the ack ids of messages begin with, and their leases, each once; None unless one source delivered them all.

    So nobody formats, and reads again, the ack ids of a whole pull.
    """
    source: Source | None = getattr(messages[0], "_source", None) if messages else None
    if source is None:
        return None
    try:
        leases = [message._lease for message in messages if message._source is source]  # type: ignore[attr-defined]
    except AttributeError:  # one of them is an ack id
        return None
    if len(leases) < len(messages):
        return None
    run = range(leases[0], leases[0] + len(leases))
    return source.ack_id_prefix, run if leases == [*run] else list(dict.fromkeys(leases))


def position_of(message_id: str) -> int:
    """The position, in its topic, of the message that has this id."""
    number = message_id.rpartition("-")[2]
    if not number.isdecimal():
        raise InvalidMessage(f"message id {message_id!r}: it does not end with a position")
    return int(number)


def batch_of(messages: Iterable[Message] | Columns) -> Batch:
    """Check all messages of a batch; raise for the first bad one, so that none of them is stored."""
    if isinstance(messages, Columns):
        return _batch_of_columns(messages)
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"messages: expected several of Message, not {type(messages).__name__}")
    messages = list(messages)
    plain = None
    if [*map(type, messages)].count(Message) == len(messages):  # in half the time that a set of the types takes
        # Column by column: `zip(*records)` would make an iterator for each message, and wake the garbage collector.
        records = [message._record for message in messages]
        plain = _plain_batch([*map(_key, records)], [*map(_data, records)], [*map(_attributes, records)])
    return plain or to_columns([_entry(message) for message in messages])


def _batch_of_columns(columns: Columns) -> Batch:
    for name, column in zip(columns._fields, columns, strict=True):
        if type(column) is list or (column is None and name == "attributes"):
            continue
        if isinstance(column, str | bytes) or not isinstance(column, Sequence):
            raise InvalidMessage(f"{name}: expected a list, one for each message, not {type(column).__name__}")
    keys, data = [*columns.keys], [*columns.data]  # copied: what waits for room must not change
    attributes: list[Mapping[str, str] | None] = [None] * len(data)
    if columns.attributes is not None:
        attributes = [*columns.attributes]
    if not len(keys) == len(data) == len(attributes):
        raise InvalidMessage(
            f"columns: all of one length, not {len(keys)} keys, {len(data)} data and {len(attributes)} attributes"
        )
    return _plain_batch(keys, data, attributes) or to_columns([*map(make_entry, data, attributes, keys)])


def _plain_batch(keys: list[str | None], data: list[bytes], attributes: list[Mapping[str, str] | None]) -> Batch | None:
    """The columns of messages that all have a short ASCII key and no attributes, as most have; else None.

    A look at whole columns costs a fifth of a look at each message, but does not tell which of them is bad.
    """
    count = len(keys)
    try:
        text = "".join(keys)  # type: ignore[arg-type]
    except TypeError:  # one of them has no key
        return None
    if attributes.count(None) != count or [*map(type, data)].count(bytes) != count or not all(keys):
        return None
    sizes = [*map(add, map(len, keys), map(len, data))]  # type: ignore[arg-type]
    # Together they are mostly shorter than one may be; then none need be looked at.
    short = len(text) <= MAX_ORDERING_KEY_BYTES or max(map(len, keys)) <= MAX_ORDERING_KEY_BYTES  # type: ignore[arg-type]
    fits = sum(sizes) <= MAX_MESSAGE_BYTES or max(sizes) <= MAX_MESSAGE_BYTES
    return (keys, data, attributes, sizes) if short and fits and text.isascii() else None  # type: ignore[return-value]


def with_source(record: Record, source: str, attempts: int) -> Record:
    """A dead letter that says where it came from, in the words of Pub/Sub."""
    position, key, data, attributes, publish_us, size, stored_us = record
    published = datetime.fromtimestamp(publish_us // MICROSECONDS, UTC).replace(microsecond=publish_us % MICROSECONDS)
    _, project, _, subscription = ("", "", "", *source.split("/"))[-4:]
    added = {
        "CloudPubSubDeadLetterSourceSubscription": subscription,
        "CloudPubSubDeadLetterSourceSubscriptionProject": project,
        "CloudPubSubDeadLetterSourceTopicPublishTime": published.isoformat(timespec="milliseconds"),
        "CloudPubSubDeadLetterSourceDeliveryCount": str(attempts),
    }
    merged = {**(attributes or {}), **added}
    grown = _attributes_size(merged) - _attributes_size(attributes or {})
    return position, key, data, merged, publish_us, size + grown, stored_us


def _attributes_size(attributes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())


def numbered(prefix: str, first: int, count: int) -> list[str]:
    """The prefix with each of `count` numbers from `first` on, for a third of what formatting each would cost."""
    end = first + count
    if count < 10 or first < 100:
        return [f"{prefix}{number}" for number in range(first, end)]
    texts: list[str] = []
    for hundred in range(first // 100, (end + 99) // 100):
        head, start = f"{prefix}{hundred}", 100 * hundred
        texts += [head + tail for tail in _TAILS[max(first - start, 0) : end - start]]
    return texts


class Ids(Sequence[str]):
    """What `numbered` returns, written only when somebody asks for it."""

    __slots__ = ("_numbers", "prefix")

    def __init__(self, prefix: str, first: int, count: int) -> None:
        self.prefix = prefix
        self._numbers = range(first, first + count)

    @property
    def first(self) -> int:
        """The position that the first of them ends with."""
        return self._numbers.start

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(numbered(self.prefix, self._numbers.start, len(self._numbers)))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return [*self][index] if isinstance(index, slice) else f"{self.prefix}{self._numbers[index]}"

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Ids | list | tuple) else NotImplemented

    def __repr__(self) -> str:
        return repr([*self])


def to_columns(entries: Sequence[Entry]) -> Batch:
    """Entries, side by side."""
    keys, data, attributes, sizes = ([*map(itemgetter(column), entries)] for column in range(4))
    return keys, data, attributes, sizes


def _entry(message: Message) -> Entry:
    if type(message) is not Message and not isinstance(message, Message):
        raise InvalidMessage(f"messages: expected Message, not {type(message).__name__}")
    _, key, data, attributes, *_ = message._record
    return make_entry(data, attributes, key if message._source is None else key or None)


def make_entry(data: bytes, attributes: Mapping[str, str] | None, ordering_key: str | None) -> Entry:
    """Check the parts of one message against every limit of the specification."""
    # Most have a short, plain key and no attributes; the others are looked at more closely.
    if attributes is None and type(data) is bytes and type(ordering_key) is str and ordering_key.isascii():
        length = len(ordering_key)
        size = length + len(data)
        # A message that is shorter than a key may be is within both limits.
        if length and (
            size <= MAX_ORDERING_KEY_BYTES or (length <= MAX_ORDERING_KEY_BYTES and size <= MAX_MESSAGE_BYTES)
        ):
            return ordering_key, data, None, size
    if type(data) is not bytes:
        data = _bytes(data)
    size = len(data)
    if ordering_key is not None:
        size += check_ordering_key(ordering_key)
    if attributes is not None:
        size += _attribute_bytes(attributes)
        attributes = dict(attributes) or None
    if size > MAX_MESSAGE_BYTES:
        raise InvalidMessage(f"message of {size} bytes exceeds the maximum of {MAX_MESSAGE_BYTES} bytes")
    return ordering_key or "", data, attributes, size


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidMessage(f"data: expected bytes, not {type(data).__name__}")


def check_ordering_key(key: str) -> int:
    """Refuse a key that no message can have; returns its bytes."""
    if not isinstance(key, str):
        raise InvalidOrderingKey(f"Ordering key must be a string, not {type(key).__name__}")
    if not key:
        raise InvalidOrderingKey("Ordering key cannot be empty")
    size = len(key) if key.isascii() else len(_utf8(key, "Ordering key", InvalidOrderingKey))
    if size > MAX_ORDERING_KEY_BYTES:
        raise InvalidOrderingKey(
            f"Ordering key exceeds maximum length of {MAX_ORDERING_KEY_BYTES} bytes (it has {size})"
        )
    return size


def _attribute_bytes(attributes: Mapping[str, str]) -> int:
    if not isinstance(attributes, Mapping):
        raise InvalidMessage(f"attributes: expected a mapping, not {type(attributes).__name__}")
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidMessage(f"{len(attributes)} attributes exceed the maximum of {MAX_ATTRIBUTES}")
    total = 0
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise InvalidMessage(f"Attribute keys must be strings, not {type(key).__name__}: {key!r}")
        if not key:
            raise InvalidMessage("Attribute key cannot be empty")
        if not isinstance(value, str):
            raise InvalidMessage(
                f"Attribute values must be strings: {key!r} has a value of type {type(value).__name__}"
            )
        # 'googclient_' begins with 'goog' too, so one test covers both reserved prefixes.
        if key.startswith(RESERVED_ATTRIBUTE_PREFIX):
            raise InvalidMessage(f"Attribute key {key!r} starts with the reserved prefix {RESERVED_ATTRIBUTE_PREFIX!r}")
        key_size = len(key) if key.isascii() else len(_utf8(key, "Attribute key", InvalidMessage))
        value_size = len(value) if value.isascii() else len(_utf8(value, f"Attribute {key!r}", InvalidMessage))
        if key_size > MAX_ATTRIBUTE_KEY_BYTES:
            raise InvalidMessage(
                f"Attribute key of {key_size} bytes exceeds the maximum of {MAX_ATTRIBUTE_KEY_BYTES} bytes: "
                f"{key[:40]!r}..."
            )
        if value_size > MAX_ATTRIBUTE_VALUE_BYTES:
            raise InvalidMessage(
                f"Attribute {key!r} has a value of {value_size} bytes, "
                f"more than the maximum of {MAX_ATTRIBUTE_VALUE_BYTES} bytes"
            )
        total += key_size + value_size
    return total


def _utf8(text: str, what: str, error: type[InvalidMessage | InvalidOrderingKey]) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise error(f"{what} is not valid UTF-8: {problem.reason} at {problem.start}") from None
