"""What several streams of a subscription get: they take turns, and a key is never with two of them."""

import contextlib
import threading
import time

import grpc
import pytest

from inorder.broker import MessageQueue
from inorder.testing import ManualClock

from .clients import SUBSCRIPTION, TOPIC, Stream
from .conftest import Serve
from .test_streaming import outstanding, wait_until, wait_until_no_more_goes_out
from .test_subscriptions import ack_ids, data, publish, pulled, subscribed


def silent(stream: Stream) -> bool:
    """Whether an empty request is answered by no message: protocol version 1."""
    stream.send()
    return not stream.read().received_messages


# -- turns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_that_come_one_by_one_are_shared_by_streams(serve: Serve, ordered: bool) -> None:
    server = serve(MessageQueue(clock=ManualClock()))
    subscribed(server, enable_message_ordering=ordered)
    streams = [Stream(server.channel(), protocol_version=1) for _ in range(3)]
    for stream in streams:
        stream.send()
        stream.read()
    for number in range(9):
        publish(server, "a", f"key-{number}")
        wait_until(lambda expected=number + 1: outstanding(server) == expected)
    for stream in streams:
        stream.send()
    shares = []
    for stream in streams:
        share = 0
        while received := stream.read().received_messages:
            share += len(received)
        shares.append(share)
        stream.cancel()
    assert shares == [3, 3, 3]


def test_what_a_client_does_not_answer_goes_to_another_one_in_the_end(serve: Serve) -> None:
    """A key whose deadlines pass, again and again, does not come to the same stream for ever."""
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True)
    streams = [Stream(server.channel(), protocol_version=1) for _ in range(2)]
    for stream in streams:
        stream.send()
        stream.read()
    publish(server, "ab", "key")
    for _ in range(6):
        wait_until(lambda: outstanding(server) == 2)
        clock.advance(11)
        wait_until(lambda: server.broker.metrics(SUBSCRIPTION).counters.expired > 0)
        time.sleep(0.1)
    for stream in streams:
        stream.send()
    for stream in streams:
        assert stream.read().received_messages
        stream.cancel()


# -- keys that were nacked -------------------------------------------------------------------------


@pytest.mark.parametrize("by_stream", [True, False])
def test_nacked_keys_go_to_their_stream_again_which_may_have_more_of_them(serve: Serve, by_stream: bool) -> None:
    """What a client has read of a key behind one that it nacks it may handle later than another client would."""
    server = serve(MessageQueue(clock=ManualClock()))  # so no deadline ever passes
    subscribed(server, enable_message_ordering=True)
    for key in "klmnop":
        publish(server, "ab", key)
    first = Stream(server.channel())
    held = ack_ids(one for one in first.received(12) if one.message.data == b"a")
    second = Stream(server.channel(), protocol_version=1)
    second.send()
    assert not second.read().received_messages
    if by_stream:
        first.send(modify_deadline_ack_ids=held, modify_deadline_seconds=[0] * len(held))
    else:
        server.subscriber().modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=held, ack_deadline_seconds=0)
    assert sorted(first.data(12)) == ["a"] * 6 + ["b"] * 6
    for stream in (first, second):
        stream.cancel()


def test_a_nacked_key_goes_to_another_stream_when_its_own_has_gone(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True, retry_policy={"minimum_backoff": {"seconds": 5}})
    publish(server, "ab", "key")
    first = Stream(server.channel())
    first.send(modify_deadline_ack_ids=ack_ids(first.received(2))[:1], modify_deadline_seconds=[0])
    wait_until(lambda: outstanding(server) == 0)
    second = Stream(server.channel())
    first.half_close()
    assert first.code() == grpc.StatusCode.OK
    clock.advance(6)
    assert second.data(2) == "ab"
    second.cancel()


