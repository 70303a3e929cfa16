"""What changes under an open consumer: the options of its subscription, and whether there is one at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from inorder.client.subscription import Subscription
from inorder.errors import SubscriptionNotFound
from inorder.message import Message
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, Way, result, text, texts
from inorder.testing.conformance.pubsub_handlers import HandlersCase
from inorder.testing.conformance.pubsub_ordering import Together


class ChangedOptions(HandlersCase):
    def change(self, **options: Any) -> None:
        """By another handle, as an operator would."""
        result(self.pubsub.subscription("worker").set_options(**options))

    @pytest.mark.parametrize("window", [1, 10])
    def test_a_shorter_deadline_is_followed(self, way: Way, window: int) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=window, ack_deadline=600)
        received: list[tuple[str, int]] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            await way.set(go_on)
            await way.answer(message.ack())

        errors: list[BaseException] = []
        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("before", key="before")
        self.wait_until(lambda: received)
        self.change(ack_deadline_seconds=self.kept_deadline)
        self.publish("1", "2", "3", key="after")
        self.wait_until(lambda: len(received) == 2)
        self.assert_never(lambda: len(received) > 2, 1.5 * self.kept_deadline)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [("before", 1), ("1", 1), ("2", 1), ("3", 1)]
        assert errors == []
        assert result(subscription.metrics()).counters.expired == 0

    def test_a_nack_after_a_shorter_deadline_takes_back_what_is_behind_it(self, way: Way) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=5, ack_deadline=600)
        received: list[str] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            if received == ["0"]:
                await way.set(go_on)
                message.nack()
            else:
                message.ack()

        self.publish(*"01234", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(lambda: received)
        self.change(ack_deadline_seconds=self.kept_deadline)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [*"001234"]

    def test_a_longer_deadline_is_followed(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline)
        received: list[tuple[str, int]] = []
        self.handle(way, subscription, lambda message: received.append((text(message), message.delivery_attempt)))
        self.change(ack_deadline_seconds=60)
        self.publish("x", key="k")
        self.wait_until(lambda: received)
        self.assert_never(lambda: len(received) > 1, 3 * self.short_deadline)

    def test_ordering_that_is_switched_on_is_followed(self, way: Way) -> None:
        subscription = self.subscribe()
        together, received = self.handle_one_after_the_other(way, subscription)
        self.change(enable_message_ordering=True, max_outstanding_per_key=10)
        self.publish(*(f"{number}" for number in range(10)), key="k")
        self.wait_until(lambda: together.ended == 10)
        assert together.most == 1
        assert received == [f"{number}" for number in range(10)]

    def test_every_consumer_follows(self, way: Way) -> None:
        first, second = self.subscribe(), self.pubsub.subscription("worker")
        consumers = [self.handle_one_after_the_other(way, one) for one in (first, second)]
        self.publish("both are at work", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        self.change(enable_message_ordering=True, max_outstanding_per_key=10)
        for number in range(20):
            self.publish(f"{number}", key=f"{number % 2}")
        self.wait_until(lambda: self.backlog() == 0)
        result(first.close())
        result(second.close())
        for together, received in consumers:
            assert together.most <= 2
            for key in (0, 1):
                numbers = [int(one) for one in received if one.isdecimal() and int(one) % 2 == key]
                assert numbers == sorted(numbers)
        assert sum(together.ended for together, _ in consumers) == 21

    def test_what_runs_when_ordering_is_switched_on_ends_before_its_key_goes_on(self, way: Way) -> None:
        """Whether it was answered or not: what is out comes again, and must wait for its turn."""
        subscription = self.subscribe()
        received: list[str] = []
        go_on = [threading.Event() for _ in range(3)]

        async def handle(message: Message) -> None:
            received.append(text(message))
            if len(received) == 1:
                await way.answer(message.ack())
            if len(received) <= 3:
                await way.set(go_on[int(text(message))])
            message.ack()

        self.handle(way, subscription, handle)
        self.publish("0", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: len(received) == 3)
        self.change(enable_message_ordering=True, max_outstanding_per_key=10)
        self.publish("3", key="k")
        for event in go_on:
            self.assert_never(lambda: len(received) > 3)
            event.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received[3:] == ["1", "2", "3"]

    @pytest.mark.parametrize("window", [1, 10])
    def test_what_runs_when_the_window_changes_ends_before_its_key_goes_on(self, way: Way, window: int) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=window)
        received: list[tuple[str, int]] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            await way.set(go_on)
            message.ack()

        self.handle(way, subscription, handle)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: received)
        self.change(max_outstanding_per_key=5)
        self.publish("other", key="other")
        self.wait_until(lambda: len(received) == 2)
        self.assert_never(lambda: len(received) > 2)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [("1", 1), ("other", 1), ("1", 1), ("2", 1), ("3", 1)]

    def test_what_was_not_begun_when_the_rules_change_is_begun_by_one_consumer_only(self, way: Way) -> None:
        first = self.subscribe_ordered(max_outstanding_per_key=10)
        received: list[str] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            await way.set(go_on)
            message.ack()

        self.publish("1", "2", "3", key="k")
        self.handle(way, first, handle)
        self.wait_until(lambda: received)
        self.change(enable_message_ordering=False, max_outstanding_per_key=1)
        self.wait_until(lambda: len(received) == 4)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert sorted(received) == ["1", "1", "2", "3"]

    def test_ordering_that_is_switched_off_is_followed(self, way: Way) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=10)
        together, go_on = Together(), threading.Event()

        async def handle(message: Message) -> None:
            together.begin()
            await way.set(go_on)
            together.end()
            message.ack()

        self.handle(way, subscription, handle)
        self.change(enable_message_ordering=False, max_outstanding_per_key=1)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: together.now == 3)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)

    def test_flow_control_is_followed(self, way: Way) -> None:
        subscription = self.subscribe(flow_control={"max_messages": 1})
        together, go_on = Together(), threading.Event()

        async def handle(message: Message) -> None:
            together.begin()
            await way.set(go_on)
            together.end()
            message.ack()

        self.handle(way, subscription, handle)
        self.publish(*(f"{number}" for number in range(6)))
        self.wait_until(lambda: together.now == 1)
        self.change(flow_control={"max_messages": 3})
        self.wait_until(lambda: together.now == 3)
        self.assert_never(lambda: together.now > 3)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)

    def handle_one_after_the_other(self, way: Way, subscription: Subscription) -> tuple[Together, list[str]]:
        together, received = Together(), list[str]()

        async def handle(message: Message) -> None:
            together.begin()
            received.append(text(message))
            await way.pause()
            together.end()
            message.ack()

        self.handle(way, subscription, handle)
        return together, received


class DeletedAndMadeAnew(HandlersCase):
    """A subscription of the same name is another one, and its messages are not for those of the first."""

    def make_anew(self) -> Subscription:
        result(self.pubsub.subscription("worker").delete())
        result(self.pubsub.topic("orders").delete())
        result(self.pubsub.topic("orders").create())
        return result(self.pubsub.topic("orders").subscription("worker").create(enable_message_ordering=True))

    def assert_untouched(self, successor: Subscription) -> None:
        [first_id, _] = self.publish("1", "2", key="k")
        [message] = result(successor.pull(10))
        assert (message.id, text(message), message.delivery_attempt) == (first_id, "1", 1)
        result(message.ack())
        assert texts(self.consume(1)) == ["2"]

    @pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
    def test_a_consumer_of_the_first_is_told_and_ends(self, way: Way, busy: bool) -> None:
        subscription = self.subscribe(flow_control={"max_messages": 1}, ack_deadline=600)
        told: list[object] = []
        received: list[str] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            await way.set(go_on)
            message.ack()

        subscription.on("error", told.append).on("close", lambda: told.append("close"))
        self.handle(way, subscription, handle)
        if busy:
            self.publish("x", "y")
            self.wait_until(lambda: received == ["x"])
        successor = self.make_anew()
        go_on.set()
        self.wait_until(lambda: told and told[-1] == "close")
        assert [type(one) for one in told] == [SubscriptionNotFound, str]
        self.assert_untouched(successor)
        assert received == ["x"] * busy
        result(subscription.close())

    def test_a_loop_over_the_first_ends(self) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        def loop() -> None:
            for message in subscription:
                received.append(text(message))
                message.ack()

        looping = self.in_background(loop)
        self.publish("x")
        self.wait_until(lambda: received)
        successor = self.make_anew()
        with pytest.raises(SubscriptionNotFound, match="worker"):
            looping.result(PATIENCE_SECONDS)
        self.assert_untouched(successor)

    def test_a_consumer_may_be_opened_on_the_second(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(message.id)
            message.ack()

        subscription.on("error", lambda _: None)
        self.handle(way, subscription, handle)
        self.make_anew()
        way.result(subscription.close())
        way.open(subscription)
        ids = self.publish("1", "2", key="k")
        self.wait_until(lambda: received == ids)
