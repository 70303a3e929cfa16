"""The audit of a log: proves that the events of each key are in order, or says where they are not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.options import SLOTS, check_whole
from inorder.spark.arrival import Named, named, rows
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
from inorder.spark.judging import judged
from inorder.spark.page import page
from inorder.spark.tallying import by_key, even_partition, tallies
from inorder.spark.violations import violations

ALLOWABLE = tuple(kind for kind in KINDS if kind != "reordered")
FEW_KEYS = 1_000  # to be searched for by name
Totals: TypeAlias = dict[str, Any]

_SHOWN_KEYS = ("hot_keys", "worst_keys")
_KEY_FIELDS = ("key", "events", "reordered", "gaps", "duplicates", "overlapping", "unplaced", "buffer")


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found, and two tables to look further. The tables are computed when they are used."""

    findings: Findings
    _events: DataFrame
    _names: Named
    _allowed: tuple[Kind, ...]

    @property
    def keys(self) -> DataFrame:
        """A row for each key, with its counts, its buffer and its longest wait."""
        return by_key(tallies(judged(self._events, self._names), self._names, self._allowed))

    @property
    def violations(self) -> DataFrame:
        """A row for each violation; the fields are those of `Violation`."""
        return violations(judged(self._events, self._names), self._names, self._allowed)

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

    Runs on Spark's windows; only counts, and up to `top` keys and violations, come to the driver.
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
    allowed = tuple(allow)
    return Audit(_counted(source, events, names, allowed, top, partitions), events, names, allowed)


def _counted(
    source: str, events: DataFrame, names: Named, allow: tuple[Kind, ...], top: int, partitions: int
) -> Findings:
    """All that is counted, from tallies that are few and kept: so the windows run once over all events.

    Most keys have no duplicates, and take a sort less. A few are looked at again: those that have any, if it matters,
    and those with the first violations.
    """
    kept = tallies(judged(events, names, duplicates=False), names, allow).persist()
    try:
        totals = _totals(by_key(kept), allow, top)
        _refuse_ties(totals["tied"] or 0, names)
        first: tuple[Violation, ...] = ()
        if totals["duplicates"] or totals["first_keys"]:
            again = judged(_worth_a_second_look(events, kept, totals), names).persist()
            try:
                if totals["duplicates"]:
                    totals |= _sure_buffers(by_key(tallies(again, names, allow)), totals)
                first = _first_violations(again, names, allow, totals["first_keys"] or (), top)
            finally:
                again.unpersist()
        bars = kept.groupBy("places_bar", "time_bar").agg(F.sum("reordered").alias("count")).collect()
        loads = _loads(kept, names, partitions)
    finally:
        kept.unpersist()
    unkeyed = events.where(F.col("key").isNull()).count()
    return _findings(source, names, allow, totals, bars, loads, unkeyed, first)


def _worth_a_second_look(events: DataFrame, kept: DataFrame, totals: Totals) -> DataFrame:
    """The events of keys with the first violations, and of those whose buffer is not sure, and is shown or may be the
    largest."""
    name = F.col("key").cast("string")
    if not totals["duplicates"]:
        return events.where(name.isin(*totals["first_keys"]))
    matters = (F.col("buffer") > totals["sure_buffer"]) | name.isin(*_shown_keys(totals))
    wanted = ((F.col("duplicates") > 0) & matters) | name.isin(*totals["first_keys"] or ())
    keys = by_key(kept).where(wanted).select(F.col("key").alias("name"))
    few = [row["name"] for row in keys.limit(FEW_KEYS + 1).collect()]
    if len(few) <= FEW_KEYS:
        return events.where(name.isin(*few))  # for which files of Parquet are searched
    return events.join(keys, name == F.col("name"), "left_semi")


def _sure_buffers(again: DataFrame, totals: Totals) -> Totals:
    """What is known of buffers after a second look."""
    shown = F.when(F.col("key").isin(*_shown_keys(totals)), F.struct("key", "buffer"))
    [found] = again.agg(F.max("buffer").alias("buffer"), F.collect_list(shown).alias("shown")).collect()
    buffers = {row["key"]: row["buffer"] for row in found["shown"]}
    sure: Totals = {
        name: [{**row.asDict(), "buffer": buffers.get(row["key"], row["buffer"])} for row in totals[name] or ()]
        for name in _SHOWN_KEYS
    }
    return sure | {"buffer": max(totals["sure_buffer"], found["buffer"] or 0)}


def _shown_keys(totals: Totals) -> set[str]:
    return {row["key"] for name in _SHOWN_KEYS for row in totals[name] or ()}


def _check(partitions: int, allow: Collection[Kind], top: int) -> None:
    check_whole("top", top)
    check_whole("partitions", partitions)
    if partitions > SLOTS:
        raise InvalidArgument(f"partitions: up to {SLOTS}, not {partitions}")
    for kind in allow:
        if kind not in ALLOWABLE:
            raise InvalidArgument(f"allow: some of {', '.join(ALLOWABLE)}, not {kind!r}")


