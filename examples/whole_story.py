"""From publishers that get everything wrong to a table in order, with proof: what `make run` shows.

Three publishers number the events of many orders. On the way some are delayed, some are sent twice, one never
arrives and one cannot be read. A durable broker keeps what came. Spark audits that log, puts it in order as a
stream, into a table, and audits the table. Each audit is a page to look at.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader

import inorder.spark
from inorder import PubSub
from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.spark import Audit, audit, resequence
from inorder.spark.quiet import java_options
from inorder.testing import ManualClock

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark starts its workers by this name
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

FOLDER = Path("build/story")
ORDERS = 400
STEPS = ("placed", "paid", "packed", "shipped", "delivered", "reviewed", "returned", "refunded")
PUBLISHERS = 3
SEED = 7
started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)


def events_of(publisher: int) -> list[tuple[str, int, bytes]]:
    """What one publisher sends: its orders, step by step, then disordered as a bad network does it."""
    chance = random.Random(SEED + publisher)
    events = [
        (f"order-{order:04d}", number, json.dumps({"step": step}).encode())
        for number, step in enumerate(STEPS, start=1)
        for order in range(publisher, ORDERS, PUBLISHERS)
    ]
    # Each is late by up to the time that some hundred others take; a twentieth is sent again, much later.
    late = [(place + chance.uniform(0, 300), event) for place, event in enumerate(events)]
    late += [(place + chance.uniform(50, 900), event) for place, event in enumerate(events) if chance.random() < 0.05]
    return [event for _, event in sorted(late, key=lambda one: one[0])]


def publish(pubsub: PubSub) -> int:
    """All publishers at once. One event is lost on the way, and one arrives as nonsense."""
    topic = pubsub.topic("orders").create(message_retention_duration=7 * 86_400).result()
    count = 0

    def run(publisher: int) -> None:
        nonlocal count
        for order, number, data in events_of(publisher):
            if (order, number) == ("order-0007", 3):
                continue  # lost
            poison = (order, number) == ("order-0011", 5)
            topic.publish_message(
                b"\xff nonsense" if poison else data, attributes={"sequence": str(number)}, ordering_key=order
            )
            count += 1
        topic.flush().result()

    threads = [threading.Thread(target=run, args=(publisher,)) for publisher in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with PubSub(FOLDER / "data") as pubsub:
        say(f"a broker in {FOLDER}/data; {PUBLISHERS} publishers send the events of {ORDERS} orders ...")
        count = publish(pubsub)
        say(f"{count:,} events are in the journal; Spark starts ...")
        spark = session()
        say("an audit of what came ...")
        before = audited(orders(spark.read), "the topic, as it came", "before.html")
        say("a stream puts it in order, into a table ...")
        order(spark, now_us=SYSTEM_CLOCK.now_us())
        say("an hour later the stream goes on: what is missing is not waited for any longer ...")
        pubsub.topic("orders").publish_message(b"{}", attributes={"sequence": "1"}, ordering_key="order-9999").result()
        order(spark, now_us=SYSTEM_CLOCK.now_us() + 3600 * MICROSECONDS)
        say("an audit of the table ...")
        table = spark.read.parquet(str(FOLDER / "table")).where("_fate = 'released'")
        after = audited(table, "the table, in order", "after.html", allow=["gap"])
        rows, unreadable = table.count(), table.where("step IS NULL AND order_id <> 'order-9999'").count()
    print()
    print(f"  before   {before}")
    print(f"  after    {after}")
    print(f"           {rows:,} events in the table, {unreadable} of which cannot be read")
    print()
    print(f"  to look at  {FOLDER.resolve()}/before.html")
    print(f"              {FOLDER.resolve()}/after.html")
    spark.stop()
    if not after.in_order:
        sys.exit("the table is not in order")


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", java_options())  # quiet
        .getOrCreate()
    )
    inorder.spark.register(spark)
    return spark


def orders(reader: DataFrameReader | DataStreamReader) -> DataFrame:
    """The topic, with what the messages say as columns."""
    topic = reader.format("inorder").option("url", str(FOLDER / "data")).option("topic", "orders").load()
    return topic.selectExpr(
        "ordering_key AS order_id",
        "cast(attributes['sequence'] AS bigint) AS sequence",
        "position",
        "publish_time",
        "get_json_object(cast(data AS string), '$.step') AS step",
    )


def audited(rows: DataFrame, source: str, page: str, **options: Any) -> Audit:
    if "_fate" not in rows.columns:  # the table knows by its batches, files and rows in which order it was written
        options |= {"position": "position", "arrival_time": "publish_time"}
    found = audit(rows, key="order_id", sequence="sequence", source=source, **options)
    (FOLDER / page).write_text(found.as_html(), encoding="utf-8")
    return found


def order(spark: SparkSession, now_us: int) -> None:
    """Take the stream on to the end of the topic. It goes on where it stopped, with what waits in its state."""
    stream = resequence(
        orders(spark.readStream.option("maxRowsPerTrigger", 2_000)),
        key="order_id",
        sequence="sequence",
        position="position",
        gap_timeout="30 minutes",
    )
    written = stream.to_parquet(str(FOLDER / "table"))
    query = written.start(
        str(FOLDER / "checkpoint"), trigger={"availableNow": True}, clock=ManualClock(now_us / MICROSECONDS)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
