"""inorder.v1 by columns: topics read by positions, and epochs written in parts and committed once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import pyarrow as pa
import pytest

from inorder import Message
from inorder.broker import MessageQueue
from inorder.errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidMessage,
    InvalidName,
    NotRetained,
    TopicNotFound,
    Unavailable,
)
from inorder.journal.incoming import INCOMING, Incoming, writer_of
from inorder.options import SLOTS
from inorder.patterns import slot_of
from inorder.protocol.arrow import packed, unpacked
from inorder.testing import ManualClock

from .conftest import Running, Serve
from .extensions import Extensions
from .test_streaming import wait_until

TOPIC = "projects/inorder/topics/orders"
FOUR_MIB = 4 * 1024 * 1024


@pytest.fixture(params=["segments", "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path: Path, serve: Serve) -> Running:
    broker = MessageQueue.open(tmp_path / "data", journal=request.param)
    broker.register_topic("orders", {"message_retention_duration": 3600})
    broker.register_subscription("all", "orders")
    return serve(broker)


@pytest.fixture
def ours(server: Running) -> Extensions:
    return Extensions(server.channel())


def publish(server: Running, *texts: str) -> None:
    """The first letter is the key, "-" stands for none."""
    messages = [Message(text.encode(), ordering_key=None if text[0] == "-" else text[0]) for text in texts]
    server.broker.publish("orders", messages)


def rows(ours: Extensions, first: int, end: int, **fields: Any) -> Iterator[dict[str, Any]]:
    for answer in ours.ReadTopic(topic=TOPIC, first=first, end=end, **fields):
        for batch in unpacked(answer.batches):
            yield from batch.to_pylist()


def texts(ours: Extensions, first: int, end: int, **fields: Any) -> list[str]:
    return [row["data"].decode() for row in rows(ours, first, end, **fields)]


# -- reading ---------------------------------------------------------------------------------------


def test_a_topic_is_read_by_positions(server: Running, ours: Extensions) -> None:
    publish(server, "a0", "-1", "b2")
    server.broker.publish("orders", [Message(b"", attributes={"x": "1", "ü": "ö"}, ordering_key="schlüssel")])
    bounds = ours.TopicBounds(topic=TOPIC)
    assert (bounds.begin, bounds.end) == (0, 4)
    assert texts(ours, 1, 3) == ["-1", "b2"]
    assert texts(ours, 3, 3) == []
    (row,) = rows(ours, 3, 100)
    assert (row["position"], row["ordering_key"], row["data"]) == (3, "schlüssel", b"")
    assert row["attributes"] == [("x", "1"), ("ü", "ö")]
    publish(server, "c4")
    assert ours.TopicBounds(topic=TOPIC).end == 5
    assert [row["ordering_key"] for row in rows(ours, 0, 5)] == ["a", None, "b", "schlüssel", "c"]


def test_readers_share_the_slots_of_the_keys(server: Running, ours: Extensions) -> None:
    for number in range(10):
        publish(server, *(f"{chr(97 + key)}{number}" for key in range(20)), f"-{number}")
    seen: list[str] = []
    for part in range(4):
        slots = {"first_slot": SLOTS * part // 4, "end_slot": SLOTS * (part + 1) // 4}
        found = texts(ours, 0, 210, **slots)
        keys = {text[0] for text in found}
        assert all((0 if key == "-" else slot_of(key)) * 4 // SLOTS == part for key in keys)
        for key in keys:
            assert [text for text in found if text[0] == key] == [f"{key}{number}" for number in range(10)]
        seen += found
    assert len(seen) == len(set(seen)) == 210


def test_a_long_topic_comes_in_pieces_that_every_client_takes(server: Running, ours: Extensions) -> None:
    for start in range(0, 30, 5):
        server.broker.publish("orders", [Message(bytes(700_000), attributes={"n": str(start)}) for _ in range(5)])
    server.broker.publish("orders", [Message(bytes(9_000_000))])
    plain = Extensions(grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]))
    answers = [*plain.ReadTopic(topic=TOPIC, first=0, end=30)]
    assert len(answers) > 5
    assert max(len(answer.batches) for answer in answers) < FOUR_MIB
    assert [answer.end for answer in answers] == sorted({answer.end for answer in answers})
    positions = [row["position"] for answer in answers for b in unpacked(answer.batches) for row in b.to_pylist()]
    assert positions == [*range(30)]
    large = Extensions(grpc.insecure_channel(server.address, options=[("grpc.max_receive_message_length", -1)]))
    assert [len(row["data"]) for row in rows(large, 30, 31)] == [9_000_000]


def test_positions_are_found_by_time_and_by_size(tmp_path: Path, serve: Serve) -> None:
    clock = ManualClock()
    broker = MessageQueue.open(tmp_path, clock=clock)
    broker.register_topic("orders", {"message_retention_duration": 3600})
    server = serve(broker)
    ours = Extensions(server.channel())
    publish(server, "a0", "a1")
    clock.advance(100)
    publish(server, "a2")
    at = clock.now_us()
    assert ours.PositionAt(topic=TOPIC, time_us=at).position == 2
    assert ours.PositionAt(topic=TOPIC, time_us=at + 1).position == 3
    assert ours.PositionAt(topic=TOPIC, time_us=0).position == 0
    assert ours.PositionAfter(topic=TOPIC, first=0, bytes=1).position > 0


def test_a_topic_that_was_made_again_is_another(server: Running, ours: Extensions) -> None:
    publish(server, "a0")
    serial = ours.TopicBounds(topic=TOPIC).serial
    assert texts(ours, 0, 1, serial=serial) == ["a0"]
    server.broker.unregister_topic("orders")
    with pytest.raises(TopicNotFound, match="Topic not found: orders"):
        texts(ours, 0, 1, serial=serial)
    server.broker.register_topic("orders")
    publish(server, "b0")
    with pytest.raises(FailedPrecondition, match="was deleted and created again"):
        texts(ours, 0, 1, serial=serial)


def test_what_is_no_longer_kept_is_named(tmp_path: Path, serve: Serve) -> None:
    clock = ManualClock()
    broker = MessageQueue.open(tmp_path, clock=clock)
    broker.register_topic("orders", {"message_retention_duration": 60})
    server = serve(broker)
    ours = Extensions(server.channel())
    publish(server, "a0", "a1")
    assert texts(ours, 0, 2) == ["a0", "a1"]
    for text in ("a2", "a3"):
        broker._save()
        clock.advance(120)
        publish(server, text)
    broker._save()
    assert ours.TopicBounds(topic=TOPIC).begin == 2
    with pytest.raises(NotRetained, match="position 0 is no longer retained"):
        texts(ours, 0, 4)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"first": 2**63}, "first: a whole number"),
        ({"first_slot": 7, "end_slot": 7}, "first_slot and end_slot: 0 to 4096"),
        ({"end_slot": 4097}, "first_slot and end_slot: 0 to 4096"),
    ],
)
def test_what_cannot_be_read_is_named(server: Running, ours: Extensions, fields: dict[str, int], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        texts(ours, **{"first": 0, "end": 1, **fields})


# -- writing ---------------------------------------------------------------------------------------


def piece(*given: str, **more: Any) -> bytes:
    """Rows as bytes; the first letter is the key."""
    columns = {"data": [one.encode() for one in given], "ordering_key": [one[0] for one in given], **more}
    ((found, _),) = packed(pa.RecordBatch.from_pydict(columns))
    return found


def staged(ours: Extensions, *given: str, epoch: int = 0) -> str:
    name: str = ours.StagePart(topic=TOPIC, writer="w", epoch=epoch, batches=piece(*given)).part
    return name


def commit(ours: Extensions, *parts: str, epoch: int = 0) -> bool:
    first: bool = ours.CommitEpoch(topic=TOPIC, writer="w", epoch=epoch, parts=parts).first
    return first


def received(server: Running) -> list[str]:
    server.broker.take_in()
    found: list[str] = []
    while messages := server.broker.pull("all", 100):
        found += [message.data.decode() for message in messages]
        server.broker.ack(messages)
    return found


def test_an_epoch_is_published_when_it_is_committed_and_once(server: Running, ours: Extensions) -> None:
    first, second = staged(ours, "a1", "b1"), staged(ours, "a2")
    assert received(server) == []
    assert commit(ours, first, second)
    assert received(server) == ["a1", "b1", "a2"]
    assert not commit(ours, first, second)  # by who did not hear the answer
    assert not commit(ours, staged(ours, "a1", "b1", "a2"))  # by a task that ran again
    assert received(server) == []
    assert commit(ours, staged(ours, "a3", epoch=7), epoch=7)
    assert received(server) == ["a3"]


def test_an_epoch_may_have_nothing_in_it(server: Running, ours: Extensions) -> None:
    empty = pa.RecordBatch.from_pydict({"data": pa.array([], pa.binary())})
    ((batches, _),) = packed(empty)
    assert commit(ours, ours.StagePart(topic=TOPIC, writer="w", epoch=0, batches=batches).part)
    assert commit(ours, epoch=1)
    assert commit(ours, staged(ours, "a1", epoch=2), epoch=2)
    assert received(server) == ["a1"]
    assert not commit(ours, epoch=1)


def test_a_message_has_all_its_parts(server: Running, ours: Extensions) -> None:
    attributes = pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string()))
    batches = piece("a1", "b2", attributes=attributes)
    commit(ours, ours.StagePart(topic=TOPIC, writer="w", epoch=0, batches=batches).part)
    server.broker.take_in()
    found = [(one.ordering_key, one.data, dict(one.attributes)) for one in server.broker.pull("all", 10)]
    assert found == [("a", b"a1", {"x": "1"}), ("b", b"b2", {})]


def test_a_commit_survives_a_restart_and_so_does_that_it_was_made(tmp_path: Path, serve: Serve) -> None:
    def opened() -> tuple[Running, Extensions]:
        server = serve(MessageQueue.open(tmp_path, clock=ManualClock()))
        return server, Extensions(server.channel())

    server, ours = opened()
    server.broker.register_topic("orders")
    server.broker.register_subscription("all", "orders")
    part = staged(ours, "a1")
    server.close()
    server, ours = opened()
    assert commit(ours, part)
    server.close()
    server, ours = opened()
    assert received(server) == ["a1"]
    assert not commit(ours, part)
    server.close()
    server, ours = opened()
    assert not commit(ours, part)
    assert received(server) == []


def test_an_owner_that_died_while_it_forgot_an_epoch_is_not_stuck(server: Running, ours: Extensions) -> None:
    part = staged(ours, "a1")
    assert server.broker.folder is not None
    (folder,) = (server.broker.folder / INCOMING).iterdir()
    os.link(folder / part, folder / "kept")
    commit(ours, part)
    saved = {name: (folder / name).read_bytes() for name in os.listdir(folder) if name.endswith(".commit")}
    assert received(server) == ["a1"]
    for name, content in saved.items():
        (folder / name).write_bytes(content)  # as if only its parts had been removed
    (folder / "kept").unlink()
    assert commit(ours, staged(ours, "a2", epoch=1), epoch=1)
    assert received(server) == ["a2"]
    assert not [*folder.parent.glob("*/*.commit")]


def test_parts_are_discarded_unless_they_are_committed(server: Running, ours: Extensions) -> None:
    part = staged(ours, "a1")
    ours.DiscardParts(topic=TOPIC, writer="w", epoch=0, parts=[part])
    with pytest.raises(FailedPrecondition, match="was never staged, or discarded since"):
        commit(ours, part)
    part = staged(ours, "a2")
    commit(ours, part)
    ours.DiscardParts(topic=TOPIC, writer="w", epoch=0, parts=[part])
    assert received(server) == ["a2"]


def test_a_writer_of_another_topic_is_another_whatever_its_name(server: Running, ours: Extensions) -> None:
    server.broker.register_topic("others")
    other = f"{TOPIC[:-6]}others"
    part = staged(ours, "a1")
    with pytest.raises(FailedPrecondition, match="was never staged"):
        ours.CommitEpoch(topic=other, writer="w", epoch=0, parts=[part])
    ours.DiscardParts(topic=other, writer="w", epoch=0, parts=[part])
    assert ours.CommitEpoch(topic=other, writer="w", epoch=0, parts=[]).first
    server.broker.take_in()
    assert commit(ours, part)
    server.broker.unregister_topic("others")
    assert received(server) == ["a1"]


def test_what_a_writer_published_by_the_folder_it_does_not_publish_again_by_the_wire(
    server: Running, ours: Extensions
) -> None:
    assert server.broker.folder is not None
    Incoming(server.broker.folder).commit(writer_of("orders", "w"), 3, "orders", [])
    server.broker.take_in()
    assert not commit(ours, epoch=3)
    assert commit(ours, epoch=4)


def other_columns(**columns: Any) -> bytes:
    ((found, _),) = packed(pa.RecordBatch.from_pydict(columns))
    return found


def written(batch: pa.RecordBatch, **options: Any) -> bytes:
    """As other programs may write it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def compressed(kind: str) -> bytes:
    """Little that becomes much."""
    return written(pa.RecordBatch.from_pydict({"data": [bytes(1_000_000)]}), compression=kind)


