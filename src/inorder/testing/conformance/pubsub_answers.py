"""Answers and leases: which answer counts, for how long a message is kept, and when it comes again."""

from __future__ import annotations

import sys
import threading

import pytest

from inorder.errors import FailedPrecondition, InvalidAckId, InvalidArgument
from inorder.message import Message
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, Way, result, text, texts
from inorder.testing.conformance.pubsub_handlers import HandlersCase


class Answers(HandlersCase):
    def test_an_ack_is_answered(self, way: Way) -> None:
        subscription = self.subscribe()
        backlogs: list[int] = []

        async def handle(message: Message) -> None:
            await way.answer(message.ack())
            backlogs.append(self.backlog())

        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: backlogs == [0])

    def test_a_message_can_be_acked_by_another_thread_after_its_handler(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish("1", "2", "3", key="k")
        for number in (1, 2, 3):
            self.wait_until(lambda number=number: len(received) == number)  # type: ignore[misc]
            acked = self.in_background(lambda: result(received[-1].ack()))
            assert acked.result(PATIENCE_SECONDS) is None
        assert texts(received) == ["1", "2", "3"]
        assert self.backlog() == 0

    @pytest.mark.parametrize("window", [1, 5])
    def test_a_message_can_be_nacked_by_another_thread_after_its_handler(self, way: Way, window: int) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=window)
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: received)
        result(received[0].nack())
        self.wait_until(lambda: len(received) == 2)
        result(received[1].ack())
        self.wait_until(lambda: len(received) == 3)
        assert [(text(m), m.delivery_attempt) for m in received] == [("1", 1), ("1", 2), ("2", 1)]

    def test_the_first_answer_wins(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        received: list[tuple[str, int]] = []

        async def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            if message.delivery_attempt == 1 and text(message) == "nack first":
                answers = [message.nack(), message.ack(), message.nack(), message.modify_ack_deadline(60)]
            else:
                answers = [message.ack(), message.nack(), message.ack(), message.modify_ack_deadline(0)]
            for answer in answers:
                await way.answer(answer)

        errors: list[BaseException] = []
        subscription.on("error", errors.append)
        self.handle(way, subscription, handle)
        self.publish("ack first", "nack first", "last", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [("ack first", 1), ("nack first", 1), ("nack first", 2), ("last", 1)]
        assert errors == []

    @pytest.mark.parametrize("pulled", [False, True], ids=["handled", "pulled"])
    def test_the_first_answer_wins_between_threads(self, way: Way, pulled: bool) -> None:
        """Whatever each of them says: they get one answer, and it is true."""
        subscription = self.subscribe()
        received: list[Message] = []

        def race(message: Message) -> None:
            """Several threads ack at once; the one that runs is often taken off between two steps."""
            barrier = threading.Barrier(4)

            def answer() -> Pending[None]:
                barrier.wait(PATIENCE_SECONDS)
                return message.ack()

            for answered in [self.in_background(answer) for _ in range(4)]:
                result(answered.result(PATIENCE_SECONDS))

        if not pulled:
            self.handle(way, subscription, received.append)
        result(self.pubsub.topic("orders").publish_many(Message(b"%d" % number) for number in range(100)))
        if pulled:
            received += self.pull()
        self.wait_until(lambda: len(received) == 100)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for message in received:
                race(message)
        finally:
            sys.setswitchinterval(interval)
        assert self.backlog() == 0

    def test_a_deadline_of_zero_is_a_nack(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                await way.answer(message.modify_ack_deadline(0))
            message.ack()  # too late the first time

        self.handle(way, subscription, handle)
        self.publish("x", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        assert attempts == [1, 2]

    @pytest.mark.parametrize("seconds", [-1, 601, float("nan"), False, True])
    def test_a_deadline_that_cannot_be_is_refused(self, way: Way, seconds: float) -> None:
        subscription = self.subscribe()
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish("x")
        self.wait_until(lambda: received)
        with pytest.raises(InvalidArgument, match="600"):
            way.result(received[0].modify_ack_deadline(seconds))
        way.result(received[0].ack())

    def test_a_message_that_was_not_delivered_cannot_be_answered(self) -> None:
        for answer in (Message(b"x").ack, Message(b"x").nack, lambda: Message(b"x").modify_ack_deadline(10)):
            with pytest.raises(FailedPrecondition, match="never delivered"):
                answer()


class Leases(HandlersCase):
    def test_a_message_without_an_answer_comes_again_after_its_deadline(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline)
        received: list[tuple[str, int]] = []
        times: list[float] = [self.now()]

        def handle(message: Message) -> None:
            times.append(self.now())
            received.append((text(message), message.delivery_attempt))
            if message.delivery_attempt == 2 or text(message) == "2":
                message.ack()

        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: ("2", 1) in received)
        assert received == [("1", 1), ("1", 2), ("2", 1)]
        assert times[2] - times[0] >= self.short_deadline

    def test_a_message_without_an_answer_makes_room_when_it_comes_again(self, way: Way) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline, flow_control={"max_messages": 1})
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 2:
                message.ack()

        self.handle(way, subscription, handle)
        self.publish("x")
        self.wait_until(lambda: self.backlog() == 0)
        assert attempts == [1, 2]

    def test_a_message_is_kept_while_its_handler_runs(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.kept_deadline)
        received: list[tuple[str, int]] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            if text(message) == "1":
                await way.set(go_on)
            await way.answer(message.ack())

        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: received)
        self.assert_never(lambda: len(received) > 1, 1.5 * self.kept_deadline)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [("1", 1), ("2", 1)]

    def test_messages_are_kept_while_they_wait_for_their_turn(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.kept_deadline, max_outstanding_per_key=10)
        received: list[tuple[str, int]] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append((text(message), message.delivery_attempt))
            if text(message) == "1":
                await way.set(go_on)
            message.ack()

        self.publish("1", "2", "3", "4", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(lambda: received)
        self.assert_never(lambda: len(received) > 1, 1.5 * self.kept_deadline)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert received == [("1", 1), ("2", 1), ("3", 1), ("4", 1)]

    def test_a_message_is_kept_for_as_long_as_its_handler_asks(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.kept_deadline, max_outstanding_per_key=10)
        received: list[Message] = []
        asked, go_on = threading.Event(), threading.Event()

        async def handle(message: Message) -> None:
            received.append(message)
            if text(message) == "1":
                await way.answer(message.modify_ack_deadline(60))
                asked.set()
                await way.set(go_on)  # long enough for our own extension not to shorten it
            else:
                message.ack()

        self.publish("1", "2", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(asked.is_set)
        self.pass_time(0.7 * self.kept_deadline)
        go_on.set()
        self.assert_never(lambda: len(received) > 1, 1.5 * self.kept_deadline)
        way.result(received[0].ack())
        self.wait_until(lambda: self.backlog() == 0)
        assert [(text(m), m.delivery_attempt) for m in received] == [("1", 1), ("2", 1)]

    def test_a_handler_may_ask_for_less(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            if message.delivery_attempt == 1:
                await way.answer(message.modify_ack_deadline(0.02))
            else:
                message.ack()

        self.handle(way, subscription, handle)
        self.publish("1", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        assert attempts == [1, 2]

    def test_a_late_ack_fails_and_acks_nobody_elses_delivery(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline)
        received: list[Message] = []
        go_on = threading.Event()

        async def handle(message: Message) -> None:
            received.append(message)
            if message.delivery_attempt == 2:
                await way.set(go_on)
                message.nack()
            elif message.delivery_attempt == 3:
                message.ack()

        self.handle(way, subscription, handle)
        self.publish("x", key="k")
        self.wait_until(lambda: len(received) == 2)
        late = received[0]
        with pytest.raises(InvalidAckId, match=late.ack_id) as refused:
            way.result(late.ack())
        assert refused.value.code == 3
        with pytest.raises(InvalidAckId):  # the first answer it gave
            way.result(late.nack())
        assert self.backlog() == 1
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert [message.delivery_attempt for message in received] == [1, 2, 3]

    def test_a_late_deadline_fails(self, way: Way) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline)
        received: list[Message] = []
        self.handle(way, subscription, received.append)
        self.publish("x")
        self.wait_until(lambda: len(received) == 2)
        with pytest.raises(InvalidAckId):
            way.result(received[0].modify_ack_deadline(60))

    @pytest.mark.parametrize("window", [1, 20])
    def test_a_key_goes_on_without_waiting_for_any_deadline(self, way: Way, window: int) -> None:
        subscription = self.subscribe_ordered(ack_deadline=600, max_outstanding_per_key=window)
        received: list[str] = []

        async def handle(message: Message) -> None:
            await way.pause()
            received.append(text(message))
            if text(message) == "3" and message.delivery_attempt == 1:
                message.nack()
            else:
                message.ack()

        self.publish(*(f"{number}" for number in range(10)), key="k")
        self.handle(way, subscription, handle)
        self.wait_until(lambda: self.backlog() == 0)
        assert received == ["0", "1", "2", "3", *(f"{number}" for number in range(3, 10))]

    @pytest.mark.parametrize("window", [1, 20])
    def test_a_key_goes_on_at_once_when_another_thread_acks(self, way: Way, window: int) -> None:
        subscription = self.subscribe_ordered(ack_deadline=600, max_outstanding_per_key=window)
        received: list[Message] = []
        self.publish(*(f"{number}" for number in range(5)), key="k")
        self.handle(way, subscription, received.append)
        for number in range(5):
            self.wait_until(lambda number=number: len(received) == number + 1)  # type: ignore[misc]
            result(received[number].ack())
        assert texts(received) == ["0", "1", "2", "3", "4"]

    def test_what_was_out_behind_a_failed_message_is_not_handled_before_it(self, way: Way) -> None:
        """With a window, a consumer holds the next ones of a key already: they go back with the one that failed."""
        subscription = self.subscribe_ordered(max_outstanding_per_key=10)
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            if text(message) == "2" and message.delivery_attempt < 3:
                message.nack()
            else:
                message.ack()

        self.publish("1", "2", "3", "4", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(lambda: self.backlog() == 0)
        assert received == ["1", "2", "2", "2", "3", "4"]

    def test_what_was_out_behind_a_message_without_an_answer_is_not_handled_before_it(self, way: Way) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline, max_outstanding_per_key=10)
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            if text(message) != "2" or message.delivery_attempt > 1:
                message.ack()

        self.publish("1", "2", "3", "4", key="k")
        self.handle(way, subscription, handle)
        self.wait_until(lambda: self.backlog() == 0)
        assert received == ["1", "2", "2", "3", "4"]
