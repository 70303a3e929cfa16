"""Seeking, filtering, changing options, and the numbers a subscription tells of itself."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from inorder.errors import FailedPrecondition, InvalidArgument, NotRetained, SubscriptionNotFound
from inorder.message import Message
from inorder.metadata import Counters
from inorder.testing.conformance.case import QueueCase

ZONES = [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))]


class Nowhere(tzinfo):
    """A time zone that does not know how far from UTC it is."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


BAD_TARGETS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["either a position or a time"]),
    ({"position": 0, "time": 0.0}, ["either a position or a time"]),
    ({"position": -1}, ["position", "-1"]),
    ({"position": 3}, ["position", "up to 2", "not 3"]),
    ({"position": 1.0}, ["position", "1.0"]),
    ({"position": True}, ["position", "True"]),
    ({"position": "1"}, ["position", "'1'"]),
    ({"position": 10**5000}, ["position"]),
    ({"time": "now"}, ["time", "seconds since 1970", "'now'"]),
    ({"time": True}, ["time", "True"]),
    ({"time": math.nan}, ["time", "nan"]),
    ({"time": math.inf}, ["time", "inf"]),
    ({"time": -math.inf}, ["time", "-inf"]),
    ({"time": 1e300}, ["time", "1e+300"]),
    ({"time": -1e300}, ["time", "-1e+300"]),
    ({"time": 10**5000}, ["time"]),
    ({"time": -(10**5000)}, ["time"]),
    ({"time": datetime(2026, 1, 1)}, ["time zone"]),  # noqa: DTZ001
    ({"time": datetime(1, 1, 1)}, ["time zone"]),  # noqa: DTZ001
    ({"time": datetime(1, 1, 1, tzinfo=Nowhere())}, ["time zone"]),
    ({"time": date(2026, 1, 1)}, ["time", "2026"]),
]


