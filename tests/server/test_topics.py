"""Topics and publishing, by Google's client."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import PublishToPausedOrderingKeyException
from google.protobuf import duration_pb2, field_mask_pb2
from google.pubsub_v1.types import PubsubMessage, Topic, pubsub

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition, InvalidArgument, Unavailable
from inorder.server import Server

from .clients import SUBSCRIPTION, TOPIC, call, messages
from .conftest import Running, Serve


def test_a_topic_is_created_shown_and_deleted(server: Running) -> None:
    publisher = server.publisher()
    created = publisher.create_topic(
        request={
            "name": TOPIC,
            "labels": {"team": "north"},
            "message_retention_duration": {"seconds": 3600},
            "message_storage_policy": {"allowed_persistence_regions": ["here"]},
        }
    )
    assert created == publisher.get_topic(topic=TOPIC)
    assert (created.name, dict(created.labels), created.message_retention_duration.seconds) == (
        TOPIC,
        {"team": "north"},
        3600,
    )
    assert list(created.message_storage_policy.allowed_persistence_regions) == ["here"]
    assert created.state == Topic.State.ACTIVE
    with pytest.raises(exceptions.AlreadyExists, match=r"Resource already exists in the project \(resource=orders\)\."):
        publisher.create_topic(name=TOPIC)
    publisher.delete_topic(topic=TOPIC)
    for missing in (publisher.get_topic, publisher.delete_topic, publisher.list_topic_subscriptions):
        with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=orders\)\."):
            missing(topic=TOPIC)


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "projects/shop/topics/",
        "projects/shop/topics/ab",
        "projects/shop/topics/1st",
        "projects/shop/topics/goog-orders",
        "projects/shop/topics/" + "x" * 256,
        "projects/shop/topics/a b c",
        "projects/sh op/topics/orders",
        "projects/shop/subscriptions/orders",
        "projects/shop/topics/_deleted-topic_",
        "projects/shop/topics/projects/shop/topics/orders",
        "projects/inorder/topics/projects/inorder/topics/orders",
        "projects/inorder/topics/projects/shop/topics/orders",
    ],
)
def test_names_are_those_of_pubsub(serve: Serve, name: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=r"Invalid resource name given \(name="):
        serve().publisher().create_topic(name=name)


def test_projects_do_not_collide_and_one_is_that_of_plain_names(serve: Serve) -> None:
    server = serve(project="shop")
    publisher = server.publisher()
    server.broker.register_topic("orders")
    publisher.create_topic(name="projects/example.com:other/topics/orders")
    publisher.create_topic(name="projects/shop/topics/returns")
    assert [topic.name for topic in publisher.list_topics(project="projects/shop")] == [
        "projects/shop/topics/orders",
        "projects/shop/topics/returns",
    ]
    assert [topic.name for topic in server.broker.get_all_topics()] == [
        "orders",
        "projects/example.com:other/topics/orders",
        "returns",
    ]
    with pytest.raises(exceptions.AlreadyExists):
        publisher.create_topic(name="projects/shop/topics/orders")


def test_a_name_that_would_mean_two_things_is_refused_at_the_start(serve: Serve) -> None:
    broker = MessageQueue()
    broker.register_topic("projects/shop/topics/orders")
    with pytest.raises(FailedPrecondition, match="'projects/shop/topics/orders' is in the project of plain names"):
        serve(broker, project="shop")
    assert serve(broker, project="other").publisher().get_topic(topic=TOPIC).name == TOPIC


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="project: letters"):
        Server(MessageQueue(), project="a/b")
    with pytest.raises(InvalidArgument, match="max_outstanding_per_key"):
        Server(MessageQueue(), max_outstanding_per_key=0)


def test_a_port_in_use_is_told(serve: Serve) -> None:
    port = serve().port
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}: .*address already in use$"):
        serve(port=port)


def test_lists_come_in_pages(server: Running) -> None:
    publisher = server.publisher()
    names = [f"projects/shop/topics/t{number:03}" for number in range(120)]
    for name in reversed(names):
        server.broker.register_topic(name)
    assert [topic.name for topic in publisher.list_topics(project="projects/shop")] == names
    pages = publisher.list_topics(request={"project": "projects/shop", "page_size": 50}).pages
    assert [len(page.topics) for page in pages] == [50, 50, 20]
    [page] = publisher.list_topics(request={"project": "projects/nobody"}).pages
    assert (list(page.topics), page.next_page_token) == ([], "")
    for wrong in ({"page_token": "%"}, {"page_size": -1}, {"project": "shop"}):
        with pytest.raises(exceptions.InvalidArgument):
            publisher.list_topics(request={"project": "projects/shop", **wrong})


def test_fields_of_a_topic_are_changed_one_by_one(server: Running) -> None:
    publisher = server.publisher()
    publisher.create_topic(request={"name": TOPIC, "labels": {"team": "north", "tier": "1"}})

    def update(*paths: str, **fields: Any) -> Topic:
        return publisher.update_topic(
            request={"topic": {"name": TOPIC, **fields}, "update_mask": field_mask_pb2.FieldMask(paths=paths)}
        )

    changed = update("labels", labels={"team": "south"}, message_retention_duration={"seconds": 600})
    assert dict(changed.labels) == {"team": "south"}
    assert "message_retention_duration" not in changed
    changed = update("message_retention_duration", message_retention_duration={"seconds": 600})
    assert changed.message_retention_duration.seconds == 600
    assert dict(changed.labels) == {"team": "south"}
    assert "message_retention_duration" not in update("message_retention_duration")
    with pytest.raises(exceptions.InvalidArgument, match="allowed_persistence_regions must name at least one region"):
        update("message_storage_policy", message_storage_policy={"allowed_persistence_regions": []})
    with pytest.raises(exceptions.InvalidArgument, match="update_mask in the UpdateTopicRequest must be set"):
        update()
    with pytest.raises(exceptions.InvalidArgument, match="'colour' is not a known Topic field"):
        update("colour")
    for fixed in ("name", "state"):
        with pytest.raises(exceptions.InvalidArgument, match=f"the '{fixed}' field in the Topic is not mutable"):
            update(fixed)
    with pytest.raises(exceptions.InvalidArgument, match="message_retention_duration is too small"):
        update("message_retention_duration", message_retention_duration={"seconds": 599})
    publisher.delete_topic(topic=TOPIC)
    with pytest.raises(exceptions.NotFound):
        update("labels")


@pytest.mark.parametrize(
    "fields",
    [
        {"kms_key_name": "key"},
        {"ingestion_data_source_settings": {"platform_logs_settings": {"severity": 4}}},
        {"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "c"}}]},
        {"tags": {"a": "b"}},
    ],
)
def test_what_would_be_ignored_is_refused(serve: Serve, fields: dict[str, Any]) -> None:
    server = serve()
    with pytest.raises(exceptions.MethodNotImplemented, match="not supported"):
        server.publisher().create_topic(request={"name": TOPIC, **fields})
    assert server.broker.get_all_topics() == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"message_retention_duration": duration_pb2.Duration(seconds=31 * 86_400 + 1)}, "too large"),
        ({"labels": {f"k{number}": "" for number in range(65)}}, "label_count"),
        ({"labels": {"k" * 64: ""}}, "labels: keys of 1 to 63"),
    ],
)
def test_limits_of_a_topic(serve: Serve, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=text):
        serve().publisher().create_topic(request={"name": TOPIC, **fields})


def test_what_is_published_is_delivered_as_it_was(server: Running) -> None:
    server.raw_publisher().create_topic(name=TOPIC)
    subscriber = server.subscriber()
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    sent = [
        PubsubMessage(data=b"1", attributes={"kind": "ü"}, ordering_key="käse"),
        PubsubMessage(attributes={"only": "attributes", "googclient_traceparent": "00-1"}),
        PubsubMessage(data=bytes(range(256)) * 1000),
        # Set by the service; what a publisher says of them means nothing.
        PubsubMessage(data=b"4", message_id="mine", publish_time={"seconds": 1}),
    ]
    ids = list(server.raw_publisher().publish(topic=TOPIC, messages=sent).message_ids)
    assert len(set(ids)) == 4
    got = {
        one.message.message_id: one.message
        for one in subscriber.pull(subscription=SUBSCRIPTION, max_messages=9).received_messages
    }
    for message, message_id in zip(sent, ids, strict=True):
        delivered = got[message_id]
        assert delivered.data == message.data
        assert dict(delivered.attributes) == dict(message.attributes)
        assert delivered.ordering_key == message.ordering_key
        assert delivered.publish_time.timestamp() > 1_700_000_000


def test_googles_publisher_with_ordering_keys(server: Running) -> None:
    publisher = server.publisher(publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True))
    publisher.create_topic(name=TOPIC)
    subscriber = server.subscriber()
    subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True})
    futures = [publisher.publish(TOPIC, b"%d" % number, ordering_key="k") for number in range(300)]
    assert len({future.result(10) for future in futures}) == 300
    got: list[bytes] = []
    while len(got) < 300:
        answer = subscriber.pull(subscription=SUBSCRIPTION, max_messages=1000)
        got += [one.message.data for one in answer.received_messages]
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[one.ack_id for one in answer.received_messages])
    assert got == [b"%d" % number for number in range(300)]


REFUSED = {
    "none": ([], "message_count is too small. You passed 0"),
    "too many": ([{"data": b"x"}] * 1001, "message_count is too large. You passed 1001"),
    "empty": ([{"data": b"x"}, {}], "is empty"),
    "only a key": ([{"ordering_key": "k"}], "is empty"),
    "a long key": ([{"data": b"x", "ordering_key": "k" * 1025}], "1024"),
    "a long key of few letters": ([{"data": b"x", "ordering_key": "ü" * 513}], "1024"),
    "many attributes": ([{"attributes": {f"k{number}": "" for number in range(101)}}], "100"),
    "a long attribute key": ([{"attributes": {"k" * 257: ""}}], "256"),
    "a long attribute of a client": ([{"attributes": {"googclient_" + "k" * 246: ""}}], "256"),
    "a long attribute": ([{"attributes": {"k": "x" * 1025}}], "1024"),
    "an empty attribute key": ([{"attributes": {"": "x"}}], "empty"),
    "a reserved attribute key": ([{"attributes": {"google": "x"}}], "goog"),
    "too many bytes": ([{"data": b"x" * 10_000_001}], "request_size is too large.*the maximum value is 10000000"),
    "too many bytes together": ([{"data": b"x" * 5_000_000}] * 2, "10000000"),
}


@pytest.mark.parametrize(("batch", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_batch_beyond_a_limit_is_refused_whole(serve: Serve, batch: list[Any], text: str) -> None:
    server = serve()
    publisher = server.raw_publisher()
    publisher.create_topic(name=TOPIC)
    with pytest.raises(exceptions.InvalidArgument, match=text):
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(**fields) for fields in batch])
    topic = server.broker.get_topic(TOPIC)
    assert topic is not None
    assert topic.published == 0


def test_what_is_just_allowed_is_taken(serve: Serve) -> None:
    publisher = serve().raw_publisher()
    publisher.create_topic(name=TOPIC)
    full = {f"{number:0256}": "v" * 1024 for number in range(100)}
    batch = [PubsubMessage(data=b"x", ordering_key="k" * 1024, attributes=full), *messages("x" * 999)]
    assert len(publisher.publish(topic=TOPIC, messages=batch).message_ids) == 1000
    large = PubsubMessage(data=b"x" * (10_000_000 - 100))
    assert len(publisher.publish(topic=TOPIC, messages=[large]).message_ids) == 1


def test_publishing_to_nothing_is_not_found(server: Running) -> None:
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=orders\)\."):
        server.raw_publisher().publish(topic=TOPIC, messages=messages("a"))
    with pytest.raises(exceptions.InvalidArgument, match="Invalid resource name"):
        server.raw_publisher().publish(topic="orders", messages=messages("a"))
    for bad in ([PubsubMessage()], messages("x" * 1001), []):  # whatever else is wrong with it
        with pytest.raises(exceptions.NotFound):
            server.raw_publisher().publish(topic=TOPIC, messages=bad)


def test_what_is_no_protobuf_is_refused_and_nothing_is_stored(serve: Serve) -> None:
    server = serve()
    server.publisher().create_topic(name=TOPIC)
    good = pubsub.PublishRequest.pb(pubsub.PublishRequest(topic=TOPIC, messages=messages("abc"))).SerializeToString()
    unreadable = [b"\xff", good[:-1], good + b"\x12\x05\x0a", good + b"\x12\x04\x2a\x02\xff\xff"]
    for method, raw in [("CreateTopic", b"\xff"), ("UpdateTopic", b"\xff"), *(("Publish", one) for one in unreadable)]:
        with pytest.raises(grpc.RpcError) as raised:
            call(server.channel(), "Publisher", method, raw)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "not a valid google.pubsub.v1." in raised.value.details()
    topic = server.broker.get_topic(TOPIC)
    assert topic is not None
    assert topic.published == 0


def test_a_call_that_is_absent_says_so(serve: Serve) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call(serve().channel(), "Publisher", "Subscribe", b"")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_request_of_100_mb_is_refused_and_others_are_served(serve: Serve) -> None:
    server = serve()
    channel = grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)])
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, "Publisher", "Publish", b"x" * 100_000_000)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    channel.close()
    server.publisher().create_topic(name=TOPIC)


def test_resources_survive_a_restart(serve: Serve, tmp_path: Path) -> None:
    first = serve(MessageQueue.open(tmp_path))
    topic = first.publisher().create_topic(request={"name": TOPIC, "labels": {"team": "ü"}})
    fields = {
        "name": SUBSCRIPTION,
        "topic": TOPIC,
        "labels": {"a": "b"},
        "expiration_policy": {"ttl": {"seconds": 8 * 86_400}},
        "enable_exactly_once_delivery": True,
        "retain_acked_messages": True,
        "retry_policy": {"minimum_backoff": {"seconds": 1, "nanos": 500_000_000}},
    }
    subscription = first.subscriber().create_subscription(request=fields)
    first.close()
    second = serve(MessageQueue.open(tmp_path))
    assert second.publisher().get_topic(topic=TOPIC) == topic
    assert second.subscriber().get_subscription(subscription=SUBSCRIPTION) == subscription
    assert subscription.retry_policy.minimum_backoff.total_seconds() == 1.5


def test_a_publish_that_waits_for_room_is_given_up_with_its_client(serve: Serve) -> None:
    server = serve(project="shop")
    server.broker.register_topic("orders")
    limits = {"max_messages": 1, "when_full": "block"}
    server.broker.register_subscription("worker", "orders", {"queue_limits": limits})
    server.raw_publisher().publish(topic=TOPIC, messages=messages("a"))
    raw = pubsub.PublishRequest.pb(pubsub.PublishRequest(topic=TOPIC, messages=messages("b"))).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        call(server.channel(), "Publisher", "Publish", raw, timeout=0.3)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    deadline = time.monotonic() + 10
    while server.broker._blocked and time.monotonic() < deadline:
        time.sleep(0.001)
    server.broker.ack(server.broker.pull("worker", 9))
    assert server.broker.pull("worker", 9) == []


def test_googles_publisher_pauses_a_key_that_failed_and_resumes_it(serve: Serve) -> None:
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    publisher = serve().publisher(publisher_options=options)
    with pytest.raises(exceptions.NotFound):
        publisher.publish(TOPIC, b"a", ordering_key="k").result(10)
    publisher.create_topic(name=TOPIC)
    with pytest.raises(PublishToPausedOrderingKeyException):
        publisher.publish(TOPIC, b"a", ordering_key="k").result(10)
    publisher.resume_publish(TOPIC, "k")
    assert publisher.publish(TOPIC, b"a", ordering_key="k").result(10)


def test_what_is_deleted_while_it_is_listed_is_left_out(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, publisher, subscriber = server.broker, server.publisher(), server.subscriber()
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    monkeypatch.setattr(broker, "topic_names", lambda: [TOPIC.replace("orders", "gone"), TOPIC])
    monkeypatch.setattr(broker, "subscription_names", lambda: [SUBSCRIPTION.replace("worker", "gone"), SUBSCRIPTION])
    assert [topic.name for topic in publisher.list_topics(project="projects/shop")] == [TOPIC]
    assert [one.name for one in subscriber.list_subscriptions(project="projects/shop")] == [SUBSCRIPTION]
    with PubSub(f"grpc://{server.address}?project=shop") as ours:
        assert len(ours.topics().result()) == len(ours.subscriptions().result()) == 1
