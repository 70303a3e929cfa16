"""What happened to the messages of one subscription, written down, and what was wrong with it.

Threads, processes and simulations record into a `History`; once they are done, `anomalies` reads it and
names what it finds. This file knows no broker and no clock: only who said what, in which order.

Done, acked and published are moments, recorded from outside, so each is recorded on its safe side:

    publishing   before a message is sent       published   after the broker answered
    started      first thing in a handler       finished    last thing before the ack is sent
    acking       before an ack is sent          acked       after the broker answered

Then the recording itself makes nothing look wrong. `finished` or `acking` may be left out, not both: the
next message may start elsewhere before the answer to an ack is back. `acking` is the safer one to keep,
as only it tells a delivery that crossed its ack from one that came without any.

The words, for the messages of one key (the key None, or "", promises no order):

- A value **precedes** another if its `published` was recorded first. A message that was sent and never
  answered precedes nothing and follows nothing: it may come at any time, or not at all.
- A value is **done** at its first finished, acking, acked or gap.
- A **run** of a handler lasts from started to its finished, failed, acking or acked, whichever is first.
  A run without an end is a consumer that died, at some moment before the key's next run.

- **lost**: published, and never done. Not said of a history that is not complete.
- **reordered**: a value that a later one overtook. Either the later one started before this one was
  done, or this one started, with no ack sent yet, although the later one had been acked. Said once for
  each value, and not for one that is lost.
- **overlapping**: a run that started during another of its key. A handler that outlives its lease does
  this: the broker gives its message to someone else.
- **phantom**: delivered, but neither sent nor published.

At-least-once delivery is no anomaly, only counted: a **duplicate** starts again after it was acked, a
**redelivery** starts again before.
"""

from __future__ import annotations

import contextlib
import inspect
import reprlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, cast

Kind: TypeAlias = Literal[
    "publishing", "published", "started", "finished", "failed", "acking", "acked", "gap", "missing"
]
Name: TypeAlias = Literal["lost", "reordered", "overlapping", "phantom"]

EXAMPLES = 3  # of each anomaly in a report: enough to see a pattern, few enough to read


class Event(NamedTuple):
    """One thing that happened. A plain tuple that begins the same way will do wherever this does."""

    kind: Kind
    key: Hashable
    value: Hashable  # names a message within its key; for "missing" the number of messages
    consumer: str = ""
    time_us: int | None = None
    order: int = 0


