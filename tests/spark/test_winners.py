"""`latest` and `merge_fields` against their pure patterns, as tables and as streams."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from inorder.clock import MICROSECONDS, SystemClock
from inorder.errors import FieldOwnedTwice, InvalidArgument, StateRefused
from inorder.patterns import IndependentFields, LastWriteWins, fold
from inorder.patterns.encoding import digest
from inorder.spark.streams import OrderedStream
from inorder.spark.winners import ahead_of_time, checksum, latest, merge_fields

from .streams import Stream

WRITES = "key STRING, time BIGINT, producer STRING, value BINARY"
FACTS = "key STRING, event_type STRING, time BIGINT, placed_at BIGINT, note STRING, shipped_at BIGINT"
OWNS = {"OrderPlaced": ["placed_at", "note"], "OrderShipped": ["shipped_at"]}


def writes(seed: int, count: int) -> list[Any]:
    """Few keys, times and producers, so that ties of every kind are among them."""
    random = Random(seed)
    values = [None, b"", b"a", b"b", b"\xff"]
    return [
        (f"key-{random.randrange(9)}", random.randrange(12), random.choice(["", "app", "web"]), random.choice(values))
        for _ in range(count)
    ]


def winners(events: list[Any]) -> dict[str, Any]:
    """The write of each key that is released last."""
    return {event[0]: event for event in fold(LastWriteWins(max_drift_seconds=None), events).of("released")}


def facts(seed: int, count: int) -> list[Any]:
    random = Random(seed)
    found = []
    for _ in range(count):
        key, time = f"order-{random.randrange(7)}", random.randrange(9)
        if random.random() < 0.5:
            note = random.choice([None, "", 'a "quoted" größe', "b\\c\n"])
            found.append((key, "OrderPlaced", time, random.choice([None, random.randrange(5)]), note, None))
        else:
            found.append((key, "OrderShipped", time, None, None, random.randrange(5)))
    return found


def merged(rows: list[Any]) -> dict[str, Any]:
    pattern = IndependentFields(OWNS)
    events = []
    for key, kind, time, *values in rows:
        named = dict(zip(["placed_at", "note", "shipped_at"], values, strict=True))
        events.append((key, kind, time, {name: named[name] for name in OWNS[kind] if named[name] is not None}))
    states = fold(pattern, events).states
    return {key: pattern.read(states.get(key)) for key in {row[0] for row in rows}}


class Told:
    """What a query told: of each key what it was told last, and of each batch its keys."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self.keys: list[list[str]] = []

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = [row.asDict() for row in rows.collect()]
        self.newest.update({row["key"]: row for row in found})
        self.keys.append([row["key"] for row in found])


def run(stream: Any, checkpoint: Path) -> dict[str, Any]:
    """The rows of a stream by key, as they are in the end."""
    assert isinstance(stream, OrderedStream)
    told = Told()
    stream.write(told).start(str(checkpoint), trigger={"availableNow": True}).awaitTermination()
    assert all(len(keys) == len(set(keys)) for keys in told.keys)
    return told.newest


def run_as_dataframe(stream: Any, checkpoint: Path) -> dict[str, Any]:
    """The same by Spark's own aggregation."""
    told = Told()
    writer = stream.dataframe().writeStream.outputMode("update").foreachBatch(told)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return told.newest


def streamed(spark: SparkSession, rows: list[Any], schema: str, folder: Path) -> DataFrame:
    for batch in range(3):
        spark.createDataFrame(rows[batch::3], schema).coalesce(1).write.parquet(str(folder / str(batch)))
    reader = spark.readStream.schema(schema).option("recursiveFileLookup", True).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def test_the_greatest_write_of_each_key_stays(spark: SparkSession, tmp_path: Path) -> None:
    rows = writes(1, 400)
    wanted = {key: (*event, event[3] is None) for key, event in winners(rows).items()}
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value", "producer": "producer"}
    table = latest(spark.createDataFrame(rows, WRITES), **options).collect()
    assert {row["key"]: tuple(row) for row in table} == wanted
    stream = latest(streamed(spark, rows, WRITES, tmp_path / "in"), **options)
    for found in (run(stream, tmp_path / "checkpoint"), run_as_dataframe(stream, tmp_path / "aggregated")):
        assert {key: tuple(row.values()) for key, row in found.items()} == wanted


