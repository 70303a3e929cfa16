"""The source and the sink over the wire: a server in a process of its own, and no folder in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from inorder.broker import MessageQueue
from inorder.cli import main
from inorder.errors import FailedPrecondition, InvalidArgument, Unavailable
from inorder.patterns import slot_of
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.spark.logs import open_log
from inorder.spark.sink import SinkOptions
from inorder.spark.source import SourceOptions
from inorder.spark.staging import open_staging
from inorder.spark.topics import open_topic, read
from inorder.spark.wire import Server
from inorder.transport.address import parse

from .servers import ServerProcess, message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a topic `in` that has some messages, and a topic `out`."""
    folder = tmp_path / "server"
    with closing(MessageQueue.open(folder)) as queue:
        for name in ("in", "out"):
            queue.register_topic(name, {"message_retention_duration": 3600})
        for number in range(10):
            queue.publish("in", [message(f"{chr(97 + key)}{number}") for key in range(10)])
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(folder)
    yield process
    process.close()


def table(spark: SparkSession, url: str, topic: str = "in", **options: Any) -> DataFrame:
    return spark.read.format("inorder").options(url=url, topic=topic, **options).load()


def texts(rows: DataFrame) -> list[str]:
    return [row.data.decode() for row in rows.orderBy("position").collect()]


ALL = [f"{chr(97 + key)}{number}" for number in range(10) for key in range(10)]


# -- without Spark ---------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_was_when_the_server_is_killed(tmp_path: Path) -> None:
    with closing(MessageQueue.open(tmp_path)) as queue:
        queue.register_topic("in", {"message_retention_duration": 3600})
        for _ in range(30):  # more than is on its way at a time
            queue.publish("in", [message("x" * 200_000) for _ in range(10)])
    with closing(ServerProcess(tmp_path)) as server:
        topic = open_topic(server.url, "in")
        (wanted,) = topic.slices(0, topic.bounds().end, 1)
        batches = read(server.url, tuple(wanted))
        positions = next(batches).column("position").to_pylist()
        server.killed_and_started()
        for batch in batches:
            positions += batch.column("position").to_pylist()
    assert positions == [*range(300)]


def test_what_is_staged_is_there_when_the_server_is_killed_and_is_committed_once(server: ServerProcess) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield pa.RecordBatch.from_pydict({"data": [f"{number}"], "ordering_key": ["k"]})
            server.killed_and_started()

    with open_staging(server.url, "out") as staging:
        parts = staging.stage("w", 0, rows())
        staging.commit("w", 0, parts)
        server.killed_and_started()
        staging.commit("w", 0, parts)
        server.wait_for("out", 3)
        staging.commit("w", 0, parts)
        staging.discard("w", 0, parts)
    topic = open_topic(server.url, "out")
    found = [batch.column("data").to_pylist() for one in topic.slices(0, 100, 1) for batch in read(server.url, one)]
    assert found == [[b"0", b"1", b"2"]]


def stage_and_commit(url: str, topic: str, writer: str, epoch: int, text: str) -> None:
    with open_staging(url, topic) as staging:
        rows = pa.RecordBatch.from_pydict({"data": [text]})
        staging.commit(writer, epoch, staging.stage(writer, epoch, iter([rows])))


def test_a_writer_that_changes_between_the_folder_and_its_server_publishes_an_epoch_once(
    server: ServerProcess, folder: Path
) -> None:
    for epoch, urls in enumerate([(server.url, str(folder)), (str(folder), server.url)]):
        for url in urls:  # the driver dies before it has noted its batch, which then comes again
            stage_and_commit(url, "out", "w", epoch, f"{epoch}")
            server.wait_for("out", epoch + 1)
    stage_and_commit(server.url, "out", "w", 2, "2")
    server.wait_for("out", 3)
    (wanted,) = open_topic(server.url, "out").slices(0, 100, 1)
    assert [batch.column("data").to_pylist() for batch in read(server.url, wanted)] == [[b"0", b"1", b"2"]]


