"""A client of Spark Connect, in a process of its own, as a process has one kind of session: classic or remote.

    python connect_client.py FOLDER

The folder has a broker with the topics `in` and `out`. It writes what it found to found.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import inorder.spark
from inorder.errors import InorderError

ALL = {"availableNow": True}


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "1"  # a server that takes any port, as there may be others on the machine
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    inorder.spark.register(spark)
    found = {name: part(spark, folder) for name, part in PARTS.items()}
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


def events(spark: SparkSession, folder: str, *, stream: bool) -> DataFrame:
    reader: Any = spark.readStream if stream else spark.read
    rows = reader.format("inorder").options(url=f"{folder}/data", topic="in").load()
    return rows.selectExpr(  # type: ignore[no-any-return]
        "ordering_key AS key", "cast(attributes['sequence'] AS BIGINT) AS number", "position", "data"
    )


def numbers(rows: DataFrame) -> list[int]:
    return [row["number"] for row in rows.collect()]


def source(spark: SparkSession, folder: str) -> Any:
    return numbers(events(spark, folder, stream=False).orderBy("position"))


def sink(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=True).selectExpr("key AS ordering_key", "data")
    where = {"url": f"{folder}/data", "topic": "out", "checkpointLocation": f"{folder}/sink"}
    rows.writeStream.format("inorder").options(**where).trigger(**ALL).start().awaitTermination()
    table = events(spark, folder, stream=False).selectExpr("key AS ordering_key", "data")
    table.write.format("inorder").options(url=f"{folder}/data", topic="out").mode("append").save()
    return None


def start(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=True)
    ordered: Any = inorder.spark.resequence(rows, key="key", sequence="number", position="position", buckets=2)
    for _ in range(2):  # the second has a state to find, and nothing to do
        ordered.to_parquet(f"{folder}/table").start(f"{folder}/start", trigger=ALL).awaitTermination()
    return numbers(spark.read.parquet(f"{folder}/table"))


def dataframe(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=True)
    ordered: Any = inorder.spark.resequence(rows, key="key", sequence="number", position="position", buckets=2)
    writer = ordered.dataframe().writeStream.format("parquet").trigger(**ALL)
    writer.option("checkpointLocation", f"{folder}/frame-checkpoint").start(f"{folder}/frame").awaitTermination()
    return numbers(spark.read.parquet(f"{folder}/frame"))


def table(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=False)
    ordered: Any = inorder.spark.resequence(rows, key="key", sequence="number", position="position")
    return numbers(ordered)


def winners(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=False)
    latest = inorder.spark.latest(rows, key="key", time="number", value="data", max_drift=None)
    rows = rows.selectExpr("key", "'paid' AS kind", "number", "data AS receipt")
    merged = inorder.spark.merge_fields(rows, key="key", event_type="kind", time="number", owns={"paid": ["receipt"]})
    return [numbers(latest), [bytes(row["receipt"]).decode() for row in merged.collect()]]


def winners_of_a_stream(spark: SparkSession, folder: str) -> Any:
    newest: Any = inorder.spark.latest(
        events(spark, folder, stream=True), key="key", time="number", value="data", max_drift=None, buckets=2
    )
    newest.to_parquet(f"{folder}/newest").start(f"{folder}/newest-checkpoint", trigger=ALL).awaitTermination()
    return numbers(spark.read.parquet(f"{folder}/newest"))


def deduplicate(spark: SparkSession, folder: str) -> Any:
    rows = events(spark, folder, stream=True)
    once = inorder.spark.deduplicate(rows, key="key", id="number", position="position", buckets=2)
    once.to_parquet(f"{folder}/once").start(f"{folder}/once-checkpoint", trigger=ALL).awaitTermination()
    return numbers(spark.read.parquet(f"{folder}/once"))


def audit(spark: SparkSession, folder: str) -> Any:
    found = inorder.spark.audit(events(spark, folder, stream=False), key="key", sequence="number", position="position")
    return [str(found), found.violations.count(), len(found.as_html()) > 1_000]


def no_buckets(spark: SparkSession, folder: str) -> Any:
    ordered: Any = inorder.spark.resequence(events(spark, folder, stream=True), key="key", sequence="number")
    try:
        ordered.to_parquet(f"{folder}/no").start(f"{folder}/no-checkpoint", trigger=ALL)
    except InorderError as error:
        return str(error)


PARTS = {
    part.__name__: part
    for part in (source, sink, start, dataframe, table, winners, winners_of_a_stream, deduplicate, audit, no_buckets)
}

if __name__ == "__main__":
    main(*sys.argv[1:])
