"""Topics and subscriptions as things that exist or do not, and calls that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from inorder.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    InvalidName,
    NotFound,
    OrderingNotEnabled,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.message import Message
from inorder.options import Batching, PublishOptions, SubscriptionOptions, TopicOptions
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import PubSubCase, Wait, Way, result, text, texts


class Existence(PubSubCase):
    def test_a_topic_exists_once_it_is_created(self, wait: Wait) -> None:
        topic = self.pubsub.topic("orders")
        assert wait(topic.exists()) is False
        assert wait(topic.create()) is topic
        assert wait(topic.exists()) is True
        metadata = wait(topic.metadata())
        assert (metadata.name, metadata.published, metadata.next_position) == ("orders", 0, 0)
        assert isinstance(metadata.created, datetime)
        wait(topic.delete())
        assert wait(topic.exists()) is False

    def test_a_subscription_exists_once_it_is_created(self, wait: Wait) -> None:
        subscription = self.topic().subscription("worker")
        assert wait(subscription.exists()) is False
        assert wait(subscription.create(ack_deadline=20)) is subscription
        assert wait(subscription.exists()) is True
        metadata = wait(subscription.metadata())
        assert (metadata.name, metadata.topic, metadata.detached) == ("worker", "orders", False)
        assert metadata.options == SubscriptionOptions(ack_deadline_seconds=20)
        wait(subscription.delete())
        assert wait(subscription.exists()) is False

    def test_what_exists_is_listed_by_name(self, wait: Wait) -> None:
        self.subscribe("one", "first")
        self.subscribe("two", "first")
        self.subscribe("three", "second")
        self.subscribe("four", "first")
        assert [topic.name for topic in wait(self.pubsub.topics())] == ["first", "second"]
        assert [one.name for one in wait(self.pubsub.subscriptions())] == ["four", "one", "three", "two"]
        assert [one.name for one in wait(self.pubsub.topic("first").subscriptions())] == ["four", "one", "two"]

    def test_what_is_listed_can_be_used(self, wait: Wait) -> None:
        self.subscribe()
        [topic] = wait(self.pubsub.topics())
        [subscription] = wait(self.pubsub.subscriptions())
        [of_topic] = wait(topic.subscriptions())
        wait(topic.publish_message(b"1"))
        assert texts(wait(subscription.pull())) == ["1"]
        wait(topic.publish_message(b"2"))
        assert texts(wait(of_topic.pull())) == ["2"]
        assert (subscription.topic, of_topic.topic) == ("orders", "orders")

    def test_nothing_is_created_twice(self, wait: Wait) -> None:
        subscription = self.subscribe()
        with pytest.raises(TopicAlreadyExists, match="Topic already exists: orders") as refused:
            wait(self.pubsub.topic("orders").create())
        assert refused.value.code == AlreadyExists.code == 6
        with pytest.raises(SubscriptionAlreadyExists, match="Subscription already exists: worker"):
            wait(subscription.create())

    def test_what_does_not_exist_is_not_found(self, wait: Wait) -> None:
        topic, subscription = self.pubsub.topic("nowhere"), self.pubsub.subscription("nobody")
        for call in (topic.delete, topic.metadata, lambda: topic.subscription("worker").create()):
            with pytest.raises(TopicNotFound, match="Topic not found: nowhere") as refused:
                wait(call())
            assert refused.value.code == NotFound.code == 5
        calls: list[Callable[[], Pending[Any]]] = [
            subscription.delete,
            subscription.metadata,
            subscription.pull,
            subscription.blocked_keys,
            subscription.unacked,
            subscription.metrics,
            lambda: subscription.resume_key("k"),
            lambda: subscription.skip("k"),
            lambda: subscription.seek(position=0),
        ]
        for call in calls:
            with pytest.raises(SubscriptionNotFound, match="Subscription not found: nobody"):
                wait(call())

    def test_a_deleted_topic_leaves_its_subscriptions_behind(self, wait: Wait) -> None:
        subscription = self.subscribe()
        self.publish("x")
        wait(self.pubsub.topic("orders").delete())
        assert wait(subscription.metadata()).detached
        assert wait(subscription.pull(10)) == []
        with pytest.raises(FailedPrecondition, match="detached"):
            wait(subscription.seek(position=0))

    def test_a_deleted_subscription_gets_nothing_any_more(self, wait: Wait) -> None:
        subscription = self.subscribe()
        self.publish("x")
        wait(subscription.delete())
        wait(subscription.create())
        assert wait(subscription.pull(10)) == []


class SubscriptionOptionsOfAHandle(PubSubCase):
    def test_options_set_before_it_exists_are_those_it_is_created_with(self, wait: Wait) -> None:
        subscription = self.topic().subscription("worker")
        wait(subscription.set_options(message_ordering=True, ack_deadline=20))
        wait(subscription.set_options(ack_deadline_seconds=30))
        wait(subscription.create(max_outstanding_per_key=5))
        options = wait(subscription.metadata()).options
        assert options == SubscriptionOptions(
            enable_message_ordering=True, ack_deadline_seconds=30, max_outstanding_per_key=5
        )

    def test_options_given_at_creation_count_more(self, wait: Wait) -> None:
        subscription = self.topic().subscription("worker")
        wait(subscription.set_options(ack_deadline=20))
        wait(subscription.create(ack_deadline_seconds=30))
        assert wait(subscription.metadata()).options.ack_deadline_seconds == 30

    def test_options_can_be_changed(self, wait: Wait) -> None:
        subscription = self.subscribe(ack_deadline=20)
        wait(subscription.set_options(message_ordering=True))
        options = wait(subscription.metadata()).options
        assert (options.enable_message_ordering, options.ack_deadline_seconds) == (True, 20)
        self.publish("1", "2", key="k")
        assert texts(wait(subscription.pull(10))) == ["1"]

    def test_options_may_be_an_instance_or_a_mapping_with_keywords_on_top(self, wait: Wait) -> None:
        topic = self.topic()
        first, second = topic.subscription("first"), topic.subscription("second")
        wait(first.create(SubscriptionOptions(message_ordering=True, ack_deadline=20), max_outstanding_per_key=5))
        wait(second.create({"message_ordering": True, "ack_deadline": 20}, max_outstanding_per_key=5))
        options = SubscriptionOptions(message_ordering=True, ack_deadline=20, max_outstanding_per_key=5)
        assert wait(first.metadata()).options == wait(second.metadata()).options == options
        wait(first.set_options({"ack_deadline": 30}))
        assert wait(first.metadata()).options.max_outstanding_per_key == 5
        wait(second.set_options(SubscriptionOptions(ack_deadline=30)))  # an instance says all of them
        assert wait(second.metadata()).options == SubscriptionOptions(ack_deadline=30)
        wrong: Any
        for wrong in (5, "message_ordering", PublishOptions()):
            for call in (first.set_options, topic.subscription("third").create, self.pubsub.topic("other").create):
                with pytest.raises(InvalidArgument, match="Options or a mapping, not"):
                    wait(call(wrong))

    def test_options_of_a_topic_may_be_an_instance_or_a_mapping_with_keywords_on_top(self, wait: Wait) -> None:
        topic = self.pubsub.topic("orders")
        wait(topic.create(TopicOptions(annotations="x"), message_retention_duration=600))
        assert wait(topic.metadata()).options == TopicOptions(annotations="x", message_retention_duration=600)
        for options in (PublishOptions(message_ordering=False), {"message_ordering": False}):
            topic.set_publish_options(options)
            with pytest.raises(OrderingNotEnabled):
                wait(topic.publish_message(b"1", ordering_key="k"))
            topic.set_publish_options(options, message_ordering=True)
            assert wait(topic.publish_message(b"1", ordering_key="k"))
        with pytest.raises(InvalidArgument, match="expected PublishOptions or a mapping, not Batching"):
            topic.set_publish_options(Batching())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"enable_mesage_ordering": True}, "did you mean 'enable_message_ordering'"),
            ({"ackdeadline": 20}, "did you mean 'ack_deadline'"),
            ({"colour": "red"}, "unknown option 'colour'"),
            ({"ack_deadline": 20, "ack_deadline_seconds": 20}, "given twice"),
            ({"ack_deadline": 0}, "ack_deadline_seconds: above 0, up to 600, not 0"),
            ({"ack_deadline": 601}, "not 601"),
            ({"ack_deadline": "20"}, "not '20'"),
            ({"message_ordering": "yes"}, "True or False"),
            ({"flow_control": {"max_mesages": 1}}, "flow_control: unknown option 'max_mesages'"),
            ({"retry_policy": {"minimum_backoff": 5, "maximum_backoff": 1}}, "minimum_backoff"),
            ({"queue_limits": {"when_full": "explode"}}, "when_full"),
            ({"max_outstanding_per_key": 0}, "max_outstanding_per_key"),
            ({"on_poison": "park_key"}, "needs enable_message_ordering"),
            ({"filter": "attributes:"}, "filter"),
        ],
    )
    def test_wrong_options_are_refused(self, wait: Wait, options: dict[str, Any], words: str) -> None:
        subscription = self.topic().subscription("worker")
        with pytest.raises(InvalidArgument, match=words):
            wait(subscription.create(**options))
        assert not wait(subscription.exists())
        existing = self.subscribe("existing")
        before = wait(existing.metadata())
        with pytest.raises(InvalidArgument):
            wait(existing.set_options(**options))
        assert wait(existing.metadata()) == before

    def test_wrong_options_of_a_topic_are_refused(self, wait: Wait) -> None:
        topic = self.pubsub.topic("orders")
        for options in ({"message_retention": 10}, {"message_retention_duration": -1}):
            with pytest.raises(InvalidArgument, match="message_retention_duration"):
                wait(topic.create(**options))
        assert not wait(topic.exists())


class Misuse(PubSubCase):
    @pytest.mark.parametrize("name", ["", "1st", "with space", "goog-name", "a" * 256, "a/b", None, 7])
    def test_a_bad_name_is_refused_at_once(self, name: Any) -> None:
        with pytest.raises(InvalidName):
            self.pubsub.topic(name)
        with pytest.raises(InvalidName):
            self.pubsub.subscription(name)
        with pytest.raises(InvalidName):
            self.topic().subscription(name)

    def test_a_subscription_without_a_topic_cannot_be_created(self, wait: Wait) -> None:
        with pytest.raises(FailedPrecondition, match=r"'worker' names no topic: .*topic\.subscription\('worker'\)"):
            wait(self.pubsub.subscription("worker").create())

    def test_a_subscription_without_a_handler_cannot_be_opened(self) -> None:
        subscription = self.subscribe()
        with pytest.raises(InvalidArgument, match="'worker' has no message handler"):
            subscription.open()
        subscription.on("message", Message.ack).open()

    def test_a_subscription_that_does_not_exist_cannot_be_opened(self) -> None:
        subscription = self.pubsub.subscription("nobody")
        subscription.on("message", Message.ack)
        with pytest.raises(SubscriptionNotFound, match="nobody"):
            subscription.open()

    def test_a_subscription_that_is_open_cannot_be_opened(self, way: Way) -> None:
        subscription = self.subscribe()
        received: list[str] = []

        def handle(message: Message) -> None:
            received.append(text(message))
            message.ack()

        subscription.on("message", way.handler(handle))
        way.open(subscription)
        with pytest.raises(FailedPrecondition, match="open already"):
            way.open(subscription)
        self.publish("x")
        self.wait_until(lambda: received == ["x"])

    @pytest.mark.parametrize("event", ["mesage", "", "Message", None])
    def test_an_unknown_event_is_refused(self, event: Any) -> None:
        with pytest.raises(InvalidArgument, match="one of message, error, gap, close"):
            self.subscribe().on(event, print)

    @pytest.mark.parametrize("handler", ["print", 7, [print]])
    def test_a_handler_that_cannot_be_called_is_refused(self, handler: Any) -> None:
        with pytest.raises(InvalidArgument, match="something to call"):
            self.subscribe().on("message", handler)

    def test_a_second_message_handler_is_refused(self) -> None:
        subscription = self.subscribe()
        subscription.on("message", print)
        with pytest.raises(InvalidArgument, match="one message has one handler"):
            subscription.on("message", print)

    def test_errors_do_not_raise_before_they_are_waited_for(self) -> None:
        """What does I/O answers by its Pending, also when the answer is no."""
        pendings: list[Pending[Any]] = [
            self.pubsub.topic("nowhere").publish_message(b"x"),
            self.pubsub.topic("nowhere").publish_message("no bytes"),  # type: ignore[arg-type]
            self.pubsub.topic("nowhere").publish_many([Message(b"x", {"goog": "x"})]),
            self.pubsub.topic("nowhere").publish_json(object()),
            self.pubsub.topic("nowhere").create(colour="red"),
            self.pubsub.subscription("nobody").create(),
            self.pubsub.subscription("nobody").pull(0),
            self.pubsub.subscription("nobody").set_options(colour="red"),
        ]
        for pending in pendings:
            with pytest.raises((InvalidArgument, NotFound, FailedPrecondition)):
                result(pending)

    def test_handles_tell_what_they_are(self) -> None:
        assert repr(self.pubsub.topic("orders")) == "Topic('orders')"
        assert repr(self.pubsub.subscription("worker")) == "Subscription('worker', topic=None)"
