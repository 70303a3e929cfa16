"""The audit says what a slow and obvious reading of the same log says, and what it advises repairs the log."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from inorder.clock import MICROSECONDS
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.patterns import Resequencer, SlotTable, fold_timed
from inorder.spark import audit
from inorder.spark.auditing import Audit
from inorder.spark.findings import PLACES, TIMES_US
from inorder.spark.sinks.files import ParquetFolder

from ..unit.spark.readings import Event, Reading

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "pos long, k string, seq long, arrived timestamp, happened timestamp, began timestamp, ended timestamp"


def repairs(events: list[Event], capacity: int, timeout_us: int) -> bool:
    """Whether a resequencer with these settings releases all events in order, and gives up only what never comes."""
    numbers = [number for number, _, _ in events]
    timeout = timeout_us / MICROSECONDS
    pattern = Resequencer(capacity=capacity, gap_timeout_seconds=timeout, when_full="gap")
    arrivals = [(arrived_us, ("k", number)) for number, arrived_us, _ in events]
    start = {"k": pattern.start(min(numbers))}
    done = fold_timed(pattern, arrivals, states=start, until_us=events[-1][1] + timeout_us)
    return [event[1] for event in done.of("released")] == sorted({*numbers}) and not done.of("stale", "late", "retry")


def check_advice(events: list[Event], buffer: int, wait_us: int) -> None:
    capacity, timeout_us = max(1, buffer), wait_us + 1
    assert repairs(events, capacity, timeout_us)
    if buffer > 1:
        assert not repairs(events, buffer - 1, timeout_us)
    if wait_us:
        assert not repairs(events, capacity, wait_us)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Numbers in some disorder, some missing, some twice, with a clock that never runs backwards."""
    numbers = draw(st.lists(st.integers(3, 20), min_size=1, max_size=25))
    clock_us, events = 0, []
    for number in numbers:
        clock_us += draw(st.integers(0, 5))
        events.append((number, clock_us, draw(st.integers(0, 30))))
    return events


@given(histories())
def test_the_advice_repairs_a_log_and_less_of_it_does_not(events: list[Event]) -> None:
    reading = Reading(events)
    check_advice(events, reading.buffer, reading.wait_us)


def generated(seed: int) -> list[Event]:
    random = Random(seed)
    count, far = random.choice([1, 3, 12, 40]), random.choice([0, 1, 3, 15])
    numbers = sorted(range(5, 5 + count), key=lambda number: number + random.randint(0, far))
    numbers = [number for number in numbers if random.random() < random.choice([0.9, 1])] or [7]
    for _ in range(random.choice([0, 0, 3])):
        numbers.insert(random.randrange(len(numbers) + 1), random.choice(numbers))
    clock_us, events = random.choice([0, 10**9]), []
    for number in numbers:
        clock_us += random.choice([0, 1, 700, 40_000, 2_000_000])
        events.append((number, clock_us, clock_us - random.randint(0, 1_000_000)))
    return events


HISTORIES = {f"key-{seed}": generated(seed) for seed in range(400)}


def moment(time_us: int | None) -> datetime | None:
    return None if time_us is None else EPOCH + timedelta(microseconds=time_us)


def interleaved(keys: dict[str, list[Event]]) -> list[tuple[str, Event]]:
    """One log of many keys: its index is the position."""
    random = Random(0)
    turns = [key for key, events in keys.items() for _ in events]
    random.shuffle(turns)
    left = {key: iter(events) for key, events in keys.items()}
    return [(key, next(left[key])) for key in turns]


