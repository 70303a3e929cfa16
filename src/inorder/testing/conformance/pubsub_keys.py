"""Keys in trouble and what else a subscription can be asked: gaps, parked keys, replay, pull."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime, timezone
from typing import Any

import pytest

from inorder.client.subscription import Subscription
from inorder.errors import FailedPrecondition, InvalidAckId, InvalidArgument, KeyNotBlocked
from inorder.message import Gap, Message
from inorder.options import DeadLetterPolicy, QueueLimits
from inorder.testing.conformance.pubsub_case import Wait, Way, result, text, texts
from inorder.testing.conformance.pubsub_handlers import HandlersCase
from inorder.testing.conformance.queue_replay import ZONES


class Gaps(HandlersCase):
    """An ordered subscription is told, in their place, of messages that will not come."""

    def with_a_hole(self, **options: Any) -> Subscription:
        """A subscription that got 1, 2 and 5 and missed 3 and 4."""
        subscription = self.subscribe_ordered(queue_limits=QueueLimits(max_messages=2), **options)
        self.publish("1", "2", "3", "4", key="k")
        assert texts(self.consume(1)) == ["1"]
        self.publish("5", key="k")
        return subscription

    @pytest.mark.parametrize("awaited", [False, True], ids=["def", "async_def"])
    def test_a_gap_is_told_in_its_place(self, way: Way, awaited: bool) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []

        async def listen(gap: Gap) -> None:
            await asyncio.sleep(0.001)
            told.append(gap)

        def handle(message: Message) -> None:
            told.append(text(message))
            message.ack()

        subscription.on("gap", listen if awaited else told.append)
        self.handle(way, subscription, handle)
        self.wait_until(lambda: "5" in told)
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]
        self.wait_until(lambda: self.backlog() == 0)

    def test_a_gap_that_nobody_listens_to_stops_nobody(self, way: Way) -> None:
        subscription = self.with_a_hole()
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        self.handle(way, subscription, handle)
        self.wait_until(lambda: received == ["2", "5"])

    @pytest.mark.parametrize("read_by", ["handlers", "a loop", "pull"])
    def test_a_gap_that_nobody_listens_to_is_logged(
        self, way: Way, read_by: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """ordering-guarantees Gotcha 4: who skips a gap is warned."""
        subscription = self.with_a_hole()
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        with caplog.at_level(logging.WARNING, "inorder.client"):
            if read_by == "handlers":
                self.handle(way, subscription, handle)
                self.wait_until(lambda: "5" in received)
            elif read_by == "a loop":
                for message in subscription:
                    handle(message)
                    if "5" in received:
                        break
            while "5" not in received:
                for message in result(subscription.pull(10)):
                    handle(message)
        assert f"{subscription.name!r}: key 'k' goes on without 2 message(s), positions 2 to 3: dropped" in caplog.text

    @pytest.mark.parametrize("awaited", [False, True], ids=["def", "async_def"])
    def test_a_listener_that_fails_stops_nobody(self, way: Way, awaited: bool) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []

        def fail(gap: Gap) -> None:
            told.append(gap.count)
            raise RuntimeError("a bad listener")

        async def fail_later(gap: Gap) -> None:
            fail(gap)

        def handle(message: Message) -> None:
            told.append(text(message))
            message.ack()

        subscription.on("gap", fail_later if awaited else fail)
        self.handle(way, subscription, handle)
        self.wait_until(lambda: told == ["2", 2, "5"])

    def test_a_loop_is_told_of_a_gap_in_its_place(self) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []
        subscription.on("gap", told.append)
        for message in subscription:
            told.append(text(message))
            message.ack()
            if text(message) == "5":
                break
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]

    def test_an_async_loop_is_told_of_a_gap_in_its_place(self) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []

        @subscription.on("gap")
        async def listen(gap: Gap) -> None:
            await asyncio.sleep(0)
            told.append(gap)

        async def main() -> None:
            async for message in subscription:
                told.append(text(message))
                await message.ack()
                if text(message) == "5":
                    break

        asyncio.run(main())
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]
        assert callable(listen)

    @pytest.mark.parametrize("awaited", [False, True], ids=["def", "async_def"])
    def test_a_pull_is_told_of_a_gap_in_its_place(self, awaited: bool) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []

        async def listen(gap: Gap) -> None:
            told.append(gap)

        subscription.on("gap", listen if awaited else told.append)
        while not told or told[-1] != "5":
            for message in result(subscription.pull(10)):
                told.append(text(message))
                result(message.ack())
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]

    @pytest.mark.parametrize("awaited", [False, True], ids=["def", "async_def"])
    def test_a_pull_of_a_task_is_told_of_a_gap_in_its_place(self, awaited: bool) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []

        async def listen(gap: Gap) -> None:
            await asyncio.sleep(0)
            told.append(gap)

        async def pull() -> None:
            while not told or told[-1] != "5":
                for message in await subscription.pull(10):
                    told.append(text(message))
                    await message.ack()

        subscription.on("gap", listen if awaited else told.append)
        asyncio.run(pull())
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]

    @pytest.mark.parametrize("awaited", [False, True], ids=["def", "async_def"])
    def test_whoever_is_told_of_a_gap_by_a_pull_may_wait_for_the_broker(self, awaited: bool) -> None:
        subscription = self.with_a_hole()
        notes: list[str] = []

        async def listen(gap: Gap) -> None:
            notes.append(await self.pubsub.topic("orders").publish_message(b"a gap"))

        subscription.on("gap", listen if awaited else lambda gap: notes.append(self.publish("a gap")[0]))
        assert texts(self.consume(1)) == ["2"]
        result(subscription.pull(10))
        assert len(notes) == 1

    def test_a_pull_of_several_of_a_key_is_told_of_a_gap_in_its_place(self) -> None:
        subscription = self.with_a_hole(max_outstanding_per_key=10)
        told: list[object] = []
        subscription.on("gap", told.append)
        while not told or told[-1] != "5":
            for message in subscription.pull(10).result():
                told.append(text(message))
                message.ack().result()
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]

    def test_a_pull_goes_on_behind_a_gap(self) -> None:
        subscription = self.with_a_hole()
        told: list[object] = []
        subscription.on("gap", told.append)
        assert texts(self.consume(1)) == ["2"]
        self.publish("free")
        assert sorted(texts(subscription.pull(10).result())) == ["5", "free"]
        assert told == [Gap("k", 2, 3, 2, "dropped")]

    def test_a_loop_over_lists_with_several_of_a_key_is_told_of_a_gap_in_its_place(self) -> None:
        subscription = self.with_a_hole(max_outstanding_per_key=10)
        told: list[object] = []
        subscription.on("gap", told.append)
        batches = subscription.batches(10, one_per_key=False)
        for messages in batches:
            told += map(text, messages)
            batches.ack(messages).result()
            if told[-1] == "5":
                break
        assert told == ["2", Gap("k", 2, 3, 2, "dropped"), "5"]


class Poison(HandlersCase):
    def failing(self, way: Way, subscription: Subscription, *bad: str) -> list[object]:
        """Handle a subscription; the bad messages fail always. Returns what happens, as it happens."""
        happened: list[object] = []

        def handle(message: Message) -> None:
            if text(message) in bad:
                happened.append((text(message), message.delivery_attempt))
                raise ValueError(text(message))
            happened.append(text(message))
            message.ack()

        subscription.on("error", lambda _: None).on("gap", happened.append)
        self.handle(way, subscription, handle)
        return happened

    def test_a_message_that_fails_too_often_is_dead_lettered_and_leaves_a_gap(self, way: Way) -> None:
        self.subscribe("undertaker", "dead")
        subscription = self.subscribe_ordered(dead_letter_policy=DeadLetterPolicy("dead", max_delivery_attempts=5))
        happened = self.failing(way, subscription, "bad")
        [bad_id, _] = self.publish("bad", "good", key="k")
        self.wait_until(lambda: "good" in happened)
        assert happened == [*(("bad", attempt) for attempt in range(1, 6)), Gap("k", 0, 0, 1, "dead_lettered"), "good"]
        [dead] = self.consume(1, "undertaker")
        assert (text(dead), dead.ordering_key) == ("bad", "k")
        assert dead.id != bad_id

    def test_a_key_can_be_parked_instead(self, way: Way) -> None:
        subscription = self.subscribe_ordered(on_poison="park_key")
        happened = self.failing(way, subscription, "bad")
        self.publish("bad", "behind", "behind it", key="k")
        self.publish("other", key="other")
        self.wait_until(lambda: result(subscription.metrics()).parked_keys == 1)
        self.wait_until(lambda: "other" in happened)
        self.assert_never(lambda: "behind" in happened)
        assert [one for one in happened if one != "other"] == [("bad", attempt) for attempt in range(1, 6)]
        [blocked] = result(subscription.blocked_keys())
        assert (blocked.ordering_key, blocked.reason, blocked.position) == ("k", "parked", 0)
        assert (blocked.waiting, blocked.failures) == (3, 5)
        assert blocked.age_seconds >= 0
        assert blocked.head_of_line_seconds >= 0

    def test_a_parked_key_can_be_resumed(self, way: Way) -> None:
        subscription = self.subscribe_ordered(on_poison="park_key")
        repaired = threading.Event()
        attempts: list[tuple[str, int]] = []

        def handle(message: Message) -> None:
            attempts.append((text(message), message.delivery_attempt))
            if not repaired.is_set():
                raise ValueError("broken")
            message.ack()

        subscription.on("error", lambda _: None)
        self.handle(way, subscription, handle)
        self.publish("1", "2", key="k")
        self.wait_until(lambda: result(subscription.metrics()).parked_keys == 1)
        repaired.set()
        way.result(subscription.resume_key("k"))
        self.wait_until(lambda: self.backlog() == 0)
        assert attempts[5:] == [("1", 1), ("2", 1)]
        assert way.result(subscription.blocked_keys()) == []

    def test_the_first_message_of_a_parked_key_can_be_skipped(self, way: Way) -> None:
        subscription = self.subscribe_ordered(on_poison="park_key")
        happened = self.failing(way, subscription, "bad")
        [bad_id, _] = self.publish("bad", "good", key="k")
        self.wait_until(lambda: result(subscription.metrics()).parked_keys == 1)
        assert way.result(subscription.skip("k")) == bad_id
        self.wait_until(lambda: "good" in happened)
        assert happened[5:] == [Gap("k", 0, 0, 1, "skipped"), "good"]

    def test_a_key_that_waits_for_its_retry_can_be_resumed(self, way: Way) -> None:
        policy = {"minimum_backoff": 600, "maximum_backoff": 600}
        subscription = self.subscribe_ordered(retry_policy=policy)
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            if len(attempts) == 1:
                message.nack()
            else:
                message.ack()

        self.handle(way, subscription, handle)
        self.publish("x", key="k")
        self.wait_until(lambda: [key.reason for key in result(subscription.blocked_keys())] == ["backoff"])
        way.result(subscription.resume_key("k"))
        self.wait_until(lambda: self.backlog() == 0)
        assert attempts == [1, 1]

    def test_a_key_that_is_not_blocked_cannot_be_resumed_or_skipped(self, wait: Wait) -> None:
        subscription = self.subscribe_ordered()
        self.publish("x", key="k")
        for call in (subscription.resume_key, subscription.skip):
            for key in ("k", "unknown"):
                with pytest.raises(KeyNotBlocked, match=f"'{key}' is neither parked nor waiting") as refused:
                    wait(call(key))
                assert refused.value.code == FailedPrecondition.code

    def test_a_key_that_waits_for_a_handler_is_blocked(self, way: Way) -> None:
        subscription = self.subscribe_ordered()
        running, go_on = self.handle_until_told(way, subscription)
        self.publish("1", "2", "3", key="k")
        self.publish("alone", key="alone")
        self.wait_until(running.is_set)
        self.wait_until(lambda: result(subscription.metrics()).outstanding_messages == 2)
        [blocked] = way.result(subscription.blocked_keys())
        assert (blocked.ordering_key, blocked.reason, blocked.waiting) == ("k", "out", 2)
        go_on.set()
        self.wait_until(lambda: self.backlog() == 0)
        assert way.result(subscription.blocked_keys()) == []


class Replay(HandlersCase):
    def test_a_position_is_delivered_again(self, wait: Wait) -> None:
        subscription = self.subscribe_ordered(retain_acked_messages=True)
        self.publish("1", "2", "3", key="k")
        consumed = self.consume(3)
        wait(subscription.seek(position=consumed[1].position))
        assert texts(self.consume(2)) == ["2", "3"]

    def test_a_time_is_delivered_again(self, wait: Wait) -> None:
        subscription = self.subscribe_ordered(retain_acked_messages=True)
        self.publish("before", key="k")
        self.pass_time(0.002)
        self.publish("after", key="k")
        [_, after] = self.consume(2)
        wait(subscription.seek(time=after.publish_time))
        assert texts(self.consume(1)) == ["after"]
        assert self.backlog() == 0

    @pytest.mark.parametrize("zone", ZONES, ids=str)
    def test_a_time_may_be_the_first_or_the_last_there_is(self, wait: Wait, zone: timezone) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", key="k")
        wait(subscription.seek(time=datetime.min.replace(tzinfo=zone)))
        assert self.backlog() == 1
        wait(subscription.seek(time=datetime.max.replace(tzinfo=zone)))
        assert self.backlog() == 0

    def test_what_is_older_counts_as_acked(self, wait: Wait) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", "2", key="k")
        end = wait(self.pubsub.topic("orders").metadata()).next_position
        wait(subscription.seek(position=end))
        assert self.backlog() == 0
        self.publish("3", key="k")
        assert texts(self.consume(1)) == ["3"]

    def test_handlers_get_what_is_delivered_again(self, way: Way) -> None:
        subscription = self.subscribe_ordered(retain_acked_messages=True)
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        self.handle(way, subscription, handle)
        self.publish("1", "2", "3", key="k")
        self.wait_until(lambda: self.backlog() == 0)
        way.result(subscription.seek(position=0))
        self.wait_until(lambda: self.backlog() == 0)
        assert received == ["1", "2", "3", "1", "2", "3"]

    def test_what_was_out_before_can_no_longer_be_answered(self) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", key="k")
        [message] = self.pull()
        result(subscription.seek(position=0))
        with pytest.raises(InvalidAckId):
            result(message.ack())
        assert texts(self.consume(1)) == ["1"]

    @pytest.mark.parametrize(
        "where",
        [
            {},
            {"position": 0, "time": 0.0},
            {"position": -1},
            {"position": 1_000},
            {"position": "1"},
            {"time": "yesterday"},
            {"time": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
        ],
        ids=["nowhere", "twice", "negative", "beyond", "text", "a word", "no time zone"],
    )
    def test_a_place_that_cannot_be_is_refused(self, wait: Wait, where: Any) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", key="k")
        with pytest.raises(InvalidArgument):
            wait(subscription.seek(**where))
        assert self.backlog() == 1

    @pytest.mark.parametrize("where", [{}, {"position": -1}], ids=["nowhere", "negative"])
    def test_a_place_that_cannot_be_is_refused_whoever_asks(self, wait: Wait, where: Any) -> None:
        with pytest.raises(InvalidArgument):
            wait(self.pubsub.subscription("nobody").seek(**where))

    def test_what_is_no_longer_retained_is_not_delivered_in_part(self) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", "2", key="k")
        self.consume(2)
        with pytest.raises(FailedPrecondition, match="no longer retained"):
            result(subscription.seek(position=0))


class Pulling(HandlersCase):
    def test_a_pull_returns_what_is_there(self, wait: Wait) -> None:
        subscription = self.subscribe()
        assert wait(subscription.pull(10)) == []
        self.publish("1", "2", "3")
        assert texts(wait(subscription.pull(2))) == ["1", "2"]
        [third] = wait(subscription.pull())
        assert text(third) == "3"
        wait(third.nack())
        [again] = wait(subscription.pull(10))
        assert (text(again), again.delivery_attempt) == ("3", 2)
        wait(again.ack())
        assert self.backlog() == 2

    def test_a_pull_of_an_ordered_subscription_returns_one_message_of_each_key(self) -> None:
        subscription = self.subscribe_ordered()
        self.publish_by_letter("a1", "b1", "a2", "b2")
        messages = result(subscription.pull(10))
        assert texts(messages) == ["a1", "b1"]
        result(messages[0].ack())
        assert texts(self.pull()) == ["a2"]

    def test_a_pulled_message_comes_again_after_its_deadline(self) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline)
        self.publish("x")
        [message] = result(subscription.pull())
        again: list[Message] = []

        def pulled() -> bool:
            again.extend(self.pull())
            return bool(again)

        self.wait_until(pulled)
        assert again[0].delivery_attempt == 2
        with pytest.raises(InvalidAckId):
            result(message.ack())
        result(again[0].ack())

    def test_a_pulled_message_can_be_kept_longer(self) -> None:
        subscription = self.subscribe(ack_deadline=self.short_deadline)
        self.publish("x")
        [message] = result(subscription.pull())
        result(message.modify_ack_deadline(60))
        self.assert_never(self.pull, 1.5 * self.short_deadline)
        result(message.ack())

    @pytest.mark.parametrize("count", [0, -1, 1.5, "1", None, True])
    def test_a_pull_of_no_whole_number_is_refused(self, wait: Wait, count: Any) -> None:
        with pytest.raises(InvalidArgument, match="max_messages"):
            wait(self.subscribe().pull(count))

    def test_a_subscription_tells_how_it_stands(self, wait: Wait) -> None:
        subscription = self.subscribe_ordered()
        self.publish("1", "22", "333", key="k")
        [first] = wait(subscription.pull())
        wait(first.ack())
        wait(subscription.pull())
        metrics = wait(subscription.metrics())
        assert (metrics.backlog_messages, metrics.outstanding_messages) == (2, 1)
        assert (metrics.backlog_bytes, metrics.outstanding_bytes) == (7, 3)  # of the key one byte each
        assert (metrics.counters.delivered, metrics.counters.acked) == (2, 1)
        assert (metrics.blocked_keys, metrics.parked_keys) == (1, 0)
