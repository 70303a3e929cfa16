"""The port where metrics are read: HTTP, and of that only GET /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from inorder.server.http import HttpServer, Request, Response

TYPE = "text/plain; version=0.0.4; charset=utf-8"
IDLE_SECONDS = 60.0
MAX_CONNECTIONS = 100
MAX_AT_ONCE = 10  # answers; who asks beyond that waits


def scraping(text: Callable[[], Awaitable[str]]) -> HttpServer:
    """Answers each request with what `text` says at that time."""
    turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def answer(request: Request) -> Response:
        if request.path != "/metrics":
            return Response(HTTPStatus.NOT_FOUND, "text/plain", b"Metrics are at /metrics.\n")
        if request.method != "GET":
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET only.\n")
        async with turns:
            return Response(HTTPStatus.OK, TYPE, (await text()).encode())

    return HttpServer("metrics", answer, max_body=0, max_connections=MAX_CONNECTIONS, idle_seconds=IDLE_SECONDS)
