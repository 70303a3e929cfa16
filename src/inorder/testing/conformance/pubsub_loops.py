"""`for message in subscription` and `async for message in subscription`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import TypeAlias, cast

import pytest

from inorder.client.subscription import Batches, ColumnBatches, Subscription
from inorder.errors import FailedPrecondition, InvalidAckId, InvalidArgument, SubscriptionNotFound
from inorder.message import Columns, Gap, Leased, Message
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, PubSubCase, result, text, texts

Body: TypeAlias = Callable[[Message], object]  # of a loop; what it returns, if true, ends the loop
Loop: TypeAlias = Callable[[Subscription, Body], None]


def each(subscription: Subscription, body: Body) -> None:
    """A `for` loop, until its body says so."""
    for message in subscription:
        if body(message):
            break


def each_async(subscription: Subscription, body: Body) -> None:
    """An `async for` loop, until its body says so."""

    async def run() -> None:
        async for message in subscription:
            if body(message):
                break

    asyncio.run(run())


def each_ahead(subscription: Subscription, body: Body) -> None:
    """A `for` loop for which others come while it works on one."""
    for messages in subscription.batches(1, ahead=3):
        if any(map(body, messages)):
            break


class OfColumns:
    """A list of one, as far as a message can do the same."""

    def __init__(self, columns: ColumnBatches, leased: Leased) -> None:
        self._columns = columns
        self._leased = leased
        self.ordering_key = leased.keys[0]
        self.data = leased.data[0]
        self.delivery_attempt = leased.attempts[0]

    def ack(self) -> Pending[None]:
        return self._columns.ack(self._leased)

    def nack(self) -> Pending[None]:
        return self._columns.nack(self._leased)


def each_column(subscription: Subscription, body: Body) -> None:
    """A `for` loop over columns of one message each, of which others come while it works on one."""
    columns = subscription.columns(1, ahead=3)
    for leased in columns:
        if body(cast(Message, OfColumns(columns, leased))):
            break


def each_column_async(subscription: Subscription, body: Body) -> None:
    """An `async for` loop over columns of one message each."""

    async def run() -> None:
        columns = subscription.columns(1)
        async for leased in columns:
            if body(cast(Message, OfColumns(columns, leased))):
                break

    asyncio.run(run())


KINDS = {
    "for": each,
    "async_for": each_async,
    "ahead": each_ahead,
    "columns": each_column,
    "async_columns": each_column_async,
}


class Loops(PubSubCase):
    @pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
    def loop(self, request: pytest.FixtureRequest) -> Loop:
        """Once for each kind of loop."""
        return request.param  # type: ignore[no-any-return]

    def test_a_loop_gets_messages_in_order(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        self.publish(*(f"{number}" for number in range(20)), key="k")
        received: list[str] = []

        def body(message: Message) -> bool:
            received.append(text(message))
            message.ack()
            return len(received) == 20

        loop(subscription, body)
        assert received == [f"{number}" for number in range(20)]
        self.wait_until(lambda: self.backlog() == 0)

    def test_a_loop_waits_for_messages(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        received: list[str] = []

        def body(message: Message) -> bool:
            received.append(text(message))
            message.ack()
            return len(received) == 3

        looping = self.in_background(lambda: loop(subscription, body))
        for number in range(3):
            self.assert_never(lambda: looping.done(), 0.005)
            self.publish(f"{number}", key="k")
            self.wait_until(lambda number=number: len(received) == number + 1)  # type: ignore[misc]
        looping.result(PATIENCE_SECONDS)

    @pytest.mark.parametrize("loop", [each, each_async, each_column_async], ids=["for", "async_for", "async_columns"])
    @pytest.mark.parametrize("window", [0, 1, 10])
    def test_what_a_loop_did_not_give_is_there_at_once_when_it_is_left(self, loop: Loop, window: int) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=window) if window else self.subscribe()
        self.publish("1", "2", "3", key="k")

        def body(message: Message) -> bool:
            result(message.ack())
            return True

        loop(subscription, body)
        [message, *_] = result(subscription.pull(10))
        assert (text(message), message.delivery_attempt) == ("2", 1)

    @pytest.mark.parametrize("loop", [each, each_async, each_column_async], ids=["for", "async_for", "async_columns"])
    def test_what_a_loop_did_not_give_is_there_at_once_after_an_error(self, loop: Loop) -> None:
        subscription = self.subscribe()
        self.publish("1", "2", "3")

        def body(_: Message) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            loop(subscription, body)
        assert [(text(m), m.delivery_attempt) for m in self.pull()] == [("2", 1), ("3", 1)]

    @pytest.mark.parametrize("loop", [each, each_async, each_column_async], ids=["for", "async_for", "async_columns"])
    def test_a_loop_leaves_to_others_what_it_does_not_work_on(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        self.publish_by_letter(*"abcdefghij")
        received: list[str] = []
        go_on = threading.Event()

        def body(message: Message) -> bool:
            received.append(text(message))
            assert go_on.wait(PATIENCE_SECONDS)
            message.ack()
            return True

        looping = self.in_background(lambda: loop(subscription, body))
        self.wait_until(lambda: received)
        assert [*received, *texts(self.pull())] == list("abcdefghij")
        go_on.set()
        looping.result(PATIENCE_SECONDS)

    def test_no_more_lists_come_ahead_than_were_asked_for_and_they_come_without_a_wait(self) -> None:
        subscription = self.subscribe_ordered()
        self.publish_by_letter(*"abcdefghij")
        lists = iter(batches := subscription.batches(2, ahead=2))
        received = [next(lists)]
        self.wait_until(lambda: result(subscription.metrics()).outstanding_messages == 6)
        assert texts(self.pull()) == list("ghij")
        for _ in range(2):
            result(batches.ack(received[-1]))
            received.append(next(lists))
        assert [texts(messages) for messages in received] == [["a", "b"], ["c", "d"], ["e", "f"]]
        assert {message.delivery_attempt for messages in received for message in messages} == {1}

    @pytest.mark.parametrize("window", [0, 1, 10])
    def test_what_came_ahead_goes_back_when_the_loop_is_left(self, window: int) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=window) if window else self.subscribe()
        self.publish("1", "2", "3", key="k")
        each_ahead(subscription, lambda message: result(message.ack()) is None)
        left: list[Message] = []

        def pull() -> bool:
            left.extend(self.pull())
            return bool(left)

        self.wait_until(pull)
        assert (text(left[0]), left[0].delivery_attempt) == ("2", 1)

    @pytest.mark.parametrize("ahead", [0, 2])
    @pytest.mark.parametrize("window", [1, 10])
    def test_after_a_message_that_failed_a_list_begins_with_it(self, window: int, ahead: int) -> None:
        seen = self.in_lists(window, ahead, lambda batches, message: message.nack())
        assert [found for found, _ in seen] == [*"122345567889"]

    @pytest.mark.parametrize("ahead", [0, 2])
    @pytest.mark.parametrize("window", [1, 10])
    def test_after_a_message_that_was_given_back_a_list_begins_with_it(self, window: int, ahead: int) -> None:
        seen = self.in_lists(window, ahead, lambda batches, message: batches.give_back([message]))
        assert seen == [(found, 1) for found in "122345567889"]

    def in_lists(self, window: int, ahead: int, give_up: Callable[[Batches, Message], object]) -> list[tuple[str, int]]:
        """Texts and attempts of nine messages of a key, of which some are given up when they come first."""
        subscription = self.subscribe_ordered(max_outstanding_per_key=window)
        self.publish(*"123456789", key="k")
        seen: list[tuple[str, int]] = []
        batches = subscription.batches(2, one_per_key=window == 1, ahead=ahead)
        for messages in batches:
            for message in messages:
                again = text(message) in [before for before, _ in seen]
                seen.append((text(message), message.delivery_attempt))
                if text(message) in "258" and not again:
                    give_up(batches, message)
                    break  # what is behind it in this list is taken back with it
                result(batches.ack([message]))
            if seen[-1][0] == "9":
                break
        return seen

    def test_the_message_at_which_a_loop_was_left_can_still_be_acked(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", "2", key="k")
        last: list[Message] = []

        def body(message: Message) -> bool:
            last.append(message)
            return True

        loop(subscription, body)
        self.assert_never(lambda: self.pull())
        result(last[0].ack())
        assert texts(self.consume(1)) == ["2"]

    def test_a_message_that_nobody_answers_comes_again(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.short_deadline)
        self.publish("1", "2", key="k")
        received: list[tuple[str, int]] = []

        def body(message: Message) -> bool:
            received.append((text(message), message.delivery_attempt))
            if received != [("1", 1)]:
                message.ack()
            return len(received) == 3

        looping = self.in_background(lambda: loop(subscription, body))
        self.wait_until(looping.done)
        assert received == [("1", 1), ("1", 2), ("2", 1)]

    def test_a_nacked_message_comes_again_before_those_behind_it(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered(max_outstanding_per_key=10)
        self.publish("1", "2", "3", key="k")
        received: list[str] = []

        def body(message: Message) -> bool:
            received.append(text(message))
            if received in (["1"], ["1", "1", "2"]):
                message.nack()
            else:
                message.ack()
            return len(received) == 5

        loop(subscription, body)
        assert received == ["1", "1", "2", "2", "3"]

    def test_a_message_is_kept_while_the_loop_is_at_it(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered(ack_deadline=self.kept_deadline, max_outstanding_per_key=10)
        self.publish("1", "2", key="k")
        received: list[tuple[str, int]] = []
        go_on = threading.Event()

        def body(message: Message) -> bool:
            received.append((text(message), message.delivery_attempt))
            assert go_on.wait(PATIENCE_SECONDS)
            message.ack()
            return len(received) == 2

        looping = self.in_background(lambda: loop(subscription, body))
        self.wait_until(lambda: received)
        self.assert_never(lambda: len(received) > 1 or self.pull(), 1.5 * self.kept_deadline)
        go_on.set()
        looping.result(PATIENCE_SECONDS)
        assert received == [("1", 1), ("2", 1)]

    def test_closing_ends_a_loop_that_waits(self, loop: Loop) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        def body(message: Message) -> None:
            received.append(text(message))
            message.ack()

        looping = self.in_background(lambda: loop(subscription, body))
        self.publish("x")
        self.wait_until(lambda: received)
        self.assert_never(looping.done)
        result(subscription.close())
        looping.result(PATIENCE_SECONDS)
        self.publish("y")
        assert texts(self.consume(1)) == ["y"]

    def test_closing_lets_a_loop_finish_its_message(self, loop: Loop) -> None:
        subscription = self.subscribe()
        self.publish("1", "2")
        received: list[str] = []
        go_on = threading.Event()

        def body(message: Message) -> None:
            received.append(text(message))
            assert go_on.wait(PATIENCE_SECONDS)
            message.ack()

        looping = self.in_background(lambda: loop(subscription, body))
        self.wait_until(lambda: received)
        result(subscription.close())
        assert texts(self.consume(1)) == ["2"]
        go_on.set()
        looping.result(PATIENCE_SECONDS)
        self.wait_until(lambda: self.backlog() == 0)
        assert received == ["1"]

    def test_a_loop_may_close_its_own_subscription(self, loop: Loop) -> None:
        subscription = self.subscribe()
        self.publish("1", "2")
        received: list[str] = []

        def body(message: Message) -> None:
            received.append(text(message))
            message.ack()
            result(subscription.close())

        loop(subscription, body)
        assert received == ["1"]
        assert texts(self.consume(1)) == ["2"]

    def test_closing_all_ends_loops(self, loop: Loop) -> None:
        subscription = self.subscribe()
        received: list[Message] = []

        def body(message: Message) -> None:
            message.ack()
            received.append(message)

        looping = self.in_background(lambda: loop(subscription, body))
        self.publish("x")
        self.wait_until(lambda: received)
        result(self.pubsub.close())
        looping.result(PATIENCE_SECONDS)

    def test_a_loop_may_begin_again(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", "2", "3", key="k")
        received: list[str] = []

        def body(message: Message) -> bool:
            received.append(text(message))
            message.ack()
            return True

        for _ in range(3):
            loop(subscription, body)
        assert received == ["1", "2", "3"]

    def test_an_error_in_a_loop_ends_it(self, loop: Loop) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline)
        self.publish("1", "2")

        def body(_: Message) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            loop(subscription, body)
        assert [(text(m), m.delivery_attempt) for m in self.consume(2)] == [("2", 1), ("1", 2)]

    def test_a_loop_over_nothing_is_an_error(self, loop: Loop) -> None:
        with pytest.raises(SubscriptionNotFound, match="nobody"):
            loop(self.pubsub.subscription("nobody"), lambda _: None)

    def test_deleting_the_subscription_ends_a_loop_with_an_error(self, loop: Loop) -> None:
        subscription = self.subscribe()
        received: list[Message] = []

        def body(message: Message) -> None:
            message.ack()
            received.append(message)

        looping = self.in_background(lambda: loop(subscription, body))
        self.publish("x")
        self.wait_until(lambda: received)
        self.assert_never(looping.done)
        result(self.pubsub.subscription("worker").delete())
        with pytest.raises(SubscriptionNotFound, match="worker"):
            looping.result(PATIENCE_SECONDS)

    def test_loops_share_a_subscription(self, loop: Loop) -> None:
        subscription = self.subscribe_ordered()
        received: list[str] = []

        def body(message: Message) -> None:
            received.append(text(message))
            message.ack()

        loops = [self.in_background(lambda: loop(subscription, body)) for _ in range(3)]
        self.publish_by_letter(*(f"{key}{number}" for number in range(20) for key in "abc"))
        self.wait_until(lambda: len(received) == 60)

        def closed() -> bool:
            result(subscription.close())
            return all(one.done() for one in loops)

        self.wait_until(closed)  # one of the threads may begin its loop only now
        for key in "abc":
            assert [name for name in received if name[0] == key] == [f"{key}{number}" for number in range(20)]


class AsyncLoops(PubSubCase):
    def test_a_task_that_is_cancelled_returns_what_it_did_not_begin(self) -> None:
        subscription = self.subscribe()

        async def main() -> None:
            received: list[Message] = []

            async def loop() -> None:
                async for message in subscription:
                    received.append(message)
                    await message.ack()

            task = asyncio.create_task(loop())
            await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert received == []

        asyncio.run(main())
        self.publish("x")
        assert texts(self.consume(1)) == ["x"]

    def test_a_loop_that_waits_lets_others_run(self) -> None:
        subscription = self.subscribe_ordered()

        async def main() -> list[str]:
            received: list[str] = []

            async def loop() -> None:
                async for message in subscription:
                    received.append(text(message))
                    await message.ack()

            async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(loop())
                topic = self.pubsub.topic("orders")
                for number in range(10):
                    await topic.publish_message(b"%d" % number, ordering_key="k")
                while len(received) < 10:
                    await topic.flush()
                    await asyncio.sleep(0)
                await subscription.close()
            return received

        assert asyncio.run(main()) == [f"{number}" for number in range(10)]


class ColumnLoops(PubSubCase):
    def columns(self, size: int = 100, *, ahead: int = 0) -> ColumnBatches:
        return self.pubsub.subscription("worker").columns(size, ahead=ahead)

    def test_a_list_is_acked_whole(self) -> None:
        self.subscribe_ordered(max_outstanding_per_key=10)
        result(self.topic().publish_many(Columns(["a", "b", None, "a"], [b"1", b"2", b"3", b"4"])))
        received: list[tuple[str, bytes]] = []
        columns = self.columns()
        for leased in columns:
            received += zip(leased.keys, leased.data, strict=True)
            result(columns.ack(leased))
            if len(received) == 4:
                break
        assert sorted(received) == [("", b"3"), ("a", b"1"), ("a", b"4"), ("b", b"2")]
        self.wait_until(lambda: self.backlog() == 0)

    @pytest.mark.parametrize("ahead", [0, 3])
    def test_what_failed_comes_again_before_what_is_behind_it(self, ahead: int) -> None:
        self.subscribe_ordered(max_outstanding_per_key=10)
        self.publish(*"123456", key="k")
        self.wait_until(lambda: self.backlog() == 6)
        done: list[bytes] = []
        attempts: list[int] = []
        columns = self.columns(2, ahead=ahead)
        for leased in columns:
            attempts += leased.attempts
            if leased.data[0] == b"3" and leased.attempts[0] < 3:
                result(columns.nack(leased))
                continue
            done += leased.data
            result(columns.ack(leased))
            if len(done) == 6:
                break
        assert done == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert max(attempts) == 3

    def test_a_list_is_answered_in_parts(self) -> None:
        self.subscribe(ack_deadline=600)
        self.publish("1", "2", "3")
        self.wait_until(lambda: self.backlog() == 3)
        columns = self.columns()
        for leased in columns:
            first, others = leased.only(leased.leases[:1]), leased.without(leased.leases[:1])
            result(columns.ack(first))
            for answer in (columns.ack, columns.nack):
                with pytest.raises(InvalidAckId) as caught:
                    result(answer(first))
                assert len(caught.value.ack_ids) == 1
            result(columns.nack(others))
            break
        assert sorted((text(m), m.delivery_attempt) for m in self.consume(2)) == [("2", 2), ("3", 2)]

    @pytest.mark.parametrize("ahead", [0, 3])
    def test_what_is_not_answered_has_failed(self, ahead: int) -> None:
        self.subscribe_ordered(ack_deadline=600, max_outstanding_per_key=10)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: self.backlog() == 3)
        done: list[tuple[bytes, int]] = []
        columns = self.columns(1, ahead=ahead)
        for leased in columns:
            if leased.attempts[0] == 1 and leased.data[0] == b"1":
                continue
            done += zip(leased.data, leased.attempts, strict=True)
            columns.ack(leased)
            if len(done) == 3:
                break
        assert [data for data, _ in done] == [b"1", b"2", b"3"]
        assert done[0][1] == 2

    def test_the_list_at_hand_may_be_answered_when_the_loop_was_left(self) -> None:
        self.subscribe(ack_deadline=600)
        self.publish("1", "2")
        self.wait_until(lambda: self.backlog() == 2)
        columns = self.columns(1, ahead=1)
        left = next(iter(columns))
        result(columns.ack(left))
        [message] = self.consume(1)
        assert {left.data[0], message.data} == {b"1", b"2"}
        self.wait_until(lambda: self.backlog() == 0)

    def test_lists_that_wait_are_kept_leased(self) -> None:
        self.subscribe_ordered(ack_deadline=self.kept_deadline, max_outstanding_per_key=10)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: self.backlog() == 3)
        received: list[tuple[bytes, int]] = []
        columns = self.columns(1, ahead=2)
        for leased in columns:
            received += zip(leased.data, leased.attempts, strict=True)
            if len(received) == 1:
                self.assert_never(lambda: self.pull(), 1.5 * self.kept_deadline)
            result(columns.ack(leased))
            if len(received) == 3:
                break
        assert received == [(b"1", 1), (b"2", 1), (b"3", 1)]

    def test_a_gap_is_among_the_messages(self) -> None:
        self.subscribe_ordered(queue_limits={"max_messages": 2}, max_outstanding_per_key=10)
        self.publish("1", "2", "lost", key="k")
        found: list[bytes | Gap] = []
        columns = self.columns()
        for leased in columns:
            found += leased.data
            columns.ack(leased)
            if len(found) >= 3:
                break
        assert found[:2] == [b"1", b"2"]
        gap = found[2]
        assert isinstance(gap, Gap)
        assert (gap.ordering_key, gap.count, gap.reason) == ("k", 1, "dropped")

    def test_no_more_come_than_flow_control_allows(self) -> None:
        self.subscribe(ack_deadline=600, flow_control={"max_messages": 3})
        self.publish(*"123456789")
        self.wait_until(lambda: self.backlog() == 9)
        received: list[bytes] = []
        columns = self.columns(2, ahead=5)
        for leased in columns:
            received += leased.data
            metrics = result(self.pubsub.subscription("worker").metrics())
            assert metrics.outstanding_messages <= 3
            result(columns.ack(leased))
            if len(received) == 9:
                break
        assert sorted(received) == [b"%d" % number for number in range(1, 10)]

    def test_what_was_out_when_the_rules_changed_comes_again_in_order(self) -> None:
        subscription = self.subscribe_ordered(ack_deadline=600, max_outstanding_per_key=10)
        self.publish(*"12345", key="k")
        self.wait_until(lambda: self.backlog() == 5)
        received: list[bytes] = []
        columns = self.columns(1, ahead=3)
        for leased in columns:
            if len(received) == 1:
                result(subscription.set_options(max_outstanding_per_key=2))
                with pytest.raises(InvalidAckId):
                    result(columns.ack(leased))
                received += [b"-"]
                continue
            received += leased.data
            result(columns.ack(leased))
            if received[-1] == b"5":
                break
        assert received == [b"1", b"-", b"2", b"3", b"4", b"5"]

    def test_what_is_left_of_the_last_list_has_failed(self) -> None:
        self.subscribe(ack_deadline=600)
        self.publish("1", "2")
        self.wait_until(lambda: self.backlog() == 2)
        columns = self.columns()
        for leased in columns:
            result(columns.ack(leased.only(leased.leases[:1])))
            columns.close()
        [message] = self.consume(1)
        assert message.delivery_attempt == 2

    def test_leases_are_kept_by_a_deadline_that_was_shortened(self) -> None:
        subscription = self.subscribe(ack_deadline=600)
        self.publish("1", "2")
        self.wait_until(lambda: self.backlog() == 2)
        received: list[tuple[bytes, int]] = []
        columns = self.columns(1)
        for leased in columns:
            received += zip(leased.data, leased.attempts, strict=True)
            if len(received) == 1:
                result(subscription.set_options(ack_deadline_seconds=self.kept_deadline))
            else:
                self.assert_never(lambda: self.pull(), 1.5 * self.kept_deadline)
            result(columns.ack(leased))
            if len(received) == 2:
                break
        assert sorted(received) == [(b"1", 1), (b"2", 1)]

    def test_a_list_of_another_subscription_is_not_ours(self) -> None:
        self.subscribe("worker", ack_deadline=600)
        self.subscribe("other", ack_deadline=600)
        self.publish("1")
        self.wait_until(lambda: self.backlog() == 1 and self.backlog("other") == 1)
        ours, others = self.columns(), self.pubsub.subscription("other").columns()
        mine, theirs = next(iter(ours)), next(iter(others))
        unread = self.columns()
        for columns, leased in ((ours, theirs), (others, mine), (unread, mine)):
            for answer in (columns.ack, columns.nack):
                with pytest.raises(InvalidAckId) as caught:
                    result(answer(leased))
                assert list(caught.value.ack_ids) == leased.ack_ids()
        assert (self.backlog(), self.backlog("other")) == (1, 1)
        result(ours.ack(mine))
        self.wait_until(lambda: (self.backlog(), self.backlog("other")) == (0, 1))

    @pytest.mark.parametrize("seed", range(4))
    def test_no_key_is_reordered_whatever_fails(self, seed: int) -> None:
        chance = Random(seed)
        self.subscribe_ordered(max_outstanding_per_key=chance.choice([1, 3, 1_000]), ack_deadline=600)
        keys, count = "abcde", 300
        sent = [(chance.choice(keys), number) for number in range(count)]
        columns_sent = Columns([key for key, _ in sent], [b"%d" % number for _, number in sent])
        result(self.topic().publish_many(columns_sent))
        done: dict[str, list[int]] = {key: [] for key in keys}
        columns = self.columns(chance.choice([1, 7, 50]), ahead=chance.choice([0, 2]))
        for leased in columns:
            numbers = list(map(int, leased.data))
            failed_keys: set[str] = set()
            acks, nacks = [], []
            for lease, key, number in zip(leased.leases, leased.keys, numbers, strict=True):
                if key in failed_keys or chance.random() < 0.1:
                    failed_keys.add(key)
                    nacks.append(lease)
                else:
                    done[key].append(number)
                    acks.append(lease)
            columns.ack(leased.only(acks))
            if chance.random() < 0.5:
                columns.nack(leased.only(nacks))
            if sum(map(len, done.values())) >= count:
                break
        for key in keys:
            assert done[key] == [number for of, number in sent if of == key]

    def test_what_cannot_be_is_refused(self) -> None:
        subscription = self.subscribe()
        for wrong in (0, -1, True, "10", 1.5):
            with pytest.raises(InvalidArgument, match="max_messages"):
                subscription.columns(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="ahead"):
            subscription.columns(1, ahead=-1)
        columns = subscription.columns()
        columns.close()
        assert (columns.closed, list(columns)) == (True, [])
        with pytest.raises(FailedPrecondition, match="one loop"):
            next(iter(columns))
