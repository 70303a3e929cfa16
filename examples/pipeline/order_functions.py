"""What pipeline.toml does in Python: a function gets the rows of a batch, and returns rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it


def with_amounts(rows: DataFrame) -> DataFrame:
    """What the events say as columns, and the amounts in euros."""
    event = F.from_json("event", "step STRING, cents BIGINT")
    return (
        rows.withColumn("step", event.step)
        .withColumn("euros", (event.cents / 100).cast("decimal(12, 2)"))
        .drop("event")
    )
