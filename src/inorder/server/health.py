"""Health and reflection, by gRPC's own protocols: what those ask who operate a server, and their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from inorder.server.status import Context, abort, shutting_down

HEALTH: str = health.SERVICE_NAME
REFLECTION: str = reflection.SERVICE_NAME


class Health:
    """Whether the server serves: as a whole, and each service by its name."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._watching: set[asyncio.Task[None]] = set()
        self._closed = False

    def handlers(self) -> Mapping[str, Any]:
        """The calls, for gRPC."""
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self._servicer.Check, read, write),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, read, write),
        }

    async def _watch(self, request: Any, context: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._watching.add(task)
        try:
            await self._servicer.Watch(request, context)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            task.uncancel()
            await abort(context, shutting_down())
        finally:
            self._watching.discard(task)

    async def serve(self, services: Iterable[str]) -> None:
        for service in services:
            await self._servicer.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """It still answers, but whoever has a choice should go elsewhere."""
        await self._servicer.enter_graceful_shutdown()

    def close(self) -> None:
        """Nobody watches any more, or it would be waited for who does."""
        self._closed = True
        for task in self._watching:
            task.cancel()


def reflecting(services: Iterable[str]) -> Mapping[str, Any]:
    """The calls, for gRPC, by which a tool finds out what is served."""
    servicer = reflection.aio.ReflectionServicer([*services, REFLECTION])
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {"ServerReflectionInfo": handler}
