"""The dispatcher's plan: every message has an explicit way, and what has succeeded is not run again."""

import json
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime
from itertools import chain, combinations
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import InvalidArgument, UndecodableEvent, UnknownEventType
from inorder.message import Message
from inorder.patterns.decoding import decoder
from inorder.patterns.dispatcher import Events, Plan


def message(event_type: str | None, body: Any = None, *, data: bytes | None = None) -> Message:
    attributes = {} if event_type is None else {"event_type": event_type}
    return Message(json.dumps(body).encode() if data is None else data, attributes, "order-7")


def names(plan: Plan) -> list[str]:
    return [call.handler.name for call in plan.calls]


def with_handlers(**options: Any) -> Events:
    events = Events(**options)
    for name in ("ledger", "mail", "search"):
        events.handles("OrderPaid", name=name)(lambda event: event)
    return events


def test_handlers_are_chosen_by_event_type_and_run_in_the_order_of_registration() -> None:
    """ordering-in-event-driven-systems Single topic with dispatcher: routes by the type in the metadata."""
    events = Events()
    seen: list[tuple[str, Any]] = []

    @events.handles("OrderPlaced")
    def placed(event: Any) -> None:
        seen.append(("placed", event))

    @events.handles("OrderPaid", "OrderRefunded")
    def money(event: Any) -> None:
        seen.append(("money", event))

    @events.handles("OrderPaid")
    def mail(event: Any) -> None:
        seen.append(("mail", event))

    for one in (message("OrderPlaced", 1), message("OrderPaid", 2), message("OrderRefunded", 3)):
        plan = events.plan(one)
        assert plan.verdict == "run"
        for call in plan.calls:
            call.handler.function(call.event)
    assert seen == [("placed", 1), ("money", 2), ("mail", 2), ("money", 3)]
    assert events.event_types == {"OrderPlaced", "OrderPaid", "OrderRefunded"}
    assert [handler.name for handler in events.handlers("OrderPaid")] == ["money", "mail"]
    assert events.handlers("OrderLost") == ()


def test_a_retry_runs_what_has_not_succeeded_and_nothing_else() -> None:
    """ordering-in-event-driven-systems Single topic with dispatcher: for every set of handlers that succeeded."""
    events = with_handlers()
    every = ["ledger", "mail", "search"]
    for done in chain.from_iterable(combinations(every, count) for count in range(4)):
        plan = events.plan(message("OrderPaid", 1), done)
        assert names(plan) == [name for name in every if name not in done]
        assert plan.verdict == ("run" if plan.calls else "ack")
    assert events.plan(message("OrderPaid", 1), every).reason == "every handler has run"
    assert names(events.plan(message("OrderPaid", 1), ["gone since"])) == every


@given(st.lists(st.sampled_from(["ledger", "mail", "search", ""]), max_size=20))
def test_however_often_handlers_fail_each_succeeds_once(failures: list[str]) -> None:
    """A history of attempts, each of which stops at the handler that fails in it, as the last does not."""
    events, done, ran = with_handlers(), set[str](), list[str]()
    for failing in [*failures, ""]:
        for name in names(events.plan(message("OrderPaid", 1), done)):
            if name == failing:
                break
            ran.append(name)
            done.add(name)
    assert ran == ["ledger", "mail", "search"]


@pytest.mark.parametrize("policy", ["ack", "dead_letter"])
def test_an_unknown_type_goes_by_its_policy(policy: Any) -> None:
    """ordering-in-event-driven-systems Single topic with dispatcher: it receives all events, also irrelevant ones."""
    events = with_handlers(unknown=policy)
    plan = events.plan(message("OrderLost", 1))
    assert (plan.verdict, plan.calls, plan.event_type) == (policy, (), "OrderLost")
    assert plan.reason == "no handler is registered for 'OrderLost'"
    assert events.plan(message(None, 1)).reason == "the message has no attribute 'event_type'"


