"""Publishes each message to the partition of its slot, and makes sure that it counts there.

A message is sent where the routes that are known here say, without asking. When the broker has answered, the routes
are checked: if nothing was announced meanwhile, the message counts. If its slot was sealed, its position decides: what
came too late is sent again, for the next term, and its publisher is answered only then. Messages of a slot that moves
wait here, each key in order; the others are not concerned.

Of a key nothing is sent for a new term while the fate of something of an older one is not known. Within a term what
is stored later counts only if what was stored earlier does, so a key may have any number under way.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from inorder.client.pubsub import PubSub
from inorder.client.topic import Topic
from inorder.consumers.partitions.routes import Routes, Term, Verdict
from inorder.consumers.partitions.table import Table
from inorder.errors import Closed, InorderError, InvalidArgument, InvalidOrderingKey, KeyPaused, ResourceExhausted
from inorder.message import Message, batch_of, position_of
from inorder.options import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, check_whole
from inorder.patterns.partitioning import slot_of
from inorder.pending import Pending

TERM = "inorder-term"  # the attribute that names the term for which a message was published
ENTITY = "inorder-key"  # the attribute that names its key, where the ordering key is the partition's
MAX_HELD = 10_000  # messages that wait for a slot, unless told
LONGEST_TERM = Term(10**10, 9_999, None)  # as text, longer than any that there will be
STAMPS = 2  # attributes that may be added
STAMP_BYTES = 4_096  # more than they and the key on the wire can have
ROUNDS = 10  # of sending what came while the round before was sent, before the table is looked at again
MAX_COUNTED_KEYS = 100_000  # whose load is known; then all loads are halved, and the least forgotten

KeyOf = Callable[[Message], str]


def topic_name(name: str, partition: int) -> str:
    return f"{name}-{partition}"


class Parcel(NamedTuple):
    """A message on its way; `number` is its place among all that were published here."""

    number: int
    key: str
    slot: int
    message: Message
    answer: Pending[str]


class Sent(NamedTuple):
    """A message that the broker has stored, perhaps too late."""

    parcel: Parcel
    term: Term
    message_id: str


@dataclass(slots=True)
class Line:
    """What is under way of one key."""

    term: Term | None = None  # of those that are sent
    unchecked: set[int] = field(default_factory=set)  # the numbers of those that are sent, and not known to count
    waiting: list[Parcel] = field(default_factory=list)
    releasing: bool = False  # somebody sends what waited: who comes now stands behind it


class Router:
    """The publishing side of a partitioned topic. Thread-safe.

    It has no thread: when something waits, it calls `wake`, and somebody must call `tend` until that says that nothing
    waits any more.
    """

    def __init__(
        self,
        pubsub: PubSub,
        table: Table,
        *,
        key: KeyOf | None = None,
        max_held: int = MAX_HELD,
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        check_whole("max_held", max_held)
        if key is not None and not callable(key):
            raise InvalidArgument(f"key: something to call with a message, not {key!r}")
        self._pubsub = pubsub
        self._table = table
        self._key = key or _ordering_key
        self._max_held = max_held
        self._wake = wake
        self._lock = threading.Lock()
        self._tending = threading.Lock()
        self._topics: dict[int, Topic] = {}
        self._lines: dict[str, Line] = {}
        self._held = 0
        self._doubtful: list[Sent] = []
        self._paused: set[str] = set()
        self._numbers = count()
        self._closed = False
        self.loads: dict[str, int] = {}

    # -- what users call ---------------------------------------------------------------------------

    def publish(self, messages: Iterable[Message]) -> list[Pending[str]]:
        """Send messages in order, each to its partition; one bad message refuses them all."""
        messages = [*messages]
        addresses = [self._address(message) for message in messages]
        _, data, attributes, sizes = batch_of(messages)
        routes = self._table.known
        # What waits for its slot is sent later, and by then its publisher may have changed what it handed in.
        parcels = [
            Parcel(next(self._numbers), key, slot, copy, Pending())
            for (key, slot), copy in zip(addresses, map(Message, data, attributes), strict=True)
        ]
        self._check_stamped(parcels, attributes, sizes, routes)
        try:
            with self._lock:
                self._check(parcels)
                terms = [self._term_of(parcel, routes) for parcel in parcels]
                self._check_room(waits := terms.count(None))
                for parcel, term in zip(parcels, terms, strict=True):
                    self._admit(parcel, term)
                to_send = [(parcel, term) for parcel, term in zip(parcels, terms, strict=True) if term is not None]
            self._send(to_send, routes)
            if waits:
                self._wake()
        except InorderError:  # refused, and so not admitted
            raise
        except BaseException:  # Ctrl-C, in the middle of anything
            self._forget(parcels)
            raise
        return [parcel.answer for parcel in parcels]

    def resume(self, key: str) -> None:
        """Publish on a key again of which a publish failed."""
        routes = self._table.known
        for partition, topic in tuple(self._topics.items()):  # its slot may have moved since
            topic.resume_publishing(self._wire_key(routes, partition, key))
        with self._lock:
            self._paused.discard(key)

    def paused_keys(self) -> list[str]:
        with self._lock:
            return sorted(self._paused)

    def unanswered(self) -> list[str]:
        """The keys of which something is under way, or waits."""
        with self._lock:
            return sorted(self._lines)

    def close(self) -> None:
        """Take no more, and give up what waits for its slot: nothing of that counts."""
        with self._lock:
            self._closed = True
            given_up = [parcel for line in self._lines.values() for parcel in line.waiting]
            given_up += [sent.parcel for sent in self._doubtful]
            self._lines.clear()
            self._doubtful.clear()
            self._held = 0
        self._give_up(given_up)

    def _give_up(self, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            error = Closed(f"the publisher was closed while slot {parcel.slot} moved: the message may not be stored")
            parcel.answer.set_exception(error)

    def _address(self, message: Message) -> tuple[str, int]:
        """Its key and its slot."""
        if not isinstance(message, Message):
            raise InvalidArgument(f"messages: expected several of Message, not of {type(message).__name__}")
        key = self._key(message)
        if not key:
            raise InvalidOrderingKey("a message without a key belongs to no partition: give it an ordering_key")
        return key, slot_of(key)

    def _check_stamped(
        self,
        parcels: Sequence[Parcel],
        attributes: Sequence[Mapping[str, str] | None],
        sizes: Sequence[int],
        routes: Routes,
    ) -> None:
        """Refuse what is too large with all that is added here: refused by the broker, it would pause innocent keys."""
        in_doubt = [
            parcel
            for parcel, some, size in zip(parcels, attributes, sizes, strict=True)
            if size > MAX_MESSAGE_BYTES - STAMP_BYTES or (some is not None and len(some) > MAX_ATTRIBUTES - STAMPS)
        ]
        batch_of([self._stamped(parcel, LONGEST_TERM, routes) for parcel in in_doubt])

    def _check(self, parcels: Sequence[Parcel]) -> None:
        if self._closed:
            raise Closed(f"the publisher of the partitions of {self._table.name!r} is closed")
        for parcel in parcels:
            if parcel.key in self._paused:
                raise KeyPaused(parcel.key)

    def _check_room(self, waits: int) -> None:
        if waits and self._held + waits > self._max_held:
            raise ResourceExhausted(
                f"{self._held} messages wait for slots that move, {waits} more would, "
                f"and no more than {self._max_held} may"
            )

    def _term_of(self, parcel: Parcel, routes: Routes) -> Term | None:
        """For which term to send it, as all of its key that come with it; None if it waits."""
        term = routes.open_term(parcel.slot)
        line = self._lines.get(parcel.key)
        if line is not None and (line.waiting or line.releasing or (line.unchecked and line.term != term)):
            return None
        return term

    def _admit(self, parcel: Parcel, term: Term | None) -> None:
        """It is under way, for this term, or waits."""
        self._count(parcel.key)
        line = self._lines.get(parcel.key)
        if line is None:
            line = self._lines[parcel.key] = Line()
        if term is None:
            line.waiting.append(parcel)
            self._held += 1
        else:
            line.term = term
            line.unchecked.add(parcel.number)

    def _forget(self, parcels: Sequence[Parcel]) -> None:
        """A publish was interrupted: nobody is told what became of it, and what comes behind does not wait for that."""
        forgotten = {parcel.number for parcel in parcels}
        with self._lock:
            for key in {parcel.key for parcel in parcels} & self._lines.keys():
                line = self._lines[key]
                line.unchecked -= forgotten
                line.waiting = [parcel for parcel in line.waiting if parcel.number not in forgotten]
                self._forget_if_idle(key, line)
            self._held = sum(len(line.waiting) for line in self._lines.values())

    def _count(self, key: str) -> None:
        self.loads[key] = self.loads.get(key, 0) + 1
        if len(self.loads) > MAX_COUNTED_KEYS:
            self.loads = {key: load // 2 for key, load in self.loads.items() if load > 1}

    # -- to the broker and back --------------------------------------------------------------------

    def _topic(self, partition: int) -> Topic:
        if partition not in self._topics:
            self._topics[partition] = self._pubsub.topic(topic_name(self._table.name, partition))
        return self._topics[partition]

    def _wire_key(self, routes: Routes, partition: int, key: str) -> str:
        return topic_name(self._table.name, partition) if routes.strict else key

    def _send(self, to_send: Sequence[tuple[Parcel, Term]], routes: Routes) -> None:
        by_partition: dict[int, list[tuple[Parcel, Term]]] = {}
        for parcel, term in to_send:
            by_partition.setdefault(term.partition, []).append((parcel, term))
        for partition, sent in by_partition.items():
            messages = [self._stamped(parcel, term, routes) for parcel, term in sent]
            answer = self._topic(partition).publish_many(messages)
            answer.add_done_callback(partial(self._answered, sent))

    def _stamped(self, parcel: Parcel, term: Term, routes: Routes) -> Message:
        attributes = parcel.message.attributes  # a copy
        attributes[TERM] = str(term.number)
        if routes.strict:
            attributes[ENTITY] = parcel.key
        return Message(parcel.message.data, attributes, self._wire_key(routes, term.partition, parcel.key))

    def _answered(self, sent: Sequence[tuple[Parcel, Term]], done: Pending[list[str]]) -> None:
        error = done.exception()
        if error is not None:
            self._failed([parcel for parcel, _ in sent], error)
            return
        stored = [Sent(parcel, term, name) for (parcel, term), name in zip(sent, done.result(), strict=True)]
        # Only now, after the answer: whoever acts on a change from here on has seen these messages.
        self._table.unchanged().add_done_callback(lambda checked: self._checked(stored, checked))

    def _checked(self, stored: Sequence[Sent], checked: Pending[Routes | None]) -> None:
        if checked.exception() is None and (routes := checked.result()) is not None:
            stored = self._settle(stored, routes)
        if stored and self._doubt(stored):
            self._wake()

    def _doubt(self, stored: Sequence[Sent]) -> bool:
        """Nobody knows yet whether these count. Whether somebody will find out: not if this was closed."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._doubtful += stored
        if closed:
            self._give_up(sent.parcel for sent in stored)
        return not closed

    def _settle(self, stored: Sequence[Sent], routes: Routes) -> list[Sent]:
        """Answer for those that count, put back those that do not; returns those of which nobody knows yet."""
        by_verdict: dict[Verdict, list[Sent]] = {"counts": [], "void": [], "undecided": []}
        for sent in stored:
            verdict = routes.judge(sent.parcel.slot, sent.term.number, position_of(sent.message_id))
            by_verdict[verdict].append(sent)
        with self._lock:
            for sent in by_verdict["counts"]:
                self._end(sent.parcel)
            given_up = [sent.parcel for sent in by_verdict["void"] if not self._put_back(sent.parcel)]
            lines = (self._lines.get(sent.parcel.key) for sent in stored)
            waits = self._held > 0 and any(line is not None and line.waiting for line in lines)
        for sent in by_verdict["counts"]:
            sent.parcel.answer.set_result(sent.message_id)
        self._give_up(given_up)
        if waits:
            self._wake()
        return by_verdict["undecided"]

    def _end(self, parcel: Parcel) -> None:
        line = self._lines.get(parcel.key)
        if line is not None:  # else it was closed
            line.unchecked.discard(parcel.number)
            self._forget_if_idle(parcel.key, line)

    def _put_back(self, parcel: Parcel) -> bool:
        """It goes before all that was published later; unless it was forgotten, and nobody sends it any more."""
        line = self._lines.get(parcel.key)
        if line is None or parcel.number not in line.unchecked:
            return False
        line.unchecked.remove(parcel.number)
        insort(line.waiting, parcel)
        self._held += 1
        return True

    def _forget_if_idle(self, key: str, line: Line) -> None:
        if not line.unchecked and not line.waiting and not line.releasing:
            self._lines.pop(key, None)

    def _failed(self, parcels: Sequence[Parcel], error: BaseException) -> None:
        """A publish failed: its key is paused, and what waits behind it fails too."""
        behind: list[Parcel] = []
        with self._lock:
            for parcel in parcels:
                self._paused.add(parcel.key)
                line = self._lines.get(parcel.key)
                if line is not None:
                    line.unchecked.discard(parcel.number)
                    behind += line.waiting
                    self._held -= len(line.waiting)
                    line.waiting = []
                    self._forget_if_idle(parcel.key, line)
        for parcel in parcels:  # a topic that is paused may know another key, that of its strict partition
            parcel.answer.set_exception(KeyPaused(parcel.key) if isinstance(error, KeyPaused) else error)
        for parcel in behind:
            parcel.answer.set_exception(KeyPaused(parcel.key))

    # -- what waits --------------------------------------------------------------------------------

    def tend(self) -> bool:
        """Look at the table anew, decide what is in doubt, send what may go. Whether something still waits."""
        with self._tending:
            with self._lock:
                doubtful, self._doubtful = self._doubtful, []
                if not doubtful and not self._held:
                    return False
            try:
                routes = self._table.look().routes
                doubtful = self._settle(doubtful, routes)
            finally:
                self._doubt(doubtful)
            self._release(routes)
        with self._lock:
            return bool(self._doubtful or self._held)

    def _release(self, routes: Routes) -> None:
        """Send what waits for slots that are open, each key in its order, and what comes while that is sent."""
        for _ in range(ROUNDS):
            to_send: list[tuple[Parcel, Term]] = []
            with self._lock:
                for key, line in tuple(self._lines.items()):
                    if line.waiting or line.releasing:
                        to_send += self._released(line, routes.open_term(slot_of(key)))
                        self._forget_if_idle(key, line)
            if not to_send:
                return
            self._send(sorted(to_send, key=_number), routes)

    def _released(self, line: Line, term: Term | None) -> list[tuple[Parcel, Term]]:
        if term is None or (line.unchecked and line.term != term):
            line.releasing = False
            return []
        released = [(parcel, term) for parcel in line.waiting]
        line.releasing = bool(released)
        line.term = term
        line.unchecked.update([parcel.number for parcel in line.waiting])
        self._held -= len(released)
        line.waiting = []
        return released


def _number(one: tuple[Parcel, Term]) -> int:
    return one[0].number


def _ordering_key(message: Message) -> str:
    return message.ordering_key or ""
