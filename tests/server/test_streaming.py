"""StreamingPull: request by request, and by Google's client."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud import pubsub_v1
from google.pubsub_v1.types import PubsubMessage

from inorder.broker import MessageQueue
from inorder.message import Message
from inorder.server import desk
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, TOPIC, Stream
from .conftest import Running, Serve
from .test_subscriptions import ack_ids, data, publish, pulled, subscribed


def wait_until(reached: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.002)


def outstanding(server: Running) -> int:
    return server.broker.metrics(SUBSCRIPTION).outstanding_messages


def wait_until_no_more_goes_out(server: Running) -> None:
    """A client does not read, and no signal tells when the connection has no more room."""
    before = -1
    while before != (before := outstanding(server)):
        time.sleep(0.3)


# -- request by request ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ordered", "once"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_response_says_what_the_subscription_promises(serve: Serve, ordered: bool, once: bool) -> None:
    server = serve()
    subscribed(server, enable_message_ordering=ordered, enable_exactly_once_delivery=once)
    publish(server, "a")
    stream = Stream(server.channel(), protocol_version=1)
    first = stream.read()
    stream.send()
    second = stream.read()
    assert [len(first.received_messages), len(second.received_messages)] == [1, 0]
    for response in (first, second):
        assert response.HasField("subscription_properties")
        assert response.subscription_properties.message_ordering_enabled == ordered
        assert response.subscription_properties.exactly_once_delivery_enabled == once
    stream.cancel()


def test_messages_come_as_they_are_published_and_are_acked_on_the_stream(server: Running) -> None:
    subscribed(server)
    stream = Stream(server.channel())
    for letters in ("ab", "c", "def"):
        publish(server, letters)
        received = stream.received(len(letters))
        assert sorted(data(received)) == sorted(letters)
        stream.send(ack_ids=ack_ids(received))
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 0)
    stream.half_close()
    assert stream.code() == grpc.StatusCode.OK


def test_a_nack_on_the_stream_brings_the_rest_of_the_key_again(server: Running) -> None:
    subscribed(server, enable_message_ordering=True)
    publish(server, "abcde", "key")
    stream = Stream(server.channel())
    received = stream.received(5)
    assert data(received) == "abcde"
    stream.send(ack_ids=ack_ids(received)[:1])
    stream.send(modify_deadline_ack_ids=ack_ids(received)[1:2], modify_deadline_seconds=[0])
    assert stream.data(4) == "bcde"
    stream.cancel()


def test_deadlines_are_those_of_the_stream(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server)
    publish(server, "ab")
    stream = Stream(server.channel(), stream_ack_deadline_seconds=30)
    received = stream.received(2)
    clock.advance(29)
    stream.send(modify_deadline_ack_ids=ack_ids(received)[:1], modify_deadline_seconds=[20])
    stream.send(stream_ack_deadline_seconds=60)
    publish(server, "c")
    last = stream.received(1)
    assert data(last) == "c"
    stream.send(ack_ids=ack_ids(last))
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 2)  # so all before it was heard, too
    clock.advance(2)
    again = stream.received(1)
    assert data(again) == data(received[1:])
    stream.cancel()


def test_a_stream_gets_no_more_than_it_has_room_for(server: Running) -> None:
    subscribed(server)
    publish(server, "abcdefgh")
    stream = Stream(server.channel(), max_outstanding_messages=3)
    received = stream.received(3)
    assert outstanding(server) == 3
    stream.send(ack_ids=ack_ids(received)[:2])
    more = stream.received(2)
    assert outstanding(server) == 3
    server.subscriber().acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(more))  # by a call, as Python does
    assert len(stream.received(2)) == 2
    stream.cancel()


def test_bytes_count_too_and_a_larger_message_comes_alone(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    sizes = [400, 400, 400, 5000]
    server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(data=b"x" * size) for size in sizes])
    stream = Stream(server.channel(), max_outstanding_bytes=1000)
    received = stream.received(2)
    stream.send(ack_ids=ack_ids(received))
    received = stream.received(1)
    stream.send(ack_ids=ack_ids(received))
    assert len(stream.received(1)[0].message.data) == 5000
    stream.cancel()


def test_room_is_found_again_when_leases_run_out(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server)
    publish(server, "ab")
    stream = Stream(server.channel(), max_outstanding_messages=1)
    assert stream.data(1) == "a"
    clock.advance(11)
    assert stream.data(1) == "a"
    stream.cancel()


def test_few_messages_are_shared_as_evenly_as_many(server: Running) -> None:
    subscribed(server)
    streams = [Stream(server.channel(), protocol_version=1) for _ in range(3)]
    for stream in streams:
        stream.send()
        stream.read()  # it is open
    publish(server, "abcdefghi")
    for stream in streams:
        assert len(stream.received(2)) == 2
    for stream in streams:
        stream.cancel()


def test_a_key_with_messages_out_stays_on_its_stream(server: Running) -> None:
    subscribed(server, enable_message_ordering=True)
    streams = [Stream(server.channel(), protocol_version=1) for _ in range(2)]
    for stream in streams:
        stream.send()
        stream.read()
    keys = [f"k{number}" for number in range(20)]
    server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(data=b"1", ordering_key=key) for key in keys])
    wait_until(lambda: outstanding(server) == 20)
    for letter in (b"2", b"3"):
        batch = [PubsubMessage(data=letter, ordering_key=key) for key in keys]
        server.raw_publisher().publish(topic=TOPIC, messages=batch)
    wait_until(lambda: outstanding(server) == 60)
    owned: list[dict[str, bytes]] = []
    for stream in streams:
        stream.half_close()
        owned.append({})
        for response in stream.rest():
            for one in response.received_messages:
                owned[-1][one.message.ordering_key] = owned[-1].get(one.message.ordering_key, b"") + one.message.data
    assert not set(owned[0]) & set(owned[1])
    assert {**owned[0], **owned[1]} == dict.fromkeys(keys, b"123")
    assert min(map(len, owned)) >= 5


def test_a_key_goes_to_another_stream_when_nothing_of_it_is_out(server: Running) -> None:
    subscribed(server, enable_message_ordering=True)
    publish(server, "ab", "key")
    first = Stream(server.channel(), max_outstanding_messages=1)
    held = first.received(1)
    second = Stream(server.channel(), protocol_version=1)
    second.send()
    assert not second.read().received_messages
    first.half_close()
    assert first.code() == grpc.StatusCode.OK
    server.subscriber().acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(held))
    assert second.data(1) == "b"
    second.cancel()


def test_what_a_cut_stream_had_comes_again_in_its_place(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True)
    publish(server, "abc", "key")
    stream = Stream(server.channel())
    assert stream.data(3) == "abc"
    stream.cancel()
    wait_until(lambda: not server.broker._watchers)
    publish(server, "d", "key")
    second = Stream(server.channel())
    clock.advance(11)
    assert second.data(4) == "abcd"
    second.cancel()


def test_what_a_client_holds_after_its_stream_was_cut_it_can_still_ack(server: Running) -> None:
    subscriber = subscribed(server)
    publish(server, "a")
    stream = Stream(server.channel())
    received = stream.received(1)
    stream.cancel()
    wait_until(lambda: not server.broker._watchers)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received))
    assert server.broker.metrics(SUBSCRIPTION).backlog_messages == 0


@pytest.mark.parametrize("keys", ["", "k"])
def test_what_a_leaving_client_gets_and_does_not_read_goes_to_others_soon(serve: Serve, keys: str) -> None:
    """As Google's Go client leaves: it nacks what it has, while its stream still takes in what comes."""
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=bool(keys), ack_deadline_seconds=600)
    publish(server, "abc", keys)
    leaving = Stream(server.channel(), stream_ack_deadline_seconds=600)
    first = ack_ids(leaving.received(3))
    server.subscriber().modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=first, ack_deadline_seconds=0)
    wait_until(lambda: outstanding(server) == 3)  # they are on its stream again
    leaving.cancel()
    wait_until(lambda: not server.broker._watchers)
    clock.advance(desk.GRACE_SECONDS + 1)
    staying = Stream(server.channel())
    assert data(staying.received(3)) == "abc"
    staying.cancel()


