"""Who is told about what on a subscription."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from inorder.errors import InvalidArgument
from inorder.message import Gap
from inorder.options import check_call
from inorder.pending import Pending
from inorder.pool.functions import is_generator
from inorder.pool.task_crew import is_its_own_cancellation

_log = logging.getLogger(__name__)

Handler = Callable[..., Any]  # takes a message, an error or a gap; on "close" nothing


class Listeners:
    """Who is told about what on a subscription."""

    EVENTS = ("message", "error", "gap", "close")

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._by_event: dict[str, list[Handler]] = {event: [] for event in self.EVENTS}

    def add(self, event: str, handler: Handler) -> None:
        if event not in self._by_event:
            raise InvalidArgument(f"event: one of {', '.join(self.EVENTS)}, not {event!r}")
        check_call(f"{event} handler", handler)
        if is_generator(handler):
            raise InvalidArgument(
                f"{event} handler: a def or an async def, not a generator, of which nothing would run"
            )
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
            except KeyboardInterrupt:
                raise
            except BaseException:  # also by sys.exit(): that is no reason for whoever tells it to end
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

    def tell_gap(self, gap: Gap) -> list[Awaitable[object]]:
        """Tell what will not come; if nobody listens, the log: a key does not go on over a hole unseen."""
        if not self._by_event["gap"]:
            _log.warning(
                "subscription %r: key %r goes on without %d message(s), positions %d to %d: %s",
                *(self._subscription, gap.ordering_key, gap.count, gap.first_position, gap.last_position, gap.reason),
            )
        return self.tell("gap", gap)


async def awaited(awaitable: Awaitable[object]) -> object:
    """A coroutine, as `asyncio.run` wants one, of whatever a handler has returned to be awaited."""
    return await awaitable


async def finish(awaitables: Iterable[Awaitable[object]]) -> None:
    """Await what listeners left to await. What they raise is logged."""
    for awaitable in awaitables:
        try:
            await awaitable
        except (Exception, SystemExit):
            _log.exception("a listener failed")
        except asyncio.CancelledError as error:
            if not is_its_own_cancellation(error):
                raise
            _log.exception("a listener failed")


def finish_here(awaitables: Sequence[Awaitable[object]]) -> Pending[None]:
    """The same where nothing can be awaited: as a task if this thread has a loop, else by waiting.

    The answer is there when it is done.
    """
    if not awaitables:
        return Pending.of(None)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(finish(awaitables))
        return Pending.of(None)
    finished: Pending[None] = Pending()
    task = loop.create_task(finish(awaitables))
    task.add_done_callback(lambda _: finished.set_result(None))
    keep(task)
    return finished


_running: set[asyncio.Task[None]] = set()


def keep(task: asyncio.Task[None]) -> None:
    """A loop holds its tasks weakly; this holds them until they are done."""
    _running.add(task)
    task.add_done_callback(_running.discard)
