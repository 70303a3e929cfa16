"""One owner of a folder, and disks that are really full, with a whole broker."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.errors import JournalFailed, JournalInUse
from inorder.journal.opener import JournalKind
from inorder.message import Message

KINDS: tuple[JournalKind, ...] = ("segments", "sqlite")
PATIENCE_SECONDS = 30

OWNER = """
import sys, time
from inorder.broker import MessageQueue
queue = MessageQueue.open(sys.argv[1], journal=sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_one_owner_until_that_is_gone(tmp_path: Path, kind: JournalKind) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(JournalInUse, match=f"process {process.pid} "):
            MessageQueue.open(tmp_path, journal=kind)
        process.kill()
    queue = MessageQueue.open(tmp_path, journal=kind)
    with pytest.raises(JournalInUse, match=f"process {os.getpid()} "):
        MessageQueue.open(tmp_path, journal=kind)
    queue.register_topic("orders")  # the one that owns it goes on
    queue.close()
    MessageQueue.open(tmp_path, journal=kind).close()


def fill(queue: MessageQueue) -> int:
    """Publish until the disk is full; how many were answered."""
    for number in range(10_000):
        try:
            queue.publish("orders", [Message(b"%d" % number + b" " * 2000, ordering_key=f"{number % 3}")])
        except JournalFailed:
            return number
    raise AssertionError("the disk never was full")


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_to_everybody_and_loses_nothing_that_was_answered(
    small_disk: Path, kind: JournalKind
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    queue = MessageQueue.open(small_disk, journal=kind)
    queue.register_topic("orders")
    for name in ("worker", "listener"):
        queue.register_subscription(name, "orders", {"enable_message_ordering": True})
    heard: list[BaseException] = []
    told = threading.Event()

    def hear(error: BaseException) -> None:
        heard.append(error)
        if isinstance(error, JournalFailed):
            told.set()

    pubsub = PubSub(queue)
    listener = pubsub.subscription("listener")
    listener.on("message", lambda message: message.ack())
    listener.on("error", hear).open()
    queue.publish("orders", [Message(b"first", ordering_key="a")])
    (message,) = queue.pull("worker", 1)
    answered = ["first", *map(str, range(fill(queue)))]
    assert len(answered) > 10
    for call in (
        lambda: queue.publish("orders", [Message(b"x")]),
        lambda: queue.pull("worker", 1),
        lambda: queue.ack(message.ack_id),
        lambda: queue.register_topic("others"),
    ):
        with pytest.raises(JournalFailed):
            call()
    assert told.wait(PATIENCE_SECONDS)
    pubsub.close()
    queue.close()
    ballast.unlink()
    queue = MessageQueue.open(small_disk, journal=kind)
    came: list[str] = []
    while messages := queue.pull("worker", 1000):
        came += [message.data.decode().strip() for message in messages]
        queue.ack([message.ack_id for message in messages])
    assert {*answered} <= {*came}
    assert len(came) <= len(answered) + 1
    for key in range(3):
        of_key = [int(value) for value in came if value != "first" and int(value) % 3 == key]
        assert of_key == sorted(of_key)
    queue.close()


LIMITED = """
import resource, signal, sys
from inorder.broker import MessageQueue
from inorder.errors import JournalFailed
from inorder.message import Message
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
queue = MessageQueue.open(sys.argv[1])
queue.register_topic("orders")
queue.register_subscription("worker", "orders")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
answered = 0
try:
    while True:
        queue.publish("orders", [Message(b"x" * 700)])
        answered += 1
except JournalFailed as error:
    print(answered, error)
try:
    queue.pull("worker", 1)
except JournalFailed:
    print("told")
queue.close()
"""


def test_a_limit_of_the_process_stops_the_broker_and_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    answered, said = run.stdout.split(" ", 1)
    assert "File too large" in said
    assert said.endswith("told\n")
    queue = MessageQueue.open(tmp_path)
    assert len(queue.pull("worker", 1000)) == int(answered) > 20
    queue.close()
