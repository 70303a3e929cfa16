"""A stream into Delta and Iceberg: their tables hold the newest row of each key and all there were."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.spark.sinks.lakes import DeltaTable, IcebergTable, LakeTable

from . import lakes

SINKS = {"delta": DeltaTable, "iceberg": IcebergTable}


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one Spark tells that did everything with both: the second is done sooner by one that is warm."""
    return lakes.run(tmp_path_factory.mktemp("lakes"))


@pytest.mark.timeout(1200)  # it may have to fetch jars and a PySpark; later it takes a minute
@pytest.mark.parametrize("format", SINKS)
def test_tables_hold_the_newest_rows_and_all_there_were(all_told: dict[str, Any], format: str) -> None:
    told = all_told[format]

    newest, all_rows = [["a", 2, 0], ["b", 2, 4]], [["a", 1, 3], ["a", 2, 0], ["b", 1, 1], ["b", 2, 4]]
    assert told["runs"] == [[newest, all_rows], [newest, all_rows]], "a batch that comes again changes nothing"

    marked, history = told["marked"]
    assert marked == [["b", 1, "x"], ["c", 3, "x"], ["e", 1, "z"], ["f", 1, "r"]]
    assert history == 5 + 5 + 3

    lacking, nobody = told["refused"]
    assert "lacks columns of the rows: ALTER TABLE" in lacking
    assert "ADD COLUMNS (`more` string)" in lacking
    assert nobody.startswith("writer: here nobody knows the query")


@pytest.mark.parametrize("format", SINKS)
def test_a_session_that_does_not_know_the_format_is_told_how_to_start(spark: SparkSession, format: str) -> None:
    rows = spark.createDataFrame([("a", 1)], "key STRING, number INT")
    complaint = rf"^the table format {format} is not known to this session: start Spark with --packages .*:{format}-"
    for table in ("orders", "lake.shop.orders", f"{format}.`/nowhere/orders`"):
        for create in (True, False):
            with pytest.raises(FailedPrecondition, match=complaint):
                SINKS[format](table=table, key="key", newest_by="number", create=create)(rows, 0)


def test_jars_that_are_made_for_another_spark_are_named(spark: SparkSession) -> None:
    class Misfit(Exception):
        pass

    sink = DeltaTable(table="orders", key="key", newest_by="number")
    with (
        pytest.raises(
            FailedPrecondition, match=rf"jars of delta .* another Spark than {spark.version} \(java\.lang\.No"
        ),
        sink._in_words(spark),
    ):
        raise Misfit("An error occurred.\n: java.lang.NoSuchMethodError: 'void org.apache.spark…LogicalRDD.<init>(…)'")


@pytest.mark.parametrize("sink", SINKS.values())
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"table": "orders; DROP TABLE x"}, r"table: as in SQL, .*, not 'orders; DROP TABLE x'"),
        ({"history": "lake..orders"}, r"history: as in SQL, .*, not 'lake\.\.orders'"),
        ({"writer": ""}, r"writer: a name, not ''"),
        ({"key": None}, r"key: a column, or a list of columns, not None"),
    ],
)
def test_options_that_cannot_be_are_refused(sink: type[LakeTable], options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        sink(**{"table": "lake.shop.orders", "key": "key", "newest_by": "number", **options})


def test_of_two_rows_of_one_place_a_microsecond_decides_as_well(spark: SparkSession) -> None:
    sink = DeltaTable(table="orders", key="key", newest_by="number")
    for ids in ("1), (2", "2), (1"):
        rows = spark.sql(f"SELECT 'a' AS key, 1 AS number, timestamp_micros(id) AS time FROM VALUES ({ids}) AS t (id)")
        [newest] = sink._newest(rows).selectExpr("unix_micros(time) AS us").collect()
        assert newest.us == 2
