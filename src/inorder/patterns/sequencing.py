"""Consumer-side sequencing: events of a key leave in the order of their sequence numbers, however they came.

Reads `(key, sequence, …)` of an event. Sequence numbers are the producer's own, per key, without holes. The state
is a `Line`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from inorder.errors import DuplicateEvent, LateEvent, ProgressMissing
from inorder.options import DEFAULT_PARKED, MAX_WHOLE, REMEMBERED_GAPS, WhenParkingFull, check_choice, check_whole
from inorder.patterns.encoding import load
from inorder.patterns.parking import Line, Numbered, Parking, Ranges
from inorder.patterns.step import (
    DUPLICATE,
    LATE,
    QUARANTINED,
    STALE,
    Event,
    Outcome,
    check_event_number,
)

LatePolicy = Literal["drop", "emit", "error", "quarantine"]
DuplicatePolicy = Literal["drop", "error", "quarantine"]
Initial = Literal["first_seen", "stored"]


class Sequenced(NamedTuple):
    """An event with a sequence number, for whoever likes names; any tuple that starts alike will do."""

    key: str
    sequence: int
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resequencer(Numbered):
    """Releases the events of a key in the order of their sequence numbers, each number at most once.

    `initial` is the first number that a key waits for: a number, `"first_seen"` (whatever comes first, so what
    should have come before is late) or `"stored"` (a key without a stored state is an error; `start` makes one).

    An event ahead of its turn is parked, up to `capacity` per key. One too many is not taken (`"retry"`), or ends
    the wait for the first hole (`"gap"`), or raises (`"error"`). After `gap_timeout_seconds` a hole is given up:
    a `Missing` is emitted in its place, and the key goes on. A number that was given up, or lies before the
    beginning, is *late*, once; every other number below the expected one is a *duplicate*. The newest
    100 gaps of a key are remembered: a number of an older gap counts as a duplicate.

    A second event with the number of a parked one is parked with it, whatever the policies: it may be the same
    message, delivered again. Whatever settles the number settles both.
    """

    initial: int | Initial = 1
    capacity: int = DEFAULT_PARKED
    when_full: WhenParkingFull = "error"
    gap_timeout_seconds: float | None = None
    late: LatePolicy = "drop"
    duplicates: DuplicatePolicy = "drop"
    _parking: Parking = field(init=False, repr=False, compare=False)

    STATE: ClassVar = "sequencing/1"
    FIELDS: ClassVar = 2

    def __post_init__(self) -> None:
        if isinstance(self.initial, str):
            check_choice("initial", self.initial, Initial)
        else:
            check_whole("initial", self.initial, at_least=0)
        check_choice("late", self.late, LatePolicy)
        check_choice("duplicates", self.duplicates, DuplicatePolicy)
        object.__setattr__(self, "_parking", Parking(self.capacity, self.when_full, self.gap_timeout_seconds))

    @property
    def may_retry(self) -> bool:
        """Whether an event may be sent back, to come again."""
        return self.when_full == "retry"

    def start(self, expected: int) -> Line:
        """The state of a key of which everything before `expected` has been released."""
        check_whole("expected", expected, at_least=0)
        return Line(expected)

    def load(self, data: bytes) -> Line:
        """What `dump` wrote."""
        return load(self.STATE, data, Line)

    def _take(self, state: Line | None, event: Event, now_us: int, emit: list[Outcome]) -> Line:
        number = event[1]
        if type(number) is not int or not 0 <= number <= MAX_WHOLE:
            check_event_number("sequence", number, event)
        if state is None:
            state = self._begin(event)
        if number < state.expected:
            return self._behind(state, event, emit)
        return self._parking.take(state, number, event, now_us, emit)

    def _begin(self, event: Event) -> Line:
        if self.initial == "stored":
            raise ProgressMissing(event[0], event)
        first = event[1] if self.initial == "first_seen" else self.initial
        return Line(first, missed=((0, first - 1),) if first else ())

    def _behind(self, state: Line, event: Event, emit: list[Outcome]) -> Line:
        """An event whose turn is over: late if it never had one, and else a duplicate."""
        key, number = event[0], event[1]
        found = [index for index, (first, last) in enumerate(state.missed) if first <= number <= last]
        if not found:
            if self.duplicates == "error":
                raise DuplicateEvent(key, number, state.expected, event)
            emit.append((QUARANTINED if self.duplicates == "quarantine" else DUPLICATE, event))
            return state
        if self.late == "error":
            raise LateEvent(key, number, state.expected, event)
        if self.late == "drop":
            emit.append((STALE, event))
            return state
        emit.append((LATE if self.late == "emit" else QUARANTINED, event))
        return state._replace(missed=_without(state.missed, found[0], number))


def _without(ranges: Ranges, index: int, number: int) -> Ranges:
    """The ranges without one number, which is in that with this index; the oldest go if there are too many."""
    first, last = ranges[index]
    parts = [part for part in ((first, number - 1), (number + 1, last)) if part[0] <= part[1]]
    return (*ranges[:index], *parts, *ranges[index + 1 :])[-REMEMBERED_GAPS:]
