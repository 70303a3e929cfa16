"""Rows that tie: what decides between them is the same whether they come as a table or as a stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from inorder.spark import latest, resequence

NAN = float("nan")
SCHEMA = (
    "key STRING, number BIGINT, event STRING, place STRUCT<partition: INT, offset: BIGINT>, "
    "size DOUBLE, items ARRAY<INT>, tags MAP<STRING, INT>, "
    "parts STRUCT<tags: MAP<STRING, INT>, size: DOUBLE>, lists ARRAY<MAP<STRING, ARRAY<INT>>>, "
    "name STRING COLLATE UTF8_LCASE, names ARRAY<STRING COLLATE UTF8_LCASE>"
)
# Of each key two rows that differ only in one column; by its text, or as Arrow sorts it, the other one would be first.
LESS = {
    "place": (0, 9),
    "size": 1.0,
    "items": [9],
    "tags": {"a": 9},
    "parts": (None, None),
    "lists": [{"a": [9]}],
    "name": "B",
    "names": ["B"],
}
MORE = {
    "place": (0, 10),
    "size": NAN,
    "items": [10],
    "tags": {"a": 10},
    "parts": ({"x": 1}, 1.0),
    "lists": [{"a": [10]}],
    "name": "a",
    "names": ["a"],
}


def rows() -> list[tuple[Any, ...]]:
    return [
        (name, 1, "x", *({**LESS, name: which[name]}[other] for other in LESS))
        for name in LESS
        for which in (MORE, LESS)
    ]


def values(found: list[Any]) -> dict[str, str]:
    """Of each key, what it has in the column that differs."""
    return {row["key"]: repr(row[row["key"]]) for row in found}


def streamed(table: DataFrame, folder: Path, operator: Callable[[DataFrame], Any]) -> list[Any]:
    table.coalesce(1).write.parquet(str(folder / "in"))
    found: list[Any] = []
    stream = operator(table.sparkSession.readStream.schema(table.schema).parquet(str(folder / "in")))
    query = stream.write(lambda rows, batch_id: found.extend(rows.collect()))
    query.start(str(folder / "checkpoint"), trigger={"availableNow": True}).awaitTermination()
    return found


@pytest.mark.parametrize("which", ["latest", "resequence"])
def test_a_stream_and_a_table_choose_the_same_row(spark: SparkSession, tmp_path: Path, which: str) -> None:
    def operator(rows: DataFrame) -> Any:
        if which == "latest":
            return latest(rows, key="key", time="number", value="event")
        return resequence(rows, key="key", sequence="number", position="place")

    table = spark.createDataFrame(rows(), SCHEMA)
    chosen = operator(table).select("key", *LESS)
    plain = spark.createDataFrame(
        [(name, *(MORE if which == "latest" else LESS).values()) for name in LESS], chosen.schema
    )
    wanted = values(plain.collect())
    assert values(chosen.collect()) == wanted
    assert values(streamed(table, tmp_path, operator)) == wanted
