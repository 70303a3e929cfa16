"""Where the server keeps what is no message: small documents by kind and name.

Schemas and policies change seldom and are read whole when the server starts. So this is all they ask of a place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from inorder.errors import InorderError
from inorder.pending import Pending
from inorder.server.status import Refusal

T = TypeVar("T")

_log = logging.getLogger(__name__)
_under_way: set[asyncio.Future[Any]] = set()  # a loop remembers its tasks only as long as others do


class Documents(Protocol):
    """Bytes by kind and name. What was awaited survives."""

    def load(self, kind: str) -> Mapping[str, bytes]:
        """All documents of a kind, by name."""

    def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
        """Replace a document, or delete it (None); done when that is durable."""


class MemoryDocuments:
    """Documents that end with the process."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, bytes]] = {}

    def load(self, kind: str) -> Mapping[str, bytes]:
        return dict(self._kinds.get(kind, {}))

    def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
        documents = self._kinds.setdefault(kind, {})
        if document is None:
            documents.pop(name, None)
        else:
            documents[name] = document
        return Pending.of(None)


async def to_the_end(work: Awaitable[T]) -> T:
    """Wait for a change. A client that goes away ends the waiting only: else memory could miss what the disk has."""
    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_without_client)
        raise


def _without_client(task: asyncio.Future[Any]) -> None:
    """What is refused to who has gone is nobody's mistake, and asyncio would log it as one."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, InorderError | Refusal):
        _log.error("a call failed whose client has gone", exc_info=error)


async def in_turn(turns: asyncio.Semaphore, call: Callable[[], T]) -> T:
    """What a thread answers. Its turn lasts until the thread is done, although its client may have gone before."""
    await turns.acquire()

    async def run() -> T:
        try:
            return await asyncio.to_thread(call)
        finally:
            turns.release()

    return await to_the_end(run())
