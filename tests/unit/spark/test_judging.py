"""The kernel of the audit against a slow reading, however rows are cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.patterns import SlotTable
from inorder.spark.examining import TOTALS, Examination
from inorder.spark.judging import Judge

from .readings import Event, Reading

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.int64()),
        ("position_0", pa.string()),
        ("position_1", pa.int64()),
        ("event_us", pa.int64()),
        ("arrival_us", pa.int64()),
    ]
)
BY_TIME = pa.schema([field for field in SCHEMA if field.name != "event_us"])
POSITIONS = ["position_0", "position_1"]

Log = dict[str, list[Event]]


def examination(piece: int = 3, *, by_time: bool = False, **options: Any) -> Examination:
    told = {"allowed": (), "top": 5, "partitions": 4, **options}
    return Examination(POSITIONS, by_time, piece=piece, **told)


def batches(rows: list[dict[str, Any]], size: int, schema: pa.Schema = SCHEMA) -> Iterator[pa.RecordBatch]:
    """As Spark hands them over: by key and position."""
    yield from pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=size)


def rows_of(log: Log, *, by_time: bool = False) -> list[dict[str, Any]]:
    rows = []
    for key in sorted(log):
        for at, (number, arrived_us, event_us) in enumerate(log[key]):
            row = {"key": key, "value": event_us if by_time else number, "position_0": "f", "position_1": at}
            rows.append(row | {"event_us": event_us, "arrival_us": arrived_us})
    return rows


def keys_of(found: Iterator[pa.RecordBatch]) -> dict[str, dict[str, Any]]:
    rows = [row for batch in found for row in batch.to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row for row in rows}


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Few numbers, so that many come twice, or never, or late; a clock for each key that never runs backwards."""
    log = {}
    for key in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
        clock_us, events = 0, []
        for number in draw(st.lists(st.integers(0, 12), min_size=1, max_size=14)):
            clock_us += draw(st.integers(0, 3))
            events.append((number, clock_us, draw(st.integers(-6, 6))))
        log[key] = events
    return log


@given(logs(), st.integers(1, 9), st.booleans())
def test_every_key_is_read_as_a_slow_reading_has_it(log: Log, piece: int, by_time: bool) -> None:
    rows = rows_of(log, by_time=by_time)
    told = examination(piece, by_time=by_time)
    found = keys_of(told.keys(batches(rows, 1, BY_TIME if by_time else SCHEMA)))
    assert set(found) == set(log)
    for key, events in log.items():
        row, reading = found[key], Reading(events, "time" if by_time else "sequence")
        expected = {
            "events": len(events),
            "reordered": len(reading.late),
            "gaps": len(reading.gaps),
            "missing": sum(last - first + 1 for first, last, _ in reading.gaps),
            "duplicates": len(reading.duplicates),
            "buffer": reading.buffer,
            "farthest": max((late - by for late, by in reading.late), default=None),
            "wait_us": reading.wait_us if reading.late else None,
            "delay_us": reading.delay_us,
            "untimed": 0,
        }
        assert {name: row[name] for name in expected} == expected


def violations_of(key: str, reading: Reading) -> list[tuple[Any, ...]]:
    """Position, key, kind, value, until, the position of who overtook it, places, and for how long."""
    events = reading.events
    values = [event[0] if reading.by == "sequence" else event[2] for event in events]
    late = [
        (at, key, "reordered", values[at], None, by, at - by, events[at][1] - events[by][1]) for at, by in reading.late
    ]
    twice = [(at, key, "duplicate", values[at], None, None, None, None) for at in reading.duplicates]
    gaps = [(at, key, "gap", first, last, None, None, None) for first, last, at in reading.gaps]
    return [*late, *twice, *gaps]


