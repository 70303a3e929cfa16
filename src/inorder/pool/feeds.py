"""How a pool reads its source: in place, in a thread of its own, or as a task on a loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from queue import SimpleQueue
from typing import Any, Protocol

from inorder.errors import InvalidArgument

# What never waits, so that whoever needs an item may take it there.
AT_HAND = (list, tuple, range, str, bytes, bytearray, dict, set, frozenset, deque)


class Intake(Protocol):
    """What a feed needs to know of a pool at work."""

    def room(self) -> bool:
        """Whether an item may come in. If not, the feed is woken when that may have changed."""

    def admit(self, item: Any) -> None:
        """An item for which there was room."""

    def source_ended(self, error: BaseException | None) -> None: ...


class Feed(ABC):
    """Reads a source, an item at a time, and only when there is room for it."""

    def __init__(self) -> None:
        self._drains = False
        self._stopped = False

    @abstractmethod
    def start(self, pool: Intake) -> None: ...

    @abstractmethod
    def wake(self) -> None:
        """There may be room. Called on any thread; returns at once."""

    def drain(self) -> None:
        """Ask for nothing more; what the source is about to give is still taken."""
        self._drains = True
        self.wake()

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True
        self.drain()

    async def gone(self) -> None:
        """Wait until nothing of it is left on the loop."""
        return


class FeedInPlace(Feed):
    """A collection that is there already: the pool takes what it needs, when it does."""

    failure: Exception | None = None  # what `fill` came upon

    def __init__(self, source: Iterable[Any], wake: Callable[[], None]) -> None:
        super().__init__()
        self._iterator = iter(source)
        self._wake = wake

    def start(self, pool: Intake) -> None:
        """Nothing to start: the pool comes by itself."""

    def wake(self) -> None:
        self._wake()

    def drain(self) -> None:
        self._drains = True  # and wake nobody: it may be a signal handler, while its thread calls in a worker

    def fill(self, count: int) -> list[Any]:
        """Up to so many items, now; the source has ended if there are fewer, perhaps by its `failure`."""
        items: list[Any] = []
        if not self._drains:
            try:
                items.extend(islice(self._iterator, count))  # keeps what came before a failure
            except Exception as error:
                self.failure = error
        return items


class FeedThread(Feed):
    """An iterable that may wait: read in a thread, so that nobody else has to."""

    def __init__(self, source: Iterable[Any]) -> None:
        super().__init__()
        self._iterator: Iterator[Any] = iter(source)
        self._woken: SimpleQueue[None] = SimpleQueue()  # no event: a signal handler may wake it while its thread does

    def start(self, pool: Intake) -> None:
        threading.Thread(target=self._run, args=(pool,), name="inorder-source", daemon=True).start()

    def wake(self) -> None:
        self._woken.put(None)

    def _run(self, pool: Intake) -> None:
        try:
            while not self._drains:
                if not pool.room():
                    self._woken.get()
                    continue
                try:
                    item = next(self._iterator)
                except StopIteration:
                    break
                if self._stopped:
                    break
                pool.admit(item)
        except BaseException as error:
            pool.source_ended(error)
        else:
            pool.source_ended(None)
        finally:
            _close(self._iterator)


def _close(iterator: Iterator[Any]) -> None:
    """A generator that is left in the middle ends now, on the thread that ran it, and not when garbage is collected."""
    close = getattr(iterator, "close", None)
    if close is not None and hasattr(iterator, "gi_frame"):
        close()


class FeedTask(Feed):
    """An asynchronous iterable: read as a task."""

    def __init__(self, source: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._iterator: AsyncIterator[Any] = aiter(source)
        self._loop = loop
        self._thread = threading.get_ident()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, pool: Intake) -> None:
        self._task = self._loop.create_task(self._run(pool))

    def wake(self) -> None:
        self._on_loop(self._woken.set)

    def stop(self) -> None:
        super().stop()
        self._on_loop(self._cancel)

    def _on_loop(self, call: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to tell
                self._loop.call_soon_threadsafe(call)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def gone(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, pool: Intake) -> None:
        ended: BaseException | None = None
        try:
            while not self._drains:
                if not pool.room():
                    await self._woken.wait()
                    self._woken.clear()
                    continue
                try:
                    item = await anext(self._iterator)
                except StopAsyncIteration:
                    break
                pool.admit(item)
        except asyncio.CancelledError as error:
            ended = None if self._stopped else error
        except BaseException as error:
            ended = error
        try:
            if hasattr(self._iterator, "aclose"):
                await self._iterator.aclose()
        finally:
            pool.source_ended(ended)


def kind_of(source: object) -> type[Feed]:
    """Who reads this source; an error if nobody can."""
    if isinstance(source, AT_HAND):
        return FeedInPlace
    if isinstance(source, AsyncIterable):
        return FeedTask
    if isinstance(source, Iterable) or hasattr(source, "__getitem__"):
        return FeedThread
    raise InvalidArgument(f"source: an iterable or an asynchronous iterable, not {type(source).__name__}")
