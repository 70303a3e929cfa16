"""Runs a subscription's handlers: one at a time per key, side by side across keys.

`async def` handlers are tasks on a loop, `def` handlers run in threads. Both kinds of crew share
the rules for what a handler's end means, and draw from an `Intake`, which owns order and leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from inorder.client.intake import Intake
from inorder.errors import FailedPrecondition, InorderError, InvalidArgument
from inorder.message import DATA, Gap, Message
from inorder.pending import Pending
from inorder.transport import Transport

MAX_THREADS = 64  # beyond that, waiting handlers belong on a loop
BURST = 100  # messages that one task handles: then others on its loop have a turn

_log = logging.getLogger(__name__)

Handler = Callable[..., Any]  # takes a message, an error or a gap; on "close" nothing


class Listeners:
    """Who is told about what on a subscription."""

    EVENTS = ("message", "error", "gap", "close")

    def __init__(self) -> None:
        self._by_event: dict[str, list[Handler]] = {event: [] for event in self.EVENTS}

    def add(self, event: str, handler: Handler) -> None:
        if event not in self._by_event:
            raise InvalidArgument(f"event: one of {', '.join(self.EVENTS)}, not {event!r}")
        if not callable(handler):
            raise InvalidArgument(f"{event} handler: something to call, not {handler!r}")
        if event == "message" and self._by_event[event]:
            raise InvalidArgument("this subscription has a message handler already; one message has one handler")
        self._by_event[event].append(handler)

    @property
    def message(self) -> Handler | None:
        return self._by_event["message"][0] if self._by_event["message"] else None

    def tell(self, event: str, *arguments: object) -> list[Awaitable[object]]:
        """Call everybody who listens; what is left to await is returned. A listener's error is logged."""
        left: list[Awaitable[object]] = []
        for handler in self._by_event[event]:
            try:
                result = handler(*arguments)
            except Exception:
                _log.exception("a %r listener failed", event)
            else:
                if inspect.isawaitable(result):
                    left.append(result)
        return left

    def tell_error(self, error: BaseException) -> list[Awaitable[object]]:
        """Tell what went wrong; if nobody listens, the log."""
        if not self._by_event["error"]:
            _log.error("a message handler failed: %s", error, exc_info=error)
        return self.tell("error", error)


async def finish(awaitables: Iterable[Awaitable[object]]) -> None:
    """Await what listeners left to await. What they raise is logged."""
    for awaitable in awaitables:
        try:
            await awaitable
        except Exception:
            _log.exception("a listener failed")


def finish_here(awaitables: Sequence[Awaitable[object]]) -> None:
    """The same where nothing can be awaited: as a task if this thread has a loop, else by waiting."""
    if not awaitables:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(finish(awaitables))
    else:
        keep(loop.create_task(finish(awaitables)))


_running: set[asyncio.Task[None]] = set()


def keep(task: asyncio.Task[None]) -> None:
    """A loop holds its tasks weakly; this holds them until they are done."""
    _running.add(task)
    task.add_done_callback(_running.discard)


class Crew(ABC):
    """Whoever runs the handlers. Opened once, closed once."""

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners) -> None:
        self._listeners = listeners
        self._closing = False
        self.closed: Pending[None] = Pending()
        self._intake = Intake(transport, subscription, self.wake, self._report)

    @abstractmethod
    def wake(self) -> None:
        """There may be messages. Called on any thread; returns at once."""

    def close(self) -> Pending[None]:
        """Finish what runs, return the rest; done when that is done, and at once for whom it would wait for."""
        self._end()
        return Pending.of(None) if self.at_work() else self.closed

    @abstractmethod
    def at_work(self) -> bool:
        """Whether it is one of its own handlers or listeners that asks."""

    @abstractmethod
    def needs_this_thread(self) -> bool:
        """Whether it cannot end while the thread that asks does nothing but wait for it."""

    @abstractmethod
    def _end(self) -> None:
        """Begin to close."""

    @abstractmethod
    def _report(self, problem: str) -> None:
        """Tell a problem as an error, but later: called on any thread, inside a call to the broker."""