def test_a_key_is_kept_when_the_ack_of_an_earlier_one_comes_behind_the_nack(serve: Serve) -> None:
    """a b c are out, b is nacked, then a is acked: c may still be handled here, so nobody else may get b."""
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True, retry_policy={"minimum_backoff": {"seconds": 5}})
    for key in "klmnop":
        publish(server, "abc", key)
    first = Stream(server.channel(), protocol_version=1)
    received = first.received(18)
    second = Stream(server.channel(), protocol_version=1)
    assert silent(second)
    nacked = [one.ack_id for one in received if one.message.data == b"b"]
    first.send(modify_deadline_ack_ids=nacked, modify_deadline_seconds=[0] * 6)
    first.send(ack_ids=[one.ack_id for one in received if one.message.data == b"a"])
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).backlog_messages == 12)
    clock.advance(6)
    wait_until(lambda: outstanding(server) == 12)
    assert silent(second)
    assert sorted(first.data(12)) == ["b"] * 6 + ["c"] * 6
    first.cancel()
    second.cancel()


@pytest.mark.parametrize("how", ["half_close", "wrong", "unread"])
def test_a_key_is_not_kept_for_ever_by_a_client_that_reads_nothing(serve: Serve, how: str) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True)
    publish(server, "ab", "key")
    first = Stream(server.channel())
    held = ack_ids(first.received(2))
    publisher = server.raw_publisher()
    for _ in range(6):  # more than the connection and the next response have room for
        publisher.publish(topic=TOPIC, messages=[{"data": b"x" * 1_000_000}] * 5)
    wait_until_no_more_goes_out(server)
    first.send(modify_deadline_ack_ids=held[:1], modify_deadline_seconds=[0])
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).counters.nacked == 1)
    if how == "half_close":
        first.half_close()
    elif how == "wrong":
        first.send(subscription="projects/shop/subscriptions/other")
    second = Stream(server.channel())
    found: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(grpc.RpcError):
            while True:
                received = second.read().received_messages
                found.extend(one.message.data for one in received if one.message.ordering_key)
                second.send(ack_ids=ack_ids(received))

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 15
    while len({*found}) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
        clock.advance(20)
    second.cancel()
    reader.join()
    assert [*dict.fromkeys(found)] == [b"a", b"b"]  # one whose ack was on its way by then comes again
    first.cancel()


def test_a_nacked_key_of_which_a_stream_has_nothing_else_waits_for_no_other_work_of_it(serve: Serve) -> None:
    """With room for one message a client has nothing behind it: whoever is idle may take it."""
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscriber = subscribed(server, enable_message_ordering=True, retry_policy={"minimum_backoff": {"seconds": 5}})
    publish(server, "ab", "key")
    first = Stream(server.channel(), max_outstanding_messages=1)
    first.send(modify_deadline_ack_ids=ack_ids(first.received(1)), modify_deadline_seconds=[0])
    publish(server, "c", "other")
    assert data(first.received(1)) == "c"  # and works on it for an hour
    clock.advance(6)
    assert data(pulled(subscriber, 10)) == "ab"
    first.cancel()


def test_a_key_is_kept_although_its_stream_has_no_room_for_its_bytes(serve: Serve) -> None:
    """Another stream has room for it, but this one may still handle what it has of the key."""
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscriber = subscribed(server, enable_message_ordering=True, retry_policy={"minimum_backoff": {"seconds": 5}})
    publisher = server.raw_publisher()
    own = [{"data": b"a" * 1000, "ordering_key": "key"}, {"data": b"b", "ordering_key": "key"}]
    publisher.publish(topic=TOPIC, messages=own)
    first = Stream(server.channel(), max_outstanding_bytes=2_500)
    held = ack_ids(first.received(2))
    first.send(modify_deadline_ack_ids=held[:1], modify_deadline_seconds=[0])
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).counters.nacked == 1)
    publisher.publish(topic=TOPIC, messages=[{"data": b"c" * 2000, "ordering_key": "other"}])
    other = first.received(1)
    clock.advance(6)
    assert data(pulled(subscriber, 10)) == ""
    first.send(ack_ids=ack_ids(other))
    assert first.data(2) == "a" * 1000 + "b"
    first.cancel()
