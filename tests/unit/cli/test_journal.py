"""What the commands print, and how they end."""

import inspect
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.cli import main
from inorder.core.producers import Attempt
from inorder.journal import Store, codec
from inorder.journal.decoding import FACTS
from inorder.journal.files import Folder
from inorder.journal.frames import FRAME_HEADER, FRAME_MAGIC
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message, batch_of
from inorder.testing import ManualClock

KINDS: dict[str, Callable[..., Store]] = {"segments": SegmentStore, "sqlite": SqliteStore}
CAPSYS = pytest.CaptureFixture[str]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(folder: Path, kind: str) -> MessageQueue:
    return MessageQueue(ManualClock(), Journal(KINDS[kind](Folder(folder), segment_bytes=3_000)))


def filled(folder: Path, kind: str) -> MessageQueue:
    """A broker with a bit of everything."""
    queue = opened(folder, kind)
    queue.register_topic("orders", {"message_retention_duration": 7200})
    queue.register_topic("dead")
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    ordered = {"enable_message_ordering": True}
    queue.register_subscription("morgue", "dead")
    queue.register_subscription("billing", "orders", {**ordered, "dead_letter_policy": policy})
    queue.register_subscription("audit", "orders", {**ordered, "dead_letter_policy": policy, "on_poison": "park_key"})
    queue.register_subscription("slow", "orders", {**ordered, "retry_policy": {"minimum_backoff": 60}})
    for number in range(0, 20, 2):
        queue.publish(
            "orders",
            [Message(b"%d" % number, {"n": "x"}, f"k{number % 3}"), Message(b"\xff%d" % number)],
        )
    acked = queue.pull("billing", 4)
    queue.ack([message.ack_id for message in acked])
    [bad] = queue.pull("billing", 1)
    queue.nack([bad.ack_id])
    for name in ("audit", "slow"):
        queue.nack([message.ack_id for message in queue.pull(name, 1)])
    queue.register_topic("quiet")  # which is synced, and with it all that was answered before
    return queue


def publish_once(queue: MessageQueue) -> None:
    """As those do who number what they publish."""
    epoch = queue.open_producer("quiet", "till-1")
    queue.submit("quiet", batch_of([Message(b"x")]), Attempt("till-1", epoch, 0)).result()
    queue.write("quiet", batch_of([Message(b"y")]), writer="w", epoch=0, part=0)


def run(capsys: CAPSYS, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def dumped(capsys: CAPSYS, *arguments: object) -> list[dict[str, Any]]:
    code, out, err = run(capsys, "journal", "dump", *arguments)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)


def damaged(folder: Path, kind: str) -> None:
    """Damage what `filled` has written, in the middle."""
    queue = filled(folder, kind)
    queue._journal.close()  # type: ignore[union-attr]
    if kind == "segments":
        log = folder / "00000001.log"
        flip(log, log.read_bytes().index(FRAME_MAGIC, 1_400) + FRAME_HEADER + 8)  # within the body of a frame
    else:
        with sqlite3.connect(folder / "journal.db") as connection:
            connection.execute("UPDATE frames SET body = zeroblob(10) WHERE location = 8")
        connection.close()


# -- info ------------------------------------------------------------------------------------------


