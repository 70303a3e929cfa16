"""The start-up file, and subscriptions that expire."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.api_core import exceptions

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument
from inorder.server.expiry import Expiry
from inorder.server.names import Names
from inorder.server.resources import topic_schema
from inorder.server.startup import create
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, Stream
from .conftest import Running, Serve
from .test_subscriptions import subscribed

EXAMPLE = """
[[topics]]
name = "orders"
message_retention_duration = 3600
labels = { team = "north" }

[[topics]]
name = "projects/other/topics/dead-letters"

[[subscriptions]]
name = "worker"
topic = "orders"
enable_message_ordering = true
ack_deadline_seconds = 20
max_outstanding_per_key = 1
retry_policy = { minimum_backoff = 0.5 }
dead_letter_policy = { dead_letter_topic = "projects/other/topics/dead-letters", max_delivery_attempts = 7 }
"""


def test_a_file_creates_what_is_not_there(tmp_path: Path, serve: Serve) -> None:
    file = tmp_path / "start.toml"
    file.write_text(EXAMPLE)
    server = serve(project="shop")
    for _ in range(2):
        create(file, server.broker, Names("shop"), window=1000)
    shown = server.subscriber().get_subscription(subscription=SUBSCRIPTION)
    assert (shown.ack_deadline_seconds, shown.enable_message_ordering) == (20, True)
    assert shown.retry_policy.minimum_backoff.total_seconds() == 0.5
    assert shown.dead_letter_policy.dead_letter_topic == "projects/other/topics/dead-letters"
    topic = server.publisher().get_topic(topic="projects/shop/topics/orders")
    assert (topic.message_retention_duration.seconds, dict(topic.labels)) == (3600, {"team": "north"})
    subscription = server.broker.get_subscription("worker")
    assert subscription is not None
    assert subscription.options.max_outstanding_per_key == 1


def test_a_file_creates_subscriptions_that_are_pushed(tmp_path: Path) -> None:
    file = tmp_path / "start.toml"
    pushed = """
    [[topics]]
    name = "orders"
    [[subscriptions]]
    name = "worker"
    topic = "orders"
    enable_message_ordering = true
    push_config = { push_endpoint = "https://example.com/push" }
    """
    file.write_text(pushed)
    broker = MessageQueue()
    with pytest.raises(InvalidArgument, match="--push-anywhere"):
        create(file, broker, Names("shop"), window=1000)
    create(file, broker, Names("shop"), window=1000, push_anywhere=True)
    made = broker.get_subscription("worker")
    assert made is not None
    assert made.options.max_outstanding_per_key == 1
    broker.unregister_subscription("worker")
    file.write_text(f"{pushed}\n    max_outstanding_per_key = 2")
    with pytest.raises(InvalidArgument, match="max_outstanding_per_key: 1, as this subscription is pushed, not 2"):
        create(file, broker, Names("shop"), window=1000, push_anywhere=True)


def test_a_schema_without_a_project_is_one_of_the_server(tmp_path: Path) -> None:
    file = tmp_path / "start.toml"
    file.write_text("[[topics]]\nname = 'orders'\nschema_settings = { schema = 'order', encoding = 'JSON' }")
    broker = MessageQueue()
    create(file, broker, Names("shop"), window=1000)
    made = broker.get_topic("orders")
    assert made is not None
    settings = topic_schema(made.options)
    assert settings is not None
    assert settings.schema == "projects/shop/schemas/order"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topics = 1", r"write \[\[topics\]\]"),
        ("[[topic]]\nname = 'orders'", "not 'topic'"),
        ("[[topics]]\nname = 'orders", "start.toml"),
        ("[[topics]]\nlabels = {}", r"topics 1 \(no name\): name: a text, not None"),
        ("[[topics]]\nname = '1st'", "topics 1 .1st.: Invalid resource name"),
        ("[[topics]]\nname = 'orders'\ncolour = 'red'", 'topics 1 .orders.: .*no field named "colour"'),
        ("[[topics]]\nname = 'orders'\nkms_key_name = 'k'", "not supported"),
        ("[[topics]]\nname = 'orders'\nschema_settings = { schema = 'a/b', encoding = 'JSON' }", r"\(name=a/b\)"),
        ("[[topics]]\nname = 'orders'\nschema_settings = { schema = 'order' }", "encoding: JSON"),
        ("[[subscriptions]]\nname = 'worker'", r"subscriptions 1 \(worker\): topic: say of which one"),
        ("[[subscriptions]]\nname = 'worker'\ntopic = 'orders'", "topic 'projects/shop/topics/orders' is not there"),
        (
            '[[topics]]\nname = "orders"\n[[topics]]\nname = "projects/shop/topics/orders"',
            r"topics 2 \(projects/shop/topics/orders\): name: one before it has the same",
        ),
    ],
)
def test_a_wrong_file_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "start.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=problem):
        create(file, MessageQueue(), Names("shop"), window=1000)


def test_a_subscription_that_nobody_uses_expires(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    days = {"ttl": {"seconds": 8 * 86_400}}
    subscriber = subscribed(server, expiration_policy=days)
    never = "projects/shop/subscriptions/never"
    subscriber.create_subscription(
        request={"name": never, "topic": "projects/shop/topics/orders", "expiration_policy": {}}
    )
    stream = Stream(server.channel(), protocol_version=1)
    stream.send()
    stream.read()
    clock.advance(9 * 86_400)
    server.run(server.server.expiry.delete_overdue())
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).name == SUBSCRIPTION
    stream.half_close()
    stream.code()
    clock.advance(7 * 86_400)
    server.run(server.server.expiry.delete_overdue())
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).name == SUBSCRIPTION
    clock.advance(2 * 86_400)
    server.run(server.server.expiry.delete_overdue())
    with pytest.raises(exceptions.NotFound):
        subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert subscriber.get_subscription(subscription=never).name == never


def test_a_pull_of_our_own_client_is_use_although_it_brings_nothing(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock), project="shop")
    subscriber = subscribed(server, expiration_policy={"ttl": {"seconds": 8 * 86_400}})
    with PubSub(f"grpc://{server.address}?project=shop") as pubsub:
        for _ in range(3):
            clock.advance(5 * 86_400)
            assert pubsub.subscription("worker").pull(1).result(30) == []
            server.run(server.server.expiry.delete_overdue())
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).name == SUBSCRIPTION


def _updated_by_google(server: Running) -> None:
    server.subscriber().update_subscription(
        subscription={"name": SUBSCRIPTION, "expiration_policy": {"ttl": {"seconds": 8 * 86_400}}},
        update_mask={"paths": ["expiration_policy"]},
    )


def _sought_by_google(server: Running) -> None:
    server.subscriber().seek(request={"subscription": SUBSCRIPTION, "time": datetime(2020, 1, 1, tzinfo=UTC)})


def _updated_by_ours(server: Running) -> None:
    with PubSub(f"grpc://{server.address}?project=shop") as pubsub:
        pubsub.subscription("worker").set_options(ack_deadline_seconds=20).result(30)


def _sought_by_ours(server: Running) -> None:
    with PubSub(f"grpc://{server.address}?project=shop") as pubsub:
        pubsub.subscription("worker").seek(position=0).result(30)


@pytest.mark.parametrize("change", [_updated_by_google, _sought_by_google, _updated_by_ours, _sought_by_ours])
def test_who_changes_a_subscription_uses_it(serve: Serve, change: Callable[[Running], None]) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock), project="shop")
    policy = {} if change is _updated_by_google else {"ttl": {"seconds": 8 * 86_400}}
    subscriber = subscribed(server, expiration_policy=policy)
    clock.advance(9 * 86_400)
    change(server)
    server.run(server.server.expiry.delete_overdue())
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).name == SUBSCRIPTION
    clock.advance(9 * 86_400)
    server.run(server.server.expiry.delete_overdue())
    with pytest.raises(exceptions.NotFound):
        subscriber.get_subscription(subscription=SUBSCRIPTION)


def test_a_subscription_that_is_used_while_others_expire_stays(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock), project="shop")
    subscriber = subscribed(server, expiration_policy={"ttl": {"seconds": 86_400}})
    request = {"name": f"{SUBSCRIPTION}-2", "topic": "projects/shop/topics/orders"}
    subscriber.create_subscription(request=request)
    clock.advance(40 * 86_400)

    async def use_the_other(resource: str) -> None:
        other = f"{SUBSCRIPTION}-2" if resource == SUBSCRIPTION else SUBSCRIPTION
        server.server._desks.settled(other, (), failed=False)

    inside = server.server
    expiry = Expiry(server.broker, inside.names, inside._admin, inside._desks, use_the_other)
    expiry._started_us = 0
    server.run(expiry.delete_overdue())
    assert len(server.broker.get_all_subscriptions()) == 1


def test_when_deleted_subscriptions_were_used_is_forgotten(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    other = "projects/shop/subscriptions/other"
    subscriber.create_subscription(request={"name": other, "topic": "projects/shop/topics/orders"})
    for name in (SUBSCRIPTION, other):
        stream = Stream(server.channel(), subscription=name)
        stream.half_close()
        stream.code()
    subscriber.delete_subscription(subscription=other)
    server.run(server.server.expiry.delete_overdue())
    assert [*server.server._desks._used_us] == [SUBSCRIPTION]