def test_what_was_read_last_can_be_acked_when_the_stream_has_ended(server: Running) -> None:
    """As Google's client for Node does, which collects answers, and sends the last of them behind its stream."""
    subscriber = subscribed(server)
    publish(server, "a")
    stream = Stream(server.channel())
    stream.send(modify_deadline_ack_ids=ack_ids(stream.received(1)), modify_deadline_seconds=[0])
    again = ack_ids(stream.received(1))
    stream.cancel()
    wait_until(lambda: not server.broker._watchers)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=again)
    assert server.broker.metrics(SUBSCRIPTION).backlog_messages == 0


@pytest.mark.parametrize("by_stream", [True, False])
def test_what_came_once_more_and_was_read_stays_with_its_client(serve: Serve, by_stream: bool) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscriber = subscribed(server, ack_deadline_seconds=600)
    publish(server, "abc")
    stream = Stream(server.channel(), stream_ack_deadline_seconds=600)
    stream.send(modify_deadline_ack_ids=ack_ids(stream.received(3)), modify_deadline_seconds=[0, 0, 0])
    again = ack_ids(stream.received(3))
    if by_stream:
        stream.send(modify_deadline_ack_ids=again, modify_deadline_seconds=[60, 60, 60])
        stream.send(ack_ids=again[:1])  # when this is done, so is what was said before
        wait_until(lambda: outstanding(server) == 2)
    else:
        subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=again, ack_deadline_seconds=60)
    stream.cancel()
    wait_until(lambda: not server.broker._watchers)
    clock.advance(desk.GRACE_SECONDS + 1)
    assert pulled(subscriber) == []
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=again)
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 0)


