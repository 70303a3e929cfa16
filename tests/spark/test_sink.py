"""Rows that become messages, each once, however often tasks and batches are tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from inorder import Message
from inorder.broker import MessageQueue
from inorder.journal.incoming import INCOMING, Incoming
from inorder.testing import ManualClock


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[MessageQueue]:
    broker = MessageQueue.open(tmp_path / "data", clock=ManualClock())
    broker.register_topic("out")
    broker.register_subscription("s", "out", {"enable_message_ordering": True})
    yield broker
    broker.close()


def received(queue: MessageQueue) -> list[Message]:
    queue.take_in()
    found: list[Message] = []
    while messages := queue.pull("s", 1_000):
        found += messages
        queue.ack(messages)
    return found


def save(rows: DataFrame, folder: Path, **options: Any) -> None:
    rows.write.format("inorder").options(url=str(folder), topic="out", **options).mode("append").save()


@pytest.fixture(params=["false", "true"], ids=["usual", "large"])
def any_arrow(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Whether texts come as Arrow has them, or as it has those of more than 2 GiB."""
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", request.param)
    yield
    spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.mark.usefixtures("any_arrow")
def test_rows_become_messages(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    rows = spark.sql(
        """SELECT * FROM VALUES ('a', X'00FF', map('x', '1')), (NULL, X'', NULL), ('ü', X'61', map())
        AS t(ordering_key, data, attributes)"""
    )
    save(rows, tmp_path / "data")
    found = {(message.ordering_key, message.data, tuple(message.attributes.items())) for message in received(queue)}
    assert found == {("a", b"\x00\xff", (("x", "1"),)), (None, b"", ()), ("ü", b"a", ())}


def test_rows_of_a_key_in_one_task_keep_their_order(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    rows = spark.range(20_000).selectExpr("concat('k', id % 7) AS ordering_key", "cast(id AS STRING) AS data", "id")
    save(
        rows.repartition(2, "ordering_key").sortWithinPartitions("id").drop("id"),
        tmp_path / "data",
    )
    of_key: dict[str | None, list[int]] = {}
    for message in received(queue):
        of_key.setdefault(message.ordering_key, []).append(int(message.data))
    assert of_key == {f"k{key}": [*range(key, 20_000, 7)] for key in range(7)}


def test_a_writer_with_a_name_writes_once(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'a' AS ordering_key, '1' AS data")
    save(rows, tmp_path / "data", writer="daily-2026-11-15")
    save(rows, tmp_path / "data", writer="daily-2026-11-15")
    assert len(received(queue)) == 1
    save(rows, tmp_path / "data", writer="daily-2026-11-15")
    save(rows, tmp_path / "data", writer="daily-2026-11-16")
    assert len(received(queue)) == 1


def test_tasks_that_fail_and_are_tried_again_write_once(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path
) -> None:
    marks = str(tmp_path)

    @udf("string")
    def fail_once(number):  # type: ignore[no-untyped-def] # Spark would take the hints for its own
        mark = os.path.join(marks, f"mark-{number}")
        if number % 50 == 49 and not os.path.exists(mark):
            open(mark, "w").close()
            raise RuntimeError("not now")
        return str(number)

    save(spark.range(0, 100, 1, 2).select(fail_once("id").alias("data")), tmp_path / "data")
    assert sorted(int(message.data) for message in received(queue)) == [*range(100)]
    assert not [*(tmp_path / "data" / INCOMING).glob("*/*.part")]


def test_a_write_that_fails_publishes_nothing_and_leaves_nothing(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path
) -> None:
    rows = spark.range(0, 1_000, 1, 4).selectExpr("if(id = 999, raise_error('no'), 'x') AS data")
    with pytest.raises(PySparkException):
        save(rows, tmp_path / "data")
    assert received(queue) == []
    assert not Incoming(tmp_path / "data").commits()


def stream(spark: SparkSession, source: Path, folder: Path, checkpoint: Path) -> None:
    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    query = (
        rows.selectExpr("'a' AS ordering_key", "value AS data")
        .writeStream.format("inorder")
        .options(url=str(folder), topic="out", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)


def add(source: Path, *texts: str) -> None:
    for text in texts:
        (source / f"{text}.txt").write_text(text)
        os.utime(source / f"{text}.txt", (int(text), int(text)))  # files are read in the order of their times


def test_a_stream_publishes_each_batch_once_although_it_is_replayed(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path
) -> None:
    source, folder, checkpoint = tmp_path / "source", tmp_path / "data", tmp_path / "checkpoint"
    source.mkdir()
    add(source, "1", "2", "3")
    stream(spark, source, folder, checkpoint)
    assert [message.data for message in received(queue)] == [b"1", b"2", b"3"]
    # The driver dies after our commit and before it has noted its own: the batch is run again.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    add(source, "4")
    stream(spark, source, folder, checkpoint)
    assert [message.data for message in received(queue)] == [b"4"]


def test_a_stream_needs_no_owner_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    with closing(MessageQueue.open(folder, clock=ManualClock())) as queue:
        queue.register_topic("out")
        queue.register_subscription("s", "out", {"enable_message_ordering": True})
    add(source, "1", "2")
    stream(spark, source, folder, tmp_path / "checkpoint")
    with closing(MessageQueue.open(folder, clock=ManualClock())) as queue:
        assert [message.data for message in received(queue)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("1 AS data", "column 'data': BINARY or STRING, not int"),
        ("'x' AS data, 1 AS ordering_key", "column 'ordering_key': STRING, not int"),
        ("'x' AS ordering_key", "column 'data' is missing"),
        ("'x' AS data, 'y' AS more", "column 'more' is no part of a message"),
        ("cast(NULL AS STRING) AS data", "row\\(s\\) are null"),
        ("'x' AS data, '' AS ordering_key", "Ordering key cannot be empty"),
        ("'x' AS data, map('goog-x', 'y') AS attributes", "goog"),
    ],
)
def test_rows_that_are_no_messages_are_refused(
    spark: SparkSession, queue: MessageQueue, tmp_path: Path, columns: str, problem: str
) -> None:
    with pytest.raises(PySparkException, match=problem):
        save(spark.sql(f"SELECT {columns}"), tmp_path / "data")
    assert received(queue) == []


def test_wrong_options_are_named(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'x' AS data")
    with pytest.raises(PySparkException, match="unknown option 'colour'"):
        save(rows, tmp_path / "data", colour="red")
    with pytest.raises(PySparkException, match="url and path: give one of them, not both"):
        save(rows, tmp_path / "data", path=str(tmp_path))
    with pytest.raises(PySparkException, match="cannot be written over"):
        rows.write.format("inorder").options(url=str(tmp_path / "data"), topic="out").mode("overwrite").save()
