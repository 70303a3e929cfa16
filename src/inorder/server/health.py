"""Health, by gRPC's own protocol: what those ask who operate a server, and their tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from inorder.server.status import Context, Refusal, server_stream, shutting_down, unary

HEALTH: str = health.SERVICE_NAME
_Response = health_pb2.HealthCheckResponse


class Health:
    """Whether the server serves: as a whole, by the name "", and each service by its own."""

    def __init__(self) -> None:
        self._services = {""}
        self._serving = True
        self._closed = False
        self._changed = asyncio.Event()

    def handlers(self) -> Mapping[str, Any]:
        """The calls, for gRPC."""
        request = health_pb2.HealthCheckRequest
        return {
            "Check": grpc.unary_unary_rpc_method_handler(unary(request, self._check)),
            "Watch": grpc.unary_stream_rpc_method_handler(server_stream(request, self._watch)),
        }

    def serve(self, services: Iterable[str]) -> None:
        self._services.update(services)

    def stop(self) -> None:
        """It still answers, but whoever has a choice should go elsewhere."""
        self._serving = False
        self._tell()

    def close(self) -> None:
        """Nobody watches any more once all were told, or the end would wait for who does."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status(self, service: str) -> int:
        if service not in self._services:
            return _Response.SERVICE_UNKNOWN  # type: ignore[no-any-return]
        return _Response.SERVING if self._serving else _Response.NOT_SERVING  # type: ignore[no-any-return]

    async def _check(self, request: Any, context: Context) -> Any:
        status = self._status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            raise Refusal(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service[:100]!r}.")
        return _Response(status=status)

    async def _watch(self, request: Any, context: Context) -> AsyncIterator[Any]:
        told: int | None = None
        while True:
            changed = self._changed
            if (status := self._status(request.service)) != told:
                yield _Response(status=status)
                told = status
            elif self._closed:
                raise shutting_down()
            else:
                await changed.wait()
