"""The audit of a log: proves that the events of each key are in order, or says where they are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.options import SLOTS, check_whole
from inorder.spark.arrival import Named, by_key, named, rows
from inorder.spark.examining import TOTALS, Examination
from inorder.spark.findings import (
    KINDS,
    PLACES,
    TIMES_US,
    Bar,
    Columns,
    Findings,
    KeyFindings,
    Kind,
    PartitionLoad,
    Violation,
)
from inorder.spark.page import page
from inorder.spark.tallying import COUNTS, TOLD
from inorder.spark.totals import Key, Totals, merged
from inorder.spark.violations import IN_ORDER_BY, NUMBERS, OTHER, TEXTS
from inorder.spark.wording import moment

ALLOWABLE = tuple(kind for kind in KINDS if kind != "reordered")

_TYPES = {"key": "STRING", "is_split": "BOOLEAN"}  # others are numbers
_KEYS = ", ".join(f"{name} {_TYPES.get(name, 'BIGINT')}" for name in TOLD)


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found, and two tables to look further. The tables are computed when they are used."""

    findings: Findings
    _events: DataFrame
    _names: Named
    _examination: Examination

    @property
    def keys(self) -> DataFrame:
        """A row for each key, with its counts, its buffer and its longest wait."""
        return by_key(self._events, self._names).mapInArrow(self._examination.keys, _KEYS)

    @property
    def violations(self) -> DataFrame:
        """A row for each violation; the fields are those of `Violation`."""
        arranged = by_key(self._events, self._names)
        found = arranged.mapInArrow(self._examination.violations, _violation_schema(arranged, self._names))
        position, other = (_position(self._names, prefix) for prefix in ("", OTHER))
        return found.select("kind", "key", position, "value", "until", other, "places", "time_us")

    @property
    def in_order(self) -> bool:
        return self.findings.in_order

    def as_json(self) -> str:
        return self.findings.as_json()

    def as_html(self) -> str:
        """One page that needs nothing else."""
        return page(self.findings)

    def __str__(self) -> str:
        return self.findings.verdict


def audit(
    log: DataFrame,
    *,
    key: str | None = None,
    sequence: str | None = None,
    time: str | None = None,
    position: str | Sequence[str] | None = None,
    arrival_time: str | None = None,
    start: str | None = None,
    end: str | None = None,
    partition: str | None = None,
    partitions: int = 8,
    allow: Collection[Kind] = (),
    top: int = 10,
    source: str = "the log",
) -> Audit:
    """Prove that the events of each key are in order, or disprove it.

    Columns are given by name, or as SQL expressions (`attributes['sequence']`):

    - `key`: events that belong together. No order is promised without one, so such events are only counted.
    - `sequence`: the producer's own numbers, whole, per key, each one more than the last. Or, without them, `time`:
      when an event happened. Events of one time are in order however they arrive.
    - `position`: in which order the events arrived; several columns are compared one after the other. A topic of
      ours and Parquet files (by path, then by row) know it; for anything else it must be named. Two events of a
      key at one position are an error, as nobody knows which came first.
    - `arrival_time`: when an event arrived, by one clock; where it runs backwards, its latest time counts. A topic
      of ours knows it.
    - `start`, `end`: when the handler of an event began and ended.
    - `partition`: where the event was stored. Without it, the load is told for `partitions` of ours.

    What is looked for, within each key, in the order of arrival:

    - **reordered**: an event that arrived after one with a higher number (or a later time): an inversion. It is
      counted once, however many overtook it. It was *overtaken* by the first of these. How late it is, in places:
      how many events of its key arrived since, the overtaker included and itself not; in time: how much later
      it arrived than the overtaker. Without `arrival_time`: how much earlier it happened than the latest before it.
    - **gap**: numbers, one or several in a row, that never arrive although a lower and a higher one do. What
      arrives in the end is late, and no gap. What is missing before the lowest number or behind the highest, no
      log can tell.
    - **duplicate**: an event whose key and number came before. Only the first counts for everything else.
    - **overlapping**: a run of a handler that starts before all earlier ones of its key have ended. A run
      without an end, or with one before its start, is taken to end where it starts, and is counted as unmeasured.
    - **unplaced**: an event with a key that has no number (none that is whole and at least 0), time or position.

    Any of these breaks the order, but for those in `allow`, which are counted only; reordered is never allowed.

    What would have repaired it. Each is the least that does, and less of it does not:

    - **buffer**: how many events of one key had to wait at once for another that came: the `capacity` of
      a `Resequencer` with `when_full="gap"`. With another `when_full`, a gap wants more, since what is behind it
      waits for the timeout.
    - **timeout**: one microsecond more than any event had to wait for another that came: its
      `gap_timeout_seconds`. 0 if none had to wait, None without `arrival_time`.
    - **watermark**: by how much an event happened earlier than the latest of its key that arrived before it, at
      most: the delay of a watermark that drops none. None without `time`.

    `Resequencer(capacity=buffer, gap_timeout_seconds=timeout, when_full="gap")`, started at the lowest number of each
    key, then releases all events of the log in order, and gives up no number but those that never come.

    Rows are sorted by key and position once, and each task goes over its rows once, a piece at a time; only counts,
    and up to `top` keys and violations, come to the driver.
    """
    _check(partitions, allow, top)
    names = named(
        log,
        key=key,
        sequence=sequence,
        time=time,
        position=position,
        arrival_time=arrival_time,
        start=start,
        end=end,
        partition=partition,
    )
    events = rows(log, names)
    examination = Examination(names.position_columns, names.by_time, tuple(allow), top, partitions)
    totals, first = _found(events, names, examination)
    return Audit(_findings(source, names, examination, totals, first), events, names, examination)


