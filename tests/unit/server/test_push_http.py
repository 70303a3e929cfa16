"""The HTTP client of pushes, against servers that say exactly these bytes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from inorder.server.push.config import Endpoint, endpoint_of
from inorder.server.push.http import MAX_BODY_BYTES, MAX_HEAD_BYTES, HttpClient, NoAnswer

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answers = Sequence[bytes]  # one for each request of a connection; then it is closed


class Peer:
    """A server whose connections give these answers, one list for each connection in turn."""

    def __init__(self, *connections: Answers) -> None:
        self._connections = iter(connections)
        self.requests: list[bytes] = []
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            for answer in next(self._connections):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def talking(peer: Peer, **options: float) -> Any:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    client = HttpClient(**options)
    port = server.sockets[0].getsockname()[1]
    try:
        yield client, Endpoint("http", "127.0.0.1", port, "/push")
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


def statuses(peer: Peer, count: int, pause: Callable[[], Awaitable[Any]] = lambda: asyncio.sleep(0)) -> list[int]:
    """What so many requests, one after another, come to."""

    async def run() -> list[int]:
        async with talking(peer) as (client, endpoint), asyncio.timeout(20):
            found = []
            for number in range(count):
                found.append(await client.post(endpoint, [("x-number", str(number))], b"body"))
                await pause()
            return found

    return asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx: y\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    ],
)
def test_a_connection_whose_answer_has_an_end_is_used_again(answer: bytes) -> None:
    peer = Peer([answer] * 3)
    assert set(statuses(peer, 3)) <= {200, 204}
    assert peer.accepted == 1
    assert b"x-number: 2\r\n" in peer.requests[2]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nuntil it ends",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnothing like it\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (MAX_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nno header\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" + OK,
        b"HTTP/1.1 204 No Content\r\n\r\nbody",
        OK + b"HTTP/1.1 500 Twice\r\ncontent-length: 0\r\n\r\n",
    ],
)
def test_the_status_counts_and_other_connections_are_not_used_again(answer: bytes) -> None:
    peer = Peer([answer], [OK])
    first, second = statuses(peer, 2)
    assert (first in (102, 200, 204), second) == (True, 200)
    assert peer.accepted == 2


@pytest.mark.parametrize("headers", [b"content-length: 10", b"transfer-encoding: chunked"])
def test_the_status_counts_although_the_rest_of_the_answer_never_comes(headers: bytes) -> None:
    peer = Peer([b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % headers, OK], [OK])
    assert statuses(peer, 2) == [200, 200]
    assert peer.accepted == 2


def test_a_connection_that_was_closed_while_it_waited_is_replaced() -> None:
    peer = Peer([OK], [OK], [OK])
    assert statuses(peer, 3, lambda: asyncio.sleep(0.02)) == [200] * 3
    assert statuses(Peer([OK], [OK], [OK]), 3) == [200] * 3


@pytest.mark.parametrize("answers", [[OK], [OK, OK]], ids=["closed", "open"])
def test_a_connection_that_is_not_used_any_more_is_closed(answers: Answers) -> None:
    """Also one that the other side has closed: the system keeps it until we do, too."""

    async def waits_until_it_is() -> None:
        async with talking(Peer(answers), idle_seconds=0.01) as (client, endpoint), asyncio.timeout(20):
            assert await client.post(endpoint, [], b"") == 200
            ((connection,),) = client._idle.values()
            await connection._writer.wait_closed()
            assert not client._idle

    asyncio.run(waits_until_it_is())


def test_a_connection_that_is_used_again_and_again_stays() -> None:
    async def accepted() -> int:
        peer = Peer([OK] * 100)
        async with talking(peer, idle_seconds=0) as (client, endpoint), asyncio.timeout(20):
            for _ in range(100):
                assert await client.post(endpoint, [], b"") == 200
        return peer.accepted

    assert asyncio.run(accepted()) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-nothing\r\n",
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: y",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    ],
)
def test_what_is_no_answer_is_told(answer: bytes) -> None:
    with pytest.raises(NoAnswer):
        statuses(Peer([answer]), 1)


def test_an_endpoint_that_is_not_there_is_no_answer() -> None:
    async def run() -> None:
        async with talking(Peer()) as (_, endpoint):
            pass
        client = HttpClient()
        with pytest.raises(NoAnswer, match="ConnectionRefused"):
            await client.post(endpoint, [], b"")

    asyncio.run(run())


def test_who_does_not_answer_in_time_is_left() -> None:
    async def run() -> None:
        silent = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the client has gone
            writer.close()
            silent.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.post(Endpoint("http", "127.0.0.1", server.sockets[0].getsockname()[1], "/"), [], b"x")
        async with asyncio.timeout(10):
            await silent.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def certificate(folder: Path) -> tuple[Path, Path]:
    """One for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "certificate", folder / "key"


def test_https_is_spoken_with_who_is_trusted_and_with_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, key = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(trusted, key)

    async def status() -> int:
        server = await asyncio.start_server(Peer([OK]).serve, "127.0.0.1", 0, ssl=tls)
        client = HttpClient()
        endpoint = Endpoint("https", "127.0.0.1", server.sockets[0].getsockname()[1], "/")
        try:
            async with asyncio.timeout(20):
                return await client.post(endpoint, [], b"body")
        finally:
            await client.close()
            server.close()
            await server.wait_closed()

    with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(status())
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    assert asyncio.run(status()) == 200


@pytest.mark.parametrize(
    ("url", "authority", "target", "loopback"),
    [
        ("http://localhost", "localhost", "/", True),
        ("http://127.0.0.9:8080/a/b?c=d", "127.0.0.9:8080", "/a/b?c=d", True),
        ("http://[::1]:8080/", "[::1]:8080", "/", True),
        ("https://EXAMPLE.com:443/x", "example.com", "/x", False),
        ("https://10.0.0.1/", "10.0.0.1", "/", False),
        ("https://localhost.example.com/", "localhost.example.com", "/", False),
        ("https://127.0.0.1.example.com/", "127.0.0.1.example.com", "/", False),
    ],
)
def test_endpoints(url: str, authority: str, target: str, loopback: bool) -> None:
    endpoint = endpoint_of(url)
    assert (endpoint.authority, endpoint.target, endpoint.loopback) == (authority, target, loopback)
