"""From judged events to counts: by key and by how late they were, so that everything else is counted from these.

Rows are partitioned by key already, so none of this shuffles more than the counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from inorder.options import SLOTS
from inorder.spark.arrival import Named
from inorder.spark.findings import PLACES, TIMES_US, Kind
from inorder.spark.judging import position_of


def tallies(judged: DataFrame, names: Named, allowed: Collection[Kind]) -> DataFrame:
    """A row for each key, bar of lateness and bar of waiting: few for each key, and one if it is in order."""
    late = F.col("is_late")
    places = F.col("arrived") - F.col("overtaker")
    time_us = late_us(names)
    by = [F.col("key"), F.when(late, _bar(places, PLACES)).alias("places_bar")]
    by.append((F.lit(None).cast("int") if time_us is None else F.when(late, _bar(time_us, TIMES_US))).alias("time_bar"))
    if names.partition is not None:
        by.append(F.col("partition"))
    unknown = F.lit(None).cast("bigint")
    has_runs = names.start is not None
    return judged.groupBy(*by).agg(
        F.count("*").alias("events"),
        F.count("value").alias("placed"),
        F.count_if("is_first").alias("numbers"),
        F.count_if("is_late").alias("reordered"),
        F.count_if(F.col("missing") > 0).alias("gaps"),
        F.sum("missing").alias("missing"),
        F.count_if("is_duplicate").alias("duplicates"),
        (F.count_if("is_overlapping") if has_runs else F.lit(0)).alias("overlapping"),
        (F.count_if("is_unmeasured") if has_runs else F.lit(0)).alias("unmeasured"),
        F.count_if("is_tied").alias("tied"),
        (F.count("arrival_us") if names.arrival_time else unknown).alias("timed"),
        F.max(F.when(F.col("is_first"), F.col("arrived_first") + F.col("from_top"))).alias("behind"),
        F.max(F.when(late, places)).alias("farthest"),
        (F.max(F.when(late, F.col("wait_us"))) if names.arrival_time else unknown).alias("wait_us"),
        (F.max("delay_us") if names.time else unknown).alias("delay_us"),
        F.min(_violated_at(names, allowed)).alias("first_position"),
    )


def late_us(names: Named) -> Column | None:
    """By how much a late event was late: by the clock of its arrival, or else by its own."""
    if names.arrival_time is not None:
        return F.col("wait_us")
    return F.col("delay_us") if names.time is not None else None


def by_key(tallies: DataFrame) -> DataFrame:
    """A row for each key."""
    sums = ("events", "placed", "numbers", "reordered", "gaps", "missing", "duplicates", "overlapping", "unmeasured")
    summed = tallies.groupBy("key").agg(
        *(F.sum(name).alias(name) for name in (*sums, "tied", "timed")),
        *(F.max(name).alias(name) for name in ("behind", "farthest", "wait_us", "delay_us")),
        F.min("first_position").alias("first_position"),
        (F.lit(False) if "partition" not in tallies.columns else F.min("partition") != F.max("partition")).alias(
            "is_split"
        ),
    )
    # How many numbers came before one, less how many belong before it. The greatest such difference is found at a
    # number that everything parked was waiting for, so it is what was parked at most.
    buffer = F.coalesce(F.col("behind") - F.col("numbers") - 1, F.lit(0))
    unplaced = F.col("events") - F.col("placed")
    return summed.withColumns({"key": F.col("key").cast("string"), "buffer": buffer, "unplaced": unplaced})


def slot() -> Column:
    """As `inorder.patterns.slot_of` has it."""
    return F.expr("shiftright(pmod(crc32(cast(key as string)) * -1640531535L, 4294967296L), 20)")


def even_partition(count: int) -> Column:
    """As in `SlotTable.even`."""
    return F.floor(slot() * count / SLOTS)


def _bar(column: Column, starts: Sequence[int]) -> Column:
    """The index of the bar: of those that begin at or below it, the last."""
    bar = F.when(column < starts[1], 0)
    for index in range(1, len(starts) - 1):
        bar = bar.when(column < starts[index + 1], index)
    return bar.otherwise(F.when(column.isNotNull(), len(starts) - 1))


def _violated_at(names: Named, allowed: Collection[Kind]) -> Column:
    """Where a row violates the order, or shows a gap; null if it does neither."""
    here = [name for kind, name in (("reordered", "is_late"), ("duplicate", "is_duplicate")) if kind not in allowed]
    if names.start is not None and "overlapping" not in allowed:
        here.append("is_overlapping")
    violated = F.lit(False)
    for name in here:
        violated = violated | F.col(name)
    if "unplaced" not in allowed:
        violated = violated | F.col("value").isNull()
    own = F.when(violated, position_of(names))
    if names.by == "time" or "gap" in allowed:
        return own
    return F.least(own, F.when(F.col("missing") > 0, F.col("overtaker_position")))
