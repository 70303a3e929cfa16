"""Histories in batches, what a pattern makes of them row by row, and what a kernel makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inorder.patterns import Line
from inorder.patterns.step import APPLIED, DUPLICATE, GAP, PARKED, fold_timed
from inorder.spark import lines as lines_of
from inorder.spark.kernels import FATES, Names, Rows, Sequencing, settle

Row = tuple[str, int, int]  # key, number, position
History = Sequence[tuple[int, Sequence[Row]]]  # batches, each with its time
Told = list[tuple[str, Any]]

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), ("position", pa.int64())])
NAMES = Names("key", "number", "position")


def expected(pattern: Sequencing, history: History) -> tuple[dict[str, tuple[Told, Told]], dict[str, Line]]:
    """By key: what became of the rows, and how its line ended. A batch comes in the order of its numbers."""
    arrivals = [(now_us, row) for now_us, batch in history for row in sorted(batch, key=lambda row: row[1:])]
    folded = fold_timed(pattern, arrivals, until_us=history[-1][0])
    told: dict[str, Told] = {}
    waiting: dict[str, set[int]] = {}
    for _, fate, what in folded.emit:
        waits = waiting.setdefault(what[0], set())
        if fate is PARKED and what[1] not in waits:
            waits.add(what[1])  # it is told of when it is settled
            continue
        if fate is not GAP:
            waits.discard(what[1]) if fate is not PARKED else None
        told.setdefault(what[0], []).append((DUPLICATE if fate is PARKED else fate, tuple(what)))
    return comparable(told), folded.states


def found(
    pattern: Sequencing, history: History, only_needed: bool = True
) -> tuple[dict[str, tuple[Told, Told]], dict[str, Line]]:
    """The same by the kernel, whose state is kept as a store would."""
    state = lines_of.empty(SCHEMA)
    told: dict[str, Told] = {}
    for now_us, batch in history:
        rows = Rows.of(table(reversed(batch)), NAMES)
        known = pc.is_in(state.column("key"), value_set=rows.keys)
        wanted = pc.or_(known, pc.is_valid(state.column("since_us"))) if only_needed else None
        settled = settle(pattern, rows, (state.filter(wanted) if only_needed else state).combine_chunks(), now_us)
        values = settled.rows.to_pylist()
        for index, fate in zip(settled.order.tolist(), settled.fates.tolist(), strict=True):
            what: Any = settled.gaps[index - len(values)] if index >= len(values) else tuple(values[index].values())
            told.setdefault(what[0], []).append((FATES[fate], tuple(what)))
        kept = pc.invert(pc.is_in(state.column("key"), value_set=settled.lines.column("key").combine_chunks()))
        state = pa.concat_tables([state.filter(kept), settled.lines]).combine_chunks()
    return comparable(told), {line["key"]: as_line(pattern, line) for line in state.to_pylist()}


def comparable(told: dict[str, Told]) -> dict[str, tuple[Told, Told]]:
    """By key: what is applied, and gaps, in order; and what is not applied, whose order matters to nobody."""
    return {
        key: (
            [one for one in outcomes if one[0] in (*APPLIED, GAP)],
            sorted(one for one in outcomes if one[0] not in (*APPLIED, GAP)),
        )
        for key, outcomes in told.items()
    }


def table(rows: Any) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def as_line(pattern: Sequencing, line: dict[str, Any]) -> Line:
    parked = tuple((one["row"]["number"], one["arrived_us"], tuple(one["row"].values())) for one in line["parked"])
    timeout, ends = pattern.gap_timeout_seconds, line["missed"]
    assert line["since_us"] == min((arrived_us for _, arrived_us, _ in parked), default=None)
    wake_at_us = None if timeout is None or not parked else line["since_us"] + round(timeout * 1_000_000)
    return Line(line["expected"], parked, wake_at_us, tuple(zip(ends[::2], ends[1::2], strict=True)))
