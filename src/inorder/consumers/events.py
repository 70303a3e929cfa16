"""Events as consumers carry them: what was read of a message, and behind it what is kept of the message itself.

Both go through the pattern as one plain tuple, so that a parked event has in its state all that is needed to apply it
when its turn comes, perhaps long after its message was acked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from inorder.errors import InvalidArgument, InvalidEvent
from inorder.message import ATTRIBUTES, DATA, KEY, Message
from inorder.patterns.encoding import check_plain
from inorder.patterns.step import APPLIED, GAP, Event, Fate, Missing, Outcome, check_event

_fate = itemgetter(0)  # of an outcome

Read = Callable[[Message], tuple[Any, ...]]


class Applied(NamedTuple):
    """An event to apply: what was read of it, and the message it came in, perhaps long ago."""

    key: str
    fields: tuple[Any, ...]  # what `read` returned; the first is the key
    fate: Fate  # "released", or "late" if its turn was over and the policy lets it through
    message_id: str
    data: bytes
    attributes: Mapping[str, str]

    def json(self) -> Any:
        """The data, read as JSON."""
        return json.loads(self.data)


Effect: TypeAlias = "Sequence[Applied] | Missing"  # events to apply, or numbers of which to tell that they are given up


def event_of(message: Message, read: Read, fields: int) -> Event:
    """What `read` makes of a message, if that is an event of so many fields, and what is kept of the message."""
    event, record = read(message), message._record
    if type(event) is not tuple or len(event) < fields or not event[0] or event[0] != record[KEY]:
        check_event(event, fields)  # an ordering key was checked when it was published
        event = tuple(event)
    if "\0" in event[0]:
        raise InvalidEvent("key: databases cannot store the character NUL", event)
    event += ((message.id, record[DATA], dict(record[ATTRIBUTES] or ())),)
    return event


def effects(emitted: Sequence[Outcome], tells_gaps: bool) -> list[Effect]:
    """What a pattern lets through, as handlers get it: all together, but what comes before a gap is told before it."""
    if not tells_gaps or GAP not in map(_fate, emitted):
        return [_applied(emitted)]
    found: list[Effect] = []
    begin = 0
    for place, (fate, event) in enumerate(emitted):
        if fate == GAP:
            found += _applied(emitted[begin:place]), event
            begin = place + 1
    return [*found, _applied(emitted[begin:])]


def _applied(outcomes: Iterable[Outcome]) -> list[Applied]:
    new = tuple.__new__  # as Applied(…) does, in half the time
    return [new(Applied, (event[0], event[:-1], fate) + event[-1]) for fate, event in outcomes if fate in APPLIED]


def message_id_of(event: Event) -> str:
    return event[-1][0]  # type: ignore[no-any-return]


def storing_problem(event: Event) -> str:
    """Why an event cannot be part of a state; "" if it can."""
    try:
        check_plain(event)
    except InvalidArgument as error:
        return str(error)
    return ""


def quarantine_row(event: Event, reason: str, now_us: int) -> tuple[Any, ...]:
    """What is remembered of a message that is not applied: see `States.quarantine`."""
    message_id, data, attributes = event[-1]
    return message_id, _storable(event[0]), _storable(reason), now_us, data, json.dumps(attributes)


def unread(message: Message) -> Event:
    """Stands for a message that `read` made nothing of."""
    return (message.ordering_key or "", (message.id, message.data, message.attributes))


def _storable(text: str) -> str:
    """Text that every database takes."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
