"""A stream into PostgreSQL: its tables hold the newest row of each key and all there were, whatever comes again."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from inorder.errors import FailedPrecondition, InvalidArgument, Unavailable
from inorder.spark.operators import resequence
from inorder.spark.sinks.jdbc import JdbcTable
from inorder.spark.streams import OrderedStream
from inorder.spark.winners import latest

from .. import postgres
from .streams import Stream


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with postgres.schema(postgres_url) as url:
        yield url


def run(url: str, statement: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def table(url: str, **options: Any) -> JdbcTable:
    return JdbcTable(**{"url": url, "table": "orders", "key": "key", "newest_by": "number", **options})


def test_a_stream_in_order_ends_in_a_table_and_its_history(spark: SparkSession, tmp_path: Path, url: str) -> None:
    stream = Stream(spark, tmp_path)
    stream.put(("a", 2, 0), ("b", 1, 1), ("a", 4, 2))
    stream.put(("a", 1, 3), ("b", 2, 4), ("b", 2, 5))
    sink = table(url, history="all_orders")
    ordered = resequence(stream.rows(), key="key", sequence="number", position="position", keep_dropped=True)
    for _ in range(2):
        stream.run(ordered.write(sink))
        assert run(url, "SELECT * FROM orders ORDER BY key") == [("a", 2, 0), ("b", 2, 4)]
        assert run(url, "SELECT key, number FROM all_orders ORDER BY 1, 2") == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
        stream.forget_commit(1)  # so the last batch comes again

    stream.put(("a", 3, 6))
    stream.run(ordered.write(sink))
    assert run(url, "SELECT * FROM orders ORDER BY key") == [("a", 4, 2), ("b", 2, 4)]


def test_what_is_latest_in_a_stream_goes_in_as_it_changes(spark: SparkSession, tmp_path: Path, url: str) -> None:
    stream = Stream(spark, tmp_path, "key STRING, time BIGINT, text STRING")
    stream.put(("a", 1, "x"), ("b", 1, "x"))
    stream.put(("a", 3, None), ("b", 2, "y"))
    stream.put(("a", 2, "late"))
    newest = latest(stream.rows(), key="key", time="time", value="text", max_drift=None)
    assert isinstance(newest, OrderedStream)
    stream.run(newest.write(table(url, newest_by="time", deleted="_deleted")))
    assert run(url, "SELECT * FROM orders") == [("b", 2, "y")]


def test_batches_in_any_order_and_more_than_once_leave_the_newest_rows(spark: SparkSession, url: str) -> None:
    random = Random(1)
    rows = [(f"key-{random.randrange(20)}", number, random.randrange(3), f"{number}") for number in range(300)]
    random.shuffle(rows)
    batches = [rows[start : start + 100] for start in range(0, 300, 100)]
    sink = table(url, newest_by=["time", "number"], history="all_orders", connections=3)
    for batch in (0, 2, 1, 2, 0):
        sink(spark.createDataFrame(batches[batch], "key STRING, number INT, time INT, text STRING"), batch)
    newest: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: (row[2], row[1])):
        newest[row[0]] = row
    assert run(url, "SELECT * FROM orders ORDER BY key") == sorted(newest.values())
    assert run(url, "SELECT * FROM all_orders ORDER BY number") == sorted(rows, key=lambda row: row[1])


def test_a_delete_removes_a_row_and_stays_in_the_history(spark: SparkSession, url: str) -> None:
    sink = table(url, deleted="gone", history="all_orders")
    batches = [
        [("a", 1, False), ("b", 1, None), ("c", 1, False), ("c", 2, True)],
        [("a", 2, True), ("b", 0, True), ("d", 1, True), ("c", 3, False)],
    ]
    for batch in (0, 1, 1):
        sink(spark.createDataFrame(batches[batch], "key STRING, number INT, gone BOOLEAN"), batch)
    assert run(url, "SELECT * FROM orders ORDER BY key") == [("b", 1), ("c", 3)]
    assert run(url, "SELECT * FROM all_orders WHERE gone ORDER BY key") == [
        ("a", 2, True), ("b", 0, True), ("c", 2, True), ("d", 1, True),
    ]  # fmt: skip


def test_of_two_rows_of_one_place_the_content_decides(spark: SparkSession, url: str) -> None:
    rows = [("a", 1, "of one name", text) for text in ("x", "z", "y")]
    for name, of in (("first", rows), ("second", rows[::-1])):
        table(url, table=name)(spark.createDataFrame(of, "key STRING, number INT, batch STRING, text STRING"), 0)
        assert run(url, f"SELECT text FROM {name}") == [("z",)]


def test_values_arrive_as_they_are(spark: SparkSession, url: str) -> None:
    schema = (
        "key STRING, number BIGINT, text STRING, small TINYINT, real FLOAT, double DOUBLE, flag BOOLEAN, day DATE,"
        "time TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(20, 4), bytes BINARY, list ARRAY<INT>,"
        '`a "b"{c}` STRUCT<x: INT, y: STRING>, map MAP<STRING, INT>'
    )
    moment = datetime(2026, 11, 15, 12, 30, 1, 234567, UTC)
    whole = (
        "k", 2**62, 'a,"b"\n\\N ü', -7, 0.5, float("inf"), True, date(2026, 11, 15), moment,
        moment.replace(tzinfo=None), Decimal("1234567890123456.7891"), b"\x00\xff", [1, 2], (1, "y"), {"m": 1},
    )  # fmt: skip
    empty = ("", 0, "", *[None] * 12)
    table(url)(spark.createDataFrame([whole, empty], schema), 0)
    first, second = run(url, "SELECT * FROM orders ORDER BY number")
    assert first == empty
    assert second == (*whole[:12], [1, 2], {"x": 1, "y": "y"}, {"m": 1})


def test_times_that_are_part_of_something_keep_their_microseconds(spark: SparkSession, url: str) -> None:
    time, local = "2026-11-15T12:30:01.234567", "timestamp_ntz'2026-11-15 12:30:01.234567'"
    rows = spark.sql(f"SELECT 'a' AS key, 1 AS number, struct(timestamp'{time}Z' AS x, {local} AS y) AS parts")
    table(url)(rows, 0)
    assert run(url, "SELECT parts FROM orders") == [({"x": f"{time}Z", "y": time},)]


def test_what_postgresql_has_no_name_for_is_the_text_that_spark_shows(spark: SparkSession, url: str) -> None:
    rows = spark.sql(
        "SELECT 'a' AS key, 1 AS number, INTERVAL '1 02:03' DAY TO MINUTE AS x, INTERVAL '1-2' YEAR TO MONTH"
    )
    table(url)(rows, 0)
    assert run(url, "SELECT * FROM orders") == [
        ("a", 1, "INTERVAL '1 02:03' DAY TO MINUTE", "INTERVAL '1-2' YEAR TO MONTH")
    ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_a_moment_is_the_same_in_any_session_also_where_offsets_had_seconds(
    spark: SparkSession, url: str, zone: str
) -> None:
    moments_us = [-62_000_000_000_000_000, -3_000_000_000_123_456, 0, 253_402_300_799_999_999]
    rows = spark.createDataFrame([*enumerate(moments_us)], "key INT, number BIGINT")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        table(url)(rows.selectExpr("key", "number", "timestamp_micros(number) AS time"), 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    found = run(url, "SELECT (extract(epoch FROM time) * 1000000)::bigint FROM orders ORDER BY key")
    assert [moment_us for (moment_us,) in found] == moments_us


def test_tables_of_ones_own_keep_their_types_and_need_an_index(spark: SparkSession, url: str) -> None:
    rows = spark.createDataFrame(
        [("a", 1, "0b7e8c1e-9d0b-4d5f-8d5b-3a1f0c9f3a11")], "key STRING, number INT, id STRING"
    )
    with pytest.raises(FailedPrecondition, match=r"table 'orders' does not exist, and create is False"):
        table(url, create=False)(rows, 0)
    run(url, "CREATE TABLE orders (key VARCHAR(10), number NUMERIC, note TEXT DEFAULT 'ours')")
    with pytest.raises(FailedPrecondition, match=r"'orders' lacks a column of the rows \(key, number, id\): .*\"id\""):
        table(url)(rows, 0)
    run(url, "ALTER TABLE orders ADD COLUMN id UUID")
    with pytest.raises(FailedPrecondition, match=r'CREATE UNIQUE INDEX ON "orders" \("key"\)'):
        table(url)(rows, 0)
    run(url, "CREATE UNIQUE INDEX ON orders (key)")
    run(url, "INSERT INTO orders (key) VALUES ('a')")  # before anybody counted
    table(url, create=False)(rows, 0)
    assert [(*row[:3], str(row[3])) for row in run(url, "SELECT * FROM orders")] == [
        ("a", 1, "ours", "0b7e8c1e-9d0b-4d5f-8d5b-3a1f0c9f3a11")
    ]


def test_a_row_without_a_key_or_its_place_is_refused_and_nothing_is_written(spark: SparkSession, url: str) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", None)], "key STRING, number INT")
    with pytest.raises(
        Exception, match=r'key, number: none may be null, and there is a row with {"key":"b","number":n'
    ):
        table(url, connections=1)(rows, 0)
    assert run(url, "SELECT * FROM orders") == []


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, url: str) -> None:
    run(url, "CREATE TABLE orders (key TEXT PRIMARY KEY, number INT CHECK (number < 5))")
    rows = spark.createDataFrame([("a", 1), ("b", 5)], "key STRING, number INT")
    with pytest.raises(PythonException, match="violates check constraint"):
        table(url, connections=1)(rows, 0)
    assert run(url, "SELECT * FROM orders") == []


def test_a_database_that_is_not_there_is_named(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1)], "key STRING, number INT")
    with pytest.raises(Unavailable, match="table 'orders': connection failed"):
        table("jdbc:postgresql://127.0.0.1:1/postgres?user=me&connect_timeout=5")(rows, 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"url": "mysql://me:secret@host/db"}, r"url: it begins with postgresql:// or .*, and this one with 'mysql'$"),
        ({"table": ""}, r"table: the name of a table, not ''"),
        ({"table": "shop..orders"}, r"table: as in 'orders' or 'shop\.orders', not 'shop\.\.orders'"),
        ({"history": 3}, r"history: the name of a table, not 3"),
        ({"history": "orders"}, r"history: another table than 'orders'"),
        ({"key": []}, r"key: a column, or a list of columns, not \[\]"),
        ({"newest_by": 5}, r"newest_by: a column, or a list of columns, not 5"),
        ({"newest_by": ["time", "key"]}, r"key, newest_by and deleted: 'key' is named twice"),
        ({"deleted": True}, r"deleted: the name of a column, not True"),
        ({"create": "yes"}, r"create: True or False, not 'yes'"),
        ({"connections": 0}, r"connections: a whole number of at least 1, not 0"),
        ({"connections": 101}, r"connections: up to 100, .*, not 101"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        table(**{"url": "postgresql://host/db", **options})


def test_rows_that_do_not_fit_are_refused_and_a_password_is_not_shown(spark: SparkSession) -> None:
    sink = table("postgresql://me:secret@host/db", deleted="gone")
    assert "secret" not in repr(sink)
    for schema, complaint in (
        ("key STRING, gone BOOLEAN", r"newest_by: there is no column 'number', only key, gone"),
        ("key STRING, number INT, gone STRING", r"deleted: 'gone' is string, and must be boolean"),
        ("key ARRAY<INT>, number INT, gone BOOLEAN", r"key: 'key' is array<int>, which has no order"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            sink.check(spark.createDataFrame([], schema).schema)
