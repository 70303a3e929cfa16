"""Whatever fails on the way, rows come out once and in order: tasks, sinks and brokers that go away and come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from inorder import Message
from inorder.broker import MessageQueue
from inorder.journal.incoming import Incoming, writer_of
from inorder.message import make_entry, to_columns
from inorder.patterns import Resequencer
from inorder.spark import resequence

from ..unit.spark.histories import expected
from .streams import SECOND, Stream, Times, by_key, generated


class Unlucky:
    """Tasks of a batch that fail at random, before their first row or after their last; each only so often."""

    def __init__(self, seed: int, folder: Path, tries: int) -> None:
        self.seed, self.folder, self.tries = seed, str(folder), tries

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = f"{self.seed}-{context.getLocalProperty('streaming.sql.batchId')}-{context.partitionId()}"
        failed = [name for name in os.listdir(self.folder) if name.startswith(f"{task}-")]
        random = Random(f"{task}-{len(failed)}")
        moment = random.choice(["before", "after", None]) if len(failed) < self.tries else None
        if moment is not None:
            Path(self.folder, f"{task}-{len(failed)}").touch()
        if moment == "before":
            raise OSError("a task that fails before it has written")
        yield from batches
        if moment == "after":
            raise OSError("a task that fails after it has written")


def test_tasks_and_commits_that_fail_at_random_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    stream, seed = Stream(spark, tmp_path), 1
    history = generated(seed, batches=2, rows=60)
    for _, rows in history:
        stream.put(*rows)
    marks = tmp_path / "marks"
    marks.mkdir()
    before, after = Unlucky(10 + seed, marks, 4), Unlucky(20 + seed, marks, 4)  # Spark tries as often
    failed: list[str] = []

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.mapInArrow(after, rows.schema).write.mode("overwrite").parquet(f"{stream.out}/batch_id={batch_id}")
        if f"commit {batch_id}" not in failed:
            failed.append(f"commit {batch_id}")
            raise OSError("before the commit")

    rows = stream.rows()
    operator = resequence(
        rows.mapInArrow(before, rows.schema),
        key="key", sequence="number", position="position", keep_dropped=True, initial=0,
    ).write(write)  # fmt: skip
    for _ in range(20):
        try:
            stream.run(operator)
            break
        except StreamingQueryException as error:
            failed.append(str(error))
    assert len(failed) > 2
    assert len([*marks.iterdir()]) > 3
    assert by_key(stream.told()) == expected(Resequencer(initial=0), history)[0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a broker."""
    with closing(MessageQueue.open(tmp_path / "data")) as queue:
        queue.register_topic("in", {"message_retention_duration": 86_400})
        queue.register_topic("out")
        queue.register_subscription("s", "out", {"enable_message_ordering": True})
    return tmp_path / "data"


def publish(folder: Path, *numbers: int) -> None:
    """By an owner that opens the folder and goes away again."""
    with closing(MessageQueue.open(folder)) as queue:
        queue.publish("in", [message(number) for number in numbers])


def message(number: int) -> Message:
    return Message(b"%d" % number, ordering_key="a", attributes={"sequence": str(number)})


def received(folder: Path) -> list[int]:
    found: list[int] = []
    with closing(MessageQueue.open(folder)) as queue:
        queue.take_in()
        while messages := queue.pull("s", 1_000):
            found += [int(message.data) for message in messages]
            queue.ack(messages)
    return found


def topic(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("inorder").options(url=str(folder), topic="in", **options).load()


def copying(spark: SparkSession, folder: Path, checkpoint: Path, **options: Any) -> StreamingQuery:
    """From one topic to the other, as messages come."""
    rows = topic(spark, folder, partitions=1).select("ordering_key", "data").writeStream.format("inorder")
    return rows.options(url=str(folder), topic="out", checkpointLocation=str(checkpoint), **options).start()


def wait_for(query: StreamingQuery, done: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if done():
            return
        query.awaitTermination(0.1)  # which raises what the query failed with
    raise AssertionError("it did not happen")


def read(query: StreamingQuery) -> int:
    """How many messages of its topic a query is done with."""
    if (progress := query.lastProgress) is None:
        return 0
    end: str = progress["sources"][0]["endOffset"]
    return int(json.loads(end)["position"])


def has_read_more(query: StreamingQuery, than: int) -> bool:
    return read(query) > than


def test_a_broker_that_goes_away_and_comes_back_is_read_on_and_written_on(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    query = copying(spark, data, tmp_path / "checkpoint")
    try:
        publish(data, 1, 2, 3)
        wait_for(query, lambda: read(query) == 3)
        publish(data, 4, 5)  # which also publishes what the query wrote while nobody owned the folder
        wait_for(query, lambda: read(query) == 5)
    finally:
        query.stop()
    assert received(data) == [1, 2, 3, 4, 5]


OWNER = """
import sys
from inorder import Message
from inorder.broker import MessageQueue

queue = MessageQueue.open(sys.argv[1])
for number in range(int(sys.argv[2]), 1_000_000):
    queue.publish("in", [Message(b"%d" % number, ordering_key="a")])
    print(number, flush=True)
"""


def test_a_broker_that_is_killed_loses_nothing_that_a_query_reads_or_writes(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    random, begin = Random(5), 0
    query = copying(spark, data, tmp_path / "checkpoint")
    try:
        for _ in range(3):
            command = [sys.executable, "-c", OWNER, str(data), str(begin)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
                assert owner.stdout is not None
                for _ in range(random.randrange(20, 100)):
                    owner.stdout.readline()
                before = read(query)
                wait_for(query, partial(has_read_more, query, before))
                owner.kill()
                owner.stdout.read()
            with closing(MessageQueue.open(data)) as queue:
                begin = stored(spark, data)
                queue.take_in()
        wait_for(query, lambda: read(query) == begin)
    finally:
        query.stop()
    assert received(data) == [*range(begin)]


def stored(spark: SparkSession, data: Path) -> int:
    return spark.read.format("inorder").options(url=str(data), topic="in").load().count()


def test_an_attempt_that_spark_does_not_count_is_not_published(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """As a speculative task leaves one: it has staged the same rows for the same batch, and lost."""
    stray = to_columns([make_entry(b"1", None, "a")])
    Incoming(data).stage(writer_of("out", "copy"), 0, [stray])
    publish(data, 1, 2)
    query = copying(spark, data, tmp_path / "checkpoint", writer="copy")
    try:
        wait_for(query, lambda: read(query) == 2)
        Incoming(data).stage(writer_of("out", "copy"), 0, [stray])
    finally:
        query.stop()
    assert received(data) == [1, 2]
    assert received(data) == []


def test_a_gap_is_given_up_although_no_message_comes(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    publish(data, 2)
    rows = topic(spark, data, tickSeconds="0.01").selectExpr(
        "ordering_key AS key", "cast(attributes['sequence'] AS BIGINT) AS number", "position"
    )
    told: list[Any] = []
    done = threading.Event()

    def collect(outcome: DataFrame, batch_id: int) -> None:
        for row in outcome.collect():
            told.append((batch_id, row["_fate"], row["number"]))
            done.set()

    operator = resequence(rows, key="key", sequence="number", position="position", gap_timeout="20 seconds")
    # A clock by which ten seconds pass from batch to batch: the first has the row, the third has waited long enough.
    query = operator.write(collect).start(str(tmp_path / "checkpoint"), clock=Times(count(0, 10 * SECOND)))
    try:
        wait_for(query, done.is_set)
    finally:
        query.stop()
    assert told == [(2, "gap", 1), (2, "released", 2)]
