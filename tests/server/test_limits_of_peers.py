"""How much one peer may ask for."""

import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.pubsub_v1.types import pubsub
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from inorder import Message, PubSub
from inorder.errors import InvalidArgument, ResourceExhausted
from inorder.server.security.options import PeerLimits, Security
from inorder.server.security.peers import MANY_PEERS, Bucket, Peers, address_of

from .certificates import Authority
from .clients import TOPIC, Stream, call
from .conftest import PROJECT, Running, Serve
from .test_security import secure
from .test_streaming import wait_until

PublishRequest = pubsub.PublishRequest.pb()


def limited(serve: Serve, **limits: Any) -> Running:
    server = serve(project=PROJECT, limits=PeerLimits(**limits))
    server.broker.register_topic("orders")
    server.broker.register_subscription("worker", "orders")
    return server


def publish(channel: grpc.Channel) -> bytes:
    request = PublishRequest(topic=TOPIC, messages=[{"data": b"a"}])
    return call(channel, "Publisher", "Publish", request.SerializeToString(), timeout=30)


def retry_seconds(error: Any) -> float:
    """The hint in an error, as Google's clients read it."""
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    hint = error_details_pb2.RetryInfo()
    assert status_pb2.Status.FromString(details).details[0].Unpack(hint)
    return hint.retry_delay.ToMicroseconds() / 1e6


def test_a_bucket_gives_its_burst_and_then_what_comes_in() -> None:
    bucket = Bucket(rate=10, burst=3)
    assert [bucket.take(5.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]
    assert bucket.take(5.05) == pytest.approx(0.05)
    assert bucket.take(5.1001) == 0
    assert not bucket.full(5.2)
    assert bucket.full(9.0)
    assert [bucket.take(9.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.1)]


def test_a_bucket_may_be_drawn_on_in_advance() -> None:
    bucket = Bucket(rate=10, burst=2)
    waits = [bucket.reserve(5.0) for _ in range(4)]
    assert waits == [0, 0, pytest.approx(0.1), pytest.approx(0.2)]


def test_too_many_requests_are_refused_with_a_hint_when_to_come_again(serve: Serve) -> None:
    server = limited(serve, requests_per_second=0.01, burst=3)
    channel = server.channel()
    for _ in range(3):
        publish(channel)
    with pytest.raises(grpc.RpcError) as raised:
        publish(server.channel())  # another connection of the same peer
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "at most 0.01 requests a second" in raised.value.details()
    assert 0 < retry_seconds(raised.value) <= 100
    assert server.broker.get_topic("orders").published == 3  # type: ignore[union-attr]


def test_what_is_sent_on_a_stream_too_fast_is_read_later_and_not_lost(serve: Serve) -> None:
    server = limited(serve, requests_per_second=50, burst=3)
    stream = Stream(server.channel(), protocol_version=1)
    for _ in range(10):
        stream.send()  # a heartbeat, which is answered
    for _ in range(10):
        assert stream.read().subscription_properties is not None
    stream.cancel()


def test_a_peer_has_so_many_streams_and_one_that_ends_makes_room(serve: Serve) -> None:
    server = limited(serve, max_streams_per_peer=2)
    streams = [Stream(server.channel(), protocol_version=1) for _ in range(2)]
    for stream in streams:
        stream.send()
        stream.read()
    refused = Stream(server.channel())
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    publish(server.channel())  # a call is no stream
    streams[0].cancel()

    def again() -> bool:
        stream = Stream(server.channel(), protocol_version=1)
        stream.send()
        try:
            stream.read()
        except grpc.RpcError:
            return False
        finally:
            stream.cancel()
        return True

    wait_until(again)
    streams[1].cancel()


def test_connections_beyond_the_limit_are_not_accepted_and_others_go_on(serve: Serve) -> None:
    server = limited(serve, max_connections=3)
    channels = [server.channel() for _ in range(3)]
    for channel in channels:
        publish(channel)
    with pytest.raises(grpc.RpcError) as raised:
        publish(server.channel())
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    publish(channels[0])
    channels[2].close()

    def accepted() -> bool:
        try:
            publish(server.channel())
        except grpc.RpcError:
            return False
        return True

    wait_until(accepted)


def test_a_request_beyond_the_limit_is_refused_before_it_is_read(serve: Serve) -> None:
    server = limited(serve, max_request_bytes=10_000_000)
    channel = server.channel()
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, "Publisher", "Publish", b"\x12" + bytes(10_000_001), timeout=60)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    publish(channel)


