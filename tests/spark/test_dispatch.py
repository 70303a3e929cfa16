"""`dispatch`: handlers see the rows of a key in order, and each row says what came of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from inorder.errors import InvalidArgument
from inorder.patterns import Events
from inorder.spark.dispatching import dispatch
from inorder.spark.operators import resequence

from .streams import Stream


def group(**options: Any) -> Events:
    events = Events(**options)

    @events.handles("OrderPlaced")
    def place(event: Any) -> Any:
        return {"placed": event["n"]}

    @events.handles("OrderPlaced", "OrderPaid")
    def count(event: Any) -> Any:
        return event["n"]

    return events


ROWS = [
    ("OrderPlaced", '{"n": 1}'),
    ("OrderPaid", '{"n": 2}'),
    ("OrderSeen", "{}"),
    (None, "{}"),
    ("OrderPaid", "no JSON"),
]


def test_each_row_says_what_came_of_it(spark: SparkSession) -> None:
    table = spark.createDataFrame(ROWS, "kind STRING, data STRING").coalesce(1)
    found = dispatch(table, group(), event_type="kind").collect()
    assert [(row["_event_type"], row["_verdict"], row["_results"]) for row in found] == [
        ("OrderPlaced", "run", {"place": '{"placed": 1}', "count": "1"}),
        ("OrderPaid", "run", {"count": "2"}),
        ("OrderSeen", "ack", {}),
        (None, "ack", {}),
        ("OrderPaid", "dead_letter", {}),
    ]
    assert "no handler is registered for 'OrderSeen'" in found[2]["_reason"]


def test_the_type_may_be_in_the_attributes_or_in_the_data(spark: SparkSession) -> None:
    table = spark.sql("SELECT map('event_type', 'OrderPaid') attributes, cast('{\"n\": 3}' AS BINARY) data")
    assert dispatch(table, group(), attributes="attributes").collect()[0]["_results"] == {"count": "3"}
    table = spark.sql('SELECT \'{"n": 4, "type": "OrderPaid"}\' data')
    assert dispatch(table, group(type_field="type")).collect()[0]["_results"] == {"count": "4"}


def test_a_policy_may_be_to_fail(spark: SparkSession) -> None:
    table = spark.createDataFrame(ROWS[2:3], "kind STRING, data STRING")
    with pytest.raises(Exception, match="no handler is registered for 'OrderSeen'"):
        dispatch(table, group(unknown="fail"), event_type="kind").collect()


def test_behind_a_resequencer_handlers_see_what_it_releases_in_order(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, "key STRING, number BIGINT, kind STRING, data STRING")
    stream.put(*(("a", number, "OrderPaid", json.dumps({"n": number})) for number in (3, 1, 5, 2, 2)))
    found: list[Any] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        found.extend((row["number"], row["_fate"], row["_verdict"], row["_results"]) for row in rows.collect())

    ordered = resequence(stream.rows(), key="key", sequence="number", keep_dropped=True)
    assert not isinstance(ordered, DataFrame)
    stream.run(dispatch(ordered, group(), event_type="kind").write(sink))
    assert found == [
        (1, "released", "run", {"count": "1"}),
        (2, "released", "run", {"count": "2"}),
        (2, "duplicate", None, None),
        (3, "released", "run", {"count": "3"}),
    ]


def test_what_follows_the_operator_may_change_columns_before_it(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, "key STRING, number BIGINT, event STRING")
    stream.put(("a", 1, '{"n": 1}'))
    found: list[Any] = []

    def changed(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("event AS data", "number", "'OrderPaid' AS kind", "key", "_fate")

    ordered = resequence(stream.rows(), key="key", sequence="number")
    assert not isinstance(ordered, DataFrame)
    dispatched = dispatch(ordered.followed_by(changed), group(), event_type="kind")
    stream.run(dispatched.write(lambda rows, batch_id: found.extend(row.asDict() for row in rows.collect())))
    results = {"_event_type": "OrderPaid", "_verdict": "run", "_reason": None, "_results": {"count": "1"}}
    row = {"data": '{"n": 1}', "number": 1, "kind": "OrderPaid", "key": "a", "_fate": "released"}
    assert found == [row | results]


def test_what_was_dispatched_is_not_dispatched_again(spark: SparkSession) -> None:
    table = dispatch(spark.createDataFrame(ROWS, "kind STRING, data STRING"), group(), event_type="kind")
    with pytest.raises(InvalidArgument, match="the rows have a column '_event_type' already"):
        dispatch(table, group(), event_type="kind")


def test_a_column_of_another_type_is_refused(spark: SparkSession) -> None:
    table = spark.createDataFrame(ROWS, "kind STRING, data STRING")
    with pytest.raises(InvalidArgument, match="attributes: 'kind' is string, and must be map<string,string>"):
        dispatch(table, group(), attributes="kind")
    with pytest.raises(InvalidArgument, match="data: there is no column 'body'"):
        dispatch(table, group(), data="body")
