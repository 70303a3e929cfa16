"""One message from publish to ack: ids, leases, deadlines, and who may answer for it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest

from inorder.errors import FailedPrecondition, InvalidAckId, InvalidArgument
from inorder.message import Columns, Message
from inorder.testing.conformance.case import PATIENCE_SECONDS, QueueCase, texts, waits
from inorder.testing.history import History, anomalies


class Delivery(QueueCase):
    # -- publish -----------------------------------------------------------------------------------

    def test_a_published_message_can_be_pulled(self) -> None:
        """message-queue AC-003"""
        self.subscribe("test-sub", "test-topic")
        ids = self.queue.publish("test-topic", [Message(b"Hello")])
        assert len(ids) == 1
        pulled = self.queue.pull("test-sub", 10)
        assert len(pulled) == 1
        assert pulled[0].data == b"Hello"

    def test_columns_are_published_as_messages_are(self) -> None:
        self.subscribe()
        attributes = [{"lang": "de"}, None, {}]
        columns = Columns(["a", "b", None], [b"1", b"2", b"3"], attributes)
        ids = self.queue.publish("orders", columns)
        pulled = self.pull()
        assert [message.id for message in pulled] == ids
        assert [(m.ordering_key, m.data, m.attributes) for m in pulled] == [
            ("a", b"1", {"lang": "de"}),
            ("b", b"2", {}),
            (None, b"3", {}),
        ]

    def test_columns_that_wait_for_room_are_what_they_were(self) -> None:
        self.subscribe(queue_limits={"max_messages": 1, "when_full": "block"})
        self.publish("first")
        keys, data = ["a"], [b"1"]
        publishing = self.in_background(lambda: self.queue.publish("orders", Columns(keys, data)))
        assert waits(publishing)
        keys[0], data[0] = "b", b"2"
        self.ack(*self.pull())
        ids = publishing.result(PATIENCE_SECONDS)
        [message] = self.pull()
        assert (message.ordering_key, message.data, [message.id]) == ("a", b"1", [*ids])

    def test_every_subscription_gets_a_copy(self) -> None:
        """message-queue AC-004"""
        self.subscribe("sub-1", "test-topic")
        self.subscribe("sub-2", "test-topic")
        self.queue.publish("test-topic", [Message(b"test")])
        assert len(self.queue.pull("sub-1", 10)) == 1
        assert len(self.queue.pull("sub-2", 10)) == 1

    def test_publishing_without_subscriptions_returns_ids(self) -> None:
        """message-queue AC-010"""
        self.queue.register_topic("test-topic")
        assert len(self.queue.publish("test-topic", [Message(b"test")])) == 1

    def test_what_is_published_without_subscriptions_is_discarded(self) -> None:
        """message-queue BR-004"""
        self.queue.register_topic("orders")
        assert len(set(self.publish("a", "b"))) == 2
        self.subscribe()
        assert self.pull() == []
        assert self.queue.metrics("worker").backlog_messages == 0

    def test_a_message_arrives_as_it_was_published(self) -> None:
        """message-queue BR-003"""
        self.subscribe()
        self.clock.advance(1.5)
        published_us = self.clock.now_us()
        [message_id] = self.queue.publish(
            "orders", [Message("Grüße".encode(), {"lang": "de", "empty": ""}, "user-123")]
        )
        self.clock.advance(3)
        [message] = self.pull()
        assert message.id == message_id
        assert message.data == "Grüße".encode()
        assert dict(message.attributes) == {"lang": "de", "empty": ""}
        assert message.ordering_key == "user-123"
        assert message.length == 7
        assert message.delivery_attempt == 1
        assert message.position == 0
        expected = datetime.fromtimestamp(published_us // 1_000_000, UTC).replace(microsecond=published_us % 1_000_000)
        assert message.publish_time == expected

    def test_an_empty_message_is_a_message(self) -> None:
        """message-queue BR-003"""
        self.subscribe()
        self.queue.publish("orders", [Message()])
        [message] = self.pull()
        assert (message.data, dict(message.attributes), message.ordering_key, message.length) == (b"", {}, None, 0)

    def test_ids_are_unique_across_topics_and_in_the_order_of_the_batch(self) -> None:
        """message-queue BR-003"""
        self.subscribe("one", "topic-one")
        self.subscribe("two", "topic-two")
        first = self.publish("a", "b", "c", topic="topic-one")
        second = self.publish("a", "b", "c", topic="topic-two")
        third = self.publish("d", topic="topic-one")
        assert len({*first, *second, *third}) == 7
        assert [message.id for message in self.pull(subscription="one")] == first + third
        assert [message.id for message in self.pull(subscription="two")] == second

    def test_any_iterable_of_messages_is_a_batch_even_an_empty_one(self) -> None:
        """message-queue BR-003"""
        self.subscribe()
        assert self.queue.publish("orders", []) == []
        assert len(self.queue.publish("orders", (Message(text) for text in (b"a", b"b")))) == 2
        assert self.pull_texts() == ["a", "b"]

    def test_copies_are_acked_independently(self) -> None:
        """message-queue BR-003"""
        self.subscribe("first")
        self.subscribe("second")
        self.publish("a")
        [mine] = self.pull(subscription="first")
        [theirs] = self.pull(subscription="second")
        assert mine.id == theirs.id
        assert mine.ack_id != theirs.ack_id
        self.ack(mine)
        self.nack(theirs)
        assert self.pull(subscription="first") == []
        assert self.pull_texts(subscription="second") == ["a"]

    def test_what_the_publisher_changes_later_changes_no_message(self) -> None:
        """message-queue BR-003"""
        self.subscribe()
        data, attributes = bytearray(b"before"), {"state": "before"}
        self.queue.publish("orders", [Message(data, attributes)])  # type: ignore[arg-type]
        data[:] = b"AFTER!"
        attributes["state"] = "after"
        [message] = self.pull()
        assert (message.data, dict(message.attributes)) == (b"before", {"state": "before"})

    def test_what_one_subscriber_changes_no_other_sees(self) -> None:
        """message-queue BR-003: messages are copied to each subscription."""
        self.subscribe("first")
        self.subscribe("second")
        self.queue.publish("orders", [Message(b"a", {"state": "published"})])
        [mine] = self.pull(subscription="first")
        with contextlib.suppress(TypeError):  # attributes that cannot be changed are as good
            mine.attributes["state"] = "changed"
        [theirs] = self.pull(subscription="second")
        assert dict(theirs.attributes) == {"state": "published"}
        self.nack(mine)
        [again] = self.pull(subscription="first")
        assert dict(again.attributes) == {"state": "published"}

    def test_a_pulled_message_can_be_published_again(self) -> None:
        self.subscribe()
        self.subscribe("copy", "archive")
        self.queue.publish("orders", [Message(b"keyless", {"a": "1"}), Message(b"keyed", ordering_key="k")])
        self.queue.publish("archive", self.pull())
        keyless, keyed = self.pull(subscription="copy")
        assert (keyless.data, dict(keyless.attributes), keyless.ordering_key) == (b"keyless", {"a": "1"}, None)
        assert (keyed.data, keyed.ordering_key) == (b"keyed", "k")

    # -- pull --------------------------------------------------------------------------------------

    def test_messages_without_a_key_come_in_publish_order(self) -> None:
        """message-queue AC-013"""
        self.subscribe("test-sub", "test-topic")
        self.publish("A", "B", "C", topic="test-topic")
        assert self.pull_texts(10, "test-sub") == ["A", "B", "C"]

    def test_batches_come_in_publish_order(self) -> None:
        """message-queue BR-019"""
        self.subscribe()
        for number in range(50):
            self.publish(f"{number}a", f"{number}b")
        assert self.pull_texts(100) == [f"{number}{letter}" for number in range(50) for letter in "ab"]

    def test_a_pull_returns_at_most_what_was_asked_for(self) -> None:
        """message-queue BR-005"""
        self.subscribe()
        self.publish("a", "b", "c")
        assert self.pull_texts(2) == ["a", "b"]
        assert self.pull_texts(2) == ["c"]
        assert self.pull_texts(2) == []

    def test_a_pulled_message_is_not_pulled_again_while_it_is_out(self) -> None:
        """message-queue BR-005"""
        self.subscribe()
        self.publish("a")
        assert self.pull_texts() == ["a"]
        self.clock.advance(9.9)
        assert self.pull_texts() == []

    def test_every_delivery_has_its_own_ack_id(self) -> None:
        """message-queue BR-005"""
        self.subscribe("first")
        self.subscribe("second")
        self.publish("a", "b")
        messages = self.pull(subscription="first") + self.pull(subscription="second")
        self.nack(*messages)
        messages += self.pull(subscription="first") + self.pull(subscription="second")
        assert len({message.ack_id for message in messages}) == 8

    # -- ack ---------------------------------------------------------------------------------------

    def test_an_acked_message_does_not_come_again(self) -> None:
        """message-queue AC-005"""
        self.subscribe("test-sub", "test-topic")
        self.publish("test", topic="test-topic")
        [message] = self.queue.pull("test-sub", 10)
        self.queue.ack(message.ack_id)
        assert self.queue.pull("test-sub", 10) == []

    def test_an_ack_cancels_the_deadline(self) -> None:
        """message-queue BR-006"""
        self.subscribe()
        self.publish("a")
        self.ack(*self.pull())
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.backlog_bytes) == (0, 0)
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (0, 0)
        self.clock.advance(3600)
        assert self.pull() == []
        assert self.queue.metrics("worker").counters.expired == 0

    def test_messages_are_acked_in_any_order_and_many_at_once(self) -> None:
        """message-queue BR-006"""
        self.subscribe()
        self.publish("a", "b", "c", "d")
        a, _b, c, d = self.pull()
        self.ack(c)
        self.ack(d, a)
        self.clock.advance(10)
        assert self.pull_texts() == ["b"]

    # -- nack --------------------------------------------------------------------------------------

    def test_a_nacked_message_comes_again_at_once(self) -> None:
        """message-queue AC-006"""
        self.subscribe("test-sub", "test-topic")
        self.publish("test", topic="test-topic")
        [first] = self.queue.pull("test-sub", 10)
        assert first.delivery_attempt == 1
        self.queue.nack(first.ack_id)
        [second] = self.queue.pull("test-sub", 10)
        assert second.delivery_attempt == 2
        assert second.id == first.id

    def test_every_nack_counts_one_more_attempt(self) -> None:
        """message-queue BR-007"""
        self.subscribe()
        self.publish("a")
        for attempt in range(1, 8):
            [message] = self.pull()
            assert message.delivery_attempt == attempt
            self.nack(message)
            assert self.queue.metrics("worker").outstanding_messages == 0

    def test_what_came_back_goes_before_what_was_never_out_and_oldest_first(self) -> None:
        """message-queue BR-019"""
        self.subscribe()
        self.publish("a", "b", "c", "d")
        a, b, c = self.pull(3)
        self.nack(c)
        self.nack(a)
        self.nack(b)
        assert self.pull_texts() == ["a", "b", "c", "d"]

    # -- the deadline ------------------------------------------------------------------------------

    def test_a_message_comes_again_when_its_deadline_is_over(self) -> None:
        """message-queue AC-007"""
        self.subscribe("test-sub", "test-topic", ack_deadline_seconds=10)
        self.publish("test", topic="test-topic")
        assert len(self.queue.pull("test-sub", 10)) == 1
        self.clock.advance(10.1)
        [message] = self.queue.pull("test-sub", 10)
        assert message.delivery_attempt == 2

    @pytest.mark.parametrize(("options", "seconds"), [({}, 10), ({"ack_deadline_seconds": 600}, 600)])
    def test_a_lease_lasts_as_long_as_the_ack_deadline(self, options: dict[str, Any], seconds: int) -> None:
        """message-queue BR-008: 10 seconds unless told, up to 600."""
        self.subscribe(**options)
        self.publish("a")
        for attempt in (1, 2, 3):
            [message] = self.pull()
            assert message.delivery_attempt == attempt
            self.clock.advance(seconds - 0.5)
            assert self.pull() == []
            self.clock.advance(0.5)
        assert self.queue.metrics("worker").counters.expired == 3

    def test_each_lease_has_a_deadline_of_its_own(self) -> None:
        """message-queue BR-008"""
        self.subscribe()
        self.publish("a", "b")
        self.pull(1)
        self.clock.advance(4)
        self.pull(1)
        self.clock.advance(6)
        assert self.pull_texts() == ["a"]
        self.clock.advance(4)
        assert self.pull_texts() == ["b"]

    def test_a_deadline_can_be_moved(self) -> None:
        """message-queue AC-008"""
        self.subscribe("test-sub", "test-topic", ack_deadline_seconds=10)
        self.publish("test", topic="test-topic")
        [message] = self.queue.pull("test-sub", 10)
        self.queue.modify_ack_deadline(message.ack_id, 15)
        self.clock.advance(12)
        assert self.queue.pull("test-sub", 10) == []
        self.queue.ack(message.ack_id)
        self.clock.advance(3600)
        assert self.queue.pull("test-sub", 10) == []

    def test_a_moved_deadline_is_counted_from_now_any_number_of_times(self) -> None:
        """message-queue BR-009"""
        self.subscribe()
        self.publish("a")
        [message] = self.pull()
        for _ in range(20):
            self.clock.advance(9)
            self.queue.modify_ack_deadline(message.ack_id, 10)
        self.clock.advance(9.9)
        assert self.pull() == []
        self.clock.advance(0.1)
        [again] = self.pull()
        assert again.delivery_attempt == 2
        self.assert_over(message)

    def test_a_deadline_can_be_brought_forward(self) -> None:
        """message-queue BR-009"""
        self.subscribe(ack_deadline_seconds=600)
        self.publish("a", "b")
        a, _ = self.pull()
        self.queue.modify_ack_deadline(a.ack_id, 300)
        self.queue.modify_ack_deadline(a.ack_id, 20)
        self.clock.advance(19)
        assert self.pull() == []
        self.clock.advance(1)
        assert self.pull_texts() == ["a"]

    def test_a_deadline_of_zero_is_a_nack(self) -> None:
        """message-queue BR-009"""
        self.subscribe()
        self.publish("a")
        [message] = self.pull()
        self.queue.modify_ack_deadline(message.ack_id, 0)
        [again] = self.pull()
        assert again.delivery_attempt == 2
        assert self.queue.metrics("worker").counters.nacked == 1

    def test_moving_one_deadline_moves_no_other(self) -> None:
        """message-queue BR-009"""
        self.subscribe()
        self.publish("a", "b", "c")
        a, b, c = self.pull()
        self.queue.modify_ack_deadline([a.ack_id, c.ack_id], 60)
        self.clock.advance(10)
        assert self.pull_texts() == ["b"]
        self.assert_over(b)
        self.ack(a, c)

    # -- ack ids -----------------------------------------------------------------------------------

    def test_an_ack_id_works_once(self) -> None:
        """message-queue BR-018"""
        self.subscribe()
        self.publish("acked", "nacked")
        acked, nacked = self.pull()
        self.ack(acked)
        self.nack(nacked)
        self.assert_over(acked, nacked)

    def test_an_expired_ack_id_is_over_for_good(self) -> None:
        """message-queue BR-018"""
        self.subscribe()
        self.publish("a")
        [message] = self.pull()
        self.clock.advance(10)
        self.assert_over(message)
        self.clock.advance(600)
        self.assert_over(message)

    def test_a_consumer_that_lost_its_lease_cannot_answer_for_the_next_one(self) -> None:
        """message-queue BR-018: only the current ack id counts."""
        self.subscribe()
        self.publish("a")
        [lost] = self.pull()
        self.clock.advance(10)
        [current] = self.pull()
        self.assert_over(lost)
        assert isinstance(lost.ack().exception(PATIENCE_SECONDS), InvalidAckId)
        assert self.queue.metrics("worker").outstanding_messages == 1
        self.nack(current)
        assert self.pull_texts() == ["a"]

    def test_of_several_ack_ids_the_valid_ones_count_and_the_others_are_named(self) -> None:
        """message-queue BR-018"""
        self.subscribe()
        self.publish("a", "b", "c")
        a, b, c = self.pull()
        self.ack(b)
        with pytest.raises(InvalidAckId) as caught:
            self.ack(a, b, c)
        assert caught.value.ack_ids == (b.ack_id,)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.counters.acked) == (0, 3)

    def test_messages_stand_for_their_ack_ids(self) -> None:
        """message-queue BR-018: one or several, of any pulls, also beside ack ids."""
        self.subscribe()
        self.publish(*"abcdefgh")
        first, second = self.pull(3), self.pull(5)
        self.queue.ack(first)
        self.queue.ack([second[2], second[0], second[2]])
        self.queue.nack(second[1])
        self.queue.nack([second[3].ack_id, second[4]])
        assert texts(self.pull()) == ["e", "g", "h"]
        with self.refused(InvalidAckId, *(message.ack_id for message in first)):
            self.queue.ack(first)
        with self.refused(InvalidAckId):
            self.queue.ack(Message(b"never delivered"))
        with self.refused(InvalidAckId):
            self.queue.ack([Message(b"never delivered")])

    def test_what_was_leased_together_is_answered_together(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.queue.publish("orders", Columns(["a", "b", None], [b"1", b"2", b"3"]))
        leased = self.queue.lease("worker", 10)
        assert (leased.keys, leased.data, [*leased.attempts]) == (["a", "b", ""], [b"1", b"2", b"3"], [1, 1, 1])
        self.queue.modify_ack_deadline(leased, 600)
        self.clock.advance(300)
        self.queue.nack(leased.only(leased.leases[:1]))
        with pytest.raises(InvalidAckId) as caught:
            self.queue.ack(leased)
        assert caught.value.ack_ids == (leased.ack_ids()[0],)
        assert self.pull_texts() == ["1"]
        assert self.queue.metrics("worker").backlog_messages == 1

    def test_a_lease_that_is_named_twice_is_acked_once(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.queue.publish("orders", Columns(["a", "b", "c"], [b"1", b"2", b"3"]))
        leased = self.queue.lease("worker", 2)
        self.queue.ack(leased._replace(leases=[*leased.leases, *leased.leases]))
        metrics = self.queue.metrics("worker")
        assert (metrics.counters.acked, metrics.outstanding_messages, metrics.backlog_messages) == (2, 0, 1)

    @pytest.mark.parametrize("wrong", [0, -1, True, "1"])
    def test_how_many_to_lease_is_a_whole_number(self, wrong: Any) -> None:
        self.subscribe()
        with self.refused(InvalidArgument, "max_messages"):
            self.queue.lease("worker", wrong)

    def test_what_was_leased_of_a_subscription_that_is_gone_is_over(self) -> None:
        self.subscribe()
        self.publish("a", "b")
        leased = self.queue.lease("worker", 10)
        self.queue.unregister_subscription("worker")
        self.subscribe()
        with self.refused(InvalidAckId, *leased.ack_ids()):
            self.queue.ack(leased)

    def test_the_same_ack_id_given_twice_at_once_counts_once(self) -> None:
        """message-queue BR-018"""
        self.subscribe()
        self.publish("a", "b")
        a, b = self.pull()
        self.ack(a, a)
        self.nack(b, b)
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.outstanding_messages) == (1, 0)
        assert (metrics.counters.acked, metrics.counters.nacked) == (1, 1)

    def test_an_ack_id_must_be_exactly_the_one_that_was_given_out(self) -> None:
        """message-queue BR-018"""
        self.subscribe()
        self.publish("a")
        [message] = self.pull()
        stem, _, number = message.ack_id.rpartition("-")
        for forged in (f"{stem}-0{number}", f"{stem}-{number} ", f" {message.ack_id}", message.ack_id + "0", stem):
            with self.refused(InvalidAckId, forged):
                self.queue.ack(forged)

    # -- leases ------------------------------------------------------------------------------------

    def test_what_is_out_is_counted_in_messages_and_bytes(self) -> None:
        """message-queue BR-014"""
        self.subscribe()
        self.subscribe("other")
        self.publish("1", "22", "333")
        one, two, _three = self.pull()
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (3, 6)
        assert self.queue.metrics("other").outstanding_messages == 0
        self.ack(one)
        self.nack(two)
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (1, 3)
        self.clock.advance(10)
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (0, 0)

    def test_no_lease_is_left_when_all_is_answered_or_expired(self) -> None:
        """message-queue BR-020"""
        self.subscribe(enable_message_ordering=True)
        for turn in range(200):
            self.queue.publish("orders", [Message(b"x", ordering_key=f"key-{turn}"), Message(b"y")])
            messages = self.pull()
            if turn % 3 == 0:
                self.nack(*messages)
                messages = self.pull()
            elif turn % 3 == 1:
                self.clock.advance(10)
                messages = self.pull()
            self.ack(*messages)
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (0, 0)
        assert (metrics.backlog_messages, metrics.backlog_bytes, metrics.blocked_keys) == (0, 0, 0)

    # -- the message's own answers -----------------------------------------------------------------

    def test_a_message_answers_for_itself_and_the_first_answer_wins(self) -> None:
        self.subscribe()
        self.publish("acked", "nacked")
        acked, nacked = self.pull()
        acked.ack().result(PATIENCE_SECONDS)
        acked.nack().result(PATIENCE_SECONDS)
        nacked.nack().result(PATIENCE_SECONDS)
        nacked.ack().result(PATIENCE_SECONDS)
        assert self.pull_texts() == ["nacked"]
        counters = self.queue.metrics("worker").counters
        assert (counters.acked, counters.nacked) == (1, 1)

    def test_a_message_moves_its_own_deadline(self) -> None:
        self.subscribe()
        self.publish("a", "b")
        a, b = self.pull()
        a.modify_ack_deadline(30).result(PATIENCE_SECONDS)
        b.modify_ack_deadline(0).result(PATIENCE_SECONDS)
        self.clock.advance(20)
        assert self.pull_texts() == ["b"]
        a.ack().result(PATIENCE_SECONDS)

    def test_a_message_that_was_never_delivered_has_nothing_to_answer(self) -> None:
        message = Message(b"a")
        assert (message.id, message.ack_id, message.publish_time, message.delivery_attempt) == ("", "", None, 0)
        for answer in (message.ack, message.nack):
            with pytest.raises(FailedPrecondition):
                answer()

    # -- threads -----------------------------------------------------------------------------------

    def test_threads_share_a_broker_and_no_key_is_reordered_lost_or_handled_twice(self) -> None:
        """message-queue BR-010"""
        self.subscribe(enable_message_ordering=True)
        history, keys, count, consumers = History(), ["a", "b", "c", "d"], 50, ["one", "two", "three"]

        def produce(key: str) -> None:
            for number in range(count):
                history.publishing(key, f"{number}")
                self.publish(f"{number}", key=key)
                history.published(key, f"{number}")

        def handle(name: str) -> None:
            while self.queue.metrics("worker").counters.acked < len(keys) * count:
                for message in self.pull(3):
                    run = (message.ordering_key, texts([message])[0], name)
                    history.started(*run)
                    history.acking(*run)
                    self.ack(message)
                    history.acked(*run)

        work = [self.in_background(lambda key=key: produce(key)) for key in keys]  # type: ignore[misc]
        work += [self.in_background(lambda name=name: handle(name)) for name in consumers]  # type: ignore[misc]
        for each in work:
            each.result(PATIENCE_SECONDS)
        found = anomalies(history)
        assert not found, str(found)
