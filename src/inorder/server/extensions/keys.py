"""What a subscription waits for, key by key, what can be done about it, and its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TypeAlias

from google.protobuf import empty_pb2

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.metadata import BlockedKey, Unacked
from inorder.options import check_number
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import LOOKING_SHARE, Admin
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, RawStream, server_stream, shutting_down, subscription_missing, unary

MIN_WATCH_SECONDS = 0.05  # each look takes the broker's lock
MAX_WATCH_SECONDS = 3_600

News: TypeAlias = list[tuple[str, str, int, int, int]]


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
        return await self._admin.run(lambda: _response(self._blocked(request.subscription)))

    async def watch_keys(self, request: v1.WatchKeysRequest, context: Context) -> AsyncIterator[v1.BlockedKeysResponse]:
        check_number("seconds", request.seconds, at_least=MIN_WATCH_SECONDS, up_to=MAX_WATCH_SECONDS)
        told: News | None = None
        while not self._stopping.is_set():
            began = monotonic()
            told, response = await self._admin.run(partial(self._news, request.subscription, told))
            pause = max(request.seconds, (monotonic() - began) / LOOKING_SHARE)
            if response is not None:
                yield response
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        raise shutting_down()

    def _news(self, resource: str, told: News | None) -> tuple[News, v1.BlockedKeysResponse | None]:
        keys = self._blocked(resource)
        # That time passes is nothing new.
        news = [(key.ordering_key, key.reason, key.waiting, key.position, key.failures) for key in keys]
        return news, _response(keys) if news != told else None

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
            return await self._admin.run(lambda: _unacked(self._broker.unacked(name)))
        except NotFound:
            raise subscription_missing(request.subscription) from None

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


# There may be a hundred thousand keys, of which `asdict` would make copies for seconds.


def _response(keys: Iterable[BlockedKey]) -> v1.BlockedKeysResponse:
    response = v1.BlockedKeysResponse()
    for key in keys:
        response.keys.add(
            ordering_key=key.ordering_key,
            reason=key.reason,
            waiting=key.waiting,
            position=key.position,
            failures=key.failures,
            age_seconds=key.age_seconds,
            head_of_line_seconds=key.head_of_line_seconds,
        )
    return response


def _unacked(found: Unacked) -> v1.UnackedResponse:
    response = v1.UnackedResponse(known_to=found.known_to)
    for key in found.keys:
        response.keys.add(ordering_key=key.ordering_key, messages=key.messages, position=key.position)
    return response
