"""What a pool is doing, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from inorder.pool.scaling import ScaleEvent
from inorder.pool.window import HeadOfLine


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMetrics:
    """One moment of one pass through a pool."""

    window: int  # places
    window_used: int  # inputs that were taken and not put out yet
    buffered_results: int  # of these, done and waiting: for an item before them, or for the reader
    workers: int
    busy: int
    blocked: int  # idle, because every place of the window is taken
    idle: int  # because there is nothing to do
    head_of_line: HeadOfLine | None  # the input for which results wait now
    head_of_line_seconds: float  # for how long results have waited for an input before them, in all
    worst_head_of_line: HeadOfLine | None  # the input for which they waited longest
    taken: int  # inputs, from the source
    emitted: int  # inputs whose outputs were all put out, or that have none
    failed: int  # inputs that ended in an error
    timed_out: int  # attempts that took longer than `process_timeout`
    retries: int
    gaps: int  # inputs that were given up after `order_timeout`
    late_results: int  # came after their place was given up, and were dropped
    scale_events: tuple[ScaleEvent, ...]  # the newest ones
