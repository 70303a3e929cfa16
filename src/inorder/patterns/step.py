"""The seam of all patterns: one step of one key, and `fold`, which runs steps over a list of events.

An event is a plain tuple whose first field is its key; which of the others a pattern reads, it says itself.
Fields behind those are carried along untouched, so a consumer may add what it needs: data, attributes, an id.
A pattern knows no clock and no store: time is an argument, state is handed in and handed back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from inorder.errors import InorderError, InvalidEvent
from inorder.message import check_ordering_key
from inorder.options import MAX_WHOLE

# What becomes of an event.
Fate = Literal["released", "late", "duplicate", "stale", "quarantined", "parked", "retry", "gap"]

RELEASED: Final = "released"  # it has its turn: apply it
LATE: Final = "late"  # its turn is over, but the policy lets it through: apply it, out of order
DUPLICATE: Final = "duplicate"  # it was applied before: nothing to do
STALE: Final = "stale"  # what is newer was applied, or it was given up: nothing to do
QUARANTINED: Final = "quarantined"  # it is not applied, and somebody should look at it
PARKED: Final = "parked"  # it waits, and is settled by whatever settles its number
RETRY: Final = "retry"  # it was not taken, and nothing of it is kept: it must come again
GAP: Final = "gap"  # no event but a `Missing`: these numbers will not be waited for any longer

APPLIED: Final[frozenset[Fate]] = frozenset({RELEASED, LATE})
SETTLED: Final[frozenset[Fate]] = APPLIED | {DUPLICATE, STALE, QUARANTINED}  # may be acked once the state is stored

Event: TypeAlias = tuple[Any, ...]
Outcome: TypeAlias = tuple[Fate, Any]  # of an event, or of a `Missing`

S = TypeVar("S")


class Missing(NamedTuple):
    """Numbers of a key, from `first` to `last`, that were given up."""

    key: str
    first: int
    last: int
    reason: Literal["timeout", "full"]


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """What one event, or one wake-up, does to its key.

    `emit` says in order what became of which events, those included that were parked before. An event is
    settled when `emit` gives it one of the fates in `SETTLED`; acking it before the state is stored, or
    before what is `APPLIED` has taken effect, would lose it.
    """

    state: S | None  # None: nothing of the key needs to be kept
    emit: tuple[Outcome, ...] = ()
    wake_at_us: int | None = None  # when to call `on_timer`; it takes the place of an earlier one


@dataclass(frozen=True, slots=True)
class Batch(Generic[S]):
    """The same for many events of many keys. The states that were handed in are as they were."""

    states: dict[str, S | None] = field(default_factory=dict)  # of the keys that changed; None: forget it
    emit: list[Outcome] = field(default_factory=list)
    wakes: dict[str, int] = field(default_factory=dict)  # when to call `on_timer`; too early or too often is harmless


class Pattern(Protocol[S]):
    """What every pattern is. An event that it cannot read raises, and changes nothing."""

    def on_message(self, state: S | None, event: Event, now_us: int) -> Step[S]:
        """One event; `state` is that of its key, None if there is none."""

    def on_messages(self, states: Mapping[str, S], events: Iterable[Event], now_us: int) -> Batch[S]:
        """As `on_message` for each of them in turn, only faster."""

    def on_timer(self, state: S, now_us: int) -> Step[S]:
        """A wake-up. Before its time it does nothing but say again when that is."""


@dataclass(slots=True)
class Folded(Generic[S]):
    """What a fold came to: the state of each key, and what was emitted, each with its time."""

    states: dict[str, S]
    emit: list[tuple[int, Fate, Any]] = field(default_factory=list)

    def of(self, *fates: Fate) -> list[Any]:
        """The events with one of these fates, in order."""
        return [event for _, fate, event in self.emit if fate in fates]

    def applied(self) -> list[Any]:
        """The events to apply, in the order in which to apply them."""
        return self.of(*APPLIED)


def fold(
    pattern: Pattern[S], events: Iterable[Event], *, states: Mapping[str, S] | None = None, now_us: int = 0
) -> Folded[S]:
    """Run a pattern over events that all come at one time, so that no wake-up is due between them."""
    before = states or {}
    batch = pattern.on_messages(before, events, now_us)
    after = {key: state for key, state in {**before, **batch.states}.items() if state is not None}
    return Folded(after, [(now_us, fate, event) for fate, event in batch.emit])


def fold_timed(
    pattern: Pattern[S],
    arrivals: Iterable[tuple[int, Event]],
    *,
    states: Mapping[str, S] | None = None,
    until_us: int | None = None,
) -> Folded[S]:
    """Run a pattern over `(now_us, event)`, in this order, with the wake-ups that are due between them.

    A wake-up that is due when an event comes goes first. After the last event, those due up to `until_us` follow.
    """
    folding = _Folding(pattern, dict(states or {}))
    for now_us, event in arrivals:
        folding.wake_up(now_us)
        folding.take(event, now_us)
    if until_us is not None:
        folding.wake_up(until_us)
    return folding.folded


class _Folding(Generic[S]):
    """A fold on its way, with its wake-ups in a heap; one that was replaced is passed over when its time comes."""

    def __init__(self, pattern: Pattern[S], states: dict[str, S]) -> None:
        self.folded = Folded(states)
        self._pattern = pattern
        self._wakes: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        for key, state in tuple(states.items()):
            # Before its time, a wake-up does nothing but tell that time, and note it in the state: that may be of a
            # pattern with another timeout, and the next event would go by what it says.
            step = pattern.on_timer(state, -1)
            if step.wake_at_us is not None and step.state is not None:
                states[key] = step.state
                self._wakes[key] = step.wake_at_us
                self._heap.append((step.wake_at_us, key))
        heapify(self._heap)

    def take(self, event: Event, now_us: int) -> None:
        check_event(event, 1)
        step = self._pattern.on_message(self.folded.states.get(event[0]), event, now_us)
        self._keep(event[0], step, now_us)

    def wake_up(self, now_us: int) -> None:
        """Whatever is due by now, each at its own time."""
        while self._heap and self._heap[0][0] <= now_us:
            due_us, key = heappop(self._heap)
            if self._wakes.get(key) == due_us:
                step = self._pattern.on_timer(self.folded.states[key], due_us)
                assert step.wake_at_us is None or step.wake_at_us > due_us, "a wake-up that never ends"
                self._keep(key, step, due_us)

    def _keep(self, key: str, step: Step[S], now_us: int) -> None:
        self.folded.emit += [(now_us, fate, event) for fate, event in step.emit]
        if step.state is None:
            self.folded.states.pop(key, None)
        else:
            self.folded.states[key] = step.state
        if step.wake_at_us is None:
            self._wakes.pop(key, None)
        elif self._wakes.get(key) != step.wake_at_us:
            self._wakes[key] = step.wake_at_us
            heappush(self._heap, (step.wake_at_us, key))


def checked(events: Iterable[Event], fields: int) -> list[Event]:
    """The same events, after a look at all of them: tuples, long enough, with a key."""
    listed = list(events)
    # A look at whole columns costs a fifth of a look at each event, but does not tell which of them is bad.
    plain = (
        all(issubclass(kind, tuple) for kind in set(map(type, listed)))
        and min(map(len, listed), default=fields) >= fields
        and set(map(type, map(itemgetter(0), listed))) <= {str}
    )
    if not plain:
        for event in listed:
            check_event(event, fields)
    return listed


def check_event(event: Event, fields: int) -> None:
    """Refuse what is no event: not a tuple, too short, or without a key."""
    given: object = event  # anything, whatever the annotation says
    if not isinstance(given, tuple) or len(given) < fields:
        raise InvalidEvent(f"event: a tuple of at least {fields} fields, the first is the key, not {given!r}", given)
    try:
        check_ordering_key(given[0])
    except InorderError as error:
        raise InvalidEvent(f"key: {error}", given) from None


def check_event_text(name: str, value: object, event: Event, *, may_be_empty: bool = False) -> None:
    """Refuse what is no text, or one that nobody can store: with half of a surrogate pair."""
    if type(value) is not str or not (value or may_be_empty):
        raise InvalidEvent(f"{name}: a string{'' if may_be_empty else ' that is not empty'}, not {value!r}", event)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(f"{name}: not a plain value: {error}", event) from None


def check_event_number(name: str, value: object, event: Event, *, at_least: int = 0) -> None:
    """Refuse a number that is no whole number, or does not fit into 64 bits: also True, 1.0 and "1"."""
    if type(value) is not int or not at_least <= value <= MAX_WHOLE:
        raise InvalidEvent(f"{name}: a whole number from {at_least} to {MAX_WHOLE}, not {value!r}", event)
