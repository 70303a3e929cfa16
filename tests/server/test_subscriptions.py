"""Subscriptions, pulls, acks and deadlines, by Google's client."""

import json
import re
import threading
import time
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.protobuf import field_mask_pb2
from google.pubsub_v1.types import Subscription, pubsub

from inorder.broker import MessageQueue
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, TOPIC, call, messages
from .conftest import Running, Serve

DEAD = "projects/shop/topics/dead-letters"


def subscribed(server: Running, **fields: Any) -> pubsub_v1.SubscriberClient:
    """A client of the subscription, which is made with its topic."""
    subscriber = server.subscriber()
    if server.broker.get_topic(server.server.names.topic(TOPIC)) is None:
        server.raw_publisher().create_topic(name=TOPIC)
    subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, **fields})
    return subscriber


def publish(server: Running, data: str, key: str = "", **attributes: str) -> list[str]:
    return list(server.raw_publisher().publish(topic=TOPIC, messages=messages(data, key, **attributes)).message_ids)


def pulled(subscriber: pubsub_v1.SubscriberClient, count: int = 100) -> list[Any]:
    """What is there now."""
    request = {"subscription": SUBSCRIPTION, "max_messages": count, "return_immediately": True}
    raw = pubsub.PullRequest.pb(pubsub.PullRequest(**request)).SerializeToString()
    answer = call(subscriber.transport._grpc_channel, "Subscriber", "Pull", raw)
    return list(pubsub.PullResponse.pb().FromString(answer).received_messages)


def data(received: list[Any]) -> str:
    return "".join(one.message.data.decode() for one in received)


def ack_ids(received: list[Any]) -> list[str]:
    return [one.ack_id for one in received]


def test_a_subscription_is_created_shown_and_deleted(server: Running) -> None:
    server.raw_publisher().create_topic(name=DEAD)
    fields = {
        "ack_deadline_seconds": 20,
        "retain_acked_messages": True,
        "message_retention_duration": {"seconds": 86_400},
        "labels": {"team": "north"},
        "enable_message_ordering": True,
        "expiration_policy": {"ttl": {"seconds": 10 * 86_400}},
        "filter": 'attributes.kind = "x"',
        "dead_letter_policy": {"dead_letter_topic": DEAD, "max_delivery_attempts": 7},
        "retry_policy": {"minimum_backoff": {"seconds": 1}, "maximum_backoff": {"seconds": 5}},
        "enable_exactly_once_delivery": True,
    }
    subscriber = subscribed(server, **fields)
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    expected = Subscription(name=SUBSCRIPTION, topic=TOPIC, push_config={}, state=Subscription.State.ACTIVE, **fields)
    assert shown == expected
    assert [one.name for one in subscriber.list_subscriptions(project="projects/shop")] == [SUBSCRIPTION]
    assert list(server.raw_publisher().list_topic_subscriptions(topic=TOPIC)) == [SUBSCRIPTION]
    with pytest.raises(exceptions.AlreadyExists, match=r"Resource already exists in the project \(resource=worker\)\."):
        subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    with pytest.raises(exceptions.AlreadyExists):  # the name is taken, whatever becomes of the topic
        subscriber.create_subscription(name=SUBSCRIPTION, topic="projects/shop/topics/nowhere")
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    for missing in (subscriber.get_subscription, subscriber.delete_subscription):
        with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=worker\)\."):
            missing(subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.NotFound):
        subscriber.pull(subscription=SUBSCRIPTION, max_messages=1)
    with pytest.raises(exceptions.NotFound):
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=["x"])


def test_a_subscription_without_a_name_gets_one(server: Running) -> None:
    for topic in (TOPIC, DEAD):
        server.raw_publisher().create_topic(name=topic)
    dead_letters = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    made = server.subscriber().create_subscription(request={"topic": TOPIC, "dead_letter_policy": dead_letters})
    assert re.fullmatch(r"projects/shop/subscriptions/s[0-9a-f]{32}", made.name)
    assert server.subscriber().get_subscription(subscription=made.name) == made
    (kept,) = server.broker.get_all_subscriptions()
    assert kept.options.dead_letter_policy is not None
    assert kept.options.dead_letter_policy.source == made.name  # which its dead letters then say


