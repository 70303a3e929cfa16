"""Independent fields: each event type writes fields of its own, so the order of events does not matter.

Reads `(key, event type, time, fields, …)` of an event. The state of a key is a dict from field to (time,
value), never changed in place; what depends on several fields, such as a status, is derived on read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from inorder.errors import FieldOwnedTwice, ForeignState, InvalidArgument, InvalidEvent
from inorder.patterns.encoding import check_plain, digest, dump, load
from inorder.patterns.step import (
    DUPLICATE,
    RELEASED,
    STALE,
    Batch,
    Event,
    Outcome,
    Step,
    check_event,
    check_event_number,
    checked,
)

Fields: TypeAlias = dict[str, tuple[int, Any]]  # time and value
Derive: TypeAlias = Callable[[Mapping[str, Any]], Any]


class FieldsWritten(NamedTuple):
    """An event that writes fields, for whoever likes names; any tuple that starts alike will do."""

    key: str
    event_type: str
    time: int  # or a version: whatever grows from one event of the type to the next
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IndependentFields:
    """A read model that comes out the same for every order of its events, repeated ones included.

    `owns` says which fields each event type writes; a field that two of them own is refused, with both names.
    Within a field the greatest time wins, and of two values of one time the one with the greater digest. `derived`
    are functions over the fields that are there, called by `read` and never stored. An event is released with the
    fields of it that won, so that whoever writes these to a row of his own has that row.
    """

    owns: Mapping[str, Collection[str]]
    derived: Mapping[str, Derive] = field(default_factory=dict)
    _owner: Mapping[str, str] = field(init=False, repr=False, compare=False)

    STATE: ClassVar = "independent_fields/1"
    FIELDS: ClassVar = 4

    def __post_init__(self) -> None:
        owner = _owners(self.owns)
        for name, derive in self.derived.items():
            if name in owner:
                raise InvalidArgument(f"derived: {name!r} is a field of {owner[name]!r}, and cannot be derived as well")
            if not callable(derive):
                raise InvalidArgument(f"derived: {name!r} needs a function, not {derive!r}")
        # A copy, so that nobody changes the owners after they were checked.
        object.__setattr__(self, "owns", MappingProxyType({kind: tuple(names) for kind, names in self.owns.items()}))
        object.__setattr__(self, "_owner", owner)

    def on_message(self, state: Fields | None, event: Event, now_us: int) -> Step[Fields]:
        """One event: `released` if it changed a field, with the fields that it changed."""
        check_event(event, 4)
        outcome, after = self._merge(state or {}, event)
        return Step(after or None, (outcome,))  # without a field there is nothing to keep

    def on_messages(self, states: Mapping[str, Fields], events: Iterable[Event], now_us: int) -> Batch[Fields]:
        """As `on_message` for each of them in turn."""
        batch: Batch[Fields] = Batch()
        for event in checked(events, 4):
            key = event[0]
            check_event(event, 4)
            before = batch.states.get(key) or states.get(key) or {}
            outcome, after = self._merge(before, event)
            batch.emit.append(outcome)
            if after is not before:
                batch.states[key] = after
        return batch

    def on_timer(self, state: Fields, now_us: int) -> Step[Fields]:
        """Nothing here depends on time."""
        return Step(state)

    def read(self, state: Fields | None) -> dict[str, Any]:
        """The fields that are there, and what is derived of them."""
        values = {name: state[name][1] for name in self._owner if state and name in state}
        return {**values, **{name: derive(MappingProxyType(values)) for name, derive in self.derived.items()}}

    def dump(self, state: Fields) -> bytes:
        """The state as bytes, for a store; values must be plain."""
        return dump(self.STATE, (state,))

    def load(self, data: bytes) -> Fields:
        """What `dump` wrote. Fields that nobody owns any more are kept, and not read."""
        fields = load(self.STATE, data, lambda fields: fields)
        if not isinstance(fields, dict):
            raise ForeignState(self.STATE, "not a dict of fields")
        return fields

    def _merge(self, before: Fields, event: Event) -> tuple[Outcome, Fields]:
        _, event_type, time, fields = event[:4]
        if not isinstance(event_type, str) or event_type not in self.owns:
            raise InvalidEvent(f"event type: one of {', '.join(map(repr, self.owns))}, not {event_type!r}", event)
        check_event_number("time", time, event)
        if not isinstance(fields, Mapping):
            raise InvalidEvent(f"fields: a mapping, not {fields!r}", event)
        newer: Fields = {}
        seen = 0
        for name, value in fields.items():
            if self._owner.get(name) != event_type:
                raise InvalidEvent(self._not_owned(name, event_type), event)
            try:
                compared = _compared(time, value, before.get(name))
            except InvalidArgument as error:
                raise InvalidEvent(f"field {name!r}: {error}", event) from None
            if compared > 0:
                newer[name] = (time, value)
            seen += compared == 0
        if newer:
            return (RELEASED, _with_fields(event, newer)), {**before, **newer}
        return (DUPLICATE if seen == len(fields) else STALE, event), before

    def _not_owned(self, name: object, event_type: str) -> str:
        owner = f"of {self._owner[name]!r}" if isinstance(name, str) and name in self._owner else "of nobody"
        return f"field {name!r}: not one of {event_type!r}, but {owner}"


def _with_fields(event: Event, newer: Fields) -> Event:
    """The event with the fields that won: whoever wrote the others too would undo what is newer."""
    if len(newer) == len(event[3]):
        return event
    make = getattr(event, "_make", tuple)  # of a tuple with names
    return make((*event[:3], {name: value for name, (_, value) in newer.items()}, *event[4:]))


def _compared(time: int, value: Any, known: tuple[int, Any] | None) -> int:
    """Above 0 if a value is to be kept, 0 if it is what is known, below 0 if it lost."""
    if known is not None and time < known[0]:
        return -1
    check_plain(value)  # before it is part of a state that nobody could store
    if known is None or time > known[0]:
        return 1
    # Two values of one time: content decides, because arrival must not.
    ours, theirs = digest(value), digest(known[1])
    return (ours > theirs) - (ours < theirs)


def _owners(owns: Any) -> dict[str, str]:
    """The event type that owns each field; of what is no such mapping, or owns one twice, the first problem."""
    if not isinstance(owns, Mapping) or not owns:
        raise InvalidArgument(f"owns: a mapping from event types to their fields, not {owns!r}")
    owner: dict[str, str] = {}
    for event_type, names in owns.items():
        if not isinstance(event_type, str) or not event_type:
            raise InvalidArgument(f"owns: event types are names, not {event_type!r}")
        if isinstance(names, str) or not isinstance(names, Collection) or not names:
            raise InvalidArgument(f"owns: {event_type!r} needs a collection of fields, not {names!r}")
        for name in names:
            if not isinstance(name, str) or not name:
                raise InvalidArgument(f"owns: {event_type!r} has a field without a name: {name!r}")
            if name in owner:
                raise FieldOwnedTwice(name, owner[name], event_type)
            owner[name] = event_type
    return owner


def latest_of(statuses: Mapping[str, Any], *, otherwise: Any = None) -> Derive:
    """A status by timestamps: that of the field with the greatest value.

    `statuses` is from field to status; of equal timestamps the one named last wins. Fields that are missing or
    None do not count; without any, it is `otherwise`.
    """
    ranked = list(enumerate(statuses.items()))

    def derive(fields: Mapping[str, Any]) -> Any:
        reached = [(fields[name], rank, status) for rank, (name, status) in ranked if fields.get(name) is not None]
        return max(reached, key=lambda one: one[:2])[2] if reached else otherwise

    return derive
