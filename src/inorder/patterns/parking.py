"""Events that came before their turn, and how long they wait for the ones that are missing.

The common half of sequencing and versioning. It knows a `Line`: the number that is expected next, what is parked
behind it, in order, and when to wake up. What becomes of an event that comes too late is not its business.

Everything is an immutable tuple, so a step that is not stored has changed nothing. To copy a thousand parked
entries costs about a microsecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from inorder.clock import MICROSECONDS
from inorder.errors import ParkingFull
from inorder.options import DAY_SECONDS, REMEMBERED_GAPS, WhenParkingFull, check_choice, check_number, check_whole
from inorder.patterns.encoding import dump
from inorder.patterns.step import (
    GAP,
    PARKED,
    RELEASED,
    RETRY,
    Batch,
    Event,
    Missing,
    Outcome,
    Step,
    check_event,
    checked,
)

Parked: TypeAlias = tuple[tuple[int, int, Event], ...]  # number, time of arrival, event; by number
Ranges: TypeAlias = tuple[tuple[int, int], ...]  # the first and the last number of each, oldest first

_arrived_us = itemgetter(1)


class Line(NamedTuple):
    """Where a key stands. Numbers below `expected` are over, and those in `missed` never had their turn."""

    expected: int
    parked: Parked = ()  # behind a hole
    wake_at_us: int | None = None
    missed: Ranges = ()


@lru_cache(1_000)  # most lines have missed nothing, or all that came before the first number
def _ranges(ranges: Ranges) -> str:
    return f"[{','.join([f'[{first},{last}]' for first, last in ranges])}]"


@dataclass(frozen=True, slots=True)
class Parking:
    """How many events of a key may wait, how long, and what happens to one too many.

    No event waits longer than the gap timeout: when the first has waited so long, every hole before it is
    given up, and each of these holes has been known for at least as long. Without a timeout, all wait for ever.
    """

    capacity: int
    when_full: WhenParkingFull
    gap_timeout_seconds: float | None
    _timeout_us: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity)
        check_choice("when_full", self.when_full, WhenParkingFull)
        if self.gap_timeout_seconds is not None:
            check_number("gap_timeout_seconds", self.gap_timeout_seconds, above=0, up_to=31 * DAY_SECONDS)
        timeout_us = None if self.gap_timeout_seconds is None else round(self.gap_timeout_seconds * MICROSECONDS)
        object.__setattr__(self, "_timeout_us", timeout_us)

    def take(self, line: Line, number: int, event: Event, now_us: int, emit: list[Outcome]) -> Line:
        """An event whose number is the expected one, or a later one."""
        expected, parked, wake_at_us, missed = line
        if number == expected:
            emit.append((RELEASED, event))
            return self._release(number + 1, parked, missed, emit)
        index = bisect_left(parked, (number,))
        if index < len(parked) and parked[index][0] == number:
            emit.append((PARKED, event))  # perhaps the same message again: it waits with the first of its number
            return line
        entry = (number, now_us, event)
        if len(parked) >= self.capacity:
            return self._overflow(line, index, entry, emit)
        emit.append((PARKED, event))
        after = (*parked[:index], entry, *parked[index:])
        if wake_at_us is None and self._timeout_us is not None:
            # What is parked already may be so since a time without a timeout.
            wake_at_us = self._due_us(after)
        return Line(expected, after, wake_at_us, missed)

    def _overflow(self, line: Line, index: int, entry: tuple[int, int, Event], emit: list[Outcome]) -> Line:
        expected, parked, _, missed = line
        event = entry[2]
        if self.when_full == "error":
            raise ParkingFull(event[0], self.capacity, expected, event)
        if self.when_full == "retry":
            emit.append((RETRY, event))
            return line
        emit.append((PARKED, event))
        everything = (*parked[:index], entry, *parked[index:])
        return self._give_up(expected, everything, missed, 1, "full", emit)

    def time_out(self, line: Line, now_us: int, emit: list[Outcome]) -> Line:
        """Give up the holes before whatever has waited long enough."""
        expected, parked, _, missed = line
        due_us = self._due_us(parked)
        if due_us is None or now_us < due_us:
            # What the line says may be wrong: it was perhaps stored under another timeout.
            return line._replace(wake_at_us=due_us)
        assert self._timeout_us is not None
        since_us = now_us - self._timeout_us
        overdue = max(index for index, (_, arrived_us, _) in enumerate(parked) if arrived_us <= since_us)
        return self._give_up(expected, parked, missed, overdue + 1, "timeout", emit)

    def _due_us(self, parked: Parked) -> int | None:
        """When the first of them will have waited long enough."""
        return min(map(_arrived_us, parked)) + self._timeout_us if parked and self._timeout_us is not None else None

    def _give_up(
        self,
        expected: int,
        parked: Parked,
        missed: Ranges,
        count: int,
        reason: Literal["timeout", "full"],
        emit: list[Outcome],
    ) -> Line:
        """Release the first `count` that are parked, telling of each hole before one of them."""
        for number, _, event in parked[:count]:
            if number > expected:
                emit.append((GAP, Missing(event[0], expected, number - 1, reason)))
                missed = (*missed, (expected, number - 1))[-REMEMBERED_GAPS:]
            emit.append((RELEASED, event))
            expected = number + 1
        return self._release(expected, parked[count:], missed, emit)

    def _release(self, expected: int, parked: Parked, missed: Ranges, emit: list[Outcome]) -> Line:
        """Release those parked whose turn it is now."""
        count = 0
        for number, _, event in parked:
            if number != expected:
                break
            emit.append((RELEASED, event))
            expected += 1
            count += 1
        left = parked[count:]
        return Line(expected, left, self._due_us(left), missed)


class Numbered(ABC):
    """A pattern whose events have numbers, of which a `Line` knows where a key stands."""

    __slots__ = ()
    STATE: ClassVar[str]
    _parking: Parking

    def on_message(self, state: Line | None, event: Event, now_us: int) -> Step[Line]:
        """One event, in its turn, ahead of it or behind it."""
        check_event(event, 2)
        emit: list[Outcome] = []
        after = self._take(state, event, now_us, emit)
        return Step(after, tuple(emit), after.wake_at_us)

    def on_messages(self, states: Mapping[str, Line], events: Iterable[Event], now_us: int) -> Batch[Line]:
        """As `on_message` for each of them in turn, only faster."""
        batch: Batch[Line] = Batch()
        changed, emit, wakes, take = batch.states, batch.emit, batch.wakes, self._take
        new = tuple.__new__  # a `Line` made by its own constructor takes as long as all the rest
        for event in checked(events, 2):
            key, number = event[0], event[1]
            before = changed.get(key) or states.get(key)
            # Most events come in their turn, with nothing parked. All patterns release these, so it is done here, at
            # a third of the time. True and 1.0 equal 1, and are no numbers.
            if before is not None and number == before[0] and not before[1] and type(number) is int:
                changed[key] = new(Line, (number + 1, (), None, before[3]))
                emit.append((RELEASED, event))
                continue
            if before is None:
                check_event(event, 2)  # the key, of which a state was made only after a look at it
            after = take(before, event, now_us, emit)
            if after is not before:
                changed[key] = after
            if after.wake_at_us is not None:
                wakes[key] = after.wake_at_us
        return batch

    def on_timer(self, state: Line, now_us: int) -> Step[Line]:
        """Give up the holes before events that have waited for `gap_timeout_seconds`."""
        emit: list[Outcome] = []
        after = self._parking.time_out(state, now_us, emit)
        return Step(after, tuple(emit), after.wake_at_us)

    def dump(self, state: Line) -> bytes:
        """The state as bytes, for a store; what is parked must consist of plain values."""
        expected, parked, wake_at_us, missed = state
        if parked or wake_at_us is not None:
            return dump(self.STATE, state)
        # Nothing waits on most lines: these are some numbers, and are written at a tenth of the time.
        return f'["{self.STATE}",{expected},[],null,{_ranges(missed)}]'.encode()

    @abstractmethod
    def _take(self, state: Line | None, event: Event, now_us: int, emit: list[Outcome]) -> Line:
        """What becomes of one event whose key is fine: told by `emit`, and by where the key stands then."""
