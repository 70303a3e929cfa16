"""Every violation as a row: what, of which key, at which position."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from inorder.spark.arrival import Named
from inorder.spark.findings import Kind
from inorder.spark.judging import position_of
from inorder.spark.tallying import late_us


def violations(judged: DataFrame, names: Named, allowed: Collection[Kind]) -> DataFrame:
    """One row each: kind, key, position, value, until, other_position, places, time_us; see `Violation`."""
    here = position_of(names)
    time_us = late_us(names)
    found = {
        "reordered": F.when(
            F.col("is_late"),
            _row(
                "reordered",
                here,
                F.col("value"),
                other=F.col("overtaker_position"),
                places=F.col("arrived") - F.col("overtaker"),
                time_us=time_us,
            ),
        ),
        "duplicate": F.when(F.col("is_duplicate"), _row("duplicate", here, F.col("value"))),
        "unplaced": F.when(F.col("value").isNull(), _row("unplaced", here, F.col("value"))),
    }
    if names.by == "sequence":
        found["gap"] = F.when(
            F.col("missing") > 0,
            _row("gap", F.col("overtaker_position"), F.col("value") + 1, until=F.col("higher") - 1),
        )
    if names.start is not None:
        overlap_us = F.least(F.col("busy_until_us"), F.col("end_us")) - F.col("start_us")
        found["overlapping"] = F.when(
            F.col("is_overlapping"), _row("overlapping", here, F.col("value"), time_us=overlap_us)
        )
    rows = F.array_compact(F.array(*(row for kind, row in found.items() if kind not in allowed)))
    flat = judged.select(F.col("key").cast("string").alias("key"), F.explode(rows).alias("it"))
    return flat.select(
        "it.kind", "key", "it.position", "it.value", "it.until", "it.other_position", "it.places", "it.time_us"
    )


def _row(
    kind: Kind,
    position: Column,
    value: Column,
    *,
    until: Column | None = None,
    other: Column | None = None,
    places: Column | None = None,
    time_us: Column | None = None,
) -> Column:
    unknown = F.lit(None).cast("bigint")
    return F.struct(
        F.lit(kind).alias("kind"),
        position.alias("position"),
        value.alias("value"),
        (unknown if until is None else until).alias("until"),
        (F.when(F.lit(False), position) if other is None else other).alias("other_position"),
        (unknown if places is None else places).alias("places"),
        (unknown if time_us is None else time_us).alias("time_us"),
    )
