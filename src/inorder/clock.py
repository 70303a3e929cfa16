"""Where time comes from: microseconds since the epoch, and one timer for whoever must wake up.

Nothing else in the library reads the wall clock, so a test that passes a manual clock owns time.
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from inorder.forks import after_fork

MICROSECONDS = 1_000_000
LONGEST_WAIT_US = 86400 * MICROSECONDS  # then one looks again: nobody can be told to wait for a thousand years

_log = logging.getLogger(__name__)


class Timer:
    """A call that is due later."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Make sure that it does not start any more."""
        self.callback = None

    def run(self) -> None:
        """Its time has come: call it, unless that was done or cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class Clock(Protocol):
    """Time, and calls in the future."""

    def now_us(self) -> int:
        """Microseconds since 1970, never less than the call before returned."""

    def call_at(self, when_us: int, callback: Callable[[], object]) -> Timer:
        """Run `callback` once, soon after `when_us`, on a thread of the clock's choice."""


class SystemClock:
    """The machine's time. Timers share one daemon thread, started by the first of them.

    The wall clock may jump; this one starts from it and then follows the monotonic clock, so leases
    and backoffs are not cut short or stretched when somebody corrects the machine's time.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self.forget_timers()

    def forget_timers(self) -> None:
        """Start over without timers: a forked process inherits all of them, but not their thread."""
        self._timers = _TimerThread(self)

    def now_us(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1000

    def call_at(self, when_us: int, callback: Callable[[], object]) -> Timer:
        return self._timers.add(when_us, callback)


class _TimerThread:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Reentrant, as the garbage collector may get here from inside. Taken by itself and not by the condition, whose
        # own steps may be interrupted by Ctrl-C, and would leave it held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[int, int, Timer]] = []
        self._heap_limit = 64
        self._tie = itertools.count()
        self._running = False
        self._asleep_until_us = 0

    def add(self, when_us: int, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (when_us, next(self._tie), timer))
            if len(self._heap) > self._heap_limit:
                self._forget_cancelled()
            if not self._running:  # nor if a start failed, or was interrupted: then timers would wait for ever
                threading.Thread(target=self._run, name="inorder-timers", daemon=True).start()
            elif self._heap[0][0] < self._asleep_until_us:  # perhaps since one before, whose setting was interrupted
                self._changed.notify_all()  # one that was interrupted may have left behind somebody who is awake
        return timer

    def _forget_cancelled(self) -> None:
        # Making a list may run the garbage collector, and that may add a timer: to the new heap, then.
        heap, self._heap = self._heap, []
        left = heap
        try:
            left = [entry for entry in heap if entry[2].callback is not None]
        finally:  # also when it is interrupted
            self._heap += left
            heapq.heapify(self._heap)
        self._heap_limit = 2 * len(self._heap) + 64  # so that looking costs little per timer

    def _run(self) -> None:
        with self._lock:
            if self._running:  # another one was faster
                return
            self._running = True
        while True:
            with self._lock:
                while not self._heap or self._heap[0][0] > self._clock.now_us():
                    latest_us = self._clock.now_us() + LONGEST_WAIT_US
                    self._asleep_until_us = min(self._heap[0][0], latest_us) if self._heap else latest_us
                    self._changed.wait(max(self._asleep_until_us - self._clock.now_us(), 0) / MICROSECONDS)
                    self._asleep_until_us = 0
                timer = heapq.heappop(self._heap)[2]
            try:
                timer.run()
            except BaseException:  # one bad callback must not stop everybody's timers, not even by sys.exit()
                _log.exception("a timer's callback failed")


SYSTEM_CLOCK = SystemClock()
after_fork(SYSTEM_CLOCK.forget_timers)
