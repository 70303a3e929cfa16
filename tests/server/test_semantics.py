"""What Google documents about delivery: filters, retries, dead letters, exactly once, retention, replay."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1.types import PubsubMessage
from google.rpc import error_details_pb2

from inorder.broker import MessageQueue
from inorder.message import Message
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, TOPIC
from .conftest import Running, Serve
from .test_subscriptions import DEAD, ack_ids, data, publish, pulled, subscribed

MORGUE = "projects/shop/subscriptions/morgue"


def nack(subscriber: pubsub_v1.SubscriberClient, received: list[Any]) -> None:
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=ack_ids(received), ack_deadline_seconds=0)


def failed_ack_ids(error: Exception) -> dict[str, str]:
    """The ErrorInfo of an error, as Google's clients read it."""
    [info] = [detail for detail in error.details if isinstance(detail, error_details_pb2.ErrorInfo)]  # type: ignore[attr-defined]
    assert info.reason == "EXACTLY_ONCE_ACKID_FAILURE"
    return dict(info.metadata)


def test_a_filter_leaves_out_what_does_not_match(server: Running) -> None:
    subscriber = subscribed(server, filter='attributes.kind = "x" AND NOT attributes:test')
    publish(server, "a", kind="x")
    publish(server, "b", kind="y")
    publish(server, "c", kind="x", test="")
    publish(server, "d", kind="x")
    assert data(pulled(subscriber)) == "ad"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "file"])
def timed(request: pytest.FixtureRequest, tmp_path: Path, serve: Serve, clock: ManualClock) -> Running:
    """A server whose time the test moves."""
    memory = request.param == "memory"
    return serve(MessageQueue(clock=clock) if memory else MessageQueue.open(tmp_path / "data", clock=clock))


def test_a_retry_waits_longer_each_time_and_the_key_waits_with_it(timed: Running, clock: ManualClock) -> None:
    backoff = {"minimum_backoff": {"seconds": 2}, "maximum_backoff": {"seconds": 3}}
    subscriber = subscribed(timed, enable_message_ordering=True, retry_policy=backoff)
    publish(timed, "ab", "key")
    for seconds in (2, 3, 3):
        out = pulled(subscriber)
        assert data(out) == "ab"
        nack(subscriber, out[:1])
        clock.advance(seconds - 0.1)
        assert pulled(subscriber) == []
        clock.advance(0.2)
    assert data(pulled(subscriber)) == "ab"


def test_dead_letters_say_where_they_came_from(server: Running) -> None:
    server.raw_publisher().create_topic(name=DEAD)
    subscriber = subscribed(
        server,
        enable_message_ordering=True,
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
    )
    subscriber.create_subscription(name=MORGUE, topic=DEAD)
    publish(server, "ab", "key", kind="x")
    for attempt in range(1, 6):
        out = pulled(subscriber)
        assert data(out) == "ab"
        assert [one.delivery_attempt for one in out] == [attempt, 1]
        nack(subscriber, out[:1])
    assert data(pulled(subscriber)) == "b"  # the next one proceeds, and nobody sees a gap
    [letter] = subscriber.pull(subscription=MORGUE, max_messages=9).received_messages
    assert (letter.message.data, letter.message.ordering_key, letter.delivery_attempt) == (b"a", "key", 0)
    attributes = dict(letter.message.attributes)
    published = datetime.fromisoformat(attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime"))
    assert abs((letter.message.publish_time - published).total_seconds()) < 0.001
    assert attributes == {
        "kind": "x",
        "CloudPubSubDeadLetterSourceSubscription": "worker",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    }


def test_attempts_are_not_counted_without_a_dead_letter_policy(server: Running) -> None:
    subscriber = subscribed(server)
    publish(server, "a")
    for _ in range(3):
        out = pulled(subscriber)
        assert [one.delivery_attempt for one in out] == [0]
        nack(subscriber, out)


def test_exactly_once_delivery_names_each_ack_id_that_had_no_effect(timed: Running, clock: ManualClock) -> None:
    subscriber = subscribed(timed, enable_exactly_once_delivery=True)
    publish(timed, "abc")
    a, b, c = ack_ids(pulled(subscriber))
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[a])
    with pytest.raises(exceptions.InvalidArgument, match="Some acknowledgement ids") as raised:
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[a, b, "garbage"])
    failed = "PERMANENT_FAILURE_INVALID_ACK_ID"
    assert failed_ack_ids(raised.value) == {a: failed, "garbage": failed}
    clock.advance(11)
    with pytest.raises(exceptions.InvalidArgument) as raised:
        subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[c], ack_deadline_seconds=30)
    assert failed_ack_ids(raised.value) == {c: failed}
    assert data(pulled(subscriber)) == "c"


