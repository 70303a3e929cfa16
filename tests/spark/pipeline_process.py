"""A driver of Spark that a test starts and kills: a topic, put in order into a table, and copied to another topic.

    python pipeline_process.py FOLDER

It says on its output what it is about to do, so that a test can choose a moment.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

import inorder.spark

ROWS_PER_BATCH = 200


def say(*words: object) -> None:
    print(*words, flush=True)


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2, 4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )


def main(folder: str) -> None:
    spark = session()
    inorder.spark.register(spark)
    topic = spark.readStream.format("inorder").option("url", f"{folder}/data").option("topic", "in")
    topic = topic.option("maxRowsPerTrigger", ROWS_PER_BATCH).option("partitions", 1)
    events = topic.load().selectExpr(
        "ordering_key AS key", "cast(attributes['sequence'] AS BIGINT) AS sequence", "position"
    )

    def write(rows: DataFrame, batch_id: int) -> None:
        say("writing", batch_id)
        rows.write.mode("overwrite").parquet(f"{folder}/table/batch_id={batch_id}")
        say("written", batch_id)

    ordered = inorder.spark.resequence(events, key="key", sequence="sequence", position="position", buckets=2)
    assert isinstance(ordered, inorder.spark.OrderedStream)
    in_order = ordered.write(write).start(f"{folder}/table-checkpoint", trigger={"availableNow": True})
    copied = (
        topic.load()
        .select("ordering_key", "data")
        .writeStream.format("inorder")
        .options(url=f"{folder}/data", topic="out", checkpointLocation=f"{folder}/out-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    for query in (in_order, copied):
        query.awaitTermination()
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
