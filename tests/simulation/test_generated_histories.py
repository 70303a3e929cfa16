"""The broker keeps its promises whatever happens in whatever order: generated, threaded, and once found."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from inorder.broker import MessageQueue
from inorder.errors import InvalidAckId, InvalidArgument, KeyNotBlocked
from inorder.message import Message
from inorder.testing.clock import ManualClock
from inorder.testing.history import History, anomalies

from .broker_machine import BrokerMachine, Consumer


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Full queues and dead letters are what these tests are about; a failure is easier to read without them."""
    caplog.set_level(logging.CRITICAL, logger="inorder")


def test_the_broker_does_what_the_model_says() -> None:
    # Histories are short and many things may go wrong in each: the profile's number is multiplied.
    # To shrink one failure may take minutes, so only one is shrunk.
    search = settings(max_examples=8 * settings().max_examples, stateful_step_count=40, report_multiple_bugs=False)
    run_state_machine_as_test(BrokerMachine, settings=search)


# -- threads ---------------------------------------------------------------------------------------


class Crowd:
    """Publishers and consumers on threads of their own, who fail, forget and give back at random."""

    PUBLISHERS, CONSUMERS, KEYS, MESSAGES = 3, 4, 4, 60  # keys and messages of each publisher

    def __init__(self, seed: int, window: int) -> None:
        self.seed = seed
        self.broker = MessageQueue()
        self.broker.register_topic("orders")
        self.broker.register_subscription(
            "worker",
            "orders",
            {"message_ordering": True, "ack_deadline": 0.05, "max_outstanding_per_key": window},
        )
        self.history = History()
        self.published = threading.Event()
        self.errors: list[BaseException] = []

    def run(self) -> None:
        publishers = [threading.Thread(target=self.guard, args=(self.publish, n)) for n in range(self.PUBLISHERS)]
        consumers = [threading.Thread(target=self.guard, args=(self.consume, n)) for n in range(self.CONSUMERS)]
        for thread in publishers + consumers:
            thread.start()
        for thread in publishers:
            thread.join()
        self.published.set()
        for thread in consumers:
            thread.join()
        self.broker.close()

    def guard(self, work: Callable[[int, Random], None], number: int) -> None:
        try:
            work(number, Random(f"{self.seed} {work.__name__} {number}"))
        except BaseException as error:
            self.errors.append(error)
            self.published.set()

    def publish(self, number: int, random: Random) -> None:
        """Each key has one publisher, so that the order of its messages is known."""
        sent = 0
        while sent < self.MESSAGES:
            size = min(random.randint(1, 5), self.MESSAGES - sent)
            batch = [(random.choice([None, *self.keys(number)]), f"{number}-{sent + n}") for n in range(size)]
            for key, value in batch:
                self.history.publishing(key, value)
            self.broker.publish("orders", [Message(value.encode(), ordering_key=key) for key, value in batch])
            for key, value in batch:
                self.history.published(key, value)
            sent += size

    def keys(self, number: int) -> list[str]:
        return [f"{number}/{key}" for key in range(self.KEYS)]

    def consume(self, number: int, random: Random) -> None:
        source = Consumer(self.broker, "worker")
        forgotten: dict[str | None, bytes] = {}  # messages without an answer: what is behind them waits for them
        something = threading.Event()
        self.broker.watch("worker", something.set, lambda problem: None)
        while not self.errors:
            something.clear()
            pulled = self.broker.take("worker", random.randint(1, 4), source)
            for message in pulled:
                if forgotten.get(message.ordering_key, message.data) == message.data:
                    forgotten.pop(message.ordering_key, None)
                    if not self.handle(message, str(number), random) and message.ordering_key:
                        forgotten[message.ordering_key] = message.data
            if not pulled:
                if self.published.is_set() and not self.broker.metrics("worker").backlog_messages:
                    return
                something.wait(0.01)

    def handle(self, message: Message, consumer: str, random: Random) -> bool:
        """Returns whether there was an answer."""
        run = (message.ordering_key, message.data.decode(), consumer)
        try:
            # The thread may have slept through its lease: only who still has it may begin.
            self.broker.modify_ack_deadline(message.ack_id, 30)
        except InvalidAckId:
            return True
        self.history.started(*run)
        chance = random.random()
        if chance < 0.75:
            self.history.acking(*run)
            self.broker.ack(message.ack_id)
            self.history.acked(*run)
            return True
        self.history.failed(*run)
        if chance < 0.9:
            self.broker.nack(message.ack_id)
            return True
        self.broker.modify_ack_deadline(message.ack_id, 0.01)
        return False


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_threads_that_fail_at_random_find_every_key_in_order(seed: int, window: int) -> None:
    crowd = Crowd(seed, window)
    crowd.run()
    assert not crowd.errors, crowd.errors
    found = anomalies(crowd.history)
    assert not found, str(found)
    assert found.messages == crowd.PUBLISHERS * crowd.MESSAGES
    assert found.redeliveries  # or it was too quiet a history to say anything


