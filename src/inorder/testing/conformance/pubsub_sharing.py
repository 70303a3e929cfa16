"""Several subscribers of one subscription: keys are shared, order is not lost, whatever happens."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inorder.client.subscription import Subscription
from inorder.message import Gap, Message
from inorder.testing.conformance.pubsub_case import OwnLoop, Threads, Way, result, text
from inorder.testing.conformance.pubsub_handlers import HandlersCase
from inorder.testing.history import History, anomalies

KEYS = 8
MESSAGES = 20  # of each key


class Sharing(HandlersCase):
    """The handlers record a history; what is wrong with it is named by `anomalies`."""

    history: History

    def setup_method(self) -> None:
        super().setup_method()
        self.history = History()

    def consumer(self, way: Way, name: str, function: Callable[[Any], Any] | None = None) -> Subscription:
        """One more subscriber, with a handle of its own."""
        subscription = self.pubsub.subscription("worker")
        handler = self.history.handler(way.handler(function) if function else None, name)
        subscription.on("message", way.handler(handler)).on("gap", self.record_gap).on("error", lambda _: None)
        way.open(subscription)
        return subscription

    def record_gap(self, gap: Gap) -> None:
        self.history.missing(gap.ordering_key, gap.count)

    def publish_all(self, keys: int = KEYS, messages: int = MESSAGES) -> None:
        """So many messages of so many keys, and as many without one."""
        topic = self.pubsub.topic("orders")
        for number in range(messages):
            for key in [*(f"key-{number}" for number in range(keys)), None]:
                data = f"{number}".encode()
                self.history.publishing(key, data)
                result(topic.publish_message(data, ordering_key=key))
                self.history.published(key, data)

    def assert_in_order(self) -> None:
        self.wait_until(lambda: self.backlog() == 0)
        result(self.pubsub.close())
        found = anomalies(self.history)
        assert not found, str(found)

    @pytest.mark.parametrize("window", [1, 5])
    def test_subscribers_share_keys_and_break_no_order(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window)
        for name in ("one", "two", "three"):
            self.consumer(way, name)
        self.publish_all()
        self.assert_in_order()

    @pytest.mark.parametrize("window", [1, 5])
    def test_subscribers_of_different_kinds_share_keys(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window)
        self.consumer(way, "one")
        self.consumer(Threads(), "thread")
        self.consumer(OwnLoop(), "loop")
        self.publish_all()
        self.assert_in_order()

    @pytest.mark.parametrize("window", [1, 5])
    def test_failures_break_no_order(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window)
        chance, lock = random.Random(20), threading.Lock()

        async def handle(message: Message) -> None:
            with lock:
                fate = chance.random()
            await way.pause() if fate > 0.8 else None
            if fate < 0.1:
                message.nack()
            elif fate < 0.2:
                raise ValueError("a failing handler")
            else:
                message.ack()

        for name in ("one", "two"):
            self.consumer(way, name, handle)
        self.publish_all()
        self.assert_in_order()

    @pytest.mark.parametrize("window", [1, 5])
    def test_messages_without_an_answer_break_no_order(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window, ack_deadline=self.short_deadline)
        lock = threading.Lock()
        silent = {("key-0", "3"), ("key-1", "0"), ("key-1", "7"), (None, "5")}
        handled: list[Message] = []

        def handle(message: Message) -> None:
            with lock:
                first = (message.ordering_key, text(message)) in silent
                silent.discard((message.ordering_key, text(message)))
            if first:
                handled.append(message)
                self.history.failed(message.ordering_key, message.data)
            else:
                message.ack()

        for name in ("one", "two"):
            self.consumer(way, name, handle)
        self.publish_all(keys=3, messages=10)
        self.assert_in_order()
        assert len(handled) == 4

    @pytest.mark.parametrize("window", [1, 5])
    def test_subscribers_that_come_and_go_break_no_order(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window)

        async def handle(message: Message) -> None:
            await way.pause()
            message.ack()

        publishing = self.in_background(self.publish_all)
        open_ones = [self.consumer(way, "first", handle)]
        number = 0
        while not publishing.done():
            number += 1
            open_ones.append(self.consumer(way, f"next-{number}", handle))
            self.assert_never(lambda: False, 0.005)
            way.result(open_ones.pop(0).close())
        publishing.result()
        self.assert_in_order()

    @pytest.mark.parametrize("window", [1, 5])
    def test_acks_from_other_threads_break_no_order(self, way: Way, window: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=window)
        to_ack: list[Any] = []
        over = threading.Event()

        def ack() -> None:
            chance = random.Random(30)
            while not over.is_set():
                if to_ack:
                    message = to_ack.pop(chance.randrange(len(to_ack)))
                    if chance.random() < 0.1:
                        message.nack()
                    else:
                        message.ack()
                else:
                    over.wait(0.0005)

        for name in ("one", "two"):
            self.consumer(way, name, to_ack.append)
        ackers = [self.in_background(ack) for _ in range(2)]
        self.publish_all()
        self.wait_until(lambda: self.backlog() == 0)
        over.set()
        for acker in ackers:
            acker.result()
        self.assert_in_order()
