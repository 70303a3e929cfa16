"""Data pipelines on Spark: topics as tables and streams, and the ordering patterns over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("inorder")` known to a session."""
    from inorder.spark.source import InorderSource

    spark.dataSource.register(InorderSource)