def test_each_field_has_its_newest_value(spark: SparkSession, tmp_path: Path) -> None:
    rows = facts(2, 300)
    options: Mapping[str, Any] = {"key": "key", "event_type": "event_type", "time": "time", "owns": OWNS}
    wanted = merged(rows)

    def present(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        return {
            key: {name: value for name, value in row.items() if name != "key" and value is not None}
            for key, row in found.items()
        }

    table = merge_fields(spark.createDataFrame(rows, FACTS), **options).collect()
    assert present({row["key"]: row.asDict() for row in table}) == wanted
    stream = merge_fields(streamed(spark, rows, FACTS, tmp_path / "in"), **options)
    assert present(run_as_dataframe(stream, tmp_path / "aggregated")) == wanted
    # A key of which no row wrote anything is not told.
    assert present(run(stream, tmp_path / "checkpoint")) == {key: fields for key, fields in wanted.items() if fields}


def test_checksums_are_the_beginnings_of_the_digests_of_the_pure_patterns(spark: SparkSession) -> None:
    values: list[tuple[str, list[Any]]] = [
        ("BINARY", [b"", b"x", b"\x00\xff"]),
        ("STRING", ["", "a", 'say "größe"', "back\\slash\n\ttab", "/", "😀"]),
        ("BIGINT", [0, -5, 2**63 - 1]),
        ("BOOLEAN", [True, False]),
    ]
    for kind, some in values:
        table = spark.createDataFrame([(value,) for value in some], f"value {kind}")
        found = table.select(checksum(table["value"], table.schema["value"].dataType)).collect()
        assert [f"{row[0]:08x}" for row in found] == [digest(value)[:8] for value in some], kind


def test_what_decides_a_tie_does_not_depend_on_the_session(spark: SparkSession) -> None:
    found = []
    for zone, ignored in (("UTC", "true"), ("Asia/Kathmandu", "false")):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        session.conf.set("spark.sql.jsonGenerator.ignoreNullFields", ignored)
        table = session.sql("SELECT timestamp_micros(0) AS at, struct(null AS no, 1 AS yes) AS parts")
        [row] = table.select(*(checksum(table[name], table.schema[name].dataType) for name in table.columns)).collect()
        found.append(tuple(row))
    assert found[0] == found[1]


def test_what_ties_in_all_but_its_content_comes_to_the_same_in_any_order(spark: SparkSession) -> None:
    """The two values have one CRC-32."""
    writes = [("a", 1, "", b"plumless"), ("a", 1, "", b"buckeroo"), ("b", 1, "", b"x"), ("b", 1, "", None)]
    for rows in (writes, writes[::-1]):
        table = spark.createDataFrame(rows, WRITES).coalesce(1)
        found = latest(table, key="key", time="time", value="value").collect()
        assert {row["key"]: (row["value"], row["_deleted"]) for row in found} == {
            "a": (b"plumless", False),
            "b": (None, True),
        }


def test_columns_of_any_type_and_name_go_along(spark: SparkSession) -> None:
    schema = "key STRING, time BIGINT, value BINARY, tags MAP<STRING, INT>, `a.b` ARRAY<MAP<INT, INT>>, kind STRING"
    rows = [("a", 2, b"new", {"x": 2}, [{1: 2}], "t"), ("a", 1, b"old", {"x": 1}, None, "t")]
    for others in ([], ["tags"], ["`a.b`"], ["tags", "`a.b`"]):
        table = spark.createDataFrame(rows, schema).select("key", "time", "value", *others)
        [row] = latest(table, key="key", time="time", value="value").collect()
        known = {"key": "a", "time": 2, "value": b"new", "tags": {"x": 2}, "a.b": [{1: 2}]}
        assert row.asDict() == {**{name: known[name] for name in table.columns}, "_deleted": False}
    table = spark.createDataFrame(rows, schema)
    owns = {"t": ["tags", "value", "a.b"]}
    [row] = merge_fields(table, key="key", event_type="kind", time="time", owns=owns).collect()
    assert row.asDict() == {"key": "a", "tags": {"x": 2}, "value": b"new", "a.b": [{1: 2}]}


def test_a_time_too_far_ahead_is_left_out(spark: SparkSession) -> None:
    far = 2**62
    table = spark.createDataFrame([("a", 1, "", b"now"), ("a", far, "", b"then")], WRITES)
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value"}
    assert [row["value"] for row in latest(table, **options).collect()] == [b"now"]
    assert [row["value"] for row in ahead_of_time(table, time="time").collect()] == [b"then"]
    assert [row["value"] for row in latest(table, **options, max_drift=None).collect()] == [b"then"]
    assert [row["value"] for row in latest(table, **options, stamps="hybrid", max_drift="1 day").collect()] == [b"now"]


def test_how_far_ahead_a_time_is_depends_on_the_moment(spark: SparkSession, tmp_path: Path) -> None:
    now_us = SystemClock().now_us()
    times = {
        "past": now_us - 86_400 * MICROSECONDS,
        "soon": now_us + 30 * MICROSECONDS,
        "later": now_us + 3_600 * MICROSECONDS,
    }
    rows = [(key, time, "", b"") for key, time in times.items()]
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value", "max_drift": "1 minute"}
    table = spark.createDataFrame(rows, WRITES)
    assert {row["key"] for row in latest(table, **options).collect()} == {"past", "soon"}
    assert [row["key"] for row in ahead_of_time(table, time="time").collect()] == ["later"]
    found = run(latest(streamed(spark, rows, WRITES, tmp_path / "in"), **options), tmp_path / "checkpoint")
    assert set(found) == {"past", "soon"}


def test_the_time_of_a_micro_batch_is_not_in_generated_code(spark: SparkSession, tmp_path: Path) -> None:
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value"}
    stream = latest(streamed(spark, writes(3, 60), WRITES, tmp_path / "in"), **options)
    java: Any = spark._jvm
    classes = getattr(java.org.apache.spark.metrics.source, "CodegenMetrics$")
    compiled = getattr(classes, "MODULE$").METRIC_COMPILATION_TIME()
    run(stream, tmp_path / "first")
    before = compiled.getCount()
    run(stream, tmp_path / "second")
    assert compiled.getCount() == before


@pytest.mark.parametrize("bad", [(None, 1, "", b""), ("", 1, "", b""), ("a", None, "", b""), ("a", -1, "", b"")])
def test_a_write_that_cannot_be_read_is_an_error_or_left_out(spark: SparkSession, bad: Any) -> None:
    table = spark.createDataFrame([("k", 1, "", b"good"), bad], WRITES)
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value"}
    with pytest.raises(PySparkException, match="cannot be read"):
        latest(table, **options).collect()
    assert [row["value"] for row in latest(table, **options, invalid="drop").collect()] == [b"good"]


def test_a_row_of_no_known_type_is_an_error_or_left_out(spark: SparkSession) -> None:
    table = spark.createDataFrame([("a", "OrderSeen", 1, 1, None, None)], FACTS)
    options: Mapping[str, Any] = {"key": "key", "event_type": "event_type", "time": "time", "owns": OWNS}
    with pytest.raises(PySparkException, match="cannot be read"):
        merge_fields(table, **options).collect()
    assert merge_fields(table, **options, invalid="drop").collect() == []


def test_a_field_has_one_owner_and_columns_must_be_there(spark: SparkSession) -> None:
    table = spark.createDataFrame([], FACTS)
    columns: Mapping[str, Any] = {"key": "key", "event_type": "event_type", "time": "time"}
    with pytest.raises(FieldOwnedTwice):
        merge_fields(table, **columns, owns={"A": ["note"], "B": ["note"]})
    with pytest.raises(InvalidArgument, match="there is no column 'paid_at'"):
        merge_fields(table, **columns, owns={"A": ["paid_at"]})
    with pytest.raises(InvalidArgument, match="time: 'note' is string"):
        latest(table, key="key", time="note", value="note")


def test_what_no_row_may_have_or_be_is_refused(spark: SparkSession) -> None:
    table = spark.createDataFrame([], WRITES)
    options: Mapping[str, Any] = {"key": "key", "time": "time", "value": "value"}
    for name in ("_deleted", "_inorder_time"):
        with pytest.raises(InvalidArgument, match=f"a column '{name}' already"):
            latest(table.withColumnRenamed("producer", name), **options)
    had_one = table.withColumn("_deleted", lit(False))
    merge_fields(had_one, key="key", event_type="producer", time="time", owns={"A": ["value"]})  # which adds none
    with pytest.raises(InvalidArgument, match="two columns of one name"):
        latest(table.select("*", "value"), **options)
    with pytest.raises(InvalidArgument, match="value: 'key' is the key already"):
        latest(table, key="key", time="time", value="key")
    with pytest.raises(InvalidArgument, match="owns: 'key' is the key"):
        merge_fields(table, key="key", event_type="producer", time="time", owns={"A": ["key"]})
    with pytest.raises(InvalidArgument, match="buckets"):
        latest(table, **options, buckets=0)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path, "key STRING, time BIGINT, value STRING")


