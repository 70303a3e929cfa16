"""Snapshots, by Google's client."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.pubsub_v1.types import Snapshot

from inorder.broker import MessageQueue
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, TOPIC
from .conftest import Running, Serve
from .test_subscriptions import ack_ids, data, publish, pulled, subscribed

BEFORE = "projects/shop/snapshots/before"
OTHER = "projects/shop/subscriptions/other"


def acked(subscriber: Any, count: int) -> str:
    """The data of so many messages, which are then acked."""
    found = pulled(subscriber, count)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(found))
    return data(found)


def test_a_seek_to_a_snapshot_brings_back_what_was_unacked_and_what_came_after(server: Running) -> None:
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "abc", "key")
    assert acked(subscriber, 1) == "a"
    made = subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    assert (made.name, made.topic) == (BEFORE, TOPIC)
    left = made.expire_time - datetime.now(UTC)
    assert timedelta(days=7, minutes=-5) < left <= timedelta(days=7)
    publish(server, "de", "key")
    assert acked(subscriber, 10) == "bcde"
    assert pulled(subscriber) == []
    subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": BEFORE})
    assert acked(subscriber, 10) == "bcde"


def test_another_subscription_of_the_topic_can_seek_to_it(server: Running) -> None:
    subscriber = subscribed(server)
    subscriber.create_subscription(name=OTHER, topic=TOPIC)
    publish(server, "abc")
    acked(subscriber, 2)
    subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    subscriber.seek(request={"subscription": OTHER, "snapshot": BEFORE})
    [left] = subscriber.pull(subscription=OTHER, max_messages=10).received_messages
    assert left.message.data == b"c"
    server.raw_publisher().create_topic(name="projects/shop/topics/far")
    far = "projects/shop/subscriptions/far"
    subscriber.create_subscription(name=far, topic="projects/shop/topics/far")
    with pytest.raises(exceptions.FailedPrecondition, match="is of topic"):
        subscriber.seek(request={"subscription": far, "snapshot": BEFORE})


def test_snapshots_are_shown_listed_changed_and_deleted(server: Running) -> None:
    subscriber = subscribed(server)
    names = [f"projects/shop/snapshots/s-{number}" for number in range(5)]
    for name in names:
        subscriber.create_snapshot(request={"name": name, "subscription": SUBSCRIPTION, "labels": {"team": "north"}})
    pages = list(subscriber.list_snapshots(request={"project": "projects/shop", "page_size": 2}).pages)
    assert [[one.name for one in page.snapshots] for page in pages] == [names[:2], names[2:4], names[4:]]
    publisher = server.raw_publisher()
    assert list(publisher.list_topic_snapshots(request={"topic": TOPIC, "page_size": 2})) == names
    assert list(subscriber.list_snapshots(project="projects/other")) == []
    shown = subscriber.get_snapshot(snapshot=names[0])
    assert shown.labels == {"team": "north"}
    sooner = shown.expire_time.replace(microsecond=0) - timedelta(days=1)
    changed = subscriber.update_snapshot(
        request={
            "snapshot": Snapshot(name=names[0], labels={"team": "south"}, expire_time=sooner),
            "update_mask": {"paths": ["labels", "expire_time"]},
        }
    )
    assert (changed.labels, changed.expire_time) == ({"team": "south"}, sooner)
    assert subscriber.get_snapshot(snapshot=names[0]) == changed
    subscriber.delete_snapshot(snapshot=names[0])
    for missing in (subscriber.get_snapshot, subscriber.delete_snapshot):
        with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=s-0\)\."):
            missing(snapshot=names[0])
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=s-0\)\."):
        subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": names[0]})
    publisher.delete_topic(topic=TOPIC)
    assert list(subscriber.list_snapshots(project="projects/shop")) == []
    with pytest.raises(exceptions.NotFound):
        publisher.list_topic_snapshots(topic=TOPIC)


def test_what_cannot_be_is_refused(server: Running) -> None:
    subscriber = subscribed(server)
    subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.AlreadyExists, match=r"Resource already exists in the project \(resource=before\)\."):
        subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.AlreadyExists):  # the name is taken, whatever becomes of the subscription
        subscriber.create_snapshot(name=BEFORE, subscription=OTHER)
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=other\)\."):
        subscriber.create_snapshot(name="projects/shop/snapshots/b-2", subscription=OTHER)
    with pytest.raises(exceptions.InvalidArgument, match="Invalid resource name"):
        subscriber.create_snapshot(name=SUBSCRIPTION, subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.MethodNotImplemented, match="tags"):
        subscriber.create_snapshot(
            request={"name": "projects/shop/snapshots/b-2", "subscription": SUBSCRIPTION, "tags": {"a": "b"}}
        )
    for paths, problem in (([], "must be set"), (["topic"], "not mutable"), (["nothing"], "not a known Snapshot")):
        with pytest.raises(exceptions.InvalidArgument, match=problem):
            subscriber.update_snapshot(snapshot=Snapshot(name=BEFORE), update_mask={"paths": paths})
    past = Snapshot(name=BEFORE, expire_time=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(exceptions.InvalidArgument, match="expires: after now"):
        subscriber.update_snapshot(snapshot=past, update_mask={"paths": ["expire_time"]})


def test_a_snapshot_without_a_name_gets_one(server: Running) -> None:
    made = subscribed(server).create_snapshot(request={"subscription": SUBSCRIPTION})
    assert re.fullmatch(r"projects/shop/snapshots/s[0-9a-f]{32}", made.name)


def test_a_snapshot_that_would_live_less_than_an_hour_is_refused_and_an_old_one_goes(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock))
    subscriber = subscribed(server, expiration_policy={})
    publish(server, "a")
    subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    clock.advance(7 * 86_400 - 3_500)
    with pytest.raises(exceptions.FailedPrecondition, match="less than 3600 seconds"):
        subscriber.create_snapshot(name="projects/shop/snapshots/late", subscription=SUBSCRIPTION)
    clock.advance(3_500)
    with pytest.raises(exceptions.NotFound):
        subscriber.get_snapshot(snapshot=BEFORE)
    server.run(server.server.expiry.delete_overdue())
    assert server.broker.delete_old_snapshots() == []


def test_policies_of_snapshots_topics_and_subscriptions_go_with_them(server: Running) -> None:
    subscriber = subscribed(server)
    publisher = server.raw_publisher()
    subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    binding = policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@b.c"])
    resources = (BEFORE, SUBSCRIPTION, TOPIC)

    def roles(resource: str) -> list[str]:
        policy = publisher.get_iam_policy(request=iam_policy_pb2.GetIamPolicyRequest(resource=resource))
        return [one.role for one in policy.bindings]

    for resource in resources:
        policy = policy_pb2.Policy(bindings=[binding])
        publisher.set_iam_policy(request=iam_policy_pb2.SetIamPolicyRequest(resource=resource, policy=policy))
        assert roles(resource) == ["roles/pubsub.viewer"]
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    publisher.delete_topic(topic=TOPIC)  # and the snapshot with it
    for resource in resources:
        with pytest.raises(exceptions.NotFound):
            roles(resource)
    subscribed(server).create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    assert [roles(resource) for resource in resources] == [[], [], []]


@pytest.mark.parametrize(
    ("resource", "deletes"),
    [(TOPIC, "unregister_topic"), (SUBSCRIPTION, "unregister_subscription"), (BEFORE, "delete_snapshot")],
)
def test_a_policy_that_is_set_while_its_resource_is_deleted_goes_with_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, resource: str, deletes: str
) -> None:
    server = serve()
    publisher, subscriber = server.raw_publisher(), subscribed(server)
    subscriber.create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    policy = policy_pb2.Policy(bindings=[policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@b.c"])])
    delete = getattr(server.broker, deletes)

    def deleting(name: str) -> None:
        publisher.set_iam_policy(request=iam_policy_pb2.SetIamPolicyRequest(resource=resource, policy=policy))
        delete(name)

    monkeypatch.setattr(server.broker, deletes, deleting)
    for call, name in (
        (subscriber.delete_snapshot, {"snapshot": BEFORE}),
        (subscriber.delete_subscription, {"subscription": SUBSCRIPTION}),
        (publisher.delete_topic, {"topic": TOPIC}),
    ):
        call(**name)
    subscribed(server).create_snapshot(name=BEFORE, subscription=SUBSCRIPTION)
    shown = publisher.get_iam_policy(request=iam_policy_pb2.GetIamPolicyRequest(resource=resource))
    assert list(shown.bindings) == []


@pytest.mark.parametrize("journal", ["segments", "sqlite"])
def test_snapshots_survive_a_restart_of_the_server(tmp_path: Path, serve: Serve, journal: Any) -> None:
    first = serve(MessageQueue.open(tmp_path, journal=journal))
    subscriber = subscribed(first)
    publish(first, "ab")
    acked(subscriber, 1)
    subscriber.create_snapshot(request={"name": BEFORE, "subscription": SUBSCRIPTION, "labels": {"team": "north"}})
    made = subscriber.get_snapshot(snapshot=BEFORE)
    acked(subscriber, 1)
    first.close()
    second = serve(MessageQueue.open(tmp_path, journal=journal))
    subscriber = second.subscriber()
    assert subscriber.get_snapshot(snapshot=BEFORE) == made
    assert pulled(subscriber) == []
    subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": BEFORE})
    assert data(pulled(subscriber)) == "b"