def test_what_is_older_than_the_retention_is_gone(timed: Running, clock: ManualClock) -> None:
    subscriber = subscribed(timed, message_retention_duration={"seconds": 600})
    publish(timed, "a")
    clock.advance(400)
    publish(timed, "b")
    clock.advance(400)
    assert data(pulled(subscriber)) == "b"


def test_seek_to_a_time_replays_what_is_retained(timed: Running, clock: ManualClock) -> None:
    subscriber = subscribed(timed, retain_acked_messages=True, enable_message_ordering=True)
    publish(timed, "ab", "key")
    clock.advance(10)
    between = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    clock.advance(10)
    publish(timed, "cd", "key")
    out = pulled(subscriber)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(out))
    assert pulled(subscriber) == []
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": between})
    assert data(pulled(subscriber)) == "cd"
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": datetime(2020, 1, 1, tzinfo=UTC)})
    assert data(pulled(subscriber)) == "abcd"
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": datetime(2200, 1, 1, tzinfo=UTC)})
    assert pulled(subscriber) == []
    publish(timed, "e", "key")
    assert data(pulled(subscriber)) == "e"


def test_seek_to_the_nanosecond_behind_a_message_leaves_it_out(timed: Running) -> None:
    subscriber = subscribed(timed, retain_acked_messages=True)
    publish(timed, "a")
    (received,) = pulled(subscriber)
    time = Timestamp()
    time.CopyFrom(received.message.publish_time)
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": time})
    assert data(pulled(subscriber)) == "a"
    time.nanos += 1
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": time})
    assert pulled(subscriber) == []
    last = Timestamp(seconds=253_402_300_799, nanos=999_999_999)  # of all that there are
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": last})


def test_seek_by_the_retention_of_the_topic(timed: Running, clock: ManualClock) -> None:
    timed.raw_publisher().create_topic(request={"name": TOPIC, "message_retention_duration": {"seconds": 3600}})
    subscriber = subscribed(timed)
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).topic_message_retention_duration.seconds == 3600
    publish(timed, "a")
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(pulled(subscriber)))
    subscriber.seek(request={"subscription": SUBSCRIPTION, "time": datetime(2020, 1, 1, tzinfo=UTC)})
    assert data(pulled(subscriber)) == "a"


def test_wrong_seeks(serve: Serve) -> None:
    subscriber = subscribed(serve())
    with pytest.raises(exceptions.InvalidArgument, match="target of a seek"):
        subscriber.seek(request={"subscription": SUBSCRIPTION})
    with pytest.raises(exceptions.NotFound, match="Resource not found"):
        subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": "projects/shop/snapshots/none"})
    with pytest.raises(exceptions.InvalidArgument, match="Invalid resource name"):
        subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": SUBSCRIPTION})
    with pytest.raises(exceptions.NotFound):
        subscriber.seek(request={"subscription": SUBSCRIPTION + "s", "time": datetime.now(UTC)})


def test_a_backlog_in_memory_is_not_dropped(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    for _ in range(12):
        server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(data=b"x")] * 1000)
    assert server.broker.metrics(SUBSCRIPTION).backlog_messages == 12_000
    assert len(pulled(subscriber, 1000)) == 1000


def test_what_the_embedded_api_publishes_is_delivered_here_and_the_other_way_round(serve: Serve) -> None:
    server = serve(project="shop")
    subscriber = subscribed(server)
    server.broker.publish("orders", [Message(b"a", {"kind": "x"})])
    assert data(pulled(subscriber)) == "a"
    server.broker.register_subscription("own", "orders")
    publish(server, "b", "key", kind="y")
    [message] = server.broker.pull("own", 9)
    assert (message.data, message.ordering_key, message.attributes) == (b"b", "key", {"kind": "y"})


def test_a_journal_that_fails_is_told_as_unavailable(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    server.broker.close()
    with pytest.raises(grpc.RpcError) as raised:
        pulled(subscriber)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