def test_defaults_are_those_of_pubsub(serve: Serve) -> None:
    shown = subscribed(serve()).get_subscription(subscription=SUBSCRIPTION)
    assert shown.ack_deadline_seconds == 10
    assert shown.message_retention_duration.days == 7
    assert shown.expiration_policy.ttl.days == 31
    assert "dead_letter_policy" not in shown
    assert "retry_policy" not in shown


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ack_deadline_seconds": 9}, "too small. You passed 9 in the request, but the minimum value is 10."),
        ({"ack_deadline_seconds": 601}, "too large. You passed 601 in the request, but the maximum value is 600."),
        ({"message_retention_duration": {"seconds": 599}}, "message_retention_duration is too small"),
        ({"expiration_policy": {"ttl": {"seconds": 86_399}}}, "expiration_policy.ttl is too small"),
        ({"retry_policy": {"maximum_backoff": {"seconds": 601}}}, "maximum_backoff is too large"),
        (
            {"dead_letter_policy": {"dead_letter_topic": TOPIC[:-1], "max_delivery_attempts": 4}},
            "attempts is too small",
        ),
        ({"dead_letter_policy": {"dead_letter_topic": TOPIC, "max_delivery_attempts": 101}}, "attempts is too large"),
        ({"dead_letter_policy": {"max_delivery_attempts": 5}}, "dead_letter_topic must be set"),
        ({"filter": "attributes.x ="}, "invalid filter at position"),
        ({"filter": f'attributes:"{"x" * 250}"'}, "256 bytes"),
        ({"topic": "_deleted-topic_"}, "Invalid resource name"),
    ],
)
def test_limits_of_a_subscription(serve: Serve, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=text):
        subscribed(serve(), **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"push_config": {"push_endpoint": "http://localhost/", "oidc_token": {"service_account_email": "a@b.c"}}},
        {"push_config": {"push_endpoint": "http://localhost/", "attributes": {"x-goog-version": "v1beta1"}}},
        {"bigquery_config": {"table": "t"}},
        {"bigquery_config": {}},
        {"cloud_storage_config": {"bucket": "b"}},
        {"bigtable_config": {"table": "t"}},
        {"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "c"}}]},
        {"tags": {"a": "b"}},
    ],
)
def test_what_would_be_ignored_is_refused(serve: Serve, fields: dict[str, Any]) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match="not supported"):
        subscribed(serve(), **fields)


def test_topics_that_are_not_there(serve: Serve) -> None:
    server = serve()
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=orders\)\."):
        server.subscriber().create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=dead-letters\)\."):
        subscribed(server, dead_letter_policy={"dead_letter_topic": DEAD})