def test_a_topic_is_the_same_one_in_its_folder_and_at_its_server(server: ServerProcess, folder: Path) -> None:
    """So a query may change between them."""
    bounds = open_topic(server.url, "in").bounds()
    assert bounds == open_topic(str(folder), "in").bounds()
    assert bounds.created_us > 0


def test_positions_are_found_by_time_and_by_size(server: ServerProcess) -> None:
    topic = open_topic(server.url, "in")
    assert (topic.position_at(0), topic.position_at(2**60)) == (0, 100)
    assert topic.position_after(0, 1_000_000) == 100


def test_a_task_that_fails_removes_what_it_has_staged(server: ServerProcess, folder: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for key in ("k", ""):
            yield pa.RecordBatch.from_pydict({"data": ["x"], "ordering_key": [key]})

    with open_staging(server.url, "out") as staging, pytest.raises(InvalidArgument, match="key cannot be empty"):
        staging.stage("w", 0, rows())
    assert not [*folder.glob("incoming/*/*.part")]


def test_a_server_that_does_not_come_back_is_named() -> None:
    with closing(Server(parse("grpc://127.0.0.1:1?timeout=0.2"))) as server:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            server.call("Describe", v1.DescribeRequest(), v1.Description)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            next(server.read(v1.ReadTopicRequest))


# -- with Spark ------------------------------------------------------------------------------------


def test_a_topic_of_a_server_is_a_table(spark: SparkSession, server: ServerProcess) -> None:
    assert texts(table(spark, server.url, startingPosition=1, endingPosition=4)) == ["b0", "c0", "d0"]
    assert texts(open_log(spark, server.url, None, {"topic": "in"}).rows) == ALL  # as an audit reads it
    with pytest.raises(InvalidArgument, match="is a server: name the topic"):
        open_log(spark, server.url, None, {})
    rows = (
        table(spark, server.url, partitionBy="key", partitions=4)
        .selectExpr("ordering_key", "position", "spark_partition_id() AS task")
        .collect()
    )
    assert {(row.ordering_key, row.task) for row in rows} == {
        (chr(97 + key), slot_of(chr(97 + key)) * 4 // 4096) for key in range(10)
    }
    for key in {row.ordering_key for row in rows}:
        positions = [row.position for row in rows if row.ordering_key == key]
        assert positions == sorted(positions)
        assert len(positions) == 10


def test_wrong_addresses_are_named(spark: SparkSession, server: ServerProcess) -> None:
    with pytest.raises(PySparkException, match="Topic not found: elsewhere"):
        table(spark, server.url, "elsewhere").collect()
    with pytest.raises(InvalidArgument, match="unknown option 'colour'; there are project, timeout"):
        SourceOptions.of({"url": f"{server.url}?colour=red", "topic": "in"})
    with pytest.raises(InvalidArgument, match="grpc://host:port"):
        SinkOptions.of({"url": "http://127.0.0.1:80", "topic": "in"})


@pytest.mark.usefixtures("spark")
def test_an_audit_shows_the_token_of_its_server_to_nobody(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, page = f"{server.url}?token=secret", tmp_path / "audit.html"
    wanted = ["--sequence", "position", "--html", str(page), "--json"]
    assert main(["audit", url, *wanted]) == 2
    assert capsys.readouterr().err == f"inorder: {server.url} is a server: name the topic\n"
    main(["audit", url, "--topic", "in", *wanted])
    assert f'"source": "topic in in {server.url}"' in capsys.readouterr().out
    assert f"Order audit: topic in in {server.url}<" in page.read_text()


def test_a_stream_through_a_server_that_is_killed_publishes_each_row_once(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    batches: list[int] = []

    def write(rows: DataFrame, number: int) -> None:
        if number == 0:
            server.killed_and_started()  # when it is known what the batch is, and before it is read
        out = rows.repartition(2, "ordering_key").sortWithinPartitions("position").select("ordering_key", "data")
        options = {"url": server.url, "topic": "out", "epoch": number, "writer": "copy"}
        out.write.format("inorder").options(**options).mode("append").save()
        if number == 1:
            server.killed_and_started()  # before Spark has noted that the batch is done
        batches.append(number)

    def run() -> None:
        rows = spark.readStream.format("inorder").options(url=server.url, topic="in", maxRowsPerTrigger=50).load()
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()  # the driver dies before it has noted its last batch: it comes again
    run()
    assert batches == [0, 1, 1]
    server.wait_for("out", 100)
    of_key: dict[str, list[str]] = {}
    for text in texts(table(spark, server.url, "out")):
        of_key.setdefault(text[0], []).append(text)
    assert of_key == {chr(97 + key): [f"{chr(97 + key)}{number}" for number in range(10)] for key in range(10)}


def test_a_query_writes_to_a_server_and_a_failed_one_leaves_nothing(
    spark: SparkSession, server: ServerProcess, folder: Path, tmp_path: Path
) -> None:
    rows = spark.readStream.format("inorder").options(url=server.url, topic="in").load()
    query = (
        rows.selectExpr("ordering_key", "upper(decode(data, 'utf-8')) AS data")
        .writeStream.format("inorder")
        .options(url=server.url, topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    server.wait_for("out", 100)
    assert sorted(texts(table(spark, server.url, "out"))) == sorted(text.upper() for text in ALL)
    wrong = spark.range(0, 100, 1, 2).selectExpr("'x' AS data", "if(id = 99, '', 'k') AS ordering_key")
    with pytest.raises(PySparkException, match="Ordering key cannot be empty"):
        wrong.write.format("inorder").options(url=server.url, topic="out").mode("append").save()
    assert not [*folder.glob("incoming/*/*.part")]
    assert table(spark, server.url, "out").count() == 100


PIPELINE = """
name = "copy"
checkpoint = "./checkpoint"

[source]
format = "inorder"
url = "{url}"
topic = "in"
sql = "SELECT ordering_key, data, position FROM source"

[[transform]]
sql = "SELECT ordering_key, upper(decode(data, 'utf-8')) AS data FROM rows"

[sink]
format = "inorder"
url = "{url}"
topic = "out"

[trigger]
available_now = true
"""


def test_a_pipeline_reads_from_a_server_and_writes_to_it(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(url=server.url))
    assert main(["pipeline", "explain", str(file)]) == 0
    assert "the server publishes a batch once" in capsys.readouterr().out
    assert main(["pipeline", "run", str(file)]) == 0
    assert main(["pipeline", "run", str(file)]) == 0
    server.wait_for("out", 100)
    assert sorted(texts(table(spark, server.url, "out"))) == sorted(text.upper() for text in ALL)


def test_a_topic_that_was_made_again_is_another(server: ServerProcess) -> None:
    topic = open_topic(server.url, "in")
    ((name, serial, *rest),) = topic.slices(0, 1, 1)
    with pytest.raises(FailedPrecondition, match="was deleted and created again"):
        next(read(server.url, (name, serial + 1, *rest)))


def test_a_topic_that_is_made_again_while_a_batch_is_planned_is_not_read_for_the_old_one(
    server: ServerProcess, folder: Path
) -> None:
    topic = open_topic(server.url, "in")
    end = topic.bounds().end
    server.kill()
    with closing(MessageQueue.open(folder)) as queue:
        queue.unregister_topic("in")
        queue.register_topic("in", {"message_retention_duration": 3600})
        queue.publish("in", [message(text) for text in ALL])
    server.start()
    (wanted,) = topic.slices(0, end, 1)
    with pytest.raises(FailedPrecondition, match="was deleted and created again"):
        next(read(server.url, tuple(wanted)))
