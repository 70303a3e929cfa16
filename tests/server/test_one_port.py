"""gRPC at the port for REST: by Google's clients, by our own, and by who means no good."""

import asyncio
import itertools
import logging
import os
import selectors
import socket
import ssl
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.pubsub_v1.types import PubsubMessage

from inorder import Message, PubSub
from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument, Unavailable
from inorder.server import Server, tunnel
from inorder.server.http import HTTP2_PREFACE, HttpServer, Request, Response
from inorder.server.security.options import PeerLimits, Security
from inorder.server.tunnel import Tunnel

from ..integration.tcp_proxy import TcpProxy
from .certificates import Authority
from .clients import SUBSCRIPTION, TOPIC, Stream
from .conftest import PROJECT, Running, Serve
from .test_limits_of_peers import PublishRequest, limited, publish
from .test_rest import Rest, answers, text
from .test_security import Tokens, ask
from .test_streaming import wait_until

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # the first frame of a client, with nothing in it
MUCH = 64_000_000  # more than sockets take by themselves


class Both(Rest):
    """A server's port for REST, where its clients by gRPC go as well."""

    def __init__(self, running: Running, *, one_port: bool = False) -> None:
        self.direct = running.address
        if one_port:
            self.running, self.port, self._tls = running, running.port, None
        else:
            super().__init__(running)
            running.port, running.address = self.port, f"127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def begun(self) -> socket.socket:
        """A connection on which both sides have begun to speak HTTP/2."""
        connection = self.connect()
        connection.sendall(HTTP2_PREFACE + SETTINGS)
        assert connection.recv(9)[3] == 4  # settings as well
        return connection

    def made(self) -> "Both":
        """With a topic and a subscription, as by curl."""
        assert self("PUT", f"/v1/{TOPIC}")[0] == 200
        assert self("PUT", f"/v1/{SUBSCRIPTION}", {"topic": TOPIC, "enableMessageOrdering": True})[0] == 200
        return self

    @property
    def tunnels(self) -> int:
        return sum(len(tunnel._carrying) for tunnel in self.running.server._tunnels)


@pytest.fixture(params=["two ports", "one port"])
def both(request: pytest.FixtureRequest, serve: Serve) -> Both:
    one_port = request.param == "one port"
    return Both(serve(project=PROJECT, rest=one_port), one_port=one_port)


def until_it_ends(connection: socket.socket) -> bytes:
    told = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(65_536):
            told += more
    return told


# -- everybody speaks as it likes ----------------------------------------------------------------------


def test_googles_client_calls_by_grpc_where_curl_calls_by_rest(both: Both) -> None:
    both.made()
    subscriber, publisher = both.running.subscriber(), both.running.raw_publisher()
    seen: list[bytes] = []
    all_seen = threading.Event()

    def handle(message: Any) -> None:
        seen.append(message.data)
        message.ack()
        if len(seen) == 3:
            all_seen.set()

    pulling = subscriber.subscribe(SUBSCRIPTION, handle)
    assert both("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": text("1"), "orderingKey": "k"}]})[0] == 200
    for data in (b"2", b"3"):
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(data=data, ordering_key="k")])
    assert all_seen.wait(30)
    wait_until(lambda: both.running.broker.metrics("worker").backlog_messages == 0)
    pulling.cancel()
    pulling.result(30)
    assert seen == [b"1", b"2", b"3"]


def test_our_own_client_sees_no_difference(both: Both) -> None:
    seen: list[int] = []
    with PubSub(f"grpc://{both.running.address}?project={PROJECT}") as pubsub:
        topic = pubsub.topic("orders").create().result(30)
        subscription = topic.subscription("worker").create(enable_message_ordering=True).result(30)

        @subscription.on("message")
        def handle(message: Message) -> None:
            seen.append(int(message.data))
            message.ack()

        subscription.open()
        for number in range(200):
            topic.publish_message(str(number).encode(), ordering_key="k")
        wait_until(lambda: len(seen) == 200)
        subscription.close().result(30)
    assert seen == [*range(200)]


def test_large_messages_arrive_whole_however_slowly_they_are_read(both: Both) -> None:
    both.made()
    publisher = both.running.raw_publisher()
    sent = [os.urandom(3_000_000) for _ in range(8)]
    for data in sent:
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(data=data, ordering_key="k")])
    proxy = TcpProxy(both.port)
    proxy.delay_seconds = 0.001
    with closing(proxy), grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        stream = Stream(channel)
        found = [one.message.data for one in stream.received(8)]
        stream.cancel()
    assert [sha256(one).digest() for one in found] == [sha256(one).digest() for one in sent]


