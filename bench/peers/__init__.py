"""The same durable work on other software, one small module each. What is not installed is `Missing`.

Every module has a function that starts its software and yields what makes an empty queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from bench.workload import Pair


class Missing(Exception):
    """What would have to be installed, or why it did not start. A row says so; it is no failure."""


class Queue(Protocol):
    """A durable queue and its only consumer."""

    def publish(self, messages: Sequence[Pair]) -> object:
        """Return once all of them would survive a power cut."""

    def take(self, count: int) -> list[bytes]:
        """The data of the next ones that are not out, oldest first."""

    def ack(self) -> object:
        """Be done with what was taken last; return once that, too, would survive a power cut.

        Ours returns once it would survive the end of the process, and is synced with the next publish.
        """


class Publisher(Protocol):
    """Publishes one message at a time, for tasks that each wait for the answer."""

    async def publish(self, key: str, data: bytes) -> object:
        """Return once the message is stored, as safely as the peer promises."""

    async def stored(self) -> int:
        """How many messages there are."""


NewQueue = Callable[[], AbstractContextManager[Queue]]
NewPublisher = Callable[[], AbstractAsyncContextManager[Publisher]]


def start_peer(module: str, *arguments: object) -> AbstractContextManager[Any]:
    """Of a peer whose client is a package that need not be installed."""
    try:
        started: Callable[..., AbstractContextManager[Any]] = import_module(f"bench.peers.{module}").started
    except ImportError as error:
        raise Missing(f"the package {error.name}") from error
    return started(*arguments)
