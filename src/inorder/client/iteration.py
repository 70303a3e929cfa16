"""`for message in subscription` and `async for message in subscription`.

Each message is kept leased until the loop asks for the next one; it is up to the loop's body to
ack or nack it. Gap records go to the subscription's "gap" listeners, in their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence

from inorder.client.intake import Intake
from inorder.client.listeners import Listeners, finish, finish_here
from inorder.errors import FailedPrecondition
from inorder.message import DATA, Gap, Message
from inorder.pending import Pending
from inorder.transport import Transport


class Iteration(ABC):
    """What both kinds of loop do alike: one message at a time, the one before is let go of."""

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners) -> None:
        self._listeners = listeners
        self._problems: deque[str] = deque()
        self._current: Message | None = None
        self._ended = False
        self.closed: Pending[None] = Pending.of(None)  # a loop may take its time; nobody waits for it
        # No more than the message that the loop works on: others share the rest, and nothing has to go back.
        self._intake = Intake(transport, subscription, self._wake, self._report, take_at_once=1)

    @abstractmethod
    def _wake(self) -> None:
        """There may be a message. Called on any thread; returns at once."""

    def close(self) -> Pending[None]:
        """Have the loop end when it asks for the next message."""
        self._ended = True
        self._intake.stop()
        self._wake()
        return self.closed

    def at_work(self) -> bool:
        return False

    def needs_this_thread(self) -> bool:
        return False

    def leave(self) -> None:
        """The loop is over. Whoever left it in the middle may still answer the message of that moment."""
        self.close()
        if self._current is not None:
            self._intake.leave(self._current)
        self._intake.close()

    def _report(self, problem: str) -> None:
        self._problems.append(problem)
        self._wake()

    def _advance(self) -> Iterator[Sequence[Awaitable[object]] | None]:
        """Let go of the message before and go to the next, or to the end, at which there is no `_current`.

        Yields what is to be awaited on the way, or None: then wait to be woken.
        """
        while True:
            if self._current is not None:
                self._intake.finished(self._current)
                self._current = None
            while self._problems:
                yield self._listeners.tell_error(FailedPrecondition(self._problems.popleft()))
            if self._ended:
                self.leave()
                return
            self._current = self._intake.next()
            if self._current is None:
                yield None
            elif isinstance(gap := self._current._record[DATA], Gap):
                yield self._listeners.tell("gap", gap)
                self._current.ack()
            else:
                return


class ThreadIteration(Iteration):
    """Blocks the thread until there is a message."""

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners) -> None:
        self._arrived = threading.Event()
        super().__init__(transport, subscription, listeners)

    def _wake(self) -> None:
        self._arrived.set()

    def next(self) -> Message | None:
        """The next message, as soon as there is one; None when closed."""
        for left in self._advance():
            if left is not None:
                finish_here(left)
            else:
                self._arrived.wait()
                self._arrived.clear()
        return self._current


class TaskIteration(Iteration):
    """Suspends the task until there is a message."""

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(transport, subscription, listeners)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop has nobody waiting
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def next(self) -> Message | None:
        """The next message, as soon as there is one; None when closed."""
        for left in self._advance():
            if left is not None:
                await finish(left)
            else:
                await self._arrived.wait()
                self._arrived.clear()
        return self._current