def test_the_preface_may_come_in_pieces(both: Both) -> None:
    sent = HTTP2_PREFACE + SETTINGS
    with both.connect() as connection:
        for begin, end in itertools.pairwise((0, 1, 16, 18, 23, len(sent))):
            connection.sendall(sent[begin:end])
            assert both("GET", "/")[0] == 200  # by now it has read the piece
        assert connection.recv(9)[3] == 4


def test_a_request_that_begins_like_the_preface_is_a_request(both: Both) -> None:
    with both.connect() as connection:
        for byte in f"PUT /v1/{TOPIC} HTTP/1.1\r\nConnection: close\r\n\r\n".encode():
            connection.sendall(bytes([byte]))
        assert until_it_ends(connection).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("one_port", [True, False])
def test_it_may_have_an_address_of_ipv6_and_a_peer_is_one_there_too(serve: Serve, one_port: bool) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    limits = PeerLimits(requests_per_second=0.001, burst=3)
    running = serve(project=PROJECT, host="::1", rest=one_port, limits=limits)
    running.broker.register_topic("orders")
    port = running.port if one_port else running.run(running.server.start_rest("::1"))
    publish(running.channel())
    running.address = f"[::1]:{port}"
    publish(running.channel())
    with socket.create_connection(("::1", port), timeout=30) as connection:
        connection.sendall(f"GET /v1/{TOPIC} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        assert until_it_ends(connection).startswith(b"HTTP/1.1 200 OK")
    with pytest.raises(grpc.RpcError, match="requests a second"):
        publish(running.channel())


# -- who somebody is, and what it may ------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[ExitStack]:
    """Closes what comes from another address of this machine."""
    try:
        socket.create_server(("127.0.0.2", 0)).close()
    except OSError:
        pytest.skip("this machine has one address only")
    with ExitStack() as opened:
        yield opened


def from_elsewhere(both: Both, opened: ExitStack) -> grpc.Channel:
    proxy = opened.enter_context(closing(TcpProxy(both.port, "127.0.0.2")))
    return opened.enter_context(grpc.insecure_channel(f"127.0.0.1:{proxy.port}"))


def test_a_peer_has_its_requests_whichever_way_it_comes(serve: Serve, elsewhere: ExitStack) -> None:
    both = Both(limited(serve, requests_per_second=0.001, burst=3))
    publish(both.running.channel())
    assert both("GET", f"/v1/{TOPIC}")[0] == 200
    with grpc.insecure_channel(both.direct) as direct:
        publish(direct)
    with pytest.raises(grpc.RpcError, match="requests a second"):
        publish(both.running.channel())
    publish(from_elsewhere(both, elsewhere))


def test_a_peer_has_its_streams_whichever_way_it_comes(serve: Serve, elsewhere: ExitStack) -> None:
    both = Both(limited(serve, max_streams_per_peer=1))
    with grpc.insecure_channel(both.direct) as direct:
        streams = [Stream(direct, protocol_version=1), Stream(from_elsewhere(both, elsewhere), protocol_version=1)]
        for stream in streams:
            stream.send()
            stream.read()
        assert Stream(both.running.channel()).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in streams:
            stream.cancel()


def test_the_log_names_who_has_called(serve: Serve, elsewhere: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "inorder.server.calls")
    both = Both(limited(serve))
    publish(from_elsewhere(both, elsewhere))
    wait_until(lambda: bool(caplog.records))
    [record] = caplog.records
    peer: str = record.facts["peer"]  # type: ignore[attr-defined]
    assert peer.startswith("ipv4:127.0.0.2:")


def test_tunnels_are_connections_and_there_are_no_more_than_allowed(serve: Serve) -> None:
    both = Both(limited(serve, max_connections=2))
    with both.begun(), both.begun():
        assert not answers(both)
    wait_until(lambda: answers(both))


def test_a_tunnel_without_a_call_is_closed(serve: Serve) -> None:
    both = Both(limited(serve, idle_seconds=1))
    with both.begun() as idle:
        until_it_ends(idle)
    wait_until(lambda: both.tunnels == 0)


def test_a_call_needs_its_token_through_a_tunnel_too(serve: Serve, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.toml")
    secret = tokens.add("publisher", publish=["orders"])
    both = Both(serve(project=PROJECT, security=Security(tokens=tokens.path)))
    both.running.broker.register_topic("orders")
    channel = both.running.channel()
    with pytest.raises(grpc.RpcError) as raised:
        publish(channel)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    request = PublishRequest(topic=TOPIC, messages=[{"data": b"a"}])
    ask(channel, secret, "google.pubsub.v1.Publisher", "Publish", request)


def test_nobody_else_reaches_the_server_behind(both: Both) -> None:
    [tunnel] = both.running.server._tunnels
    assert stat.S_IMODE(os.stat(tunnel._folder).st_mode) == 0o700
    with both.begun():
        assert os.listdir(tunnel._folder) == ["grpc"]


# -- TLS -----------------------------------------------------------------------------------------------


def test_with_tls_it_takes_two_ports_and_that_for_rest_speaks_no_grpc(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    security = Security(certificate=pair.certificate, key=pair.key)
    with pytest.raises(InvalidArgument, match="with TLS, gRPC and REST need a port each"):
        asyncio.run(Server(MessageQueue(), security=security).start(rest=True))
    rest = Rest(serve(security=security), ssl.create_default_context(cafile=authority.certificate))
    with closing(rest.connection()) as connection:
        connection.connect()
        assert connection.sock is not None
        connection.sock.sendall(HTTP2_PREFACE + SETTINGS)
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 400 ")


# -- nonsense ------------------------------------------------------------------------------------------


def test_who_stops_within_the_preface_holds_up_nobody(both: Both) -> None:
    both.made()
    with both.connect() as stalled:
        stalled.sendall(HTTP2_PREFACE[:20])
        assert both("GET", f"/v1/{TOPIC}")[0] == 200
        publish(both.running.channel())


def test_who_stops_within_the_preface_is_a_connection_of_http(serve: Serve) -> None:
    both = Both(limited(serve, max_connections=1))
    with both.connect() as stalled:
        stalled.sendall(HTTP2_PREFACE[:20])
        assert not answers(both)
        assert both.tunnels == 0
        stalled.shutdown(socket.SHUT_WR)
        assert until_it_ends(stalled) == b""
    wait_until(lambda: answers(both))


@pytest.mark.parametrize(
    "sent",
    [
        HTTP2_PREFACE[:-1] + b"x\r\n\r\n",
        b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n",
        b"pri * http/2.0\r\n\r\nsm\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n" + HTTP2_PREFACE + SETTINGS,  # a connection stays what it has begun with
    ],
)
def test_what_only_looks_like_http2_is_refused_as_any_other_nonsense(both: Both, sent: bytes) -> None:
    with both.connect() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 400 " in until_it_ends(connection)
    assert both.tunnels == 0


def test_nonsense_behind_the_preface_ends_its_connection_and_no_other(both: Both) -> None:
    with both.begun() as other:
        with both.connect() as connection:
            connection.sendall(HTTP2_PREFACE + b"\xff" * 1_000)
            until_it_ends(connection)
        wait_until(lambda: both.tunnels == 1)
        other.sendall(b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"whoareyo")  # a ping
        while b"whoareyo" not in other.recv(4_096):
            pass


def test_the_port_of_the_metrics_speaks_no_grpc(serve: Serve) -> None:
    running = serve()
    port = running.run(running.server.start_metrics())
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(HTTP2_PREFACE + SETTINGS)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


# -- how it ends ---------------------------------------------------------------------------------------


def test_whatever_way_connections_end_nothing_stays_open(both: Both) -> None:
    both.begun().close()
    wait_until(lambda: both.tunnels == 0)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        connection = both.begun() if number % 2 else both.connect()
        if number % 4 == 0:
            connection.sendall(HTTP2_PREFACE)
        if number % 3 == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    wait_until(lambda: both.tunnels == 0 and len(os.listdir("/proc/self/fd")) <= before)
    assert answers(both)


def test_a_stream_whose_client_has_gone_ends(both: Both) -> None:
    both.made()
    proxy = TcpProxy(both.port)
    with closing(proxy), grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        stream = Stream(channel, protocol_version=1)
        stream.send()
        stream.read()
        proxy.close()
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        wait_until(lambda: not [*both.running.server._desks.takers()])


def test_a_server_that_stops_ends_what_goes_through_tunnels_as_it_ends_the_rest(both: Both) -> None:
    both.made()
    [tunnel] = both.running.server._tunnels
    stream = Stream(both.running.channel(), protocol_version=1)
    stream.send()
    stream.read()
    with both.begun():  # and who does not care
        both.running.stop()
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
    assert tunnel._stopped
    assert not os.path.exists(tunnel._folder)


def test_a_server_that_stops_says_nothing_of_its_tunnels(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    with both.begun(), both.connect() as stalled:
        stalled.sendall(HTTP2_PREFACE[:5])
        both.running.stop()
    assert not [record for record in caplog.records if record.name == "asyncio" or record.levelno >= logging.WARNING]


def test_a_tunnel_that_leads_nowhere_is_told_to_the_log(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    [tunnel] = both.running.server._tunnels
    os.unlink(tunnel._socket)
    with both.connect() as connection:
        connection.sendall(HTTP2_PREFACE + SETTINGS)
        assert until_it_ends(connection) == b""
    assert "is not carried on" in caplog.text
    assert answers(both)


def test_without_a_folder_for_its_socket_rest_goes_on_alone_and_one_port_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tunnel, "_SHORT", "/proc")  # where nobody may make one
    server = serve()
    server.run(server.server.start_rest())
    assert "the port for REST takes no gRPC: gRPC at the port for REST needs a folder" in caplog.text
    with pytest.raises(Unavailable, match="needs a folder for temporary files, as TMPDIR names one"):
        serve(rest=True)


def test_one_port_that_is_taken_is_told_and_leaves_nothing_behind() -> None:
    async def start(port: int) -> Server:
        server = Server(MessageQueue())
        with pytest.raises(Unavailable, match="cannot listen for REST on"):
            await server.start(port=port, rest=True)
        return server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        [tunnel] = asyncio.run(start(taken.getsockname()[1]))._tunnels
    assert not os.path.exists(tunnel._folder)


# -- byte by byte --------------------------------------------------------------------------------------


class Ends:
    """Both ends of a tunnel, with nothing behind it but a socket."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.tunnel = Tunnel()
        self._http = HttpServer(
            "tests", self._answer, max_body=0, max_connections=9, idle_seconds=60, http2=self.tunnel.carry
        )
        self._port = self._run(self._http.start("127.0.0.1", 0))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.tunnel.address.removeprefix("unix:"))
            listener.listen()
            self.client = self.connect()
            self.client.sendall(HTTP2_PREFACE)
            self.behind, self.name = listener.accept()
        self.behind.settimeout(30)
        assert self.behind.recv(100) == HTTP2_PREFACE

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=30)

    async def _answer(self, _: Request) -> Response:
        return Response(HTTPStatus.OK, "text/plain", b"")

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop(self, last_words: bytes) -> None:
        """As a server does it, in the moment in which what is behind says so much and ends."""

        async def stop() -> None:
            self.behind.sendall(last_words)
            self.behind.close()
            await self.tunnel.close()
            await self._http.stop()

        self._run(stop())

    def close(self) -> None:
        self.client.close()
        self.behind.close()
        self._run(self._http.stop())
        self._run(self.tunnel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as made:
        yield made


def stuffed(end: socket.socket, data: bytes) -> int:
    """How much of it goes before nothing more does."""
    end.setblocking(False)
    sent = 0
    with selectors.DefaultSelector() as room:
        room.register(end, selectors.EVENT_WRITE)
        while sent < len(data) and room.select(0.3):
            sent += end.send(memoryview(data)[sent : sent + 65_536])
    end.settimeout(30)
    return sent


@pytest.mark.parametrize("up", [True, False])
def test_who_does_not_read_slows_down_who_sends_and_nothing_is_lost(ends: Ends, up: bool) -> None:
    one, other = (ends.client, ends.behind) if up else (ends.behind, ends.client)
    data = os.urandom(1_000_000) * (MUCH // 1_000_000)
    sent = stuffed(one, data)
    assert sent < MUCH
    other.sendall(b"meanwhile")  # this way is free
    assert one.recv(100) == b"meanwhile"
    rest = threading.Thread(target=one.sendall, args=(memoryview(data)[sent:],))
    rest.start()
    found = sha256()
    left = MUCH
    while left:
        part = other.recv(min(left, 1_000_000))
        found.update(part)
        left -= len(part)
    rest.join()
    assert found.digest() == sha256(data).digest()


@pytest.mark.parametrize("up", [True, False])
def test_the_end_of_one_is_told_to_the_other_which_has_a_last_word(ends: Ends, up: bool) -> None:
    one, other = (ends.client, ends.behind) if up else (ends.behind, ends.client)
    one.sendall(b"that is all")
    one.shutdown(socket.SHUT_WR)
    assert until_it_ends(other) == b"that is all"
    other.sendall(b"goodbye")
    other.close()
    assert until_it_ends(one) == b"goodbye"


def test_who_does_not_close_what_the_other_has_closed_keeps_nothing_open(ends: Ends) -> None:
    ends.behind.close()
    assert ends.client.recv(100) == b""
    wait_until(lambda: not ends.tunnel._carrying)


def test_a_reset_is_an_end(ends: Ends) -> None:
    ends.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.client.close()
    assert until_it_ends(ends.behind) == b""
    ends.behind.close()
    wait_until(lambda: not ends.tunnel._carrying)


def test_the_last_words_of_a_server_that_stops_arrive(ends: Ends) -> None:
    words = os.urandom(100_000)
    ends.stop(words)
    assert until_it_ends(ends.client) == words


def test_who_comes_to_a_server_that_stops_finds_nobody(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    ends.tunnel.stop()
    with ends.connect() as late:
        late.sendall(HTTP2_PREFACE)
        assert until_it_ends(late) == b""
    assert not caplog.records