def told_of(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("position_1", "key", "kind", "value", "until", "other_position_1", "places", "time_us")
    return tuple(row[name] for name in names)


@given(logs(), st.integers(1, 9), st.booleans())
def test_every_violation_is_told_and_the_first_ones_with_the_totals(log: Log, piece: int, by_time: bool) -> None:
    rows, schema = rows_of(log, by_time=by_time), BY_TIME if by_time else SCHEMA
    told = examination(piece, by_time=by_time)
    readings = {key: Reading(events, "time" if by_time else "sequence") for key, events in log.items()}
    expected = sorted((one for key in log for one in violations_of(key, readings[key])), key=lambda one: one[:4])
    found = [told_of(row) for batch in told.violations(batches(rows, 2, schema)) for row in batch.to_pylist()]
    assert sorted(found, key=lambda one: one[:4]) == expected
    *first, last = [row for batch in told.totals(batches(rows, 2, schema)) for row in batch.to_pylist()]
    assert sorted(map(told_of, first), key=lambda one: one[:4]) == expected[:5]
    totals = json.loads(last[TOTALS])
    counts = [len(events) for events in log.values()]
    assert totals["sums"]["events"] == sum(counts)
    assert totals["sums"]["keys"] == len(log)
    assert totals["sums"]["broken_keys"] == sum(bool(violations_of(key, readings[key])) for key in log)
    assert totals["maxima"]["buffer"] == max(reading.buffer for reading in readings.values())
    assert sum(totals["lateness"]) == sum(totals["waits"]) == sum(len(reading.late) for reading in readings.values())
    assert [key["key"] for key in totals["hot_keys"]] == sorted(log, key=lambda key: (-len(log[key]), key))
    even, loads = SlotTable.even(4), dict.fromkeys("0123", 0)
    for key, events in log.items():
        loads[str(even.partition_of(key))] += len(events)
    assert totals["loads"] == loads


def row(key: str | None, value: int | None, at: int | None, **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, "position_0": "f", "position_1": at, **more}


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_what_has_no_key_or_no_place_is_counted_in_whatever_piece_it_comes(piece: int) -> None:
    rows = [row(None, 1, 5), row(None, 2, 6), row("a", None, None), row("a", 2, 1), row("a", None, 2), row("a", 1, 3)]
    rows += [row("b", None, 1)]
    told = examination(piece)
    found = keys_of(told.keys(batches(rows, 1)))
    counts = {key: (one["events"], one["unplaced"], one["reordered"], one["gaps"]) for key, one in found.items()}
    assert counts == {"a": (4, 2, 1, 0), "b": (1, 1, 0, 0)}
    *first, last = [row for batch in told.totals(batches(rows, 1)) for row in batch.to_pylist()]
    assert json.loads(last[TOTALS])["sums"]["unkeyed"] == 2
    assert sorted((one["key"], one["kind"], one["position_1"] or -1) for one in first) == [
        ("a", "reordered", 3),
        ("a", "unplaced", -1),
        ("a", "unplaced", 2),
        ("b", "unplaced", 1),
    ]


def test_a_task_with_no_rows_has_nothing_to_say_and_one_without_keys_counts() -> None:
    told = examination()
    assert [*told.totals(iter(()))] == [*told.keys(iter(()))] == [*told.violations(iter(()))] == []
    [batch] = told.totals(batches([row(None, 1, 1)] * 5, 2))
    assert json.loads(batch.to_pylist()[0][TOTALS])["sums"]["unkeyed"] == 5
    assert keys_of(told.keys(batches([row(None, 1, 1)] * 5, 2))) == {}


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_events_at_one_position_are_counted_wherever_they_are_cut(piece: int) -> None:
    rows = [row("a", 1, 1), row("a", 2, 1), row("a", None, 1), row("a", 3, 1), row("a", 4, 2), row("b", 5, 2)]
    *_, last = [one for batch in examination(piece).totals(batches(rows, 1)) for one in batch.to_pylist()]
    assert json.loads(last[TOTALS])["sums"]["tied"] == 2


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_times_that_nobody_noted_are_no_times(piece: int) -> None:
    """A wait counts from a known time on, and a clock that runs backwards stands still."""
    timed = [(5, None), (4, 70), (7, 60), (6, 90), (3, None)]
    rows = [row("a", value, at, arrival_us=us) for at, (value, us) in enumerate(timed)]
    rows += [row("b", value, at, arrival_us=None) for at, value in enumerate([2, 1])]
    told = examination(piece)
    found = keys_of(told.keys(batches(rows, 1)))
    assert {key: (one["untimed"], one["reordered"], one["wait_us"]) for key, one in found.items()} == {
        "a": (2, 3, 20),
        "b": (2, 1, None),
    }
    waits = {
        (one["key"], one["value"]): one["time_us"]
        for batch in told.violations(batches(rows, 1))
        for one in batch.to_pylist()
        if one["kind"] == "reordered"
    }
    assert waits == {("a", 4): None, ("a", 6): 20, ("a", 3): None, ("b", 1): None}


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_the_largest_numbers_and_the_widest_gaps_are_told_exactly(piece: int) -> None:
    most = 2**63 - 1
    rows = [row(key, value, at) for key in "abc" for at, value in enumerate([0, most, most - 2, most])]
    told = examination(piece)
    [*_, last] = [one for batch in told.totals(batches(rows, 1)) for one in batch.to_pylist()]
    totals = json.loads(last[TOTALS])["sums"]
    assert (totals["gaps"], totals["missing"], totals["duplicates"]) == (6, 3 * (most - 3 + 1), 3)
    gaps = [
        (one["value"], one["until"], one["position_1"])
        for batch in told.violations(batches(rows, 1))
        for one in batch.to_pylist()
        if one["kind"] == "gap" and one["key"] == "b"
    ]
    assert sorted(gaps) == [(1, most - 3, 1), (most - 1, most - 1, 1)]


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_a_key_in_several_partitions_is_split_wherever_it_is_cut(piece: int) -> None:
    schema = SCHEMA.append(pa.field("partition", pa.string()))
    parts = {"a": ["3", "3", "3"], "b": ["3", None, "1"], "c": [None, None], "d": ["0", "1", "0"], "e": ["9", None]}
    rows = [row(key, at, at, partition=name) for key, names in parts.items() for at, name in enumerate(names)]
    told = examination(piece)
    found = keys_of(told.keys(batches(rows, 1, schema)))
    assert {key for key, one in found.items() if one["is_split"]} == {"b", "d"}
    [batch] = told.totals(batches(rows, 1, schema))
    totals = json.loads(batch.to_pylist()[-1][TOTALS])
    assert (totals["sums"]["split_keys"], totals["loads"]) == (2, {"3": 4, "1": 2, "0": 2, "9": 1, "None": 4})


def judged_in_pieces(judge: Judge, pieces: Iterable[list[int]]) -> int:
    """Events of one key; returns how many bytes are kept of them in the end."""
    at = 0
    for numbers in pieces:
        judge.judged(pa.Table.from_pylist([row("a", number, at := at + 1) for number in numbers], SCHEMA))
    assert judge.past is not None
    return judge.past.held_bytes


def test_a_key_without_gaps_takes_no_more_memory_however_long_it_is() -> None:
    """Only its ranges are kept, and where all numbers came there is one."""
    pieces = [[number ^ 1 for number in range(start, start + 100)] for start in range(0, 3_000, 100)]
    assert judged_in_pieces(Judge(POSITIONS, by_time=False), pieces) < 1_000


@pytest.mark.parametrize("by_time", [False, True])
def test_a_key_of_gaps_takes_memory_for_each_once_whatever_comes_late(by_time: bool) -> None:
    """In every piece something comes that belongs near the beginning, so all behind it matters again."""
    pieces = [[2 * start + 1, *range(1_000 * start + 1_000, 1_000 * start + 2_000, 2)] for start in range(50)]
    count = sum(map(len, pieces))
    assert judged_in_pieces(Judge(POSITIONS, by_time=by_time), pieces) < 300 * count
