"""An event loop whose time is a manual clock's: to sleep takes no time, and to wait for ever is an error."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from inorder.clock import MICROSECONDS
from inorder.testing.clock import ManualClock

T = TypeVar("T")


class Deadlock(AssertionError):
    """Every task waits, and no timer will ever wake one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """When all tasks wait, its time and that of its clock jump to the next timer of either. Nothing sleeps.

    For tasks only: while a thread works, all tasks may wait, and that would be taken for a deadlock.
    """

    def __init__(self, clock: ManualClock, limit_seconds: float = 3600) -> None:
        """With a limit of time that passes on the clock: timers that come again and again may hide a deadlock."""
        self._manual = clock
        self._start_us = clock.now_us()
        self._limit_us = self._start_us + round(limit_seconds * MICROSECONDS)
        super().__init__(_Jumps(self))
        self._clock_resolution = 1 / MICROSECONDS

    def time(self) -> float:
        """Seconds since the loop was made, on its clock."""
        return (self._manual.now_us() - self._start_us) / MICROSECONDS

    def jump(self, seconds: float | None) -> None:
        """Nothing is ready, and the loop's own next timer is due after so many seconds, if there is one."""
        due_us = self._manual.next_due_us()
        if seconds is not None:
            own_us = self._manual.now_us() + math.ceil(seconds * MICROSECONDS)
            due_us = own_us if due_us is None else min(due_us, own_us)
        if due_us is None:
            raise Deadlock("all tasks wait, and there is no timer to wake one")
        if due_us > self._limit_us:
            raise Deadlock(f"only timers are left after {self.time():g} s, and they go on beyond the limit")
        self._manual.advance(max(0, due_us - self._manual.now_us()) / MICROSECONDS)


class _Jumps(selectors.DefaultSelector):
    """Looks for what is there, and moves time on instead of waiting for more."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self._loop.jump(timeout)
        return ready


def run_virtually(main: Coroutine[Any, Any, T], clock: ManualClock, limit_seconds: float = 3600) -> T:
    """As `asyncio.run`, on a `VirtualLoop`. A task that is left at the end is an error, too."""
    loop = VirtualLoop(clock, limit_seconds)
    try:
        result = loop.run_until_complete(main)
        loop.run_until_complete(loop.shutdown_asyncgens())
        # A turn for the callbacks of tasks that have ended.
        loop.run_until_complete(asyncio.sleep(0))
        if left := asyncio.all_tasks(loop):
            raise AssertionError(f"{len(left)} task(s) are left: {left}")
        return result
    finally:
        _end(loop)


def _end(loop: VirtualLoop) -> None:
    """Cancel what is left, so that nobody complains about it later; it had its chance."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    try:
        if left:
            loop.run_until_complete(asyncio.wait(left))
            for task in left:
                if not task.cancelled():
                    task.exception()
    except Deadlock:  # it ignores that it was cancelled; what is wrong has been said already
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    finally:
        loop.close()
