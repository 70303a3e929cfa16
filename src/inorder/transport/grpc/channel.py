"""The connection to a server: one for each target of a process, shared by all who use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from inorder.errors import Closed
from inorder.forks import after_fork
from inorder.transport.address import Address
from inorder.transport.channels import channel as made_channel
from inorder.transport.credentials import Credentials

_Key: TypeAlias = tuple[str, Credentials]
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]


class Channel:
    """One connection. Thread-safe."""

    def __init__(self, target: Address) -> None:
        self.address = target.address
        self.key = _key(target)
        self._grpc = made_channel(target)
        self._methods: dict[str, Any] = {}
        self._process = os.getpid()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Closed(
                "the connection did not survive a fork: it is the parent's; make another PubSub in this process"
            )

    def call(self, method: str, request: bytes, timeout: float | None, metadata: Metadata, *, wait: bool) -> Any:
        """Begin a call; returns gRPC's future. `wait`: if there is no connection, for one, and do not fail at once."""
        self._check_process()
        made = self._methods.get(method)
        if made is None:
            made = self._methods[method] = self._grpc.unary_unary(method)
        return made.future(request, timeout=timeout, metadata=metadata, wait_for_ready=wait)

    def answers(self, method: str, request: bytes) -> Any:
        """Begin a call of many responses, which come by iterating over what is returned."""
        return self._grpc.unary_stream(method)(request)

    def stream(self, method: str, requests: Iterator[bytes], metadata: Metadata) -> Any:
        """Begin a call of many requests and responses, which come by iterating over what is returned."""
        self._check_process()
        return self._grpc.stream_stream(method)(requests, metadata=metadata)

    def close(self) -> None:
        self._grpc.close()


def _key(target: Address) -> _Key:
    """What two must have in common to share a connection: also who they are."""
    return target.address, target.credentials


_lock = threading.Lock()
_shared: dict[_Key, tuple[Channel, int]] = {}  # and how many use it


def join(target: Address) -> Channel:
    """The channel to a target; whoever joins it leaves it."""
    with _lock:
        channel, users = _shared.get(_key(target)) or (Channel(target), 0)
        _shared[channel.key] = channel, users + 1
        return channel


def leave(channel: Channel) -> None:
    """The last who leaves closes it."""
    with _lock:
        found, users = _shared.get(channel.key, (None, 0))
        if found is not channel:  # it was the parent's, before a fork
            return
        if users > 1:
            _shared[channel.key] = channel, users - 1
            return
        del _shared[channel.key]
    channel.close()


def _forget() -> None:
    # A forked process inherits the connections of its parent, and cannot use them.
    global _lock, _shared
    _lock, _shared = threading.Lock(), {}


after_fork(_forget)
