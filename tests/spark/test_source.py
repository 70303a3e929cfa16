"""A topic as a table and as a stream, read beside its owner."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from inorder import Message
from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.patterns import slot_of
from inorder.spark.source import SourceOptions, StreamReader
from inorder.testing import ManualClock

DAY = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[MessageQueue]:
    broker = MessageQueue.open(tmp_path / "data", clock=clock)
    broker.register_topic("t", {"message_retention_duration": DAY})
    yield broker
    broker.close()


def publish(queue: MessageQueue, *texts: str, topic: str = "t") -> None:
    """The first letter is the key, "-" stands for none."""
    queue.publish(topic, [Message(text.encode(), ordering_key=None if text[0] == "-" else text[0]) for text in texts])


def table(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    reader = spark.read.format("inorder").option("url", f"file:{folder}").option("topic", "t")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def texts(rows: DataFrame) -> list[str]:
    return [row.data.decode() for row in rows.orderBy("position").collect()]


def test_a_topic_is_a_table(spark: SparkSession, queue: MessageQueue, tmp_path: Path, clock: ManualClock) -> None:
    publish(queue, "a1", "-2")
    clock.advance(5)
    queue.publish("t", [Message(b"", attributes={"x": "1", "ü": "ö"}, ordering_key="schlüssel")])
    rows = table(spark, tmp_path / "data").orderBy("position").collect()
    assert [(row.position, row.ordering_key, bytes(row.data), row.attributes) for row in rows] == [
        (0, "a", b"a1", None),
        (1, None, b"-2", None),
        (2, "schlüssel", b"", {"x": "1", "ü": "ö"}),
    ]
    times = [row.publish_time.replace(tzinfo=UTC) for row in rows]
    assert times == [datetime.fromtimestamp(1_700_000_000 + seconds, UTC) for seconds in (0, 0, 5)]


def test_positions_and_times_choose_what_is_read(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path, clock: ManualClock
) -> None:
    publish(queue, "a0", "a1", "a2")
    clock.advance(100)
    publish(queue, "a3", "a4")
    folder = tmp_path / "data"
    assert texts(table(spark, folder, startingPosition=1, endingPosition=4)) == ["a1", "a2", "a3"]
    assert texts(table(spark, folder, startingTimestamp="2023-11-14T22:13:30+00:00")) == ["a3", "a4"]
    assert texts(table(spark, folder, startingPosition="latest")) == []


def test_by_key_a_key_is_in_one_task_and_in_order(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    for round_ in range(20):
        publish(queue, *(f"{chr(97 + key)}{round_}" for key in range(20)), "-")
    rows = (
        table(spark, tmp_path / "data", partitionBy="key", partitions=4)
        .selectExpr("ordering_key", "position", "spark_partition_id() AS task")
        .collect()
    )
    assert len(rows) == 20 * 21
    tasks = {(row.ordering_key, row.task) for row in rows}
    assert len(tasks) == 21
    assert {task for key, task in tasks if key} == {slot_of(chr(97 + key)) * 4 // 4096 for key in range(20)}
    for key in {row.ordering_key for row in rows}:
        positions = [row.position for row in rows if row.ordering_key == key]
        assert positions == sorted(positions)


def test_several_tasks_read_a_range_each(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    for start in range(0, 250_000, 10_000):
        queue.publish("t", [Message(b"%d" % number) for number in range(start, start + 10_000)])
    rows = table(spark, tmp_path / "data", partitions=3)
    assert rows.rdd.getNumPartitions() == 2
    assert rows.selectExpr("count(*)", "sum(position)", "sum(cast(decode(data, 'utf-8') AS BIGINT))").collect() == [
        (250_000, sum(range(250_000)), sum(range(250_000)))
    ]


class Stream:
    """A query that remembers what each of its batches had."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint: Path, **options: Any) -> None:
        reader = spark.readStream.format("inorder").option("url", str(folder)).option("topic", "t")
        for name, value in options.items():
            reader = reader.option(name, value)
        self.batches: list[list[str]] = []
        self.dies = False  # before it has committed a batch
        self._writer = reader.load().writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._take)

    def _take(self, rows: DataFrame, number: int) -> None:
        self.batches.append(texts(rows))
        if self.dies:
            raise RuntimeError("killed")

    def run(self) -> list[list[str]]:
        """What there is now, in batches."""
        self.batches = []
        query = self._writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        return self.batches


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    publish(queue, "a1", "a2")
    stream = Stream(spark, tmp_path / "data", tmp_path / "checkpoint")
    assert stream.run() == [["a1", "a2"]]
    assert stream.run() == []
    publish(queue, "a3")
    assert Stream(spark, tmp_path / "data", tmp_path / "checkpoint").run() == [["a3"]]


