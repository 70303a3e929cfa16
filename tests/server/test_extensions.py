"""inorder.v1: topics and subscriptions with all options, keys and counters, and errors as they were raised."""

import json
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions

from inorder.broker import MessageQueue
from inorder.errors import (
    InorderError,
    InvalidArgument,
    InvalidFilter,
    InvalidName,
    KeyNotBlocked,
    NotRetained,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
    Unavailable,
)
from inorder.message import Message
from inorder.metadata import BlockedKey
from inorder.options import DeadLetterPolicy, RetryPolicy, SubscriptionOptions, TopicOptions
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import from_json, to_json
from inorder.server.status import MAX_DETAILS_BYTES

from .clients import SUBSCRIPTION, TOPIC
from .conftest import Running, Serve
from .extensions import Extensions, raised

DEAD = "projects/shop/topics/dead"


@pytest.fixture
def ours(server: Running) -> Extensions:
    return Extensions(server.channel())


def subscribed(ours: Extensions, **options: Any) -> None:
    ours.CreateTopic(topic=TOPIC)
    ours.CreateSubscription(subscription=SUBSCRIPTION, topic=TOPIC, options=to_json(SubscriptionOptions(**options)))


def answered(ours: Extensions, call: str, **fields: Any) -> Any:
    """The answer, or the first of several."""
    answer = getattr(ours, call)(**fields)
    return next(answer) if isinstance(answer, Iterator) else answer


def published(broker: MessageQueue, data: str, key: str = "") -> None:
    broker.publish(TOPIC, [Message(data=letter.encode(), ordering_key=key or None) for letter in data])


def test_a_server_says_what_it_is(serve: Serve) -> None:
    description = Extensions(serve(project="shop").channel()).Describe()
    assert (description.protocol, description.version, description.project) == (1, version("inorder"), "shop")


def test_every_call_of_the_protocol_is_served(serve: Serve) -> None:
    ours = Extensions(serve().channel())
    for method in v1.DESCRIPTOR.services_by_name["Inorder"].methods:
        if method.name != "Describe":
            with pytest.raises(InorderError, match=r"^(?!Method not found)"):
                answered(ours, method.name)


# -- topics and subscriptions ----------------------------------------------------------------------


def test_a_topic_has_all_its_options(ours: Extensions, server: Running) -> None:
    options = TopicOptions(message_retention_duration=0.5, annotations="mine")
    made = ours.CreateTopic(topic="projects/shop/topics/t", options=to_json(options))  # Google wants three letters
    assert made == ours.GetTopic(topic="projects/shop/topics/t")
    assert (from_json(TopicOptions, made.options), made.published) == (options, 0)
    known = server.broker.get_topic("projects/shop/topics/t")
    assert known is not None
    assert made.created_us == round(known.created.timestamp() * 1_000_000)
    server.broker.publish("projects/shop/topics/t", [Message(data=b"x")] * 3)
    assert ours.GetTopic(topic="projects/shop/topics/t").published == 3


def test_a_subscription_has_all_its_options_and_the_limits_of_inorder(ours: Extensions) -> None:
    ours.CreateTopic(topic=TOPIC)
    options = SubscriptionOptions(
        enable_message_ordering=True,
        ack_deadline_seconds=0.25,
        retry_policy=RetryPolicy(0.5, 3),
        dead_letter_policy=DeadLetterPolicy("dead", 2),
        message_retention_duration=1,
        on_poison="park_key",
        max_outstanding_per_key=7,
        filter="attributes:colour",
    )
    made = ours.CreateSubscription(subscription=SUBSCRIPTION, topic=TOPIC, options=to_json(options))
    assert made == ours.GetSubscription(subscription=SUBSCRIPTION)
    assert (made.name, made.topic, made.detached) == (SUBSCRIPTION, TOPIC, False)
    assert from_json(SubscriptionOptions, made.options) == options
    changed = ours.UpdateSubscription(subscription=SUBSCRIPTION, changes='{"ack_deadline": 600, "retry_policy": null}')
    wanted = {**json.loads(to_json(options)), "ack_deadline_seconds": 600, "retry_policy": None}
    assert json.loads(changed.options) == wanted


@pytest.mark.parametrize("project", ["shop", "inorder"])
def test_a_dead_letter_topic_is_in_the_project_of_its_subscription(serve: Serve, project: str) -> None:
    server = serve(project=project)
    ours = Extensions(server.channel())
    plain = to_json({"dead_letter_policy": {"dead_letter_topic": "dead"}})
    ours.CreateTopic(topic=TOPIC)
    ours.CreateTopic(topic=DEAD)
    made = ours.CreateSubscription(subscription=SUBSCRIPTION, topic=TOPIC, options=plain)
    assert json.loads(made.options)["dead_letter_policy"]["dead_letter_topic"] == "dead"
    assert server.subscriber().get_subscription(subscription=SUBSCRIPTION).dead_letter_policy.dead_letter_topic == DEAD
    other = {"dead_letter_policy": DeadLetterPolicy("projects/another/topics/dead")}
    made = ours.UpdateSubscription(subscription=SUBSCRIPTION, changes=to_json(other))
    assert json.loads(made.options)["dead_letter_policy"]["dead_letter_topic"] == "projects/another/topics/dead"


