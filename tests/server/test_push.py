"""Push subscriptions, by Google's client and a real HTTP server."""

import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1.types import PubsubMessage, PushConfig

from inorder.broker import MessageQueue
from inorder.errors import JournalFailed
from inorder.message import Leased

from .clients import SUBSCRIPTION, TOPIC, Stream
from .conftest import Running, Serve
from .endpoint import Endpoint, Request
from .test_streaming import wait_until
from .test_subscriptions import DEAD, data, publish, pulled, subscribed

Made = Callable[..., Endpoint]


@pytest.fixture
def endpoints() -> Iterator[Made]:
    made: list[Endpoint] = []

    def make(*answer: Callable[[Request], int]) -> Endpoint:
        made.append(Endpoint(*answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def endpoint(endpoints: Made) -> Endpoint:
    return endpoints()


def pushed(server: Running, endpoint: Endpoint, **fields: Any) -> pubsub_v1.SubscriberClient:
    config = {"push_endpoint": endpoint.url, **fields.pop("push_config", {})}
    return subscribed(server, push_config=config, **fields)


def acked(server: Running) -> None:
    """Wait until nothing is left to be acked."""
    for _ in range(1_000):
        if not server.broker.metrics(SUBSCRIPTION).backlog_messages:
            return
        time.sleep(0.01)
    raise AssertionError("something is left")


# -- what is sent ----------------------------------------------------------------------------------


def test_a_message_comes_wrapped_as_google_wraps_it(server: Running, endpoint: Endpoint) -> None:
    pushed(server, endpoint, enable_message_ordering=True)
    [message_id] = publish(server, "a", "key-1", colour="grün")
    [request] = endpoint.wait(1)
    time_of_it = request.json["message"]["publishTime"]
    assert request.json == {
        "message": {
            "data": "YQ==",
            "attributes": {"colour": "grün"},
            "messageId": message_id,
            "message_id": message_id,
            "publishTime": time_of_it,
            "publish_time": time_of_it,
            "orderingKey": "key-1",
        },
        "subscription": SUBSCRIPTION,
    }
    assert time_of_it.endswith("Z")
    assert request.path == "/push?token=a"
    assert request.headers["content-type"] == "application/json"
    acked(server)


def test_a_message_without_data_has_none(server: Running, endpoint: Endpoint) -> None:
    pushed(server, endpoint)
    server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(attributes={"a": "b"})])
    [request] = endpoint.wait(1)
    assert sorted(request.json["message"]) == ["attributes", "messageId", "message_id", "publishTime", "publish_time"]


def test_an_unwrapped_message_is_the_body(server: Running, endpoint: Endpoint) -> None:
    pushed(server, endpoint, push_config={"no_wrapper": {}})
    publish(server, "a", colour="red")
    [request] = endpoint.wait(1)
    assert request.body == b"a"
    assert not [name for name in request.headers if name.startswith("x-goog") or name == "colour"]


def test_an_unwrapped_message_has_its_metadata_in_headers(server: Running, endpoint: Endpoint) -> None:
    pushed(server, endpoint, push_config={"no_wrapper": {"write_metadata": True}}, enable_message_ordering=True)
    attributes = {"colour": "red", "Content-Type": "text/plain", "content-length": "9", "a b": "c", "x": "1\r\ny: 2"}
    attributes |= {"X-Goog-Pubsub-Message-Id": "forged", "x-goog-pubsub-delivery-attempt": "9"}
    [message_id] = publish(server, "a", "key-1", **attributes)
    [request] = endpoint.wait(1)
    assert request.body == b"a"
    headers = request.headers
    assert headers["x-goog-pubsub-subscription-name"] == SUBSCRIPTION
    assert headers["x-goog-pubsub-message-id"] == message_id
    assert headers["x-goog-pubsub-ordering-key"] == "key-1"
    assert headers["x-goog-pubsub-publish-time"].endswith("Z")
    assert (headers["colour"], headers["content-type"], headers["content-length"]) == ("red", "text/plain", "1")
    assert not {"a b", "x", "y", "x-goog-pubsub-delivery-attempt"} & set(headers)
    assert request.names.count("x-goog-pubsub-message-id") == 1


# -- what comes of it ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_these_statuses_are_acks(serve: Serve, endpoints: Made, status: int) -> None:
    server = serve()
    endpoint = endpoints(lambda _: status)
    pushed(server, endpoint)
    publish(server, "ab")
    assert sorted(endpoint.data(2)) == ["a", "b"]
    acked(server)
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("status", [102, 203, 301, 400, 503])
def test_others_are_nacks_after_which_the_message_comes_again(serve: Serve, endpoints: Made, status: int) -> None:
    server = serve()
    statuses = iter([status, status])
    endpoint = endpoints(lambda _: next(statuses, 200))
    pushed(server, endpoint)
    publish(server, "a")
    assert endpoint.data(1 if status == 102 else 3) == ("a" if status == 102 else "aaa")  # 102 is an ack
    acked(server)


