"""A clock that stands still until it is told to move."""

import heapq
import itertools
import threading
from collections.abc import Callable

from inorder.clock import MICROSECONDS, Timer


class ManualClock:
    """Time in a test's hands: `advance(seconds)` moves it and runs what falls due, in order of time."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now_us = round(start * MICROSECONDS)
        self._heap: list[tuple[int, int, Timer]] = []
        self._tie = itertools.count()
        self._lock = threading.RLock()  # reentrant, as the garbage collector may get here from inside

    def now_us(self) -> int:
        return self._now_us

    def call_at(self, when_us: int, callback: Callable[[], object]) -> Timer:
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (when_us, next(self._tie), timer))
        return timer

    def next_due_us(self) -> int | None:
        """When the next timer is due, which may be in the past; None if there is none."""
        with self._lock:
            while self._heap and self._heap[0][2].callback is None:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def advance(self, seconds: float) -> None:
        """Move time forward; each timer on the way sees the time it was set for."""
        if seconds < 0:
            raise ValueError(f"advance: time moves forward only, not by {seconds} s")
        until_us = self._now_us + round(seconds * MICROSECONDS)
        while timer := self._pop_due(until_us):
            timer.run()
        self._now_us = max(self._now_us, until_us)  # a timer may have moved it further

    def _pop_due(self, until_us: int) -> Timer | None:
        with self._lock:
            if not self._heap or self._heap[0][0] > until_us:
                return None
            when_us, _, timer = heapq.heappop(self._heap)
            self._now_us = max(self._now_us, when_us)
            return timer
