"""What is to become of a list of messages, by what is known of their keys: all of a consumer's work that needs no
transaction.

So it is done before one is begun, and if possible while the one before is being committed. The transaction then only
has to find that nobody has changed what the plan goes by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from inorder.consumers.events import (
    Effect,
    Read,
    effects,
    event_of,
    message_id_of,
    quarantine_row,
    storing_problem,
    unread,
)
from inorder.consumers.recent import Recent, StoredPattern
from inorder.consumers.store import Row, Stored, Writes, writes
from inorder.errors import InvalidArgument, InvalidEvent
from inorder.message import Message
from inorder.patterns.step import PARKED, QUARANTINED, Batch, Event, Outcome

S = TypeVar("S")

_first = itemgetter(0)  # of an event its key, of an outcome the fate


class Listed(NamedTuple):
    """A list of messages, and what they say."""

    messages: Sequence[Message]
    events: list[Event]
    refused: list[Row]  # of those that cannot be read, as they are put into quarantine
    fences: dict[str, int]  # by key, the number of its newest delivery; 0 where several may be out, and none is old
    deliverer: str  # who counts them
    now_us: int  # when they were read; the commit before them may still go on then

    @property
    def keys(self) -> Collection[str]:
        return self.fences.keys()


class Plan(NamedTuple, Generic[S]):
    """What is to become of a list."""

    stamp: object  # of what was known when this was made
    not_ours: set[str]  # the ids of messages of whose keys a newer delivery was written
    refused: list[Row]
    emitted: Sequence[Outcome]
    effects: list[Effect]
    changes: Mapping[str, Stored]
    states: Mapping[str, S | None]  # what these rows mean; None: the key is forgotten
    writes: Writes
    wake_at_us: int | None  # when the first of its keys has to be looked at again


class Planner(Generic[S]):
    """Makes the plans of one consumer, by what is `recent`. `tells_gaps` says whether there is somebody to tell."""

    def __init__(
        self,
        consumer: str,
        pattern: StoredPattern[S],
        recent: Recent[S],
        read: Read,
        *,
        ordered: bool,
        tells_gaps: bool,
    ) -> None:
        self._consumer = consumer
        self._pattern = pattern
        self._recent = recent
        self._read = read
        self._fields: int = getattr(pattern, "FIELDS", 1)
        self._ordered = ordered
        self._tells_gaps = tells_gaps

    def listed(self, messages: Sequence[Message], now_us: int) -> Listed:
        """Read them all."""
        events: list[Event] = []
        readable: list[Message] = []
        refused: list[Row] = []
        for message in messages:
            try:
                events.append(event_of(message, self._read, self._fields))
                readable.append(message)
            except Exception as error:
                refused.append(quarantine_row(unread(message), f"cannot be read: {error}", now_us))
        deliverer = messages[0].ack_id.rpartition("-")[0] if messages else ""
        return Listed(messages, events, refused, self._fences(events, readable), deliverer, now_us)

    def plan(self, listed: Listed) -> Plan[S]:
        """What the pattern says to all events that are ours and that it can read, and what is to be written of that."""
        events, refused, not_ours = listed.events, listed.refused, set[str]()
        if overtaken := self._overtaken(listed) if self._ordered else None:
            not_ours = {message_id_of(event) for event in events if event[0] in overtaken}
            events = [event for event in events if event[0] not in overtaken]
        while True:
            batch: Batch[S] | None = None
            try:
                batch = self._pattern.on_messages(self._recent.states, events, listed.now_us)
                changes, forgotten = self._changes(batch, listed)
            except (InvalidArgument, RecursionError) as error:
                unreadable = _unreadable(error, events, batch)
                if not unreadable:
                    raise
                reasons = [(event, f"cannot be read: {problem}") for event, problem in unreadable]
                refused = [*refused, *_rows(reasons, listed.now_us)]
                left_out = {id(event) for event, _ in unreadable}
                events = [event for event in events if id(event) not in left_out]
            else:
                return Plan(
                    self._recent.stamp,
                    not_ours,
                    [*refused, *quarantined(batch.emit, listed.now_us)],
                    batch.emit,
                    effects(batch.emit, self._tells_gaps),
                    changes,
                    batch.states,
                    writes(self._consumer, changes, forgotten, self._recent.rows),
                    min(batch.wakes.values(), default=None),
                )

    def _fences(self, events: Iterable[Event], messages: Iterable[Message]) -> dict[str, int]:
        if not self._ordered:
            return dict.fromkeys(map(_first, events), 0)
        fences: dict[str, int] = {}
        for event, message in zip(events, messages, strict=True):
            key = event[0]
            fence = message.fencing_token if message.ordering_key == key else 0
            fences[key] = max(fences.get(key, 0), fence)
        return fences

    def _overtaken(self, listed: Listed) -> set[str]:
        """The keys of which a newer delivery than ours was written: ours is over, whatever we were told."""
        rows = self._recent.rows
        found = ((key, fence, rows[key]) for key, fence in listed.fences.items() if key in rows)
        return {key for key, fence, row in found if row.deliverer == listed.deliverer and 0 < fence < row.fence}

    def _changes(self, batch: Batch[S], listed: Listed) -> tuple[dict[str, Stored], dict[str, int]]:
        """What to write, and which versions to forget."""
        rows, wakes, dump = self._recent.rows, batch.wakes, self._pattern.dump
        fences, deliverer = listed.fences, listed.deliverer
        new = tuple.__new__  # as Stored(…), in a third of the time
        changes: dict[str, Stored] = {}
        forgotten: dict[str, int] = {}
        for key, state in batch.states.items():
            before, fence = 0, fences[key]
            if key in rows:
                before, last_deliverer, last_fence, _, _ = rows[key]
                if last_deliverer == deliverer and last_fence > fence:
                    fence = last_fence
            if state is not None:
                wake_at_us = wakes.get(key) if wakes else None
                changes[key] = new(Stored, (before + 1, deliverer, fence, dump(state), wake_at_us))
            elif before:
                forgotten[key] = before
        return changes, forgotten


def quarantined(emitted: Sequence[Outcome], now_us: int) -> list[Row]:
    """What the pattern puts into quarantine."""
    if QUARANTINED not in map(_first, emitted):
        return []
    return _rows([(event, "quarantined by the pattern") for fate, event in emitted if fate == QUARANTINED], now_us)


def _rows(reasons: Iterable[tuple[Event, str]], now_us: int) -> list[Row]:
    return [quarantine_row(event, reason, now_us) for event, reason in reasons]


def _unreadable(error: Exception, events: Sequence[Event], batch: Batch[S] | None) -> list[tuple[Event, str]]:
    """The events that an error is about, each with its problem: one that it names, or those that cannot be stored."""
    if isinstance(error, InvalidEvent):
        return [(event, str(error)) for event in events if event is error.event]
    # What is released at once need not be stored, and so may be anything.
    suspects = events if batch is None else [event for fate, event in batch.emit if fate == PARKED]
    return [(event, problem) for event in suspects if (problem := storing_problem(event))]