def test_metadata_that_are_too_large_end_the_call(serve: Serve) -> None:
    server = limited(serve)
    method = server.channel().unary_unary("/google.pubsub.v1.Publisher/Publish")
    with pytest.raises(grpc.RpcError) as raised:
        method(b"", metadata=[("authorization", "x" * 100_000)], timeout=30)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_connection_without_a_call_is_closed_and_one_with_a_stream_is_not(serve: Serve) -> None:
    server = limited(serve, idle_seconds=1)
    stream = Stream(server.channel(), protocol_version=1)
    stream.send()
    stream.read()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle:
        idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        read = threading.Event()
        while idle.recv(4096):  # settings, and then a goodbye
            read.set()
        assert read.is_set()
    stream.send()
    stream.read()
    stream.cancel()


def test_one_who_connects_and_says_nothing_holds_up_nobody(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    server = serve(security=Security(certificate=pair.certificate, key=pair.key))
    with socket.create_connection(("127.0.0.1", server.port)), secure(server.address, authority) as channel:
        channel.unary_unary("/grpc.health.v1.Health/Check")(
            health_pb2.HealthCheckRequest().SerializeToString(), timeout=30
        )


def test_peers_that_have_nothing_here_are_forgotten() -> None:
    class Call:
        def __init__(self, number: int) -> None:
            self._number = number

        def peer(self) -> str:
            return f"ipv4:10.0.{self._number // 256}.{self._number % 256}:5000"

    peers = Peers(PeerLimits())
    for number in range(3 * MANY_PEERS):
        peers._peer(Call(number)).streams += number < 10
    assert len(peers._peers) <= MANY_PEERS
    assert sum(peer.streams for peer in peers._peers.values()) == 10


def test_a_peer_is_an_address_without_its_port() -> None:
    assert address_of("ipv4:10.0.0.1:5000") == "10.0.0.1"
    assert address_of("ipv6:%5B::1%5D:5000") == "%5B::1%5D"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_connections": 0}, "max_connections"),
        ({"max_streams_per_peer": -1}, "max_streams_per_peer"),
        ({"max_request_bytes": 1000}, "max_request_bytes: at least 10000000"),
        ({"requests_per_second": -1}, "requests_per_second"),
        ({"burst": 0}, "burst"),
        ({"idle_seconds": 0}, "idle_seconds"),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        PeerLimits(**options)


# -- what our own client does about it ---------------------------------------------------------------


def test_a_client_that_asks_too_often_is_slowed_down_and_nothing_fails(serve: Serve) -> None:
    server = limited(serve, requests_per_second=100, burst=5)
    seen: list[bytes] = []
    with PubSub(f"grpc://{server.address}?project={PROJECT}") as pubsub:
        topic = pubsub.topic("slow").create().result(30)
        subscription = topic.subscription("slow").create(enable_message_ordering=True).result(30)
        assert all(topic.exists().result(30) for _ in range(20))

        @subscription.on("message")
        def handle(message: Message) -> None:
            seen.append(message.data)
            message.ack()

        subscription.open()
        for number in range(30):
            topic.publish_message(str(number).encode(), ordering_key=str(number % 2)).result(30)
        wait_until(lambda: len(seen) == 30)
        subscription.close().result(30)
    for key in (0, 1):
        assert [int(data) for data in seen if int(data) % 2 == key] == [*range(key, 30, 2)]


def test_a_consumer_for_which_there_is_no_stream_waits_for_one_and_says_in_the_end_what_was_missing(
    serve: Serve,
) -> None:
    server = limited(serve, max_streams_per_peer=1)
    address = f"grpc://{server.address}?project={PROJECT}"
    with PubSub(address) as first, PubSub(f"{address}&timeout=1") as impatient, PubSub(address) as patient:
        first.topic("many").create().result(30).subscription("many").create().result(30)
        has_it = first.subscription("many").on("message", lambda message: message.ack())
        has_it.open()
        with pytest.raises(ResourceExhausted, match="at most 1 stream"):
            impatient.subscription("many").on("message", lambda message: message.ack()).open()
        waits = threading.Thread(target=patient.subscription("many").on("message", lambda message: message.ack()).open)
        waits.start()
        has_it.close().result(30)
        waits.join(30)
        assert not waits.is_alive()
