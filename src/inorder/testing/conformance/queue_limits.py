"""Everything that queues has a limit: flow control, queue limits and retention."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.errors import Closed, QueueFull, TopicNotFound
from inorder.message import Gap, Message, batch_of
from inorder.testing.conformance.case import PATIENCE_SECONDS, QueueCase, gaps, texts, waits

DAY_SECONDS = 86_400

MAKES_ROOM: dict[str, Callable[[MessageQueue], None]] = {
    "no subscription": lambda queue: queue.unregister_subscription("worker"),
    "a higher limit": lambda queue: queue.update_subscription("worker", {"queue_limits": {"max_messages": 2}}),
    "a seek": lambda queue: queue.seek("worker", position=1),
}


class FlowControlLimits(QueueCase):
    def publish_sizes(self, **sizes: int) -> None:
        """One message for each key, of so many bytes; the key counts too, so the data gets the rest."""
        self.queue.publish("orders", [Message(bytes(size - len(key)), ordering_key=key) for key, size in sizes.items()])

    def pull_keys(self, max_messages: int = 100) -> list[str | None]:
        return [message.ordering_key for message in self.pull(max_messages)]

    def test_no_more_messages_go_out_than_flow_control_allows(self) -> None:
        """message-queue BR-013"""
        self.subscribe(flow_control={"max_messages": 2})
        self.publish("a", "b", "c", "d")
        out = self.pull()
        assert texts(out) == ["a", "b"]
        assert self.pull() == []
        self.ack(out[0])
        assert self.pull_texts() == ["c"]
        assert self.pull() == []

    def test_no_more_bytes_go_out_than_flow_control_allows(self) -> None:
        """message-queue BR-013"""
        self.subscribe(flow_control={"max_bytes": 10})
        self.publish("aaaa", "bbbb", "cccc")
        out = self.pull()
        assert texts(out) == ["aaaa", "bbbb"]
        assert self.pull() == []
        self.ack(out[1])
        assert self.pull_texts() == ["cccc"]

    def test_nothing_goes_out_once_the_bytes_are_used_up(self) -> None:
        """message-queue BR-013"""
        self.subscribe(flow_control={"max_bytes": 8})
        self.publish("aaaa", "bbbb", "")
        out = self.pull(2)
        assert self.pull() == []
        self.ack(*out)
        assert self.pull_texts() == [""]

    def test_a_nack_makes_room(self) -> None:
        """message-queue BR-013"""
        self.subscribe(flow_control={"max_messages": 1})
        self.publish("a", "b")
        self.nack(*self.pull())
        assert self.pull_texts() == ["a"]

    def test_an_expired_lease_makes_room(self) -> None:
        """message-queue BR-014"""
        self.subscribe(flow_control={"max_messages": 1, "max_bytes": 4}, retry_policy={"minimum_backoff": 60})
        self.publish("aaaa", "bbbb")
        assert self.pull_texts() == ["aaaa"]
        assert self.pull() == []
        self.clock.advance(10)
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (0, 0)
        assert self.pull_texts() == ["bbbb"]

    def test_flow_control_is_per_subscription(self) -> None:
        """message-queue BR-014"""
        self.subscribe("first", flow_control={"max_messages": 1})
        self.subscribe("second", flow_control={"max_messages": 2})
        self.publish("a", "b", "c")
        assert self.pull_texts(subscription="first") == ["a"]
        assert self.pull_texts(subscription="second") == ["a", "b"]

    def test_flow_control_can_be_changed(self) -> None:
        """message-queue BR-013"""
        self.subscribe(flow_control={"max_messages": 1})
        self.publish("a", "b", "c")
        out = self.pull()
        self.queue.update_subscription("worker", {"flow_control": {"max_messages": 2}})
        out += self.pull()
        assert texts(out) == ["a", "b"]
        self.queue.update_subscription("worker", {"flow_control": {"max_messages": 1}})
        self.ack(out[0])
        assert self.pull() == []

    def test_a_message_above_all_bytes_goes_out_alone(self) -> None:
        self.subscribe(flow_control={"max_bytes": 100})
        self.publish("x" * 150, "small")
        [big] = self.pull()
        assert big.length == 150
        assert self.pull() == []
        self.ack(big)
        assert self.pull_texts() == ["small"]

    @pytest.mark.parametrize("max_messages", [1, 100])
    @pytest.mark.parametrize("size", [90, 150], ids=["that does not fit now", "above all bytes"])
    @pytest.mark.parametrize("window", [1, 10])
    def test_a_message_that_does_not_fit_does_not_keep_other_keys_waiting(
        self, window: int, size: int, max_messages: int
    ) -> None:
        self.subscribe(flow_control={"max_bytes": 100}, enable_message_ordering=True, max_outstanding_per_key=window)
        self.publish_sizes(first=50)
        assert self.pull_keys() == ["first"]
        self.publish_sizes(big=size, small=20)
        assert self.pull_keys(max_messages) == ["small"]

    def test_what_does_not_fit_keeps_its_key_in_order(self) -> None:
        self.subscribe(flow_control={"max_bytes": 100}, enable_message_ordering=True, max_outstanding_per_key=5)
        self.publish("x" * 50, key="first")
        [first] = self.pull()
        self.publish("x" * 90, "later", key="big")
        self.publish("small", key="other")
        assert self.pull_texts() == ["small"]
        self.ack(first)
        self.clock.advance(10)
        consumed = self.consume()
        assert consumed.index("x" * 90) < consumed.index("later")

    def test_small_messages_that_keep_coming_do_not_starve_a_large_one(self) -> None:
        self.subscribe(flow_control={"max_bytes": 100}, enable_message_ordering=True)
        self.publish_sizes(first=50)
        out = self.pull()
        self.publish_sizes(big=150)
        delivered = []
        for turn in range(60):  # as long as anything else goes out, there is always a small message out
            self.publish_sizes(**{f"small-{turn}-{letter}": 30 for letter in "ab"})
            out += self.pull()
            if any(message.ordering_key == "big" for message in out):
                break
            delivered += out[:1]
            self.ack(*out[:1])
            del out[:1]
            self.clock.advance(1)
        else:
            raise AssertionError("the large message was passed over for a minute")
        self.ack(*out)
        while messages := self.pull():
            self.ack(*messages)
            out += messages
        keys = [message.ordering_key for message in delivered + out]
        assert len(keys) == len(set(keys)) == 2 + 2 * (turn + 1)

    @pytest.mark.parametrize("max_messages", [1, 2])
    @pytest.mark.parametrize("size", [90, 150], ids=["that does not fit now", "above all bytes"])
    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_large_message_is_not_starved_by_one_that_fails_again_and_again(
        self, ordered: bool, size: int, max_messages: int
    ) -> None:
        self.subscribe(flow_control={"max_bytes": 100}, enable_message_ordering=ordered)
        self.publish("fails")
        self.publish_sizes(first=50)
        out = self.pull()
        self.publish("x" * size)
        for turn in range(60):  # as long as anything else goes out, there is always a small message out
            self.publish_sizes(**{f"small-{turn}": 30})
            self.nack(*(message for message in out if message.data == b"fails"))
            out = [message for message in out if message.data != b"fails"]
            out += self.pull(max_messages) + self.pull(max_messages)
            if any(message.length == size for message in out):
                break
            self.ack(*out[:1])
            del out[:1]
            self.clock.advance(1)
        else:
            raise AssertionError("the large message was passed over for a minute")


class QueueCapacity(QueueCase):
    """When a subscription holds too much: miss it, refuse it, or wait."""

    def limit(self, name: str = "worker", when_full: str = "drop", ordered: bool = False, **limits: Any) -> None:
        self.subscribe(name, enable_message_ordering=ordered, queue_limits={**limits, "when_full": when_full})

    # -- drop --------------------------------------------------------------------------------------

    def test_a_full_subscription_misses_what_comes_on_top_and_others_do_not(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=2)
        self.subscribe("roomy")
        assert len(self.publish("a", "b", "c")) == 3
        self.publish("d")
        assert self.queue.metrics("worker").counters.dropped == 2
        assert self.consume() == ["a", "b"]
        assert self.consume("roomy") == ["a", "b", "c", "d"]

    def test_a_full_subscription_takes_messages_again_when_it_has_room(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=2)
        self.publish("a", "b")
        self.publish("missed")
        self.ack(*self.pull(1))
        self.publish("c")
        self.clock.advance(10)
        assert self.consume() == ["b", "c"]

    def test_bytes_fill_a_subscription_too(self) -> None:
        """message-queue BR-022"""
        self.limit(max_bytes=8)
        self.publish("aaaa", "bbbb", "missed")
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.counters.dropped) == (2, 8, 1)
        assert self.consume() == ["aaaa", "bbbb"]
        self.publish("cccc")
        assert self.consume() == ["cccc"]

    def test_one_that_does_not_fit_takes_no_other_of_its_batch_with_it(self) -> None:
        """message-queue BR-022: what finds no room is missed, and nothing else, however it is published."""
        self.limit(max_bytes=100, ordered=True)
        self.publish_by_letter("a" * 200, "a2", "b1")
        consumed = self.consume_with_gaps()
        assert [each for each in consumed if not isinstance(each, Gap)] == ["b1", "a2"]
        assert [(gap.first_position, gap.count) for gap in gaps(consumed)] == [(0, 1)]
        assert self.queue.metrics("worker").counters.dropped == 1

    def test_what_is_out_still_fills_its_subscription(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1)
        self.publish("a")
        [a] = self.pull()
        self.publish("missed")
        self.ack(a)
        assert self.pull() == []

    def test_a_full_subscription_is_logged_when_it_becomes_full(self, caplog: pytest.LogCaptureFixture) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1)
        with caplog.at_level(logging.WARNING):
            self.publish("a")
            assert caplog.records == []
            for _ in range(10):
                self.publish("missed")
            warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            assert len(warnings) == 1
            assert "worker" in warnings[0]
            assert "capacity" in warnings[0]
            self.consume()
            self.publish("b")
            self.publish("missed")
            assert len(caplog.records) == 2

    def test_what_a_filter_leaves_out_is_no_sign_of_room(self, caplog: pytest.LogCaptureFixture) -> None:
        """message-queue BR-022"""
        self.subscribe(filter="attributes:wanted", queue_limits={"max_messages": 1})
        wanted, unwanted = Message(b"", {"wanted": ""}), Message(b"")
        with caplog.at_level(logging.WARNING):
            self.queue.publish("orders", [wanted])
            for _ in range(3):
                self.queue.publish("orders", [wanted])
                self.queue.publish("orders", [unwanted])
            assert len(caplog.records) == 1

    def test_a_subscription_that_had_room_is_logged_again_whatever_the_batches(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                self.publish("a", "missed")
                self.consume()
            assert len(caplog.records) == 3

    def test_a_successor_of_the_same_name_is_logged_when_it_becomes_full(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """message-queue BR-022"""
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                self.limit(max_messages=1)
                self.publish("a", "missed")
                self.queue.unregister_subscription("worker")
        assert len([record for record in caplog.records if "worker" in record.getMessage()]) == 2

    def test_an_ordered_subscription_is_told_of_the_gap_in_its_place(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=2, ordered=True)
        self.publish_by_letter("a1", "b1")
        self.publish_by_letter("a2", "a3", "b2")
        out = self.pull()
        assert sorted(texts(out)) == ["a1", "b1"]
        self.ack(*out)
        self.publish_by_letter("a4", "b3")
        consumed = self.consume_with_gaps()
        of_a = [each for each in consumed if (each[0] if isinstance(each, str) else each.ordering_key) == "a"]
        assert of_a[-1] == "a4"
        assert [(gap.first_position, gap.last_position, gap.count, gap.reason) for gap in gaps(of_a)] == [
            (2, 3, 2, "dropped")
        ]
        of_b = [each for each in consumed if each not in of_a]
        assert of_b[-1] == "b3"
        assert [(gap.first_position, gap.count) for gap in gaps(of_b)] == [(4, 1)]
        assert self.queue.metrics("worker").counters.dropped == 3

    def test_gap_records_are_no_backlog_and_a_pull_passes_them_over(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, ordered=True)
        self.publish("1", "missed", key="k")
        [one] = self.pull()
        assert self.queue.metrics("worker").backlog_messages == 1
        self.ack(one)
        assert self.queue.metrics("worker").backlog_messages == 0
        self.publish("3", key="k")
        assert self.pull_texts() == ["3"]
        metrics = self.queue.metrics("worker")
        assert (metrics.counters.delivered, metrics.counters.acked, metrics.outstanding_messages) == (2, 1, 1)

    def test_a_pull_that_passes_over_gaps_returns_at_most_what_was_asked_for(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=4, ordered=True)
        self.publish_by_letter("a1", "b1", "c1", "d1", "a2", "b2")
        self.ack(*self.pull(2))
        self.publish_by_letter("a3", "b3", "c2")
        pulled = [self.pull_texts(2) for _ in range(3)]
        assert [len(each) for each in pulled] == [2, 2, 0]
        assert sorted(text for each in pulled for text in each) == ["a3", "b3", "c1", "d1"]

    def test_gap_records_survive_a_change_of_the_window(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, ordered=True)
        self.publish("1", "missed", key="k")
        self.queue.update_subscription("worker", {"max_outstanding_per_key": 2})
        first, gap = self.consume_with_gaps()
        assert first == "1"
        assert gaps([gap])

    def test_without_ordering_there_are_no_gap_records(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1)
        self.publish("1", "missed", key="k")
        assert self.consume_with_gaps() == ["1"]

    def test_only_what_matches_the_filter_fills_a_subscription(self) -> None:
        """message-queue BR-022"""
        self.subscribe(filter="attributes:wanted", queue_limits={"max_messages": 1})
        self.queue.publish("orders", [Message(b"no")] * 5 + [Message(b"yes", {"wanted": ""})])
        assert self.queue.metrics("worker").counters.dropped == 0
        assert self.consume() == ["yes"]

    # -- error -------------------------------------------------------------------------------------

    def test_a_full_subscription_can_refuse_the_whole_publish(self) -> None:
        """message-queue BR-022: `when_full="error"` stores nothing, for nobody."""
        self.limit(max_messages=2, when_full="error")
        self.subscribe("roomy")
        self.publish("a")
        with self.refused(QueueFull, "worker", "1 messages", "2 messages"):
            self.publish("b", "c")
        self.publish("b")
        assert self.consume() == ["a", "b"]
        assert self.consume("roomy") == ["a", "b"]
        self.publish("c")
        [message] = self.pull()
        assert (message.data, message.position) == (b"c", 2)

    @pytest.mark.parametrize("order", [("error", "block"), ("block", "error")], ids=" then ".join)
    def test_a_full_subscription_refuses_also_if_another_one_has_publishers_wait(self, order: tuple[str, str]) -> None:
        for when_full in order:
            self.limit(when_full, max_messages=1, when_full=when_full)
        self.publish("a")
        with self.refused(QueueFull, "'error'"):
            self.queue.submit("orders", batch_of([Message(b"b")]))

    def test_a_publish_that_is_larger_than_the_whole_queue_is_told_so(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=2, max_bytes=None, when_full="error")
        with self.refused(QueueFull, "worker", "this request alone is beyond its limits of 2 messages"):
            self.publish("a", "b", "c")

    # -- block -------------------------------------------------------------------------------------

    def test_a_full_subscription_can_make_the_publisher_wait(self) -> None:
        """message-queue BR-022: `when_full="block"` loses nothing."""
        self.limit(max_messages=1, when_full="block")
        self.subscribe("roomy")
        self.publish("a")
        waiting = self.in_background(lambda: self.publish("b"))
        assert waits(waiting)
        assert self.pull_texts(subscription="roomy") == ["a"]
        [a] = self.pull()
        self.nack(a)
        assert waits(waiting)
        self.ack(*self.pull())
        [b_id] = waiting.result(PATIENCE_SECONDS)
        [b] = self.pull()
        assert (b.id, b.data) == (b_id, b"b")
        assert self.queue.metrics("worker").counters.dropped == 0

    def test_publishers_that_wait_come_in_the_order_in_which_they_came(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, when_full="block", ordered=True)
        self.publish("0", key="k")
        waiting = []
        for number in range(1, 4):
            waiting.append(self.in_background(lambda text=f"{number}": self.publish(text, key="k")))  # type: ignore[misc]
            assert waits(waiting[-1])
        consumed: list[str] = []
        for _ in range(4):
            messages = self.pull()
            assert len(messages) == 1
            self.ack(*messages)
            consumed += texts(messages)
        assert consumed == ["0", "1", "2", "3"]
        for each in waiting:
            each.result(PATIENCE_SECONDS)

    def test_a_batch_larger_than_the_whole_queue_waits_until_that_is_empty(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=2, when_full="block")
        self.publish("a")
        waiting = self.in_background(lambda: self.publish("b", "c", "d"))
        assert waits(waiting)
        self.ack(*self.pull())
        assert len(waiting.result(PATIENCE_SECONDS)) == 3
        assert self.consume() == ["b", "c", "d"]

    @pytest.mark.parametrize("make_room", MAKES_ROOM.values(), ids=MAKES_ROOM.keys())
    def test_publishers_go_on_whoever_makes_room(self, make_room: Callable[[MessageQueue], None]) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, when_full="block")
        self.publish("a")
        waiting = self.in_background(lambda: self.publish("b"))
        assert waits(waiting)
        make_room(self.queue)
        assert len(waiting.result(PATIENCE_SECONDS)) == 1

    def test_publishers_that_wait_for_a_deleted_topic_are_told(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, when_full="block")
        self.publish("a")
        waiting = self.in_background(lambda: self.publish("b"))
        assert waits(waiting)
        self.queue.unregister_topic("orders")
        assert isinstance(waiting.exception(PATIENCE_SECONDS), TopicNotFound)

    def test_publishers_that_wait_for_a_closed_broker_are_told(self) -> None:
        """message-queue BR-022"""
        self.limit(max_messages=1, when_full="block")
        self.publish("a")
        waiting = self.in_background(lambda: self.publish("b"))
        assert waits(waiting)
        self.queue.close()
        assert isinstance(waiting.exception(PATIENCE_SECONDS), Closed)
        with pytest.raises(Closed):
            self.publish("c")

    def test_a_publisher_that_gives_up_is_told_the_truth_of_what_is_stored(self) -> None:
        """message-queue BR-022: it gives up while its messages are let in, and others still wait."""
        self.limit(max_messages=2, when_full="block")
        self.publish("1", "2")
        first, second, third = answers = [
            self.queue.submit("orders", batch_of([Message(text)])) for text in (b"a", b"b", b"c")
        ]
        first.add_done_callback(lambda _: self.queue.withdraw(answers))
        self.ack(*self.pull())
        assert isinstance(third.exception(PATIENCE_SECONDS), Closed)
        messages = self.pull()
        assert texts(messages) == ["a", "b"]
        assert [message.id for message in messages] == first.result() + second.result()

    def test_retention_makes_room_for_publishers_that_wait(self) -> None:
        """message-queue BR-022"""
        self.subscribe(message_retention_duration=600, queue_limits={"max_messages": 1, "when_full": "block"})
        self.publish("old")
        waiting = self.in_background(lambda: self.publish("new"))
        assert waits(waiting)
        self.clock.advance(700)
        waiting.result(PATIENCE_SECONDS)
        assert self.pull_texts() == ["new"]


class Retention(QueueCase):
    """message-queue, performance considerations: 7 days unless told."""

    @pytest.mark.parametrize(
        ("options", "seconds"), [({}, 7 * DAY_SECONDS), ({"message_retention_duration": 600}, 600)]
    )
    def test_a_message_is_kept_so_long_and_then_removed(self, options: dict[str, Any], seconds: int) -> None:
        self.subscribe(**options)
        self.publish("a")
        self.clock.advance(seconds - 1)
        [message] = self.pull()
        self.nack(message)
        self.clock.advance(2)
        assert self.pull() == []
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes) == (0, 0)
        assert metrics.counters.outdated == 1

    def test_what_nobody_pulls_is_removed_too(self) -> None:
        self.subscribe(message_retention_duration=600)
        self.publish("a", "b")
        self.clock.advance(700)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.counters.outdated) == (0, 0, 2)

    def test_each_subscription_has_its_own_retention(self) -> None:
        self.subscribe("short", message_retention_duration=600)
        self.subscribe("long", message_retention_duration=1200)
        self.publish("a")
        self.clock.advance(900)
        assert self.pull(subscription="short") == []
        assert self.pull_texts(subscription="long") == ["a"]

    def test_what_is_out_can_be_acked_when_its_retention_is_over(self) -> None:
        self.subscribe(message_retention_duration=600, ack_deadline_seconds=600)
        self.publish("a")
        self.clock.advance(300)
        [message] = self.pull()
        self.clock.advance(500)
        self.ack(message)
        counters = self.queue.metrics("worker").counters
        assert (counters.acked, counters.outdated) == (1, 0)

    def test_what_comes_back_after_its_retention_is_not_delivered_again(self) -> None:
        self.subscribe(message_retention_duration=600, ack_deadline_seconds=600)
        self.publish("a")
        self.clock.advance(300)
        self.pull()
        self.clock.advance(600)
        assert self.pull() == []
        self.clock.advance(60)
        assert self.queue.metrics("worker").backlog_messages == 0

    @pytest.mark.parametrize("max_messages", [1, 100])
    def test_what_is_too_old_does_not_hide_what_is_not(self, max_messages: int) -> None:
        self.subscribe(message_retention_duration=600)
        for text in ("1", "2", "3"):
            self.publish(text)
            self.clock.advance(30)
        self.clock.advance(515)
        messages = self.pull(max_messages)
        assert texts(messages)[0] == "2"
        self.nack(*messages)
        self.clock.advance(27)
        assert self.pull_texts(max_messages) == ["3"]

    def test_an_ordered_subscription_is_told_what_has_become_too_old(self) -> None:
        self.subscribe(message_retention_duration=600, enable_message_ordering=True)
        self.publish("1", "2", key="k")
        self.clock.advance(400)
        self.publish("3", key="k")
        self.clock.advance(400)
        consumed = self.consume_with_gaps()
        assert consumed[-1] == "3"
        assert {gap.reason for gap in gaps(consumed)} == {"expired"}
        assert sum(gap.count for gap in gaps(consumed)) == 2
        assert self.queue.metrics("worker").backlog_messages == 0

    @pytest.mark.parametrize("options", [{}, {"enable_message_ordering": True}])
    def test_what_waits_for_its_backoff_becomes_too_old_all_the_same(self, options: dict[str, Any]) -> None:
        retry_policy = {"minimum_backoff": 1200, "maximum_backoff": 1200}
        self.subscribe(message_retention_duration=600, retry_policy=retry_policy, **options)
        self.publish("keyed", key="k")
        self.publish("keyless")
        self.nack(*self.pull())
        self.clock.advance(700)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.counters.outdated) == (0, 2)
        self.clock.advance(700)
        assert self.pull() == []

    @pytest.mark.parametrize(("ordered", "key"), [(False, "k"), (False, None), (True, None)])
    def test_where_no_order_is_promised_nothing_is_told(self, ordered: bool, key: str | None) -> None:
        self.subscribe(message_retention_duration=600, enable_message_ordering=ordered)
        self.publish("1", key=key)
        self.clock.advance(700)
        assert self.consume_with_gaps() == []

    def test_retention_can_be_changed(self) -> None:
        self.subscribe(message_retention_duration=600)
        self.publish("a")
        self.queue.update_subscription("worker", {"message_retention_duration": 1200})
        self.clock.advance(900)
        assert self.queue.metrics("worker").backlog_messages == 1
        self.queue.update_subscription("worker", {"message_retention_duration": 1000})
        self.clock.advance(180)
        assert self.queue.metrics("worker").backlog_messages == 0
