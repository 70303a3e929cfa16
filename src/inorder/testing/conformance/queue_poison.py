"""Keys in trouble: parked, blocked, resumed or skipped, and what can be seen of them."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import KeyNotBlocked, SubscriptionNotFound
from inorder.message import Gap
from inorder.metadata import BlockedKey, Unacked, UnackedKey
from inorder.testing.conformance.case import QueueCase, texts

ATTEMPTS = 5  # failed deliveries after which a key is parked unless a policy says otherwise


class Poison(QueueCase):
    def subscribe_parking(self, **options: Any) -> None:
        self.subscribe(enable_message_ordering=True, on_poison="park_key", **options)

    # -- park --------------------------------------------------------------------------------------

    def test_a_key_that_fails_too_often_is_parked_and_keeps_all_its_messages(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "a3")
        self.fail(ATTEMPTS)
        assert self.pull() == []
        self.publish_by_letter("a4")
        self.clock.advance(3600)
        assert self.pull() == []
        metrics = self.queue.metrics("worker")
        assert (metrics.parked_keys, metrics.backlog_messages, metrics.outstanding_messages) == (1, 4, 0)

    def test_a_parked_key_keeps_no_other_waiting(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        self.fail(ATTEMPTS)
        self.publish_by_letter("b1", "b2")
        self.publish("free")
        assert sorted(self.consume()) == ["b1", "b2", "free"]

    def test_lost_leases_park_a_key_too(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        for _ in range(ATTEMPTS):
            assert self.pull_texts() == ["a1"]
            self.clock.advance(10)
        assert self.pull() == []
        assert self.queue.metrics("worker").parked_keys == 1

    def test_a_policy_says_after_how_many_attempts_and_nothing_is_dead_lettered(self) -> None:
        self.subscribe("undertaker", "dead")
        self.subscribe_parking(dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 7})
        self.publish_by_letter("a1")
        assert self.fail(7) == ["a1"] * 7
        assert self.pull() == []
        assert self.queue.metrics("worker").parked_keys == 1
        assert self.pull(subscription="undertaker") == []

    def test_a_message_without_a_key_has_nothing_to_park(self) -> None:
        self.subscribe("undertaker", "dead")
        self.subscribe_parking(dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5})
        self.publish("free")
        self.fail(5)
        assert self.pull() == []
        assert self.pull_texts(subscription="undertaker") == ["free"]

    def test_a_message_without_a_key_and_without_a_policy_is_retried(self) -> None:
        self.subscribe_parking()
        self.publish("free")
        assert self.fail(20) == ["free"] * 20

    def test_a_resumed_key_starts_over_in_order(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "a3")
        self.fail(ATTEMPTS)
        self.queue.resume_key("worker", "a")
        [message] = self.pull()
        assert (message.data, message.delivery_attempt) == (b"a1", 1)
        self.ack(message)
        assert self.consume() == ["a2", "a3"]
        assert self.queue.metrics("worker").parked_keys == 0

    def test_a_resumed_key_is_parked_again_when_it_fails_as_often_again(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        for _ in range(3):
            assert self.fail(ATTEMPTS) == ["a1"] * ATTEMPTS
            assert self.pull() == []
            self.queue.resume_key("worker", "a")

    def test_skipping_gives_up_the_first_message_and_the_key_goes_on(self) -> None:
        self.subscribe_parking()
        first_id, *_ = self.publish_by_letter("a1", "a2", "a3")
        self.fail(ATTEMPTS)
        assert self.queue.skip("worker", "a") == first_id
        assert self.consume() == ["a2", "a3"]
        metrics = self.queue.metrics("worker")
        assert (metrics.counters.skipped, metrics.backlog_messages, metrics.backlog_bytes) == (1, 0, 0)

    def test_skipping_is_told_by_a_gap(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        self.fail(ATTEMPTS)
        self.queue.skip("worker", "a")
        assert self.consume_with_gaps() == [Gap("a", 0, 0, 1, "skipped"), "a2"]

    def test_the_last_message_of_a_key_can_be_skipped(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1")
        self.fail(ATTEMPTS)
        self.queue.skip("worker", "a")
        assert self.pull() == []
        self.publish_by_letter("a2")
        assert self.consume() == ["a2"]

    def test_a_parked_key_stays_parked_when_other_options_change(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        self.fail(ATTEMPTS)
        self.queue.update_subscription("worker", {"ack_deadline_seconds": 60})
        assert self.pull() == []

    def test_a_parked_key_stays_parked_when_the_window_changes(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        self.fail(ATTEMPTS)
        self.queue.update_subscription("worker", {"max_outstanding_per_key": 2})
        assert self.pull() == []
        self.queue.resume_key("worker", "a")
        assert self.consume() == ["a1", "a2"]

    def test_seeking_frees_a_parked_key(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2")
        self.fail(ATTEMPTS)
        self.queue.seek("worker", position=0)
        assert self.queue.metrics("worker").parked_keys == 0
        assert self.consume() == ["a1", "a2"]

    def test_all_that_was_out_of_a_key_is_parked_with_it(self) -> None:
        self.subscribe_parking(max_outstanding_per_key=3)
        self.publish_by_letter("a1", "a2", "a3", "a4")
        for _ in range(ATTEMPTS):
            self.nack(self.pull()[0])
        assert self.pull() == []
        self.queue.skip("worker", "a")
        assert self.pull_texts() == ["a2", "a3", "a4"]

    def test_every_message_of_a_key_counts_once_when_the_parked_one_is_too_old(self) -> None:
        self.subscribe_parking(message_retention_duration=600)
        self.publish_by_letter("a1")
        self.fail(ATTEMPTS)
        self.clock.advance(400)
        self.publish_by_letter("a2", "a3")
        self.clock.advance(300)
        self.queue.skip("worker", "a")
        consumed = self.consume()
        counters = self.queue.metrics("worker").counters
        assert counters.outdated == 1
        assert len(consumed) + counters.skipped + counters.outdated == 3

    # -- block -------------------------------------------------------------------------------------

    def test_a_blocked_key_is_retried_for_ever(self) -> None:
        self.subscribe("undertaker", "dead")
        self.subscribe(
            enable_message_ordering=True,
            on_poison="block",
            dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5},
        )
        self.publish_by_letter("a1", "a2")
        assert self.fail(50) == ["a1"] * 50
        assert self.pull(subscription="undertaker") == []
        assert self.consume() == ["a1", "a2"]

    # -- backoff -----------------------------------------------------------------------------------

    def test_a_key_in_backoff_can_be_resumed(self) -> None:
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 600})
        self.publish_by_letter("a1", "a2")
        self.fail(1)
        self.queue.resume_key("worker", "a")
        assert self.consume() == ["a1", "a2"]
        self.clock.advance(600)
        assert self.pull() == []

    def test_a_key_in_backoff_can_be_skipped(self) -> None:
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 600})
        self.publish_by_letter("a1", "a2")
        self.fail(1)
        self.queue.skip("worker", "a")
        assert self.consume() == ["a2"]
        self.clock.advance(600)
        assert self.pull() == []

    def test_a_gap_before_a_key_in_backoff_is_not_what_is_skipped_resumed_or_shown(self) -> None:
        self.subscribe("undertaker", "dead")
        self.subscribe(
            enable_message_ordering=True,
            max_outstanding_per_key=2,
            retry_policy={"minimum_backoff": 300, "maximum_backoff": 300},
            dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5},
        )
        _, second_id, _ = self.publish_by_letter("a1", "a2", "a3")
        for _ in range(4):
            self.nack(self.pull()[0])
            self.clock.advance(300)
        assert self.pull_texts() == ["a1", "a2"]
        self.clock.advance(10)  # a1 dies with this, a2 fails for the first time
        assert self.pull_texts(subscription="undertaker") == ["a1"]
        [blocked] = self.queue.blocked_keys("worker")
        assert (blocked.reason, blocked.position, blocked.failures, blocked.waiting) == ("backoff", 1, 1, 2)
        assert self.queue.skip("worker", "a") == second_id
        assert self.consume() == ["a3"]

    @pytest.mark.parametrize("key", ["a", "b", "nobody"])
    def test_only_a_key_that_is_held_can_be_resumed_or_skipped(self, key: str) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "b1")
        self.pull(1)
        with self.refused(KeyNotBlocked, repr(key)):
            self.queue.resume_key("worker", key)
        with self.refused(KeyNotBlocked, repr(key)):
            self.queue.skip("worker", key)

    def test_keys_of_an_unknown_subscription_are_not_found(self) -> None:
        for call in (self.queue.resume_key, self.queue.skip):
            with self.refused(SubscriptionNotFound, "nobody"):
                call("nobody", "k")
        with self.refused(SubscriptionNotFound, "nobody"):
            self.queue.blocked_keys("nobody")
        with self.refused(SubscriptionNotFound, "nobody"):
            self.queue.unacked("nobody")

    # -- what can be seen --------------------------------------------------------------------------

    def test_what_is_not_acked_is_shown_by_key_and_up_to_where(self) -> None:
        self.subscribe(enable_message_ordering=True)
        assert self.queue.unacked("worker") == Unacked((), 0)
        self.publish_by_letter("a1", "b1", "a2", "a3", "c1")
        first, *_ = self.pull()  # what is out is not acked
        keys = (UnackedKey("a", 3, 0), UnackedKey("b", 1, 1), UnackedKey("c", 1, 4))
        assert self.queue.unacked("worker") == Unacked(keys, 5)
        self.queue.ack(first.ack_id)
        assert self.queue.unacked("worker") == Unacked((UnackedKey("a", 2, 2), *keys[1:]), 5)

    def test_a_key_that_is_parked_is_not_acked(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "b1")
        self.fail(ATTEMPTS)
        assert self.queue.unacked("worker").keys[0] == UnackedKey("a", 2, 0)

    def test_a_key_that_waits_for_an_ack_is_shown(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter("a1", "a2", "a3", "b1")
        assert self.queue.blocked_keys("worker") == []
        self.clock.advance(5)
        self.pull()
        self.clock.advance(2)
        [blocked] = self.queue.blocked_keys("worker")
        assert blocked == BlockedKey("a", "out", 2, 0, 0, age_seconds=7, head_of_line_seconds=2)

    def test_a_key_in_backoff_is_shown(self) -> None:
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 30})
        self.publish_by_letter("b1")
        self.ack(*self.pull())
        self.publish_by_letter("a1", "a2")
        self.clock.advance(5)
        self.fail(1)
        self.clock.advance(3)
        [blocked] = self.queue.blocked_keys("worker")
        assert blocked == BlockedKey("a", "backoff", 2, 1, 1, age_seconds=8, head_of_line_seconds=3)
        self.clock.advance(27)
        assert self.queue.blocked_keys("worker") == []
        self.pull()
        [blocked] = self.queue.blocked_keys("worker")
        assert blocked == BlockedKey("a", "out", 1, 1, 1, age_seconds=35, head_of_line_seconds=30)

    def test_a_parked_key_is_shown_since_its_first_delivery(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "a3")
        self.clock.advance(100)
        for _ in range(ATTEMPTS):
            self.fail(1)
            self.clock.advance(10)
        [blocked] = self.queue.blocked_keys("worker")
        assert blocked == BlockedKey("a", "parked", 3, 0, ATTEMPTS, age_seconds=150, head_of_line_seconds=50)
        metrics = self.queue.metrics("worker")
        assert (metrics.blocked_keys, metrics.parked_keys, metrics.head_of_line_seconds) == (1, 1, 50)

    def test_the_longest_blocked_key_gives_the_head_of_line_seconds(self) -> None:
        self.subscribe(enable_message_ordering=True, ack_deadline_seconds=600)
        self.publish_by_letter("a1", "a2", "b1", "b2", "c1")
        assert texts(self.pull(1)) == ["a1"]
        self.clock.advance(30)
        out = self.pull()
        self.clock.advance(5)
        metrics = self.queue.metrics("worker")
        assert (metrics.blocked_keys, metrics.parked_keys, metrics.head_of_line_seconds) == (2, 0, 35)
        self.ack(*out)
        assert {blocked.ordering_key for blocked in self.queue.blocked_keys("worker")} == {"a"}

    def test_a_key_with_room_in_its_window_is_not_blocked(self) -> None:
        self.subscribe(enable_message_ordering=True, max_outstanding_per_key=3)
        self.publish_by_letter("a1", "a2", "a3", "a4")
        self.pull(1)
        assert self.queue.blocked_keys("worker") == []
        self.pull()
        [blocked] = self.queue.blocked_keys("worker")
        assert (blocked.reason, blocked.waiting, blocked.position) == ("out", 1, 0)

    def test_without_ordering_no_key_is_blocked(self) -> None:
        self.subscribe(retry_policy={"minimum_backoff": 30})
        self.publish_by_letter("a1", "a2")
        self.nack(self.pull()[0])
        assert self.queue.blocked_keys("worker") == []
        assert self.queue.metrics("worker").blocked_keys == 0

    def test_when_all_is_acked_no_key_is_blocked(self) -> None:
        self.subscribe_parking()
        self.publish_by_letter("a1", "a2", "b1")
        self.fail(1)
        self.consume()
        metrics = self.queue.metrics("worker")
        assert (metrics.blocked_keys, metrics.parked_keys, metrics.head_of_line_seconds) == (0, 0, 0)