class Seeking(QueueCase):
    def subscribe_retaining(self, **options: Any) -> None:
        self.subscribe(retain_acked_messages=True, **options)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_us() / 1_000_000, UTC)

    # -- to a position -----------------------------------------------------------------------------

    def test_acked_messages_that_are_retained_can_be_delivered_again(self) -> None:
        self.subscribe_retaining()
        self.publish("0", "1", "2", "3")
        self.consume()
        self.queue.seek("worker", position=1)
        assert self.queue.metrics("worker").backlog_messages == 3
        assert self.consume() == ["1", "2", "3"]

    def test_a_topic_can_retain_messages_for_all_its_subscriptions(self) -> None:
        self.queue.register_topic("orders", {"message_retention_duration": 600})
        self.subscribe()
        self.publish("0", "1")
        self.consume()
        self.subscribe("late")
        for name in ("worker", "late"):
            self.queue.seek(name, position=0)
            assert self.consume(name) == ["0", "1"]

    def test_what_is_replayed_has_its_id_position_and_time_and_starts_over(self) -> None:
        self.subscribe_retaining()
        self.publish("0")
        self.fail(2)
        [before] = self.pull()
        self.ack(before)
        self.clock.advance(60)
        self.queue.seek("worker", position=0)
        [again] = self.pull()
        assert (again.id, again.position, again.publish_time) == (before.id, before.position, before.publish_time)
        assert (before.delivery_attempt, again.delivery_attempt) == (3, 1)
        assert again.ack_id != before.ack_id

    def test_what_waited_for_its_backoff_comes_once_after_a_seek(self) -> None:
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 30})
        self.publish("keyless")
        self.publish("keyed", key="k")
        self.nack(*self.pull())
        self.queue.seek("worker", position=0)
        again = self.pull()
        assert [(message.data, message.delivery_attempt) for message in again] == [(b"keyless", 1), (b"keyed", 1)]
        self.clock.advance(5)
        self.ack(*again)
        self.clock.advance(60)
        assert self.pull() == []
        assert self.queue.metrics("worker").backlog_messages == 0

    def test_seeking_ends_what_is_out(self) -> None:
        self.subscribe_retaining(enable_message_ordering=True)
        self.publish("0", "1", key="k")
        out = self.pull()
        self.queue.seek("worker", position=0)
        self.assert_over(*out)
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes, metrics.backlog_messages) == (0, 0, 2)
        assert self.consume() == ["0", "1"]

    def test_a_replay_keeps_the_order_of_keys(self) -> None:
        self.subscribe_retaining(enable_message_ordering=True)
        self.publish_by_letter("a1", "b1", "a2", "b2", "a3")
        self.consume()
        self.publish_by_letter("b3")
        self.queue.seek("worker", position=0)
        replayed = self.consume()
        assert [text for text in replayed if text[0] == "a"] == ["a1", "a2", "a3"]
        assert [text for text in replayed if text[0] == "b"] == ["b1", "b2", "b3"]

    def test_seeking_to_the_end_clears_the_backlog(self) -> None:
        self.subscribe()
        self.publish("0", "1")
        topic = self.queue.get_topic("orders")
        assert topic is not None
        self.queue.seek("worker", position=topic.next_position)
        assert self.queue.metrics("worker").backlog_messages == 0
        self.publish("2")
        assert self.consume() == ["2"]

    def test_unacked_messages_need_no_retention(self) -> None:
        self.subscribe()
        self.publish("0", "1", "2")
        self.ack(*self.pull(1))
        self.pull()
        self.queue.seek("worker", position=1)
        assert self.consume() == ["1", "2"]

    def test_a_position_that_is_no_longer_retained_is_refused(self) -> None:
        self.subscribe()
        self.publish("0", "1", "2")
        self.ack(*self.pull(2))
        with self.refused(NotRetained, "position 1 ", "from 2 on"):
            self.queue.seek("worker", position=1)
        assert self.consume() == ["2"]

    def test_without_retention_only_what_is_unacked_comes_again(self) -> None:
        self.subscribe()
        self.publish("0", "1", "2")
        self.ack(self.pull()[1])
        self.queue.seek("worker", position=0)
        assert self.pull_texts() == ["0", "2"]

    @pytest.mark.parametrize("on", ["topic", "subscription"])
    def test_retained_messages_are_forgotten_in_time(self, on: str) -> None:
        self.queue.register_topic("orders", {"message_retention_duration": 600} if on == "topic" else None)
        if on == "topic":
            self.subscribe()
        else:
            self.subscribe_retaining(message_retention_duration=600)
        self.publish("0")
        self.clock.advance(400)
        self.publish("1")
        self.consume()
        self.clock.advance(400)
        with self.refused(NotRetained, "position 0 ", "from 1 on"):
            self.queue.seek("worker", position=0)
        self.queue.seek("worker", position=1)
        assert self.consume() == ["1"]

    def test_what_is_replayed_is_retained_no_longer_than_before(self) -> None:
        self.queue.register_topic("orders", {"message_retention_duration": 1200})
        self.subscribe(message_retention_duration=600)
        self.publish("0")
        self.consume()
        self.clock.advance(300)
        self.queue.seek("worker", position=0)
        self.clock.advance(400)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.counters.outdated) == (0, 1)

    def test_only_what_matches_the_filter_is_replayed(self) -> None:
        self.subscribe_retaining(filter="attributes:wanted")
        self.queue.publish("orders", [Message(b"no"), Message(b"yes", {"wanted": ""})])
        self.consume()
        self.queue.seek("worker", position=0)
        assert self.consume() == ["yes"]

    def test_seeking_moves_one_subscription_only(self) -> None:
        self.subscribe_retaining()
        self.subscribe("other")
        self.publish("0", "1")
        self.consume()
        self.consume("other")
        self.queue.seek("worker", position=0)
        assert self.pull(subscription="other") == []

    # -- to a time ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("as_seconds", [False, True])
    def test_messages_published_since_a_time_can_be_delivered_again(self, as_seconds: bool) -> None:
        self.subscribe_retaining()
        self.publish("0")
        self.clock.advance(10)
        since = self.now()
        self.publish("1")
        self.clock.advance(10)
        self.publish("2")
        self.consume()
        self.queue.seek("worker", time=since.timestamp() if as_seconds else since)
        assert self.consume() == ["1", "2"]
        self.queue.seek("worker", time=since + timedelta(microseconds=1))
        assert self.consume() == ["2"]

    @pytest.mark.parametrize("time", [0, -1.5, *(datetime.min.replace(tzinfo=zone) for zone in ZONES)], ids=str)
    def test_a_time_before_everything_replays_all_that_is_retained(self, time: datetime | float) -> None:
        self.subscribe_retaining()
        self.publish("0", "1")
        self.consume()
        self.queue.seek("worker", time=time)
        assert self.consume() == ["0", "1"]

    @pytest.mark.parametrize("zone", ZONES, ids=str)
    def test_a_time_may_be_the_last_there_is(self, zone: timezone) -> None:
        self.subscribe_retaining()
        self.publish("0", "1")
        self.queue.seek("worker", time=datetime.max.replace(tzinfo=zone))
        assert self.consume() == []

    def test_a_time_means_when_a_message_was_stored_in_this_topic(self) -> None:
        """A dead letter keeps its publish time, and is stored when it dies."""
        self.subscribe("undertaker", "dead", retain_acked_messages=True)
        self.subscribe(dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 1})
        self.publish("a")
        self.clock.advance(60)
        since = self.now()
        self.fail(1)
        [letter] = self.pull(subscription="undertaker")
        assert letter.publish_time is not None
        assert letter.publish_time < since
        self.ack(letter)
        self.queue.seek("undertaker", time=since)
        assert self.consume("undertaker") == ["a"]
        self.queue.seek("undertaker", time=since + timedelta(microseconds=1))
        assert self.consume("undertaker") == []

    def test_a_time_after_everything_clears_the_backlog(self) -> None:
        self.subscribe()
        self.publish("0", "1")
        self.pull(1)
        self.queue.seek("worker", time=self.now() + timedelta(seconds=1))
        self.clock.advance(60)
        assert self.pull() == []
        assert self.queue.metrics("worker").backlog_bytes == 0

    def test_without_retention_a_time_brings_back_what_is_unacked(self) -> None:
        self.subscribe()
        self.publish("0", "1")
        self.ack(*self.pull(1))
        self.queue.seek("worker", time=0)
        assert self.consume() == ["1"]

    # -- what cannot be sought ---------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("target", "words"),
        BAD_TARGETS,
        ids=[", ".join(words) for _, words in BAD_TARGETS],
    )
    def test_a_target_that_makes_no_sense_is_refused(self, target: dict[str, Any], words: list[str]) -> None:
        self.subscribe_retaining()
        self.publish("0", "1")
        with self.refused(InvalidArgument, *words):
            self.queue.seek("worker", **target)
        assert self.consume() == ["0", "1"]

    def test_a_detached_subscription_cannot_seek(self) -> None:
        self.subscribe_retaining()
        self.publish("0")
        self.queue.unregister_topic("orders")
        with self.refused(FailedPrecondition, "worker", "detached"):
            self.queue.seek("worker", position=0)
        with self.refused(FailedPrecondition, "worker", "detached"):
            self.queue.seek("worker", time=0)

    def test_an_unknown_subscription_cannot_seek(self) -> None:
        with self.refused(SubscriptionNotFound, "nobody"):
            self.queue.seek("nobody", position=0)


