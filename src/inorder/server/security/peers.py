"""How much one peer may ask for: requests by time, and streams at once.

Connections, the size of requests and silence are gRPC's own to limit; here is what it is told about them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from inorder.server.gates import Method, Served
from inorder.server.security.options import PeerLimits
from inorder.server.status import Context, Refusal, abort, exhausted
from inorder.server.tunnel import peer_of

MANY_PEERS = 1_000  # from which on those are forgotten that have nothing here
CALLS_BESIDE_STREAMS = 1_000  # at once on a connection; more of them wait at the client
ANSWER_SECONDS = 20.0  # for one who was asked whether it lives


def options(limits: PeerLimits) -> list[tuple[str, int]]:
    """For gRPC."""
    return [
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", limits.max_streams_per_peer + CALLS_BESIDE_STREAMS),
        ("grpc.max_connection_idle_ms", round(limits.idle_seconds * 1000)),
        ("grpc.keepalive_time_ms", round(limits.silent_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", round(ANSWER_SECONDS * 1000)),
        ("grpc.server_handshake_timeout_ms", round(ANSWER_SECONDS * 1000)),
    ]


class Bucket:
    """Holds `burst` requests, and gets `rate` more each second."""

    __slots__ = ("_burst", "_full_at", "_rate")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._full_at = 0.0  # when it is, or was, full again: all that is to be known of it

    def take(self, now: float) -> float:
        """Take one, if there is one: 0. Otherwise how many seconds that takes."""
        missing = max(self._full_at - now, 0.0) * self._rate
        if missing + 1 > self._burst:
            return (missing + 1 - self._burst) / self._rate
        self._full_at = now + (missing + 1) / self._rate
        return 0.0

    def reserve(self, now: float) -> float:
        """Take one, perhaps before it is there: how many seconds until then."""
        self._full_at = max(self._full_at, now) + 1 / self._rate
        return max(self._full_at - now - self._burst / self._rate, 0.0)

    def full(self, now: float) -> bool:
        return self._full_at <= now


@dataclass(slots=True)
class Peer:
    bucket: Bucket | None
    streams: int = 0


class Peers:
    """A gate."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._peers: dict[str, Peer] = {}

    def __call__(self, method: Method, call: Served) -> Served:
        if not method.responses:
            return call if not self._limits.requests_per_second else self._counted(call)

        async def run(requests: Any, context: Context) -> Any:
            peer = self._peer(context)
            if peer.streams >= self._limits.max_streams_per_peer:
                await abort(context, exhausted(f"A peer has at most {self._limits.max_streams_per_peer} streams.", 1.0))
            peer.streams += 1
            try:
                slowed = self._slowed(requests, peer.bucket) if method.requests and peer.bucket else requests
                return await call(slowed, context)
            finally:
                peer.streams -= 1

        return run if not self._limits.requests_per_second else self._counted(run)

    def _counted(self, call: Served) -> Served:
        async def run(request: Any, context: Context) -> Any:
            bucket = self._peer(context).bucket
            assert bucket is not None
            if seconds := bucket.take(monotonic()):
                await abort(context, self._too_many(seconds))
            return await call(request, context)

        return run

    def _too_many(self, seconds: float) -> Refusal:
        return exhausted(f"A peer sends at most {self._limits.requests_per_second:g} requests a second.", seconds)

    async def _slowed(self, requests: AsyncIterator[Any], bucket: Bucket) -> AsyncIterator[Any]:
        """What is sent on a stream is not refused, it is read later."""
        async for request in requests:
            if seconds := bucket.reserve(monotonic()):
                await asyncio.sleep(seconds)
            yield request

    def _peer(self, context: Context) -> Peer:
        address = address_of(peer_of(context))
        peer = self._peers.get(address)
        if peer is None:
            if len(self._peers) >= MANY_PEERS:
                self._forget()
            rate = self._limits.requests_per_second
            peer = self._peers[address] = Peer(Bucket(rate, self._limits.burst) if rate else None)
        return peer

    def _forget(self) -> None:
        """Whoever has no stream and a full bucket is as one that was never here."""
        now = monotonic()
        self._peers = {
            address: peer
            for address, peer in self._peers.items()
            if peer.streams or (peer.bucket is not None and not peer.bucket.full(now))
        }


def address_of(peer: str) -> str:
    """The machine, without the port: `ipv4:10.0.0.1:5000` is `10.0.0.1`."""
    return peer.partition(":")[2].rpartition(":")[0] or peer
