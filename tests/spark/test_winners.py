"""`latest` and `merge_fields` against their pure patterns, as tables and as streams."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from inorder.clock import MICROSECONDS, SystemClock
from inorder.errors import FieldOwnedTwice, InvalidArgument
from inorder.patterns import IndependentFields, LastWriteWins, fold
from inorder.patterns.encoding import digest
from inorder.spark.winners import ahead_of_time, checksum, latest, merge_fields

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


def run(stream: DataFrame, checkpoint: Path) -> dict[str, Any]:
    """The rows of a stream that is updated, by key, as they are in the end."""
    found: dict[str, Any] = {}

    def upsert(rows: DataFrame, batch_id: int) -> None:
        found.update({row["key"]: row.asDict() for row in rows.collect()})

    query = stream.writeStream.outputMode("update").foreachBatch(upsert).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return found


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
    found = run(latest(streamed(spark, rows, WRITES, tmp_path / "in"), **options), tmp_path / "checkpoint")
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
    assert present(run(stream, tmp_path / "checkpoint")) == wanted


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
