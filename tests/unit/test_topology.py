"""Topics and subscriptions that change after they were made, in memory and over a restart."""

from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument, SubscriptionNotFound, TopicNotFound
from inorder.message import Message
from inorder.options import DeadLetterPolicy, SubscriptionOptions, TopicOptions
from inorder.testing import ManualClock


def reopened(broker: MessageQueue, folder: Path) -> MessageQueue:
    broker.close()
    return MessageQueue.open(folder)


def test_annotations_and_changes_of_a_topic_survive_a_restart(tmp_path: Path) -> None:
    broker = MessageQueue.open(tmp_path)
    broker.register_topic("orders", TopicOptions(annotations="north"))
    broker.update_topic("orders", {"message_retention_duration": 60})
    broker.register_subscription("worker", "orders", {"annotations": '{"team":"ü"}'})
    for _ in range(2):  # from what was written, then from the snapshot that a clean end leaves
        broker = reopened(broker, tmp_path)
        topic, subscription = broker.get_topic("orders"), broker.get_subscription("worker")
        assert topic is not None
        assert topic.options == TopicOptions(annotations="north", message_retention_duration=60)
        assert subscription is not None
        assert subscription.options.annotations == '{"team":"ü"}'
    broker.close()


def test_a_topic_retains_from_when_it_is_told_to() -> None:
    broker = MessageQueue(clock=ManualClock())
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    broker.update_topic("orders", TopicOptions(message_retention_duration=3600))
    broker.publish("orders", [Message(b"1")])
    broker.ack(broker.pull("worker", 1))
    broker.seek("worker", position=0)
    assert [message.data for message in broker.pull("worker", 9)] == [b"1"]


def test_what_is_not_there_cannot_be_changed() -> None:
    broker = MessageQueue()
    with pytest.raises(TopicNotFound):
        broker.update_topic("orders", {})
    with pytest.raises(SubscriptionNotFound):
        broker.detach_subscription("worker")
    with pytest.raises(InvalidArgument, match="annotations: a string of at most 65536 bytes"):
        TopicOptions(annotations="x" * 65_537)
    with pytest.raises(InvalidArgument, match="annotations: not valid UTF-8"):
        SubscriptionOptions(annotations="\ud800")


def test_a_subscription_detached_on_request_gets_nothing_more_and_its_topic_goes_on(tmp_path: Path) -> None:
    broker = MessageQueue.open(tmp_path)
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    broker.register_subscription("other", "orders")
    broker.publish("orders", [Message(b"1")])
    broker.detach_subscription("worker")
    broker.detach_subscription("worker")
    broker.publish("orders", [Message(b"2")])
    for _ in range(2):
        assert broker.pull("worker", 9) == []
        worker = broker.get_subscription("worker")
        assert worker is not None
        assert (worker.detached, worker.topic_deleted, worker.topic) == (True, False, "orders")
        broker = reopened(broker, tmp_path)
    assert [message.data for message in broker.pull("other", 9)] == [b"1", b"2"]
    assert [one.name for one in broker.get_subscriptions_for_topic("orders")] == ["other"]
    broker.unregister_topic("orders")
    other = broker.get_subscription("other")
    assert other is not None
    assert other.topic_deleted
    broker.close()


def test_a_dead_letter_names_its_source_if_it_is_asked_to(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.123456)
    broker = MessageQueue.open(tmp_path, clock=clock)
    broker.register_topic("orders")
    broker.register_topic("dead")
    broker.register_subscription("morgue", "dead")
    policy = DeadLetterPolicy("dead", 2, source="projects/shop/subscriptions/worker")
    broker.register_subscription("worker", "orders", {"dead_letter_policy": policy})
    broker.publish("orders", [Message(b"1", {"kind": "x"})])
    broker.nack(broker.pull("worker", 1))
    broker.nack(broker.pull("worker", 1))
    broker.close()
    broker = MessageQueue.open(tmp_path, clock=clock)  # so that the sizes are read again, too
    [letter] = broker.pull("morgue", 9)
    assert letter.attributes == {
        "kind": "x",
        "CloudPubSubDeadLetterSourceSubscription": "worker",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2023-11-14T22:13:20.123+00:00",
        "CloudPubSubDeadLetterSourceDeliveryCount": "2",
    }
    broker.ack(letter)
    assert broker.metrics("morgue").backlog_bytes == 0
    broker.close()


def test_leases_that_are_over_can_be_told_from_those_that_are_out() -> None:
    broker = MessageQueue()
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    broker.publish("orders", [Message(b"1"), Message(b"2")])
    first, second = (message._lease for message in broker.pull("worker", 2))
    broker.settle("worker", [first], [])
    assert broker.over("worker", [first, second, 99]) == [first, 99]
    assert broker.over("nobody", [1]) == [1]


def test_consumers_share_the_keys_and_each_keeps_what_it_has() -> None:
    broker = MessageQueue()
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders", {"message_ordering": True, "max_outstanding_per_key": 9})
    one, other = broker.consumer("worker"), broker.consumer("worker")
    broker.publish("orders", [Message(b"1", None, "a"), Message(b"2", None, "a"), Message(b"1", None, "b")])
    [first] = broker.take("worker", 1, one)
    assert [message.ordering_key for message in broker.take("worker", 9, other)] == ["b"]
    assert [message.data for message in broker.take("worker", 9, one)] == [b"2"]
    first.ack().result()
    with pytest.raises(SubscriptionNotFound):
        broker.consumer("nobody")
