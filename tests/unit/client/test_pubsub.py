"""Which broker a target names, and whose it is to close."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inorder import FailedPrecondition, InvalidArgument, PubSub, Unavailable
from inorder.broker import MessageQueue
from inorder.errors import JournalFailed
from inorder.journal import files


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> MessageQueue:
    """A new broker for the whole process, so that tests do not share it."""
    monkeypatch.setattr(MessageQueue, "_instance", None)
    return MessageQueue.get_instance()


def test_without_a_target_it_is_the_broker_of_the_process(shared: MessageQueue) -> None:
    with PubSub() as one, PubSub() as other:
        one.topic("orders").create().result()
        assert other.topic("orders").exists().result()
    assert shared.topic_exists("orders")


def test_a_broker_of_its_own_is_nobody_elses(shared: MessageQueue) -> None:
    with PubSub("memory:") as one, PubSub("memory:") as other:
        one.topic("orders").create().result()
        assert not other.topic("orders").exists().result()
    assert not shared.topic_exists("orders")


def test_a_broker_of_its_own_is_closed_with_it() -> None:
    pubsub = PubSub("memory:")
    topic = pubsub.topic("orders").create().result()
    pubsub.close().result()
    with pytest.raises(Unavailable):
        topic.create().result()


def test_somebody_elses_broker_stays_open() -> None:
    queue = MessageQueue()
    with PubSub(queue) as pubsub:
        pubsub.topic("orders").create().result()
    queue.register_topic("more-orders")
    with PubSub(queue) as pubsub:
        assert pubsub.topic("orders").exists().result()
    queue.close()


FORK = """
import os, signal, sys, threading
from inorder import PubSub
from inorder.errors import Closed

topic = PubSub("memory:").topic("orders").create().result()
held, forked = threading.Event(), threading.Event()

def hold():
    with topic._publisher._lock, topic._connection._lock:
        held.set()
        forked.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child:
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    topic.publish_message(b"parent").result()
    sys.exit()
signal.alarm(20)
for publish in (lambda: topic.publish_message(b"1", ordering_key="k"), lambda: topic.publish_many([])):
    try:
        publish().result(10)
        os._exit(2)
    except Closed as error:
        assert "fork" in str(error), error
topic._connection.close().result(10)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_that_publishers_are_not_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_was_given_up_is_not_stored() -> None:
    queue = MessageQueue()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"queue_limits": {"max_messages": 1, "when_full": "block"}})
    with PubSub(queue) as pubsub:
        pubsub.topic("orders").publish_message(b"stored").result()
        given_up = pubsub.topic("orders").publish_message(b"given up")
    with pytest.raises(Unavailable, match="no room"):
        given_up.result(0)
    [message] = queue.pull("worker", 10)
    message.ack().result()
    assert queue.pull("worker", 10) == []


@pytest.mark.parametrize("target", ["grpcs://host:1?tls=1&token=SECRET", "https://me:SECRET@host:1"])
def test_an_unknown_target_is_refused_without_its_secrets(target: str) -> None:
    with pytest.raises(InvalidArgument, match="target") as refused:
        PubSub(target)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("target", ["", "memory", "redis://localhost", 7, "file:", "file://data", MessageQueue])
def test_an_unknown_target_is_refused(target: Any) -> None:
    with pytest.raises(InvalidArgument, match="target"):
        PubSub(target)


def test_an_unknown_option_of_a_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="unknown option 'jurnal'"):
        PubSub(f"file:{tmp_path}/data?jurnal=sqlite")
    assert not [*tmp_path.iterdir()]


def test_a_tilde_is_the_home_of_who_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with PubSub("file:~/data"):
        assert (tmp_path / "data").is_dir()


@pytest.mark.parametrize("folder", ["file:./data", ""])  # the second as of a variable that is not set
def test_an_address_is_no_folder_of_a_queue_nor_is_nothing(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=rf"^folder: a path, not '{re.escape(folder)}'"):
        MessageQueue.open(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["memory:?journal=sqlite", "memory:./data"])
def test_a_broker_in_memory_has_no_options(target: str) -> None:
    with pytest.raises(InvalidArgument, match="'memory:' stands alone"):
        PubSub(target)


@pytest.mark.parametrize(
    "query", ["journal=files", "sync=always", "sync_seconds=soon", "sync_seconds=0", "sync=interval&sync=none"]
)
def test_a_file_target_with_a_wrong_option_is_refused(tmp_path: Path, query: str) -> None:
    with pytest.raises(InvalidArgument, match=query.split("=", maxsplit=1)[0]):
        PubSub(f"file:{tmp_path}/data?{query}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("journal", ["segments", "sqlite"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, journal: str) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FailedPrecondition, match="file is a file, and a journal needs a folder"):
        PubSub(f"file:{tmp_path}/file?journal={journal}")
    for name in ("file/data", "dangling", "x" * 300):
        with pytest.raises(JournalFailed, match="could not create"):
            PubSub(f"file:{tmp_path}/{name}?journal={journal}")
    with pytest.raises(InvalidArgument, match=r"folder: .*null"):
        PubSub(f"file:{tmp_path}/a%00b?journal={journal}")


def test_a_folder_brings_back_what_was_published(tmp_path: Path) -> None:
    for target in (tmp_path / "segments", f"file:{tmp_path}/sqlite?journal=sqlite&sync=interval&sync_seconds=0.01"):
        with PubSub(target) as pubsub:
            topic = pubsub.topic("orders").create().result()
            topic.subscription("worker").create(enable_message_ordering=True).result()
            message_id = topic.publish_message(b"1", ordering_key="k", attributes={"a": "b"}).result()
        with PubSub(target) as pubsub:
            [message] = pubsub.subscription("worker").pull(10).result()
            assert (message.id, message.data, message.ordering_key) == (message_id, b"1", "k")
            assert message.attributes == {"a": "b"}
            message.ack().result()
        with PubSub(target) as pubsub:
            assert pubsub.subscription("worker").pull(10).result() == []


def test_closing_tells_that_the_journal_could_not_keep_the_last_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    pubsub = PubSub(f"file:{tmp_path / 'data'}?sync=interval&sync_seconds=60")
    pubsub.topic("orders").create().result()
    monkeypatch.setattr(files, "_sync_descriptor", fail)
    pubsub.topic("orders").publish_message(b"1").result()
    with pytest.raises(JournalFailed):
        pubsub.close().result(60)


def test_a_forked_process_closes_the_handle_of_its_parent_at_once() -> None:
    with PubSub("memory:") as pubsub:
        subscription = pubsub.topic("orders").create().result().subscription("billing").create().result()
        subscription.on("message", lambda message: message.ack()).open()
        child = os.fork()
        if not child:
            try:
                subscription.close().result(timeout=5)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