def test_an_endpoint_that_is_not_there_gets_its_messages_when_it_is(serve: Serve, endpoints: Made) -> None:
    server = serve()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subscriber = subscribed(server, push_config={"push_endpoint": f"http://127.0.0.1:{port}/"})
    publish(server, "ab")
    time.sleep(0.3)
    there = endpoints()
    subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config={"push_endpoint": there.url})
    assert sorted(there.data(2)) == ["a", "b"]
    acked(server)


def test_an_endpoint_that_is_silent_for_the_ack_deadline_gets_the_message_again(serve: Serve, endpoints: Made) -> None:
    server = serve()
    silent = threading.Event()
    waits = iter([True])

    def answer(_: Request) -> int:
        if next(waits, False):
            silent.wait(20)
        return 200

    endpoint = endpoints(answer)
    pushed(server, endpoint)
    server.broker.update_subscription(SUBSCRIPTION, {"ack_deadline_seconds": 0.2})
    publish(server, "a")
    assert endpoint.data(1) == "a"  # the second time: the first is still waiting
    acked(server)
    silent.set()


def test_what_was_allowed_before_is_not_pushed_by_a_server_that_may_not(
    tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve(MessageQueue.open(tmp_path), push_anywhere=True)
    subscribed(first, push_config={"push_endpoint": "https://127.0.0.1.example.com/"})
    first.close()
    second = serve(MessageQueue.open(tmp_path))
    assert "is not pushed to 127.0.0.1.example.com, which is not on loopback" in caplog.text
    shown = second.subscriber().update_subscription(
        subscription={"name": SUBSCRIPTION, "ack_deadline_seconds": 20}, update_mask={"paths": ["ack_deadline_seconds"]}
    )
    assert shown.push_config.push_endpoint == "https://127.0.0.1.example.com/"


def test_keys_come_in_order_one_at_a_time_whatever_fails(server: Running, endpoints: Made) -> None:
    failing = Counter[str]()
    out: set[str] = set()
    overlaps: list[str] = []
    lock = threading.Lock()

    def answer(request: Request) -> int:
        key = request.json["message"]["orderingKey"]
        with lock:
            overlaps.extend(out & {key})
            out.add(key)
        time.sleep(0.001)
        with lock:
            out.discard(key)
            failing[key + request.data] += 1
            return 500 if request.data == "c" and failing[key + "c"] < 3 else 200

    endpoint = endpoints(answer)
    pushed(server, endpoint, enable_message_ordering=True)
    for key in ("k-1", "k-2", "k-3"):
        publish(server, "abcde", key)
    requests = endpoint.wait(21)
    for key in ("k-1", "k-2", "k-3"):
        seen = "".join(request.data for request in requests if request.json["message"]["orderingKey"] == key)
        assert seen == "abcccde"
    assert overlaps == []
    acked(server)


def test_failures_are_counted_and_end_in_the_dead_letter_topic(server: Running, endpoints: Made) -> None:
    server.raw_publisher().create_topic(name=DEAD)
    dead = "projects/shop/subscriptions/dead"
    subscriber = server.subscriber()
    subscriber.create_subscription(name=dead, topic=DEAD)
    endpoint = endpoints(lambda _: 500)
    pushed(
        server,
        endpoint,
        dead_letter_policy={"dead_letter_topic": DEAD, "max_delivery_attempts": 5},
        retry_policy={"minimum_backoff": {"nanos": 1_000_000}, "maximum_backoff": {"nanos": 1_000_000}},
    )
    publish(server, "a")
    assert [request.json["deliveryAttempt"] for request in endpoint.wait(5)] == [1, 2, 3, 4, 5]
    [letter] = subscriber.pull(subscription=dead, max_messages=1, timeout=10).received_messages
    assert letter.message.data == b"a"


def test_many_messages_go_over_few_connections(serve: Serve, endpoint: Endpoint) -> None:
    server = serve()
    pushed(server, endpoint)
    for _ in range(3):
        publish(server, "abcdefghij" * 10)
    endpoint.wait(300)
    acked(server)
    assert endpoint.connections < 300


def test_one_that_fails_does_not_hold_up_others(serve: Serve, endpoints: Made) -> None:
    server = serve()
    endpoint = endpoints(lambda request: 500 if request.data == "x" else 200)
    pushed(server, endpoint)
    publish(server, "x" + "a" * 200)
    for _ in range(1_000):
        if sum(request.data == "a" for request in endpoint.requests) == 200:
            break
        time.sleep(0.01)
    count = Counter(request.data for request in endpoint.requests)
    assert count["a"] == 200
    assert count["x"] < 20


def test_a_server_that_stops_waits_for_answers_to_what_it_is_pushing_and_sends_nothing_more(
    serve: Serve, endpoints: Made
) -> None:
    server = serve()
    begun, stopping = threading.Event(), threading.Event()

    def answer(request: Request) -> int:
        if request.data == "x":
            return 500
        begun.set()
        stopping.wait(20)
        return 200

    endpoint = endpoints(answer)
    pushed(server, endpoint, enable_message_ordering=True)
    publish(server, "x", "failing")  # rests for longer each time, and is not waited for
    endpoint.wait(3)
    publish(server, "ab", "key")
    assert begun.wait(20)
    stop = threading.Thread(target=lambda: server.run(server.server.stop(drain_seconds=25)))
    stop.start()
    wait_until(lambda: server.server._desks._stopping)
    stopping.set()
    stop.join()
    assert [request.data for request in endpoint.requests if request.data != "x"] == ["a"]
    assert [message.data for message in server.broker.pull(SUBSCRIPTION, 10)] == [b"x", b"b"]


def test_messages_that_could_not_be_read_once_are_pushed_later(
    serve: Serve, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    pushed(server, endpoint)
    lease = server.broker.lease

    def failing(*_: object, **__: object) -> Leased:
        monkeypatch.setattr(server.broker, "lease", lease)
        raise JournalFailed("read", "00000001.log", OSError(errno.EMFILE, "Too many open files"))

    monkeypatch.setattr(server.broker, "lease", failing)
    publish(server, "a")
    assert endpoint.data(1) == "a"
    assert "Too many open files" in caplog.text
    acked(server)


# -- how it is set ---------------------------------------------------------------------------------


def test_push_and_pull_are_turned_on_and_off(server: Running, endpoint: Endpoint) -> None:
    subscriber = subscribed(server, enable_message_ordering=True)
    stream = Stream(server.channel())
    subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config={"push_endpoint": endpoint.url})
    assert stream.code() == grpc.StatusCode.FAILED_PRECONDITION
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert shown.push_config == PushConfig(push_endpoint=endpoint.url, attributes={"x-goog-version": "v1"})
    publish(server, "a", "key")
    assert endpoint.data(1) == "a"
    acked(server)
    with pytest.raises(exceptions.FailedPrecondition, match="not supported for this subscription type"):
        subscriber.pull(subscription=SUBSCRIPTION, max_messages=1)
    assert Stream(server.channel()).code() == grpc.StatusCode.FAILED_PRECONDITION
    changed = subscriber.update_subscription(
        subscription={"name": SUBSCRIPTION}, update_mask={"paths": ["push_config"]}
    )
    assert changed.push_config == PushConfig()
    publish(server, "bcd", "key")
    assert data(pulled(subscriber)) == "bcd"
    assert len(endpoint.requests) == 1
    changed = subscriber.update_subscription(
        subscription={"name": SUBSCRIPTION, "push_config": {"push_endpoint": endpoint.url}},
        update_mask={"paths": ["push_config"]},
    )
    assert changed.push_config.push_endpoint == endpoint.url
    assert endpoint.data(4) == "abcd"
    acked(server)
    subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config={})
    publish(server, "e", "key")
    assert data(pulled(subscriber)) == "e"


