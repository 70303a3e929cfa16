"""What a subscription waits for, key by key, what can be done about it, and its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict

from google.protobuf import empty_pb2

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.metadata import BlockedKey
from inorder.options import check_number
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, RawStream, server_stream, shutting_down, subscription_missing, unary

MIN_WATCH_SECONDS = 0.05  # each look takes the broker's lock
MAX_WATCH_SECONDS = 3_600


class Keys:
    """The calls. `stopping` is set when the server stops."""

    def __init__(self, broker: MessageQueue, names: Names, admin: Admin, stopping: asyncio.Event) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._stopping = stopping

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "BlockedKeys": unary(v1.BlockedKeysRequest, self.blocked_keys),
            "ResumeKey": unary(v1.KeyRequest, self.resume_key),
            "SkipKey": unary(v1.KeyRequest, self.skip_key),
            "Unacked": unary(v1.UnackedRequest, self.unacked),
            "Metrics": unary(v1.MetricsRequest, self.metrics),
        }

    def streams(self) -> Mapping[str, RawStream]:
        """Those that answer more than once."""
        return {"WatchKeys": server_stream(v1.WatchKeysRequest, self.watch_keys)}

    async def blocked_keys(self, request: v1.BlockedKeysRequest, context: Context) -> v1.BlockedKeysResponse:
        return _response(self._blocked(request.subscription))

    async def watch_keys(self, request: v1.WatchKeysRequest, context: Context) -> AsyncIterator[v1.BlockedKeysResponse]:
        check_number("seconds", request.seconds, at_least=MIN_WATCH_SECONDS, up_to=MAX_WATCH_SECONDS)
        told: list[tuple[str, str, int, int, int]] | None = None
        while not self._stopping.is_set():
            keys = self._blocked(request.subscription)
            # That time passes is nothing new.
            news = [(key.ordering_key, key.reason, key.waiting, key.position, key.failures) for key in keys]
            if news != told:
                told = news
                yield _response(keys)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), request.seconds)
        raise shutting_down()

    async def resume_key(self, request: v1.KeyRequest, context: Context) -> empty_pb2.Empty:
        name = self._names.subscription(request.subscription)
        try:
            await self._admin.run(lambda: self._broker.resume_key(name, request.ordering_key))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        return empty_pb2.Empty()

    async def skip_key(self, request: v1.KeyRequest, context: Context) -> v1.SkipKeyResponse:
        name = self._names.subscription(request.subscription)
        try:
            message_id = await self._admin.run(lambda: self._broker.skip(name, request.ordering_key))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        return v1.SkipKeyResponse(message_id=message_id)

    async def unacked(self, request: v1.UnackedRequest, context: Context) -> v1.UnackedResponse:
        name = self._names.subscription(request.subscription)
        try:
            found = await self._admin.run(lambda: self._broker.unacked(name))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        keys = [v1.UnackedKey(**asdict(key)) for key in found.keys]
        return v1.UnackedResponse(keys=keys, known_to=found.known_to)

    async def metrics(self, request: v1.MetricsRequest, context: Context) -> v1.MetricsResponse:
        name = self._names.subscription(request.subscription)
        try:
            found = await self._admin.run(lambda: self._broker.metrics(name))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        return v1.MetricsResponse(**asdict(found))

    def _blocked(self, resource: str) -> list[BlockedKey]:
        try:
            return self._broker.blocked_keys(self._names.subscription(resource))
        except NotFound:
            raise subscription_missing(resource) from None


def _response(keys: Iterable[BlockedKey]) -> v1.BlockedKeysResponse:
    return v1.BlockedKeysResponse(keys=[v1.BlockedKey(**asdict(key)) for key in keys])