def test_what_google_made_is_shown_and_changed_here(server: Running, ours: Extensions) -> None:
    server.publisher().create_topic(name=TOPIC)
    server.subscriber().create_subscription(
        request={"name": SUBSCRIPTION, "topic": TOPIC, "labels": {"team": "north"}, "enable_message_ordering": True}
    )
    shown = from_json(SubscriptionOptions, ours.GetSubscription(subscription=SUBSCRIPTION).options)
    assert shown.enable_message_ordering
    ours.UpdateSubscription(subscription=SUBSCRIPTION, changes='{"ack_deadline_seconds": 0.5}')
    again = server.subscriber().get_subscription(subscription=SUBSCRIPTION)
    assert (dict(again.labels), again.ack_deadline_seconds) == ({"team": "north"}, 1)


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("CreateTopic", {"topic": DEAD}),
        ("CreateSubscription", {"subscription": f"{SUBSCRIPTION}s", "topic": TOPIC}),
        ("UpdateSubscription", {"subscription": SUBSCRIPTION}),
    ],
)
def test_annotations_bring_in_nothing_past_google_s_calls(serve: Serve, call: str, fields: dict[str, str]) -> None:
    ours = Extensions(serve().channel())
    subscribed(ours)
    pushed = to_json({"annotations": json.dumps({"google.pubsub.v1": {"pushConfig": {"pushEndpoint": "http://x/"}}})})
    options = {"changes" if call.startswith("Update") else "options": pushed}
    with pytest.raises(InvalidArgument, match="annotations: what is below"):
        answered(ours, call, **fields, **options)


def test_of_a_key_that_is_pushed_one_message_stays_out_at_a_time(serve: Serve) -> None:
    server = serve()
    ours = Extensions(server.channel())
    subscribed(ours, enable_message_ordering=True, max_outstanding_per_key=10)
    server.subscriber().modify_push_config(
        subscription=SUBSCRIPTION, push_config={"push_endpoint": "http://localhost/"}
    )
    with pytest.raises(InvalidArgument, match="max_outstanding_per_key: 1, as this subscription is pushed, not 10"):
        ours.UpdateSubscription(subscription=SUBSCRIPTION, changes='{"max_outstanding_per_key": 10}')
    ours.UpdateSubscription(subscription=SUBSCRIPTION, changes='{"ack_deadline_seconds": 20}')


def test_lists_have_pages(serve: Serve) -> None:
    ours = Extensions(serve().channel())
    names = [f"projects/shop/topics/t{number}" for number in range(5)]
    for name in [*names, "projects/other/topics/x"]:
        ours.CreateTopic(topic=name)
        ours.CreateSubscription(subscription=name.replace("topics", "subscriptions"), topic=name)
    first = ours.ListTopics(project="projects/shop", page_size=3)
    rest = ours.ListTopics(project="projects/shop", page_token=first.next_page_token)
    assert [topic.name for topic in [*first.topics, *rest.topics]] == names
    assert not rest.next_page_token
    of_project = ours.ListSubscriptions(project="projects/shop").subscriptions
    assert [subscription.topic for subscription in of_project] == names
    of_topic = ours.ListSubscriptions(topic=names[3]).subscriptions
    assert [subscription.name for subscription in of_topic] == ["projects/shop/subscriptions/t3"]


def test_a_subscription_goes_back_to_a_position_and_a_time(server: Running, ours: Extensions) -> None:
    subscribed(ours, retain_acked_messages=True)
    published(server.broker, "abc")
    server.broker.ack(pulled := server.broker.pull(SUBSCRIPTION, 10))
    ours.Seek(subscription=SUBSCRIPTION, position=1)
    assert [one.data for one in server.broker.pull(SUBSCRIPTION, 10)] == [b"b", b"c"]
    ours.Seek(subscription=SUBSCRIPTION, time_us=round(pulled[0].publish_time.timestamp() * 1_000_000))
    assert [one.data for one in server.broker.pull(SUBSCRIPTION, 10)] == [b"a", b"b", b"c"]
    with pytest.raises(InvalidArgument, match="a position or time_us"):
        ours.Seek(subscription=SUBSCRIPTION)
    with pytest.raises(InvalidArgument, match="time_us is too large"):
        ours.Seek(subscription=SUBSCRIPTION, time_us=2**62)