def _found(events: DataFrame, names: Named, examination: Examination) -> tuple[Totals, list[dict[str, Any]]]:
    """The totals, and the first violations."""
    arranged = by_key(events, names)
    schema = _violation_schema(arranged, names).add(TOTALS, T.StringType())
    times = [field.name for field in schema.fields if isinstance(field.dataType, T.TimestampType)]
    rows = arranged.mapInArrow(examination.totals, schema)
    for name in times:  # as numbers: Python has no time after 9999, and does not tell the hours that clocks repeat
        rows = rows.withColumn(name, F.unix_micros(name))
    found = rows.collect()
    totals = merged((Totals.from_json(row[TOTALS]) for row in found if row[TOTALS] is not None), examination.top)
    _refuse_ties(totals.sums["tied"], names)
    first = sorted((row for row in found if row[TOTALS] is None), key=lambda row: _place_of(row, names))
    return totals, [
        row.asDict() | {name: moment(row[name]) for name in times if row[name] is not None}
        for row in first[: examination.top]
    ]


def _violation_schema(arranged: DataFrame, names: Named) -> T.StructType:
    """As `violations.schema` has it."""
    schema = T.StructType()
    for name in TEXTS:
        schema.add(name, T.StringType())
    for name in NUMBERS:
        schema.add(name, T.LongType())
    for prefix in ("", OTHER):
        for name in names.position_columns:
            schema.add(prefix + name, arranged.schema[name].dataType)
    return schema


def _position(names: Named, prefix: str) -> Column:
    """One value that sorts as the order of arrival does; null if there is none."""
    columns = [F.col(prefix + name).alias(name) for name in names.position_columns]
    whole = columns[0]
    if len(columns) > 1:
        is_known = reduce(or_, (column.isNotNull() for column in columns))
        whole = F.when(is_known, F.struct(*columns))
    return whole.alias(f"{prefix}position")


def _place_of(row: Row, names: Named) -> Any:
    """Sorts as `violations` does; what is not known goes first."""
    values = (row[name] for name in (*names.position_columns, *IN_ORDER_BY))
    return [(value is not None, value) for value in values]


def _check(partitions: int, allow: Collection[Kind], top: int) -> None:
    check_whole("top", top)
    check_whole("partitions", partitions)
    if partitions > SLOTS:
        raise InvalidArgument(f"partitions: up to {SLOTS}, not {partitions}")
    if isinstance(allow, str):
        raise InvalidArgument(f"allow: a list of kinds, not {allow!r}")
    for kind in allow:
        if kind not in ALLOWABLE:
            raise InvalidArgument(f"allow: some of {', '.join(ALLOWABLE)}, not {kind!r}")


