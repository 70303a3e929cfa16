"""As much of an HTTP/1.1 server as metrics and REST need: requests of a connection one after the other, answered whole.

Who closes a connection, or stops sending on it, has given up what it asked for: that is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from inorder.errors import Unavailable
from inorder.transport.address import host_and_port

MAX_HEAD_BYTES = 16_384
MAX_AHEAD_BYTES = 65_536  # of the requests behind the one that is being answered
MAX_HELD_BYTES = 256 * 1024 * 1024  # of all bodies that are being sent or answered; more must wait with their senders
REQUEST_SECONDS = 60.0  # to send a request that was begun, and to take an answer
LINGER_SECONDS = 2.0  # for who still sends what was refused: else it might never read why
STOP_SECONDS = 0.3  # for who has not taken the last of what it was sent, when the server stops

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # made to be no request of HTTP/1.1

_REQUEST_LINE = re.compile(r"([A-Z]+) ([!-~]+) HTTP/1\.([01])")
_HEADER = re.compile(r"([!#$%&'*+.^`|~\w-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")

_log = logging.getLogger(__name__)


class Request(NamedTuple):
    method: str  # GET also if only its head is wanted
    path: str  # as it was sent
    query: str
    headers: Mapping[str, str]  # names in small letters
    body: bytes
    peer: tuple[str, int]


class Response(NamedTuple):
    status: HTTPStatus
    kind: str
    body: bytes


Answer = Callable[[Request], Awaitable[Response]]

# Takes over a connection: whose it is, what it has begun with, and its two directions.
Http2 = Callable[[tuple[str, int], bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Bad(Exception):
    """What was sent is no request that can be answered: the connection ends."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, "text/plain", f"{text}\n".encode())


class _Gone(Exception):
    """The client has closed the connection."""


