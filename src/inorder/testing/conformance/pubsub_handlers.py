"""Handlers: where they run, what their end means, and how much they get at once."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inorder.client.subscription import Subscription
from inorder.errors import FailedPrecondition, SubscriptionNotFound
from inorder.message import Message
from inorder.options import FlowControl, RetryPolicy
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import (
    PATIENCE_SECONDS,
    PubSubCase,
    Threads,
    Way,
    result,
    text,
    texts,
)
from inorder.testing.conformance.pubsub_ordering import Together


class HandlersCase(PubSubCase):
    def handle(self, way: Way, subscription: Subscription, function: Callable[[Message], Any]) -> None:
        """Open a subscription with this function as its handler."""
        subscription.on("message", way.handler(function))
        way.open(subscription)

    def handle_until_told(self, way: Way, subscription: Subscription) -> tuple[threading.Event, threading.Event]:
        """Open a subscription with a handler that says that it runs, and acks when it is told to go on."""
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            message.ack()

        self.handle(way, subscription, handle)
        return running, go_on


class Handlers(HandlersCase):
    def test_a_handler_gets_the_message_as_it_was_published(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        message_id = way.result(self.pubsub.topic("orders").publish_message(b"data", {"a": "b"}, "k"))
        self.wait_until(lambda: received)
        [message] = received
        assert (message.id, message.data, dict(message.attributes)) == (message_id, b"data", {"a": "b"})
        assert (message.ordering_key, message.delivery_attempt, message.length) == ("k", 1, 4)
        way.result(message.ack())
        assert self.backlog() == 0

    def test_a_handler_gets_what_was_there_before_it_was_opened(self, way: Way) -> None:
        subscription = self.subscribe()
        self.publish("before")
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.wait_until(lambda: texts(received) == ["before"])

    def test_a_handler_may_be_given_by_a_decorator(self) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        @subscription.on("message")
        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        assert subscription.on("error", print) is subscription
        assert subscription.open() is subscription
        self.publish("x")
        self.wait_until(lambda: received == ["x"])
        assert callable(handle)

    def test_an_async_handler_runs_on_the_loop_that_opened_it(self) -> None:
        subscription = self.subscribe()

        async def main() -> None:
            found: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            async def handle(message: Message) -> None:
                await message.ack()
                found.set_result(asyncio.get_running_loop())

            subscription.on("message", handle).open()
            await self.pubsub.topic("orders").publish_message(b"x")
            assert await found is asyncio.get_running_loop()
            await subscription.close()

        asyncio.run(main())

    def test_a_handler_in_a_thread_keeps_no_loop_waiting(self) -> None:
        subscription = self.subscribe()
        go_on = threading.Event()

        async def main() -> None:
            running = asyncio.Event()
            loop = asyncio.get_running_loop()

            def handle(message: Message) -> None:
                loop.call_soon_threadsafe(running.set)
                assert go_on.wait(PATIENCE_SECONDS)
                message.ack()

            subscription.on("message", handle).open()
            await self.pubsub.topic("orders").publish_message(b"x")
            await running.wait()
            go_on.set()
            await subscription.close()

        asyncio.run(main())
        assert self.backlog() == 0

    @pytest.mark.parametrize("shape", ["partial", "object", "lambda"])
    def test_anything_that_can_be_awaited_is_a_handler(self, shape: str) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            received.append(text(message))
            message.ack()

        class Handler:
            async def __call__(self, message: Message) -> None:
                await handle(message)

        shapes: dict[str, Callable[[Message], Any]] = {
            "partial": functools.partial(handle),
            "object": Handler(),
            "lambda": lambda message: handle(message),
        }
        subscription.on("message", shapes[shape]).open()
        self.publish("x")
        self.wait_until(lambda: received == ["x"])
        self.wait_until(lambda: self.backlog() == 0)

    def test_a_handler_may_publish(self, way: Way) -> None:
        subscription = self.subscribe()
        self.subscribe("next", "next-orders")
        onward = self.pubsub.topic("next-orders")

        async def handle(message: Message) -> None:
            await way.answer(onward.publish_message(message.data.upper()))
            await way.answer(message.ack())

        self.handle(way, subscription, handle)
        self.publish("a", "b", "c")
        assert sorted(texts(self.consume(3, "next"))) == ["A", "B", "C"]
        self.wait_until(lambda: self.backlog() == 0)

    def test_many_messages_are_handled_once_each(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[int] = []

        def handle(message: Message) -> None:
            received.append(int(message.data))
            message.ack()

        self.handle(way, subscription, handle)
        way.result(self.pubsub.topic("orders").publish_many(Message(b"%d" % number) for number in range(1_000)))
        self.wait_until(lambda: len(received) >= 1_000)
        assert sorted(received) == list(range(1_000))
        self.wait_until(lambda: self.backlog() == 0)


class HandlersThatFail(HandlersCase):
    def test_an_exception_is_a_nack_and_an_error(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        received: list[tuple[str, int]] = []
        errors: list[BaseException] = []

        def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            if len(received) == 1:
                raise ValueError("broken")
            message.ack()

        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: len(received) >= 3)
        assert received == [("1", 1), ("1", 2), ("2", 1)]
        assert [repr(error) for error in errors] == ["ValueError('broken')"]

    def test_an_exception_after_the_ack_is_only_an_error(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[Message] = []
        errors: list[BaseException] = []

        def handle(message: Message) -> None:
            received.append(message)
            message.ack()
            raise ValueError("too late")

        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: errors and self.backlog() == 0)
        assert len(received) == 1

    def test_whatever_a_handler_raises_is_a_nack(self, way: Way) -> None:
        """Not only an Exception: neither a thread nor a task of ours ends by it."""
        subscription = self.subscribe_ordered()
        raised: list[BaseException] = [asyncio.CancelledError(), GeneratorExit()]
        if isinstance(way, Threads):
            raised += [SystemExit(1), KeyboardInterrupt()]
        to_raise = list(raised)
        expected = [type(error) for error in raised]
        errors: list[type[BaseException]] = []

        def handle(message: Message) -> None:
            if to_raise:
                raise to_raise.pop(0)
            message.ack()

        subscription.on("error", lambda error: errors.append(type(error)))
        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        assert errors == expected

    def test_an_async_error_listener_is_awaited(self, way: Way) -> None:
        subscription = self.subscribe()
        told: list[str] = []

        async def listen(error: BaseException) -> None:
            await asyncio.sleep(0)
            told.append(str(error))

        def handle(message: Message) -> None:
            message.ack()
            raise ValueError("broken")

        subscription.on("error", listen)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: told == ["broken"])

    def test_every_listener_is_told_even_if_one_of_them_fails(self, way: Way, caplog: pytest.LogCaptureFixture) -> None:
        subscription = self.subscribe()
        told: list[str] = []

        def fail(_: BaseException) -> None:
            raise RuntimeError("a bad listener")

        async def fail_later(_: BaseException) -> None:
            raise RuntimeError("another bad listener")

        def handle(message: Message) -> None:
            message.ack()
            raise ValueError(text(message))

        subscription.on("error", fail).on("error", fail_later).on("error", lambda error: told.append(str(error)))
        self.handle(way, subscription, handle)
        self.publish("1")
        self.publish("2")
        self.wait_until(lambda: sorted(told) == ["1", "2"])
        self.wait_until(lambda: "a bad listener" in caplog.text and "another bad listener" in caplog.text)

    def test_an_error_that_nobody_listens_to_is_logged(self, way: Way, caplog: pytest.LogCaptureFixture) -> None:
        subscription = self.subscribe()

        def handle(message: Message) -> None:
            message.ack()
            raise ValueError("nobody listens")

        with caplog.at_level(logging.ERROR):
            self.handle(way, subscription, handle)
            self.publish("x")
            self.wait_until(lambda: "nobody listens" in caplog.text)

    def test_a_failed_message_waits_for_its_backoff_and_its_key_with_it(self, way: Way) -> None:
        policy = RetryPolicy(minimum_backoff=0.05, maximum_backoff=0.05)
        subscription = self.subscribe_ordered(retry_policy=policy)
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            if text(message) == "1" and message.delivery_attempt == 1:
                raise ValueError("not yet")
            message.ack()

        subscription.on("error", lambda _: None)
        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.publish("free")
        self.wait_until(lambda: "2" in received)
        assert [name for name in received if name != "free"] == ["1", "1", "2"]

    def test_a_problem_of_the_subscription_is_an_error(self, way: Way) -> None:
        """A dead-letter topic that is missing loses nothing, but somebody should know."""
        policy = {"dead_letter_topic": "missing", "max_delivery_attempts": 5}
        subscription = self.subscribe(dead_letter_policy=policy)
        attempts: list[int] = []
        errors: list[BaseException] = []

        def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt < 6:
                message.nack()
            else:
                message.ack()

        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: errors and self.backlog() == 0)
        assert attempts == [1, 2, 3, 4, 5, 6]
        assert isinstance(errors[0], FailedPrecondition)
        assert "Topic not found: missing" in str(errors[0])

    def test_a_subscription_that_is_deleted_ends_its_handlers(self, way: Way) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline)
        told: list[object] = []
        running, go_on = threading.Event(), threading.Event()

        async def handle(_: Message) -> None:
            running.set()
            await way.set(go_on)

        subscription.on("error", told.append).on("close", lambda: told.append("close"))
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        result(self.pubsub.subscription("worker").delete())
        self.wait_until(lambda: told)
        go_on.set()
        self.wait_until(lambda: told[-1] == "close")
        assert [type(one) for one in told] == [SubscriptionNotFound, str]
        result(subscription.close())

    def test_a_subscription_that_is_deleted_while_it_waits_ends_too(self, way: Way) -> None:
        subscription = self.subscribe()
        told: list[object] = []
        acks: list[Pending[None]] = []
        subscription.on("error", told.append).on("close", lambda: told.append("close"))
        self.handle(way, subscription, lambda message: acks.append(message.ack()))
        self.publish("x")
        self.wait_until(lambda: acks and acks[0].done())
        result(self.pubsub.subscription("worker").delete())
        self.wait_until(lambda: told and told[-1] == "close")
        assert [type(one) for one in told] == [SubscriptionNotFound, str]


class SubscriberFlowControl(HandlersCase):
    @pytest.mark.parametrize("limit", [1, 3])
    def test_no_more_messages_are_handled_at_once_than_allowed(self, way: Way, limit: int) -> None:
        subscription = self.subscribe(flow_control=FlowControl(max_messages=limit))
        together = self.handle_together(way, subscription)
        self.publish(*(f"{number}" for number in range(10)))
        self.wait_until(lambda: together.ended == 10)
        assert together.most <= limit

    def test_as_many_messages_as_allowed_are_handled_at_once(self, way: Way) -> None:
        subscription = self.subscribe(flow_control={"max_messages": 3})
        together, go_on = Together(), threading.Event()

        async def handle(message: Message) -> None:
            together.begin()
            await way.set(go_on)
            together.end()
            message.ack()

        self.handle(way, subscription, handle)
        self.publish(*(f"{number}" for number in range(6)))
        self.wait_until(lambda: together.now == 3)
        self.assert_never(lambda: together.now > 3)
        go_on.set()
        self.wait_until(lambda: together.ended == 6)

    def test_a_message_counts_until_it_is_answered(self, way: Way) -> None:
        subscription = self.subscribe(flow_control={"max_messages": 2})
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish("1", "2", "3", "4")
        self.wait_until(lambda: len(received) == 2)
        self.assert_never(lambda: len(received) > 2)
        received[0].ack()
        self.wait_until(lambda: len(received) == 3)
        self.assert_never(lambda: len(received) > 3)
        for _ in range(3):
            received[-1].ack()
            self.wait_until(lambda: len(received) == 4)
        assert sorted(texts(received)) == ["1", "2", "3", "4"]

    def test_no_more_bytes_are_handled_at_once_than_allowed(self, way: Way) -> None:
        subscription = self.subscribe(flow_control={"max_bytes": 100})
        together = self.handle_together(way, subscription)
        self.publish(*("x" * 40 for _ in range(10)))
        self.wait_until(lambda: together.ended == 10)
        assert together.most <= 2

    def test_a_message_larger_than_all_bytes_is_handled_alone(self, way: Way) -> None:
        subscription = self.subscribe_ordered(flow_control={"max_bytes": 100})
        together, sizes = Together(), list[int]()

        async def handle(message: Message) -> None:
            at_once = together.begin()
            sizes.append(message.length)
            await way.pause()
            if message.length > 100:
                assert at_once == together.now == 1
            together.end()
            message.ack()

        errors: list[BaseException] = []
        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        for size, key in ((30, "a"), (30, "b"), (1000, "large"), (30, "c"), (30, "large"), (30, "d")):
            self.publish("x" * size, key=key)
        self.wait_until(lambda: together.ended == 6)
        assert sorted(sizes) == [30, 30, 30, 30, 30, 1000]
        assert errors == []

    def handle_together(self, way: Way, subscription: Subscription) -> Together:
        together = Together()

        async def handle(message: Message) -> None:
            together.begin()
            await way.pause()
            together.end()
            message.ack()

        self.handle(way, subscription, handle)
        return together
