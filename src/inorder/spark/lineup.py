"""Events of many keys in a line, key by key, each key's as they arrived; and all questions about their order.

An event is a range of one number. Of events that were looked at before, those with numbers in a row are one range.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.hashing import Numbers
from inorder.spark.lines import as_numbers, one_table
from inorder.spark.sorting import MOST, Flags, joined

NONE = -1  # no such amount; amounts are not negative
UNKNOWN = -(2**63)  # a time that nobody noted, before all others
MOST_WASTE = 2  # times as much memory as there is to keep

_FACTS = ("low", "high", "count", "place", "clock_us", "latest_us")


def as_ranges(rows: pa.Table, positions: list[str], behind: int, *, by_time: bool) -> pa.Table:
    """Rows that all have a number, each as a range. Places are counted through, whatever the keys, behind this one."""
    value = rows.column("value")
    facts = {
        "low": value,
        "high": value,
        "count": pa.array(np.ones(len(rows), np.int64)),
        "place": pa.array(np.arange(behind + 1, behind + 1 + len(rows))),
        "clock_us": _times(rows, "arrival_us"),
        "latest_us": value if by_time else _times(rows, "event_us"),
    }
    return pa.table(facts | {name: rows.column(name) for name in positions})


def _times(rows: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    if name not in rows.column_names:
        return pa.array(np.zeros(len(rows), np.int64))
    return rows.column(name).fill_null(UNKNOWN)


class Past:
    """What matters of the events of a key that were looked at: the numbers that came, in ranges; by time, the moments.

    With a range goes the event that first reached it: what comes later, from below it, was overtaken there. The newest
    event goes behind the ranges, as one that counts for nothing, so that whoever comes next is compared with it.
    """

    def __init__(self, ranges: pa.Table, newest: pa.Table) -> None:
        if ranges.get_total_buffer_size() > MOST_WASTE * ranges.nbytes:  # of tables of which little is left
            ranges = ranges.take(pa.array(np.arange(len(ranges))))
        self._ranges = ranges
        self._newest = newest

    @property
    def positions(self) -> pa.Table:
        return self._ranges.drop_columns(list(_FACTS))

    @property
    def place(self) -> int:
        """Of the newest event; 0 if there was none."""
        return int(pc.max(self._newest.column("place")).as_py() or 0)

    @property
    def held_bytes(self) -> int:
        return int(self._ranges.get_total_buffer_size())

    def parted(self, numbers: Numbers) -> tuple[pa.Table, pa.Table]:
        """The ranges that do not matter for these numbers, as all of them are above; and the others."""
        low, reached = self._ranges.column("low"), len(self._ranges)
        if len(numbers):
            reached = bisect_right(low, numbers.min(), key=pa.Int64Scalar.as_py)
        cut = max(0, reached - 1)
        return self._ranges.slice(0, cut), pa.concat_tables([self._ranges.slice(cut), self._newest])

    def gaps(self) -> tuple[Numbers, Numbers, Numbers]:
        """Between the ranges: the first and the last number that is missing, and the index of the range behind."""
        low, high = (as_numbers(self._ranges.column(name)) for name in ("low", "high"))
        return high[:-1] + 1, low[1:] - 1, np.arange(1, len(low))


class Lineup:
    """The first ranges are what is known of the first key, the others are new."""

    def __init__(self, known: pa.Table, new: pa.Table, code: Numbers, *, by_time: bool) -> None:
        """`code` is which key each of the new ones has, counted from 0 as they come."""
        self._facts = one_table([known, new])
        self.positions = self._facts.drop_columns(list(_FACTS))
        self.first_new = len(known)
        self.code = np.concatenate([np.zeros(len(known), np.int64), code])
        self.low, self._high, count, self.place, clock_us, self._event_us = (
            as_numbers(self._facts.column(name)) for name in _FACTS
        )
        self._clock_us = running_max(self.code, clock_us)
        self._latest_us = running_max(self.code, self._event_us)
        self._by_time = by_time
        self._pairs = joined(self.code, self.low)
        self._top = np.maximum.accumulate(self._pairs)
        order = np.argsort(self._pairs, kind="stable")
        came = np.zeros(len(order), np.bool_) if by_time else self._came(order)
        self._count = np.where(came, 0, count)
        self._order = order[self._count[order] > 0]

    def _came(self, order: Numbers) -> Flags:
        """Whether the number of an event came before."""
        code, low = self.code[order], self.low[order]
        reached = running_max(code, self._high[order])
        came = np.zeros(len(order), np.bool_)
        came[order[1:]] = (code[1:] == code[:-1]) & (low[1:] <= reached[:-1])
        return came

    def duplicates(self) -> Numbers:
        """Which of the new events have numbers that came before."""
        return self.first_new + np.flatnonzero(self._count[self.first_new :] == 0)

    def late(self) -> tuple[Numbers, Numbers]:
        """Which events were overtaken, and by which ones first."""
        late = np.flatnonzero((self._top > self._pairs) & (self._count > 0))
        return late, np.searchsorted(self._top, self._pairs[late], "right")

    def wait_us(self, late: Numbers, overtaker: Numbers) -> Numbers:
        """How much later by the clock of arrivals."""
        since_us = self._clock_us[overtaker]
        return np.where(since_us == UNKNOWN, NONE, self._clock_us[late] - since_us)

    def delay_us(self) -> Numbers:
        """Of each new event, by how much it happened earlier than the latest of its key so far."""
        event_us = self._event_us[self.first_new :]
        return np.where(event_us == UNKNOWN, NONE, self._latest_us[self.first_new :] - event_us)

    def parked(self) -> Numbers:
        """Of each new event, how many were parked when it came: how many came by then, less how many belong up to it.

        If something that belongs before it comes later, they are more; that one tells. Its highest is right.
        """
        behind = np.cumsum(self._count)
        behind[self._order] -= np.cumsum(self._count[self._order])
        return np.where(self._count > 0, behind, 0)[self.first_new :]

    def gaps(self) -> tuple[Numbers, Numbers, Numbers]:
        """What is missing of each key: the first and the last number, and the index of who first came from behind."""
        code, low, high = self.code[self._order], self.low[self._order], self._high[self._order]
        below = np.flatnonzero((code[1:] == code[:-1]) & (low[1:] - high[:-1] > 1))
        return high[below] + 1, low[below + 1] - 1, self._reached(self._order[below + 1])

    def _reached(self, events: Numbers) -> Numbers:
        """Who first reached the numbers of these events."""
        return np.searchsorted(self._top, self._pairs[events], "left")

    def tied(self) -> Numbers:
        """Which events have the position of the one before."""
        same = self.code[1:] == self.code[:-1]
        for column in self.positions.columns:
            equal = pc.equal(column.slice(1), column.slice(0, max(0, len(column) - 1)))
            same &= equal.fill_null(False).to_numpy(zero_copy_only=False)
        tied = 1 + np.flatnonzero(same)
        return tied[tied >= self.first_new]

    def past(self, code: int, aside: pa.Table | None = None) -> Past:
        """What matters of a key from now on. Aside are ranges of it that are below all of these."""
        nothing = self._facts.slice(0, 0)
        aside = nothing if aside is None else aside
        begin, end = np.searchsorted(self.code, [code, code + 1])
        if begin == end:
            return Past(aside, nothing)
        first, behind = np.searchsorted(self.code[self._order], [code, code + 1])
        own = self._order[first:behind]
        low, high = self.low[own], self._high[own]
        begins = np.ones(len(own), np.bool_)
        begins[1:] = low[1:] != low[:-1] if self._by_time else low[1:] - high[:-1] > 1
        starts = np.flatnonzero(begins)
        ranges = {
            "low": low[starts],
            "high": high[np.append(starts[1:], len(own)) - 1],
            "count": np.add.reduceat(self._count[own], starts),
            **self._as_of(self._reached(own[starts])),
        }
        newest = {"low": high[-1:], "high": high[-1:], "count": np.zeros(1, np.int64)}
        newest |= self._as_of(np.array([end - 1]))
        return Past(pa.concat_tables([aside, pa.table(ranges)]), pa.table(newest))

    def _as_of(self, events: Numbers) -> dict[str, Numbers | pa.ChunkedArray]:
        """When and where these arrived."""
        positions = self.positions.take(pa.array(events))
        return {
            "place": self.place[events],
            "clock_us": self._clock_us[events],
            "latest_us": self._latest_us[events],
            **dict(zip(positions.column_names, positions.columns, strict=True)),
        }


def running_max(codes: Numbers, numbers: Numbers) -> Numbers:
    """The highest number so far among those of one code. Codes are small, and never fall."""
    if not len(codes):
        return numbers
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return numbers
    width = high - low + 1
    if (int(codes[-1]) + 1) * width > MOST:
        distinct, ranks = np.unique(numbers, return_inverse=True)
        highest: Numbers = distinct[running_max(codes, ranks)]
        return highest
    base = codes * width - low
    return np.maximum.accumulate(base + numbers) - base
