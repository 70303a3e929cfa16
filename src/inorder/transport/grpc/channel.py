"""The connection to a server: one for each target of a process, shared by all who use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import grpc

from inorder.transport.grpc.target import Target

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # how much comes is ours to say
    ("grpc.max_send_message_length", -1),
    # A server that is gone without a word is noticed, and one that is back is found soon.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # or two processes of one parent could share one
    ("grpc.enable_retries", 0),  # what is repeated, and when, is decided by those who call
)


class Channel:
    """One connection. Thread-safe."""

    def __init__(self, target: Target) -> None:
        self.address = target.address
        self._grpc = _made(target)
        self._methods: dict[str, Any] = {}

    def call(self, method: str, request: bytes, timeout: float | None, metadata: Metadata, *, wait: bool) -> Any:
        """Begin a call; returns gRPC's future. `wait`: if there is no connection, for one, and do not fail at once."""
        made = self._methods.get(method)
        if made is None:
            made = self._methods[method] = self._grpc.unary_unary(method)
        return made.future(request, timeout=timeout, metadata=metadata, wait_for_ready=wait)

    def stream(self, method: str, requests: Iterator[bytes], metadata: Metadata) -> Any:
        """Begin a call of many requests and responses, which come by iterating over what is returned."""
        return self._grpc.stream_stream(method)(requests, metadata=metadata)

    def close(self) -> None:
        self._grpc.close()


def _made(target: Target) -> Any:
    return grpc.insecure_channel(target.address, options=_OPTIONS)


_lock = threading.Lock()
_shared: dict[str, tuple[Channel, int]] = {}  # and how many use it


def join(target: Target) -> Channel:
    """The channel to a target; whoever joins it leaves it."""
    with _lock:
        channel, users = _shared.get(target.address) or (Channel(target), 0)
        _shared[target.address] = channel, users + 1
        return channel


def leave(channel: Channel) -> None:
    """The last who leaves closes it."""
    with _lock:
        found, users = _shared.get(channel.address, (None, 0))
        if found is not channel:  # it was the parent's, before a fork
            return
        if users > 1:
            _shared[channel.address] = channel, users - 1
            return
        del _shared[channel.address]
    channel.close()


def _forget() -> None:
    # A forked process inherits the connections of its parent, and cannot use them.
    global _lock, _shared
    _lock, _shared = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
