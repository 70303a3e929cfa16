"""A subscription's handler at work: one message at a time per key, side by side across keys.

`async def` handlers are tasks on a loop, `def` handlers run in threads. An `Intake` owns order and leases, a
crew of the worker pool does the work; here is what a handler's end means to the message.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from inorder.client.intake import Intake
from inorder.client.listeners import Handler, Listeners, awaited, finish, finish_here
from inorder.errors import FailedPrecondition, InorderError, InvalidArgument
from inorder.message import DATA, Gap, Message
from inorder.pending import Pending
from inorder.pool.crew import Crew
from inorder.pool.functions import is_async
from inorder.pool.task_crew import LoopThread, TaskCrew
from inorder.pool.thread_crew import ThreadCrew
from inorder.transport import Transport

MAX_THREADS = 64  # beyond that, waiting handlers belong on a loop

Opened = Callable[["Stream"], None]


class Stream(ABC):
    """What a crew works on for a subscription. Opened once, closed once.

    `opened` is told of it before the first handler runs, which may be one that closes everything.
    """

    def __init__(
        self, transport: Transport, subscription: str, listeners: Listeners, opened: Opened, crew: Crew[Message]
    ) -> None:
        assert listeners.message is not None
        self._handler = listeners.message
        self._listeners = listeners
        self._crew = crew
        self.closed: Pending[None] = Pending()
        self._intake = Intake(transport, subscription, crew.wake, self._report)
        self._intake.collect_answers(self._flush_soon)
        # Nothing to add to these, and they are called for each message.
        self.take: Callable[[int], Sequence[Message]] = self._intake.next_ones
        self.doubts: Collection[object] = self._intake.doubts
        self.begin: Callable[[Message], bool] = self._intake.begin
        self.done: Callable[[Message, Any], None] = self._intake.finished
        self.call_sure: Callable[[Message], Any] = self._handler
        self.ends: Callable[[Message], object] | None = self._intake.note_end
        crew.assign(self)
        opened(self)
        crew.start(self)

    def close(self) -> Pending[None]:
        """Finish what runs, return the rest; done when that is done, and at once for whom it would wait for."""
        self._intake.stop()
        self._crew.end()
        return Pending.of(None) if self.at_work() else self.closed

    def at_work(self) -> bool:
        """Whether it is one of its own handlers or listeners that asks."""
        return self._crew.at_work()

    def needs_this_thread(self) -> bool:
        """Whether it cannot end while the thread that asks does nothing but wait for it."""
        return self._crew.needs_this_thread()

    @abstractmethod
    def _report(self, problem: str) -> None:
        """Tell a problem as an error, but later: called on any thread, inside a call to the broker."""

    @abstractmethod
    def _flush_soon(self) -> None:
        """Answers wait to be sent. Have them sent soon, with others."""

    # -- for the crew ------------------------------------------------------------------------------

    def more(self) -> bool:
        return self._intake.more()

    @abstractmethod
    def call(self, message: Message) -> Any: ...

    def failed(self, message: Message, error: BaseException) -> Awaitable[object] | None:
        """A handler that raises has said no."""
        message.nack()
        return self._tell_error(error)

    def after_failure(self, message: Message) -> None:
        self._intake.finished(message)

    def give_back(self, messages: Sequence[Message]) -> None:
        self._intake.give_back(messages)

    def flush(self) -> None:
        self._intake.flush()

    def crowd(self) -> bool:
        return self._intake.unsent()  # one call to the broker serves all who end together

    @abstractmethod
    def limit(self) -> int: ...

    def lost(self, error: InorderError) -> Awaitable[object] | None:
        """The broker does not know this consumer any more."""
        return self._tell_error(error)

    @abstractmethod
    def _tell_error(self, error: BaseException) -> Awaitable[object] | None: ...

    @abstractmethod
    def ended(self) -> Coroutine[Any, Any, object] | None: ...

    def _leave(self) -> list[Awaitable[object]]:
        """No handler runs any more: return what is left, and tell the end."""
        self._intake.stop()
        self._gone_back = self._intake.close()
        return self._listeners.tell("close")

    def _close(self) -> None:
        """The end was told: it is over when the broker has what goes back."""
        self._gone_back.add_done_callback(lambda _: self.closed.set_result(None))


class ThreadStream(Stream):
    """For `def` handlers."""

    _crew: ThreadCrew[Message]

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners, opened: Opened) -> None:
        self._problems: deque[str] = deque()
        super().__init__(transport, subscription, listeners, opened, ThreadCrew("inorder-handler"))
        self.take = self._take

    def _take(self, count: int) -> Sequence[Message]:
        while self._problems:
            try:
                problem = self._problems.popleft()
            except IndexError:  # another thread was faster
                break
            self._tell_error(FailedPrecondition(problem))
        return self._intake.next_ones(count)

    def call(self, message: Message) -> None:
        data = message._record[DATA]
        if isinstance(data, Gap):
            finish_here(self._listeners.tell_gap(data))
            message.ack()
            return
        result = self._handler(message)
        if inspect.isawaitable(result):
            asyncio.run(awaited(result))

    def limit(self) -> int:
        return min(self._intake.max_messages, MAX_THREADS)

    def ended(self) -> None:
        finish_here(self._leave())
        self._close()

    def _report(self, problem: str) -> None:
        self._problems.append(problem)
        self._crew.wake()

    def _flush_soon(self) -> None:
        """Answers may wait while a thread is on its way: it sends them first, should this one be kept busy."""
        if not self._crew.coming():
            self._intake.flush()

    def _tell_error(self, error: BaseException) -> None:
        finish_here(self._listeners.tell_error(error))


class TaskStream(Stream):
    """For `async def` handlers."""

    _crew: TaskCrew[Message]

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        listeners: Listeners,
        opened: Opened,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(transport, subscription, listeners, opened, TaskCrew(loop))

    def call(self, message: Message) -> Awaitable[object]:
        return self._tell_gap(message) if isinstance(message._record[DATA], Gap) else self._handler(message)

    async def _tell_gap(self, message: Message) -> None:
        await finish(self._listeners.tell_gap(message._record[DATA]))
        message.ack()

    def limit(self) -> int:
        return sys.maxsize  # flow control is what limits them

    def ended(self) -> Coroutine[Any, Any, object] | None:
        listeners = self._leave()
        if listeners:
            return self._finish(listeners)
        self._close()
        return None

    async def _finish(self, listeners: Sequence[Awaitable[object]]) -> None:
        await finish(listeners)
        self._close()

    def _report(self, problem: str) -> None:
        self._crew.soon(lambda: finish_here(self._listeners.tell_error(FailedPrecondition(problem))))

    def _flush_soon(self) -> None:
        if not self._crew.soon(self._intake.flush):
            self._intake.flush()

    def _tell_error(self, error: BaseException) -> Awaitable[object]:
        return finish(self._listeners.tell_error(error))


def open_stream(transport: Transport, subscription: str, listeners: Listeners, opened: Opened) -> Stream:
    """Start handling: on the running loop, on a loop of our own, or in threads."""
    handler: Handler | None = listeners.message
    if handler is None:
        raise InvalidArgument(f'subscription {subscription!r} has no message handler: call .on("message", handler)')
    if not is_async(handler):
        return ThreadStream(transport, subscription, listeners, opened)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        own = LoopThread()
        try:
            stream = own.call(lambda: TaskStream(transport, subscription, listeners, opened, own.loop))
        except BaseException:
            own.stop()
            raise
        stream.closed.add_done_callback(lambda _: own.stop())
        return stream
    return TaskStream(transport, subscription, listeners, opened, loop)
