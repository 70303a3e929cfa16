"""What is left to the end of a loop's turn, so that it is done once for all tasks that run in it.

A loop may be stopped, and its thread may wait for somebody who waits for this. So it is not left to the loop
alone: what is late, or is waited for, is done by the thread of the timers.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from inorder.clock import SYSTEM_CLOCK
from inorder.forks import after_fork

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

LATE_US = 5_000

_log = logging.getLogger(__name__)


def running_loop() -> AbstractEventLoop | None:
    """The loop that runs on this thread, if any."""
    return _ask()


def _ask_if_there_is_asyncio() -> AbstractEventLoop | None:
    # It is imported by the first who needs it: before that there is no loop.
    global _ask
    if (ask := getattr(sys.modules.get("asyncio"), "_get_running_loop", None)) is None:
        return None
    _ask = ask
    return _ask()


_ask: Callable[[], AbstractEventLoop | None] = _ask_if_there_is_asyncio


class _Here(threading.local):
    now: Callable[[], None] | None = None  # what was put off, and is done now
    then: list[Callable[[], None]]  # what that puts off, to be done right after it


class _PutOff:
    """Calls of all loops of this process; each is made once, by whoever is first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, as the garbage collector may get here from inside
        self._calls: dict[Callable[[], None], tuple[AbstractEventLoop, int]] = {}  # of which loop, since which look
        self._looks = 0
        self._watched = False  # somebody will look again
        self._used = False  # since the last look: if it is used now and then, to begin anew each time would cost more
        self._here = _Here()

    def add(self, call: Callable[[], None]) -> bool:
        """Make this call once when the tasks have run that are ready on this thread's loop; False if there is none."""
        loop = running_loop()
        if loop is None:
            return False
        if (known := self._calls.get(call)) is not None and known[0] is loop:
            return True
        with self._lock:
            self._calls[call] = loop, self._looks
            self._used = True
            if not self._watched:
                self._watched = True
                self._look_later()
        if self._here.now in (None, call):
            loop.call_soon(self._end_turn, call)
        else:
            self._here.then.append(call)
        return True

    def hurry(self) -> None:
        """Somebody is about to block the thread of a loop, perhaps until one of these is done."""
        if self._calls and running_loop() is not None:
            SYSTEM_CLOCK.call_at(0, self._do_all)

    def forget(self) -> None:
        """In a forked process: all of this is the parent's, and so is who may hold the lock."""
        self.__init__()  # type: ignore[misc]

    def _end_turn(self, call: Callable[[], None]) -> None:
        here = self._here
        here.now, here.then = call, []
        try:
            self._do(call)
        finally:
            here.now = None  # what the others put off in turn waits for the next one, or this might never end
            for other in here.then:
                self._do(other)

    def _do(self, call: Callable[[], None]) -> None:
        with self._lock:
            left = self._calls.pop(call, None)
        if left is not None:
            call()

    def _look_later(self) -> None:
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now_us() + LATE_US, partial(self._look, self._calls))

    def _look(self, at: object) -> None:
        with self._lock:
            if at is not self._calls:  # which were forgotten
                return
            late = [call for call, (_, since) in self._calls.items() if since < self._looks]
            self._looks += 1
            self._watched = self._used or bool(self._calls)
            self._used = False
            if self._watched:
                self._look_later()
        self._do_each(late)

    def _do_all(self) -> None:
        with self._lock:
            calls = list(self._calls)
        self._do_each(calls)

    def _do_each(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            try:
                self._do(call)
            except Exception:  # the others are not to blame
                _log.exception("what was put off to the end of a loop's turn failed")


_put_off = _PutOff()
at_the_end_of_the_turn = _put_off.add
hurry = _put_off.hurry

after_fork(_put_off.forget)