def test_fields_of_a_subscription_are_changed_one_by_one(server: Running) -> None:
    subscriber = subscribed(server, enable_message_ordering=True, labels={"a": "b"})
    server.raw_publisher().create_topic(name=DEAD)

    def update(*paths: str, **fields: Any) -> Subscription:
        return subscriber.update_subscription(
            request={
                "subscription": {"name": SUBSCRIPTION, **fields},
                "update_mask": field_mask_pb2.FieldMask(paths=paths),
            }
        )

    assert update("ack_deadline_seconds", ack_deadline_seconds=30, labels={}).ack_deadline_seconds == 30
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 6}
    assert update("dead_letter_policy", dead_letter_policy=policy).dead_letter_policy.max_delivery_attempts == 6
    nested = "dead_letter_policy.max_delivery_attempts"
    changed = update(nested, dead_letter_policy={"max_delivery_attempts": 9})
    assert changed.dead_letter_policy.dead_letter_topic == DEAD
    assert changed.dead_letter_policy.max_delivery_attempts == 9
    assert "dead_letter_policy" not in update("dead_letter_policy")
    changed = update("expiration_policy", "enable_exactly_once_delivery", "retry_policy", expiration_policy={})
    assert "ttl" not in changed.expiration_policy
    assert (dict(changed.labels), changed.ack_deadline_seconds) == ({"a": "b"}, 30)
    for fixed in ("topic", "filter", "enable_message_ordering", "detached"):
        with pytest.raises(exceptions.InvalidArgument, match=f"the '{fixed}' field in the Subscription is not mutable"):
            update(fixed)
    with pytest.raises(exceptions.InvalidArgument, match="'nothing' is not a known Subscription field"):
        update("nothing")
    with pytest.raises(exceptions.MethodNotImplemented):
        update("bigquery_config", bigquery_config={"table": "t"})
    with pytest.raises(exceptions.InvalidArgument, match="ack_deadline_seconds"):
        update("ack_deadline_seconds", ack_deadline_seconds=1)


@pytest.mark.parametrize("text", ["whatever this is", "[" * 50_000])
def test_what_the_embedded_api_set_is_kept_by_an_update(serve: Serve, text: str) -> None:
    server = serve(project="shop")
    server.broker.register_topic("orders", {"annotations": text})
    server.broker.register_subscription(
        "worker", "orders", {"ack_deadline": 2.5, "message_ordering": True, "max_outstanding_per_key": 3}
    )
    shown = server.subscriber().get_subscription(subscription=SUBSCRIPTION)
    assert (shown.topic, shown.ack_deadline_seconds) == (TOPIC, 2)
    for paths in (["labels"], ["labels", "ack_deadline_seconds"]):
        mask = field_mask_pb2.FieldMask(paths=paths)
        wanted = {"name": SUBSCRIPTION, "labels": {"a": "b"}, "ack_deadline_seconds": 2}
        server.subscriber().update_subscription(request={"subscription": wanted, "update_mask": mask})
    assert "expiration_policy" not in server.subscriber().get_subscription(subscription=SUBSCRIPTION)
    changed = server.broker.get_subscription("worker")
    assert changed is not None
    assert (changed.options.max_outstanding_per_key, changed.options.ack_deadline_seconds) == (3, 2.5)
    assert server.publisher().get_topic(topic=TOPIC).name == TOPIC
    mask = field_mask_pb2.FieldMask(paths=["labels"])
    for _ in range(2):
        server.publisher().update_topic(request={"topic": {"name": TOPIC}, "update_mask": mask})
    topic = server.broker.get_topic("orders")
    assert topic is not None
    assert json.loads(topic.options.annotations)["text"] == text


@pytest.mark.parametrize("labels", [5, {"a": "\ud800"}])
def test_what_the_embedded_api_set_and_google_does_not_know_disturbs_no_other(serve: Serve, labels: object) -> None:
    server = serve(project="shop")
    server.broker.register_topic("orders", {"annotations": json.dumps({"google.pubsub.v1": {"labels": labels}})})
    server.broker.register_topic("other")
    listed = server.publisher().list_topics(project="projects/shop")
    assert [one.name for one in listed] == [TOPIC, "projects/shop/topics/other"]
    assert publish(server, "a")


@pytest.mark.parametrize(
    ("path", "value"),
    [("enable_exactly_once_delivery", True), ("push_config", {"push_endpoint": "http://localhost:1/"})],
)
def test_what_is_strict_for_a_while_then_has_its_own_window_again(serve: Serve, path: str, value: Any) -> None:
    server = serve(project="shop")
    server.broker.register_topic("orders")
    server.broker.register_subscription("worker", "orders", {"message_ordering": True, "max_outstanding_per_key": 3})

    def window_after(path: str, value: Any) -> int:
        mask = field_mask_pb2.FieldMask(paths=[path])
        server.subscriber().update_subscription(subscription={"name": SUBSCRIPTION, path: value}, update_mask=mask)
        found = server.broker.get_subscription("worker")
        assert found is not None
        return found.options.max_outstanding_per_key

    assert window_after(path, value) == 1
    assert window_after("labels", {"team": "north"}) == 1
    assert window_after(path, None) == 3


