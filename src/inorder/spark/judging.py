"""What is wrong with each event of a log, by Spark's own windows: one shuffle by key, and a sort for each question.

The words are explained at `inorder.spark.audit`. Nothing here runs anything.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql.window import WindowSpec

from inorder.spark.arrival import Named

_ALL_BEFORE = Window.unboundedPreceding


def judged(rows: DataFrame, names: Named, *, duplicates: bool = True) -> DataFrame:
    """The rows that have a key, each with what is to be said of it.

    Without `duplicates`, a sort is saved, and the ranks are wrong in keys that have duplicates all the same.
    """
    keyed = rows.where(F.col("key").isNotNull())
    if names.start is not None:
        keyed = _with_runs(keyed, names)
    keyed = _with_arrival(keyed, names)
    keyed = _with_overtaker(keyed, names)
    keyed = keyed.withColumn("is_first", F.col("value").isNotNull() & _differs(names))
    keyed = _with_ranks(keyed, names) if duplicates and names.by == "sequence" else _with_row_numbers(keyed, names)
    late = F.col("is_first") & _surely(F.col("overtaker") < F.col("arrived"))
    missing = F.when(F.col("is_first"), F.col("higher") - F.col("value") - 1)
    return keyed.select(
        "*",
        late.alias("is_late"),
        (F.col("value").isNotNull() & ~F.col("is_first")).alias("is_duplicate"),
        (missing if names.by == "sequence" else F.lit(0)).alias("missing"),
    )


def position_of(names: Named) -> Column:
    """One value that sorts as the order of arrival does."""
    columns = names.position_columns
    return F.col(columns[0]) if len(columns) == 1 else F.struct(*columns)


def _surely(condition: Column) -> Column:
    """False where it is not known."""
    return F.coalesce(condition, F.lit(False))


def _with_runs(rows: DataFrame, names: Named) -> DataFrame:
    """A run that cannot be measured ends where it begins, as nobody knows more."""
    measured = _surely(F.col("end_us") >= F.col("start_us"))
    until_us = F.when(measured, F.col("end_us")).otherwise(F.col("start_us"))
    before = _before(Window.partitionBy("key").orderBy("start_us", *names.position_columns))
    return rows.select(
        "*", (~measured).alias("is_unmeasured"), F.max(until_us).over(before).alias("busy_until_us")
    ).withColumn("is_overlapping", _surely(F.col("start_us") < F.col("busy_until_us")))


def _with_arrival(rows: DataFrame, names: Named) -> DataFrame:
    """The place of each event among those of its key, and the clock: the latest time that any had on arrival."""
    before = _before(Window.partitionBy("key").orderBy(*names.position_columns))
    placed = F.col("value").isNotNull()
    added = [
        (F.count("value").over(before) + placed.cast("bigint")).alias("arrived"),
        (placed & _surely(F.max(position_of(names)).over(before) == position_of(names))).alias("is_tied"),
    ]
    if names.arrival_time is not None:
        added.append(F.greatest(F.max("arrival_us").over(before), "arrival_us").alias("clock_us"))
    if names.time is not None:
        latest_us = F.greatest(F.max("event_us").over(before), "event_us")
        added.append((latest_us - F.col("event_us")).alias("delay_us"))
    return rows.select("*", *added)


def _with_overtaker(rows: DataFrame, names: Named) -> DataFrame:
    above = _before(_downwards(names))
    added = [
        F.min("value").over(above).alias("higher"),  # the next one up, as they come from the highest down
        F.min("arrived").over(above).alias("overtaker"),
        F.min(position_of(names)).over(above).alias("overtaker_position"),
    ]
    if names.arrival_time is not None:
        added.append((F.col("clock_us") - F.min("clock_us").over(above)).alias("wait_us"))
    return rows.select("*", *added)


def _with_ranks(rows: DataFrame, names: Named) -> DataFrame:
    """How many numbers, each counted once, arrived up to a row, and how many are not below it."""
    first = F.col("is_first").cast("bigint")
    ranked = rows.select("*", F.sum(first).over(_up_to_here(_downwards(names))).alias("from_top"))
    arrival = Window.partitionBy("key").orderBy("arrived")
    return ranked.select("*", F.sum(first).over(_up_to_here(arrival)).alias("arrived_first"))


def _with_row_numbers(rows: DataFrame, names: Named) -> DataFrame:
    """The same where each number comes once."""
    from_top = F.count(F.lit(1)).over(_before(_downwards(names))) + 1
    return rows.select("*", from_top.alias("from_top"), F.col("arrived").alias("arrived_first"))


def _downwards(names: Named) -> WindowSpec:
    """From the highest number down, so that all before a row are those that belong behind it.

    Of equal numbers the first to arrive is the event, and the others are duplicates. Events of the same time are in
    order as they arrive.
    """
    tie = F.asc("arrived") if names.by == "sequence" else F.desc("arrived")
    return Window.partitionBy("key").orderBy(F.desc_nulls_last("value"), tie)


def _differs(names: Named) -> Column:
    """Whether no event with the same number came before."""
    if names.by == "time":
        return F.lit(True)
    return F.col("higher").isNull() | (F.col("higher") != F.col("value"))


def _before(window: WindowSpec) -> WindowSpec:
    """All rows before one. Where that is all that is asked of an order, Spark goes over its rows once for all of it."""
    return window.rowsBetween(_ALL_BEFORE, -1)


def _up_to_here(window: WindowSpec) -> WindowSpec:
    return window.rowsBetween(_ALL_BEFORE, Window.currentRow)