def _refuse_ties(tied: int, names: Named) -> None:
    if tied:
        raise FailedPrecondition(
            f"position: {tied:,} events share {' and '.join(names.position)} with another event of their key, so "
            "nobody can say which came first; name more columns, or others"
        )


def _findings(
    source: str, names: Named, examination: Examination, totals: Totals, first: Sequence[Mapping[str, Any]]
) -> Findings:
    sums, maxima = totals.sums, totals.maxima
    has_runs, has_clock, has_times = names.start is not None, names.arrival_time is not None, names.time is not None
    loads = _loads(totals, names, examination.partitions)
    # Where no late event has a time, nobody knows how long anything waited.
    wait_us = maxima["wait_us"] if has_clock and (any(totals.waits) or not sums["reordered"]) else None
    timeout_us = None if wait_us is None else wait_us + 1 if sums["reordered"] else 0
    return Findings(
        source=source,
        columns=_columns(names),
        allowed=examination.allowed,
        events=sums["events"] + sums["unkeyed"],
        unkeyed=sums["unkeyed"],
        unplaced=sums["unplaced"],
        keys=sums["keys"],
        broken_keys=sums["broken_keys"],
        reordered=sums["reordered"],
        gaps=sums["gaps"],
        missing=sums["missing"],
        duplicates=sums["duplicates"],
        overlapping=sums["overlapping"] if has_runs else None,
        unmeasured_runs=sums["unmeasured"] if has_runs else None,
        untimed=sums["untimed"] if has_clock else None,
        farthest=maxima["farthest"],
        longest_wait_us=wait_us,
        buffer=maxima["buffer"],
        timeout_us=timeout_us,
        watermark_us=maxima["delay_us"] if has_times else None,
        lateness=_bars(totals.lateness, PLACES),
        waits=_bars(totals.waits, TIMES_US) if has_clock or has_times else None,
        hot_keys=_keys(totals.hot_keys, sums["events"]),
        worst_keys=_keys(totals.worst_keys, sums["events"]),
        partitions=loads[:SLOTS],
        imbalance=max((load.share for load in loads), default=0) * len(loads) or 1.0,
        split_keys=None if names.partition is None else sums["split_keys"],
        violations=tuple(_violation(row, names) for row in first),
    )


def _columns(names: Named) -> Columns:
    return Columns(
        key=names.key,
        sequence=names.sequence,
        arrival_order=names.arrival_order,
        time=names.time,
        arrival_time=names.arrival_time,
        runs=None if names.start is None else f"{names.start} to {names.end}",
        partition=names.partition,
    )


def _bars(counts: Sequence[int], starts: Sequence[int]) -> tuple[Bar, ...]:
    """All bars up to the last that is not empty."""
    used = max((index + 1 for index, count in enumerate(counts) if count), default=0)
    return tuple(Bar(starts[index], counts[index]) for index in range(used))


def _keys(found: Sequence[Key], events: int) -> tuple[KeyFindings, ...]:
    return tuple(
        KeyFindings(
            key=key["key"],
            events=key["events"],
            share=key["events"] / events,
            buffer=key["buffer"],
            **{name: key[name] for name in COUNTS.values()},
        )
        for key in found
    )


def _loads(totals: Totals, names: Named, partitions: int) -> tuple[PartitionLoad, ...]:
    """Those of the log, from the highest down; or ours, by number."""
    loads = [(str(number), totals.loads[str(number)]) for number in range(partitions)]
    if names.partition is not None:
        loads = sorted(totals.loads.items(), key=lambda load: (-load[1], load[0]))
    return tuple(PartitionLoad(name, load, load / (totals.sums["events"] or 1)) for name, load in loads)


def _violation(row: Mapping[str, Any], names: Named) -> Violation:
    here, there = ([row[prefix + name] for name in names.position_columns] for prefix in ("", OTHER))
    return Violation(
        cast(Kind, row["kind"]),
        row["key"],
        _shown(here) or "unknown",
        row["value"],
        row["until"],
        _shown(there),
        row["places"],
        row["time_us"],
    )


def _shown(position: Sequence[Any]) -> str | None:
    return None if all(part is None for part in position) else ", ".join(map(str, position))