def test_heartbeats_are_answered_to_those_who_expect_it(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    old, new = Stream(server.channel()), Stream(server.channel(), protocol_version=1)
    for stream in (old, new):
        stream.send()
    assert not new.read().received_messages
    publish(server, "ab")
    assert len(old.received(1)) == 1  # and nothing before it
    for stream in (old, new):
        stream.cancel()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"subscription": "worker"}, None),
        ({"subscription": ""}, None),
        ({"stream_ack_deadline_seconds": 9}, None),
        ({"stream_ack_deadline_seconds": 601}, None),
        ({}, {"subscription": SUBSCRIPTION}),
        ({}, {"max_outstanding_messages": 5}),
        ({}, {"max_outstanding_bytes": 5}),
        ({}, {"protocol_version": 1}),
        ({}, {"stream_ack_deadline_seconds": 5}),
        ({}, {"modify_deadline_ack_ids": ["x"]}),
        ({}, {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [601]}),
    ],
)
def test_wrong_requests_end_the_stream(serve: Serve, first: dict[str, Any], then: dict[str, Any] | None) -> None:
    server = serve()
    subscribed(server)
    stream = Stream(server.channel(), **first)
    if then is not None:
        stream.send(**then)
    assert stream.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_client_may_say_again_who_it_is(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    stream = Stream(server.channel(), client_id="one", protocol_version=1)
    stream.send(client_id="one")
    stream.send()
    assert not stream.read().received_messages
    stream.cancel()


def test_garbage_among_ack_ids_ends_the_stream_and_the_others_count(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    publish(server, "ab")
    for garbage in ("garbage", ""):
        stream = Stream(server.channel(), max_outstanding_messages=1)
        received = stream.received(1)
        stream.send(ack_ids=[garbage, *ack_ids(received)])
        assert stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert server.broker.metrics(SUBSCRIPTION).backlog_messages == 0
    stream = Stream(server.channel())
    stream.send(modify_deadline_ack_ids=["garbage"], modify_deadline_seconds=[10])
    assert stream.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_late_ack_ids_disturb_nobody(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    publish(server, "a")
    stream = Stream(server.channel())
    answered = ack_ids(stream.received(1))
    for _ in range(2):
        stream.send(ack_ids=answered, modify_deadline_ack_ids=answered, modify_deadline_seconds=[10])
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 0)
    publish(server, "b")
    assert stream.data(1) == "b"
    stream.cancel()


def test_streams_end_with_what_they_stand_on(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    assert Stream(server.channel(), SUBSCRIPTION + "s").code() == grpc.StatusCode.NOT_FOUND
    stream = Stream(server.channel(), protocol_version=1)
    stream.send()
    stream.read()
    server.raw_publisher().detach_subscription(request={"subscription": SUBSCRIPTION})
    assert stream.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert Stream(server.channel()).code() == grpc.StatusCode.FAILED_PRECONDITION
    wait_until(lambda: not server.server._desks._open)
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    subscribed(server)
    stream = Stream(server.channel(), protocol_version=1)
    stream.send()
    stream.read()
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    assert stream.code() == grpc.StatusCode.NOT_FOUND
    subscribed(server)
    publish(server, "a")
    again = Stream(server.channel())
    assert again.data(1) == "a"
    again.cancel()


def test_a_server_that_stops_says_so_to_streams_and_pulls(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server)
    stream = Stream(server.channel(), protocol_version=1)
    stream.send()
    stream.read()
    server.stop()
    assert stream.code() == grpc.StatusCode.UNAVAILABLE
    del subscriber


def test_large_messages_come_in_responses_below_four_mebibytes(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    for _ in range(3):
        server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(data=b"x" * 900_000)] * 10)
    channel = grpc.insecure_channel(server.address)  # which takes 4 MiB at most
    stream = Stream(channel)
    assert len(stream.received(30)) == 30
    stream.cancel()
    channel.close()


def test_a_client_that_reads_nothing_keeps_nobody_waiting(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    lazy = Stream(server.channel(), protocol_version=1)
    lazy.send()
    lazy.read()
    publisher = server.raw_publisher()
    for _ in range(40):
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(data=b"x" * 100_000)] * 20)
    reader = Stream(server.channel())
    got = reader.received(100)
    reader.send(ack_ids=ack_ids(got))
    assert len(reader.received(100)) == 100
    lazy.cancel()
    reader.cancel()


def test_a_client_that_goes_while_it_is_written_to_is_not_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(MessageQueue())
    subscribed(server)
    stream = Stream(server.channel())
    publisher = server.raw_publisher()
    for _ in range(6):  # more than the connection has room for, and nobody reads
        publisher.publish(topic=TOPIC, messages=[{"data": b"x" * 1_000_000}] * 3)
    wait_until_no_more_goes_out(server)
    with caplog.at_level(logging.WARNING):
        stream.cancel()
        wait_until(lambda: not [*server.server._desks.takers()])
        time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == []


def test_many_streams_at_once(serve: Serve) -> None:
    server = serve()
    subscribed(server, enable_message_ordering=True)
    channels = [server.channel() for _ in range(5)]
    streams = [Stream(channel) for channel in channels for _ in range(40)]
    wait_until(lambda: len(server.server._desks._open) == 1)
    keys = [f"k{number}" for number in range(200)]
    server.raw_publisher().publish(topic=TOPIC, messages=[PubsubMessage(data=b"1", ordering_key=key) for key in keys])
    wait_until(lambda: outstanding(server) == 200)
    for stream in streams:
        stream.cancel()
    wait_until(lambda: not server.server._desks._open)


# -- exactly once ----------------------------------------------------------------------------------


def test_a_stream_of_exactly_once_delivery_confirms_what_was_done(server: Running) -> None:
    subscribed(server, enable_exactly_once_delivery=True)
    publish(server, "ab")
    stream = Stream(server.channel())
    received = stream.received(2)
    first, second = ack_ids(received)
    stream.send(ack_ids=[first, "garbage"])
    confirmed = stream.read().acknowledge_confirmation
    assert (list(confirmed.ack_ids), list(confirmed.invalid_ack_ids)) == ([first], ["garbage"])
    stream.send(modify_deadline_ack_ids=[first, second], modify_deadline_seconds=[20, 20])
    confirmed = stream.read().modify_ack_deadline_confirmation
    assert (list(confirmed.ack_ids), list(confirmed.invalid_ack_ids)) == ([second], [first])
    stream.cancel()


# -- Google's client -------------------------------------------------------------------------------


class Handler:
    """A callback that writes down what it sees."""

    def __init__(self, answer: Callable[[Any], object]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.seen: list[tuple[str, bytes]] = []

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.seen.append((message.ordering_key, message.data))
        self._answer(message)


@contextlib.contextmanager
def subscribing(server: Running, handler: Any, **flow: Any) -> Any:
    subscriber = server.subscriber()
    future = subscriber.subscribe(SUBSCRIPTION, handler, flow_control=pubsub_v1.types.FlowControl(**flow))
    try:
        yield future
    finally:
        future.cancel()
        with contextlib.suppress(Exception):
            future.result(10)


def test_googles_subscriber_handles_each_key_in_order(server: Running) -> None:
    subscribed(server, enable_message_ordering=True)
    handler = Handler(lambda message: message.ack())
    with subscribing(server, handler, max_messages=50):
        for number in range(5):
            batch = [PubsubMessage(data=b"%d" % number, ordering_key=f"k{key}") for key in range(20)]
            server.raw_publisher().publish(topic=TOPIC, messages=batch)
        wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 0)
    for key in range(20):
        assert [one for of, one in handler.seen if of == f"k{key}"] == [b"0", b"1", b"2", b"3", b"4"]


def test_googles_subscriber_gets_a_key_again_after_a_nack(server: Running) -> None:
    subscribed(server, enable_message_ordering=True)
    refused: list[bytes] = []

    def answer(message: Any) -> None:
        if message.data == b"b" and not refused:
            refused.append(message.data)
            message.nack()
        else:
            message.ack()

    handler = Handler(answer)
    publish(server, "abcd", "key")
    with subscribing(server, handler):
        wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 0)
    seen = b"".join(one for _, one in handler.seen)
    assert seen.endswith(b"bcd")
    assert seen.startswith(b"ab")