# -- keys and counters -----------------------------------------------------------------------------


def test_blocked_keys_are_seen_resumed_and_skipped(server: Running, ours: Extensions) -> None:
    subscribed(
        ours,
        enable_message_ordering=True,
        on_poison="park_key",
        dead_letter_policy=DeadLetterPolicy("dead", 1),
    )
    published(server.broker, "abc", "k")
    server.broker.nack(server.broker.pull(SUBSCRIPTION, 1))
    (key,) = ours.BlockedKeys(subscription=SUBSCRIPTION).keys
    assert (key.ordering_key, key.reason, key.waiting, key.position, key.failures) == ("k", "parked", 3, 0, 1)
    assert key.age_seconds >= key.head_of_line_seconds >= 0
    skipped = ours.SkipKey(subscription=SUBSCRIPTION, ordering_key="k")
    (message,) = server.broker.pull(SUBSCRIPTION, 10)
    assert message.data == b"b"
    assert skipped.message_id == message.id[:-1] + "0"
    server.broker.nack(message)
    ours.ResumeKey(subscription=SUBSCRIPTION, ordering_key="k")
    (again,) = server.broker.pull(SUBSCRIPTION, 10)
    assert (again.data, again.delivery_attempt) == (b"b", 1)
    with pytest.raises(KeyNotBlocked):
        ours.ResumeKey(subscription=SUBSCRIPTION, ordering_key="k")


def test_what_is_unacked_and_counted_is_told(server: Running, ours: Extensions) -> None:
    subscribed(ours, enable_message_ordering=True)
    published(server.broker, "abc", "k")
    published(server.broker, "d")
    server.broker.ack(server.broker.pull(SUBSCRIPTION, 1))
    unacked = ours.Unacked(subscription=SUBSCRIPTION)
    assert [(key.ordering_key, key.messages, key.position) for key in unacked.keys] == [("", 1, 3), ("k", 2, 1)]
    assert unacked.known_to == 4
    metrics = ours.Metrics(subscription=SUBSCRIPTION)
    assert (metrics.counters["delivered"], metrics.counters["acked"], metrics.backlog_messages) == (1, 1, 3)


def test_a_watch_tells_what_changes_and_ends_with_the_subscription(server: Running, ours: Extensions) -> None:
    subscribed(ours, enable_message_ordering=True)
    watch = ours.WatchKeys(subscription=SUBSCRIPTION, seconds=0.05)
    assert not next(watch).keys
    published(server.broker, "ab", "k")
    (message,) = server.broker.pull(SUBSCRIPTION, 1)
    (key,) = next(watch).keys
    assert (key.ordering_key, key.reason, key.waiting) == ("k", "out", 1)
    server.broker.ack(message)
    assert not next(watch).keys
    server.broker.unregister_subscription(SUBSCRIPTION)
    with pytest.raises(SubscriptionNotFound, match="Subscription not found: worker"):
        next(watch)


@pytest.mark.parametrize("call", ["BlockedKeys", "WatchKeys"])
def test_looking_at_keys_holds_up_nobody_else(serve: Serve, call: str) -> None:
    class Many(MessageQueue):
        """Has so many keys that one call takes as long as another."""

        looked, answered = threading.Event(), threading.Event()

        def blocked_keys(self, subscription: str) -> list[BlockedKey]:
            self.looked.set()
            assert self.answered.wait(10)
            return super().blocked_keys(subscription)

    broker = Many()
    ours = Extensions(serve(broker).channel())
    subscribed(ours)
    fields = {"seconds": 3600} if call == "WatchKeys" else {}
    looking = threading.Thread(target=answered, args=(ours, call), kwargs={"subscription": SUBSCRIPTION, **fields})
    looking.start()
    assert broker.looked.wait(10)
    ours.GetTopic(topic=TOPIC)
    broker.answered.set()
    looking.join()


def test_a_watch_ends_when_the_server_stops(serve: Serve) -> None:
    server = serve()
    ours = Extensions(server.channel())
    subscribed(ours)
    watch = ours.WatchKeys(subscription=SUBSCRIPTION, seconds=3600)
    next(watch)
    server.stop()
    with pytest.raises(Unavailable, match="shutting down"):
        next(watch)


# -- publishing once -------------------------------------------------------------------------------


def test_a_producer_is_opened_again_in_a_later_epoch(ours: Extensions) -> None:
    ours.CreateTopic(topic=TOPIC)
    first, second = (ours.OpenProducer(topic=TOPIC, producer="shop-1").epoch for _ in range(2))
    assert 0 < first < second
    with pytest.raises(TopicNotFound, match="Topic not found: dead"):
        ours.OpenProducer(topic=DEAD, producer="shop-1")
    with pytest.raises(InvalidArgument, match="producer"):
        ours.OpenProducer(topic=TOPIC)


