"""What is wrong with the events of a log: a kernel over rows that come key by key, each key's as they arrived.

The words are explained at `inorder.spark.audit`. Rows come in pieces. What is known of a key that was cut goes before
the rest of it, so a piece is judged as if it held the whole key. However large a key is, only a piece of it is held,
and a range of numbers between any two of its gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.findings import Kind
from inorder.spark.hashing import Numbers
from inorder.spark.lines import as_numbers, one_chunk
from inorder.spark.lineup import NONE, Lineup, Past, as_ranges
from inorder.spark.sorting import Flags


@dataclass(frozen=True, slots=True)
class Spotted:
    """All that is to be said of one kind, as parallel arrays."""

    kind: Kind
    code: Numbers  # which key
    where: pa.Table  # positions
    at: Numbers  # which of these
    value: pa.Array | None = None
    until: Numbers | None = None
    other: Numbers | None = None  # which of the positions
    places: Numbers | None = None
    time_us: Numbers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A piece of the log. A key that was cut before is its first, whether or not there is more of it."""

    is_end: bool  # else there may be more of the last key
    unkeyed: int
    rows: pa.Table  # those that have a key
    keys: pa.StringArray
    code: Numbers  # of each row, the index of its key
    placed: Numbers  # the same, of each row that has a place
    parked: Numbers  # of each such row, how many were parked when it came, at least
    delay_us: Numbers | None  # of each such row, by how much it happened earlier than the latest before it
    tied: Numbers  # of each row at the position of the one before, the index of its key
    late: Spotted  # those that are reordered
    spotted: tuple[Spotted, ...]  # these too


class Judge:
    """Judges the rows of one task, piece by piece."""

    def __init__(self, positions: list[str], *, by_time: bool) -> None:
        self._positions = positions
        self._by_time = by_time
        self._key: pa.StringArray | None = None  # of which there may be more
        self.past: Past | None = None  # of that key

    def judged(self, given: pa.Table, *, is_end: bool = False) -> Judged:
        """What is to be said of these rows, and of gaps in keys of which nothing more can come."""
        has_key = one_chunk(given.column("key")).is_valid()
        rows = given.filter(has_key)
        keys, code = _keys(rows, self._key)
        is_placed = one_chunk(rows.column("value")).is_valid()
        placed = code[_flags(is_placed)]
        line, aside = self._lined_up(rows.filter(is_placed), placed)
        # Of the first key something was judged before, if one was cut, and of the last one there may be more.
        last = len(keys) - 1
        cut = {0: line.past(0, aside)} if self.past is not None else {}
        if last >= 0 and last not in cut:
            cut[last] = line.past(last)
        self._key, self.past = (None, None) if is_end or not cut else (keys.slice(last), cut[last])
        delay_us = line.delay_us() if self._by_time or "event_us" in rows.column_names else None
        late = _late(line, delay_us, rows.column_names)
        spotted = [late, *self._of_rows(rows, code, is_placed)]
        if not self._by_time:
            spotted += [_duplicates(line), _gaps(line, list(cut))]
            spotted += [_gaps_in(past, one) for one, past in cut.items() if one < last or is_end]
        return Judged(
            is_end=is_end,
            unkeyed=len(given) - len(rows),
            rows=rows,
            keys=keys,
            code=code,
            placed=placed,
            parked=line.parked(),
            delay_us=delay_us,
            tied=line.code[line.tied()],
            late=late,
            spotted=tuple(spotted),
        )

    def _lined_up(self, rows: pa.Table, code: Numbers) -> tuple[Lineup, pa.Table]:
        """The rows behind what is known of the first key, and what of that does not matter to them."""
        past = self.past
        events = as_ranges(rows, self._positions, 0 if past is None else past.place, by_time=self._by_time)
        aside = known = events.slice(0, 0)
        if past is not None:
            aside, known = past.parted(as_numbers(events.column("low"))[code == 0])
        return Lineup(known, events, code, by_time=self._by_time), aside

    def _of_rows(self, rows: pa.Table, code: Numbers, is_placed: pa.BooleanArray) -> list[Spotted]:
        """What each row says by itself."""
        where = rows.select(self._positions)
        unplaced = np.flatnonzero(~_flags(is_placed))
        found = [Spotted("unplaced", code[unplaced], where, unplaced)]
        if "overlap_us" in rows.column_names:
            overlap_us = as_numbers(rows.column("overlap_us").fill_null(NONE))
            at = np.flatnonzero(overlap_us != NONE)
            value = one_chunk(rows.column("value")).take(pa.array(at))
            found.append(Spotted("overlapping", code[at], where, at, value, time_us=overlap_us[at]))
        return found


def _keys(rows: pa.Table, first: pa.StringArray | None) -> tuple[pa.StringArray, Numbers]:
    """All keys, and which of them each row has. Rows of one key are together, those of the first before all others."""
    column = one_chunk(rows.column("key")).cast(pa.string())
    whole = column if first is None else pa.concat_arrays([first, column])
    begins = np.ones(len(whole), np.bool_)
    begins[1:] = _flags(pc.not_equal(whole.slice(1), whole.slice(0, max(0, len(whole) - 1))))
    code = np.cumsum(begins) - 1
    return whole.take(pa.array(np.flatnonzero(begins))), code[len(whole) - len(column) :]


def _flags(column: pa.BooleanArray) -> Flags:
    flags: Flags = column.to_numpy(zero_copy_only=False)
    return flags


def _late(line: Lineup, delay_us: Numbers | None, columns: list[str]) -> Spotted:
    """Late by the clock of arrivals if there is one, or else by the times of the events."""
    late, overtaker = line.late()
    time_us = None if delay_us is None else delay_us[late - line.first_new]
    if "arrival_us" in columns:
        time_us = line.wait_us(late, overtaker)
    places = line.place[late] - line.place[overtaker]
    value = pa.array(line.low[late])
    return Spotted("reordered", line.code[late], line.positions, late, value, None, overtaker, places, time_us)


def _duplicates(line: Lineup) -> Spotted:
    at = line.duplicates()
    return Spotted("duplicate", line.code[at], line.positions, at, pa.array(line.low[at]))


def _gaps(line: Lineup, cut: list[int]) -> Spotted:
    """Of all keys but those that were cut."""
    first, last, at = line.gaps()
    whole = ~np.isin(line.code[at], cut)
    at = at[whole]
    return Spotted("gap", line.code[at], line.positions, at, pa.array(first[whole]), last[whole])


def _gaps_in(past: Past, code: int) -> Spotted:
    first, last, at = past.gaps()
    return Spotted("gap", np.full(len(at), code), past.positions, at, pa.array(first), last)