class ThreadCrew(Crew):
    """Handlers in threads: as many as there is work for, up to a limit, until closed.

    To wake a thread for each message costs more than the message does. So messages are taken in bursts,
    which all threads share, and while something is left of one, exactly one more thread is on its way. If
    the handlers wait for something, it is there at once, and calls in the next; if they only compute,
    it gets its turn when the interpreter passes that on, and whoever is one too many then rests.
    """

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners) -> None:
        self._changed = threading.Condition()
        self._ready: deque[Message] = deque()  # given out together, no two of one key; none is begun
        self._begun = 0  # handlers; roughly, as threads count at once
        self._coming = False  # a thread was called in, and has not looked for work yet
        self._missed = False  # nobody could be called in: whoever is done first looks again
        self._idle = 0
        self._threads = 0
        self._at_work: set[int] = set()  # the threads, by their identity
        self._problems: deque[str] = deque()
        super().__init__(transport, subscription, listeners)
        self._intake.collect_answers(self._flush_soon)
        with self._changed:
            self._add_thread()

    def wake(self) -> None:
        if not self._coming:  # else that one looks later than now
            self._call_in()

    def _call_in(self) -> None:
        """Have one more thread look for work."""
        with self._changed:
            if self._coming or self._closing:
                return
            if self._idle:
                self._idle -= 1
                self._changed.notify()
                self._coming = True
            elif 0 < self._threads < min(self._intake.max_messages, MAX_THREADS):
                self._add_thread()
            else:
                self._missed = True

    def at_work(self) -> bool:
        return threading.get_ident() in self._at_work

    def needs_this_thread(self) -> bool:
        return self.at_work()

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._intake.stop()
        unbegun: list[Message] = []
        with contextlib.suppress(IndexError):
            while True:
                unbegun.append(self._ready.popleft())
        self._intake.give_back(unbegun)

    def _report(self, problem: str) -> None:
        self._problems.append(problem)
        self.wake()

    def _flush_soon(self) -> None:
        """Answers may wait while a thread is on its way: it sends them first, should this one be kept busy."""
        if not (self._ready and self._coming):
            self._intake.flush()

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name="inorder-handler", daemon=True).start()
        self._threads += 1
        self._coming = True

    def _work(self) -> None:
        self._at_work.add(threading.get_ident())
        try:
            with self._changed:
                self._coming = False
            self._intake.flush()
            while not self._closing:
                self._tell_problems()
                message = self._next()
                if message is None:
                    self._rest()
                    continue
                begun = self._begun = self._begun + 1
                self._handle(message)
                if self._coming and self._begun != begun:  # others go on, and more of them come
                    self._rest()
        except InorderError as error:
            self._cut_off(error)
        finally:
            with self._changed:
                self._threads -= 1
                last = not self._threads
            if last:
                self._finish_closing()
            self._at_work.discard(threading.get_ident())

    def _next(self) -> Message | None:
        """A message to handle. If there are more, another thread is on its way to them."""
        while True:
            try:
                message = self._ready.popleft()
            except IndexError:
                self._ready.extend(messages := self._intake.next_ones(BURST))
                if not messages:
                    return None
                continue  # another thread may be faster
            if not self._intake.holds(message):  # lost while it waited: it will come again
                self._intake.finished(message)
                continue
            if not self._coming and (self._ready or self._intake.more()):
                self._call_in()
            return message

    def _rest(self) -> None:
        with self._changed:
            if not self._missed and not self._closing:
                self._idle += 1
                self._changed.wait()
                self._coming = False
            self._missed = False
        self._intake.flush()

    def _handle(self, message: Message) -> None:
        try:
            data = message._record[DATA]
            if isinstance(data, Gap):
                finish_here(self._listeners.tell("gap", data))
                message.ack()
                return
            handler = self._listeners.message
            assert handler is not None
            result = handler(message)
            if inspect.isawaitable(result):
                asyncio.run(_await(result))
        # Whatever a handler raises has said no, and must not end a thread that others count on.
        except BaseException as error:
            message.nack()
            self._tell_error(error)
        finally:
            self._intake.finished(message)

    def _tell_problems(self) -> None:
        while self._problems:
            try:
                problem = self._problems.popleft()
            except IndexError:  # another thread was faster
                return
            self._tell_error(FailedPrecondition(problem))

    def _tell_error(self, error: BaseException) -> None:
        finish_here(self._listeners.tell_error(error))

    def _cut_off(self, error: InorderError) -> None:
        """The broker does not know this consumer any more; each thread finds out, one tells it."""
        with self._changed:
            first = not self._closing
            self._closing = True
        if first:
            self._tell_error(error)
        self._end()

    def _finish_closing(self) -> None:
        self._intake.close()
        finish_here(self._listeners.tell("close"))
        self.closed.set_result(None)


async def _await(awaitable: Awaitable[object]) -> object:
    return await awaitable