@pytest.mark.parametrize("policy", ["ack", "dead_letter"])
def test_an_undecodable_message_goes_by_its_policy(policy: Any) -> None:
    events = with_handlers(undecodable=policy)
    plan = events.plan(message("OrderPaid", data=b"\xff{"))
    assert (plan.verdict, plan.calls) == (policy, ())
    assert plan.reason.startswith("'OrderPaid': the data cannot be decoded: ")


def test_both_can_fail() -> None:
    events = with_handlers(unknown="fail", undecodable="fail")
    with pytest.raises(UnknownEventType, match="no handler is registered for 'OrderLost'"):
        events.plan(message("OrderLost", 1))
    with pytest.raises(UndecodableEvent, match="'OrderPaid': the data cannot be decoded"):
        events.plan(message("OrderPaid", data=b"{"))


def test_without_a_word_the_unknown_is_acked_and_the_undecodable_dead_lettered() -> None:
    assert with_handlers().plan(message("OrderLost", 1)).verdict == "ack"
    assert with_handlers().plan(message("OrderPaid", data=b"")).verdict == "dead_letter"


def test_no_handler_runs_for_a_message_that_another_one_cannot_read() -> None:
    events = Events()
    events.handles("OrderPaid", name="plain")(print)
    events.handles("OrderPaid", name="typed", model=Paid)(print)
    plan = events.plan(message("OrderPaid", {"order": "7"}))
    assert (plan.verdict, plan.calls) == ("dead_letter", ())


def test_the_type_can_be_in_the_json() -> None:
    events = with_handlers(type_field="type")
    assert names(events.plan(message(None, {"type": "OrderPaid"}))) == ["ledger", "mail", "search"]
    assert events.plan(message("OrderPaid", {})).reason == "the message has no field 'type'"
    assert events.plan(message("OrderPaid", [1])).verdict == "ack"
    assert events.plan(message(None, {"type": 7})).reason == "the field 'type' is no text but 7"
    assert events.plan(message(None, data=b"{")).verdict == "dead_letter"


@dataclass
class Item:
    name: str
    price: float = 0


@dataclass
class Paid:
    order: str
    cents: int
    items: list[Item] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    currency: Literal["EUR", "USD"] = "EUR"
    sizes: tuple[int, ...] = ()
    extra: Any = None
    urgent: bool = False


@dataclass
class Tree:
    value: int
    children: list["Tree"] = field(default_factory=list)


class Payment(pydantic.BaseModel):
    order: str
    at: datetime


@dataclass
class Checked:
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError("cents: at least 0")
        if not self.cents:
            raise AssertionError
        assert [None, "a cent", "two cents"][self.cents]


@dataclass
class Settled:
    by: Checked | Item
    sum: float | int = 0


def decoded(model: Any, body: Any) -> Any:
    return decoder(model)(json.dumps(body).encode())


def test_a_dataclass_is_built_from_json_with_what_is_inside_it() -> None:
    body = {"order": "7", "cents": 5, "items": [{"name": "x", "price": 2}], "tags": {"a": "b"}, "note": None}
    assert decoded(Paid, body) == Paid("7", 5, [Item("x", 2.0)], {"a": "b"}, None)
    assert decoded(Paid, {"order": "7", "cents": 5, "added later": 1, "sizes": [1, 2]}) == Paid("7", 5, sizes=(1, 2))
    assert decoded(Tree, {"value": 1, "children": [{"value": 2}]}) == Tree(1, [Tree(2)])