def test_seconds_that_are_nearly_whole_are_shown_as_a_duration(serve: Serve) -> None:
    server = serve(project="shop")
    server.broker.register_topic("orders")
    backoff = {"minimum_backoff": 0.99999999999, "maximum_backoff": 1.000000001}
    server.broker.register_subscription("worker", "orders", {"retry_policy": backoff})
    shown = Subscription.pb(server.subscriber().get_subscription(subscription=SUBSCRIPTION)).retry_policy
    assert (shown.minimum_backoff.seconds, shown.minimum_backoff.nanos) == (1, 0)
    assert (shown.maximum_backoff.seconds, shown.maximum_backoff.nanos) == (1, 1)


def test_a_field_of_a_field_that_an_update_does_not_have_is_cleared(serve: Serve) -> None:
    backoff = {"minimum_backoff": {"seconds": 1}, "maximum_backoff": {"seconds": 20}}
    subscriber = subscribed(serve(), retry_policy=backoff, expiration_policy={"ttl": {"seconds": 86_400}})

    def cleared(path: str) -> Any:
        request = {"subscription": {"name": SUBSCRIPTION}, "update_mask": {"paths": [path]}}
        return Subscription.pb(subscriber.update_subscription(request=request))

    policy = cleared("retry_policy.minimum_backoff").retry_policy
    assert (policy.minimum_backoff.seconds, policy.maximum_backoff.seconds) == (10, 20)  # Google's default
    shown = cleared("expiration_policy.ttl")
    assert shown.HasField("expiration_policy")
    assert not shown.expiration_policy.HasField("ttl")  # it never expires
    assert not cleared("dead_letter_policy.max_delivery_attempts").HasField("dead_letter_policy")


def test_updates_at_the_same_time_do_not_undo_each_other(server: Running) -> None:
    subscriber = subscribed(server)

    def update(path: str, **fields: Any) -> None:
        mask = field_mask_pb2.FieldMask(paths=[path])
        subscriber.update_subscription(request={"subscription": {"name": SUBSCRIPTION, **fields}, "update_mask": mask})

    for number in range(10, 20):
        calls = [
            threading.Thread(target=update, args=("labels",), kwargs={"labels": {"n": str(number)}}),
            threading.Thread(target=update, args=("ack_deadline_seconds",), kwargs={"ack_deadline_seconds": number}),
        ]
        for one in calls:
            one.start()
        for one in calls:
            one.join()
        shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
        assert (dict(shown.labels), shown.ack_deadline_seconds) == ({"n": str(number)}, number)


def test_an_update_whose_client_gave_up_undoes_no_later_one(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    subscriber = subscribed(server)
    update = server.broker.update_subscription
    given_up = threading.Event()

    def slow(name: str, options: Any) -> None:
        monkeypatch.setattr(server.broker, "update_subscription", update)
        given_up.wait(20)
        update(name, options)

    def change(path: str, timeout: float, **fields: Any) -> None:
        request = {"subscription": {"name": SUBSCRIPTION, **fields}, "update_mask": {"paths": [path]}}
        subscriber.update_subscription(request=request, retry=None, timeout=timeout)

    monkeypatch.setattr(server.broker, "update_subscription", slow)
    with pytest.raises(exceptions.DeadlineExceeded):
        change("labels", 0.2, labels={"team": "north"})
    server.wait_until_given_up("google.pubsub.v1.Subscriber/UpdateSubscription")
    later = threading.Thread(target=change, args=("ack_deadline_seconds", 20), kwargs={"ack_deadline_seconds": 20})
    later.start()
    later.join(0.2)  # it would be done by now, if it did not wait
    given_up.set()
    later.join()
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert (dict(shown.labels), shown.ack_deadline_seconds) == ({"team": "north"}, 20)


def test_with_exactly_once_delivery_one_message_of_a_key_is_out(server: Running) -> None:
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "abc", "key")
    for once, received in [(True, "a"), (False, "abc")]:
        subscription = {"name": SUBSCRIPTION, "enable_exactly_once_delivery": once}
        subscriber.update_subscription(
            request={"subscription": subscription, "update_mask": {"paths": ["enable_exactly_once_delivery"]}}
        )
        assert data(pulled(subscriber)) == received


