"""The dispatcher's plan: which handlers are to run for a message, with what, and what to do if there are none.

One topic, one consumer, and handlers chosen by event type keep events of different types in order. This half decides
and runs nothing: a consumer runs the calls of a plan one by one, remembers which of them succeeded, and asks again
when the message comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from inorder.errors import InvalidArgument, UndecodableEvent, UnknownEventType
from inorder.message import Message
from inorder.options import check_call, check_choice
from inorder.patterns.decoding import Decode, decode_json, decoder

Policy = Literal["ack", "dead_letter", "fail"]
Verdict = Literal["run", "ack", "dead_letter"]

F = TypeVar("F", bound=Callable[..., Any])


class Handler(NamedTuple):
    """A function that takes events of one type. Its name is how it is remembered, so keep it."""

    name: str
    event_type: str
    function: Callable[..., Any]
    decode: Decode


class Call(NamedTuple):
    """A handler that still has to run, and the event as it wants it."""

    handler: Handler
    event: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with a message: run the calls in order and then ack it, ack it, or dead-letter it."""

    verdict: Verdict
    event_type: str | None = None
    calls: tuple[Call, ...] = ()
    reason: str = ""  # why nothing is to run


@dataclass(slots=True, kw_only=True)
class Events:
    """A group of events that are handled in order: handlers by event type, and policies for what has none.

    The event type is in the attribute `type_attribute`, or, if `type_field` is given, in that field of the JSON. A
    message of a type without a handler, or without a type, goes by `unknown`; one that a handler's model does not
    fit goes by `undecodable`, before any handler has run. `"fail"` raises, so that the message is retried and blocks
    its key: choose it on purpose.
    """

    type_attribute: str = "event_type"
    type_field: str | None = None
    unknown: Policy = "ack"  # a consumer of a shared topic gets events that are none of its business
    undecodable: Policy = "dead_letter"
    _handlers: dict[str, list[Handler]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("type_attribute", self.type_attribute), ("type_field", self.type_field)):
            if value is not None or name == "type_attribute":
                _check_text(name, value)
        check_choice("unknown", self.unknown, Policy)
        check_choice("undecodable", self.undecodable, Policy)

    def handles(self, *event_types: str, model: type[Any] | None = None, name: str | None = None) -> Callable[[F], F]:
        """Register the function below for these event types; several for one type run in this order.

        `model` is a dataclass or a Pydantic model that the data is read into; without one it is plain JSON.
        """
        if not event_types:
            raise InvalidArgument("handles: name at least one event type")
        for event_type in event_types:
            _check_text("event type", event_type)
        if len({*event_types}) < len(event_types):
            # It would have two handlers of one name, which share one mark.
            raise InvalidArgument(f"handles: each event type once, not {', '.join(map(repr, event_types))}")
        decode = decoder(model)

        def register(function: F) -> F:
            check_call("handles", function)
            own_name = name if name is not None else getattr(function, "__name__", None)
            _check_text("handler name", own_name)
            for event_type in event_types:
                registered = self._handlers.get(event_type, [])
                if any(handler.name == own_name for handler in registered):
                    raise InvalidArgument(f"{event_type!r} has a handler {own_name!r}; give this one another name=")
            for event_type in event_types:
                handler = Handler(str(own_name), event_type, function, decode)
                self._handlers.setdefault(event_type, []).append(handler)
            return function

        return register

    @property
    def event_types(self) -> frozenset[str]:
        """The event types that have a handler."""
        return frozenset(self._handlers)

    def handlers(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers of an event type, in the order in which they run."""
        return tuple(self._handlers.get(event_type, ()))

    def plan(self, message: Message, done: Collection[str] = ()) -> Plan:
        """What to do with a message, of which the handlers named in `done` have succeeded before."""
        try:
            event_type = self._type_of(message)
        except UndecodableEvent as error:
            return self._without_calls(self.undecodable, None, error)
        if event_type is None:
            return self._without_calls(self.unknown, None, UnknownEventType(f"the message has no {self._type_place}"))
        if event_type not in self._handlers:
            unknown = UnknownEventType(f"no handler is registered for {event_type!r}")
            return self._without_calls(self.unknown, event_type, unknown)
        left = [handler for handler in self._handlers[event_type] if handler.name not in done]
        if not left:
            return Plan("ack", event_type, reason="every handler has run")
        try:
            return Plan("run", event_type, tuple(Call(handler, handler.decode(message.data)) for handler in left))
        except UndecodableEvent as error:
            return self._without_calls(self.undecodable, event_type, UndecodableEvent(f"{event_type!r}: {error}"))

    @property
    def _type_place(self) -> str:
        return f"attribute {self.type_attribute!r}" if self.type_field is None else f"field {self.type_field!r}"

    def _type_of(self, message: Message) -> str | None:
        if self.type_field is None:
            return message.attributes.get(self.type_attribute)
        body = decode_json(message.data)
        found = body.get(self.type_field) if isinstance(body, dict) else None
        if found is not None and not isinstance(found, str):
            raise UndecodableEvent(f"the {self._type_place} is no text but {found!r}")
        return found

    @staticmethod
    def _without_calls(policy: Policy, event_type: str | None, problem: InvalidArgument) -> Plan:
        if policy == "fail":
            raise problem
        return Plan(policy, event_type, reason=str(problem))


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{what}: a string that is not empty, not {value!r}")
