"""Closing: what runs is finished, the rest goes back at once and is not blamed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inorder.client.pubsub import PubSub
from inorder.errors import Closed, FailedPrecondition, InvalidAckId, KeyPaused, Unavailable
from inorder.message import Message
from inorder.options import Batching
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, Wait, Way, result, text, texts
from inorder.testing.conformance.pubsub_handlers import HandlersCase
from inorder.testing.conformance.pubsub_ordering import Together


class Closing(HandlersCase):
    def test_closing_finishes_what_runs(self, way: Way) -> None:
        subscription = self.subscribe()
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            await way.answer(message.ack())

        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = subscription.close()
        self.assert_never(closed.done)
        go_on.set()
        way.result(closed)
        assert self.backlog() == 0

    def test_nothing_is_begun_after_closing(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        way.result(subscription.close())
        self.publish("x")
        self.assert_never(lambda: received)
        assert texts(self.pull()) == ["x"]

    def test_what_was_not_begun_goes_back_at_once_and_is_not_blamed(self, way: Way) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=10)
        received: list[str] = []
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            received.append(text(message))
            running.set()
            await way.set(go_on)
            message.ack()

        self.publish("1", "2", "3", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(running.is_set)
        closed = subscription.close()
        assert self.pull() == []  # the rest of the key waits for the one that runs
        go_on.set()
        way.result(closed)
        assert [(text(m), m.delivery_attempt) for m in self.consume(2)] == [("2", 1), ("3", 1)]
        assert received == ["1"]

    def test_what_was_handled_but_not_answered_goes_back_at_once_and_is_not_blamed(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish_by_letter("a1", "a2", "b1")
        self.wait_until(lambda: len(received) == 2)
        way.result(subscription.close())
        pulled = self.pull()
        assert sorted(texts(pulled)) == ["a1", "b1"]
        assert [message.delivery_attempt for message in pulled] == [1, 1]
        with pytest.raises(InvalidAckId):
            way.result(received[0].ack())
        assert self.backlog() == 3

    def test_closing_is_told_once_and_last(self, way: Way) -> None:
        subscription = self.subscribe()
        told: list[str] = []
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            message.ack()
            told.append("handled")

        async def listen() -> None:
            await asyncio.sleep(0)
            told.append("closed, awaited")

        subscription.on("close", lambda: told.append("closed")).on("close", listen)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = [subscription.close(), subscription.close()]
        go_on.set()
        for pending in closed:
            way.result(pending)
        assert told == ["handled", "closed", "closed, awaited"]
        way.result(subscription.close())
        assert len(told) == 3

    def test_a_listener_that_fails_does_not_keep_it_open(self, way: Way) -> None:
        subscription = self.subscribe()

        def fail() -> None:
            raise RuntimeError("a bad listener")

        async def fail_later() -> None:
            raise RuntimeError("another bad listener")

        subscription.on("close", fail).on("close", fail_later)
        self.handle(way, subscription, lambda message: message.ack())
        way.result(subscription.close())

    def test_what_is_not_open_can_be_closed(self, wait: Wait) -> None:
        subscription = self.subscribe()
        assert wait(subscription.close()) is None
        assert wait(subscription.close()) is None

    def test_a_handler_may_close(self, way: Way) -> None:
        """Closing waits for handlers, so the one that closes is not made to wait for itself."""
        subscription = self.subscribe_ordered()
        told: list[str] = []

        async def handle(message: Message) -> None:
            told.append(text(message))
            await way.answer(subscription.close())
            await way.answer(message.ack())
            told.append("acked")

        subscription.on("close", lambda: told.append("closed"))
        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: "closed" in told)
        assert told == ["1", "acked", "closed"]
        assert texts(self.pull()) == ["2"]
        way.result(subscription.close())

    def test_handlers_may_close_together(self, way: Way) -> None:
        subscription = self.subscribe()
        together, all_here = Together(), threading.Event()
        told: list[str] = []

        async def handle(message: Message) -> None:
            if together.begin() == 3:
                all_here.set()
            await way.set(all_here)
            await way.answer(subscription.close())
            message.ack()
            together.end()

        subscription.on("close", lambda: told.append("closed"))
        self.handle(way, subscription, handle)
        self.publish("1", "2", "3")
        self.wait_until(lambda: told)
        assert together.ended == 3
        way.result(subscription.close())
        assert self.backlog() == 0

    @pytest.mark.parametrize("event", ["error", "close"])
    def test_a_listener_may_close(self, way: Way, event: str) -> None:
        subscription = self.subscribe()
        told: list[str] = []

        async def listen(*_: object) -> None:
            await asyncio.wait_for(subscription.close(), PATIENCE_SECONDS)
            told.append(event)

        def handle(message: Message) -> None:
            message.ack()
            raise ValueError(text(message))

        subscription.on(event, listen)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: self.backlog() == 0)
        way.result(subscription.close())
        assert told == [event]

    def test_nothing_is_begun_after_a_handler_on_a_loop_has_closed(self) -> None:
        subscription = self.subscribe()
        self.publish("1", "2", "3", "4")
        received: list[str] = []

        async def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()
            subscription.close()

        subscription.on("message", handle).open()
        self.wait_until(lambda: received)
        assert [(text(m), m.delivery_attempt) for m in self.consume(3)] == [("2", 1), ("3", 1), ("4", 1)]
        assert received == ["1"]

    def test_it_can_be_opened_again(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        received: list[str] = []
        told: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        subscription.on("close", lambda: told.append("closed"))
        self.handle(way, subscription, handle)
        for number in range(3):
            self.publish(f"{number}", key="k")
            self.wait_until(lambda number=number: len(received) == number + 1)  # type: ignore[misc]
            way.result(subscription.close())
            assert told == ["closed"] * (number + 1)
            way.open(subscription)
        assert received == ["0", "1", "2"]

    def test_it_cannot_be_opened_again_before_it_is_closed(self, way: Way) -> None:
        subscription = self.subscribe()
        running, go_on = self.handle_until_told(way, subscription)
        with pytest.raises(FailedPrecondition, match="'worker' is open already"):
            way.open(subscription)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = subscription.close()
        with pytest.raises(FailedPrecondition):
            way.open(subscription)
        go_on.set()
        way.result(closed)
        way.open(subscription)

    def test_others_get_what_goes_back(self, way: Way) -> None:
        """A consumer that is waiting for messages is told about those that another one returns."""
        first = self.subscribe_ordered(max_outstanding_per_key=10)
        second = self.pubsub.subscription("worker")
        received: list[str] = []
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            message.ack()

        def record(message: Message) -> None:
            received.append(text(message))
            message.ack()

        self.publish("1", "2", "3", key="k")
        self.handle(way, first, handle)
        self.wait_until(running.is_set)
        self.handle(way, second, record)
        closed = first.close()
        go_on.set()
        way.result(closed)
        self.wait_until(lambda: received == ["2", "3"])


class ClosingAll(HandlersCase):
    def test_closing_all_closes_subscriptions(self, way: Way) -> None:
        subscription = self.subscribe()
        told: list[str] = []
        running, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            await way.answer(message.ack())
            told.append("acked")

        subscription.on("close", lambda: told.append("closed"))
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = self.pubsub.close()
        self.assert_never(closed.done)
        go_on.set()
        way.result(closed)
        assert told == ["acked", "closed"]

    def test_closing_all_waits_for_a_subscription_that_is_closing(self, way: Way) -> None:
        subscription = self.subscribe()
        running, go_on = threading.Event(), threading.Event()
        acked: list[str] = []

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            await way.answer(message.ack())
            acked.append(text(message))

        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        subscription.close()
        closed = self.pubsub.close()
        self.assert_never(closed.done)
        go_on.set()
        way.result(closed)
        assert acked == ["x"]

    def test_a_handler_that_still_runs_may_publish(self, way: Way) -> None:
        subscription = self.subscribe()
        self.topic("onward")
        running, go_on = threading.Event(), threading.Event()
        published: list[str] = []

        async def handle(message: Message) -> None:
            running.set()
            await way.set(go_on)
            published.append(await way.answer(self.pubsub.topic("onward").publish_message(message.data)))
            message.ack()

        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = self.pubsub.close()
        go_on.set()
        way.result(closed)
        assert len(published) == 1

    def test_closing_all_sends_what_is_collected(self, wait: Wait) -> None:
        topic = self.topic()
        topic.set_publish_options(batching=Batching(max_milliseconds=60_000))
        pending = topic.publish_message(b"x", ordering_key="k")
        wait(self.pubsub.close())
        assert isinstance(pending.result(), str)

    def test_closing_all_does_not_wait_for_room(self, wait: Wait) -> None:
        """Whoever could have made room may be closed already: what waits for it is given up."""
        self.subscribe(queue_limits={"max_messages": 1, "when_full": "block"})
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(flow_control={"max_messages": 3})
        stored = topic.publish_message(b"stored", ordering_key="k")
        given_up = [topic.publish_message(b"x", ordering_key=key) for key in ("k", "k", None)]
        waiting = self.in_background(lambda: topic.publish_message(b"beyond flow control"))
        self.assert_never(lambda: waiting.done() or any(pending.done() for pending in given_up))
        wait(self.pubsub.close())
        assert isinstance(stored.result(), str)
        given_up.append(waiting.result(PATIENCE_SECONDS))
        errors = [pending.exception(PATIENCE_SECONDS) for pending in given_up]
        assert [type(error) for error in (errors[0], *errors[2:])] == [Closed, Closed, Closed]
        # The second of the key may have been in the request of the first, or have waited behind it.
        assert isinstance(errors[1], Closed | KeyPaused)

    def test_closing_all_twice_is_closing_it_once(self, way: Way) -> None:
        subscription = self.subscribe()
        running, go_on = self.handle_until_told(way, subscription)
        self.publish("x")
        self.wait_until(running.is_set)
        closed = [self.pubsub.close(), self.pubsub.close()]
        self.assert_never(lambda: any(pending.done() for pending in closed))
        go_on.set()
        for pending in closed:
            way.result(pending)

    def test_a_handler_may_close_all(self, way: Way) -> None:
        """It goes on when the rest is told to close, and what it still does counts."""
        subscription = self.subscribe()
        self.topic("onward")
        told: list[str] = []

        async def handle(message: Message) -> None:
            await way.answer(self.pubsub.close())
            await way.answer(self.pubsub.topic("onward").publish_message(message.data))
            await way.answer(message.ack())
            told.append("acked")

        errors: list[BaseException] = []
        subscription.on("close", lambda: told.append("closed")).on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: "closed" in told)
        assert (told, errors) == (["acked", "closed"], [])
        way.result(self.pubsub.close())

    def test_nothing_is_asked_of_the_broker_after_closing_all(self, wait: Wait) -> None:
        subscription = self.subscribe()
        topic = self.pubsub.topic("orders")
        wait(self.pubsub.close())
        calls: list[Callable[[], Pending[Any]]] = [
            *(topic.create, topic.exists, topic.delete, topic.metadata, topic.subscriptions),
            *(subscription.create, subscription.exists, subscription.delete, subscription.metadata, subscription.pull),
            *(
                subscription.blocked_keys,
                subscription.unacked,
                subscription.metrics,
                self.pubsub.topics,
                self.pubsub.subscriptions,
            ),
            *(lambda: subscription.seek(position=0), lambda: subscription.set_options(ack_deadline=20)),
            *(lambda: subscription.resume_key("k"), lambda: subscription.skip("k")),
        ]
        for call in calls:
            with pytest.raises(Closed, match="closed"):
                wait(call())

    def test_nothing_works_after_closing_all(self, wait: Wait) -> None:
        subscription = self.subscribe()
        subscription.on("message", print)
        topic = self.pubsub.topic("orders")
        wait(self.pubsub.close())
        for publish in (topic.publish_message, self.pubsub.topic("orders").publish_message):
            with pytest.raises(Closed) as refused:
                wait(publish(b"x", ordering_key="k"))
            assert refused.value.code == Unavailable.code == 14
        with pytest.raises(Closed):
            wait(self.pubsub.topic("another").publish_many([Message(b"x")]))
        with pytest.raises(Closed):
            subscription.open()
        with pytest.raises(Closed):
            next(iter(subscription))

    def test_with_closes(self) -> None:
        topic = self.topic()
        topic.set_publish_options(batching=Batching(max_milliseconds=60_000))
        with self.pubsub as pubsub:
            assert isinstance(pubsub, PubSub)
            pending = topic.publish_message(b"x")
        assert pending.done()
        with pytest.raises(Closed):
            result(topic.publish_message(b"x"))

    def test_async_with_closes(self) -> None:
        subscription = self.subscribe()
        handled: list[str] = []

        async def main() -> None:
            running = asyncio.Event()

            async def handle(message: Message) -> None:
                running.set()
                await asyncio.sleep(0.001)
                await message.ack()
                handled.append(text(message))

            async with self.pubsub as pubsub:
                subscription.on("message", handle).open()
                await pubsub.topic("orders").publish_message(b"x")
                await running.wait()

        asyncio.run(main())
        assert handled == ["x"]
        with pytest.raises(Closed):
            result(self.pubsub.topic("orders").publish_message(b"x"))

    def test_with_on_a_loop_does_not_wait_for_what_needs_the_loop(self) -> None:
        """It would wait for ever. It goes on closing all the same."""
        subscription = self.subscribe()
        told: list[str] = []

        async def main() -> None:
            running, go_on = asyncio.Event(), asyncio.Event()

            async def handle(message: Message) -> None:
                running.set()
                await go_on.wait()
                await message.ack()
                told.append("acked")

            async def use() -> None:
                with self.pubsub as pubsub:
                    subscription.on("message", handle).on("close", lambda: told.append("closed")).open()
                    await pubsub.topic("orders").publish_message(b"x")
                    await running.wait()

            with pytest.raises(FailedPrecondition, match="async with"):
                await use()
            go_on.set()
            await asyncio.wait_for(self.pubsub.close(), PATIENCE_SECONDS)

        asyncio.run(main())
        assert told == ["acked", "closed"]

    def test_with_on_a_loop_is_fine_where_nothing_needs_the_loop(self) -> None:
        subscription = self.subscribe()

        async def main() -> None:
            with self.pubsub as pubsub:
                subscription.on("message", lambda message: message.ack()).open()
                await pubsub.topic("orders").publish_message(b"x")

        asyncio.run(main())

    def test_an_error_inside_with_is_not_swallowed(self) -> None:
        with pytest.raises(ZeroDivisionError), self.pubsub:
            raise ZeroDivisionError

        async def main() -> None:
            async with self.pubsub:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())


class LoopsThatEndEarly(HandlersCase):
    """`asyncio.run` may end before somebody has closed what was opened in it."""

    def test_what_nobody_will_handle_goes_back(self) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=10)
        self.publish("1", "2", "3", key="k")
        cancelled: list[str] = []

        async def main() -> None:
            running = asyncio.Event()

            async def handle(message: Message) -> None:
                running.set()
                try:
                    await asyncio.sleep(PATIENCE_SECONDS)
                except asyncio.CancelledError:
                    cancelled.append(text(message))
                    raise

            subscription.on("message", handle).open()
            await running.wait()

        asyncio.run(main())
        assert cancelled == ["1"]
        assert [(text(m), m.delivery_attempt) for m in self.consume(3)] == [("1", 2), ("2", 1), ("3", 1)]
        result(subscription.close())

    def test_what_was_opened_can_be_closed_afterwards(self) -> None:
        subscription = self.subscribe()
        told: list[str] = []

        async def handle(message: Message) -> None:
            message.ack()

        async def main() -> None:
            subscription.on("message", handle).on("close", lambda: told.append("closed")).open()
            await asyncio.sleep(0)

        asyncio.run(main())
        self.publish("x")
        result(subscription.close())
        assert told == ["closed"]
        assert texts(self.consume(1)) == ["x"]

    @pytest.mark.parametrize("thread", ["its own", "another"])
    def test_a_loop_that_is_stopped_keeps_nobody_waiting(self, thread: str) -> None:
        subscription = self.subscribe_ordered()
        told: list[str] = []
        self.publish("1", "2", key="k")

        async def handle(_: Message) -> None:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(PATIENCE_SECONDS)

        async def open_here() -> None:
            subscription.on("message", handle).on("close", lambda: told.append("closed")).open()

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(open_here())
            loop.run_forever()
            if thread == "its own":
                result(subscription.close())
            else:
                self.in_background(lambda: result(subscription.close())).result(PATIENCE_SECONDS)
            assert told == ["closed"]
            assert [(text(m), m.delivery_attempt) for m in self.consume(2)] == [("1", 1), ("2", 1)]
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    def test_what_was_opened_can_be_opened_on_the_next_loop(self) -> None:
        subscription = self.subscribe()
        arrivals: asyncio.Queue[str] = asyncio.Queue()

        async def handle(message: Message) -> None:
            message.ack()
            await arrivals.put(text(message))

        subscription.on("message", handle)

        async def main(data: bytes) -> str:
            subscription.open()
            await self.pubsub.topic("orders").publish_message(data)
            return await arrivals.get()

        assert asyncio.run(main(b"1")) == "1"
        result(subscription.close())
        arrivals = asyncio.Queue()
        assert asyncio.run(main(b"2")) == "2"

    def test_a_late_answer_is_answered(self) -> None:
        subscription = self.subscribe()
        received: list[Message] = []

        async def main() -> None:
            arrived = asyncio.Event()

            async def handle(message: Message) -> None:
                received.append(message)
                arrived.set()

            subscription.on("message", handle).open()
            await self.pubsub.topic("orders").publish_message(b"x")
            await arrived.wait()
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - a handler that is cancelled gives its message back
                await asyncio.sleep(0)

        asyncio.run(main())
        result(received[0].ack())
        assert self.backlog() == 0

    def test_tasks_that_somebody_cancels_do_not_keep_it_open(self) -> None:
        """Programs that end often cancel all tasks of their loop, and then close."""
        subscription = self.subscribe()
        self.publish("1", "2")

        async def main() -> None:
            running = asyncio.Event()

            async def handle(_: Message) -> None:
                running.set()
                await asyncio.sleep(PATIENCE_SECONDS)

            subscription.on("message", handle).open()
            await running.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await subscription.close()

        asyncio.run(main())
        assert sorted(texts(self.consume(2))) == ["1", "2"]
