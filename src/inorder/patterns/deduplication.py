"""Deduplication: what was let through once is not let through again, within bounds that are exact.

By id (`(key, id, …)`), or by producer and sequence number (`(key, producer, sequence, …)`). The state of a key is a
dict, the newest last, never changed once it was handed back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidArgument
from inorder.options import DAY_SECONDS, check_choice, check_number, check_whole
from inorder.patterns.encoding import dump, load
from inorder.patterns.step import (
    DUPLICATE,
    LATE,
    RELEASED,
    STALE,
    Batch,
    Event,
    Fate,
    Step,
    check_event,
    check_event_number,
    check_event_text,
    checked,
)

MAX_WINDOW = 10_000  # bits: a state stays small enough to be read and written with every message

TooOld = Literal["drop", "emit"]

Seen: TypeAlias = dict[str, int]  # id, and when it came first
Windows: TypeAlias = dict[str, "Window"]  # by producer

K = TypeVar("K")


class Window(NamedTuple):
    """What is known of the numbers of a producer."""

    highest: int
    bits: int  # bit n stands for the highest less n
    last_us: int  # when one came last
    known_from: int = 0  # of a number below this one nobody knows, although the window may be larger by now


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicateIds:
    """Lets the first event of each id through.

    A repeated id is recognised if it came first less than `max_age_seconds` ago, and fewer than `max_ids` other ids
    of the key came first since. Otherwise it counts as new. A repetition does not prolong this.
    """

    max_ids: int = 1_000
    max_age_seconds: float = DAY_SECONDS

    STATE: ClassVar = "deduplicate_ids/1"
    FIELDS: ClassVar = 2

    def __post_init__(self) -> None:
        check_whole("max_ids", self.max_ids)
        check_number("max_age_seconds", self.max_age_seconds, above=0, up_to=31 * DAY_SECONDS)

    def on_message(self, state: Seen | None, event: Event, now_us: int) -> Step[Seen]:
        """One event, new or not."""
        check_event(event, 2)
        after = dict(state or ())
        fate = self._take(after, event, now_us)
        return Step(after, ((fate, event),), self._forget_at_us(after))

    def on_messages(self, states: Mapping[str, Seen], events: Iterable[Event], now_us: int) -> Batch[Seen]:
        """As `on_message` for each of them in turn, only faster: a state is copied once a batch."""
        batch: Batch[Seen] = Batch()
        for event in checked(events, 2):
            seen = _copied(event, states, batch.states, 2)
            batch.emit.append((self._take(seen, event, now_us), event))
            batch.wakes[event[0]] = self._forget_at_us(seen)
        return batch

    def on_timer(self, state: Seen, now_us: int) -> Step[Seen]:
        """Forget a key of which no id is recognised any more."""
        forget_at_us = self._forget_at_us(state)
        return Step(state, wake_at_us=forget_at_us) if now_us < forget_at_us else Step(None)

    def dump(self, state: Seen) -> bytes:
        """The state as bytes, for a store."""
        return dump(self.STATE, tuple(state.items()))

    def load(self, data: bytes) -> Seen:
        """What `dump` wrote."""
        return load(self.STATE, data, lambda *items: dict(items))

    def _take(self, seen: Seen, event: Event, now_us: int) -> Fate:
        name = event[1]
        if type(name) is not str or not name or not name.isascii():
            check_event_text("id", name, event)
        expired_us = now_us - round(self.max_age_seconds * MICROSECONDS)
        if (first_us := seen.get(name)) is not None:
            if first_us > expired_us:
                return DUPLICATE
            del seen[name]  # so that it is the newest again
        seen[name] = now_us
        while (oldest := next(iter(seen))) != name and (seen[oldest] <= expired_us or len(seen) > self.max_ids):
            del seen[oldest]
        return RELEASED

    def _forget_at_us(self, seen: Seen) -> int:
        return next(reversed(seen.values())) + round(self.max_age_seconds * MICROSECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicateSequences:
    """Lets each sequence number of each producer through once, in whatever order they come.

    Of each producer of a key, numbers down to `window` below the highest are told apart exactly, at a bit each. A
    number further below may or may not have been let through: it is dropped as `stale`, or, with
    `too_old="emit"`, let through as `late`. So is what a smaller window has left behind, when it is made larger. A
    producer is forgotten, and all its numbers are new again, when nothing of it came for `max_age_seconds`, or when
    `max_producers` others of the key came since.
    """

    window: int = 1_024
    max_producers: int = 100
    max_age_seconds: float = DAY_SECONDS
    too_old: TooOld = "drop"

    STATE: ClassVar = "deduplicate_sequences/1"
    FIELDS: ClassVar = 3

    def __post_init__(self) -> None:
        check_whole("window", self.window)
        if self.window > MAX_WINDOW:
            raise InvalidArgument(f"window: up to {MAX_WINDOW}, not {self.window}")
        check_whole("max_producers", self.max_producers)
        check_number("max_age_seconds", self.max_age_seconds, above=0, up_to=31 * DAY_SECONDS)
        check_choice("too_old", self.too_old, TooOld)

    def on_message(self, state: Windows | None, event: Event, now_us: int) -> Step[Windows]:
        """One event, new or not."""
        check_event(event, 3)
        after = dict(state or ())
        fate = self._take(after, event, now_us)
        return Step(after, ((fate, event),), self._forget_at_us(after))

    def on_messages(self, states: Mapping[str, Windows], events: Iterable[Event], now_us: int) -> Batch[Windows]:
        """As `on_message` for each of them in turn, only faster: a state is copied once a batch."""
        batch: Batch[Windows] = Batch()
        for event in checked(events, 3):
            windows = _copied(event, states, batch.states, 3)
            batch.emit.append((self._take(windows, event, now_us), event))
            batch.wakes[event[0]] = self._forget_at_us(windows)
        return batch

    def on_timer(self, state: Windows, now_us: int) -> Step[Windows]:
        """Forget a key whose producers are all forgotten."""
        forget_at_us = self._forget_at_us(state)
        return Step(state, wake_at_us=forget_at_us) if now_us < forget_at_us else Step(None)

    def dump(self, state: Windows) -> bytes:
        """The state as bytes, for a store."""
        return dump(self.STATE, tuple(state.items()))

    def load(self, data: bytes) -> Windows:
        """What `dump` wrote."""
        return load(self.STATE, data, lambda *items: {producer: Window(*window) for producer, window in items})

    def _take(self, windows: Windows, event: Event, now_us: int) -> Fate:
        producer, number = event[1], event[2]
        if type(producer) is not str or not producer or not producer.isascii():
            check_event_text("producer", producer, event)
        check_event_number("sequence", number, event)
        expired_us = now_us - round(self.max_age_seconds * MICROSECONDS)
        before = windows.pop(producer, None)
        if before is None or before.last_us <= expired_us:
            before = Window(-1, 0, now_us)
        fate, after = self._mark(before, number, now_us)
        windows[producer] = after  # the newest, as it was popped
        while (oldest := next(iter(windows))) != producer and (
            windows[oldest].last_us <= expired_us or len(windows) > self.max_producers
        ):
            del windows[oldest]
        return fate

    def _mark(self, before: Window, number: int, now_us: int) -> tuple[Fate, Window]:
        """What a number is to a window, and the window after it."""
        highest, bits, _, known_from = before
        if number > highest:
            shifted = bits << number - highest if number - highest < self.window else 0
            known_from = max(known_from, number - self.window + 1)
            return RELEASED, Window(number, (shifted | 1) & (1 << self.window) - 1, now_us, known_from)
        below = highest - number
        if below >= self.window or number < known_from:
            return (STALE if self.too_old == "drop" else LATE), Window(highest, bits, now_us, known_from)
        fate: Fate = DUPLICATE if bits >> below & 1 else RELEASED
        return fate, Window(highest, bits | 1 << below, now_us, known_from)

    def _forget_at_us(self, windows: Windows) -> int:
        return next(reversed(windows.values())).last_us + round(self.max_age_seconds * MICROSECONDS)


def _copied(
    event: Event, states: Mapping[str, dict[str, K]], changed: dict[str, dict[str, K] | None], fields: int
) -> dict[str, K]:
    """The state of the event's key that the batch may change: a copy, made with the first event of the key."""
    key = event[0]
    copied = changed.get(key)
    if copied is None:
        check_event(event, fields)
        copied = changed[key] = dict(states.get(key) or ())
    return copied