def test_googles_subscriber_with_exactly_once_delivery(server: Running) -> None:
    subscribed(server, enable_exactly_once_delivery=True)
    outcomes: list[Any] = []
    handler = Handler(lambda message: outcomes.append(message.ack_with_response()))
    publish(server, "abc")
    with subscribing(server, handler):
        wait_until(lambda: len(outcomes) == 3)
        assert [outcome.result(20).name for outcome in outcomes] == ["SUCCESS"] * 3


def test_with_exactly_once_delivery_a_nack_makes_no_ack_of_its_key_fail(server: Running) -> None:
    subscribed(server, enable_message_ordering=True, enable_exactly_once_delivery=True)
    nacked: list[bytes] = []
    outcomes: list[Any] = []

    def answer(message: Any) -> None:
        if nacked:
            outcomes.append(message.ack_with_response())
        else:
            nacked.append(message.data)
            message.nack()

    publish(server, "abcdefgh", "key")
    with subscribing(server, Handler(answer)):
        wait_until(lambda: len(outcomes) >= 8)
        assert [outcome.result(20).name for outcome in outcomes] == ["SUCCESS"] * 8


def test_googles_subscriber_comes_back_to_a_server_that_was_restarted(serve: Serve, tmp_path: Path) -> None:
    first = serve(MessageQueue.open(tmp_path))
    subscribed(first, enable_message_ordering=True)
    handler = Handler(lambda message: message.ack())
    publish(first, "ab", "key")
    with subscribing(first, handler):
        wait_until(lambda: len(handler.seen) == 2)
        wait_until(lambda: first.broker.metrics(SUBSCRIPTION).backlog_messages == 0)
        first.stop()
        first.broker.close()
        second = serve(MessageQueue.open(tmp_path), port=first.port)
        second.broker.publish(TOPIC, [Message(b"c", None, "key"), Message(b"d", None, "key")])
        # It tries five times at once, and then waits for ten seconds, and maybe another ten.
        wait_until(lambda: len(handler.seen) >= 4, seconds=60)
    assert b"".join(one for _, one in handler.seen) == b"abcd"


def test_a_pull_beside_a_stream_gets_its_share(server: Running) -> None:
    subscriber = subscribed(server)
    stream = Stream(server.channel(), max_outstanding_messages=2)
    publish(server, "abcd")
    assert len(stream.received(2)) == 2
    assert len(pulled(subscriber)) == 2
    stream.cancel()