def newest(stream: Stream, **options: Any) -> Any:
    return latest(stream.rows(), **{"key": "key", "time": "time", "value": "value", "buckets": 2, **options})


@pytest.mark.parametrize("dies", ["before our commit", "before Spark's commit"])
def test_a_batch_that_comes_again_tells_and_stores_the_same(stream: Stream, dies: str) -> None:
    stream.put(("a", 2, "x"), ("b", 1, "x"))
    stream.run(newest(stream))
    stream.put(("a", 1, "late"), ("b", 2, None), ("c", 1, "y"), ("c", 1, "y"), ("c", 1, "z"))
    seen: list[Any] = []

    def fragile(rows: DataFrame, batch_id: int) -> None:
        seen.append([tuple(row) for row in rows.collect()])
        if dies == "before our commit" and len(seen) == 1:
            raise OSError("the disk of the sink is full")

    query = newest(stream).write(fragile)
    if dies == "before our commit":
        assert "the disk of the sink is full" in stream.failure(query)
    else:
        stream.run(query)
        stream.forget_commit(1)
    first = stream.state_files()
    stream.run(query)
    assert [sorted(rows) for rows in seen] == [[("b", 2, None, True), ("c", 1, "y", False)]] * 2
    assert seen[0] == seen[1]
    assert first.items() <= stream.state_files().items()