class HttpServer:
    """Answers requests on one loop. `what` is what it is for, in an error; `http2` is for who begins to speak that."""

    def __init__(
        self,
        what: str,
        answer: Answer,
        *,
        max_body: int,
        max_connections: int,
        idle_seconds: float,
        http2: Http2 | None = None,
    ) -> None:
        self._what = what
        self._answer = answer
        self._http2 = http2
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._connections: set[asyncio.Task[None]] = set()
        self.max_body = max_body
        self.held = 0  # bytes of bodies

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Returns the port, which is any that is free if none is named."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, ssl=tls)
        except OSError as error:
            raise Unavailable(
                f"cannot listen for {self._what} on {host_and_port(host, port)}: {error.strerror}"
            ) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """End all connections, whatever is being answered."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Here, as of two that come at once both would find, by the time they run, that there are too many.
        if len(self._connections) >= self._max_connections:
            writer.close()
            return
        # A task of our own: asyncio takes the end of one that it made, by a cancellation, for a mistake to log.
        connection = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        patience = REQUEST_SECONDS
        try:
            await self._welcome(_Incoming(reader), writer)
        except (_Gone, TimeoutError, OSError):
            pass  # whoever asked has gone, or never asked
        except asyncio.CancelledError:
            patience = STOP_SECONDS
            raise
        finally:
            await _close(writer, patience)

    async def _welcome(self, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._idle_seconds):
            await incoming.begin()
        if self._http2 is not None:
            async with asyncio.timeout(REQUEST_SECONDS):
                is_http2 = await incoming.begins_with(HTTP2_PREFACE)
            if is_http2:
                await self._http2(_peer(writer), incoming.taken(), incoming.reader, writer)
                return
        await self._converse(incoming, writer)

    async def _converse(self, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        keep = True
        while keep:
            async with asyncio.timeout(self._idle_seconds):
                await incoming.begin()
            room = _Room(self)
            try:
                keep = await self._exchange(incoming, writer, room)
            except _Bad as bad:
                await _send(writer, bad.response, "close")
                await incoming.linger()
                return
            finally:
                room.leave()

    async def _exchange(self, incoming: _Incoming, writer: asyncio.StreamWriter, room: _Room) -> bool:
        """One request and its answer; whether there may be another."""
        if incoming.is_tls:  # of which no end of a head would ever come
            raise _Bad(HTTPStatus.BAD_REQUEST, "This port speaks http, and not https.")
        async with asyncio.timeout(REQUEST_SECONDS):
            head = _Head.of(await incoming.until(b"\r\n\r\n", MAX_HEAD_BYTES))
            size = head.size()
            room.take(size or 0)
            if head.waits_for_a_word:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await _chunks(incoming, room) if size is None else await incoming.exactly(size)
        if head.zipped and body:
            body = _unzipped(body, room)
        method = "GET" if head.method == "HEAD" else head.method
        request = Request(method, head.path, head.query, head.headers, body, _peer(writer))
        response = await self._answered(incoming, request)
        await _send(writer, response, "keep-alive" if head.keep else "close", head_only=head.method == "HEAD")
        return head.keep

    async def _answered(self, incoming: _Incoming, request: Request) -> Response:
        """What there is to answer, unless the client goes first."""
        answer = asyncio.ensure_future(self._answer(request))
        gone = asyncio.create_task(incoming.gone())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Gone
            return answer.result()
        except (_Gone, asyncio.CancelledError):
            raise
        except Exception:
            _log.exception("a request could not be answered")
            text = b"The server made a mistake, which it has logged.\n"
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text)
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)


def _peer(writer: asyncio.StreamWriter) -> tuple[str, int]:
    name = writer.get_extra_info("peername")
    if name is None:  # it had gone before it was accepted
        raise _Gone
    host, port, *_ = name
    return host, port


async def _send(writer: asyncio.StreamWriter, response: Response, connection: str, *, head_only: bool = False) -> None:
    status, kind, body = response
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {connection}\r\n\r\n"
    )
    writer.write(head.encode() + (b"" if head_only else body))
    async with asyncio.timeout(REQUEST_SECONDS):
        await writer.drain()


async def _close(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Close a connection when its client has taken what it was sent, or after so long."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            await writer.wait_closed()
    writer.transport.abort()


@dataclass(frozen=True, slots=True)
class _Head:
    """What a request begins with."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    old: bool  # of HTTP/1.0
    keep: bool  # the connection, for another request

    @classmethod
    def of(cls, raw: bytes) -> _Head:
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        if line is None:
            raise _Bad(HTTPStatus.BAD_REQUEST, "This is no request of HTTP/1.1.")
        headers: dict[str, str] = {}
        for one in lines:
            header = _HEADER.fullmatch(one)
            if header is None:
                raise _Bad(HTTPStatus.BAD_REQUEST, "A header is a name, a colon and a value.")
            name, value = header[1].lower(), header[2]
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        method, target, minor = line.groups()
        path, _, query = re.sub(r"^https?://[^/?]*", "", target, flags=re.IGNORECASE).partition("?")
        wishes = {wish.strip().lower() for wish in headers.get("connection", "").split(",")}
        old = minor == "0"
        keep = "keep-alive" in wishes if old else "close" not in wishes
        return cls(method, path or "/", query, headers, old, keep)

    @property
    def waits_for_a_word(self) -> bool:
        """Before it sends its body."""
        return not self.old and self.headers.get("expect", "").lower() == "100-continue"

    @property
    def zipped(self) -> bool:
        """Whether its body is in gzip."""
        return self.headers.get("content-encoding", "").lower() == "gzip"

    def size(self) -> int | None:
        """Of the body, in bytes; None if it comes in chunks."""
        length, coding = self.headers.get("content-length"), self.headers.get("transfer-encoding")
        if self.headers.get("content-encoding", "identity").lower() != "identity" and not self.zipped:
            raise _Bad(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send the body as it is, or with gzip as its Content-Encoding."
            )
        if coding is not None:
            if length is not None or coding.lower() != "chunked":  # of two who disagree where it ends one is deceived
                raise _Bad(HTTPStatus.BAD_REQUEST, "Say how long the body is by Content-Length, or send it in chunks.")
            return None
        if length is None:
            return 0
        if not _LENGTH.fullmatch(length):
            raise _Bad(HTTPStatus.BAD_REQUEST, "Content-Length is one whole number, of up to 15 digits.")
        return int(length)


