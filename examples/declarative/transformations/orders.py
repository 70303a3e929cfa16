"""A topic as a streaming table, its events in order as another one, and what they come to.

An operator looks at the columns of its rows. Spark allows that only outside of the functions that define tables, so
the stream goes through the operator here, and a function hands it over.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import inorder.spark

spark = SparkSession.active()
inorder.spark.register(spark)

topic = spark.readStream.format("inorder").option("url", os.environ["INORDER_ORDERS"]).option("topic", "orders").load()
events = topic.selectExpr(
    "position",
    "ordering_key AS order_id",
    "CAST(attributes['sequence'] AS BIGINT) AS sequence",
    "decode(data, 'utf-8') AS event",
)
ordered = inorder.spark.resequence(
    events,
    key="order_id",
    sequence="sequence",
    position="position",
    buckets=2,  # about the cores: pipelines run over Spark Connect, where nobody counts them
).dataframe()


@dp.table
def arrived() -> DataFrame:
    """The events as they came, in whatever order that was."""
    return events


@dp.table
def in_order() -> DataFrame:
    """Each event once, and each order in its order: what is ahead of its turn waits for it."""
    return ordered


@dp.materialized_view
def progress() -> DataFrame:
    """How far each order has come."""
    return spark.read.table("in_order").groupBy("order_id").agg({"sequence": "max"}).toDF("order_id", "events")
