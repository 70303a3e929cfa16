"""A reader beside a real process that publishes, acks, saves snapshots, drops parts and is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.errors import NotRetained
from inorder.journal.reading import JournalReader, Stretch
from inorder.message import DATA, POSITION

OWNER = """
import sys
import inorder.broker as broker
from inorder.broker import MessageQueue
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message

folder, kind, acks = sys.argv[1:]
store = {"segments": SegmentStore, "sqlite": SqliteStore}[kind](Folder(folder), segment_bytes=10_000)
queue = MessageQueue(journal=Journal(store, snapshot_bytes=50_000))
queue.register_topic("orders")
queue.register_subscription("billing", "orders")
position = 0
while True:
    count = position % 9 + 1
    queue.publish("orders", [Message(b"%d" % n * 9) for n in range(position, position + count)])
    position += count
    if acks == "acks":
        queue.ack([message.ack_id for message in queue.pull("billing", 100)])
    print(position, flush=True)
"""


@contextmanager
def owner(folder: Path, kind: str, acks: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", OWNER, str(folder), kind, acks]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline())
            yield process
        finally:
            process.kill()
            process.stdout.close()


def check(stretches: list[Stretch]) -> None:
    for before, after in pairwise(stretches):
        assert before.end == after.first
    for stretch in stretches:
        for record in stretch.records():
            assert record[DATA] == b"%d" % record[POSITION] * 9


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_what_a_reader_has_seen_is_still_there_when_the_owner_was_killed(tmp_path: Path, kind: str) -> None:
    with owner(tmp_path, kind, "keep") as process:
        assert process.stdout is not None
        reader = JournalReader(tmp_path)
        seen = answered = 0
        while seen < 4_000:
            answered = int(process.stdout.readline())
            reader.refresh()
            assert reader.end("orders") >= answered  # an answer means durable, and what is durable is seen
            new = list(reader.read("orders", seen))
            check(new)
            seen = new[-1].end if new else seen
        process.kill()
    queue = MessageQueue.open(tmp_path, journal=kind)  # type: ignore[arg-type]
    left = queue.pull("billing", 100_000)
    assert [message.position for message in left] == list(range(len(left)))
    assert len(left) >= seen
    queue.close()


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_a_reader_keeps_up_while_the_owner_drops_what_is_acked(tmp_path: Path, kind: str) -> None:
    with owner(tmp_path, kind, "acks") as process:
        assert process.stdout is not None
        reader = JournalReader(tmp_path)
        begins = [0]
        while len(begins) < 5:
            process.stdout.readline()
            reader.refresh()
            with suppress(NotRetained):  # nobody waits for it any more, so it may be dropped at any time
                check(list(reader.read("orders")))
            if reader.begin("orders") > begins[-1]:
                begins.append(reader.begin("orders"))
        fresh = JournalReader(tmp_path)
        assert fresh.begin("orders") >= begins[-1]
        assert fresh.end("orders") >= reader.end("orders")
