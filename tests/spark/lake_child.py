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

EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


def started(folder: Path, jars: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    settings = {
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        # Few rows, and each query once: to compile it would take longer than it does.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.driver.host": "127.0.0.1",
        "spark.databricks.delta.snapshotPartitions": "1",
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


def main(folder: Path, jars: str) -> None:
    spark = started(folder, jars)
    delta, iceberg = folder / "delta", folder / "iceberg"
    delta.mkdir()
    iceberg.mkdir()
    told = {
        # As folders: a catalog in memory would forget tables, and their logs with it.
        "delta": story(spark, delta, DeltaTable, lambda table: f"delta.`{delta}/{table}`"),
        "iceberg": story(spark, iceberg, IcebergTable, lambda table: f"lake.shop.{table}"),
    }
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