@pytest.mark.parametrize(
    ("model", "body", "sentence"),
    [
        (Paid, {"order": "7"}, "event: Paid needs cents"),
        (Paid, {"order": "7", "cents": "5"}, "event.cents: int expected, not '5'"),
        (Paid, {"order": "7", "cents": True}, "event.cents: int expected, not True"),
        (Paid, {"order": "7", "cents": 5.0}, "event.cents: int expected, not 5.0"),
        (Paid, {"order": None, "cents": 5}, "event.order: str expected, not None"),
        (Paid, {"order": "7", "cents": 5, "note": 1}, "event.note: str expected, not 1; or event.note: NoneType"),
        (Paid, {"order": "7", "cents": 5, "items": [{}]}, r"event.items\[0\]: Item needs name"),
        (Paid, {"order": "7", "cents": 5, "items": {}}, "event.items: an array expected"),
        (Paid, {"order": "7", "cents": 5, "tags": []}, "event.tags: an object expected"),
        (Paid, {"order": "7", "cents": 5, "tags": {"a": 1}}, "event.tags.a: str expected, not 1"),
        (Paid, {"order": "7", "cents": 5, "currency": "GBP"}, "event.currency: one of 'EUR', 'USD' expected"),
        (Paid, [], "event: an object expected for Paid"),
        (Checked, {"cents": -1}, "cents: at least 0"),
        (Checked, {"cents": 0}, r"cannot be decoded: AssertionError\(\)"),
        (Checked, {"cents": 3}, "list index out of range"),
        (Item, {"name": "x", "price": 10**400}, "too large to convert to float"),
        (Settled, {"by": {"cents": 0}}, r"AssertionError\(\); or event.by: Item needs name"),
        (Payment, {"order": "7"}, "at"),
    ],
)
def test_what_does_not_fit_the_model_is_undecodable_and_says_where(model: Any, body: Any, sentence: str) -> None:
    with pytest.raises(UndecodableEvent, match=sentence):
        decoded(model, body)


def test_what_one_model_of_several_refuses_is_offered_to_the_next() -> None:
    refused = {"cents": -1, "name": "x"}
    assert decoded(Settled, {"by": refused, "sum": 10**400}) == Settled(Item("x"), 10**400)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"NaN", b'{"a": Infinity}', b"[" * 100_000])
def test_what_is_not_json_is_undecodable(data: bytes) -> None:
    with pytest.raises(UndecodableEvent):
        decoder(None)(data)


def test_a_pydantic_model_reads_what_json_has_not() -> None:
    assert decoded(Payment, {"order": "7", "at": "2026-01-02T03:04:05Z"}).at.year == 2026


OLD = [typing.Dict, typing.List]  # noqa: UP006 - as programs of some years ago have them


@pytest.mark.parametrize("kind", [datetime, tuple[int], tuple[int, str], tuple[()], set[int], *OLD])
def test_a_field_that_json_cannot_fill_is_refused_when_the_handler_is_registered(kind: Any) -> None:
    model = make_dataclass("Dated", [("at", kind)])
    words = f"model: Dated.at has the type {kind}, which JSON does not have; use a Pydantic model"
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        Events().handles("X", model=model)


def same_name_twice(events: Events) -> Callable[..., Any]:
    events.handles("X", name="a")(print)
    return events.handles("X", name="a")(print)


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda events: events.handles(), "handles: name at least one event type"),
        (lambda events: events.handles(""), "event type: a string that is not empty, not ''"),
        (lambda events: events.handles(print), "event type: a string that is not empty"),
        (lambda events: events.handles("X", model=7), "model: a dataclass, a Pydantic model or None, not 7"),
        (lambda events: events.handles("X", model=Item("x")), "model: a dataclass"),
        (lambda events: events.handles("X", name="")(print), "handler name: a string that is not empty"),
        (lambda events: events.handles("X", "Y", "X"), "handles: each event type once, not 'X', 'Y', 'X'"),
        (lambda events: events.handles("X", name="a")(7), "handles: something to call, not 7"),
        (same_name_twice, "'X' has a handler 'a'; give this one another name="),
        (lambda events: Events(unknown="drop"), "unknown: one of 'ack', 'dead_letter', 'fail', not 'drop'"),
        (lambda events: Events(undecodable=None), "undecodable: one of 'ack', 'dead_letter', 'fail', not None"),
        (lambda events: Events(type_attribute=""), "type_attribute: a string that is not empty"),
        (lambda events: Events(type_field=""), "type_field: a string that is not empty"),
    ],
)
def test_a_misuse_is_named(misuse: Callable[[Events], Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        misuse(Events())
