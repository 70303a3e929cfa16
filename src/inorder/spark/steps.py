"""What a bucket does in a batch, for each operator that keeps state: which rows it reads, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.clock import MICROSECONDS
from inorder.options import MAX_ORDERING_KEY_BYTES, MAX_WHOLE
from inorder.patterns.deduplication import DeduplicateIds, DeduplicateSequences
from inorder.patterns.sequencing import Resequencer
from inorder.patterns.step import RELEASED, Event
from inorder.patterns.versioning import VersionGate
from inorder.spark import lines as lines_of
from inorder.spark.counts import Counts, counts_of
from inorder.spark.hashing import hashes
from inorder.spark.kernels import FATES, Names, Rows, Sequencing, Settled, settle
from inorder.spark.lines import HASH, KEY, SINCE, as_numbers, by_hash, one_chunk
from inorder.spark.outcomes import told
from inorder.spark.sorting import Flags, in_order, sortable
from inorder.spark.winning import Winners

Deduplicating: TypeAlias = DeduplicateIds | DeduplicateSequences

PATTERNS: Final[dict[str, type[Any]]] = {
    "resequence": Resequencer,
    "apply_versions": VersionGate,
    "deduplicate": DeduplicateIds,
    "deduplicate by sequence": DeduplicateSequences,
    "latest": Winners,
    "merge_fields": Winners,
}


class Taken(NamedTuple):
    """What comes out of a batch, the lines that changed, and what there is to count."""

    outcome: pa.Table
    lines: pa.Table
    counts: Counts


class Step(Protocol):
    """An operator, as a bucket sees it."""

    @property
    def needs(self) -> str:
        """What a row must have, in words."""

    def readable(self, rows: pa.Table) -> Flags:
        """Which rows have it."""

    def lines(self, rows: pa.Schema) -> pa.Table:
        """A table of no lines, for rows of this schema."""

    def due_us(self, now_us: int) -> int | None:
        """Lines in which something waits since then are to be looked at; None: no line is, unless its key comes."""

    def take(self, rows: Rows, lines: pa.Table, now_us: int) -> Taken:
        """What becomes of rows that are readable."""


def step_of(operator: str, options: dict[str, Any], names: Names, keep_dropped: bool) -> Step:
    """The step of an operator, by its name."""
    pattern = PATTERNS[operator](**options)
    if isinstance(pattern, Winners):
        return WinningStep(pattern)
    if isinstance(pattern, DeduplicateIds | DeduplicateSequences):
        return DeduplicatingStep(pattern, names, keep_dropped)
    return SequencingStep(pattern, names, keep_dropped)


@dataclass(frozen=True, slots=True)
class SequencingStep:
    """By the kernel."""

    pattern: Sequencing
    names: Names
    keep_dropped: bool

    @property
    def needs(self) -> str:
        return f"a key of up to {MAX_ORDERING_KEY_BYTES} bytes and a number from 0 on"

    def readable(self, rows: pa.Table) -> Flags:
        return has_key(rows, self.names.key) & has_number(rows, self.names.number)

    def lines(self, rows: pa.Schema) -> pa.Table:
        return lines_of.empty(rows)

    def due_us(self, now_us: int) -> int | None:
        timeout = self.pattern.gap_timeout_seconds
        return None if timeout is None else now_us - round(timeout * MICROSECONDS)

    def take(self, rows: Rows, lines: pa.Table, now_us: int) -> Taken:
        settled = settle(self.pattern, rows, lines, now_us)
        return _taken(settled, rows, self.keep_dropped)


@dataclass(frozen=True, slots=True)
class DeduplicatingStep:
    """By the pattern itself, row by row, which is faster than rows come through a shuffle.

    A line has the state of its key as the pattern writes it, and until when that is needed.
    """

    pattern: Deduplicating
    names: Names
    keep_dropped: bool

    @property
    def needs(self) -> str:
        rest = "a producer and a number from 0 on" if self.names.producer is not None else "an id"
        return f"a key of up to {MAX_ORDERING_KEY_BYTES} bytes and {rest}"

    def readable(self, rows: pa.Table) -> Flags:
        if self.names.producer is None:
            return has_key(rows, self.names.key) & has_text(rows, self.names.number)
        has_both = has_text(rows, self.names.producer) & has_number(rows, self.names.number)
        return has_key(rows, self.names.key) & has_both

    def lines(self, rows: pa.Schema) -> pa.Table:
        schema = pa.schema([HASH, KEY, SINCE, pa.field("forget_us", pa.int64()), pa.field("state", pa.binary())])
        return schema.empty_table()

    def due_us(self, now_us: int) -> int | None:
        return None

    def take(self, rows: Rows, lines: pa.Table, now_us: int) -> Taken:
        pattern: Any = self.pattern  # of either kind: states and events are its own business
        order = self._arrival(rows)
        names = rows.keys.to_pylist()
        keys = [names[code] for code in rows.codes[order].tolist()]
        ids = one_chunk(rows.table.column(self.names.number)).take(pa.array(order))
        events: list[Event]
        if self.names.producer is None:
            events = list(zip(keys, ids.cast(pa.string()).to_pylist(), order.tolist(), strict=True))
        else:
            producers = one_chunk(rows.table.column(self.names.producer)).take(pa.array(order)).to_pylist()
            events = list(zip(keys, producers, ids.cast(pa.int64()).to_pylist(), order.tolist(), strict=True))
        states: dict[str, Any] = {
            key: pattern.load(state)
            for key, state in zip(lines.column("key").to_pylist(), lines.column("state").to_pylist(), strict=True)
        }
        batch = pattern.on_messages(states, events, now_us)
        found = np.array([event[-1] for _, event in batch.emit], np.int64)
        fates = np.array([FATES.index(fate) for fate, _ in batch.emit], np.int64)
        changed = {key: (batch.wakes[key], pattern.dump(state)) for key, state in batch.states.items() if state}
        settled = Settled(rows.table, found, fates, [], self._as_lines(changed))
        return _taken(settled, rows, self.keep_dropped)

    def _arrival(self, rows: Rows) -> Any:
        """The rows of each key by position, or else by id or number, and then by content."""
        column = self.names.position if self.names.position is not None else self.names.number
        ranks = pc.rank(sortable(rows.table.column(column)), sort_keys="ascending", tiebreaker="dense")
        indices = np.arange(len(rows.codes))
        return in_order(rows.table, indices, rows.codes, as_numbers(ranks), 0, None)[0]

    def _as_lines(self, changed: dict[str, tuple[int, bytes]]) -> pa.Table:
        keys = pa.array(changed, pa.string())
        hashed = hashes(keys)
        columns = [
            pa.array(hashed),
            keys,
            pa.nulls(len(changed), pa.int64()),
            pa.array([forget_us for forget_us, _ in changed.values()], pa.int64()),
            pa.array([state for _, state in changed.values()], pa.binary()),
        ]
        table = pa.Table.from_arrays(columns, schema=self.lines(pa.schema([])).schema)
        return table.take(pa.array(by_hash(keys, hashed)))


@dataclass(frozen=True, slots=True)
class WinningStep:
    """By the kernel. What cannot be read Spark has left out, or complained of."""

    pattern: Winners

    @property
    def needs(self) -> str:
        return f"a key of up to {MAX_ORDERING_KEY_BYTES} bytes and a time from 0 on"

    def readable(self, rows: pa.Table) -> Flags:
        return np.ones(len(rows), np.bool_)

    def lines(self, rows: pa.Schema) -> pa.Table:
        return self.pattern.lines(rows)

    def due_us(self, now_us: int) -> int | None:
        return None

    def take(self, rows: Rows, lines: pa.Table, now_us: int) -> Taken:
        changed = self.pattern.settle(rows, lines)
        return Taken(self.pattern.told(changed, rows), changed, Counts({RELEASED: len(changed)}, 0))


def _taken(settled: Settled, rows: Rows, keep_dropped: bool) -> Taken:
    return Taken(told(settled, rows.names, keep_dropped), settled.lines, counts_of(settled, len(rows.table)))


def has_key(rows: pa.Table, name: str) -> Flags:
    """Which rows have a key as patterns want it."""
    size = pc.binary_length(one_chunk(rows.column(name)).cast(pa.string()))
    return _is_true(pc.and_(pc.greater(size, 0), pc.less_equal(size, MAX_ORDERING_KEY_BYTES)))


def has_text(rows: pa.Table, name: str) -> Flags:
    """Which rows have a text that is not empty."""
    return _is_true(pc.greater(pc.binary_length(one_chunk(rows.column(name)).cast(pa.string())), 0))


def has_number(rows: pa.Table, name: str) -> Flags:
    """Which rows have a number that is not negative, and that another one can follow."""
    number = one_chunk(rows.column(name)).cast(pa.int64())
    return _is_true(pc.and_(pc.greater_equal(number, 0), pc.less(number, MAX_WHOLE)))


def _is_true(flags: pa.BooleanArray) -> Flags:
    found: Flags = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
    return found