def test_a_deleted_topic_leaves_its_subscriptions(server: Running) -> None:
    subscriber = subscribed(server)
    publish(server, "a")
    server.raw_publisher().delete_topic(topic=TOPIC)
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert (shown.topic, shown.detached) == ("_deleted-topic_", False)
    server.raw_publisher().create_topic(name=TOPIC)
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).topic == "_deleted-topic_"
    assert list(server.raw_publisher().list_topic_subscriptions(topic=TOPIC)) == []
    assert pulled(subscriber) == []


def test_a_detached_subscription_gives_nothing(server: Running) -> None:
    subscriber = subscribed(server)
    publish(server, "a")
    server.raw_publisher().detach_subscription(request={"subscription": SUBSCRIPTION})
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert (shown.topic, shown.detached) == (TOPIC, True)
    assert list(server.raw_publisher().list_topic_subscriptions(topic=TOPIC)) == []
    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        subscriber.pull(subscription=SUBSCRIPTION, max_messages=1)
    with pytest.raises(exceptions.FailedPrecondition, match="detached: nothing will come any more"):
        subscriber.seek(request={"subscription": SUBSCRIPTION, "time": {"seconds": 0}})
    with pytest.raises(exceptions.NotFound):
        server.raw_publisher().detach_subscription(request={"subscription": "projects/shop/subscriptions/nobody"})


# -- pulls and answers -----------------------------------------------------------------------------


def test_five_messages_of_one_key_after_a_nack(server: Running) -> None:
    """The case that Google's emulator gets wrong: it returns b c d e a."""
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "abcde", "key")
    first = pulled(subscriber, 1)
    assert data(first) == "a"
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=ack_ids(first), ack_deadline_seconds=0)
    again = pulled(subscriber)
    assert data(again) == "abcde"
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(again))
    assert pulled(subscriber) == []


def test_a_key_that_is_out_is_not_given_to_another_pull(server: Running) -> None:
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "ab", "key")
    first = pulled(subscriber, 1)
    publish(server, "x", "other")
    assert data(pulled(subscriber)) == "x"
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(first))
    assert data(pulled(subscriber)) == "b"


def test_a_nack_takes_back_what_is_out_behind_it(server: Running) -> None:
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "abcde", "key")
    out = pulled(subscriber)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(out)[:1])
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=ack_ids(out)[1:2], ack_deadline_seconds=0)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(out)[2:])  # too late: no effect
    assert data(pulled(subscriber)) == "bcde"


def test_strict_mode_gives_one_at_a_time(serve: Serve) -> None:
    server = serve(max_outstanding_per_key=1)
    subscriber = subscribed(server, enable_message_ordering=True)
    publish(server, "ab", "key")
    first = pulled(subscriber)
    assert data(first) == "a"
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(first))
    assert data(pulled(subscriber)) == "b"


def test_a_pull_waits_for_a_message(server: Running) -> None:
    subscriber = subscribed(server)
    got: list[Any] = []
    waiting = threading.Thread(
        target=lambda: got.append(subscriber.pull(subscription=SUBSCRIPTION, max_messages=5, timeout=20))
    )
    waiting.start()
    while not server.broker._watchers:
        time.sleep(0.001)
    publish(server, "abc")
    waiting.join(10)
    assert data(got[0].received_messages) == "abc"