class Filtering(QueueCase):
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("attributes:kind", ["order", "bill"]),
            ('attributes.kind = "order"', ["order"]),
            ('attributes.kind != "order"', ["bill", "bare"]),
            ('hasPrefix(attributes.kind, "b")', ["bill"]),
            ("NOT attributes:kind", ["bare"]),
            ('attributes.kind = "order" OR attributes.kind = "bill"', ["order", "bill"]),
        ],
    )
    def test_a_subscription_gets_what_matches_its_filter(self, text: str, expected: list[str]) -> None:
        self.subscribe(filter=text)
        self.queue.publish(
            "orders", [Message(b"order", {"kind": "order"}), Message(b"bill", {"kind": "bill"}), Message(b"bare")]
        )
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes > 0) == (len(expected), True)
        assert self.consume() == expected

    def test_what_does_not_match_does_not_block_its_key(self) -> None:
        self.subscribe(filter="attributes:wanted", enable_message_ordering=True)
        wanted = {"wanted": ""}
        for attributes, text in ((wanted, b"1"), ({}, b"2"), (wanted, b"3")):
            self.queue.publish("orders", [Message(text, attributes, "k")])
        assert self.consume_with_gaps() == ["1", "3"]

    def test_the_others_of_a_topic_get_everything(self) -> None:
        self.subscribe("filtered", filter="attributes:wanted")
        self.subscribe("all")
        assert len(self.publish("a", "b")) == 2
        assert self.pull(subscription="filtered") == []
        assert self.pull_texts(subscription="all") == ["a", "b"]


