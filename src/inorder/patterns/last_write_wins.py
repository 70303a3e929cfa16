"""Last write wins: of all writes to a key the greatest stays, in whatever order they come.

Reads `(key, time, producer, value, …)` of an event; a value of None deletes. The order is total: time, producer, and
of the same moment a delete beats an update, and then content decides. So replicas that saw the same writes agree, and
a tie never depends on who came first. The state is a `Newest`, which has no value: that is written where `released`
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidArgument, InvalidEvent
from inorder.options import DAY_SECONDS, DEFAULT_DRIFT_SECONDS, MAX_WHOLE, check_choice, check_number
from inorder.patterns.encoding import digest, encoded, load, text
from inorder.patterns.hybrid_clock import LOGICAL_BITS
from inorder.patterns.step import (
    DUPLICATE,
    QUARANTINED,
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

Stamps = Literal["microseconds", "hybrid"]


class Write(NamedTuple):
    """A write, for whoever likes names; any tuple that starts alike will do."""

    key: str
    time: int  # microseconds since 1970, or an encoded `HybridLogicalClock`
    producer: str
    value: Any  # None: delete


class Newest(NamedTuple):
    """The rank of the greatest write so far; its first four fields compare as writes do."""

    time: int
    producer: str
    deleted: bool
    digest: str  # of the content
    taken_us: int  # when it came, by our clock: so long lives a tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWriteWins:
    """Lets through only what is greater than anything its key has seen.

    A delete leaves a tombstone, so that a late update brings nothing back. It is kept for
    `tombstone_retention_seconds`, by our clock (None: for ever): an update that is later than that does bring the
    key back. The default is the retention of a subscription, which is how late a message can come.

    A write whose time is more than `max_drift_seconds` ahead of ours is quarantined and changes nothing: taken, it
    would win against everything until then. None lets every time pass.

    `stamps` says what the times are: microseconds, or hybrid logical clocks, encoded.
    """

    stamps: Stamps = "microseconds"
    max_drift_seconds: float | None = DEFAULT_DRIFT_SECONDS
    tombstone_retention_seconds: float | None = 7 * DAY_SECONDS
    _shift: int = field(init=False, repr=False, compare=False)
    _drift_us: float = field(init=False, repr=False, compare=False)
    _retention_us: int | None = field(init=False, repr=False, compare=False)

    STATE: ClassVar = "last_write_wins/1"
    FIELDS: ClassVar = 4

    def __post_init__(self) -> None:
        check_choice("stamps", self.stamps, Stamps)
        drift, retention = self.max_drift_seconds, self.tombstone_retention_seconds
        if drift is not None:
            check_number("max_drift_seconds", drift, up_to=365 * DAY_SECONDS)
        if retention is not None:
            check_number("tombstone_retention_seconds", retention, above=0, up_to=10 * 365 * DAY_SECONDS)
        object.__setattr__(self, "_shift", LOGICAL_BITS if self.stamps == "hybrid" else 0)
        object.__setattr__(self, "_drift_us", float("inf") if drift is None else round(drift * MICROSECONDS))
        object.__setattr__(self, "_retention_us", None if retention is None else round(retention * MICROSECONDS))

    def on_message(self, state: Newest | None, event: Event, now_us: int) -> Step[Newest]:
        """One write: the greatest so far, or not."""
        check_event(event, 4)
        fate, after = self._take(state, event, now_us)
        return Step(after, ((fate, event),), self._forget_at_us(after))

    def on_messages(self, states: Mapping[str, Newest], events: Iterable[Event], now_us: int) -> Batch[Newest]:
        """As `on_message` for each of them in turn, only faster."""
        batch: Batch[Newest] = Batch()
        changed, emit = batch.states, batch.emit
        for event in checked(events, 4):
            key = event[0]
            before = changed.get(key) or states.get(key)
            fate, after = self._take(before, event, now_us)
            emit.append((fate, event))
            if fate is RELEASED:
                changed[key] = after
                if event[3] is None and (forget_at_us := self._forget_at_us(after)) is not None:
                    batch.wakes[key] = forget_at_us
        return batch

    def on_timer(self, state: Newest, now_us: int) -> Step[Newest]:
        """Forget a tombstone that was kept for its time."""
        forget_at_us = self._forget_at_us(state)
        if forget_at_us is None or now_us < forget_at_us:
            return Step(state, wake_at_us=forget_at_us)
        return Step(None)

    def dump(self, state: Newest) -> bytes:
        """The state as bytes, for a store."""
        # As `encoding.dump` does, in a quarter of the time: there are as many as writes.
        time, producer, deleted, content, taken_us = state
        name, flag = text(producer), "true" if deleted else "false"
        return encoded(f'["{self.STATE}",{time},{name},{flag},"{content}",{taken_us}]')

    def load(self, data: bytes) -> Newest:
        """What `dump` wrote."""
        return load(self.STATE, data, Newest)

    def _take(self, newest: Newest | None, event: Event, now_us: int) -> tuple[Fate, Newest | None]:
        time, producer, value = event[1], event[2], event[3]
        if newest is None or type(time) is not int or not 0 <= time <= MAX_WHOLE:
            check_event(event, 4)  # of a key that has a state, the key was looked at before
            check_event_number("time", time, event)
        if type(producer) is not str or not producer.isascii():
            check_event_text("producer", producer, event, may_be_empty=True)
        if (time >> self._shift) - now_us > self._drift_us:
            return QUARANTINED, newest
        if newest is not None and time < newest[0]:
            return STALE, newest
        deleted = value is None
        try:
            content = "" if deleted else digest(value)
        except InvalidArgument as error:
            raise InvalidEvent(f"value: {error}", event) from None
        if newest is not None and time == newest[0]:
            rank = (time, producer, deleted, content)
            if rank <= newest[:4]:
                return (DUPLICATE if rank == newest[:4] else STALE), newest
        # Newest's own constructor would take three times as long.
        return RELEASED, tuple.__new__(Newest, (time, producer, deleted, content, now_us))

    def _forget_at_us(self, newest: Newest | None) -> int | None:
        if newest is None or not newest.deleted or self._retention_us is None:
            return None
        return newest.taken_us + self._retention_us