def test_a_pull_that_finds_nothing_is_empty_before_its_client_gives_up(serve: Serve) -> None:
    subscriber = subscribed(serve())
    for tries in range(5, 0, -1):
        try:
            found = subscriber.pull(subscription=SUBSCRIPTION, max_messages=5, timeout=0.5, retry=None)
        except exceptions.DeadlineExceeded:  # on a machine that stood still meanwhile
            assert tries > 1
        else:
            break
    assert list(found.received_messages) == []


def test_a_pull_whose_client_goes_away_loses_nothing(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    raw = pubsub.PullRequest.pb(pubsub.PullRequest(subscription=SUBSCRIPTION, max_messages=1)).SerializeToString()
    waiting = server.channel().unary_unary("/google.pubsub.v1.Subscriber/Pull").future(raw)
    while not server.broker._watchers:
        time.sleep(0.001)
    waiting.cancel()
    while server.broker._watchers:
        time.sleep(0.001)
    publish(server, "a")
    assert data(pulled(subscriber)) == "a"


def test_wrong_pulls(serve: Serve) -> None:
    subscriber = subscribed(serve())
    with pytest.raises(exceptions.InvalidArgument, match=r"max_messages is too small\. You passed 0"):
        subscriber.pull(subscription=SUBSCRIPTION, max_messages=0)
    with pytest.raises(exceptions.NotFound):
        subscriber.pull(subscription=SUBSCRIPTION + "s", max_messages=1)


def test_a_pull_stays_below_four_mebibytes(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    for _ in range(3):
        server.raw_publisher().publish(topic=TOPIC, messages=[{"data": b"x" * 1_500_000}] * 4)
    sizes = []
    while received := pulled(subscriber):
        sizes.append(sum(one.ByteSize() for one in received))
    assert max(sizes) < 4 << 20
    assert sum(sizes) > 18_000_000


def test_a_late_ack_has_no_effect_and_is_no_error(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscriber = subscribed(server)
    publish(server, "ab")
    out = pulled(subscriber)
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=ack_ids(out)[:1], ack_deadline_seconds=60)
    clock.advance(11)
    again = pulled(subscriber)
    assert data(again) == "b"
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(out))  # of which "a" is in time
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(again))
    clock.advance(61)
    assert pulled(subscriber) == []


def test_ack_ids_that_are_none(server: Running) -> None:
    subscriber = subscribed(server)
    publish(server, "a")
    [out] = pulled(subscriber)
    with pytest.raises(exceptions.InvalidArgument, match=r"invalid ack ID to the service \(ack_id=garbage\)"):
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=["garbage"])
    with pytest.raises(exceptions.InvalidArgument, match="No ack ids"):
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[])
    for seconds in (-1, 601):
        with pytest.raises(exceptions.InvalidArgument, match="ack_deadline_seconds is too"):
            subscriber.modify_ack_deadline(
                subscription=SUBSCRIPTION, ack_ids=[out.ack_id], ack_deadline_seconds=seconds
            )
    other = "projects/shop/subscriptions/other"
    subscriber.create_subscription(name=other, topic=TOPIC)
    subscriber.acknowledge(subscription=other, ack_ids=[out.ack_id])  # not of that one, and so without effect
    metrics = server.broker.metrics(SUBSCRIPTION)
    assert metrics.outstanding_messages == 1


def test_calls_without_ack_ids_of_ours_do_not_disturb(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    publish(server, "a")
    [out] = pulled(subscriber)
    with pytest.raises(exceptions.InvalidArgument):
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=["garbage", out.ack_id])
    assert server.broker.metrics(SUBSCRIPTION).backlog_messages == 0


def test_a_subscriber_that_is_no_protobuf(serve: Serve) -> None:
    server = serve()
    for method in ("Pull", "Acknowledge", "Seek"):
        with pytest.raises(grpc.RpcError) as raised:
            call(server.channel(), "Subscriber", method, b"\xff")
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