class Changing(QueueCase):
    def test_the_named_options_change_and_the_others_stay(self) -> None:
        self.subscribe(enable_message_ordering=True, ack_deadline_seconds=60)
        self.queue.update_subscription("worker", {"ack_deadline": 120, "retry_policy": {"minimum_backoff": 5}})
        subscription = self.queue.get_subscription("worker")
        assert subscription is not None
        assert subscription.options.enable_message_ordering
        assert subscription.options.ack_deadline_seconds == 120
        assert subscription.options.retry_policy is not None
        assert subscription.options.retry_policy.minimum_backoff == 5

    def test_a_new_ack_deadline_holds_for_new_leases(self) -> None:
        self.subscribe()
        self.publish("a")
        [first] = self.pull()
        self.queue.update_subscription("worker", {"ack_deadline_seconds": 60})
        self.clock.advance(10)
        self.assert_over(first)
        [second] = self.pull()
        self.clock.advance(59)
        assert self.pull() == []
        self.ack(second)

    def test_what_is_out_stays_out_when_the_rules_of_order_stay(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", key="k")
        [one] = self.pull()
        self.queue.update_subscription("worker", {"retry_policy": {"minimum_backoff": 5}})
        assert self.pull() == []
        self.ack(one)
        assert self.pull_texts() == ["2"]

    def test_options_can_be_taken_away(self) -> None:
        self.subscribe(retry_policy={"minimum_backoff": 30}, flow_control={"max_messages": 1})
        self.queue.update_subscription("worker", {"retry_policy": None, "flow_control": None})
        self.publish("a", "b")
        assert len(self.pull()) == 2


class Numbers(QueueCase):
    def test_counters_tell_what_has_happened(self) -> None:
        self.subscribe("undertaker", "dead")
        self.subscribe(
            enable_message_ordering=True,
            message_retention_duration=600,
            queue_limits={"max_messages": 3},
            dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5},
        )
        self.publish_by_letter("a1", "b1", "c1", "dropped")
        a1, b1, _ = self.pull()
        self.ack(a1)
        self.nack(b1)
        self.clock.advance(10)  # c1 expires
        b1, c1 = sorted(self.pull(), key=lambda message: message.data)
        self.ack(c1)
        self.nack(b1)
        self.fail(3)  # and with the fifth failure b1 dies
        self.publish_by_letter("z1")
        self.clock.advance(700)
        self.pull()
        assert self.queue.metrics("worker").counters == Counters(
            delivered=8, redelivered=5, acked=2, nacked=5, expired=1, dead_lettered=1, dropped=1, outdated=1
        )

    def test_gauges_tell_how_it_stands(self) -> None:
        self.subscribe(ack_deadline_seconds=600)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.oldest_unacked_seconds) == (0, 0, 0)
        self.publish("1")
        self.clock.advance(20)
        self.publish("22", "333")
        self.clock.advance(5)
        one, two = self.pull(2)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes) == (3, 6)
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (2, 3)
        assert metrics.oldest_unacked_seconds == 25
        self.ack(one)
        assert self.queue.metrics("worker").oldest_unacked_seconds == 5
        self.ack(two, *self.pull())
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.oldest_unacked_seconds) == (0, 0, 0)

    def test_the_size_of_a_message_is_data_key_and_attributes_in_bytes(self) -> None:
        """message-queue BR-017"""
        self.subscribe()
        self.queue.publish("orders", [Message(b"1234", {"é": "12"}, "ключ")])
        assert self.queue.metrics("worker").backlog_bytes == 4 + 2 + 2 + 8

    def test_metrics_are_a_copy(self) -> None:
        self.subscribe()
        self.publish("a")
        before = self.queue.metrics("worker")
        self.ack(*self.pull())
        assert (before.counters.acked, before.backlog_messages) == (0, 1)
        assert self.queue.metrics("worker").counters.acked == 1
