"""One batch of one bucket through a `Resequencer` or a `VersionGate`, all keys at once.

The rows of a batch come at one time, in the order of their numbers; of two with one number, the first in the order
that `sorting` makes. For them this does what the pattern does row by row, only with whole columns. Keys for which
that has no short form (a parking that is full, a late row that is taken) go through the pattern itself.

It knows no Spark and no files: rows and lines are Arrow tables, and time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.clock import MICROSECONDS
from inorder.errors import DuplicateEvent, LateEvent, ParkingFull, ProgressMissing
from inorder.options import REMEMBERED_GAPS
from inorder.patterns.parking import Line, Ranges
from inorder.patterns.sequencing import Resequencer
from inorder.patterns.step import DUPLICATE, GAP, LATE, PARKED, QUARANTINED, RELEASED, STALE, Missing, Outcome
from inorder.patterns.versioning import VersionGate
from inorder.spark.hashing import Hashes, Numbers, hashes
from inorder.spark.lines import (
    Parked,
    as_numbers,
    before_the_beginning,
    by_hash,
    one_chunk,
    one_table,
    parked_lists,
    range_lists,
    ranges_of,
    schema,
)
from inorder.spark.sorting import Flags, in_order, joined

Sequencing: TypeAlias = Resequencer | VersionGate

FATES: Final = (RELEASED, LATE, DUPLICATE, STALE, QUARANTINED, GAP)  # of rows that come out
_CODE: Final = {fate: code for code, fate in enumerate(FATES)}
_WAITS: Final = -1


class Names(NamedTuple):
    """Which columns a pattern reads."""

    key: str
    number: str  # or an id
    position: str | None = None  # decides between rows of one number
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows, all of them valid, with their keys as numbers into the distinct ones."""

    table: pa.Table  # of one chunk
    names: Names
    keys: pa.StringArray  # distinct
    hashes: Hashes  # of the keys
    codes: Numbers

    @classmethod
    def of(cls, table: pa.Table, names: Names) -> Rows:
        encoded = one_chunk(table.column(names.key)).cast(pa.string()).dictionary_encode()
        keys = encoded.dictionary
        return cls(table, names, keys, hashes(keys), as_numbers(encoded.indices))

    @property
    def numbers(self) -> Numbers:
        return as_numbers(self.table.column(self.names.number))


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch came to: what became of which rows, in order for each key, and the lines that changed.

    `order` are indices into `rows`, and behind its end into `gaps`. Lines are sorted by hash and key.
    """

    rows: pa.Table
    order: Numbers
    fates: Numbers  # indices into FATES
    gaps: list[Missing]
    lines: pa.Table


def settle(pattern: Sequencing, new: Rows, lines: pa.Table, now_us: int) -> Settled:
    """Take new rows in. `lines` has those of their keys that exist, and may have others, whose time may have come."""
    step = _Step(pattern, new, lines, now_us)
    step.time_out()
    step.take()
    return step.settled()


@dataclass(slots=True)
class _Part:
    """Rows that come out, with their keys; in order for each key."""

    codes: Numbers
    rows: Numbers
    fates: Numbers


class _Waiting(NamedTuple):
    """Rows that are parked after the batch, with their keys; by number for each key."""

    codes: Numbers
    rows: Numbers
    arrived_us: Numbers


class _Step:
    """A batch on its way. Arrays end in what they are of: a key (its code), a line, a parked row, a sorted row."""

    def __init__(self, pattern: Sequencing, new: Rows, lines: pa.Table, now_us: int) -> None:
        self.pattern = pattern
        self.new = new
        self.now_us = now_us
        self.lines = lines
        line_keys = one_chunk(lines.column("key"))
        known = pc.index_in(line_keys, value_set=new.keys)
        others = line_keys.filter(pc.is_null(known))
        self.keys = pa.concat_arrays([new.keys, others]) if len(others) else new.keys
        self.hashes = np.concatenate([new.hashes, hashes(others)])
        self.code_of_line = (
            as_numbers(pc.index_in(line_keys, value_set=self.keys)) if len(others) else as_numbers(known)
        )
        self.line_of_key = np.full(len(self.keys), -1, np.int64)
        self.line_of_key[self.code_of_line] = np.arange(len(line_keys))
        self.known = self.line_of_key >= 0
        self.parked = Parked.of(lines)
        if isinstance(pattern, VersionGate):
            pattern.check_parked(len(self.parked.line))
        self.rows = one_table([self.parked.rows, new.table]) if len(lines) else new.table
        self.expected = np.zeros(len(self.keys), np.int64)
        self.expected[self.code_of_line] = as_numbers(lines.column("expected"))
        self.first = np.zeros(len(self.keys), np.int64)  # of a key that is new: what is before is missed
        self._begin()
        self.changed: Flags = ~self.known
        self.missed: dict[int, Ranges] = {}  # of keys whose gaps changed
        self.parts: list[_Part] = []
        self.waiting: list[_Waiting] = []
        self.gaps: list[Missing] = []
        self.left: Flags = np.ones(len(self.parked.line), np.bool_)  # parked rows that still are

    def _begin(self) -> None:
        """Lines for keys that have none."""
        begins = np.flatnonzero(~self.known)
        if not len(begins):
            return
        if isinstance(self.pattern, VersionGate):
            self.expected[begins] = self.pattern.first_version
            return
        if self.pattern.initial == "stored":
            raise ProgressMissing(self._key(int(begins[0])), None)
        if self.pattern.initial == "first_seen":
            least = np.full(len(self.keys), np.iinfo(np.int64).max)
            np.minimum.at(least, self.new.codes, self.new.numbers)
            self.expected[begins] = least[begins]
        else:
            self.expected[begins] = self.pattern.initial
        self.first[begins] = self.expected[begins]

    def _key(self, code: int) -> str:
        return str(self.keys[code].as_py())

    @cached_property
    def numbers_of_parked(self) -> Numbers:
        return as_numbers(self.parked.rows.column(self.new.names.number))

    # What has waited long enough.

    def time_out(self) -> None:
        """Give up the holes before rows that have waited for the gap timeout, and release these."""
        timeout = self.pattern.gap_timeout_seconds
        if timeout is None or not len(self.parked.line):
            return
        overdue = np.flatnonzero(self.parked.arrived_us <= self.now_us - round(timeout * MICROSECONDS))
        if not len(overdue):
            return
        line, numbers = self.parked.line, self.numbers_of_parked
        index = np.arange(len(line))
        last = np.full(len(self.code_of_line), -1)
        np.maximum.at(last, line[overdue], overdue)
        timed = index <= last[line]
        before = np.empty(len(line), np.int64)
        before[1:] = numbers[:-1]
        starts = np.flatnonzero(np.diff(line, prepend=-1))
        before[starts] = self.expected[self.code_of_line[line[starts]]] - 1
        holes = np.flatnonzero(timed & (numbers > before + 1))
        hit = np.flatnonzero(last >= 0)  # lines
        codes = self.code_of_line[hit]
        self.expected[codes] = numbers[last[hit]] + 1
        # Then follow those behind, as long as they have no hole before them.
        behind = (last[line] >= 0) & ~timed
        follows = behind & (numbers == self.expected[self.code_of_line[line]] + index - last[line] - 1)
        np.add.at(self.expected, self.code_of_line[line[follows]], 1)
        self.changed[codes] = True
        out = timed | follows
        self.left = ~out
        self._emit_timed_out(np.flatnonzero(out), holes, before)

    def _emit_timed_out(self, rows: Numbers, holes: Numbers, before: Numbers) -> None:
        codes = self.code_of_line[self.parked.line]
        gaps = -1 - np.arange(len(holes)) - len(self.gaps)  # a gap is a negative index
        for hole in holes.tolist():
            code, first, last = int(codes[hole]), int(before[hole]) + 1, int(self.numbers_of_parked[hole]) - 1
            self.gaps.append(Missing(self._key(code), first, last, "timeout"))
            self.missed[code] = (*self._missed(code), (first, last))[-REMEMBERED_GAPS:]
        places = np.concatenate([holes * 2, rows * 2 + 1])
        what = np.concatenate([gaps, rows])
        fates = np.concatenate([np.full(len(gaps), _CODE[GAP]), np.full(len(rows), _CODE[RELEASED])])
        order = np.argsort(places)
        self.parts.append(_Part(codes[places[order] // 2], what[order], fates[order]))

    def _missed(self, code: int) -> Ranges:
        """The gaps of a key, as its pattern has them."""
        if code in self.missed:
            return self.missed[code]
        if self.known[code]:
            return ranges_of(self._missed_of_lines, int(self.line_of_key[code]))
        return ((0, int(self.first[code]) - 1),) if self.first[code] else ()

    @cached_property
    def _missed_of_lines(self) -> pa.ListArray:
        return one_chunk(self.lines.column("missed"))

    # What is new, together with what is parked.

    def take(self) -> None:
        """Take new rows in, in the order of their numbers, with those that still wait for them."""
        parked = len(self.left)
        left = np.flatnonzero(self.left)
        rows = np.concatenate([left, np.arange(len(self.new.codes)) + parked])
        codes = np.concatenate([self.code_of_line[self.parked.line[left]], self.new.codes])
        numbers = np.concatenate([self.numbers_of_parked[left], self.new.numbers])
        arrived_us = np.concatenate([self.parked.arrived_us[left], np.full(len(self.new.codes), self.now_us)])
        order, same = in_order(self.rows, rows, codes, numbers, parked, self.new.names.position)
        self.sorted = rows[order]
        self.codes, self.numbers, self.arrived_us = codes[order], numbers[order], arrived_us[order]
        self.is_new = self.sorted >= parked
        self._decide(same)

    def _decide(self, same: Flags) -> None:
        expected = self.expected[self.codes]
        behind: Flags = self.numbers < expected
        turn: Flags = ~behind & ~same  # the first row of each number whose turn has not been
        if isinstance(self.pattern, VersionGate) and self.pattern.mode == "latest_only":
            released = turn
        else:
            # Rows of one number apart, the numbers of a key grow: so they have no hole up to a row if and only if
            # its number is as far from the expected one as the row is from the first.
            counted = np.cumsum(turn)
            starts = np.flatnonzero(np.diff(self.codes, prepend=-1))
            before = np.zeros(len(self.keys), np.int64)
            before[self.codes[starts]] = counted[starts] - turn[starts]
            released = turn & (self.numbers - expected == counted - 1 - before[self.codes])
        waits: Flags = turn & ~released
        fates = np.full(len(self.codes), _WAITS)
        fates[released] = _CODE[RELEASED]
        hard = self._overfull(waits)
        if behind.any():
            hard |= self._behind(behind, fates)
        if same.any():
            self._repeated(same & ~behind, released, fates)
        self._emit(released, waits, fates, hard)

    def _overfull(self, waits: Flags) -> Flags:
        """The keys that have more to park than they may."""
        parked = np.bincount(self.codes[waits], minlength=len(self.keys))
        more = np.bincount(self.codes[waits & self.is_new], minlength=len(self.keys))
        full: Flags = (parked > self.pattern.capacity) & (more > 0)
        self.changed |= more > 0
        if full.any() and self.pattern.when_full == "error":
            code = int(np.flatnonzero(full)[0])
            missing = self.expected[code] + np.count_nonzero(
                (self.codes == code) & ~waits & (self.numbers >= self.expected[code])
            )
            raise ParkingFull(self._key(code), self.pattern.capacity, int(missing), None)
        return full

    def _behind(self, behind: Flags, fates: Numbers) -> Flags:
        """The fates of rows whose turn is over; returns the keys for which it is not so simple."""
        hard: Flags = np.zeros(len(self.keys), np.bool_)
        where = np.flatnonzero(behind)
        codes = self.codes[where]
        if isinstance(self.pattern, VersionGate):
            numbers = self.numbers[where]
            newest = (numbers == self.expected[codes] - 1) & (numbers >= self.pattern.first_version)
            fates[where] = np.where(newest, _CODE[DUPLICATE], _CODE[STALE])
            return hard
        hard[list(self.missed)] = True  # its gaps were others when the batch came
        late = ~self.known[codes] | self._in_missed(where)
        late &= ~hard[codes]
        if late.any():
            if self.pattern.late == "error":
                self._raise(LateEvent, int(where[np.flatnonzero(late)[0]]))
            if self.pattern.late != "drop":
                hard[codes[late]] = True
        fates[where] = np.where(late, _CODE[STALE], self._duplicate(where[~late & ~hard[codes]]))
        return hard

    def _duplicate(self, found: Numbers) -> int:
        """What a row is that was released before, by the policy; `found` are such rows."""
        if isinstance(self.pattern, VersionGate) or self.pattern.duplicates == "drop":
            return _CODE[DUPLICATE]
        if self.pattern.duplicates == "error" and len(found):
            self._raise(DuplicateEvent, int(found[0]))
        return _CODE[QUARANTINED]

    def _raise(self, error: type[LateEvent] | type[DuplicateEvent], row: int) -> None:
        code = int(self.codes[row])
        raise error(self._key(code), int(self.numbers[row]), int(self.expected[code]), None)

    def _in_missed(self, where: Numbers) -> Flags:
        """Whether the number of a row is in one of the gaps that its line remembers."""
        concerned = np.unique(self.line_of_key[self.codes[where]])
        concerned = concerned[concerned >= 0]
        lists = self._missed_of_lines.take(pa.array(concerned))
        ends = as_numbers(lists.flatten())
        found: Flags = np.zeros(len(where), np.bool_)
        if not len(ends):
            return found
        parents = concerned[as_numbers(pc.list_parent_indices(lists))[::2]]
        lines = self.line_of_key[self.codes[where]]
        # Both in one scale, in which a range is found by the greatest beginning that is not greater. Keys that
        # are new have no line, and go before all others.
        pairs = joined(np.concatenate([parents, lines]) + 1, np.concatenate([ends[::2], self.numbers[where]]))
        begins, wanted = pairs[: len(parents)], pairs[len(parents) :]
        order = np.argsort(begins)
        place = np.searchsorted(begins[order], wanted, side="right") - 1
        candidate = order[np.maximum(place, 0)]
        within: Flags = (place >= 0) & (parents[candidate] == lines) & (self.numbers[where] <= ends[1::2][candidate])
        return within

    def _repeated(self, repeated: Flags, released: Flags, fates: Numbers) -> None:
        """The fates of rows with the number of the row before."""
        where = np.flatnonzero(repeated)
        firsts = np.flatnonzero(~repeated)
        first = firsts[np.searchsorted(firsts, where) - 1]
        out = released[first]
        # A second row of a number that waits is dropped, whatever the policy: it may be the same message again.
        fates[where] = _CODE[DUPLICATE]
        if isinstance(self.pattern, VersionGate):
            # Of a version, that came again, it can be told only if no other was released with it.
            after = np.searchsorted(firsts, where)
            following = firsts[np.minimum(after, len(firsts) - 1)]
            overtaken = (
                (after < len(firsts))
                & ~self.is_new[following]
                & (self.codes[following] == self.codes[where])
                & (self.numbers[following] == self.numbers[where] + 1)
            )
            fates[where[out & overtaken]] = _CODE[STALE]
        elif out.any():
            fates[where[out]] = self._duplicate(where[out])

    # What comes out.

    def _emit(self, released: Flags, waits: Flags, fates: Numbers, hard: Flags) -> None:
        easy = ~hard[self.codes]
        emitted = np.flatnonzero((fates != _WAITS) & easy)
        self.parts.append(_Part(self.codes[emitted], self.sorted[emitted], fates[emitted]))
        gone = np.bincount(self.codes[released & easy], minlength=len(self.keys))
        self.changed |= gone > 0
        if isinstance(self.pattern, VersionGate) and self.pattern.mode == "latest_only":
            np.maximum.at(self.expected, self.codes[released], self.numbers[released] + 1)
        else:
            self.expected += gone
        stay = np.flatnonzero(waits & easy)
        self.waiting.append(_Waiting(self.codes[stay], self.sorted[stay], self.arrived_us[stay]))
        for code in np.flatnonzero(hard).tolist():
            self._through_pattern(code)

    def _through_pattern(self, code: int) -> None:
        """The rows of one key, one by one."""
        start, end = np.searchsorted(self.codes, [code, code + 1])
        key = self._key(code)
        columns = (self.numbers, self.arrived_us, self.sorted, self.is_new)
        rows = list(zip(*(column[start:end].tolist() for column in columns), strict=True))
        parked = tuple((number, arrived_us, (key, number, row)) for number, arrived_us, row, new in rows if not new)
        events = [(key, number, row) for number, _, row, new in rows if new]
        before = {key: Line(int(self.expected[code]), parked, None, self._missed(code))} if self.known[code] else {}
        batch = self.pattern.on_messages(before, events, self.now_us)
        self.parts.append(self._outcomes(code, batch.emit, {number for number, _, _ in parked}))
        after = batch.states.get(key) or before[key]
        self.expected[code] = after.expected
        self.missed[code] = after.missed
        self.changed[code] = True
        waiting = np.array([(code, event[2], arrived_us) for _, arrived_us, event in after.parked], np.int64)
        self.waiting.append(_Waiting(*waiting.reshape(-1, 3).T))

    def _outcomes(self, code: int, emit: list[Outcome], waiting: set[int]) -> _Part:
        """What the pattern told. `waiting` are the numbers that were parked before."""
        told: list[tuple[int, int]] = []
        for fate, what in emit:
            if fate is GAP:
                self.gaps.append(what)
                told.append((-len(self.gaps), _CODE[GAP]))
            elif fate is not PARKED:
                told.append((what[2], _CODE[fate]))
            elif what[1] in waiting:
                told.append((what[2], _CODE[DUPLICATE]))
            else:
                waiting.add(what[1])
        rows, fates = np.array(told, np.int64).reshape(-1, 2).T
        return _Part(np.full(len(told), code), rows, fates)

    def settled(self) -> Settled:
        """What it came to."""
        codes = np.concatenate([part.codes for part in self.parts])
        rows = np.concatenate([part.rows for part in self.parts])
        fates = np.concatenate([part.fates for part in self.parts])
        if len(self.parts) > 1:
            order = np.argsort(codes, kind="stable")
            rows, fates = rows[order], fates[order]
        return Settled(self.rows, np.where(rows < 0, len(self.rows) - 1 - rows, rows), fates, self.gaps, self._lines())

    def _lines(self) -> pa.Table:
        """The lines that changed, by hash and key."""
        codes = np.flatnonzero(self.changed)
        codes = codes[by_hash(self.keys.take(pa.array(codes)), self.hashes[codes])]
        place = np.full(len(self.keys), -1, np.int64)
        place[codes] = np.arange(len(codes))
        waiting = [np.concatenate(columns) for columns in zip(*self.waiting, strict=True)]
        waiting = [column[place[waiting[0]] >= 0] for column in waiting]
        by_line = np.argsort(place[waiting[0]], kind="stable")
        of_line, rows, arrived_us = place[waiting[0]][by_line], waiting[1][by_line], waiting[2][by_line]
        counts = np.bincount(of_line, minlength=len(codes))
        since_us = np.full(len(codes), np.iinfo(np.int64).max)
        np.minimum.at(since_us, of_line, arrived_us)
        return pa.Table.from_arrays(
            [
                pa.array(self.hashes[codes]),
                self.keys.take(pa.array(codes)),
                pa.array(since_us, mask=counts == 0),
                pa.array(self.expected[codes]),
                self._missed_of(codes),
                parked_lists(self.rows.take(pa.array(rows)), arrived_us, counts),
            ],
            schema=schema(self.new.table.schema),
        )

    def _missed_of(self, codes: Numbers) -> pa.ListArray:
        """The gaps of keys: those of their lines, or of their beginning, unless they changed."""
        new = codes[~self.known[codes]]
        changed = np.array([code for code in self.missed if self.changed[code]], np.int64)
        source = self.line_of_key.copy()
        source[new] = np.arange(len(new)) + len(self.lines)
        source[changed] = np.arange(len(changed)) + len(self.lines) + len(new)
        lists = [
            self._missed_of_lines,
            before_the_beginning(self.first[new]),
            range_lists(self.missed[code] for code in changed.tolist()),
        ]
        return pa.concat_arrays(lists).take(pa.array(source[codes]))
