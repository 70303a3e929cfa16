"""Topics and subscriptions: how they come, how they are told about, and what goes with them."""

from __future__ import annotations

from datetime import UTC, datetime

from inorder.errors import InvalidAckId, SubscriptionNotFound, TopicNotFound
from inorder.message import Message
from inorder.options import SubscriptionOptions, TopicOptions
from inorder.testing.conformance.case import PATIENCE_SECONDS, QueueCase, texts


class TopicsAndSubscriptions(QueueCase):
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_us() / 1_000_000, UTC)

    # -- what there is -----------------------------------------------------------------------------

    def test_a_topic_exists_once_it_is_registered(self) -> None:
        """message-queue AC-002"""
        assert not self.queue.topic_exists("test-topic")
        self.queue.register_topic("test-topic")
        assert self.queue.topic_exists("test-topic")

    def test_a_topic_tells_its_name_and_when_it_was_created(self) -> None:
        """message-queue BR-002"""
        self.clock.advance(5.25)
        created = self.now()
        self.queue.register_topic("orders", {"message_retention_duration": 3600})
        self.clock.advance(1)
        topic = self.queue.get_topic("orders")
        assert topic is not None
        assert (topic.name, topic.created) == ("orders", created)
        assert topic.options == TopicOptions(message_retention_duration=3600)
        assert (topic.published, topic.next_position) == (0, 0)

    def test_a_new_topic_has_no_messages(self) -> None:
        """message-queue BR-002"""
        self.subscribe()
        assert self.pull() == []

    def test_a_topic_counts_what_was_published(self) -> None:
        """message-queue BR-002"""
        self.subscribe()
        self.publish("a", "b")
        self.publish("c")
        topic = self.queue.get_topic("orders")
        assert topic is not None
        assert (topic.published, topic.next_position) == (3, 3)

    def test_all_topics_are_listed(self) -> None:
        """message-queue BR-002"""
        assert self.queue.get_all_topics() == []
        self.queue.register_topic("orders")
        self.queue.register_topic("invoices")
        assert [topic.name for topic in self.queue.get_all_topics()] == ["orders", "invoices"]

    def test_a_subscription_tells_its_topic_options_and_when_it_was_created(self) -> None:
        self.queue.register_topic("orders")
        self.clock.advance(7)
        created = self.now()
        options = SubscriptionOptions(enable_message_ordering=True, ack_deadline_seconds=60)
        assert not self.queue.subscription_exists("worker")
        self.queue.register_subscription("worker", "orders", options)
        self.clock.advance(1)
        assert self.queue.subscription_exists("worker")
        subscription = self.queue.get_subscription("worker")
        assert subscription is not None
        assert (subscription.name, subscription.topic, subscription.created) == ("worker", "orders", created)
        assert subscription.options == options
        assert not subscription.detached

    def test_what_does_not_exist_is_told_as_none(self) -> None:
        assert self.queue.get_topic("nowhere") is None
        assert self.queue.get_subscription("nobody") is None
        assert not self.queue.topic_exists("nowhere")
        assert not self.queue.subscription_exists("nobody")

    def test_the_subscriptions_of_a_topic_are_listed(self) -> None:
        """message-queue AC-011"""
        self.subscribe("sub-1", "test-topic")
        self.subscribe("sub-2", "test-topic")
        self.subscribe("sub-3", "other-topic")
        assert [s.name for s in self.queue.get_subscriptions_for_topic("test-topic")] == ["sub-1", "sub-2"]
        assert [s.name for s in self.queue.get_all_subscriptions()] == ["sub-1", "sub-2", "sub-3"]

    # -- a topic goes ------------------------------------------------------------------------------

    def test_deleting_a_topic_detaches_its_subscriptions(self) -> None:
        """message-queue AC-012"""
        self.subscribe("test-sub", "test-topic")
        self.queue.unregister_topic("test-topic")
        assert not self.queue.topic_exists("test-topic")
        assert self.queue.subscription_exists("test-sub")
        subscription = self.queue.get_subscription("test-sub")
        assert subscription is not None
        assert subscription.topic == "test-topic"
        assert subscription.detached

    def test_deleting_a_topic_clears_all_its_messages(self) -> None:
        """message-queue BR-012"""
        self.subscribe("first")
        self.subscribe("second")
        self.subscribe("elsewhere", "invoices")
        self.publish("a", "b")
        self.publish("bill", topic="invoices")
        self.queue.unregister_topic("orders")
        for name in ("first", "second"):
            assert self.pull(subscription=name) == []
            assert self.queue.metrics(name).backlog_messages == 0
            assert self.queue.metrics(name).backlog_bytes == 0
        assert self.pull_texts(subscription="elsewhere") == ["bill"]

    def test_deleting_a_topic_ends_what_is_out(self) -> None:
        """message-queue BR-021"""
        self.subscribe()
        self.publish("out", "pending")
        [out] = self.pull(1)
        self.queue.unregister_topic("orders")
        metrics = self.queue.metrics("worker")
        assert (metrics.outstanding_messages, metrics.outstanding_bytes) == (0, 0)
        self.clock.advance(3600)
        assert self.pull() == []
        assert self.queue.metrics("worker").counters.expired == 0
        self.assert_over(out)

    def test_a_late_ack_after_the_topic_was_deleted_changes_no_counter(self) -> None:
        """message-queue BR-021: counters that were cleared must not become negative."""
        self.subscribe(enable_message_ordering=True)
        self.publish("keyless")
        self.publish("keyed", key="k")
        messages = self.pull()
        self.queue.unregister_topic("orders")
        before = self.queue.metrics("worker")
        for message in messages:
            assert isinstance(message.ack().exception(PATIENCE_SECONDS), InvalidAckId)
        self.assert_over(*messages)
        assert self.queue.metrics("worker") == before
        assert (before.backlog_messages, before.backlog_bytes, before.outstanding_messages) == (0, 0, 0)

    def test_a_topic_that_is_registered_again_is_another_one(self) -> None:
        """message-queue BR-012: its subscriptions stay detached, its ids do not repeat."""
        self.subscribe("before")
        old_ids = self.publish("old")
        self.queue.unregister_topic("orders")
        self.queue.register_topic("orders")
        self.queue.register_subscription("after", "orders")
        new_ids = self.publish("new")
        assert not set(old_ids) & set(new_ids)
        assert self.pull(subscription="before") == []
        assert self.pull_texts(subscription="after") == ["new"]
        assert [s.name for s in self.queue.get_subscriptions_for_topic("orders")] == ["after"]

    def test_a_deleted_topic_takes_no_messages(self) -> None:
        """message-queue BR-012"""
        self.subscribe()
        self.queue.unregister_topic("orders")
        with self.refused(TopicNotFound, "Topic not found: orders"):
            self.publish("late")

    def test_a_detached_subscription_can_be_deleted(self) -> None:
        """message-queue BR-021"""
        self.subscribe()
        self.queue.unregister_topic("orders")
        self.queue.unregister_subscription("worker")
        assert not self.queue.subscription_exists("worker")

    # -- a subscription goes -----------------------------------------------------------------------

    def test_deleting_a_subscription_removes_it(self) -> None:
        """message-queue BR-011"""
        self.subscribe()
        self.subscribe("other")
        self.publish("a")
        self.queue.unregister_subscription("worker")
        assert not self.queue.subscription_exists("worker")
        assert self.queue.get_subscription("worker") is None
        assert [s.name for s in self.queue.get_subscriptions_for_topic("orders")] == ["other"]
        with self.refused(SubscriptionNotFound, "Subscription not found: worker"):
            self.pull()
        assert self.pull_texts(subscription="other") == ["a"]

    def test_deleting_a_subscription_clears_what_waits_and_ends_what_is_out(self) -> None:
        """message-queue BR-011"""
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter("a1", "a2", "b1")
        out = self.pull()
        self.queue.unregister_subscription("worker")
        self.assert_over(*out)
        self.subscribe(enable_message_ordering=True)
        self.clock.advance(3600)
        assert self.pull() == []
        self.publish_by_letter("a3")
        assert self.pull_texts() == ["a3"]

    def test_a_message_of_a_deleted_subscription_can_no_longer_be_answered(self) -> None:
        """message-queue BR-018: an ack id that is over is error 3, whichever way it is used."""
        self.subscribe()
        self.publish("a", "b", "c")
        a, b, c = self.pull()
        self.queue.unregister_subscription("worker")
        for answer in (a.ack(), b.nack(), c.modify_ack_deadline(10)):
            assert isinstance(answer.exception(PATIENCE_SECONDS), InvalidAckId)

    def test_a_message_of_a_deleted_subscription_cannot_answer_for_its_successor(self) -> None:
        """message-queue BR-018: a subscription of the same name is another one."""
        self.subscribe()
        self.publish("old")
        [old] = self.pull()
        self.queue.unregister_subscription("worker")
        self.subscribe()
        self.publish("new")
        [new] = self.pull()
        assert old.ack_id != new.ack_id
        assert isinstance(old.ack().exception(PATIENCE_SECONDS), InvalidAckId)
        self.assert_over(old)
        self.nack(new)
        assert self.pull_texts() == ["new"]

    def test_a_subscription_gets_what_is_published_after_it_was_created(self) -> None:
        """message-queue BR-004"""
        self.subscribe("early")
        self.publish("before")
        self.subscribe("late")
        self.publish("after")
        assert self.pull_texts(subscription="early") == ["before", "after"]
        assert self.pull_texts(subscription="late") == ["after"]

    def test_a_registration_that_fails_leaves_nothing_behind(self) -> None:
        self.queue.register_topic("orders")
        with self.refused(TopicNotFound, "Topic not found: nowhere"):
            self.queue.register_subscription("worker", "nowhere")
        self.queue.register_subscription("worker", "orders")
        self.queue.publish("orders", [Message(b"a")])
        assert texts(self.pull()) == ["a"]
