"""One owner per folder, whoever else asks and however the owner ends."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.errors import Closed, FailedPrecondition, JournalFailed, JournalInUse
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.lock import FolderLock, owner_of
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.journal.tools import verify

OWNER = """
import sys
import threading
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
store = SegmentStore(Folder(sys.argv[1]))
list(store.recover().frames)
store.append([b"from the owner"])
store.sync()
print("owns it", flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owns it\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_owns_the_folder(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        with pytest.raises(JournalInUse, match=rf"{tmp_path} is in use by process {process.pid} on \S+ since 20.* UTC"):
            SegmentStore(Folder(tmp_path))
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = SegmentStore(Folder(tmp_path))  # the text of the dead is no obstacle
        assert [body for _, body in store.recover().frames] == [b"from the owner"]
        store.close()


def test_the_same_process_cannot_own_a_folder_twice(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(FailedPrecondition, match=f"process {os.getpid()}"):
        FolderLock(tmp_path)
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()


def test_who_cannot_own_a_folder_leaves_no_file_open(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    free = os.dup(0)
    os.close(free)
    with pytest.raises(JournalInUse):
        FolderLock(tmp_path)
    next_free = os.dup(0)
    os.close(next_free)
    assert next_free == free
    lock.release()


def test_an_owner_is_named_without_what_an_earlier_one_has_left(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("process 1 on a machine with a long name " * 10)
    lock = FolderLock(tmp_path)
    owner = owner_of(tmp_path)
    assert owner is not None
    assert owner.startswith(f"process {os.getpid()} on ")
    assert owner.endswith("UTC")
    lock.release()


def test_a_file_that_is_no_lock_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff" * 5000)
    lock = FolderLock(tmp_path)
    with pytest.raises(JournalInUse, match="process"):
        FolderLock(tmp_path)
    lock.release()


FORKING = """
import os, sys
from inorder.errors import Closed
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
store = SegmentStore(Folder(sys.argv[1]))
list(store.recover().frames)
child = os.fork()
if not child:
    try:
        store.append([b"from a child"])
    except Closed as error:
        print(error, flush=True)
    store.close()
    print("closed in the child", flush=True)
    os.read(int(sys.argv[2]), 1)  # outlives its parent
    os._exit(0)
print(sys.stdin.readline(), end="", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_forked_child_neither_writes_nor_keeps_nor_releases_what_its_parent_owns(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", FORKING, str(tmp_path), str(reading)]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[reading]
        ) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            assert parent.stdout.readline() == "a forked process does not own the journal\n"
            assert parent.stdout.readline() == "closed in the child\n"
            with pytest.raises(JournalInUse, match=str(parent.pid)):
                FolderLock(tmp_path)
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "go\n"
            parent.wait()
            FolderLock(tmp_path).release()  # though the child lives
            os.write(writing, b"x")
    finally:
        os.close(reading)
        os.close(writing)


FORGETTING = """
import os, sys
from inorder.journal.files import Folder
from inorder.journal.sqlite import SqliteStore
store = SqliteStore(Folder(sys.argv[1]))
list(store.recover().frames)
body = bytes(4_000_000)  # more than SQLite keeps in memory
store.append([body])
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
store.append([body])
store.sync()
assert [found for _, found in store.read(1)] == [body, body]
store.close()
"""


def test_a_forked_child_that_ends_takes_back_nothing_that_its_parent_writes_to_sqlite(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORGETTING, str(tmp_path)], check=True)
    assert verify(tmp_path).findings == []


def test_a_lost_lock_stops_the_store(tmp_path: Path) -> None:
    store = SegmentStore(Folder(tmp_path))
    list(store.recover().frames)
    store.close()
    with pytest.raises(Closed, match="closed"):
        store.parts()


def test_who_owns_a_folder_can_be_asked_without_owning_it(tmp_path: Path) -> None:
    assert owner_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    with owner(tmp_path) as process:
        assert (owner_of(tmp_path) or "").startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
        assert owner_of(tmp_path) is None
    FolderLock(tmp_path).release()


def test_a_look_at_who_owns_it_keeps_nobody_from_owning_it(tmp_path: Path) -> None:
    FolderLock(tmp_path).release()
    looking = threading.Event()

    def look() -> None:
        while not looking.is_set():
            owner_of(tmp_path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            FolderLock(tmp_path).release()
    finally:
        looking.set()
        thread.join()


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "lock").touch()


LOSSES: list[Callable[[Path], object]] = [shutil.rmtree, replaced, lambda folder: (folder / "lock").unlink()]


@pytest.mark.parametrize("kind", [SegmentStore, SqliteStore])
@pytest.mark.parametrize("lose", LOSSES, ids=["folder removed", "folder replaced", "lock removed"])
@pytest.mark.parametrize("call", ["begin_part", "save_snapshot", "save_snapshot of before", "drop", "close"])
def test_an_owner_whose_folder_or_lock_was_replaced_stops_and_touches_nothing(
    tmp_path: Path, kind: Callable[..., Store], lose: Callable[[Path], object], call: str
) -> None:
    folder = tmp_path / "data"
    store = kind(Folder(folder))
    list(store.recover().frames)
    store.append([b"one"])
    store.save_snapshot([b"state"])
    store.append([b"two"])
    store.sync()
    calls: dict[str, Callable[[], object]] = {
        "begin_part": store.begin_part,
        "save_snapshot": lambda: store.save_snapshot([b"more"]),
        "save_snapshot of before": lambda: store.save_snapshot([b"more"], parts[-1].first),
        "drop": lambda: store.drop(parts[0]),
        "close": store.close,
    }
    parts = store.parts()
    lose(folder)
    before = names(folder)
    # Where there is no folder at all, closing keeps nothing and hurts nobody.
    closing = pytest.raises(JournalFailed, match="lock") if folder.exists() else nullcontext()
    with closing if call == "close" else pytest.raises(JournalFailed, match="lock"):
        calls[call]()
    assert names(folder) == before
    if call != "close":
        with pytest.raises(JournalFailed, match="lock"):
            store.end()
        with closing:
            store.close()


def names(folder: Path) -> list[str]:
    """All but those that SQLite removes when it closes, if it has them for itself."""
    return sorted({path.name for path in folder.glob("*")} - {"journal.db-wal", "journal.db-shm"})


def test_a_broker_that_closes_without_its_folder_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = MessageQueue.open(tmp_path / "data")
    queue.register_topic("orders")
    shutil.rmtree(tmp_path / "data")
    other = MessageQueue.open(tmp_path / "data")
    other.register_topic("invoices")
    with pytest.raises(JournalFailed, match="replaced"):
        queue.close()
    assert "what it answered may be lost" in caplog.text
    other.close()
    other = MessageQueue.open(tmp_path / "data")
    assert [topic.name for topic in other.get_all_topics()] == ["invoices"]
    other.close()