def test_what_is_taken_while_push_is_turned_off_is_there_to_be_pulled(
    serve: Serve, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    subscriber = pushed(server, endpoint)
    lease = server.broker.lease

    def changing(*taken: Any, **limits: Any) -> Leased:
        leased = lease(*taken, **limits)
        if leased.records:
            server.broker.update_subscription(SUBSCRIPTION, {"annotations": ""})  # as a thread may, just now
            monkeypatch.setattr(server.broker, "lease", lease)
        return leased

    monkeypatch.setattr(server.broker, "lease", changing)
    publish(server, "a")
    received = subscriber.pull(subscription=SUBSCRIPTION, max_messages=1, timeout=5).received_messages
    assert data([*received]) == "a"
    assert endpoint.requests == []


def test_one_that_is_made_after_its_client_gave_up_is_pushed(
    serve: Serve, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    server.raw_publisher().create_topic(name=TOPIC)
    register = server.broker.register_subscription
    given_up = threading.Event()

    def slow(*described: Any) -> None:
        register(*described)
        given_up.wait(20)  # as for a disk that takes its time

    monkeypatch.setattr(server.broker, "register_subscription", slow)
    made = {"name": SUBSCRIPTION, "topic": TOPIC, "push_config": {"push_endpoint": endpoint.url}}
    with pytest.raises(exceptions.DeadlineExceeded):
        server.subscriber().create_subscription(request=made, retry=None, timeout=0.2)
    server.wait_until_given_up("google.pubsub.v1.Subscriber/CreateSubscription")
    given_up.set()
    publish(server, "a")
    assert endpoint.data(1) == "a"


def test_one_that_is_deleted_and_made_again_is_pushed_again(server: Running, endpoint: Endpoint) -> None:
    subscriber = pushed(server, endpoint)
    publish(server, "a")
    assert endpoint.data(1) == "a"
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    pushed(server, endpoint)
    publish(server, "b")
    assert endpoint.data(2) == "ab"


def test_endpoints_beyond_loopback_need_https_and_a_flag(serve: Serve) -> None:
    server = serve()
    with pytest.raises(exceptions.InvalidArgument, match="start the server with --push-anywhere"):
        subscribed(server, push_config={"push_endpoint": "https://example.com/push"})
    allowed = serve(push_anywhere=True)
    with pytest.raises(exceptions.InvalidArgument, match="need https"):
        subscribed(allowed, push_config={"push_endpoint": "http://example.com/push"})
    subscriber = subscribed(allowed, push_config={"push_endpoint": "https://example.com/push"})
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert shown.push_config.push_endpoint == "https://example.com/push"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"push_endpoint": "localhost"}, "it begins with https://HOST"),
        ({"push_endpoint": "ftp://localhost/"}, "it begins with https://HOST"),
        ({"push_endpoint": "http://localhost/a b"}, "it is no URL"),
        ({"push_endpoint": "http://localhost/\r\nx: y"}, "it is no URL"),
        ({"push_endpoint": "http://localhost:99999/"}, "Port out of range"),
        ({"push_endpoint": "http://localhost:0/"}, "there is no port 0"),
        ({"push_endpoint": "http://me@localhost/"}, "no user"),
        ({"push_endpoint": "http://localhost/", "attributes": {"a": "b"}}, "x-goog-version only"),
        ({"attributes": {"x-goog-version": "v1"}}, "push_endpoint must be set"),
    ],
)
def test_wrong_configs_are_refused(serve: Serve, config: dict[str, Any], problem: str) -> None:
    server = serve()
    with pytest.raises(exceptions.InvalidArgument, match=problem):
        subscribed(server, push_config=config)
    subscriber = subscribed(server)
    with pytest.raises(exceptions.InvalidArgument, match=problem):
        subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config=config)
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).push_config == PushConfig()


