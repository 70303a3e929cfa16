"""As much of an HTTP/1.1 client as a push needs: one POST, and the status of its answer.

On the loop's own streams: a library would bring a dozen packages for what is below. Connections are kept and used
again. Redirects are not followed, as Google does not, and whatever an answer says besides its status is dropped.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import TypeAlias

from inorder.server.push.config import Endpoint

MAX_IDLE = 200  # connections to one host that wait for the next request
IDLE_SECONDS = 30.0  # for which they do, or twice as long
MAX_HEAD_BYTES = 65_536  # of an answer, and so of each of its lines
MAX_BODY_BYTES = 1_000_000  # that are read to use a connection again; a longer answer ends it
MAX_INTERIM = 10  # answers before the answer
BODY_SECONDS = 0.5  # in which the rest of an answer comes, or its connection is not used again
CLOSE_SECONDS = 1.0

PROCESSING = 102  # an interim answer, which for a push is as good as one
_INTERIM = {100, 103}
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?\r?\n")


_Origin: TypeAlias = tuple[str, str, int]


class NoAnswer(Exception):
    """The endpoint did not answer, or what it said is no HTTP."""


class _Stale(NoAnswer):
    """The other side closed the connection without an answer, as it may with one that it has not used for long."""


class HttpClient:
    """Connections to all endpoints. Lives on one loop."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._idle: dict[_Origin, list[_Connection]] = {}

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def post(self, endpoint: Endpoint, headers: Iterable[tuple[str, str]], body: bytes) -> int:
        """Send a request and return the status; NoAnswer if there is none. Takes as long as the endpoint likes."""
        request = _request(endpoint, headers, body)
        while True:
            connection = self._take(endpoint)
            reused = connection is not None
            try:
                connection = connection or await self._connect(endpoint)
                status = await connection.exchange(request)
            except _Stale:
                if not reused:
                    raise
                continue  # it waited for too long, and was closed by the other side: once more, on another one
            except (OSError, EOFError, ValueError) as error:
                raise NoAnswer(f"{type(error).__name__}: {error}") from error
            finally:
                if connection is not None:
                    self._give_back(endpoint, connection)
            return status

    async def _connect(self, endpoint: Endpoint) -> _Connection:
        tls = self._tls if endpoint.tls else None
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=MAX_HEAD_BYTES)
        return _Connection(reader, writer)

    def _take(self, endpoint: Endpoint) -> _Connection | None:
        waiting = self._idle.get(_origin(endpoint), [])
        while waiting:
            connection = waiting.pop()
            if connection.usable():
                return connection
            connection.close()
        return None

    def _give_back(self, endpoint: Endpoint, connection: _Connection) -> None:
        origin = _origin(endpoint)
        if not connection.usable() or len(self._idle.get(origin, ())) >= MAX_IDLE:
            connection.close()
            return
        connection.rested = False
        if origin not in self._idle:
            self._keep(origin, [])
        self._idle[origin].append(connection)

    def _keep(self, origin: _Origin, waiting: list[_Connection]) -> None:
        self._idle[origin] = waiting
        asyncio.get_running_loop().call_later(self._idle_seconds, self._tidy, origin)

    def _tidy(self, origin: _Origin) -> None:
        """Close what nobody has used since the last time, and what the other side has closed, or it would stay open."""
        kept: list[_Connection] = []
        for connection in self._idle.pop(origin, ()):
            if connection.rested or not connection.usable():
                connection.close()
            else:
                connection.rested = True
                kept.append(connection)
        if kept:
            self._keep(origin, kept)

    async def close(self) -> None:
        """End what waits."""
        connections = [connection for waiting in self._idle.values() for connection in waiting]
        self._idle.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.closed() for connection in connections))


def _origin(endpoint: Endpoint) -> _Origin:
    return endpoint.scheme, endpoint.host, endpoint.port


def _request(endpoint: Endpoint, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    lines = [
        f"POST {endpoint.target} HTTP/1.1",
        f"host: {endpoint.authority}",
        "user-agent: inorder",
        "accept: */*",
        *(f"{name}: {value}" for name, value in headers),
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Connection:
    """One connection, on which one request is under way at most."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._clean = True  # the last answer was read to its end, and the other side wants more
        self.rested = False  # since somebody looked who closes what is not used

    def usable(self) -> bool:
        # What came unasked would be taken for the answer to the next request.
        unasked = self._reader._buffer or self._reader.at_eof()  # type: ignore[attr-defined]
        return self._clean and not unasked and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()

    async def exchange(self, request: bytes) -> int:
        self._clean = False
        try:
            self._writer.write(request)
            await self._writer.drain()
            first = await self._reader.readline()
        except ConnectionError as error:
            raise _Stale(str(error)) from error
        if not first:
            raise _Stale("the connection was closed before an answer came")
        for _ in range(MAX_INTERIM):
            status, again = _status(first)
            headers = await self._headers()
            if status == PROCESSING:
                return status  # another answer may follow, for which nobody waits: the connection is not used again
            if status not in _INTERIM:
                with suppress(OSError, EOFError, ValueError, NoAnswer):  # the status is known, and counts
                    async with asyncio.timeout(BODY_SECONDS):
                        self._clean = await self._skip_body(status, headers) and _stays(again, headers)
                return status
            first = await self._reader.readline()
        raise NoAnswer(f"more than {MAX_INTERIM} interim answers")

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        size = 0
        while (line := await self._reader.readline()) not in (b"\r\n", b"\n"):
            name, colon, value = line.decode("latin-1").partition(":")
            size += len(line)
            if not colon or size > MAX_HEAD_BYTES:
                raise NoAnswer(f"no headers of HTTP: {line[:100]!r}")
            headers[name.strip().lower()] = value.strip()
        return headers

    async def _skip_body(self, status: int, headers: dict[str, str]) -> bool:
        """Read to the end of the answer; False if there is no telling where that is, or it is too far away."""
        if status in (204, 304):
            return True
        if encoding := headers.get("transfer-encoding"):
            return encoding.lower() == "chunked" and await self._skip_chunks()
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length[:18]) > MAX_BODY_BYTES:
            return False
        await self._reader.readexactly(int(length))
        return True

    async def _skip_chunks(self) -> bool:
        left = MAX_BODY_BYTES
        while left > 0:
            size = int((await self._reader.readline()).split(b";")[0], 16)
            if size == 0:
                await self._headers()  # what may follow the last one
                return True
            left -= size
            if left > 0:
                await self._reader.readexactly(size + 2)  # and the end of the line
        return False


def _status(line: bytes) -> tuple[int, bool]:
    """The status, and whether this version of HTTP keeps connections."""
    found = _STATUS.fullmatch(line)
    if found is None:
        raise NoAnswer(f"no answer of HTTP/1: {line[:100]!r}")
    return int(found[2]), found[1] == b"1"


def _stays(by_version: bool, headers: dict[str, str]) -> bool:
    wish = headers.get("connection", "").lower()
    return "close" not in wish if by_version else "keep-alive" in wish
