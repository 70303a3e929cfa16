"""The port where metrics are read: HTTP, and of that only GET /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from inorder.errors import Unavailable

TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 10.0  # to send a request, and to take its answer
MAX_REQUEST_BYTES = 16_384
MAX_AT_ONCE = 10  # whoever comes beyond that waits

_log = logging.getLogger(__name__)


class Scraping:
    """Answers each request with what `text` says at that time."""

    def __init__(self, text: Callable[[], Awaitable[str]]) -> None:
        self._text = text
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which is any that is free if none is named."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise Unavailable(f"cannot listen for metrics on {host}:{port}: {error.strerror}") from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._turns, asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._response(head.partition(b"\r\n")[0])
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or never asked
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _response(self, line: bytes) -> tuple[str, str, bytes]:
        method, _, rest = line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return "404 Not Found", "text/plain", b"Metrics are at /metrics.\n"
        if method != b"GET":
            return "405 Method Not Allowed", "text/plain", b"GET only.\n"
        try:
            return "200 OK", TYPE, (await self._text()).encode()
        except Exception:
            _log.exception("metrics could not be read")
            return "500 Internal Server Error", "text/plain", b"The server made a mistake, which it has logged.\n"
