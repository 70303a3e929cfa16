"""What a test of Delta or Iceberg does in its own process, with its own Spark. Its last line is the result."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from inorder.errors import FailedPrecondition
from inorder.spark.operators import resequence
from inorder.spark.sinks.lakes import DeltaTable, IcebergTable

from .streams import Stream

SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
}


def started(format: str, folder: Path, jars: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    settings = {
        **SETTINGS[format],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.driver.host": "127.0.0.1",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def story(spark: SparkSession, folder: Path, sink: Callable[..., Any], name: Callable[[str], str]) -> dict[str, Any]:
    def rows(table: str) -> list[list[Any]]:
        return sorted(list(row) for row in spark.table(name(table)).collect())

    told: dict[str, Any] = {}

    stream = Stream(spark, folder)
    stream.put(("a", 2, 0), ("b", 1, 1), ("a", 4, 2))
    stream.put(("a", 1, 3), ("b", 2, 4), ("b", 2, 5))
    ordered = resequence(stream.rows(), key="key", sequence="number", position="position", keep_dropped=True)
    orders = sink(table=name("orders"), key=["key"], newest_by="number", history=name("all_orders"))
    told["runs"] = []
    for _ in range(2):
        stream.run(ordered.write(orders))
        told["runs"].append([rows("orders"), rows("all_orders")])
        stream.forget_commit(1)  # so the last batch comes again

    marked = sink(
        table=name("marked"), key="key", newest_by=["number"], deleted="gone", history=name("all_marked"), writer="w"
    )
    batches = [
        [("a", 1, False, "x"), ("b", 1, None, "x"), ("c", 1, False, "x"), ("c", 2, True, "x"), ("e", 1, False, "z")],
        [("a", 2, True, "x"), ("b", 0, True, "x"), ("d", 1, True, "x"), ("c", 3, False, "x"), ("e", 1, False, "zz")],
        [("f", 1, False, "p"), ("f", 1, False, "r"), ("f", 1, False, "q")],
    ]
    for batch in (0, 1, 1, 2):
        frame = spark.createDataFrame(batches[batch], "key STRING, number INT, gone BOOLEAN, `te-xt` STRING")
        marked(frame, batch)
    told["marked"] = [rows("marked"), len(rows("all_marked"))]

    told["refused"] = []
    wider = spark.createDataFrame([("a", 9, "x")], "key STRING, number BIGINT, more STRING")
    nobody = spark.createDataFrame([("a", 9, 0)], "key STRING, number BIGINT, position BIGINT")
    for frame in (wider, nobody):
        try:
            orders(frame, 0)
        except FailedPrecondition as error:
            told["refused"].append(str(error))
    return told


def main(format: str, folder: Path, jars: str) -> None:
    spark = started(format, folder, jars)
    if format == "delta":  # as folders: a catalog in memory would forget tables, and their logs with it
        told = story(spark, folder, DeltaTable, lambda table: f"delta.`{folder}/{table}`")
    else:
        told = story(spark, folder, IcebergTable, lambda table: f"lake.shop.{table}")
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
