"""`for message in subscription` and `async for message in subscription`.

Each message is kept leased until the loop asks for the next one; it is up to the loop's body to
ack or nack it. Gap records go to the subscription's "gap" listeners, in their place.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from inorder.client.intake import Intake
from inorder.client.stream import Listeners
from inorder.message import DATA, Gap, Message
from inorder.options import SubscriptionOptions
from inorder.transport import Transport


class _Iteration:
    """What both kinds of loop do alike: one message at a time, the one before is let go of."""

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        options: SubscriptionOptions,
        listeners: Listeners,
        wake: Callable[[], None],
    ) -> None:
        self._listeners = listeners
        self._current: Message | None = None
        self._ended = False
        self._wake = wake
        self._intake = Intake(transport, subscription, options, wake, self._report)

    def _report(self, problem: str) -> None:
        self._listeners.tell_error(RuntimeError(problem))

    def _step(self) -> Message | None:
        if self._current is not None:
            self._intake.finished(self._current)
            self._current = None
        while (message := self._intake.next()) is not None:
            gap = message._record[DATA]
            if not isinstance(gap, Gap):
                self._current = message
                return message
            self._listeners.tell("gap", gap)
            message.ack()
            self._intake.finished(message)
        return None

    def close(self) -> None:
        """End the loop; what was not begun goes back at once."""
        if self._ended:
            return
        self._ended = True
        self._intake.stop()
        self._intake.close()
        self._wake()


class MessageIterator(_Iteration, Iterator[Message]):
    """Blocks the thread until there is a message; ends when it is closed."""

    def __init__(
        self, transport: Transport, subscription: str, options: SubscriptionOptions, listeners: Listeners
    ) -> None:
        self._arrived = threading.Event()
        super().__init__(transport, subscription, options, listeners, self._arrived.set)

    def __next__(self) -> Message:
        while not self._ended:
            self._arrived.clear()
            if (message := self._step()) is not None:
                return message
            if not self._ended:
                self._arrived.wait()
        raise StopIteration


class AsyncMessageIterator(_Iteration, AsyncIterator[Message]):
    """Suspends the task until there is a message; ends when it is closed."""

    def __init__(
        self, transport: Transport, subscription: str, options: SubscriptionOptions, listeners: Listeners
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(transport, subscription, options, listeners, self._arrive)

    def _arrive(self) -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop has nobody waiting
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def __anext__(self) -> Message:
        while not self._ended:
            self._arrived.clear()
            if (message := self._step()) is not None:
                return message
            if not self._ended:
                await self._arrived.wait()
        raise StopAsyncIteration
