"""Message ordering as its specification words it, from `publish_message` to the handler and back."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from inorder.errors import InvalidArgument
from inorder.message import Message
from inorder.options import Batching
from inorder.testing.conformance.pubsub_case import PubSubCase, Wait, Way, result, text, texts


class Together:
    """How many handlers run at once, and the most that ever did. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.ended = 0

    def begin(self) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            return self.now

    def end(self) -> None:
        with self._lock:
            self.now -= 1
            self.ended += 1


class AcceptanceCriteria(PubSubCase):
    """Those of the specification, in its order."""

    def test_a_topic_takes_messages_with_ordering_keys(self, wait: Wait) -> None:
        """message-ordering AC-001"""
        topic = self.pubsub.topic("ordered-events")
        wait(topic.create())
        assert wait(topic.publish_message(data=b"event-1", ordering_key="user-123"))

    def test_messages_of_a_key_are_delivered_in_order(self, way: Way) -> None:
        """message-ordering AC-002"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        subscription = way.result(topic.subscription("ordered-sub").create(enable_message_ordering=True))
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        for data in (b"first", b"second", b"third"):
            way.result(topic.publish_message(data=data, ordering_key="user-123"))
        self.wait_until(lambda: len(received) >= 3)
        assert received == ["first", "second", "third"]

    def test_a_key_is_processed_one_message_at_a_time(self, way: Way) -> None:
        """message-ordering AC-003"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        topic.set_publish_options(message_ordering=True)
        subscription = way.result(topic.subscription("ordered-sub").create())
        way.result(subscription.set_options(message_ordering=True))
        together = Together()

        async def handle(message: Message) -> None:
            together.begin()
            await way.pause()
            together.end()
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        for number in range(5):
            way.result(topic.publish_message(data=b"msg-%d" % number, ordering_key="user-123"))
        self.wait_until(lambda: together.ended == 5)
        assert together.most == 1

    def test_different_keys_are_processed_together(self, way: Way) -> None:
        """message-ordering AC-004"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        topic.set_publish_options(message_ordering=True)
        subscription = way.result(topic.subscription("ordered-sub").create())
        way.result(subscription.set_options(message_ordering=True))
        together, all_here = Together(), threading.Event()

        async def handle(message: Message) -> None:
            if together.begin() == 3:
                all_here.set()
            await way.set(all_here)
            together.end()
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        for number in (1, 2, 3):
            way.result(topic.publish_message(data=b"user%d-msg1" % number, ordering_key=f"user-{number}"))
        self.wait_until(lambda: together.ended == 3)
        assert together.most == 3

    def test_order_is_preserved_on_redelivery(self, way: Way) -> None:
        """message-ordering AC-005"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        subscription = topic.subscription("ordered-sub")
        way.result(subscription.create(enable_message_ordering=True, ack_deadline=self.short_deadline))
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            if received != ["first"]:  # the first time it gets no answer, and times out
                message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        for data in (b"first", b"second"):
            way.result(topic.publish_message(data=data, ordering_key="user-123"))
        self.wait_until(lambda: "second" in received)
        assert received == ["first", "first", "second"]

    def test_messages_without_a_key_are_not_blocked(self, way: Way) -> None:
        """message-ordering AC-006"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        subscription = way.result(topic.subscription("ordered-sub").create(enable_message_ordering=True))
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            if not message.ordering_key:
                message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        way.result(topic.publish_message(data=b"blocked", ordering_key="user-123"))
        way.result(topic.publish_message(data=b"unordered"))
        self.wait_until(lambda: "unordered" in received)

    def test_subscriptions_are_ordered_independently(self, way: Way) -> None:
        """message-ordering AC-007"""
        topic = way.result(self.pubsub.topic("ordered-events").create())
        received: dict[str, list[str]] = {"sub-1": [], "sub-2": []}
        for name, of_name in received.items():
            subscription = way.result(topic.subscription(name).create(enable_message_ordering=True))

            def handle(message: Message, of_name: list[str] = of_name) -> None:
                of_name.append(text(message))
                message.ack()

            subscription.on("message", way.handler(handle))
            way.open(subscription)
        for data in (b"first", b"second"):
            way.result(topic.publish_message(data=data, ordering_key="user-123"))
        self.wait_until(lambda: all(len(of_name) >= 2 for of_name in received.values()))
        assert received == {"sub-1": ["first", "second"], "sub-2": ["first", "second"]}

    @pytest.mark.parametrize(
        ("key", "words"),
        [("", "Ordering key cannot be empty"), ("x" * 1025, "Ordering key exceeds maximum length of 1024 bytes")],
        ids=["empty", "too long"],
    )
    def test_ordering_keys_are_validated(self, wait: Wait, key: str, words: str) -> None:
        """message-ordering AC-008"""
        topic = wait(self.pubsub.topic("ordered-events").create())
        with pytest.raises(InvalidArgument, match=words) as refused:
            wait(topic.publish_message(data=b"test", ordering_key=key))
        assert refused.value.code == 3

    def test_ordering_keys_are_accepted_without_being_enabled(self, wait: Wait) -> None:
        """message-ordering AC-009"""
        topic = wait(self.pubsub.topic("ordered-events").create())
        message_id = wait(topic.publish_message(data=b"test", ordering_key="user-123"))
        assert isinstance(message_id, str)
        assert message_id

    def test_messages_are_batched_by_key(self, wait: Wait) -> None:
        """message-ordering AC-010"""
        topic = wait(self.pubsub.topic("ordered-events").create())
        wait(topic.subscription("ordered-sub").create(enable_message_ordering=True))
        topic.set_publish_options(batching=Batching(max_messages=10, max_milliseconds=50))
        pendings = [
            topic.publish_message(data=b"msg-%d" % number, ordering_key=f"user-{number % 5}") for number in range(20)
        ]
        self.wait_until(lambda: all(pending.done() for pending in pendings))
        ids = [wait(pending) for pending in pendings]
        assert len(set(ids)) == 20
        assert all(isinstance(message_id, str) for message_id in ids)
        received: dict[str | None, list[str]] = defaultdict(list)
        for message in self.consume(20, "ordered-sub"):
            received[message.ordering_key].append(text(message))
        assert received == {f"user-{key}": [f"msg-{number}" for number in range(key, 20, 5)] for key in range(5)}


class BehaviourRequirements(PubSubCase):
    def test_a_publisher_keeps_a_batch_for_each_key(self) -> None:
        """message-ordering BR-001"""
        self.subscribe_ordered()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching={"max_messages": 2, "max_milliseconds": 60_000})
        a1 = topic.publish_message(b"a1", ordering_key="a")
        b1 = topic.publish_message(b"b1", ordering_key="b")
        assert not a1.done()
        a2 = topic.publish_message(b"a2", ordering_key="a")
        assert result(a1) != result(a2)
        assert not b1.done()
        assert texts(self.consume(2)) == ["a1", "a2"]
        assert self.backlog() == 0
        result(topic.flush())
        assert texts(self.consume(1)) == ["b1"]

    @pytest.mark.parametrize("option", ["enable_message_ordering", "message_ordering"])
    def test_a_subscription_is_ordered_if_it_says_so(self, way: Way, option: str) -> None:
        """message-ordering BR-002"""
        options: dict[str, Any] = {option: True}
        subscription = self.subscribe(**options)
        together, received = Together(), list[str]()

        async def handle(message: Message) -> None:
            together.begin()
            received.append(text(message))
            await way.pause()
            together.end()
            message.ack()

        self.publish("1", "2", "3", key="k")
        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.wait_until(lambda: together.ended == 3)
        assert (received, together.most) == (["1", "2", "3"], 1)

    def test_without_ordering_messages_of_a_key_are_handled_together(self, way: Way) -> None:
        """message-ordering BR-002"""
        subscription = self.subscribe()
        together, all_here = Together(), threading.Event()

        async def handle(message: Message) -> None:
            if together.begin() == 3:
                all_here.set()
            await way.set(all_here)
            together.end()
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: together.ended == 3)

    @pytest.mark.parametrize("max_messages", [1, 3, 100])
    def test_publish_order_is_kept_within_each_key(self, max_messages: int) -> None:
        """message-ordering BR-003: whatever the size of the batches."""
        self.subscribe_ordered()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching={"max_messages": max_messages, "max_milliseconds": 60_000})
        for number in range(10):
            for key in "abc":
                topic.publish_message(f"{key}{number}".encode(), ordering_key=key)
        result(topic.flush())
        self.assert_each_key_in_order(self.consume(30), 10)

    def test_each_key_waits_in_a_queue_of_its_own(self, way: Way) -> None:
        """message-ordering BR-004"""
        subscription = self.subscribe_ordered()
        self.publish_by_letter(*(f"{key}{number}" for number in range(10) for key in "abc"))
        received: list[Message] = []

        def handle(message: Message) -> None:
            received.append(message)
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.wait_until(lambda: len(received) >= 30)
        self.assert_each_key_in_order(received, 10)

    def test_the_next_message_of_a_key_waits_for_the_ack(self, way: Way) -> None:
        """message-ordering BR-005"""
        subscription = self.subscribe_ordered()
        received: list[str] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            if text(message) == "a1":
                await way.set(go_on)
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.publish_by_letter("a1", "a2", "b1", "b2")
        self.wait_until(lambda: "b2" in received)
        self.assert_never(lambda: "a2" in received)
        go_on.set()
        self.wait_until(lambda: "a2" in received)

    def test_the_next_message_of_a_key_waits_for_an_ack_that_comes_after_the_handler(self, way: Way) -> None:
        """message-ordering BR-005"""
        subscription = self.subscribe_ordered()
        received: list[Message] = []
        subscription.on("message", way.handler(received.append))
        way.open(subscription)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: received)
        self.assert_never(lambda: len(received) > 1)
        way.result(received[0].ack())
        self.wait_until(lambda: len(received) > 1)
        assert texts(received) == ["1", "2"]

    @pytest.mark.parametrize("how", ["nack", "timeout"])
    def test_a_message_that_comes_again_keeps_its_place(self, way: Way, how: str) -> None:
        """message-ordering BR-006"""
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline)
        received: list[tuple[str, int]] = []

        def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            if text(message) == "2" and message.delivery_attempt < 3:
                if how == "nack":
                    message.nack()
            else:
                message.ack()

        self.publish("1", "2", "3", "4", key="k")
        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.wait_until(lambda: ("4", 1) in received)
        assert received == [("1", 1), ("2", 1), ("2", 2), ("2", 3), ("3", 1), ("4", 1)]

    def test_a_key_that_is_stuck_stops_no_other(self, way: Way) -> None:
        """message-ordering BR-007"""
        subscription = self.subscribe_ordered()
        received: list[Message] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            if message.ordering_key == "stuck":
                await way.set(go_on)
            received.append(message)
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.publish("s0", key="stuck")
        self.publish_by_letter(*(f"{key}{number}" for number in range(10) for key in "abc"))
        self.wait_until(lambda: len(received) == 30)
        self.assert_each_key_in_order(received, 10)
        go_on.set()
        self.wait_until(lambda: text(received[-1]) == "s0")

    def test_messages_without_a_key_block_nobody(self, way: Way) -> None:
        """message-ordering BR-008"""
        subscription = self.subscribe_ordered()
        received: list[str] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            if message.ordering_key is None:
                await way.set(go_on)
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.publish("free-1", "free-2")
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: len(received) >= 5)
        assert [name for name in received if "free" not in name] == ["1", "2", "3"]
        go_on.set()

    def test_one_key_is_sequential_and_many_keys_are_not(self, way: Way) -> None:
        """message-ordering BR-009: more keys, more at once."""
        subscription = self.subscribe_ordered()
        together = {"one": Together(), "many": Together()}
        all_here = threading.Event()

        async def handle(message: Message) -> None:
            of_kind = together["one" if message.ordering_key == "one" else "many"]
            if of_kind.begin() == 8:
                all_here.set()
            if of_kind is together["many"]:
                await way.set(all_here)
            of_kind.end()
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        self.publish(*(f"{number}" for number in range(8)), key="one")
        for number in range(8):
            self.publish("many", key=f"key-{number}")
        self.wait_until(lambda: together["one"].ended == together["many"].ended == 8)
        assert together["one"].most == 1
        assert together["many"].most == 8

    @pytest.mark.parametrize(
        "key",
        ["a", "x" * 1024, "é" * 512, "ключ", "鍵 🔑", " ", "a/b:c", "line\nbreak", "\0"],
        ids=["short", "1024 bytes", "1024 bytes in 512 letters", "cyrillic", "emoji", "space", "marks", "line", "nul"],
    )
    def test_a_key_is_any_utf8_text(self, key: str) -> None:
        """message-ordering BR-010"""
        self.subscribe_ordered()
        self.publish("1", "2", key=key)
        messages = self.consume(2)
        assert [(text(message), message.ordering_key) for message in messages] == [("1", key), ("2", key)]

    @pytest.mark.parametrize(
        "key",
        ["", "x" * 1025, "é" * 513, "🔑" * 257, "\ud800", 7, b"bytes"],
        ids=["empty", "1025 bytes", "1026 bytes", "1028 bytes", "no UTF-8", "a number", "bytes"],
    )
    def test_anything_else_is_no_key(self, wait: Wait, key: Any) -> None:
        """message-ordering BR-010"""
        self.subscribe_ordered()
        with pytest.raises(InvalidArgument, match="Ordering key"):
            wait(self.pubsub.topic("orders").publish_message(b"test", ordering_key=key))
        with pytest.raises(InvalidArgument, match="Ordering key"):
            wait(self.pubsub.topic("orders").publish_many([Message(b"fine"), Message(b"test", ordering_key=key)]))
        assert self.backlog() == 0

    def assert_each_key_in_order(self, messages: list[Message], count: int) -> None:
        received: dict[str | None, list[str]] = defaultdict(list)
        for message in messages:
            received[message.ordering_key].append(text(message))
        assert received == {key: [f"{key}{number}" for number in range(count)] for key in "abc"}