def with_a_dictionary() -> bytes:
    return written(pa.RecordBatch.from_pydict({"data": pa.array(["a", "a"]).dictionary_encode()}))


WRONG: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception], str]] = {
    "no topic": (lambda: {"topic": f"{TOPIC}s"}, TopicNotFound, "Topic not found: orderss"),
    "no name": (lambda: {"topic": "orders"}, InvalidName, "Invalid resource name"),
    "a path": (lambda: {"writer": "../w"}, InvalidArgument, "writer: 1 to 200 letters"),
    "no writer": (lambda: {"writer": ""}, InvalidArgument, "writer: 1 to 200 letters"),
    "an epoch": (lambda: {"epoch": 2**63}, InvalidArgument, "epoch: a whole number"),
    "no Arrow": (lambda: {"batches": b"nonsense"}, InvalidArgument, "batches: not an Arrow IPC stream"),
    "nothing": (lambda: {"batches": b""}, InvalidArgument, "batches: not an Arrow IPC stream"),
    "half of it": (lambda: {"batches": piece("a" * 900)[:-700]}, InvalidArgument, "batches: not an Arrow IPC stream"),
    "zstd": (lambda: {"batches": compressed("zstd")}, InvalidArgument, "not compressed"),
    "lz4": (lambda: {"batches": compressed("lz4")}, InvalidArgument, "not compressed"),
    "a dictionary": (lambda: {"batches": with_a_dictionary()}, InvalidArgument, "without dictionaries"),
    "no data": (lambda: {"batches": other_columns(ordering_key=["a"])}, InvalidArgument, "column 'data' is missing"),
    "numbers": (lambda: {"batches": other_columns(data=[1])}, InvalidArgument, "column 'data': bytes or text"),
    "null": (lambda: {"batches": other_columns(data=[None, b""])}, InvalidArgument, "1 row\\(s\\) are null"),
    "more": (lambda: {"batches": other_columns(data=[b""], x=[1])}, InvalidArgument, "column 'x' is no part of"),
    "an empty key": (lambda: {"batches": piece(" ", ordering_key=[""])}, InvalidArgument, "key cannot be empty"),
    "too much": (lambda: {"batches": piece("a" * 10_000_001)}, InvalidMessage, "exceeds the maximum"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, serve: Serve, case: tuple[Callable[[], dict[str, Any]], type[Exception], str]
) -> None:
    broker = MessageQueue.open(tmp_path)
    broker.register_topic("orders")
    ours = Extensions(serve(broker).channel())
    fields, error, problem = case
    wanted = {"topic": TOPIC, "writer": "w", "epoch": 0, "batches": piece("a1"), **fields()}
    with pytest.raises(error, match=problem):
        ours.StagePart(**wanted)
    assert not [*tmp_path.glob("**/*.part")]


@pytest.mark.parametrize("part", ["", "../../head", "x.part", f"{1:020d}-{'0' * 32}.part"])
def test_a_part_is_no_path_to_other_files(server: Running, ours: Extensions, part: str) -> None:
    for call in (ours.CommitEpoch, ours.DiscardParts):
        with pytest.raises(InvalidArgument, match="parts: names that staging in epoch 0 has given"):
            call(topic=TOPIC, writer="w", epoch=0, parts=[part])


def test_a_part_that_is_named_twice_is_refused_and_can_still_be_committed(server: Running, ours: Extensions) -> None:
    part, other = staged(ours, "a1"), staged(ours, "b1")
    with pytest.raises(InvalidArgument, match="parts: each of them once"):
        commit(ours, part, other, part)
    assert commit(ours, part, other)
    assert received(server) == ["a1", "b1"]


def test_a_broker_in_memory_has_neither(serve: Serve) -> None:
    server = serve()
    server.broker.register_topic("orders")
    ours = Extensions(server.channel())
    with pytest.raises(FailedPrecondition, match="keeps nothing on disk"):
        ours.TopicBounds(topic=TOPIC)
    with pytest.raises(FailedPrecondition, match="keeps nothing on disk"):
        staged(ours, "a1")


def test_a_server_without_pyarrow_says_so_and_serves_the_rest(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from inorder.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().rpartition("=")[2]
        with grpc.insecure_channel(address) as channel:
            ours = Extensions(channel)
            ours.CreateTopic(topic=TOPIC)
            with pytest.raises(FailedPrecondition, match="This server has no pyarrow"):
                ours.TopicBounds(topic=TOPIC)
            with pytest.raises(FailedPrecondition, match="This server has no pyarrow"):
                staged(ours, "a1")
        process.terminate()


def test_a_reader_is_told_when_the_server_stops(tmp_path: Path, serve: Serve) -> None:
    broker = MessageQueue.open(tmp_path)
    broker.register_topic("orders", {"message_retention_duration": 3600})
    for _ in range(10):
        broker.publish("orders", [Message(bytes(3_000_000)) for _ in range(3)])  # more than is on its way at a time
    server = serve(broker)
    answers = Extensions(server.channel()).ReadTopic(topic=TOPIC, first=0, end=30)
    next(answers)
    stopping = Thread(target=server.stop)
    stopping.start()
    wait_until(server.server._extensions._stopping.is_set)
    with pytest.raises(Unavailable, match="shutting down"):
        for _ in answers:
            pass
    stopping.join()


def test_a_disk_that_takes_no_more_is_told(tmp_path: Path, serve: Serve) -> None:
    broker = MessageQueue.open(tmp_path)
    broker.register_topic("orders")
    ours = Extensions(serve(broker).channel())
    (tmp_path / INCOMING).write_text("")  # where a folder should be
    with pytest.raises(Unavailable, match="the part could not be written"):
        staged(ours, "a1")
