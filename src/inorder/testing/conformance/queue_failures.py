"""What fails comes again after its backoff, until it goes to the dead letters. Nothing gets lost."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from inorder.message import Gap, Message
from inorder.testing.conformance.case import QueueCase, gaps, texts

ATTEMPTS = 5  # the fewest that Pub/Sub takes


class Backoff(QueueCase):
    def test_the_backoff_doubles_with_each_attempt_up_to_its_maximum(self) -> None:
        """message-queue BR-015"""
        self.subscribe(retry_policy={"minimum_backoff": 10, "maximum_backoff": 60})
        self.publish("a")
        for attempt, seconds in enumerate((10, 20, 40, 60, 60), 1):
            [message] = self.pull()
            assert message.delivery_attempt == attempt
            self.nack(message)
            assert self.pull() == []
            self.clock.advance(seconds - 0.5)
            assert self.pull() == []
            self.clock.advance(0.5)
        assert self.pull_texts() == ["a"]

    def test_a_lost_lease_waits_for_its_backoff_too(self) -> None:
        """message-queue BR-015"""
        self.subscribe(retry_policy={"minimum_backoff": 30, "maximum_backoff": 60})
        self.publish("a")
        self.pull()
        self.clock.advance(10)
        self.clock.advance(29)
        assert self.pull() == []
        self.clock.advance(1)
        assert self.pull_texts() == ["a"]

    def test_a_deadline_of_zero_waits_for_its_backoff_too(self) -> None:
        """message-queue BR-015"""
        self.subscribe(retry_policy={"minimum_backoff": 30})
        self.publish("a")
        [message] = self.pull()
        self.queue.modify_ack_deadline(message.ack_id, 0)
        assert self.pull() == []
        self.clock.advance(30)
        assert self.pull_texts() == ["a"]

    @pytest.mark.parametrize("options", [{}, {"retry_policy": {"minimum_backoff": 0, "maximum_backoff": 0}}])
    def test_without_a_retry_policy_there_is_no_backoff(self, options: dict[str, Any]) -> None:
        """message-queue BR-015"""
        self.subscribe(**options)
        self.publish("a")
        assert self.fail(10) == ["a"] * 10

    def test_what_waits_for_its_backoff_keeps_nobody_else_waiting(self) -> None:
        """message-queue BR-015"""
        self.subscribe(retry_policy={"minimum_backoff": 30})
        self.publish("a", "b", "c")
        a, _, _ = self.pull()
        self.nack(a)
        self.publish("d")
        assert self.pull_texts() == ["d"]

    def test_what_waits_for_its_backoff_is_still_backlog(self) -> None:
        """message-queue BR-015"""
        self.subscribe(retry_policy={"minimum_backoff": 30})
        self.publish("a")
        self.nack(*self.pull())
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.outstanding_messages) == (1, 1, 0)
        assert metrics.oldest_unacked_seconds == 0
        self.clock.advance(20)
        assert self.queue.metrics("worker").oldest_unacked_seconds == 20


class DeadLetters(QueueCase):
    def subscribe_mortal(self, dead_letter_topic: str = "dead", **options: Any) -> None:
        """A subscription whose messages may die; "undertaker" gets them."""
        policy = {"dead_letter_topic": dead_letter_topic, "max_delivery_attempts": ATTEMPTS}
        self.subscribe(dead_letter_policy=policy, **options)

    def bury(self, name: str = "undertaker", **options: Any) -> None:
        self.subscribe(name, "dead", **options)

    def test_a_message_dies_after_exactly_so_many_failed_deliveries(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.publish("a")
        assert self.fail(ATTEMPTS - 1) == ["a"] * (ATTEMPTS - 1)
        assert self.pull(subscription="undertaker") == []
        [last] = self.pull()
        assert last.delivery_attempt == ATTEMPTS
        self.nack(last)
        assert self.pull_texts(subscription="undertaker") == ["a"]
        assert self.pull() == []
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.outstanding_messages) == (0, 0, 0)
        assert (metrics.counters.nacked, metrics.counters.dead_lettered) == (ATTEMPTS, 1)

    def test_lost_leases_count_as_failed_deliveries(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.publish("a")
        for _ in range(ATTEMPTS):
            assert self.pull_texts() == ["a"]
            self.clock.advance(10)
        assert self.pull() == []
        assert self.pull_texts(subscription="undertaker") == ["a"]

    def test_a_message_that_succeeds_at_its_last_attempt_does_not_die(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.publish("a")
        self.fail(ATTEMPTS - 1)
        self.ack(*self.pull())
        assert self.pull(subscription="undertaker") == []
        assert self.queue.metrics("worker").counters.dead_lettered == 0

    def test_a_dead_letter_keeps_its_metadata(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.queue.publish("orders", [Message(b"a", {"kind": "order"}, "user-123")])
        [first] = self.pull()
        self.nack(first)
        self.clock.advance(3600)
        self.fail(ATTEMPTS - 1)
        [dead] = self.pull(subscription="undertaker")
        assert dead.publish_time == first.publish_time
        assert (dead.data, dict(dead.attributes), dead.ordering_key) == (b"a", {"kind": "order"}, "user-123")
        assert dead.delivery_attempt == 1
        assert dead.id != first.id

    def test_a_dead_letter_is_retained_from_its_death_on(self) -> None:
        """message-queue BR-016"""
        self.bury(message_retention_duration=600)
        self.subscribe_mortal()
        self.publish("a")
        self.clock.advance(3600)
        self.fail(ATTEMPTS)
        self.clock.advance(500)
        assert self.pull_texts(subscription="undertaker") == ["a"]

    def test_a_dead_letter_dies_on_one_subscription_only(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.subscribe("healthy")
        self.publish("a")
        self.fail(ATTEMPTS)
        assert self.consume("healthy") == ["a"]

    def test_the_next_of_the_key_goes_on_and_a_gap_is_told(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal(enable_message_ordering=True)
        self.publish("1", "2", "3", key="k")
        assert self.fail(ATTEMPTS) == ["1"] * ATTEMPTS
        gap, *rest = self.consume_with_gaps()
        assert gap == Gap("k", 0, 0, 1, "dead_lettered")
        assert rest == ["2", "3"]

    def test_dead_letters_keep_the_order_of_their_key(self) -> None:
        """message-queue BR-016"""
        self.bury(enable_message_ordering=True)
        self.subscribe_mortal(enable_message_ordering=True)
        self.publish("1", "2", "3", "4", key="k")
        assert self.fail(ATTEMPTS * 4) == [text for text in "1234" for _ in range(ATTEMPTS)]
        [first] = self.pull(subscription="undertaker")
        assert self.pull(subscription="undertaker") == []
        self.nack(first)
        assert self.consume("undertaker") == ["1", "2", "3", "4"]

    @pytest.mark.parametrize("options", [{}, {"enable_message_ordering": True, "max_outstanding_per_key": 10}])
    def test_messages_that_die_together_keep_their_order(self, options: dict[str, Any]) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal(**options)
        self.publish("1", "2", "3", "4", key="k")
        for _ in range(ATTEMPTS):
            assert self.pull_texts() == ["1", "2", "3", "4"]
            self.clock.advance(10)
        assert self.pull_texts(subscription="undertaker") == ["1", "2", "3", "4"]

    def test_messages_nacked_together_in_any_order_die_in_publish_order(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.publish("1", "2", "3")
        for _ in range(ATTEMPTS):
            self.nack(*reversed(self.pull()))
        assert self.pull_texts(subscription="undertaker") == ["1", "2", "3"]

    def test_backoff_and_dead_letters_go_together(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal(enable_message_ordering=True, retry_policy={"minimum_backoff": 10, "maximum_backoff": 10})
        self.publish("1", "2", key="k")
        for _ in range(ATTEMPTS):
            [message] = self.pull()
            assert message.data == b"1"
            self.nack(message)
            self.clock.advance(10)
        assert self.pull_texts() == ["2"]
        assert self.pull_texts(subscription="undertaker") == ["1"]

    @pytest.mark.parametrize("ordered", [False, True])
    def test_a_missing_dead_letter_topic_loses_nothing_and_is_reported(
        self, ordered: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """message-queue BR-016"""
        self.subscribe_mortal(enable_message_ordering=ordered)
        self.publish("1", key="k")
        self.fail(ATTEMPTS - 1)
        assert caplog.records == []
        self.fail(1)
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "worker" in errors[0]
        assert "Topic not found: dead" in errors[0]
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.counters.dead_lettered) == (1, 0)
        assert metrics.counters.dead_letter_failures == 1
        self.publish("2", key="k")
        [message] = self.pull(1)
        assert (message.data, message.delivery_attempt) == (b"1", ATTEMPTS + 1)
        self.ack(message)
        assert self.consume() == ["2"]

    def test_a_message_dies_at_its_next_failure_when_the_dead_letter_topic_appears(self) -> None:
        """message-queue BR-016"""
        self.subscribe_mortal(enable_message_ordering=True)
        self.publish("1", "2", key="k")
        assert self.fail(ATTEMPTS + 2) == ["1"] * (ATTEMPTS + 2)
        self.bury()
        self.fail(1)
        assert self.pull_texts(subscription="undertaker") == ["1"]
        assert self.consume() == ["2"]

    def test_a_deleted_dead_letter_topic_loses_nothing(self) -> None:
        """message-queue BR-016"""
        self.bury()
        self.subscribe_mortal()
        self.publish("a")
        self.fail(ATTEMPTS - 1)
        self.queue.unregister_topic("dead")
        self.fail(1)
        assert self.pull_texts() == ["a"]

    def test_what_cannot_die_still_waits_for_its_backoff(self) -> None:
        """message-queue BR-016"""
        self.subscribe_mortal(enable_message_ordering=True, retry_policy={"minimum_backoff": 10, "maximum_backoff": 10})
        self.publish("1", "2", key="k")
        for _ in range(ATTEMPTS + 1):
            self.fail(1)
            assert self.pull() == []
            self.clock.advance(10)
        assert self.consume() == ["1", "2"]

    @pytest.mark.parametrize("when_full", ["drop", "error", "block"])
    def test_a_dead_letter_is_never_dropped_by_a_full_subscription(self, when_full: str) -> None:
        """message-queue BR-016"""
        self.bury(queue_limits={"max_messages": 1, "when_full": when_full})
        self.subscribe_mortal()
        self.publish("a")
        self.fail(ATTEMPTS)
        self.publish("b")
        self.fail(ATTEMPTS)
        metrics = self.queue.metrics("worker")
        assert (metrics.counters.dead_lettered, metrics.counters.dead_letter_failures) == (1, 1)
        assert self.queue.metrics("undertaker").counters.dropped == 0
        assert self.consume("undertaker") == ["a"]
        self.fail(1)
        assert self.consume("undertaker") == ["b"]
        assert self.pull() == []

    def test_one_that_cannot_die_does_not_stop_others_that_failed_with_it(self) -> None:
        """message-queue BR-016"""
        self.subscribe_mortal()
        self.publish("old")
        self.fail(ATTEMPTS - 1)
        self.publish("young")
        self.nack(*self.pull())
        assert [(m.data, m.delivery_attempt) for m in self.pull()] == [(b"old", ATTEMPTS + 1), (b"young", 2)]

    def test_dead_letters_that_nobody_keeps_are_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        """message-queue BR-016"""
        self.queue.register_topic("dead")
        self.subscribe_mortal()
        self.publish("a")
        self.fail(ATTEMPTS)
        assert any("dead" in record.getMessage() for record in caplog.records)

    def test_without_a_policy_a_message_never_dies(self) -> None:
        """message-queue BR-016"""
        self.subscribe()
        self.publish("a")
        assert self.fail(200) == ["a"] * 200

    def test_dead_letters_can_die_in_turn(self) -> None:
        """message-queue BR-016"""
        self.subscribe("grave", "buried")
        self.bury(dead_letter_policy={"dead_letter_topic": "buried", "max_delivery_attempts": ATTEMPTS})
        self.subscribe_mortal()
        self.publish("a")
        self.fail(ATTEMPTS)
        self.fail(ATTEMPTS, "undertaker")
        assert self.pull_texts(subscription="grave") == ["a"]

    def test_no_message_is_lost_between_a_topic_and_its_dead_letters(self) -> None:
        """message-queue BR-016"""
        self.bury(enable_message_ordering=True)
        self.subscribe_mortal(enable_message_ordering=True)
        published = [f"{letter}{number}" for number in range(10) for letter in "abc"]
        self.publish_by_letter(*published)
        acked: list[str] = []
        while messages := self.pull(2):
            for message in messages:
                if message.data[1:] in (b"3", b"4", b"7"):
                    self.nack(message)
                else:
                    self.ack(message)
                    acked += texts([message])
        dead = self.consume("undertaker")
        assert sorted(acked + dead) == sorted(published)
        for letter in "abc":
            assert [text for text in dead if text[0] == letter] == [f"{letter}{number}" for number in (3, 4, 7)]
        assert gaps(self.consume_with_gaps()) == []
