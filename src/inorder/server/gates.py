"""What every call passes, of whatever service and kind: gates, one around the other.

A gate gets each call as a coroutine of a request and a context, where a stream of requests is one request, and the
responses of a stream are written to the context. It returns the same, with what it does before, after or instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from inorder.server.status import Context

Served: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Method(NamedTuple):
    """What is called."""

    name: str  # /package.Service/Call
    requests: bool  # there is a stream of them
    responses: bool  # the same


Gate: TypeAlias = Callable[[Method, Served], Served]


class Gates(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Puts the gates around every call, the first outermost. Calls that nobody serves pass none, and do nothing."""

    def __init__(self, *gates: Gate) -> None:
        self._gates = gates
        self._handlers: dict[str, Any] = {}  # of each method that was called, as it is served

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        known = self._handlers.get(details.method)
        if known is None:
            known = self._handlers[details.method] = self._through(details.method, handler)
        return known

    def _through(self, name: str, handler: Any) -> Any:
        method = Method(name, handler.request_streaming, handler.response_streaming)
        served = _coroutine(
            handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        )
        kind = _HANDLERS[method.requests, method.responses]
        return kind(self.around(method, served), handler.request_deserializer, handler.response_serializer)

    def around(self, method: Method, served: Served) -> Served:
        """What is called, behind all gates."""
        for gate in reversed(self._gates):
            served = gate(method, served)
        return served


def _coroutine(behaviour: Any) -> Served:
    if not inspect.isasyncgenfunction(behaviour):
        served: Served = behaviour
        return served

    async def write_all(request: Any, context: Context) -> None:
        async with aclosing(behaviour(request, context)) as responses:  # also when it is left in the middle
            async for response in responses:
                await context.write(response)

    return write_all