def _totals(keys: DataFrame, allowed: Collection[Kind], top: int) -> Totals:
    """One row: sums, maxima, and the few keys that are worth a look."""
    columns = dict(zip(KINDS, ("reordered", "gaps", "duplicates", "overlapping", "unplaced"), strict=True))
    broken = sum((F.col(name) for kind, name in columns.items() if kind not in allowed), F.lit(0))
    shown = F.struct(*_KEY_FIELDS)
    summed = ("events", "numbers", "reordered", "gaps", "duplicates", "overlapping", "unplaced", "unmeasured")
    [totals] = keys.agg(
        F.count("*").alias("keys"),
        F.count_if(broken > 0).alias("broken_keys"),
        *(F.sum(name).alias(name) for name in (*summed, "tied", "timed", "placed")),
        F.sum(F.col("missing").cast("decimal(38,0)")).alias("missing"),
        *(F.max(name).alias(name) for name in ("buffer", "farthest", "wait_us", "delay_us")),
        F.max(_sure_buffer()).alias("sure_buffer"),
        F.count_if("is_split").alias("split_keys"),
        F.min_by(shown, F.struct(-F.col("events"), F.col("key")), top).alias("hot_keys"),
        F.min_by(shown, F.when(broken > 0, F.struct(-broken, F.col("key"))), top).alias("worst_keys"),
        F.min_by("key", F.when(F.col("first_position").isNotNull(), F.struct("first_position", "key")), top).alias(
            "first_keys"
        ),
    ).collect()
    return totals.asDict()


def _sure_buffer() -> Column:
    """What the buffer of a key is at least: of its two ranks, each is too large by all duplicates at most."""
    return F.col("buffer") - 2 * F.col("duplicates")


def _refuse_ties(tied: int, names: Named) -> None:
    if tied:
        raise FailedPrecondition(
            f"position: {tied:,} events share {' and '.join(names.position)} with another event of their key, so "
            "nobody can say which came first; name more columns, or others"
        )


def _loads(kept: DataFrame, names: Named, partitions: int) -> dict[str, int]:
    if names.partition is not None:
        found = kept.groupBy("partition").agg(F.sum("events").alias("events")).orderBy(F.desc("events"), "partition")
        return {str(row["partition"]): row["events"] for row in found.limit(SLOTS).collect()}
    found = kept.groupBy(even_partition(partitions).alias("partition")).agg(F.sum("events").alias("events"))
    loads = {row["partition"]: row["events"] for row in found.collect()}
    return {str(number): loads.get(number, 0) for number in range(partitions)}


def _first_violations(
    judged_events: DataFrame, names: Named, allowed: Collection[Kind], keys: Sequence[str], top: int
) -> tuple[Violation, ...]:
    """The first violations belong to the keys whose first violations come first, and to no others."""
    if not keys:
        return ()
    of_keys = judged_events.where(F.col("key").cast("string").isin(*keys))
    found = violations(of_keys, names, allowed).orderBy("position", "key", "kind", "value").limit(top).collect()
    return tuple(
        Violation(
            cast(Kind, row["kind"]),
            row["key"],
            _shown(row["position"]) or "unknown",
            row["value"],
            row["until"],
            _shown(row["other_position"]),
            row["places"],
            row["time_us"],
        )
        for row in found
    )


def _shown(position: Any) -> str | None:
    if isinstance(position, Row):
        return ", ".join(str(part) for part in position)
    return None if position is None else str(position)


def _findings(
    source: str,
    names: Named,
    allowed: tuple[Kind, ...],
    totals: Totals,
    bars: Sequence[Row],
    loads: dict[str, int],
    unkeyed: int,
    first: tuple[Violation, ...],
) -> Findings:
    keyed = totals["events"] or 0
    has_clock = names.arrival_time is not None
    longest_wait_us = (totals["wait_us"] or 0) if has_clock else None
    timeout_us = None if longest_wait_us is None else longest_wait_us + 1 if totals["reordered"] else 0
    has_runs = names.start is not None
    return Findings(
        source=source,
        columns=_columns(names),
        allowed=allowed,
        events=keyed + unkeyed,
        unkeyed=unkeyed,
        unplaced=totals["unplaced"] or 0,
        keys=totals["keys"],
        broken_keys=totals["broken_keys"],
        reordered=totals["reordered"] or 0,
        gaps=totals["gaps"] or 0,
        missing=int(totals["missing"] or 0),
        duplicates=totals["duplicates"] or 0,
        overlapping=(totals["overlapping"] or 0) if has_runs else None,
        unmeasured_runs=(totals["unmeasured"] or 0) if has_runs else None,
        untimed=(totals["placed"] or 0) - (totals["timed"] or 0) if has_clock else None,
        farthest=totals["farthest"] or 0,
        longest_wait_us=longest_wait_us,
        buffer=totals["buffer"] or 0,
        timeout_us=timeout_us,
        watermark_us=None if names.time is None else totals["delay_us"] or 0,
        lateness=_bars(bars, "places_bar", PLACES),
        waits=None if names.arrival_time is None and names.time is None else _bars(bars, "time_bar", TIMES_US),
        hot_keys=_of_keys(totals["hot_keys"], keyed),
        worst_keys=_of_keys(totals["worst_keys"], keyed),
        partitions=tuple(PartitionLoad(name, load, load / (keyed or 1)) for name, load in loads.items()),
        split_keys=None if names.partition is None else totals["split_keys"],
        violations=first,
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


def _bars(found: Sequence[Row], name: str, starts: Sequence[int]) -> tuple[Bar, ...]:
    """All bars up to the last that is not empty."""
    counts = [0] * len(starts)
    for row in found:
        if row[name] is not None:
            counts[row[name]] += row["count"]
    used = max((index + 1 for index, count in enumerate(counts) if count), default=0)
    return tuple(Bar(starts[index], counts[index]) for index in range(used))


def _of_keys(found: Sequence[Row] | None, keyed: int) -> tuple[KeyFindings, ...]:
    return tuple(
        KeyFindings(row["key"], row["events"], row["events"] / keyed, *(row[name] for name in _KEY_FIELDS[2:]))
        for row in found or ()
    )
