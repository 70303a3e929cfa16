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
from collections.abc import Awaitable, Callable
from typing import Any

from inorder.client.intake import Intake
from inorder.errors import InvalidArgument
from inorder.message import DATA, Gap, Message
from inorder.options import SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Transport

MAX_THREADS = 64  # beyond that, waiting handlers belong on a loop
BURST = 100  # messages that a task handles before others on its loop have a turn

_log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]


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

    def tell_error(self, error: BaseException) -> None:
        if not self._by_event["error"]:
            _log.error("a message handler failed: %s", error, exc_info=error)
        for awaitable in self.tell("error", error):
            _finish(awaitable)


def _finish(awaitable: Awaitable[object]) -> None:
    """Run what a listener left to await: on this thread's loop if it has one, else right here."""

    async def finish() -> None:
        try:
            await awaitable
        except Exception:
            _log.exception("a listener failed")

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(finish())
    else:
        _keep(loop.create_task(finish()))


_running: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """A loop holds its tasks weakly; this holds them until they are done."""
    _running.add(task)
    task.add_done_callback(_running.discard)


class Crew(ABC):
    """Whoever runs the handlers. Opened once, closed once."""

    def __init__(
        self, transport: Transport, subscription: str, options: SubscriptionOptions, listeners: Listeners
    ) -> None:
        self._listeners = listeners
        self._closing = False
        self.closed: Pending[None] = Pending()
        self._intake = Intake(transport, subscription, options, self.wake, self._report)

    @abstractmethod
    def wake(self) -> None:
        """There may be messages. Called on any thread; returns at once."""

    @abstractmethod
    def close(self) -> Pending[None]:
        """Finish what runs, return the rest; done when that is done."""

    def _report(self, problem: str) -> None:
        self._listeners.tell_error(RuntimeError(problem))

    def _failed(self, message: Message, error: BaseException) -> None:
        """A handler that raises has said no."""
        if message._settled is None:
            message.nack()
        self._listeners.tell_error(error)

    def _finish_closing(self) -> None:
        self._intake.close()
        for awaitable in self._listeners.tell("close"):
            _finish(awaitable)
        self.closed.set_result(None)


class ThreadCrew(Crew):
    """Handlers in threads: as many as there is work for, up to a limit, until closed."""

    def __init__(
        self, transport: Transport, subscription: str, options: SubscriptionOptions, listeners: Listeners
    ) -> None:
        self._changed = threading.Condition()
        self._signalled = False
        self._idle = 0
        self._threads = 0
        limit = options.flow_control.max_messages if options.flow_control else MAX_THREADS
        self._max_threads = min(limit, MAX_THREADS)
        super().__init__(transport, subscription, options, listeners)
        with self._changed:
            self._add_thread()

    def wake(self) -> None:
        with self._changed:
            self._signalled = True
            self._call_somebody()

    def close(self) -> Pending[None]:
        with self._changed:
            if self._closing:
                return self.closed
            self._closing = True
            self._changed.notify_all()
        self._intake.stop()
        return self.closed

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="inorder-handler", daemon=True).start()

    def _work(self) -> None:
        while not self._closing:
            message = self._intake.next()
            if message is None:
                self._rest()
            else:
                self._call_in_help()
                self._handle(message)
        with self._changed:
            self._threads -= 1
            last = not self._threads
        if last:
            self._finish_closing()

    def _rest(self) -> None:
        with self._changed:
            if not self._signalled and not self._closing:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._signalled = False

    def _call_in_help(self) -> None:
        """This thread is busy now: if there is more to do here, somebody else must look."""
        if self._intake.more():
            self.wake()

    def _call_somebody(self) -> None:
        if self._idle:
            self._changed.notify()
        elif 0 < self._threads < self._max_threads and not self._closing:
            self._add_thread()

    def _handle(self, message: Message) -> None:
        try:
            data = message._record[DATA]
            if isinstance(data, Gap):
                for awaitable in self._listeners.tell("gap", data):
                    _finish(awaitable)
                message.ack()
                return
            handler = self._listeners.message
            assert handler is not None
            result = handler(message)
            if inspect.isawaitable(result):
                asyncio.run(_await(result))
        except Exception as error:
            self._failed(message, error)
        finally:
            self._intake.finished(message)


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
        options: SubscriptionOptions,
        listeners: Listeners,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._workers = 0
        self._spare = False  # a task that has not begun yet
        self._woken = False
        super().__init__(transport, subscription, options, listeners)
        self._intake.collect_answers(lambda: self._soon(self._intake.flush))
        self.wake()

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._soon(self._start)

    def close(self) -> Pending[None]:
        self._soon(self._close)
        return self.closed

    def _soon(self, call: Callable[[], object]) -> None:
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(call)
        else:
            # A loop that was closed without us runs no handlers any more: leases run out.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call)

    def _start(self) -> None:
        self._woken = False
        self._add_worker()

    def _add_worker(self) -> None:
        if not self._spare and not self._closing:
            self._spare = True
            self._workers += 1
            _keep(self._loop.create_task(self._work()))

    def _close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._intake.stop()
        if not self._workers:
            self._finish_closing()

    async def _work(self) -> None:
        self._spare = False
        handled = 0
        while (message := self._intake.next()) is not None:
            self._add_worker()
            await self._handle(message)
            handled += 1
            if handled % BURST == 0:
                await asyncio.sleep(0)
        self._workers -= 1
        if self._closing and not self._workers:
            self._finish_closing()

    async def _handle(self, message: Message) -> None:
        try:
            data = message._record[DATA]
            if isinstance(data, Gap):
                for awaitable in self._listeners.tell("gap", data):
                    await awaitable
                message.ack()
                return
            handler = self._listeners.message
            assert handler is not None
            await handler(message)
        except Exception as error:
            self._failed(message, error)
        except asyncio.CancelledError:
            # Only the end of the loop cancels us: the message goes back at once.
            if message._settled is None:
                message.nack()
            raise
        finally:
            self._intake.finished(message)


class LoopThread:
    """A loop of our own, for `async def` handlers that were opened without one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="inorder-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

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
        self.loop.call_soon_threadsafe(self.loop.stop)


def is_async(handler: Handler) -> bool:
    """Whether a handler is to be awaited."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def open_crew(transport: Transport, subscription: str, options: SubscriptionOptions, listeners: Listeners) -> Crew:
    """Start handling: on the running loop, on a loop of our own, or in threads."""
    handler = listeners.message
    if handler is None:
        raise InvalidArgument(f'subscription {subscription!r} has no message handler: call .on("message", handler)')
    if not is_async(handler):
        return ThreadCrew(transport, subscription, options, listeners)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        own = LoopThread()
        try:
            crew = own.call(lambda: LoopCrew(transport, subscription, options, listeners, own.loop))
        except BaseException:
            own.stop()
            raise
        crew.closed.add_done_callback(lambda _: own.stop())
        return crew
    return LoopCrew(transport, subscription, options, listeners, loop)