# -- cases that were found once --------------------------------------------------------------------


class Case:
    """One subscription, `worker`, and time that stands still."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.broker = MessageQueue(clock=self.clock)
        self.broker.register_topic("orders")
        self.broker.register_subscription("worker", "orders", options)

    def publish(self, *messages: tuple[str | None, bytes]) -> None:
        self.broker.publish("orders", [Message(data, ordering_key=key) for key, data in messages])

    def pull(self, count: int = 10) -> list[Message]:
        return self.broker.pull("worker", count)


def test_a_message_that_did_go_out_makes_nobody_wait_for_it() -> None:
    case = Case(ack_deadline=10, flow_control={"max_messages": 10, "max_bytes": 40})
    case.publish((None, b"a" * 30), (None, b"b" * 30))
    for expected in (b"a", b"b"):  # the second does not fit beside the first
        [message] = case.pull()
        assert message.data[:1] == expected
        case.broker.ack(message.ack_id)
    case.clock.advance(60)
    case.publish((None, b"c" * 30), (None, b"d" * 30), (None, b"e"))
    assert [message.data[:1] for message in case.pull()] == [b"c", b"e"]


def test_a_message_that_waited_long_and_goes_now_makes_nobody_wait_any_more() -> None:
    case = Case(ack_deadline=60, flow_control={"max_messages": 10, "max_bytes": 40})
    case.publish((None, b"a" * 30), (None, b"b" * 20))
    [message] = case.pull()  # the second does not fit
    case.broker.modify_ack_deadline(message.ack_id, 600)
    case.clock.advance(100)
    case.broker.ack(message.ack_id)
    case.publish((None, b"c" * 30), (None, b"d"))
    assert [message.data[:1] for message in case.pull()] == [b"b", b"d"]


def test_a_key_is_parked_for_the_message_that_failed_too_often() -> None:
    case = Case(
        message_ordering=True,
        max_outstanding_per_key=2,
        on_poison="park_key",
        retry_policy={"minimum_backoff": 1, "maximum_backoff": 1},
        dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 2},
    )
    case.publish(("k", b"innocent"), ("k", b"poison"))
    innocent, poison = case.pull()
    case.broker.nack(poison.ack_id)
    case.clock.advance(1)
    [poison] = case.pull()
    case.broker.nack([innocent.ack_id, poison.ack_id])
    [blocked] = case.broker.blocked_keys("worker")
    assert (blocked.reason, blocked.position) == ("parked", poison.position)
    assert case.broker.skip("worker", "k") == poison.id
    assert [message.data for message in case.pull()] == [b"innocent"]


def test_a_backoff_goes_on_when_the_rules_of_order_change() -> None:
    case = Case(message_ordering=True, retry_policy={"minimum_backoff": 10, "maximum_backoff": 10})
    case.publish((None, b"1"))
    case.broker.nack(case.pull()[0].ack_id)
    case.broker.update_subscription("worker", {"max_outstanding_per_key": 2})
    assert not case.pull()
    case.clock.advance(10)
    assert [message.delivery_attempt for message in case.pull()] == [2]


def test_a_window_that_is_refused_takes_back_nothing() -> None:
    case = Case()
    case.publish((None, b"1"))
    [message] = case.pull()
    with pytest.raises(InvalidArgument):
        case.broker.update_subscription("worker", {"max_outstanding_per_key": 2})
    case.broker.ack(message.ack_id)


def test_a_gap_record_is_not_counted_as_redelivered() -> None:
    case = Case(message_ordering=True, queue_limits={"max_messages": 1})
    case.publish(("k", b"1"), ("k", b"dropped"))
    case.broker.ack(case.pull(1)[0].ack_id)
    for window in (2, 3):
        assert len(case.broker.take("worker", 1)) == 1
        case.broker.update_subscription("worker", {"max_outstanding_per_key": window})  # it comes again
    counters = case.broker.metrics("worker").counters
    assert (counters.delivered, counters.redelivered) == (1, 0)


def test_a_refused_call_leaves_nothing_behind_that_breaks_the_next() -> None:
    class LateClock(ManualClock):
        """Timers have not run yet, as on a busy machine."""

        def advance(self, seconds: float) -> None:
            self._now_us += round(seconds * 1_000_000)

    clock = LateClock()
    broker = MessageQueue(clock=clock)
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    watch = broker.watch("worker", lambda: None, lambda problem: None)
    broker.publish("orders", [Message(b"1")])
    broker.pull("worker", 1)
    clock.advance(10)  # the lease is over, which the next call notices
    with pytest.raises(KeyNotBlocked):
        broker.resume_key("worker", "no such key")
    broker.unwatch("worker", watch)
    assert broker.blocked_keys("worker") == []