@pytest.mark.parametrize("paths", [["push_config"], ["push_config.push_endpoint"], []])
def test_who_clears_the_endpoint_turns_push_off(serve: Serve, endpoint: Endpoint, paths: list[str]) -> None:
    subscriber = pushed(serve(), endpoint, push_config={"no_wrapper": {"write_metadata": True}})
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    shown.push_config.push_endpoint = ""
    if paths:
        subscriber.update_subscription(subscription=shown, update_mask={"paths": paths})
    else:
        subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config=shown.push_config)
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).push_config == PushConfig()


def test_a_pushed_subscription_cannot_be_exactly_once(serve: Serve, endpoint: Endpoint) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="Exactly-once delivery"):
        pushed(serve(), endpoint, enable_exactly_once_delivery=True)


@pytest.mark.parametrize("journal", ["segments", "sqlite"])
def test_a_restarted_server_goes_on_pushing(tmp_path: Path, serve: Serve, endpoints: Made, journal: Any) -> None:
    up = threading.Event()
    endpoint = endpoints(lambda _: 200 if up.is_set() else 503)
    first = serve(MessageQueue.open(tmp_path, journal=journal))
    pushed(first, endpoint, enable_message_ordering=True, push_config={"attributes": {"x-goog-version": "v1beta2"}})
    publish(first, "abc", "key")
    assert endpoint.data(1) == "a"
    first.close()
    seen = len(endpoint.requests)
    up.set()
    second = serve(MessageQueue.open(tmp_path, journal=journal))
    assert endpoint.data(seen + 3)[seen:] == "abc"
    acked(second)
    shown = second.subscriber().get_subscription(subscription=SUBSCRIPTION)
    assert shown.push_config.attributes == {"x-goog-version": "v1beta2"}
