"""How many workers a pool should have. Pure: time and load are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inorder.clock import MICROSECONDS
from inorder.options import MAX_SECONDS, check_number, check_whole

HISTORY = 100  # scale events that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """As many workers as there is work for, between two numbers."""

    min_workers: int = 1
    max_workers: int = 16
    interval: float = 0.1  # seconds from one look at the load to the next
    scale_down_after: float = 5.0  # seconds that workers must have been too many

    def __post_init__(self) -> None:
        check_whole("min_workers", self.min_workers)
        check_whole("max_workers", self.max_workers, at_least=self.min_workers)
        check_number("interval", self.interval, above=0, up_to=MAX_SECONDS)
        check_number("scale_down_after", self.scale_down_after, up_to=MAX_SECONDS)


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """The number of workers has changed, and why."""

    time_us: int
    workers_before: int
    workers: int
    reason: str


class Load(NamedTuple):
    """What a pool looks like at a moment."""

    runnable: int  # items that could be worked on if there were a worker
    busy: int  # workers
    results: int  # done, but not put out
    behind_head: int  # of these, the ones that wait for an item before them


class Scaler:
    """Adds workers while there is work for them, takes away those for whom there was none for a while.

    More workers help when runnable items wait, everybody is busy and the window has places for what they would
    do. When results wait for one slow item, they would only fill the window sooner: then nothing is added.
    """

    def __init__(self, options: Autoscale, window: int, now_us: int) -> None:
        self._options = options
        self._window = window
        self.workers = options.min_workers
        self.events: list[ScaleEvent] = []
        self._peak = 0  # most that were busy at once since `_peak_since_us`
        self._peak_since_us = now_us

    def look(self, load: Load, now_us: int) -> bool:
        """Whether the number of workers changes now."""
        grow = self._growth(load)
        if grow:
            self._change(self.workers + grow, now_us, f"{load.runnable} item(s) wait and all {self.workers} are busy")
        self._peak = max(self._peak, load.busy)
        if grow or self._peak >= self.workers:
            self._peak, self._peak_since_us = load.busy, now_us
            return bool(grow)
        if now_us - self._peak_since_us < self._options.scale_down_after * MICROSECONDS:
            return False
        fewer = max(self._peak, self._options.min_workers)
        peak, self._peak, self._peak_since_us = self._peak, load.busy, now_us
        if fewer == self.workers:
            return False
        self._change(fewer, now_us, f"at most {peak} were busy for {self._options.scale_down_after:g} s")
        return True

    def _growth(self, load: Load) -> int:
        if load.busy < self.workers or load.behind_head * 2 > self._window:
            return 0
        places = self._window - load.results - load.busy
        # At most twice as many at once: the next look will show whether that was enough.
        return max(0, min(load.runnable, places, self.workers, self._options.max_workers - self.workers))

    def _change(self, workers: int, now_us: int, reason: str) -> None:
        self.events.append(ScaleEvent(now_us, self.workers, workers, reason))
        del self.events[:-HISTORY]
        self.workers = workers
