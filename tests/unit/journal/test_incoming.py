"""Parts and epochs that others leave beside a journal, and the owner that publishes each once."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inorder import Message
from inorder.broker import MessageQueue
from inorder.commits import Sync
from inorder.errors import InvalidArgument, TopicNotFound
from inorder.ingest import Ingest
from inorder.journal import incoming
from inorder.journal.incoming import INCOMING, Epoch, Incoming
from inorder.message import Batch, to_columns
from inorder.testing import ManualClock


def columns(*texts: str) -> Batch:
    """The first letter is the key."""
    return to_columns([(text[0], text.encode(), None, 1 + len(text)) for text in texts])


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageQueue]:
    """A broker that looks when it is told to, and not by itself, between two commits of a test."""
    monkeypatch.setattr(Ingest, "_run", lambda self: None)
    broker = MessageQueue.open(tmp_path, clock=ManualClock())
    broker.register_topic("t")
    broker.register_subscription("s", "t", {"enable_message_ordering": True})
    yield broker
    broker.close()


def received(queue: MessageQueue) -> list[str]:
    texts: list[str] = []
    while messages := queue.pull("s", 100):
        texts += [message.data.decode() for message in messages]
        queue.ack(messages)
    return texts


def commit(folder: Path, epoch: int, *parts: tuple[str, ...], writer: str = "w") -> bool:
    incoming = Incoming(folder)
    names = [incoming.stage(writer, epoch, [columns(*part)]) for part in parts]
    return incoming.commit(writer, epoch, "t", names)


def test_what_is_staged_is_published_when_it_is_committed(queue: MessageQueue, tmp_path: Path) -> None:
    incoming = Incoming(tmp_path)
    part = incoming.stage("w", 0, [columns("a1", "b1"), columns("a2")])
    queue.take_in()
    assert received(queue) == []
    assert incoming.commit("w", 0, "t", [part])
    queue.take_in()
    assert sorted(received(queue)) == ["a1", "a2", "b1"]


def test_parts_and_epochs_are_published_in_their_order(queue: MessageQueue, tmp_path: Path) -> None:
    commit(tmp_path, 10, ("a5",))
    commit(tmp_path, 9, ("a1", "a2"), ("a3",), ("a4",))
    queue.take_in()
    assert received(queue) == ["a1", "a2", "a3", "a4", "a5"]


def test_an_epoch_is_committed_once_and_the_first_commit_counts(queue: MessageQueue, tmp_path: Path) -> None:
    assert commit(tmp_path, 0, ("a1",))
    assert not commit(tmp_path, 0, ("a1", "a2"))
    queue.take_in()
    assert received(queue) == ["a1"]
    commit(tmp_path, 0, ("a1",))  # by somebody who did not see that it was taken in
    queue.take_in()
    assert received(queue) == []


def test_an_epoch_that_was_taken_in_is_not_new_when_it_is_cut_otherwise(queue: MessageQueue, tmp_path: Path) -> None:
    commit(tmp_path, 0, ("a1", "a2", "a3"))
    queue.take_in()
    commit(tmp_path, 0, ("a1",), ("a2",), ("a3",))
    queue.take_in()
    assert received(queue) == ["a1", "a2", "a3"]


def test_files_are_gone_when_their_epoch_was_taken_in(queue: MessageQueue, tmp_path: Path) -> None:
    Incoming(tmp_path).stage("w", 0, [columns("a0")])  # an attempt that lost
    commit(tmp_path, 0, ("a1",))
    later = Incoming(tmp_path).stage("w", 1, [columns("a2")])
    queue.take_in()
    assert os.listdir(tmp_path / INCOMING / "w") == [later]
    Incoming(tmp_path).commit("w", 1, "t", [later])
    queue.take_in()
    assert os.listdir(tmp_path / INCOMING) == []  # nor does a writer leave a folder, who may never come again


def test_a_commit_that_could_not_be_written_leaves_nothing_behind(queue: MessageQueue, tmp_path: Path) -> None:
    part = Incoming(tmp_path).stage("w", 0, [columns("a1")])
    with pytest.raises(TypeError):  # as a full disk would, in the middle of it
        Incoming(tmp_path).commit("w", 0, b"t", [part])  # type: ignore[arg-type]
    assert os.listdir(tmp_path / INCOMING / "w") == [part]
    Incoming(tmp_path).commit("w", 0, "t", [part])
    queue.take_in()
    assert os.listdir(tmp_path / INCOMING) == []


def test_a_folder_that_is_removed_while_somebody_stages_or_commits_is_made_anew(
    queue: MessageQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    def open_a_moment_later(path: Path, mode: str) -> object:
        if len(removed) % 3 < 2:  # it was empty
            removed.append(path.name)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        else:
            removed.append(path.name)
        return open(path, mode)

    monkeypatch.setattr(incoming, "open", open_a_moment_later, raising=False)
    assert commit(tmp_path, 0, ("a1",))
    queue.take_in()
    assert received(queue) == ["a1"]
    assert len(removed) > 3


def test_an_attempt_that_ends_after_its_epoch_was_taken_in_has_nothing_to_sync(
    queue: MessageQueue, tmp_path: Path
) -> None:
    def batches() -> Iterator[Batch]:
        yield columns("a1")
        commit(tmp_path, 0, ("a1",))
        queue.take_in()

    late = Incoming(tmp_path).stage("w", 0, batches())
    assert Incoming(tmp_path).missing("w", [late]) == [late]
    assert received(queue) == ["a1"]


def test_an_owner_that_dies_in_the_middle_goes_on_where_it_stopped(tmp_path: Path) -> None:
    queue = MessageQueue.open(tmp_path, clock=ManualClock())
    queue.register_topic("t")
    queue.register_subscription("s", "t", {"enable_message_ordering": True})
    queue.write("t", columns("a1"), writer="w", epoch=3, part=0)  # and there it ends
    queue.close()
    incoming = Incoming(tmp_path)
    names = [incoming.stage("w", 3, [columns(text)]) for text in ("a1", "a2", "a3")]
    incoming.commit("w", 3, "t", names)
    queue = MessageQueue.open(tmp_path, clock=ManualClock())
    queue.take_in()
    assert received(queue) == ["a1", "a2", "a3"]
    queue.close()


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_an_epoch_that_was_taken_in_survives_a_kill_also_where_answers_do_not_wait_for_the_disk(
    tmp_path: Path, sync: Sync
) -> None:
    queue = MessageQueue.open(tmp_path / "now", journal="sqlite", clock=ManualClock())
    queue.register_topic("t")
    queue.register_subscription("s", "t", {"enable_message_ordering": True})
    queue.close()
    queue = MessageQueue.open(tmp_path / "now", journal="sqlite", sync=sync, sync_seconds=3600, clock=ManualClock())
    commit(tmp_path / "now", 0, ("a1", "a2"))
    queue.take_in()
    shutil.copytree(tmp_path / "now", tmp_path / "killed")  # SQLite has undone what was not committed
    killed = MessageQueue.open(tmp_path / "killed", journal="sqlite", clock=ManualClock())
    killed.take_in()
    assert received(killed) == ["a1", "a2"]
    killed.close()
    queue.close()


def test_writers_do_not_know_each_other(queue: MessageQueue, tmp_path: Path) -> None:
    commit(tmp_path, 0, ("a1",), writer="w")
    commit(tmp_path, 0, ("b1",), writer="v")
    queue.take_in()
    assert sorted(received(queue)) == ["a1", "b1"]


def test_an_epoch_for_a_topic_that_is_missing_waits_and_holds_up_its_writer_only(
    queue: MessageQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    incoming = Incoming(tmp_path)
    incoming.commit("w", 0, "missing", [incoming.stage("w", 0, [columns("a1")])])
    commit(tmp_path, 1, ("a2",), writer="w")
    commit(tmp_path, 0, ("b1",), writer="v")
    queue.take_in()
    assert received(queue) == ["b1"]
    assert "epoch 0 of writer 'w' cannot be published yet" in caplog.text
    queue.register_topic("missing")
    queue.take_in()
    assert received(queue) == ["a2"]


@pytest.mark.parametrize("damage", [lambda found: found[:-1] + b"?", lambda found: bytes(len(found))])
def test_a_damaged_part_is_named_and_nothing_behind_it_is_published(
    queue: MessageQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    incoming = Incoming(tmp_path)
    name = incoming.stage("w", 0, [columns("a1")])
    path = tmp_path / INCOMING / "w" / name
    path.write_bytes(damage(path.read_bytes()))
    incoming.commit("w", 0, "t", [name])
    commit(tmp_path, 1, ("a2",))
    queue.take_in()
    assert received(queue) == []
    assert name in caplog.text


def test_a_part_of_an_epoch_is_written_once_in_memory_and_on_disk(tmp_path: Path) -> None:
    for queue in (MessageQueue(ManualClock()), MessageQueue.open(tmp_path, clock=ManualClock())):
        queue.register_topic("t")
        assert queue.write("t", columns("a1"), writer="w", epoch=0, part=0)
        assert not queue.write("t", columns("a1"), writer="w", epoch=0, part=0)
        assert queue.write("t", columns("a2"), writer="w", epoch=0, part=1)
        assert queue.write("t", columns("a3"), writer="w", epoch=1, part=0)
        assert not queue.write("t", columns("a2"), writer="w", epoch=0, part=1)
        assert queue.write("t", columns("a1"), writer="v", epoch=0, part=0)
        with pytest.raises(TopicNotFound):
            queue.write("x", columns("a1"), writer="w", epoch=5, part=0)
        queue.close()
    queue = MessageQueue.open(tmp_path, clock=ManualClock())
    assert not queue.write("t", columns("a3"), writer="w", epoch=1, part=0)
    assert queue.publish("t", [Message(b"x")])
    queue.close()


def test_a_writer_whose_name_cannot_be_written_down_is_refused_before_its_messages_leave_a_hole(
    queue: MessageQueue, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="writer: not valid UTF-8"):
        queue.write("t", columns("a1"), writer="\ud800", epoch=0, part=0)
    queue.publish("t", [Message(b"a2")])
    queue.close()
    again = MessageQueue.open(tmp_path, clock=ManualClock())
    assert received(again) == ["a2"]
    again.close()


@pytest.mark.parametrize("writer", ["", "../w", ".w", "a/b", "w" * 201, "ä", None])
def test_a_writer_whose_name_is_no_file_name_is_refused(tmp_path: Path, writer: str) -> None:
    with pytest.raises(InvalidArgument, match="writer: "):
        Incoming(tmp_path).stage(writer, 0, [columns("a1")])


@pytest.mark.parametrize("said", ["{", "[]", "{}", '{"topic": "t", "parts": 3}', "\udcff"])
def test_a_commit_that_cannot_be_read_is_told_once_and_holds_up_its_writer_only(
    queue: MessageQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    commit(tmp_path, 0, ("a1",))
    path = next((tmp_path / INCOMING / "w").glob("*.commit"))
    path.write_bytes(said.encode(errors="surrogateescape"))
    commit(tmp_path, 1, ("a2",))
    commit(tmp_path, 0, ("b1",), writer="v")
    (tmp_path / INCOMING / "v" / "notes.commit").write_text("not one of ours")
    for _ in range(3):
        queue.take_in()
    assert received(queue) == ["b1"]
    assert caplog.text.count("the commit cannot be read") == 1


def test_a_part_that_is_missing_is_named_and_holds_up_its_writer_only(
    queue: MessageQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Incoming(tmp_path).commit("w", 0, "t", ["gone.part"])
    commit(tmp_path, 0, ("b1",), writer="v")
    queue.take_in()
    assert received(queue) == ["b1"]
    assert "gone.part" in caplog.text


def test_a_writer_whose_files_cannot_be_removed_is_told_once_and_holds_up_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Incoming):
        def forget(self, epoch: Epoch) -> None:
            if epoch.commit.writer == "a":
                raise PermissionError("not yours")
            super().forget(epoch)

    queue = MessageQueue(ManualClock())
    queue.register_topic("t")
    queue.register_subscription("s", "t")
    for writer in ("a", "b"):
        commit(tmp_path, 0, (f"{writer}1",), writer=writer)
    ingest = Ingest(Stubborn(tmp_path), queue)
    for _ in range(3):
        ingest.take_in()
    ingest.stop()
    assert sorted(received(queue)) == ["a1", "b1"]
    assert caplog.text.count("not yours") == 1
    assert [commit.writer for commit in Incoming(tmp_path).commits()] == ["a"]