def test_a_key_that_has_not_changed_is_not_told(stream: Stream) -> None:
    told = Told()
    for batch in ([("a", 5, "x"), ("b", 5, "x")], [("a", 4, "y"), ("a", 5, "x")], [], [("b", 6, "x")]):
        stream.put(*batch)
    stream.run(newest(stream).write(told))
    assert [sorted(keys) for keys in told.keys] == [["a", "b"], [], [], ["b"]]


def test_fields_of_every_type_come_back_from_the_state(spark: SparkSession, tmp_path: Path) -> None:
    """With a key that is a number, a time that is one, and a field that is the time."""
    values = {
        "flag": "true", "day": "DATE'2026-01-31'", "at": "TIMESTAMP'2026-01-31 12:00:00Z'", "price": "1.50BD",
        "local": "TIMESTAMP_NTZ'2026-01-31 12:00:00'", "data": "X'00FF'", "map": "map('m', array(1.5D))",
        "list": "array(struct(1 AS x, 'a' AS y))", "text": "'größe'", "small": "cast(7 AS TINYINT)",
    }  # fmt: skip
    columns = ", ".join(f"{value} AS `{name}`" for name, value in values.items())
    rows = spark.sql(f"SELECT cast(5 AS INT) key, 'A' kind, {columns}")
    later = spark.sql("SELECT cast(5 AS INT) key, 'B' kind, TIMESTAMP'2026-01-31 11:00:00Z' at, 'B' letter")
    for number, batch in enumerate((rows, later)):
        whole = batch.unionByName(rows.join(later, "key").limit(0).select("letter"), allowMissingColumns=True)
        whole.unionByName(rows.limit(0), allowMissingColumns=True).coalesce(1).write.parquet(f"{tmp_path}/in/{number}")
    schema = spark.read.parquet(f"{tmp_path}/in/0").schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("recursiveFileLookup", True)
    owns = {"A": [*values], "B": ["letter"]}
    merged: Any = merge_fields(source.parquet(f"{tmp_path}/in"), key="key", event_type="kind", time="at", owns=owns)
    found: list[Any] = []
    query = merged.write(lambda rows, batch_id: found.extend(rows.collect()))
    for zone in ("UTC", "Asia/Tokyo"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        query.start(f"{tmp_path}/checkpoint", trigger={"availableNow": True}).awaitTermination()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    [wanted] = rows.drop("kind").collect()
    assert [row.asDict() for row in found] == [{**wanted.asDict(), "letter": letter} for letter in (None, "B")]


def test_times_that_are_timestamps_come_out_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        "SELECT cast(id AS INT) key, TIMESTAMP'2026-01-31 12:00:00.123456Z' + make_interval(0, 0, 0, 0, 0, 0, n) at, "
        "array(n) value FROM range(3), VALUES (1), (3), (2) AS numbers(n)"
    )
    rows.write.parquet(f"{tmp_path}/in")
    stream = latest(spark.readStream.schema(rows.schema).parquet(f"{tmp_path}/in"), key="key", time="at", value="value")
    found = run(stream, tmp_path / "checkpoint")
    wanted = latest(rows, key="key", time="at", value="value")
    assert isinstance(wanted, DataFrame)
    assert found == {row["key"]: row.asDict() for row in wanted.collect()}
    assert {row["value"][0] for row in found.values()} == {3}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another bucket count": ({"buckets": 3}, "it has 2 buckets, not 3"),
    "another time": ({"time": "other"}, "it was made with key='key', time='time', value='value', not with key"),
    "another value": ({"value": "other"}, "value='value', not with key='key', time='time', value='other'"),
    "a producer": ({"producer": "value"}, "not with key='key', time='time', value='value', producer='value'"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_the_state_is_refused_at_the_start(stream: Stream, options: Any, reason: str) -> None:
    stream.schema += ", other BIGINT"
    stream.put(("a", 1, "x", 1))
    stream.run(newest(stream))
    with pytest.raises(StateRefused, match=reason):
        stream.run(newest(stream, **options))


def test_fields_may_change_their_owner_and_their_order_but_not_be_others(stream: Stream) -> None:
    stream.schema = "key STRING, time BIGINT, kind STRING, x BIGINT, y BIGINT"
    told = Told()

    def merged(owns: Any) -> Any:
        rows = stream.rows()
        return merge_fields(rows, key="key", event_type="kind", time="time", owns=owns, buckets=2).write(told)  # type: ignore[union-attr]

    stream.put(("a", 1, "A", 1, 1))
    stream.run(merged({"A": ["x"], "B": ["y"]}))
    stream.put(("a", 2, "B", 2, 2))
    stream.run(merged({"B": ["y", "x"]}))
    assert told.newest == {"a": {"key": "a", "x": 2, "y": 2}}
    with pytest.raises(StateRefused, match="y is gone"):
        stream.run(merged({"A": ["x"]}))


def test_a_row_that_cannot_be_read_stops_a_stream_or_is_left_out(stream: Stream) -> None:
    stream.put(("a", 1, "x"), (None, 1, "x"))
    assert "cannot be read" in stream.failure(newest(stream))
    told = Told()
    stream.run(newest(stream, invalid="drop").write(told))
    assert told.keys == [["a"]]