async def _chunks(incoming: _Incoming, room: _Room) -> bytes:
    body = bytearray()
    while True:
        line = _CHUNK.fullmatch(await incoming.until(b"\r\n", MAX_HEAD_BYTES))
        if line is None:
            raise _Bad(HTTPStatus.BAD_REQUEST, "A chunk begins with its length, in hexadecimal digits.")
        size = int(line[1], 16)
        if not size:
            break
        room.take(size)
        body += await incoming.exactly(size)
        if await incoming.exactly(2) != b"\r\n":
            raise _Bad(HTTPStatus.BAD_REQUEST, "A chunk is as long as it says.")
    left = MAX_HEAD_BYTES
    while (trailer := await incoming.until(b"\r\n", left)) != b"\r\n":
        left -= len(trailer)
    return bytes(body)


def _unzipped(body: bytes, room: _Room) -> bytes:
    """A body that was sent in gzip, as Google's clients of JSON for Java and .NET do. It counts as what it becomes."""
    room.leave()
    gzip, plain = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), bytearray()
    while not gzip.eof:
        try:
            part = gzip.decompress(body, MAX_AHEAD_BYTES)
        except zlib.error:
            part = b""
        if not (part or gzip.eof) or gzip.unused_data:
            raise _Bad(HTTPStatus.BAD_REQUEST, "The body is not the gzip that its Content-Encoding says it is.")
        room.take(len(part))
        plain += part
        body = gzip.unconsumed_tail
    return bytes(plain)


class _Room:
    """What one request may hold of the memory for all of them."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._taken = 0

    def take(self, size: int) -> None:
        """Before so much more is read."""
        server = self._server
        if self._taken + size > server.max_body:
            raise _Bad(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request has at most {server.max_body} bytes.")
        if server.held + size > MAX_HELD_BYTES:
            raise _Bad(HTTPStatus.SERVICE_UNAVAILABLE, "Too many large requests are under way: try again later.")
        server.held += size
        self._taken += size

    def leave(self) -> None:
        self._server.held -= self._taken
        self._taken = 0


class _Incoming:
    """What comes on a connection. Raises `_Gone` at its end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.reader = reader
        self._buffer = bytearray()

    async def begin(self) -> None:
        """Wait for a request. Empty lines before it mean nothing."""
        while not self._buffer.lstrip(b"\r\n"):
            self._buffer.clear()
            await self._more()
        del self._buffer[: len(self._buffer) - len(self._buffer.lstrip(b"\r\n"))]

    async def begins_with(self, text: bytes) -> bool:
        """Whether it does; waits for no more than it takes to know."""
        while len(self._buffer) < len(text) and text.startswith(self._buffer):
            await self._more()
        return self._buffer.startswith(text)

    def taken(self) -> bytes:
        """All that has come so far; the rest is with the reader."""
        return self._cut(len(self._buffer))

    @property
    def is_tls(self) -> bool:
        """Whether what has begun is a handshake, of a client that takes this for another port."""
        return self._buffer.startswith(b"\x16\x03")

    async def until(self, end: bytes, most: int) -> bytes:
        """All up to an end, and that, if it is no longer than so many bytes."""
        looked = 0
        while (at := self._buffer.find(end, looked)) < 0 and len(self._buffer) < most:
            looked = max(len(self._buffer) - len(end), 0)
            await self._more()
        if not 0 <= at <= most:
            raise _Bad(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"A head has at most {MAX_HEAD_BYTES} bytes.")
        return self._cut(at + len(end))

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        return self._cut(count)

    async def gone(self) -> None:
        """Return when nothing comes any more. Until then read ahead, as only who reads learns of the end."""
        with suppress(_Gone, OSError):
            while len(self._buffer) < MAX_AHEAD_BYTES:
                await self._more()
            await asyncio.get_running_loop().create_future()  # who sends so much is there

    async def linger(self) -> None:
        """Take what is still being sent, for a moment."""
        with suppress(_Gone, OSError, TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while True:
                    self._buffer.clear()
                    await self._more()

    async def _more(self) -> None:
        data = await self.reader.read(MAX_AHEAD_BYTES)
        if not data:
            raise _Gone
        self._buffer += data

    def _cut(self, count: int) -> bytes:
        part = bytes(self._buffer[:count])
        del self._buffer[:count]
        return part
