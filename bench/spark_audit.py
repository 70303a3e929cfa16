"""The audit of a log on Spark, against a plain sort of the same rows by key and position.

    python -m bench.spark_audit                        a million events
    python -m bench.spark_audit --events 200000 --repetitions 3

A sort is the least that anybody does who wants to see the events of a key in order, and it answers no question yet.
Rows have 200 bytes of data beside their columns; "columns alone" is a sort without these, as the audit does not read
them. In the disordered log events are up to some thousand places from where they belong, so about every fourth was
overtaken; the one with duplicates has one event in a thousand twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import WrongResult
from inorder.spark import audit

KEYS = 10_000
FAR = 20_000
WARM_UP = 3  # rounds until Java has compiled what they use
WANTED = Target(0.5)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.spark_audit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(os.cpu_count()))
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        print(_measured(spark, folder, given.events, Effort(False, given.repetitions)))
    spark.stop()


def _measured(spark: SparkSession, folder: str, events: int, effort: Effort) -> Table:
    rows = []
    for name, (far, doubled) in {"in order": (0, 0), "disordered": (FAR, 0), "with duplicates": (FAR, 1_000)}.items():
        path = f"{folder}/{name}"
        log(spark, events, far, doubled).write.parquet(path)
        rates = interleaved(
            {
                "audit": partial(_rate, events, partial(_audit, spark.read.parquet(path), bool(far))),
                "sort": partial(_rate, events, partial(_sort, spark.read.parquet(path))),
                "columns": partial(_rate, events, partial(_sort, spark.read.parquet(path).drop("data"))),
            },
            effort,
            warm_up=WARM_UP,
        )
        rows.append(Row(name, rates["audit"], rates["sort"], WANTED))
        rows.append(Row(f"{name}, columns alone", rates["audit"], rates["columns"]))
    return Table(f"Audit of {events:,} events of {KEYS:,} keys, against a sort", "events/s", rows)


def log(spark: SparkSession, events: int, far: int, doubled: int) -> DataFrame:
    """Numbered events, in some disorder; one of so many comes twice."""
    in_key, everywhere = Window.partitionBy("key").orderBy("id"), Window.orderBy("place", "id")
    numbered = spark.range(events).select("id", F.expr(f"concat('key-', pmod(xxhash64(id), {KEYS}))").alias("key"))
    numbered = numbered.withColumn("sequence", F.row_number().over(in_key).cast("bigint"))
    placed = numbered.withColumn("place", F.col("id") + F.floor(F.rand(7) * far))
    if doubled:
        placed = placed.unionByName(placed.where(f"id % {doubled} = 0").withColumn("place", F.col("place") + far))
    arrived = placed.withColumn("position", F.row_number().over(everywhere).cast("bigint"))
    return arrived.select(
        "key",
        "sequence",
        "position",
        F.timestamp_micros(F.col("position") * 1_000).alias("arrived"),
        F.repeat(F.lit("x"), 200).cast("binary").alias("data"),
    )


def _rate(events: int, run: Callable[[], None]) -> float:
    start = perf_counter()
    run()
    return events / (perf_counter() - start)


def _audit(rows: DataFrame, broken: bool) -> None:
    found = audit(rows, key="key", sequence="sequence", position="position", arrival_time="arrived")
    if found.in_order is broken:
        raise WrongResult(str(found))


def _sort(rows: DataFrame) -> None:
    rows.sort("key", "position").write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
