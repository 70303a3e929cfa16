"""Answers requests by the same calls, through the same gates, as gRPC does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

import grpc

from inorder.server.documents import in_turn
from inorder.server.gates import Served
from inorder.server.http import Request, Response
from inorder.server.rest.routes import route_of
from inorder.server.rest.transcoding import error_of, json_of, parameters_of, request_of, wants_numbers
from inorder.server.services import SERVICES, message
from inorder.server.status import Refusal
from inorder.server.tunnel import peer_name

KIND = "application/json; charset=utf-8"
LARGE_BYTES = 65_536

_HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


class Rest:
    """The calls by their names, as /package.Service/Call, behind all gates."""

    def __init__(self, calls: Mapping[str, Served]) -> None:
        self._calls = calls
        self._large = asyncio.Semaphore(1)

    async def answer(self, request: Request) -> Response:
        if (request.method, request.path) == ("GET", "/"):
            return Response(HTTPStatus.OK, "text/plain", b"Ok\n")  # as Google's emulator says to who waits for it
        context = _Context(request)
        try:
            return Response(HTTPStatus.OK, KIND, await self._called(request, context))
        except Refusal as refusal:
            context.end(refusal.code, refusal.text, refusal.metadata)
        except _Ended:
            pass
        status = _HTTP.get(context.ended_with, HTTPStatus.INTERNAL_SERVER_ERROR)
        return Response(status, KIND, error_of(status, context.ended_with.name, context.text, context.metadata))

    async def _called(self, request: Request, context: _Context) -> bytes:
        # A page that somebody looks at may send requests to this machine, and its browser says on whose behalf.
        if "origin" in request.headers:
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "Pages in browsers are not served: do not send an Origin.")
        route = route_of(request.method, request.path)
        if route is None:
            raise Refusal(grpc.StatusCode.NOT_FOUND, f"There is no call at {request.method} {request.path}.")
        asked, answered = map(message, SERVICES[route.service][route.call])
        query = parameters_of(request.query)
        raw = await self._aside(len(request.body), partial(request_of, route, asked, query, request.body))
        answer = await self._calls[f"/{route.service}/{route.call}"](raw, context)
        return await self._aside(len(answer), partial(json_of, answered, answer, wants_numbers(query)))

    async def _aside(self, size: int, transcode: Callable[[], bytes]) -> bytes:
        """Of what is large, one at a time and beside the loop: megabytes of JSON take seconds, and others wait."""
        if size < LARGE_BYTES:
            return transcode()
        return await in_turn(self._large, transcode)


class _Ended(Exception):
    """A call was ended by its context, as gRPC's does it."""


class _Context:
    """As much of gRPC's as calls and gates ask for."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.ended_with = grpc.StatusCode.OK
        self.text = ""
        self.metadata: Sequence[tuple[str, bytes]] = ()

    def peer(self) -> str:
        return peer_name(*self._request.peer)

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """The headers, but those that gRPC has as bytes: what our own client says of itself, no header can say."""
        return [(name, value) for name, value in self._request.headers.items() if not name.endswith("-bin")]

    def time_remaining(self) -> float | None:
        return None

    def code(self) -> grpc.StatusCode:
        return self.ended_with

    def end(self, code: grpc.StatusCode, text: str, metadata: Sequence[tuple[str, bytes]]) -> None:
        self.ended_with, self.text, self.metadata = code, text, metadata

    async def abort(self, code: grpc.StatusCode, text: str, metadata: Sequence[tuple[str, bytes]] = ()) -> None:
        self.end(code, text, metadata)
        raise _Ended
