"""Columns may have any name that Spark lets them have, in tables and in streams alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from inorder.spark import deduplicate, latest, resequence


@pytest.mark.parametrize("name", ["user.id", "a`b", "a b"])
def test_a_column_may_have_a_dot_in_its_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    rows = spark.createDataFrame([("k", number, f"n{number}") for number in (1, 3, 2)], ["k", "s", "x"])
    rows.withColumnRenamed("x", name).coalesce(1).write.parquet(source)
    table = spark.read.parquet(source)
    expected = [(number, f"n{number}") for number in (1, 2, 3)]
    assert [(row["s"], row[name]) for row in resequence(table, key="k", sequence="s").collect()] == expected

    stream = spark.readStream.schema(table.schema).parquet(source)
    ordered = resequence(stream, key="k", sequence="s", buckets=2).to_parquet(out)
    ordered.start(str(tmp_path / "state"), trigger={"availableNow": True}).awaitTermination()
    assert sorted((row["s"], row[name]) for row in spark.read.parquet(out).collect()) == expected


@pytest.mark.parametrize("name", ["user.id", "a`b"])
def test_a_key_may_have_a_dot_in_its_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    source = str(tmp_path / "in")
    rows = spark.createDataFrame([("a", 1), ("a", 2), ("b", 1), ("a", 1)], ["k", "s"]).selectExpr(
        f"k AS `{name.replace(chr(96), 2 * chr(96))}`", "s", "s AS `v.w`"
    )
    rows.coalesce(1).write.parquet(source)
    stream = spark.readStream.schema(rows.schema).parquet(source)
    newest = latest(stream, key=name, time="s", value="v.w", buckets=2)
    once = deduplicate(stream, key=name, id="s", buckets=2)
    for operator, expected in ((newest, [("a", 2), ("b", 1)]), (once, [("a", 1), ("a", 2), ("b", 1)])):
        out = str(tmp_path / f"out {len(expected)}")
        query = operator.to_parquet(out).start(str(tmp_path / f"state {len(expected)}"), trigger={"availableNow": True})
        query.awaitTermination()
        assert sorted((row[name], row["s"]) for row in spark.read.parquet(out).collect()) == expected
