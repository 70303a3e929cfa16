"""Odd columns, lines, options, zones and folders: each gives the right result, or an error that says what is wrong."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType

from inorder import Message
from inorder.broker import MessageQueue
from inorder.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, NotRetained
from inorder.journal.columns import in_utf8
from inorder.journal.incoming import INCOMING
from inorder.journal.reading import JournalReader
from inorder.patterns.encoding import digest
from inorder.spark import Audit, audit, latest, resequence
from inorder.spark.logs import open_log
from inorder.spark.sink import SinkOptions
from inorder.spark.source import Part, SourceOptions, StreamReader, TableReader
from inorder.spark.staging import open_staging
from inorder.spark.topics import check_topic
from inorder.spark.winners import checksum


def broker(folder: Path, *texts: str) -> None:
    """Without texts it is made, and with them they are published."""
    with closing(MessageQueue.open(folder)) as queue:
        if not texts:
            queue.register_topic("t", {"message_retention_duration": 86_400})
        else:
            queue.publish("t", [Message(text.encode(), ordering_key="k") for text in texts])


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia"])
def test_times_without_a_zone_are_in_the_order_in_which_they_are_written(spark: SparkSession, zone: str) -> None:
    times = ["2026-03-07 21:30:00", "2026-03-07 22:10:00", "2026-03-08 01:59:00", "2026-03-08 02:30:00.000001"]
    times += ["2026-03-08 03:00:00", "2026-11-01 00:59:59", "2026-11-01 01:30:00"]
    values = ", ".join(f"({place}, 'a', timestamp_ntz'{time}')" for place, time in enumerate(times))
    log = spark.sql(f"SELECT * FROM VALUES {values} AS log (place, k, at)")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert str(audit(log, key="k", time="at", position="place")) == f"in order: {len(times)} events of 1 key"
        found = audit(log, key="k", time="at", position="-place").findings
        assert found.reordered == len(times) - 1
        [first] = [one for one in found.violations if one.position == "-3"]
        assert (first.value, first.time_us) == (1_772_937_000_000_001, 20_559_599_999_999)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("name", ["_inorder_same", "_inorder_first", "_inorder_rank", "_inorder_is_gap", "_FATE"])
def test_columns_of_ours_are_not_written_over_those_of_the_rows(spark: SparkSession, name: str) -> None:
    rows = spark.sql(f"SELECT 'a' AS k, 1 AS n, 'mine' AS `{name}`")
    with pytest.raises(InvalidArgument, match=f"the rows have a column '{name}' already"):
        resequence(rows, key="k", sequence="n", gap_timeout=1)


def test_a_deletion_is_not_written_over_a_column_of_the_rows(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'a' AS k, 1 AS n, 'mine' AS `_Deleted`")
    with pytest.raises(InvalidArgument, match="the rows have a column '_Deleted' already"):
        latest(rows, key="k", time="n", value="_Deleted")


def test_keys_that_a_collation_takes_for_one_are_two_in_a_table_as_in_a_stream(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT collate(k, 'UTF8_LCASE') AS k, n FROM VALUES ('a', 1), ('A', 1), ('a', 2), ('A', 2) t(k, n)"
    )
    found = resequence(rows, key="k", sequence="n", keep_dropped=True).collect()
    assert sorted((row["k"], row["n"], row["_fate"]) for row in found) == [
        (key, number, "released") for key in "Aa" for number in (1, 2)
    ]


def test_a_topic_that_was_set_back_is_not_read_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    broker(folder)
    broker(folder, "a", "b")
    shutil.copytree(folder, copy)
    broker(folder, "c", "d")

    def reader(**options: str) -> StreamReader:
        return StreamReader(SourceOptions.of({"url": str(folder), "topic": "t", **options}))

    begin = reader().initialOffset()
    read = reader().latestOffset(begin, ReadAllAvailable())
    assert read["position"] == 4
    running = reader()
    assert running.latestOffset(read, ReadAllAvailable()) == read
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    for query in (reader(), running):
        with pytest.raises(DataLoss, match="ends before position 2, and the query has read up to 4"):
            query.latestOffset(read, ReadAllAvailable())
    with pytest.raises(DataLoss, match="ends before position 2, and the query has read up to 4"):
        reader().partitions(begin, read)  # a batch that is run again
    goes_on = reader(failOnDataLoss="false").latestOffset(read, ReadAllAvailable())
    assert goes_on["position"] == 2
    assert reader(failOnDataLoss="false").partitions(read, goes_on) == []
    ahead = reader(startingPosition="9").initialOffset()  # to wait for a position that is still to come is no loss
    assert reader(startingPosition="9").latestOffset(ahead, ReadAllAvailable())["position"] == 9


def test_a_topic_of_a_new_folder_is_another_one(tmp_path: Path) -> None:
    """Else a query would pass over as many messages of the new one as it has read of the old."""
    folder = tmp_path / "data"

    def reader() -> StreamReader:
        return StreamReader(SourceOptions.of({"url": str(folder), "topic": "t"}))

    broker(folder)
    broker(folder, "a", "b")
    begin = reader().initialOffset()
    read = reader().latestOffset(begin, ReadAllAvailable())
    folder.rename(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", folder)
    assert reader().latestOffset(read, ReadAllAvailable()) == read, "a copy is the same topic"
    shutil.rmtree(folder)
    broker(folder)
    broker(folder, "c", "d", "e")
    with pytest.raises(FailedPrecondition, match="deleted and created again"):
        reader().latestOffset(read, ReadAllAvailable())
    with pytest.raises(FailedPrecondition, match="deleted and created again"):
        reader().partitions(begin, read)  # a batch that is run again
    of_older_release = {name: value for name, value in read.items() if name != "created_us"}
    assert reader().latestOffset(of_older_release, ReadAllAvailable())["position"] == 3


def test_a_table_too_goes_on_behind_what_is_no_longer_retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker(tmp_path)
    for text in "abcd":
        broker(tmp_path, text)
    # Whole segments are dropped, which are large: so we say that it has happened.
    monkeypatch.setattr(JournalReader, "begin", lambda self, topic: 2)
    options = {"url": str(tmp_path), "topic": "t", "startingPosition": "0"}
    with pytest.raises(NotRetained):
        TableReader(SourceOptions.of(options)).partitions()
    [part] = TableReader(SourceOptions.of({**options, "failOnDataLoss": "false"})).partitions()
    assert isinstance(part, Part)
    assert part.slice[1:3] == (2, 4)


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "1e300"])
def test_a_tick_is_some_time(seconds: str) -> None:
    with pytest.raises(InvalidArgument, match="tickSeconds: above 0, up to 31536000, not "):
        SourceOptions.of({"url": "x", "topic": "t", "tickSeconds": seconds})


def test_a_tick_may_be_as_short_as_one_likes(tmp_path: Path) -> None:
    broker(tmp_path)
    reader = StreamReader(SourceOptions.of({"url": str(tmp_path), "topic": "t", "tickSeconds": "1e-9"}))
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["tick"] > 0


def test_both_limits_of_a_batch_hold(tmp_path: Path) -> None:
    broker(tmp_path)
    for _ in range(3):
        broker(tmp_path, *("x" * 100_000 for _ in range(20)))
    options = {"url": str(tmp_path), "topic": "t", "maxRowsPerTrigger": "1000", "maxBytesPerTrigger": "1"}
    reader = StreamReader(SourceOptions.of(options))
    assert reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())["position"] < 60


def test_there_are_no_more_tasks_than_keys_can_be_dealt_out_to(tmp_path: Path) -> None:
    broker(tmp_path)
    with closing(MessageQueue.open(tmp_path)) as queue:
        queue.publish("t", [Message(b"x"), Message(b"y", ordering_key="k")])
    options = {"url": str(tmp_path), "topic": "t", "partitionBy": "key", "partitions": "1000000000"}
    reader = TableReader(SourceOptions.of(options))
    parts = reader.partitions()
    assert len(parts) == 4_096
    found = [row for part in parts[:2] for batch in reader.read(part) for row in batch.column("data").to_pylist()]
    assert found == [b"x"]  # what has no key is in the first, and only there


def test_large_messages_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    broker(tmp_path)
    for _ in range(8):
        broker(tmp_path, "x" * 9_900_000)
    reader = TableReader(SourceOptions.of({"url": str(tmp_path), "topic": "t"}))
    batches = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
    assert batches == [6, 2]  # below 64 MiB, where a column takes 2 GiB at most


@pytest.mark.parametrize("url", ["file://[x", "file://data", "file:", "s3://bucket/data", "c:data"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'file:'.*, not '{re.escape(url)}'"):
        SourceOptions.of({"url": url, "topic": "t"})


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file:{}?sync=none", "file:~/a%20b"])
def test_a_folder_is_meant_by_the_same_words_as_by_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "a b"
    broker(folder)
    broker(folder, "x")
    named = str(folder) if form == "{}" else str(folder).replace(" ", "%20")
    reader = TableReader(SourceOptions.of({"url": form.format(named), "topic": "t"}))
    [batch] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.column("data").to_pylist() == [b"x"]


def test_an_epoch_that_nobody_would_ever_publish_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="epoch: a whole number of at least 0, up to 9223372036854775807"):
        SinkOptions.of({"url": "x", "topic": "t", "writer": "w", "epoch": "9" * 26})


def save(spark: SparkSession, folder: Path, columns: str, **options: Any) -> None:
    rows = spark.sql(f"SELECT {columns}")
    rows.write.format("inorder").options(**{"url": str(folder), "topic": "t", **options}).mode("append").save()


def test_rows_are_not_written_where_no_broker_is(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no folder"):
        save(spark, tmp_path / "typo", "'x' AS data")
    assert not (tmp_path / "typo").exists()


def test_rows_are_not_written_to_a_topic_that_a_folder_does_not_have(spark: SparkSession, tmp_path: Path) -> None:
    broker(tmp_path)
    with pytest.raises(PySparkException, match="Topic not found: typo"):
        save(spark, tmp_path, "'x' AS data", topic="typo")
    assert not (tmp_path / INCOMING).exists()
    with closing(MessageQueue.open(tmp_path)) as queue:
        queue.register_topic("typo")
        save(spark, tmp_path, "'x' AS data", topic="typo")  # seen although it was looked for before
        queue.unregister_topic("typo")
        with pytest.raises(PySparkException, match="Topic not found: typo"):
            save(spark, tmp_path, "'x' AS data", topic="typo")


def test_a_topic_that_was_there_is_looked_up_in_the_folder_that_is_there_now(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker(folder)
    check_topic(str(folder), "t")
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="there is no folder"):
        check_topic(str(folder), "t")
    broker(folder)
    check_topic(str(folder), "t")


@pytest.mark.parametrize("name", ["ordering_key", "attributes"])
def test_bytes_that_are_no_text_are_told_by_their_column(name: str) -> None:
    text = pa.array([b"a", b"\xff"]).view(pa.string())
    made = {"ordering_key": text, "attributes": pa.MapArray.from_arrays([0, 1, 2], text, text)}
    rows = pa.RecordBatch.from_pydict({"data": ["x", "y"], name: made[name]})
    with pytest.raises(InvalidArgument, match=f"column '{name}': a text in it is not UTF-8"):
        in_utf8(rows)
    found = in_utf8(pa.RecordBatch.from_pydict({"data": text}))
    assert found.column("data").to_pylist() == [b"a", b"\xff"]


def test_a_key_that_is_no_text_is_told_by_its_column(spark: SparkSession, tmp_path: Path) -> None:
    broker(tmp_path)
    with pytest.raises(PySparkException, match="column 'ordering_key': a text in it is not UTF-8"):
        save(spark, tmp_path, "'x' AS data, cast(X'61FF' AS STRING) AS ordering_key")


def test_a_writer_to_two_topics_publishes_the_same_epoch_to_both(tmp_path: Path) -> None:
    with closing(MessageQueue.open(tmp_path)) as queue:
        for topic in ("orders", "bills"):
            queue.register_topic(topic)
            queue.register_subscription(topic, topic)
    for topic in ("orders", "bills"):  # as a function does that gets the batches of a query, and before anybody looks
        with open_staging(str(tmp_path), topic) as staging:
            rows = pa.RecordBatch.from_pydict({"data": [topic]})
            staging.commit("query", 0, staging.stage("query", 0, iter([rows])))
    with closing(MessageQueue.open(tmp_path)) as queue:
        queue.take_in()
        for topic in ("orders", "bills"):
            assert [message.data.decode() for message in queue.pull(topic, 10)] == [topic]


def test_a_task_that_fails_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    broker(tmp_path)
    with pytest.raises(PySparkException, match="cannot be empty"):
        save(spark, tmp_path, "'x' AS data, '' AS ordering_key")
    assert not [*(tmp_path / INCOMING).glob("*/*.part")]


def audited(spark: SparkSession, file: Path, **options: str) -> Audit:
    log = open_log(spark, str(file), None, options)
    return audit(log.rows, key="k", sequence="n", position=log.position)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut.jsonl", '{"k":"a","n":1}\n\n{"k":"a","n":2}\n{"k":"a","n":1'),
        ("pretty.json", '[\n{"k":"a",\n"n":1},\n{"k":"a","n":3}\n]'),
        ("short.csv", "n,k\n1,a\n2,a\n1\n"),
    ],
)
def test_a_line_that_cannot_be_read_is_not_in_order(spark: SparkSession, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((PySparkException, Py4JJavaError), match=r"(?i)malformed"):
        audited(spark, tmp_path / name)
    assert audited(spark, tmp_path / name, mode="PERMISSIVE").findings.unkeyed


@pytest.mark.parametrize("schema", [None, "k STRING, n BIGINT, at BIGINT"])
def test_a_line_that_spark_passes_over_is_not_in_order_either(
    spark: SparkSession, tmp_path: Path, schema: str | None
) -> None:
    (tmp_path / "log.json").write_text('{"k":"a","n":1,"at":1}\n{"k":"a","n":2,"at":2}\n{"k":"a","n":1,"at"')
    rows = spark.read.json(str(tmp_path), schema)
    for position in ("at", "coalesce(at, 9)") if schema is None else ("at",):
        with pytest.raises(PySparkException, match="the log has a line that Spark could not read"):
            audit(rows, key="k", sequence="n", position=position)
    assert str(audit(rows.where("at > 0"), key="k", sequence="n", position="at")) == "in order: 2 events of 1 key"


def test_blank_lines_and_several_lines_of_a_value_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    for name, text, options in (
        ("blank.jsonl", '{"k":"a","n":1}\n\n{"k":"a","n":2}\n', {}),
        ("blank.csv", "k,n,v\na,1,x\n\na,2,y\n", {}),
        ("lines.csv", 'k,n,v\na,1,x\na,2,"y\nz"\n', {"multiLine": "true"}),
    ):
        (tmp_path / name).write_text(text)
        assert str(audited(spark, tmp_path / name, **options)) == "in order: 2 events of 1 key"


def test_the_checksum_of_any_text_is_that_of_the_pure_patterns(spark: SparkSession) -> None:
    texts = [*map(chr, range(256)), 'x\x1f\\u001F"\n\x0b', "\\u001F", "ü🙈\u2028\x1a"]
    rows = spark.createDataFrame([(text,) for text in texts], "v string").select(checksum(F.col("v"), StringType()))
    assert [row[0] for row in rows.collect()] == [int(digest(text)[:8], 16) for text in texts]