def test_info_says_what_there_is_beside_the_owner(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    code, out, err = run(capsys, "journal", "info", tmp_path)
    assert (code, err) == (0, "")
    assert f"journal       {kind}, format 1" in out
    assert "owner         process " in out
    rows = [line.split() for line in out.splitlines()]
    [orders] = [row for row in rows if row[:1] == ["orders"]]
    assert orders[1:3] == ["20", "0–19"]
    assert orders[-2:] == ["2", "h"]
    assert ["dead", "1", "0–0"] in [row[:3] for row in rows]
    assert ["billing", "orders", "15", "4", "0", "0", "1"] in rows
    assert ["audit", "orders", "20", "0", "1", "0", "0"] in rows
    assert ["morgue", "dead", "1", "0", "0", "0", "0"] in rows
    queue.close()
    _, out, _ = run(capsys, "journal", "info", tmp_path)
    assert "owner         nobody" in out


def test_info_as_json_has_the_same(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    _, out, _ = run(capsys, "journal", "info", tmp_path, "--json")
    found = json.loads(out)
    assert (found["kind"], found["snapshot"]) == (kind, None)
    topics = {topic["name"]: topic for topic in found["topics"]}
    assert (topics["orders"]["begin"], topics["orders"]["end"], topics["orders"]["retention_seconds"]) == (0, 20, 7200)
    subscriptions = {subscription["name"]: subscription for subscription in found["subscriptions"]}
    assert subscriptions["audit"]["parked"] == ["k0"]
    assert subscriptions["billing"] == {
        "name": "billing",
        "topic": "orders",
        "detached": False,
        "topic_deleted": False,
        "backlog": 15,
        "oldest_unacked": 4,
        "parked": [],
        "waiting": 0,
        "gaps": 1,
    }
    queue.unregister_topic("dead")
    queue.close()
    _, out, _ = run(capsys, "journal", "info", tmp_path, "--json")
    found = json.loads(out)
    assert found["snapshot"]["size"] > 100
    [morgue] = [one for one in found["subscriptions"] if one["name"] == "morgue"]
    assert (morgue["detached"], morgue["backlog"], morgue["oldest_unacked"]) == (True, 0, None)
    _, out, _ = run(capsys, "journal", "info", tmp_path)
    assert "dead (deleted)" in out


def test_info_changes_nothing(tmp_path: Path, capsys: CAPSYS) -> None:
    filled(tmp_path, "segments").close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for verb in ("info", "verify", "dump"):
        assert run(capsys, "journal", verb, tmp_path)[0] == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# -- dump ------------------------------------------------------------------------------------------


def test_dump_has_a_line_for_each_message_and_each_event(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    events = dumped(capsys, tmp_path)
    assert [event["event"] for event in events[:3]] == ["topic_created", "topic_created", "subscription_created"]
    messages = [event for event in events if event["event"] == "published" and event["topic"] == "orders"]
    assert [message["position"] for message in messages] == list(range(20))
    prefix = events[0]["id_prefix"]
    assert messages[4] == {
        "event": "published",
        "topic": "orders",
        "position": 4,
        "id": f"{prefix}4",
        "ordering_key": "k1",
        "data": "4",
        "attributes": {"n": "x"},
        "publish_time": "2023-11-14T22:13:20.000000Z",
    }
    assert (messages[5]["data_base64"], messages[5].get("data")) == ("/zQ=", None)
    assert {"event": "acked", "subscription": "billing", "positions": [[0, 4]]} in events
    failed = [event for event in events if event["event"] == "failed"]
    assert {event["subscription"] for event in failed} >= {"audit", "slow"}
    assert next(event for event in events if event["event"] == "dead_lettered")["subscription"] == "billing"
    queue.close()


def test_dump_and_verify_know_what_was_published_once(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    publish_once(queue)
    events = dumped(capsys, tmp_path, "--topic", "quiet", "--json")
    [opened] = [event for event in events if event["event"] == "producer_opened"]
    assert (opened["topic"], opened["producer"], opened["opened"]) == ("quiet", "till-1", "2023-11-14T22:13:20.000000Z")
    assert {
        "event": "attempted",
        "topic": "quiet",
        "producer": "till-1",
        "epoch": opened["epoch"],
        "attempt": 0,
        "position": 0,
        "messages": 1,
        "attempted": "2023-11-14T22:13:20.000000Z",
    } in events
    assert {"event": "written", "topic": "quiet", "writer": "w", "epoch": 0, "part": 0} in events
    assert run(capsys, "journal", "verify", tmp_path)[0] == 0
    queue.close()


def test_the_tools_know_every_event_that_is_written() -> None:
    assert {*re.findall(r'return "(\w+)"', inspect.getsource(codec._other))} == {*FACTS}


def test_dump_can_be_limited(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    only = ("--events", "published")
    for first, end in [(0, 20), (3, 4), (7, 15), (19, 99), (20, 30), (5, 5)]:
        found = dumped(capsys, tmp_path, "--topic", "orders", "--from", first, "--to", end, *only)
        assert [event["position"] for event in found] == list(range(first, min(end, 20)))
    assert {event["topic"] for event in dumped(capsys, tmp_path, "--topic", "dead", *only)} == {"dead"}
    acks = dumped(capsys, tmp_path, "--topic", "orders", "--from", 1, "--to", 2, "--events", "acked,key_resumed")
    assert acks == [{"event": "acked", "subscription": "billing", "positions": [[1, 2]]}]
    names = {event["event"] for event in dumped(capsys, tmp_path, "--topic", "dead")}
    assert names == {"topic_created", "subscription_created", "published"}
    queue.close()


def test_dump_shows_events_of_a_topic_that_is_deleted(tmp_path: Path, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, "segments")
    queue.unregister_topic("dead")
    found = dumped(capsys, tmp_path, "--topic", "dead")
    assert [event["event"] for event in found][-1] == "topic_deleted"
    queue.close()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--topic", "order"], "Topic not found: order"),
        (["--from", "3"], "give --topic"),
        (["--events", "published,nothing"], "not 'nothing'"),
    ],
)
def test_dump_refuses_what_makes_no_sense(tmp_path: Path, capsys: CAPSYS, arguments: list[str], complaint: str) -> None:
    filled(tmp_path, "segments").close()
    code, out, err = run(capsys, "journal", "dump", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("inorder: ")
    assert complaint in err
    assert err.count("\n") == 1


# -- verify and repair -----------------------------------------------------------------------------


def test_verify_says_that_a_journal_is_whole(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    queue = filled(tmp_path, kind)
    code, out, _ = run(capsys, "journal", "verify", tmp_path)
    assert code == 0
    assert out.startswith("whole: 2")
    queue.close()
    _, out, _ = run(capsys, "journal", "verify", tmp_path, "--json")
    found = json.loads(out)
    assert (found["damaged"], found["findings"]) == (False, [])


def test_verify_names_the_damage(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    damaged(tmp_path, kind)
    code, out, _ = run(capsys, "journal", "verify", tmp_path)
    assert code == 1
    assert ("00000001.log, byte " if kind == "segments" else "journal.db, frame 8: ") in out
    assert "checksum" in out
    assert "\ndamaged: " in out
    code, out, _ = run(capsys, "journal", "verify", tmp_path, "--json")
    assert code == 1
    assert json.loads(out)["damaged"]


@pytest.mark.parametrize("body", [b"nonsense", b"\x09\x00\x00\x00\x00", b"\x03\x02\x00\x00\x00{}", b"\x01"])
def test_verify_names_frames_and_snapshots_that_mean_nothing(
    tmp_path: Path, kind: str, capsys: CAPSYS, body: bytes
) -> None:
    store = KINDS[kind](Folder(tmp_path))
    list(store.recover().frames)
    store.append([body])
    store.save_snapshot([b"{}"])
    store.close()
    code, out, _ = run(capsys, "journal", "verify", tmp_path)
    assert code == 1
    assert ("cannot be decoded" in out) or ("does not know" in out)
    assert "the snapshot cannot be decoded" in out
    code, out, _ = run(capsys, "journal", "repair", tmp_path, "--yes")
    assert code == 1
    assert "nothing is left to repair" in out


def test_a_torn_end_is_told_and_is_no_damage(tmp_path: Path, capsys: CAPSYS) -> None:
    filled(tmp_path, "segments").close()
    last = max(tmp_path.glob("*.log"))
    last.write_bytes(last.read_bytes() + b"torn")
    code, out, _ = run(capsys, "journal", "verify", tmp_path)
    assert code == 0
    assert "it never was durable" in out


def test_repair_says_what_it_did_and_what_is_lost(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    damaged(tmp_path, kind)
    before = int(json.loads(run(capsys, "journal", "verify", tmp_path, "--json")[1])["frames"])
    code, out, _ = run(capsys, "journal", "repair", tmp_path, "--yes")
    assert code == 0
    assert "\ncut " in out
    assert "\nlost: " in out
    assert f"as it was: {tmp_path}/damaged-" in out
    after = int(json.loads(run(capsys, "journal", "verify", tmp_path, "--json")[1])["frames"])
    assert f"and {before - after} frames that came behind" in out
    queue = opened(tmp_path, kind)
    topic = queue.get_topic("orders")
    assert topic is not None
    assert f"topic 'orders' now ends before position {topic.next_position}\n" in out
    queue.close()
    assert run(capsys, "journal", "repair", tmp_path)[:2] == (0, "nothing is damaged\n")


def test_repair_as_json_has_the_same(tmp_path: Path, kind: str, capsys: CAPSYS) -> None:
    damaged(tmp_path, kind)
    code, out, _ = run(capsys, "journal", "repair", tmp_path, "--yes", "--json")
    found = json.loads(out)
    assert (code, found["damaged"], bool(found["findings"]), bool(found["actions"])) == (0, False, True, True)
    assert found["lost_frames"] > 0
    assert Path(found["copies"]).is_dir()
    code, out, _ = run(capsys, "journal", "repair", tmp_path, "--json")
    assert (code, json.loads(out)["actions"]) == (0, [])


def test_repair_leaves_alone_what_somebody_owns(tmp_path: Path, capsys: CAPSYS) -> None:
    damaged(tmp_path, "segments")
    lock = Folder(tmp_path).lock()
    code, _, err = run(capsys, "journal", "repair", tmp_path, "--yes")
    lock.release()
    assert code == 2
    assert "is in use by process" in err


@pytest.mark.parametrize("verb", ["info", "verify", "dump", "repair"])
def test_a_folder_without_a_journal_is_an_error_of_one_line(tmp_path: Path, verb: str, capsys: CAPSYS) -> None:
    code, out, err = run(capsys, "journal", verb, tmp_path)
    assert (code, out, err) == (2, "", f"inorder: there is no journal in {tmp_path}\n")
    code, out, err = run(capsys, "journal", verb, tmp_path / "nowhere")
    assert (code, out, err) == (2, "", f"inorder: there is no folder {tmp_path / 'nowhere'}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_given_as_in_a_target(tmp_path: Path, capsys: CAPSYS) -> None:
    code, _, err = run(capsys, "journal", "info", f"file:{tmp_path}?journal=sqlite")
    assert (code, err) == (2, f"inorder: there is no journal in {tmp_path}\n")


@pytest.mark.parametrize("verb", ["info", "dump"])
def test_damage_is_an_error_of_one_line(tmp_path: Path, verb: str, kind: str, capsys: CAPSYS) -> None:
    damaged(tmp_path, kind)
    code, _, err = run(capsys, "journal", verb, tmp_path)
    assert code == 2
    assert err.startswith("inorder: journal damaged: ")
    assert err.count("\n") == 1


def test_a_server_is_no_folder(capsys: CAPSYS) -> None:
    assert main(["journal", "info", "grpc://host:1?token=secret"]) == 2
    assert capsys.readouterr().err == "inorder: a path, not the address of a server, 'grpc://host:1'\n"


@pytest.mark.parametrize("verb", ["info", "verify", "dump", "repair"])
def test_a_folder_without_a_name_is_not_the_one_where_the_program_was_started(
    tmp_path: Path, verb: str, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    MessageQueue.open(tmp_path).close()
    monkeypatch.chdir(tmp_path)
    assert main(["journal", verb, ""]) == 2
    assert capsys.readouterr().err == "inorder: a path, not ''\n"