LOG = interleaved(HISTORIES)
POSITIONS = {key: [at for at, (of, _) in enumerate(LOG) if of == key] for key in HISTORIES}


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Rows of position, key, number, and up to four times; shuffled, as tables are."""
    full = [(*row, *[None] * (7 - len(row))) for row in rows]
    Random(1).shuffle(full)
    timed = [(*row[:3], *(moment(time_us) for time_us in row[3:])) for row in full]
    return spark.createDataFrame(timed, SCHEMA)


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> DataFrame:
    return table(spark, [(at, key, *event) for at, (key, event) in enumerate(LOG)]).cache()


@pytest.fixture(scope="module")
def audited(log: DataFrame) -> Audit:
    return audit(log, key="k", sequence="seq", time="happened", position="pos", arrival_time="arrived", top=25)


@pytest.fixture(scope="module")
def by_time(log: DataFrame) -> Audit:
    return audit(log, key="k", time="happened", position="pos", top=25)


def bars(values: list[int], starts: tuple[int, ...]) -> dict[int, int]:
    return Counter(starts[bisect_right(starts, value) - 1] for value in values)


def test_every_key_is_read_as_a_slow_reading_has_it(audited: Audit) -> None:
    found = {row["key"]: row for row in audited.keys.collect()}
    assert set(found) == set(HISTORIES)
    for key, events in HISTORIES.items():
        row, reading = found[key], Reading(events)
        assert (row["events"], row["reordered"], row["duplicates"], row["gaps"], row["missing"] or 0) == (
            len(events),
            len(reading.late),
            len(reading.duplicates),
            len(reading.gaps),
            sum(last - first + 1 for first, last, _ in reading.gaps),
        )
        assert (row["buffer"], row["wait_us"] or 0, row["delay_us"]) == (
            reading.buffer,
            reading.wait_us,
            reading.delay_us,
        )
        assert row["farthest"] == max((late - by for late, by in reading.late), default=None)


def test_the_advice_for_each_key_repairs_it(audited: Audit) -> None:
    for row in audited.keys.collect():
        check_advice(HISTORIES[row["key"]], row["buffer"], row["wait_us"] or 0)


def test_the_advice_for_the_log_repairs_every_key(audited: Audit) -> None:
    buffer, timeout_us = audited.findings.buffer, audited.findings.timeout_us
    assert timeout_us is not None
    assert all(repairs(events, buffer, timeout_us) for events in HISTORIES.values())
    assert not all(repairs(events, buffer - 1, timeout_us) for events in HISTORIES.values())
    assert not all(repairs(events, buffer, timeout_us - 1) for events in HISTORIES.values())


def test_the_findings_are_those_of_all_keys(audited: Audit) -> None:
    found, readings = audited.findings, [Reading(events) for events in HISTORIES.values()]
    assert not found.in_order
    assert found.keys == len(HISTORIES)
    assert found.events == len(LOG)
    assert found.broken_keys == sum(bool(one.late or one.gaps or one.duplicates) for one in readings)
    assert found.reordered == sum(len(one.late) for one in readings)
    assert found.gaps == sum(len(one.gaps) for one in readings)
    assert found.duplicates == sum(len(one.duplicates) for one in readings)
    assert found.farthest == max(late - by for one in readings for late, by in one.late)
    assert found.buffer == max(one.buffer for one in readings)
    assert found.longest_wait_us == max(one.wait_us for one in readings)
    assert found.watermark_us == max(one.delay_us for one in readings)
    places = [late - by for one in readings for late, by in one.late]
    assert {bar.at_least: bar.count for bar in found.lateness if bar.count} == bars(places, PLACES)
    waits = [one.events[late][1] - one.events[by][1] for one in readings for late, by in one.late]
    assert found.waits is not None
    assert {bar.at_least: bar.count for bar in found.waits if bar.count} == bars(waits, TIMES_US)


def test_the_hottest_keys_and_the_load_of_partitions_are_told(audited: Audit) -> None:
    loads = sorted(((-len(events), key) for key, events in HISTORIES.items()))
    assert [(key.key, key.events) for key in audited.findings.hot_keys] == [(key, -load) for load, key in loads[:25]]
    buffers = {key: Reading(events).buffer for key, events in HISTORIES.items()}
    shown = (*audited.findings.hot_keys, *audited.findings.worst_keys)
    assert all(key.buffer == buffers[key.key] for key in shown)
    assert any(key.duplicates and key.buffer for key in shown)
    even = SlotTable.even(8)
    expected = Counter(even.partition_of(key) for key, _ in LOG)
    assert {load.name: load.events for load in audited.findings.partitions} == {
        str(number): load for number, load in expected.items()
    }


def test_a_buffer_holds_each_number_once(spark: SparkSession) -> None:
    numbers = {
        "shown": [*range(1, 21), 20],
        "largest": [6, 5, 4, 3, 2, 1, 1],
        "seems large": [9, 8, 8, 8, 8, 7, 6, 1, 2],
        "sure": [5, 4, 3, 2, 1],
    }
    rows = [(at, key, number) for key, arrived in numbers.items() for at, number in enumerate(arrived)]
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos", top=1).findings
    assert found.buffer == Reading([(number, 0, 0) for number in numbers["largest"]]).buffer == 5
    assert [(one.key, one.kind) for one in found.violations] == [("seems large", "gap")]
    assert [(key.key, key.buffer) for key in (*found.hot_keys, *found.worst_keys)] == [("shown", 0), ("seems large", 4)]


def violations_of(key: str, reading: Reading) -> list[tuple[int, str, str, int]]:
    positions = POSITIONS[key]
    values = [event[0] if reading.by == "sequence" else event[2] for event in reading.events]
    return [
        *((positions[late], key, "reordered", values[late]) for late, _ in reading.late),
        *((positions[index], key, "duplicate", values[index]) for index in reading.duplicates),
        *((positions[shows], key, "gap", first) for first, _, shows in reading.gaps),
    ]


def test_all_violations_are_a_table_and_the_first_ones_are_shown(audited: Audit) -> None:
    expected = sorted(one for key, events in HISTORIES.items() for one in violations_of(key, Reading(events)))
    found = audited.violations.select("position", "key", "kind", "value").collect()
    assert sorted(tuple(row) for row in found) == expected
    shown = [(int(one.position), one.key, one.kind, one.value) for one in audited.findings.violations]
    assert shown == expected[:25]


def test_by_time_nothing_is_missing_and_equal_times_are_in_order(by_time: Audit) -> None:
    epoch_us = round(EPOCH.timestamp()) * MICROSECONDS
    readings = {key: Reading(events, "time") for key, events in HISTORIES.items()}
    found = {row["key"]: row for row in by_time.keys.collect()}
    for key, reading in readings.items():
        row = found[key]
        assert (row["reordered"], row["buffer"], row["delay_us"]) == (
            len(reading.late),
            reading.buffer,
            reading.delay_us,
        )
        assert (row["gaps"], row["duplicates"]) == (0, 0)
    expected = sorted(one for key, reading in readings.items() for one in violations_of(key, reading))
    shown = [(int(one.position), one.key, one.kind, one.value or 0) for one in by_time.findings.violations]
    assert [(at, key, kind, value - epoch_us) for at, key, kind, value in shown] == expected[:25]
    assert by_time.findings.timeout_us is None


def test_a_log_in_order_is_proven_to_be(spark: SparkSession) -> None:
    rows = [(position, f"k{position % 3}", position // 3, position, position) for position in range(30)]
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos", arrival_time="arrived")
    assert found.in_order
    assert str(found) == "in order: 30 events of 3 keys"
    assert (found.findings.buffer, found.findings.timeout_us, found.findings.violations) == (0, 0, ())
    assert "Proven for all 30 events of 3 keys" in found.as_html()


def test_what_has_no_key_or_no_number_is_counted(spark: SparkSession) -> None:
    rows = [(0, "a", 1), (1, None, 5), (2, "", 4), (3, "a", None), (4, "a", -1), (None, "a", 2), (6, "a", 2)]
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos").findings
    assert (found.events, found.unkeyed, found.unplaced, found.reordered, found.gaps) == (7, 2, 3, 0, 0)
    assert str(found.verdict) == "broken: 3 unplaced among 5 events of 1 key"
    assert [(one.kind, one.position) for one in found.violations] == [
        ("unplaced", "unknown"),
        ("unplaced", "3"),
        ("unplaced", "4"),
    ]


def test_runs_of_a_key_that_overlap_are_told(spark: SparkSession) -> None:
    rows = [
        (0, "a", 1, 0, 0, 0, 100),
        (1, "a", 2, 0, 0, 50, 60),
        (2, "a", 3, 0, 0, 70, None),  # within the first, and without an end
        (3, "a", 4, 0, 0, 100, 110),
        (4, "b", 1, 0, 0, 0, 100),
        (5, "b", 2, 0, 0, 100, 90),  # an end before its start
        (6, "b", 3, 0, 0, 105, 106),
    ]
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos", start="began", end="ended").findings
    assert (found.overlapping, found.unmeasured_runs) == (2, 2)
    assert [(one.kind, one.position, one.time_us) for one in found.violations] == [
        ("overlapping", "1", 10),
        ("overlapping", "2", 0),
    ]


def test_what_is_allowed_is_only_counted(spark: SparkSession) -> None:
    rows = [(0, "a", 1), (1, "a", 3), (2, "a", 3)]
    log = table(spark, rows)
    allowing = audit(log, key="k", sequence="seq", position="pos", allow=["gap", "duplicate"])
    assert allowing.in_order
    assert str(allowing) == "in order: 3 events of 1 key; allowed: 1 gap, 1 duplicate"
    assert allowing.findings.violations == ()
    with pytest.raises(InvalidArgument, match="allow: some of gap, duplicate, overlapping, unplaced, not 'reordered'"):
        audit(log, key="k", sequence="seq", position="pos", allow=["reordered"])


def test_partitions_of_the_log_are_told_and_keys_that_lie_in_several(spark: SparkSession) -> None:
    rows = [(position, f"k{position % 4}", position // 4) for position in range(16)]
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos", partition="if(pos = 15, 1, pos % 2)")
    assert {load.name: load.events for load in found.findings.partitions} == {"0": 8, "1": 8}
    assert found.findings.split_keys == 0
    found = audit(table(spark, rows), key="k", sequence="seq", position="pos", partition="if(pos = 15, 0, pos % 2)")
    assert found.findings.split_keys == 1


def test_events_at_one_position_have_no_order_so_they_are_refused(spark: SparkSession) -> None:
    log = table(spark, [(0, "a", 1), (0, "a", 2), (0, "b", 1)])
    with pytest.raises(FailedPrecondition, match="position: 1 events share pos with another event of their key"):
        audit(log, key="k", sequence="seq", position="pos")
    assert audit(log, key="k", sequence="seq", position=["pos", "seq"]).in_order


def test_parquet_files_know_their_order(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    rows = [(0, "a", number) for number in (1, 3, 2, 4)]
    spark.createDataFrame([(*row, None, None, None, None) for row in rows], SCHEMA).coalesce(1).write.parquet(folder)
    found = audit(spark.read.parquet(folder), key="k", sequence="seq").findings
    assert found.columns.arrival_order == "path of the file, then the row within it"
    [late] = found.violations
    assert late.position.endswith(".parquet, 2")


@pytest.mark.parametrize(
    ("position", "shown", "overtaker"),
    [
        ("timestamp_micros(pos * 1000000)", "1970-01-01 00:00:02", "1970-01-01 00:00:01"),
        ("timestamp_ntz '2026-01-01 00:00:00' + make_dt_interval(pos)", "2026-01-03 00:00:00", "2026-01-02 00:00:00"),
        ("date '2026-01-01' + int(pos)", "2026-01-03", "2026-01-02"),
        ("cast(pos AS decimal(20, 2))", "2.00", "1.00"),
        ("concat('offset ', pos)", "offset 2", "offset 1"),
        ("pos / 2", "1.0", "0.5"),
        (["'a'", "pos"], "a, 2", "a, 1"),
    ],
)
def test_whatever_sorts_is_a_position(
    spark: SparkSession, position: str | list[str], shown: str, overtaker: str
) -> None:
    log = table(spark, [(0, "a", 1), (1, "a", 3), (2, "a", 2), (3, "b", 1)])
    found = audit(log, key="k", sequence="seq", position=position)
    [late] = found.findings.violations
    assert (late.position, late.other_position) == (shown, overtaker)
    [row] = found.violations.collect()
    assert (row["position"], row["other_position"]) != (None, None)
    assert row["kind"] == "reordered"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("length(k)", ["1"]),
        ("unhex('ff' || hex(k))", ["FF61", "FF62"]),
        ("cast(unhex('ff' || hex(k)) AS string)", ["FF61", "FF62"]),
        ("encode(k || 'ü', 'utf-8')", ["aü", "bü"]),
        ("k = 'a'", ["false", "true"]),
    ],
)
def test_whatever_names_an_entity_is_a_key(spark: SparkSession, key: str, names: list[str]) -> None:
    log = table(spark, [(0, "a", 1), (1, "b", 2), (2, "a", 3)])
    found = audit(log, key=key, sequence="seq", position="pos", allow=["gap"])
    assert sorted(one.key for one in found.findings.hot_keys) == names
    assert sorted(row["key"] for row in found.keys.collect()) == names


def test_batches_of_our_sink_are_in_the_order_of_their_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """By name, the eleventh would be the third."""
    sink = ParquetFolder(str(tmp_path / "table"))
    for batch in range(12):
        sink(spark.sql(f"SELECT 'a' AS k, {batch} AS seq").coalesce(1), batch)
    found = audit(spark.read.parquet(sink.path), key="k", sequence="seq")
    assert str(found) == "in order: 12 events of 1 key"
    assert found.findings.columns.arrival_order == "batch_id, then path of the file, then the row within it"
    spark.sql("SELECT 'a' AS k, 9 AS seq, 1 AS batch_id").write.parquet(str(tmp_path / "other"))
    own = audit(spark.read.parquet(str(tmp_path / "other")), key="k", sequence="seq").findings
    assert own.columns.arrival_order == "path of the file, then the row within it"


def test_what_is_not_a_number_is_no_position(spark: SparkSession) -> None:
    log = table(spark, [(0, "a", 1), (1, "a", 2)])
    found = audit(log, key="k", sequence="seq", position="double('NaN')").findings
    assert (found.unplaced, found.reordered) == (2, 0)


def test_where_no_late_event_has_a_time_no_timeout_is_told(spark: SparkSession) -> None:
    log = table(spark, [(0, "a", 2), (1, "a", 1)])
    found = audit(log, key="k", sequence="seq", position="pos", arrival_time="arrived").findings
    assert (found.reordered, found.untimed, found.longest_wait_us, found.timeout_us) == (1, 2, None, None)


def test_more_partitions_than_are_shown_are_counted_all_the_same(spark: SparkSession) -> None:
    log = spark.range(0, 10_000).selectExpr("id AS pos", "string(id % 7) AS k", "id AS seq")
    found = audit(log, key="k", sequence="seq", position="pos", partition="pos", allow=["gap"]).findings
    assert (len(found.partitions), found.partition_count, found.imbalance) == (4_096, 10_000, pytest.approx(1))


def test_a_partition_without_a_name_is_one_too(spark: SparkSession) -> None:
    log = table(spark, [(at, "a", at) for at in range(6)])
    found = audit(log, key="k", sequence="seq", position="pos", partition="if(pos < 2, null, 'p')").findings
    assert {load.name: load.events for load in found.partitions} == {"p": 4, "None": 2}


def test_times_that_no_calendar_has_are_told_all_the_same(spark: SparkSession) -> None:
    log = table(spark, [(0, "a", 5), (1, "a", 4), (2, "a", 5)])
    for seconds in (10**12, -(10**12)):
        found = audit(log, key="k", time=f"timestamp_seconds(seq * {seconds})", position="pos")
        assert "µs from 1970 on" in found.as_html()


def test_an_empty_log_says_so(spark: SparkSession) -> None:
    found = audit(table(spark, []), key="k", sequence="seq", position="pos")
    assert str(found) == "nothing to judge: there are no events"
    assert str(audit(table(spark, [(0, None, 1)]), key="k", sequence="seq", position="pos")).endswith("has a key")
    assert found.keys.count() == found.violations.count() == 0


def test_an_order_of_arrival_is_not_guessed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"k": "a", "seq": 1}\n')
    with pytest.raises(InvalidArgument, match="position: name the column, or columns, that say in which order"):
        audit(spark.read.json(str(tmp_path)), key="k", sequence="seq")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"key": None}, "key: name the column"),
        ({"sequence": None}, "sequence or time: name the column"),
        ({"sequence": "number"}, "sequence: 'number' is neither a column nor an SQL expression .* pos, k, seq"),
        ({"sequence": "k ||"}, "sequence: 'k ||' is neither"),
        ({"sequence": "seq / 2"}, "sequence: whole numbers, or texts of them, but 'seq / 2' is double"),
        ({"key": "array(k)"}, "key: 'array\\(k\\)' is array<string>; make a text of it"),
        ({"position": "array(pos)"}, "position: 'array\\(pos\\)' is array<bigint>; name what is in it, each by itself"),
        ({"position": "null"}, "position: a number, a text or a time, but 'null' is void"),
        ({"position": 5}, "position: the name of a column, or an SQL expression, not 5"),
        ({"position": "collate(k, 'UTF8_LCASE')"}, "position: .* where texts that differ may be equal"),
        ({"key": "collate(k, 'UTF8_LCASE')"}, "key: .* is string collate UTF8_LCASE, where texts that differ may be"),
        ({"sequence": "sum(seq)"}, "these columns cannot be read together: .*MISSING_GROUP_BY"),
        ({"allow": "gap"}, "allow: a list of kinds, not 'gap'"),
        ({"arrival_time": "pos"}, "arrival_time: 'pos' is a number, and its unit is unknown"),
        ({"start": "began"}, "start and end: give both, or neither"),
        ({"top": 0}, "top: a whole number of at least 1"),
        ({"partitions": 5000}, "partitions: up to 4096"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_call_is_told_what_to_do(log: DataFrame, wrong: dict[str, Any], complaint: str) -> None:
    arguments: dict[str, Any] = {"key": "k", "sequence": "seq", "position": "pos", **wrong}
    with pytest.raises(InvalidArgument, match=complaint):
        audit(log, **arguments)


def test_columns_that_differ_in_case_alone_and_streams_are_refused(spark: SparkSession) -> None:
    twice = spark.sql("SELECT 1 AS pos, 'a' AS k, 'b' AS K, 1 AS seq")
    with pytest.raises(InvalidArgument, match=r"key: 'k' cannot be read: .*AMBIGUOUS"):
        audit(twice, key="k", sequence="seq", position="pos")
    with pytest.raises(InvalidArgument, match="the audit is of a table, and this is a stream"):
        audit(spark.readStream.format("rate").load(), key="value", sequence="value", position="timestamp")


def test_numbers_may_be_texts_and_times_without_a_zone(spark: SparkSession) -> None:
    log = table(spark, [(0, "a", 1, 0), (1, "a", 3, 10), (2, "a", 2, 25)])
    log = log.selectExpr("pos", "k", "if(seq = 3, '3', string(seq)) AS seq", "cast(arrived AS timestamp_ntz) AS at")
    found = audit(log, key="k", sequence="seq", position="pos", arrival_time="at").findings
    assert (found.reordered, found.longest_wait_us, found.timeout_us) == (1, 15, 16)
    assert audit(log, key="k", sequence="concat(seq, 'x')", position="pos").findings.unplaced == 3


def test_texts_of_times_mean_the_same_in_any_session(spark: SparkSession) -> None:
    """In Berlin, the clocks show no time between two and three on that day."""
    texts = ["2026-03-29", "2026-03-29T01:59:59.5", "2026-03-29 02:30:00", "2026-03-29 03:00:00", "2026-03-30"]
    texts += ["2026-03-30T03:30:00+02:00", "2026-03-30 01:30:00.000001Z", "2026-03-30 04:00:00 Europe/Berlin"]
    log = spark.createDataFrame(
        [(place, "a", text) for place, text in enumerate(texts)], "pos INT, k STRING, at STRING"
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("Europe/Berlin", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert str(audit(log, key="k", time="at", position="pos")) == "in order: 8 events of 1 key", zone
            swapped = audit(log.where("pos IN (2, 3)"), key="k", time="at", position="-pos")
            assert str(swapped) == "broken: 1 reordered among 2 events of 1 key", zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_json_holds_everything(audited: Audit) -> None:
    plain = json.loads(audited.as_json())
    assert plain["in_order"] is False
    assert plain["verdict"] == str(audited)
    assert len(plain["violations"]) == 25
    assert plain["columns"]["arrival_order"] == "pos"


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_times_as_positions_are_those_of_utc_in_any_zone_and_year(spark: SparkSession) -> None:
    last_hour_of_summer_us, year_10_000_us = 1_793_509_200_000_000, 253_402_318_799_000_000
    minutes = [("a", 2, 0), ("a", 1, 30), ("b", 2, 60), ("b", 1, 70)]  # from 1:00 on, which comes twice
    arrivals = [(key, number, last_hour_of_summer_us + at * 60_000_000) for key, number, at in minutes]
    arrivals += [("c", number, year_10_000_us - number) for number in (1, 2)]
    log = spark.createDataFrame(arrivals, "k STRING, n INT, at BIGINT").withColumn("at", F.timestamp_micros("at"))
    found = audit(log, key="k", sequence="n", position="at").findings
    assert [(one.key, one.position) for one in found.violations] == [
        ("a", "2026-11-01 05:30:00"),
        ("b", "2026-11-01 06:10:00"),
        ("c", "253,402,318,798,999,999 µs from 1970 on"),
    ]


def test_the_page_is_well_formed_and_needs_nothing_else(audited: Audit, by_time: Audit) -> None:
    for one in (audited, by_time):
        html = one.as_html()
        root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
        tags = Counter(element.tag for element in root.iter())
        assert tags["svg"] == 4
        assert not tags.keys() & {"script", "link", "img", "iframe", "object"}
        assert not any({"src", "href"} & set(element.attrib) for element in root.iter())
        assert "http" not in html
        assert "url(" not in html
        assert "Order is broken" in html


def test_the_page_escapes_what_it_shows(spark: SparkSession) -> None:
    log = table(spark, [(0, "<b>&", 2), (1, "<b>&", 1)])
    html = audit(log, key="k", sequence="seq", position="pos", source="<i>").as_html()
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;" in html
    assert "<i>" not in html
    ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