# -- errors ----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any], type[InorderError], str]] = {
    "no topic": ("GetTopic", {"topic": DEAD}, TopicNotFound, "Topic not found: dead"),
    "a topic": ("CreateTopic", {"topic": TOPIC}, TopicAlreadyExists, "Topic already exists: orders"),
    "a bad name": ("CreateTopic", {"topic": "projects/shop/topics/1st"}, InvalidName, "start with a letter"),
    "no name": ("GetTopic", {}, InvalidName, "Invalid resource name given"),
    "no subscription": ("Unacked", {"subscription": f"{SUBSCRIPTION}s"}, SubscriptionNotFound, "not found: workers"),
    "a subscription": (
        "CreateSubscription",
        {"subscription": SUBSCRIPTION, "topic": TOPIC},
        SubscriptionAlreadyExists,
        "Subscription already exists: worker",
    ),
    "no topic for it": (
        "CreateSubscription",
        {"subscription": f"{SUBSCRIPTION}s", "topic": DEAD},
        TopicNotFound,
        "Topic not found: dead",
    ),
    "no JSON": ("UpdateSubscription", {"subscription": SUBSCRIPTION, "changes": "{"}, InvalidArgument, "not JSON"),
    "a limit": (
        "UpdateSubscription",
        {"subscription": SUBSCRIPTION, "changes": '{"ack_deadline_seconds": 601}'},
        InvalidArgument,
        "ack_deadline_seconds: above 0, up to 600, not 601",
    ),
    "a filter": (
        "CreateSubscription",
        {"subscription": f"{SUBSCRIPTION}s", "topic": TOPIC, "options": '{"filter": "attributes"}'},
        InvalidFilter,
        "invalid filter at position",
    ),
    "too early": ("Seek", {"subscription": SUBSCRIPTION, "position": 0}, NotRetained, "position 0 is no longer"),
    "no key": ("SkipKey", {"subscription": SUBSCRIPTION, "ordering_key": "k"}, KeyNotBlocked, "neither parked"),
    "too often": ("WatchKeys", {"subscription": SUBSCRIPTION, "seconds": 0.01}, InvalidArgument, "seconds: at least"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_errors_are_raised_as_they_are_in_the_server(
    serve: Serve, case: tuple[str, dict[str, Any], type[InorderError], str]
) -> None:
    server = serve()
    ours = Extensions(server.channel())
    subscribed(ours)
    published(server.broker, "a")
    server.broker.ack(server.broker.pull(SUBSCRIPTION, 1))
    name, fields, error, words = case
    with pytest.raises(error, match=words) as found:
        answered(ours, name, **fields)
    assert type(found.value) is error


def test_google_s_clients_are_told_in_google_s_words_and_ours_in_ours(serve: Serve) -> None:
    server = serve()
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=orders\)") as found:
        server.publisher().get_topic(topic=TOPIC)
    assert found.value.reason == "TopicNotFound"
    assert str(raised(found.value.errors[0])) == "Topic not found: orders"


def test_an_error_of_any_length_fits_into_what_clients_take(serve: Serve) -> None:
    ours = Extensions(serve().channel())
    for letter in ("x", "é", "𝕏"):
        options = json.dumps({"filter": letter * 10_000}, ensure_ascii=False)
        with pytest.raises(InvalidArgument, match="filter: a string of at most 256 bytes"):
            ours.CreateSubscription(subscription=SUBSCRIPTION, topic=TOPIC, options=options)
    assert MAX_DETAILS_BYTES * 4 / 3 + 1_000 < 8_192


def test_what_is_no_request_is_refused(serve: Serve) -> None:
    channel = serve().channel()
    with pytest.raises(grpc.RpcError) as found:
        channel.unary_unary("/inorder.v1.Inorder/GetTopic")(b"\xff\xff", timeout=10)
    assert isinstance(raised(found.value), InvalidArgument)
    assert "not a valid inorder.v1.GetTopicRequest" in str(raised(found.value))


def test_all_is_there_after_a_restart(tmp_path: Path, serve: Serve) -> None:
    server = serve(MessageQueue.open(tmp_path / "data"))
    ours = Extensions(server.channel())
    subscribed(ours, ack_deadline_seconds=0.5)
    before = ours.GetSubscription(subscription=SUBSCRIPTION)
    server.close()
    again = serve(MessageQueue.open(tmp_path / "data"))
    assert Extensions(again.channel()).GetSubscription(subscription=SUBSCRIPTION) == before


def test_a_broker_that_has_failed_says_so(serve: Serve) -> None:
    server = serve()
    ours = Extensions(server.channel())
    subscribed(ours)
    server.broker.close()
    with pytest.raises(Unavailable, match="the broker is closed"):
        ours.BlockedKeys(subscription=SUBSCRIPTION)
