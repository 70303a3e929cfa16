"""A dispatcher: handlers by event type, in order per key, each once for a message whatever fails in between."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from inorder import DeadLetterPolicy, Message, PubSub, RetryPolicy, Subscription
from inorder.consumers import Dispatcher
from inorder.consumers.dispatching import REASON
from inorder.consumers.marks import KEPT_US
from inorder.consumers.store import Store
from inorder.errors import InvalidArgument
from inorder.patterns import Events
from inorder.testing.clock import ManualClock

from .desk import SOON, Database, Desk, run, wait_until


class Office:
    """A desk with an ordered subscription, a topic of dead letters, and events by type."""

    def __init__(self, here: Desk) -> None:
        self.here = here
        self.database = here.database
        self.dead = here.pubsub.topic("dead").create().result()
        self.lying: Subscription = self.dead.subscription("lying").create(enable_message_ordering=True).result()

    def publish(self, event_type: str | None, body: Any, key: str | None = "a") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        attributes = {} if event_type is None else {"event_type": event_type}
        self.here.topic.publish_message(data, attributes, key).result()

    def dispatcher(self, events: Events, store: Store | None = None, **options: Any) -> Dispatcher:
        given: dict[str, Any] = {"dead_letters": self.dead, "on_error": self.here.note, **options}
        return Dispatcher(
            self.here.pubsub.subscription("worker"), events, store=store or self.database.store(), **given
        )

    def dispatch(self, events: Events, **options: Any) -> None:
        with self.dispatcher(events, **options):
            self.here.drained()

    def letters(self) -> list[Message]:
        found: list[Message] = []
        while more := self.lying.pull(100).result():
            found += more
            for message in more:
                message.ack().result()
        return found

    def marks(self) -> list[Any]:
        return self.database.read("SELECT handler FROM inorder_marks ORDER BY handler")


@contextmanager
def office(database: Database, clock: Any = None, **options: Any) -> Iterator[Office]:
    here = Desk(database, clock, **{"enable_message_ordering": True, **options})
    yield Office(here)
    here.pubsub.close().result(30)


def write(raw: Any, what: Any, key: str = "a") -> None:
    run(raw, "INSERT INTO effects (entity, event) VALUES (:key, :event)", key=key, event=json.dumps(what))


def writer(name: str) -> Callable[[Any, Any], None]:
    def handle(event: Any, connection: Any) -> None:
        write(connection, [name, event])

    return handle


def failing(name: str, times: list[int], failures: int) -> Callable[[Any, Any], None]:
    def handle(event: Any, connection: Any) -> None:
        write(connection, [name, event])
        times.append(1)
        if len(times) <= failures:
            raise ZeroDivisionError(name)

    return handle


# -- handlers --------------------------------------------------------------------------------------------


def test_events_of_several_types_keep_their_order(database: Database) -> None:
    """ordering-in-event-driven-systems Single topic with dispatcher."""
    events = Events()
    for event_type in ("OrderPlaced", "OrderPaid", "OrderShipped"):
        events.handles(event_type, name="note")(writer(event_type))
    with office(database) as here:
        for number in range(5):
            for event_type in ("OrderPlaced", "OrderPaid", "OrderShipped"):
                for key in ("a", "b"):
                    here.publish(event_type, [key, number], key)
        here.dispatch(events)
    for key in ("a", "b"):
        seen = [(name, number) for name, (owner, number) in database.effects() if owner == key]
        assert seen == [(name, n) for n in range(5) for name in ("OrderPlaced", "OrderPaid", "OrderShipped")]
    assert here.marks() == []


def test_handlers_take_an_event_or_an_event_and_a_connection(database: Database) -> None:
    events, seen = Events(), []

    @events.handles("E")
    def plain(event: Any) -> None:
        seen.append(("plain", event))

    @events.handles("E")
    def with_connection(event: Any, connection: Any) -> None:
        write(connection, ["written", event])
        seen.append(("with_connection", event))

    @events.handles("E")
    def with_default(event: Any, connection: Any = None) -> None:
        seen.append(("with_default", connection is not None))

    with office(database) as here:
        here.publish("E", {"x": 1})
        here.dispatch(events)
    assert seen == [("plain", {"x": 1}), ("with_connection", {"x": 1}), ("with_default", True)]
    assert database.effects() == [("written", {"x": 1})]


@dataclass
class Paid:
    order: str
    cents: int


class Shipped(pydantic.BaseModel):
    order: str
    parcels: int = 1


def test_a_model_is_what_a_handler_gets(database: Database) -> None:
    events, seen = Events(), []
    events.handles("Paid", model=Paid, name="h")(lambda event: seen.append(event))
    events.handles("Shipped", model=Shipped, name="h")(lambda event: seen.append(event))
    with office(database) as here:
        here.publish("Paid", {"order": "7", "cents": 5, "more": True})
        here.publish("Shipped", {"order": "7"})
        here.dispatch(events)
    assert seen == [Paid("7", 5), Shipped(order="7", parcels=1)]


async def asynchronous(event: Any) -> None: ...


class Asynchronous:
    async def __call__(self, event: Any) -> None: ...


def generated(event: Any) -> Iterator[None]:
    yield


WRONG: dict[str, Any] = {
    "no argument": lambda: None,
    "three": lambda event, connection, more: None,
    "async": asynchronous,
    "called asynchronously": Asynchronous(),
    "a generator": generated,
}


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG.keys())
def test_a_handler_that_takes_something_else_is_refused(database: Database, function: Any) -> None:
    events = Events()
    events.handles("E", name="odd")(function)
    with office(database) as here, pytest.raises(InvalidArgument, match="handler 'odd'"):
        here.dispatcher(events)


def test_a_handler_that_returns_what_is_to_be_awaited_has_not_run(database: Database) -> None:
    events = Events()
    events.handles("E", name="odd")(lambda event: asynchronous(event))
    with office(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish("E", {})
        with here.dispatcher(events):
            wait_until(lambda: here.here.errors)
        assert here.here.backlog == 1
    assert "handler 'odd': it returned a coroutine" in str(here.here.errors[0])
    assert here.marks() == []


def test_a_subscription_without_order_and_a_missing_topic_are_refused(database: Database) -> None:
    with office(database, enable_message_ordering=False) as here:
        with pytest.raises(InvalidArgument, match="enable_message_ordering=True"):
            here.dispatcher(Events())
        with pytest.raises(InvalidArgument, match='a topic is needed for undecodable="dead_letter"'):
            here.dispatcher(Events(), dead_letters=None)


def test_dead_letters_do_not_go_to_where_they_would_come_again(database: Database) -> None:
    with office(database) as here, PubSub("memory:") as elsewhere:
        with pytest.raises(InvalidArgument, match="dead_letters: another topic than the subscription's own"):
            here.dispatcher(Events(), dead_letters=here.here.topic)
        of_the_same_name = elsewhere.topic(here.here.topic.name)
        here.dispatcher(Events(), dead_letters=of_the_same_name)  # nor is it there
        of_the_same_name.create().result().subscription("worker").create().result()
        here.dispatcher(Events(), dead_letters=of_the_same_name)


# -- retries ---------------------------------------------------------------------------------------------


def test_a_retry_runs_only_the_handlers_that_have_not_succeeded(database: Database) -> None:
    events, times = Events(), list[int]()
    events.handles("E", name="1 first")(writer("first"))
    events.handles("E", name="2 second")(failing("second", times, 2))
    events.handles("E", name="3 third")(writer("third"))
    with office(database, retry_policy=SOON) as here:
        here.publish("E", 1)
        here.publish("E", 2)
        here.dispatch(events)
    effects = [tuple(effect) for effect in database.effects()]
    assert effects == [("first", 1), ("second", 1), ("third", 1), ("first", 2), ("second", 2), ("third", 2)]
    assert len(times) == 4
    assert [str(error) for error in here.here.errors] == ["second", "second"]
    assert "in the handler '2 second' of 'E'" in here.here.errors[0].__notes__


def test_marks_of_a_message_that_failed_stay_until_it_is_acked(database: Database) -> None:
    events, times = Events(), list[int]()
    events.handles("E", name="first")(writer("first"))
    events.handles("E", name="second")(failing("second", times, 1))
    with office(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish("E", 1)
        with here.dispatcher(events):
            wait_until(lambda: here.here.errors)
        assert here.marks() == [("first",)]
        here.here.subscription.resume_key("a").result()
        here.dispatch(events)  # another dispatcher, perhaps in another process
        assert here.marks() == []
    assert [name for name, _ in database.effects()] == ["first", "second"]


def test_a_failure_holds_up_its_own_key_only_and_re_runs_nobody_else_s_handlers(database: Database) -> None:
    events, calls = Events(), list[str]()

    @events.handles("E")
    def handle(event: Any) -> None:
        calls.append(event)
        if event == "bad":
            raise ZeroDivisionError

    with office(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        for name in ("x", "bad", "y", "z"):
            here.publish("E", name, key=name)
        here.publish("E", "behind", key="bad")
        with here.dispatcher(events):
            wait_until(lambda: here.here.backlog == 2)
    assert sorted(calls) == ["bad", "x", "y", "z"]


def test_a_handler_whose_failure_undoes_the_whole_transaction_undoes_no_mark_s_effect(database: Database) -> None:
    events, slips = Events(), ["once"]

    @events.handles("Placed")
    def write_down(event: Any, raw: Any) -> None:
        write(raw, [], event["key"])
        if event["key"] == "b" and slips and not database.place.startswith("postgresql"):
            slips.pop()
            run(raw, "INSERT OR ROLLBACK INTO inorder_quarantine (consumer) VALUES (NULL)")

    with office(database) as here:
        for key in ("a", "b", "c"):
            here.publish("Placed", {"key": key}, key)
        here.dispatch(events)
    assert database.read("SELECT entity FROM effects ORDER BY entity") == [("a",), ("b",), ("c",)]


def test_an_ack_that_is_lost_runs_nothing_again(database: Database) -> None:
    events = Events()
    events.handles("E", name="first")(writer("first"))
    with office(database) as here:
        here.publish("E", 1)
        store = database.store()
        dispatcher: Any = here.dispatcher(events, store)
        message = here.here.subscription.pull(1).result()[0]
        assert dispatcher.take([message], Believing()).done == [message]  # and then the process dies
        here.here.subscription.seek(position=0).result()
        here.dispatch(events)
        assert here.marks() == []
    assert database.effects() == [("first", 1)]


class Believing:
    def keep(self, messages: object) -> bool:
        return True

    def look_by(self, when_us: int) -> None:
        pass


def test_a_lease_that_is_lost_meanwhile_keeps_handlers_from_writing(database: Database) -> None:
    events, calls = Events(), list[int]()
    with office(database) as here:

        @events.handles("E")
        def handle(event: Any, connection: Any) -> None:
            write(connection, [event])
            calls.append(event)
            if len(calls) == 1:
                here.here.subscription.seek(position=0).result()

        here.publish("E", 1)
        here.dispatch(events)
    assert len(calls) == 2
    assert database.effects() == [(1,)]


def test_marks_that_a_crash_has_left_are_removed_when_no_message_can_need_them(database: Database) -> None:
    clock = ManualClock()
    events = Events()
    events.handles("E", name="first")(writer("first"))
    with office(database, clock) as here:
        here.publish("E", 1)
        dispatcher: Any = here.dispatcher(events)
        dispatcher.take(here.here.subscription.pull(1).result(), Believing())
        assert here.marks() == [("first",)]
        clock.advance(KEPT_US / 1_000_000 + 1)
        with here.dispatcher(events):
            wait_until(lambda: not here.marks())


def test_marks_are_removed_soon_after_the_ack_and_not_only_in_the_end(database: Database) -> None:
    clock = ManualClock()
    events = Events()
    events.handles("E", name="first")(writer("first"))
    with office(database, clock) as here, here.dispatcher(events):
        here.publish("E", 1)
        here.here.drained()
        wait_until(lambda: clock.advance(1) or not here.marks())


def test_what_always_fails_goes_by_the_rules_of_the_subscription(database: Database) -> None:
    events = Events()

    @events.handles("E")
    def handle(event: Any, connection: Any) -> None:
        write(connection, [event])
        assert event != 1

    with office(database, dead_letter_policy=DeadLetterPolicy("dead", 5)) as here:
        here.publish("E", 1)
        here.publish("E", 2)
        here.dispatch(events)
        assert [message.data for message in here.letters()] == [b"1"]
    assert database.effects() == [(2,)]
    assert len(here.here.errors) == 5


# -- what has no handler ---------------------------------------------------------------------------------

STRANGE: dict[str, tuple[str | None, Any, str]] = {
    "an unknown type": ("Unknown", {}, "unknown"),
    "no type": (None, {}, "unknown"),
    "no JSON": ("E", b"{", "undecodable"),
    "another shape": ("Paid", {"order": 7}, "undecodable"),
}


def known_events(**policies: Any) -> Events:
    events = Events(**policies)
    events.handles("E", name="first")(writer("first"))
    events.handles("Paid", name="paid", model=Paid)(writer("paid"))
    return events


@pytest.mark.parametrize(("event_type", "body", "policy"), STRANGE.values(), ids=STRANGE.keys())
def test_an_event_may_be_passed_over(database: Database, event_type: str | None, body: Any, policy: str) -> None:
    with office(database) as here:
        here.publish(event_type, body)
        here.publish("E", 1)
        here.dispatch(known_events(**{policy: "ack"}))
        assert here.letters() == []
    assert database.effects() == [("first", 1)]


@pytest.mark.parametrize(("event_type", "body", "policy"), STRANGE.values(), ids=STRANGE.keys())
def test_an_event_may_become_a_dead_letter(database: Database, event_type: str | None, body: Any, policy: str) -> None:
    with office(database) as here:
        here.publish(event_type, body)
        here.publish("E", 1)
        here.dispatch(known_events(**{policy: "dead_letter"}))
        (letter,) = here.letters()
        assert letter.ordering_key == "a"
        assert letter.data == (body if isinstance(body, bytes) else json.dumps(body).encode())
        assert letter.attributes.get("event_type") == event_type
        assert letter.attributes[REASON]
    assert database.effects() == [("first", 1)]


@pytest.mark.parametrize(("event_type", "body", "policy"), STRANGE.values(), ids=STRANGE.keys())
def test_an_event_may_stop_its_key(database: Database, event_type: str | None, body: Any, policy: str) -> None:
    with office(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish(event_type, body)
        here.publish("E", 1)
        here.publish("E", 2, key="b")
        with here.dispatcher(known_events(**{policy: "fail"})):
            wait_until(lambda: here.here.errors and here.here.backlog == 2)
    assert database.effects() == [("first", 2)]


def test_dead_letters_keep_the_order_of_their_key(database: Database) -> None:
    with office(database) as here:
        for number in range(20):
            here.publish("Strange", number, key=f"k{number % 2}")
            here.publish("E", number, key=f"k{number % 2}")
        here.dispatch(known_events(unknown="dead_letter"), batch=7)
        letters = here.letters()
    for key in ("k0", "k1"):
        numbers = [int(letter.data) for letter in letters if letter.ordering_key == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


def test_a_dead_letter_that_cannot_be_sent_stays_where_it_is(database: Database) -> None:
    with office(database, retry_policy=SOON) as here:
        here.dead.delete().result()
        here.publish("Strange", 1)
        here.publish("E", 2)
        with here.dispatcher(known_events(unknown="dead_letter")):
            wait_until(lambda: len(here.here.errors) > 2)
            assert here.here.backlog == 2
            here.dead = here.here.pubsub.topic("dead").create().result()
            here.lying = here.dead.subscription("lying2").create().result()
            here.here.drained()
        assert [letter.data for letter in here.letters()] == [b"1"]
    assert database.effects() == [("first", 2)]


def test_a_message_with_as_many_attributes_as_may_be_can_be_a_dead_letter(database: Database) -> None:
    with office(database) as here:
        attributes = {f"a{number}": "x" for number in range(100)}
        here.here.topic.publish_message(b"{}", attributes, "a").result()
        here.dispatch(known_events(unknown="dead_letter"))
        (letter,) = here.letters()
        assert letter.attributes == attributes


# -- life ------------------------------------------------------------------------------------------------


def test_a_handler_may_close_its_dispatcher(database: Database) -> None:
    events = Events()

    @events.handles("E")
    def handle(event: Any, connection: Any) -> None:
        write(connection, [event])
        dispatcher.close()

    with office(database) as here:
        here.publish("E", 1)
        dispatcher = here.dispatcher(events).open()
        here.here.drained()
    assert database.effects() == [(1,)]


def test_two_dispatchers_of_one_name_share_the_work_in_order(database: Database) -> None:
    events, lock, running = Events(), threading.Lock(), set[str]()
    overlapped: list[str] = []

    @events.handles("E")
    def handle(event: Any, connection: Any) -> None:
        key = event[0]
        with lock:
            overlapped.extend(running & {key})
            running.add(key)
        write(connection, event, key)
        with lock:
            running.discard(key)

    with office(database) as here:
        for number in range(60):
            here.publish("E", [f"k{number % 6}", number], key=f"k{number % 6}")
        both = [here.dispatcher(events, batch=3).open() for _ in range(2)]
        here.here.drained()
        for one in both:
            one.close()
        assert here.marks() == []
    for key in range(6):
        assert [number for _, number in database.effects(f"k{key}")] == list(range(key, 60, 6))
    assert not overlapped