class History:
    """What happened to the messages of one subscription, in order. Thread-safe.

    A topic with several subscriptions has several histories: record each publish in all of them, and
    a message that a filter holds back in none. Order between two publishers of one key is the order in
    which they record, so let one publisher write to a key, or record under the lock it publishes under.
    `now_us` tells the time of each event; nothing is concluded from it, but `merged` sorts by it.
    """

    def __init__(self, now_us: Callable[[], int] | None = None) -> None:
        self._events: list[Event] = []
        self._now_us = now_us
        self._lock = threading.Lock()

    def publishing(self, key: Hashable, value: Hashable) -> None:
        """A message is about to be sent: from now on it may be delivered."""
        self._record("publishing", key, value)

    def published(self, key: Hashable, value: Hashable) -> None:
        """The broker has answered a publish: the message must be delivered, after those before it."""
        self._record("published", key, value)

    def started(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """A handler begins."""
        self._record("started", key, value, consumer)

    def finished(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """A handler did its work."""
        self._record("finished", key, value, consumer)

    def failed(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """A handler raised, or gives its message back."""
        self._record("failed", key, value, consumer)

    def acking(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """An ack is about to be sent: from now on the next message may start."""
        self._record("acking", key, value, consumer)

    def acked(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """The broker has answered an ack."""
        self._record("acked", key, value, consumer)

    def gap(self, key: Hashable, value: Hashable, consumer: str = "") -> None:
        """The consumer was told that this message will not come."""
        self._record("gap", key, value, consumer)

    def missing(self, key: Hashable, count: int = 1, consumer: str = "") -> None:
        """The consumer was told, in their place, that `count` messages will not come: a gap without names.

        They are taken to be the first ones of the key that are not done.
        """
        self._record("missing", key, count, consumer)

    def handler(
        self,
        fn: Callable[[Any], Any] | None = None,
        consumer: str = "",
        value: Callable[[Any], Hashable] = attrgetter("data"),
    ) -> Callable[[Any], Any]:
        """A message handler that runs `fn` and records it; without `fn`, one that only acks.

        `fn`, a `def` or an `async def`, gets a stand-in for the message, whose `ack` and `nack` are
        recorded too. `value` says how a message is named; data that repeats within a key will not do.
        """
        run: Callable[[Any], Any] = fn or _ack

        def handle(message: Any) -> Any:
            with contextlib.ExitStack() as running:
                recorded = running.enter_context(self._running(message, value(message), consumer))
                returned = run(recorded)
                # Of a `def` that returns a coroutine, the work is still to come.
                return _awaited(returned, running.pop_all()) if inspect.iscoroutine(returned) else returned

        async def handle_async(message: Any) -> Any:
            return await handle(message)

        is_async = inspect.iscoroutinefunction
        # An object that is called has its kind there.
        return handle_async if is_async(run) or is_async(getattr(run, "__call__", None)) else handle  # noqa: B004

    @contextlib.contextmanager
    def _running(self, message: Any, value: Hashable, consumer: str) -> Iterator[_RecordedMessage]:
        run = (message.ordering_key, value, consumer)
        recorded = _RecordedMessage(self, message, run)
        self.started(*run)
        try:
            yield recorded
        except BaseException:
            self.failed(*run)
            raise
        if not recorded._nacked:
            self.finished(*run)

    def _record(self, kind: Kind, key: Hashable, value: Hashable, consumer: str = "") -> None:
        with self._lock:  # also around the clock, so that order and time agree
            time_us = self._now_us() if self._now_us else None
            self._events.append(Event(kind, key, value, consumer, time_us, len(self._events)))

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        """The events recorded so far; those that come later are not among them."""
        with self._lock:
            return iter(self._events[:])


class _RecordedMessage:
    """Stands in for a message whose answer is to be recorded; everything else is the message's own."""

    def __init__(self, history: History, message: Any, run: tuple[Hashable, Hashable, str]) -> None:
        self._history = history
        self._message = message
        self._run = run
        self._nacked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def ack(self) -> Any:
        if self._nacked:  # the first answer wins, so this one is none
            return self._message.ack()
        self._history.acking(*self._run)
        answer = self._message.ack()
        if hasattr(answer, "add_done_callback"):
            answer.add_done_callback(self._answered)
        else:
            self._history.acked(*self._run)
        return answer

    def nack(self) -> Any:
        self._nacked = True
        self._history.failed(*self._run)
        return self._message.nack()

    def modify_ack_deadline(self, seconds: float) -> Any:
        return self.nack() if seconds == 0 else self._message.modify_ack_deadline(seconds)

    def _answered(self, answer: Any) -> None:
        if answer.exception() is None:
            self._history.acked(*self._run)


def _ack(message: Any) -> None:
    message.ack()


async def _awaited(work: Coroutine[Any, Any, Any], running: contextlib.ExitStack) -> Any:
    with running:
        return await work


def merged(*parts: Iterable[Event]) -> list[Event]:
    """One history out of several, such as one for each process, in order of their times.

    Every event needs a time, by one clock for all parts: on one machine,
    `History(now_us=lambda: time.monotonic_ns() // 1000)`.
    """
    events = list(chain.from_iterable(parts))
    if any(event.time_us is None for event in events):
        raise ValueError("merged: every event needs a time; make each History with a now_us")
    events.sort(key=attrgetter("time_us"))  # stable, so each part keeps its own order
    return [event._replace(order=order) for order, event in enumerate(events)]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that should not have happened."""

    name: Name
    key: Hashable
    values: tuple[Hashable, ...]  # the value it happened to, or both of the two, the earlier one first
    sentence: str
    order: int  # of the event to look at first, counted from 0

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"


@dataclass(frozen=True, slots=True, repr=False)
class Anomalies:
    """All that went wrong; empty, and so false, if nothing did: `assert not found, str(found)`."""

    lost: tuple[Anomaly, ...] = ()
    reordered: tuple[Anomaly, ...] = ()
    overlapping: tuple[Anomaly, ...] = ()
    phantom: tuple[Anomaly, ...] = ()
    messages: int = 0  # published and answered
    unordered: int = 0  # those of them without a key
    keys: int = 0
    redeliveries: int = 0
    duplicates: int = 0
    complete: bool = True

    @property
    def names(self) -> set[Name]:
        return {anomaly.name for anomaly in self}

    def __len__(self) -> int:
        return sum(map(len, self._groups()))

    def __iter__(self) -> Iterator[Anomaly]:
        return chain.from_iterable(self._groups())

    def __str__(self) -> str:
        redeliveries = _count(self.redeliveries, "redelivery", "redeliveries")
        duplicates = _count(self.duplicates, "duplicate")
        lines = [f"{self._subject()}: {self._verdict()}; {redeliveries}, {duplicates}"]
        for group in self._groups():
            lines += [f"  {anomaly}" for anomaly in group[:EXAMPLES]]
            if len(group) > EXAMPLES:
                lines.append(f"  {group[0].name}: and {len(group) - EXAMPLES:,} more")
        return "\n".join(lines)

    __repr__ = __str__  # what a failed assertion shows

    def _groups(self) -> tuple[tuple[Anomaly, ...], ...]:
        return self.lost, self.reordered, self.overlapping, self.phantom

    def _subject(self) -> str:
        messages = _count(self.messages, "message")
        if not self.unordered:
            return f"{messages} of {_count(self.keys, 'key')}"
        if not self.keys:
            return f"{messages} without a key"
        return f"{messages} of {_count(self.keys, 'key')} ({self.unordered:,} without a key)"

    def _verdict(self) -> str:
        if self:
            return ", ".join(f"{len(group):,} {group[0].name}" for group in self._groups() if group)
        if not self.complete:
            return "nothing wrong so far"
        return "in order, none lost" if self.keys else "none lost"


def anomalies(history: Iterable[tuple[Any, ...]], *, complete: bool = True) -> Anomalies:
    """What went wrong in a history, in the words that open this file; the history is not changed.

    `history` is a History, or any events in order. `complete` says that nothing more is to come, so that
    what is not done now is lost. Takes time about in proportion to the events.
    """
    keys = _read(history)
    groups: dict[Name, list[Anomaly]] = {"lost": [], "reordered": [], "overlapping": [], "phantom": []}
    for key in keys:
        for anomaly in key.anomalies(complete):
            groups[anomaly.name].append(anomaly)
    return Anomalies(
        **{name: tuple(sorted(found, key=attrgetter("order"))) for name, found in groups.items()},
        messages=sum(len(key.answered) for key in keys),
        unordered=sum(len(key.answered) for key in keys if not key.ordered),
        keys=sum(key.ordered and bool(key.answered) for key in keys),
        redeliveries=sum(key.redeliveries for key in keys),
        duplicates=sum(key.duplicates for key in keys),
        complete=complete,
    )


def _read(history: Iterable[tuple[Any, ...]]) -> list[_Key]:
    events = [event if isinstance(event, Event) else Event(*event) for event in history]
    keys: dict[Hashable, _Key] = {}
    # Publishes first: a message may be delivered before its publisher has recorded the answer.
    for readers in (_PUBLISHES, _DELIVERIES):
        for order, event in enumerate(events):
            if read := readers.get(event.kind):
                name = None if event.key == "" else event.key
                if (key := keys.get(name)) is None:
                    key = keys[name] = _Key(name)
                read(key, event, order)
            elif event.kind not in _PUBLISHES and event.kind not in _DELIVERIES:
                raise ValueError(f"history: no event is of the kind {event.kind!r}")
    return list(keys.values())


@dataclass(slots=True, eq=False)
class _Message:
    """What the history says of one message."""

    value: Hashable
    sent: bool = False
    position: int = -1  # among the answered messages of its key
    published: int = -1  # like `delivered`, the order of the first event that said so
    delivered: int = -1
    starts: int = 0
    done: bool = False
    ack_sent: bool = False  # or made needless by a gap
    acked: bool = False
    overtaken: Anomaly | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a handler; it ends where it starts for as long as no end is known."""

    value: Hashable
    consumer: str
    start: int
    end: int


# The answered messages of a key that reached a moment ahead of all before them, as (position, order):
# both only grow, so the first message past a position is found by bisection.
_Front: TypeAlias = list[tuple[int, int]]


@dataclass(slots=True, eq=False)
class _Key:
    """One key's part of a history, read event by event."""

    key: Hashable
    messages: dict[Hashable, _Message] = field(default_factory=dict)
    answered: list[_Message] = field(default_factory=list)
    first_open: int = 0  # no answered message before this position is open, that is: not done
    started_front: _Front = field(default_factory=list)
    acked_front: _Front = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)
    latest: dict[tuple[Hashable, str], _Run] = field(default_factory=dict)
    unfinished: dict[tuple[Hashable, str], list[_Run]] = field(default_factory=dict)
    redeliveries: int = 0
    duplicates: int = 0

    @property
    def ordered(self) -> bool:
        return self.key is not None

    def on_publishing(self, event: Event, order: int) -> None:
        self._message(event).sent = True

    def on_published(self, event: Event, order: int) -> None:
        message = self._message(event)
        message.sent = True
        if message.position < 0:
            message.published = order
            message.position = len(self.answered)
            self.answered.append(message)

    def on_started(self, event: Event, order: int) -> None:
        message = self._delivered(event, order)
        if message.acked:
            self.duplicates += 1
        elif message.starts:
            self.redeliveries += 1
        message.starts += 1
        self._begin_run(event, order)
        if not message.done:
            self._check_started(message)
        if not message.ack_sent:
            self._check_acked(message)
        _advance(self.started_front, message, order)

    def on_finished(self, event: Event, order: int) -> None:
        self._end_run(event, order)
        self._done(self._delivered(event, order))

    def on_failed(self, event: Event, order: int) -> None:
        self._end_run(event, order)
        self._delivered(event, order)

    def on_acking(self, event: Event, order: int) -> None:
        self._end_run_by_ack(event, order)
        message = self._delivered(event, order)
        message.ack_sent = True
        self._done(message)

    def on_acked(self, event: Event, order: int) -> None:
        self.on_acking(event, order)
        message = self._message(event)
        message.acked = True
        _advance(self.acked_front, message, order)

    def on_gap(self, event: Event, order: int) -> None:
        self._give_up(self._message(event))

    def on_missing(self, event: Event, order: int) -> None:
        for message in islice(self._open_messages(), cast(int, event.value)):
            self._give_up(message)

    def anomalies(self, complete: bool) -> Iterator[Anomaly]:
        """What is wrong with this key, once all its events have been read."""
        for message in self.messages.values():
            if complete and message.position >= 0 and not message.done:
                yield self._anomaly("lost", _fate(message), message.published, message.value)
                continue
            self._done(message)  # or as good as: whatever started ahead of it will stay ahead
            if message.overtaken:
                yield message.overtaken
            if message.delivered >= 0 and not message.sent:
                sentence = f"{_short(message.value)} was delivered, but never published"
                yield self._anomaly("phantom", sentence, message.delivered, message.value)
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[Anomaly]:
        last = None  # the run that ends last, of those that started so far
        for run in self.runs:
            if last and run.start < last.end:
                sentence = f"a run of {_run(run)} started during one of {_run(last)}"
                yield self._anomaly("overlapping", sentence, run.start, last.value, run.value)
            if last is None or run.end > last.end:
                last = run

    def _message(self, event: Event) -> _Message:
        message = self.messages.get(event.value)
        if message is None:
            message = self.messages[event.value] = _Message(event.value)
        return message

    def _delivered(self, event: Event, order: int) -> _Message:
        message = self._message(event)
        if message.delivered < 0:
            message.delivered = order
        return message

    def _done(self, message: _Message) -> None:
        if not message.done:
            self._check_started(message)
            message.done = True

    def _give_up(self, message: _Message) -> None:
        message.ack_sent = True
        self._done(message)

    def _open_messages(self) -> Iterator[_Message]:
        """The messages that are not done, for a caller that makes each of them done before the next."""
        while self.first_open < len(self.answered):
            message = self.answered[self.first_open]
            if not message.done:
                yield message
            self.first_open += 1

    def _check_started(self, message: _Message) -> None:
        self._check_turn(message, self.started_front, "{later} was started before {earlier} was done")

    def _check_acked(self, message: _Message) -> None:
        self._check_turn(message, self.acked_front, "{earlier} was started after {later} was acked")

    def _check_turn(self, message: _Message, front: _Front, sentence: str) -> None:
        """Note it if a later message than this one is in the front."""
        if message.position < 0 or message.overtaken or not self.ordered:
            return
        if not front or front[-1][0] <= message.position:
            return
        position, order = front[bisect_right(front, message.position, key=itemgetter(0))]
        later = self.answered[position].value
        sentence = sentence.format(earlier=_short(message.value), later=_short(later))
        sentence = f"{sentence}, and {_short(message.value)} was published first"
        message.overtaken = self._anomaly("reordered", sentence, order, message.value, later)

    def _begin_run(self, event: Event, order: int) -> None:
        if not self.ordered:
            return
        run = _Run(event.value, event.consumer, order, order)
        self.runs.append(run)
        self.latest[event.value, event.consumer] = run
        self.unfinished.setdefault((event.value, event.consumer), []).append(run)

    def _end_run(self, event: Event, order: int) -> None:
        """End the consumer's latest run of this message that said neither finished nor failed."""
        if runs := self.unfinished.get((event.value, event.consumer)):
            _end(runs.pop(), order)

    def _end_run_by_ack(self, event: Event, order: int) -> None:
        # Only the latest: an ack belongs to the delivery it answers, and an earlier run that is still
        # open is one whose consumer died.
        if run := self.latest.get((event.value, event.consumer)):
            _end(run, order)

    def _anomaly(self, name: Name, sentence: str, order: int, *values: Hashable) -> Anomaly:
        where = f"key {_short(self.key)}" if self.ordered else "no key"
        return Anomaly(name, self.key, values, f"{where}: {sentence}", order)


_Reader: TypeAlias = Callable[[_Key, Event, int], None]

_PUBLISHES: dict[str, _Reader] = {"publishing": _Key.on_publishing, "published": _Key.on_published}

_DELIVERIES: dict[str, _Reader] = {
    "started": _Key.on_started,
    "finished": _Key.on_finished,
    "failed": _Key.on_failed,
    "acking": _Key.on_acking,
    "acked": _Key.on_acked,
    "gap": _Key.on_gap,
    "missing": _Key.on_missing,
}


def _advance(front: _Front, message: _Message, order: int) -> None:
    if message.position > (front[-1][0] if front else -1):
        front.append((message.position, order))


def _end(run: _Run, order: int) -> None:
    if run.end == run.start:
        run.end = order


def _fate(message: _Message) -> str:
    if not message.starts:
        return f"{_short(message.value)} was published, but never delivered"
    times = _count(message.starts, "time")
    return f"{_short(message.value)} was published and started {times}, but no handler finished it"


def _run(run: _Run) -> str:
    return f"{_short(run.value)} by {run.consumer}" if run.consumer else _short(run.value)


_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 60
_short = _shortened.repr


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