def test_a_first_batch_that_comes_again_has_the_same_messages(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path
) -> None:
    publish(queue, "a0", "a1", "a2")
    folder, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    stream = Stream(spark, folder, checkpoint, startingPosition=1)
    stream.dies = True
    with pytest.raises(PySparkException, match="killed"):
        stream.run()
    publish(queue, "a3")
    again = Stream(spark, folder, checkpoint, startingPosition="latest")
    assert again.run() == [["a1", "a2"], ["a3"]]
    assert stream.batches == [["a1", "a2"]]


def test_a_topic_that_was_made_anew_during_the_first_batch_is_not_read(queue: MessageQueue, tmp_path: Path) -> None:
    def reader() -> StreamReader:
        return StreamReader(SourceOptions.of({"url": str(tmp_path / "data"), "topic": "t"}))

    publish(queue, "a1")
    first = reader()
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    queue.unregister_topic("t")
    queue.register_topic("t")
    publish(queue, "a2")
    again = reader()
    with pytest.raises(FailedPrecondition, match="deleted and created again"):
        again.partitions(again.initialOffset(), end)


def test_a_batch_has_no_more_rows_than_it_may(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    publish(queue, *(f"a{number}" for number in range(7)))
    batches = Stream(spark, tmp_path / "data", tmp_path / "checkpoint", maxRowsPerTrigger=3).run()
    assert [len(batch) for batch in batches] == [3, 3, 1]


def test_a_batch_has_about_as_many_bytes_as_it_may(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    for _ in range(40):
        queue.publish("t", [Message(bytes(100_000), ordering_key="a")] * 5)
    stream = Stream(spark, tmp_path / "data", tmp_path / "checkpoint", maxBytesPerTrigger=5_000_000)
    sizes = [len(batch) for batch in stream.run()]
    assert sum(sizes) == 200
    assert 3 <= len(sizes) <= 10


def test_a_checkpoint_that_retention_has_passed_is_an_error_or_a_jump(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path, clock: ManualClock
) -> None:
    publish(queue, "a1")
    folder, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    assert Stream(spark, folder, checkpoint).run() == [["a1"]]
    for number in range(150):
        queue.publish("t", [Message(bytes(1_000_000), ordering_key="a")])
        if number % 25 == 24:
            clock.advance(2 * DAY)
    publish(queue, "a9")
    with pytest.raises(PySparkException, match="no longer retained"):
        Stream(spark, folder, checkpoint).run()
    [batch] = Stream(spark, folder, checkpoint, failOnDataLoss="false").run()
    assert batch[-1] == "a9"
    assert len(batch) < 151


def test_a_topic_that_was_made_anew_is_not_read_by_an_old_checkpoint(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path
) -> None:
    publish(queue, "a1")
    Stream(spark, tmp_path / "data", tmp_path / "checkpoint").run()
    queue.unregister_topic("t")
    queue.register_topic("t")
    publish(queue, "a2")
    with pytest.raises(PySparkException, match="deleted and created again"):
        Stream(spark, tmp_path / "data", tmp_path / "checkpoint").run()


def test_what_is_missing_is_named(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="Topic not found: x"):
        table(spark, tmp_path / "data", topic="x").count()
    with pytest.raises(PySparkException, match="there is no folder"):
        table(spark, tmp_path / "nothing").count()


def test_a_stream_has_no_end_that_it_would_pass(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="endingPosition: a table ends somewhere, and a stream goes on"):
        StreamReader(SourceOptions.of({"url": str(tmp_path), "topic": "t", "endingPosition": "3"}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'url' is missing"),
        ({"url": "x"}, "option 'topic' is missing"),
        ({"url": "x", "topic": "t", "offset": "1"}, "unknown option 'offset'"),
        ({"url": "x", "path": "y", "topic": "t"}, "url and path: give one of them, not both"),
        ({"url": "x", "topic": "t", "startingPosition": "-1"}, "startingPosition: "),
        (
            {"url": "x", "topic": "t", "startingPosition": "soon"},
            "startingPosition: 'earliest', 'latest' or a position",
        ),
        ({"url": "x", "topic": "t", "startingTimestamp": "soon"}, "startingTimestamp: a time as ISO 8601"),
        ({"url": "x", "topic": "t", "startingPosition": "1", "startingTimestamp": "2026-01-01"}, "give one of them"),
        ({"url": "x", "topic": "t", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger: a whole number of at least 1"),
        ({"url": "x", "topic": "t", "maxBytesPerTrigger": "many"}, "maxBytesPerTrigger: a number"),
        ({"url": "x", "topic": "t", "partitionBy": "user"}, "partitionBy: 'position' or 'key'"),
        ({"url": "x", "topic": "t", "failOnDataLoss": "perhaps"}, "failOnDataLoss: true or false"),
        ({"url": "x", "topic": "t", "tickSeconds": "0"}, "tickSeconds: above 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        SourceOptions.of(options)