class LoopCrew(Crew):
    """Handlers as tasks on a loop. A task goes on to the next message while there is one.

    A handler that does not wait is finished before the next task starts, so a burst of such messages
    costs no task each; one that waits is overtaken by the next task, which was there already.
    """

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        listeners: Listeners,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._workers: set[asyncio.Task[None]] = set()
        self._spare: asyncio.Task[None] | None = None  # one that has not begun yet
        self._ready: deque[Message] = deque()  # given out together, no two of one key; none is begun
        self._woken = False
        self._last = threading.Lock()  # taken once, by whoever ends it all
        assert listeners.message is not None
        self._handler = listeners.message
        super().__init__(transport, subscription, listeners)
        self._intake.collect_answers(self._flush_soon)
        self.wake()

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._soon(self._start)

    def at_work(self) -> bool:
        return self.needs_this_thread() and asyncio.current_task() in self._workers

    def needs_this_thread(self) -> bool:
        return threading.get_ident() == self._loop_thread and self._loop.is_running()

    def _end(self) -> None:
        self._intake.stop()
        if not self._loop.is_running():  # then no handler will, either
            self._finish_closing()
        elif self.needs_this_thread():
            self._close()  # now: whatever calls this on the loop expects nothing more to begin
        else:
            self._soon(self._close)

    def _report(self, problem: str) -> None:
        self._soon(lambda: finish_here(self._listeners.tell_error(FailedPrecondition(problem))))

    def _flush_soon(self) -> None:
        if not self._soon(self._intake.flush):
            self._intake.flush()

    def _soon(self, call: Callable[[], object]) -> bool:
        """Have the loop make a call. If it was closed without us, no handler will run: that is the end."""
        try:
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(call)
            else:
                self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            self._finish_closing()
            return False
        return True

    def _start(self) -> None:
        self._woken = False
        self._add_worker()

    def _add_worker(self) -> None:
        if self._spare is None and not self._closing:
            self._spare = self._loop.create_task(self._work())
            self._workers.add(self._spare)
            self._spare.add_done_callback(self._worker_ended)

    async def _work(self) -> None:
        ready, handler, holds, finished = self._ready, self._handler, self._intake.holds, self._intake.finished
        self._spare = None
        try:
            for _ in range(BURST):
                if self._intake.stopped or not (ready or await self._more()):
                    return
                message = ready.popleft()
                if self._spare is None:
                    self._add_worker()
                if not holds(message):  # lost while it waited: it will come again
                    finished(message)
                    continue
                try:
                    await (handler(message) if type(message._record[DATA]) is bytes else self._tell_gap(message))
                except BaseException as error:
                    await self._failed(message, error)
                finally:
                    finished(message)
            self._add_worker()  # which goes on when others on the loop had their turn
        except InorderError as error:  # the broker does not know this consumer any more
            if not self._closing:
                self._close()  # which waits for this worker
                await finish(self._listeners.tell_error(error))

    async def _more(self) -> bool:
        """Whether there is something to handle, now that nothing was ready."""
        if len(self._workers) > 1 and self._intake.unsent():
            await asyncio.sleep(0)  # others end in this turn of the loop too: one call serves all
        if not self._ready:
            self._ready.extend(self._intake.next_ones(BURST))
        return bool(self._ready)

    async def _tell_gap(self, message: Message) -> None:
        await finish(self._listeners.tell("gap", message._record[DATA]))
        message.ack()

    async def _failed(self, message: Message, error: BaseException) -> None:
        """A handler that raises has said no."""
        message.nack()
        if not isinstance(error, Exception) and not _is_its_own_cancellation(error):
            raise error
        await finish(self._listeners.tell_error(error))

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if worker.cancelled():  # by the end of its loop, or by somebody who wants this to end
            self._close()
        elif self._closing and not self._workers:
            self._finish_closing()

    def _close(self) -> None:
        self._closing = True
        self._intake.stop()
        unbegun = [*self._ready]
        self._ready.clear()
        self._intake.give_back(unbegun)
        if not self._workers:
            self._finish_closing()

    def _finish_closing(self) -> None:
        if not self._last.acquire(blocking=False):
            return
        self._closing = True
        self._intake.stop()
        self._intake.close()
        awaitables = self._listeners.tell("close")
        if awaitables and self.needs_this_thread():
            task = self._loop.create_task(self._finish_listeners(awaitables))
            self._workers.add(task)
        else:
            finish_here(awaitables)
            self.closed.set_result(None)

    async def _finish_listeners(self, awaitables: Sequence[Awaitable[object]]) -> None:
        await finish(awaitables)
        self.closed.set_result(None)


def _is_its_own_cancellation(error: BaseException) -> bool:
    """Whether a handler raised CancelledError because of something it awaited, not because it shall end."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


class LoopThread:
    """A loop of our own, for `async def` handlers that were opened without one."""

    def __init__(self) -> None:
        self._ready: Pending[asyncio.AbstractEventLoop] = Pending()
        self._stop = asyncio.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), name="inorder-loop", daemon=True).start()
        self.loop = self._ready.result()

    async def _run(self) -> None:
        self._ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def call(self, make: Callable[[], Crew]) -> Crew:
        """Run `make` on the loop's thread and return what it makes."""
        made: Pending[Crew] = Pending()

        def run() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return made.result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)


def is_async(handler: Handler) -> bool:
    """Whether a handler is to be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def open_crew(transport: Transport, subscription: str, listeners: Listeners) -> Crew:
    """Start handling: on the running loop, on a loop of our own, or in threads."""
    handler = listeners.message
    if handler is None:
        raise InvalidArgument(f'subscription {subscription!r} has no message handler: call .on("message", handler)')
    if not is_async(handler):
        return ThreadCrew(transport, subscription, listeners)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        own = LoopThread()
        try:
            crew = own.call(lambda: LoopCrew(transport, subscription, listeners, own.loop))
        except BaseException:
            own.stop()
            raise
        crew.closed.add_done_callback(lambda _: own.stop())
        return crew
    return LoopCrew(transport, subscription, listeners, loop)
