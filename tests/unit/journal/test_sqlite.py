"""What is SQLite's own: its file, its errors, its damage."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from inorder.broker import MessageQueue
from inorder.errors import JournalDamaged, JournalFailed, JournalInUse, JournalTooNew, NotFound
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.reading import JournalReader
from inorder.journal.sqlite import SqliteReader, SqliteStore
from inorder.journal.tools import repair, verify
from inorder.message import Message


def written(folder: Path) -> None:
    store = SqliteStore(Folder(folder))
    list(store.recover().frames)
    for number in range(100):
        store.append([b"%d " % number * 500])
    store.close()


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


def recover(folder: Path) -> list[bytes]:
    store = SqliteStore(Folder(folder))
    try:
        return [body for _, body in store.recover().frames]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE frames SET body = zeroblob(5) WHERE location = 70", "frame 70: the frame does not match"),
        ("DELETE FROM frames WHERE location = 70", "frame 70: the frame is missing"),
        ("UPDATE frames SET body = 7 WHERE location = 70", "frame 70: the frame does not match"),
        ("INSERT INTO snapshot VALUES (1, 5, x'00')", "the snapshot does not match"),
        ("INSERT INTO snapshot VALUES (1, 5, 'text')", "the snapshot does not match"),
        (f"INSERT INTO snapshot VALUES (70, {crc32(b'{}')}, x'7b7d')", "no part follows the snapshot"),
        ("UPDATE parts SET size = 'large'", r"the part .* cannot be read"),
        ("DELETE FROM parts", r"the part .* cannot be read"),
        ("ALTER TABLE frames RENAME COLUMN checksum TO czecksum", "no such column: checksum"),
    ],
)
def test_a_changed_or_missing_row_is_damage(tmp_path: Path, statement: str, problem: str) -> None:
    written(tmp_path)
    change(tmp_path, statement)
    with pytest.raises(JournalDamaged, match=problem):
        recover(tmp_path)
    assert verify(tmp_path).lost


def test_what_sqlite_says_of_a_damaged_file_need_not_be_a_text(tmp_path: Path) -> None:
    written(tmp_path)
    data = (tmp_path / "journal.db").read_bytes()
    (tmp_path / "journal.db").write_bytes(data.replace(b"body BLOB NOT NULL", b"body BLOB NOT NUL\xcc"))
    with pytest.raises(JournalDamaged, match="malformed database schema"):
        recover(tmp_path)
    assert verify(tmp_path).lost


def test_a_part_that_is_gone_before_the_snapshot_is_damage_for_the_tools_too(tmp_path: Path) -> None:
    queue = MessageQueue(journal=Journal(SqliteStore(Folder(tmp_path), segment_bytes=2_000)))
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    for number in range(20):
        queue.publish("orders", [Message(b"%d" % number * 500)])
    queue.close()
    assert verify(tmp_path).findings == []
    change(tmp_path, "DELETE FROM parts WHERE first = (SELECT min(first) FROM parts)")
    with pytest.raises(JournalDamaged, match="the part that begins here is missing"):
        MessageQueue.open(tmp_path, journal="sqlite")
    assert [finding.problem for finding in verify(tmp_path).lost] == ["the part that begins here is missing"]


@pytest.mark.parametrize("first", [3, 50])
def test_frames_that_are_missing_before_the_snapshot_are_damage_unless_their_part_was_dropped(
    tmp_path: Path, first: int
) -> None:
    queue = MessageQueue.open(tmp_path, journal="sqlite")
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    for number in range(100):
        queue.publish("orders", [Message(b"%d" % number)])
    queue.close()
    change(tmp_path, f"DELETE FROM frames WHERE location BETWEEN {first} AND 200")
    with pytest.raises(JournalDamaged, match=f"journal.db, frame {first}: the frame is missing"):
        MessageQueue.open(tmp_path, journal="sqlite").pull("billing", 1_000)


def left_by_a_killed_owner(folder: Path) -> Path:
    """A folder as it is at a moment in an owner's life: much is in SQLite's log only."""
    store = SqliteStore(Folder(folder / "owned"))
    list(store.recover().frames)
    for number in range(20):
        store.append([b"%d " % number * 500])
        store.sync()
    store.append([b"never committed"])
    shutil.copytree(folder / "owned", folder / "killed")
    store.close()
    return folder / "killed"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_what_was_not_committed_is_not_missed(tmp_path: Path) -> None:
    folder = left_by_a_killed_owner(tmp_path)
    assert verify(folder).findings == []
    assert len(recover(folder)) == 20
    assert verify(folder).findings == []


@pytest.mark.parametrize("lose", [cut, flip, Path.unlink])
def test_a_log_of_sqlite_that_is_damaged_or_gone_is_damage(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    folder = left_by_a_killed_owner(tmp_path)
    lose(folder / "journal.db-wal")
    before = {path.name: path.read_bytes() for path in folder.glob("journal.db*") if path.suffix != ".db-shm"}
    with pytest.raises(JournalDamaged, match=r"journal\.db"):
        recover(folder)
    with pytest.raises(JournalDamaged, match=r"journal\.db"):
        SqliteReader(Folder(folder)).end()
    assert len(verify(folder).lost) == 1
    after = {path.name: path.read_bytes() for path in folder.glob("journal.db*") if path.suffix != ".db-shm"}
    assert {name: data for name, data in after.items() if data} == before


def test_a_repair_keeps_what_a_damaged_log_has_left(tmp_path: Path) -> None:
    folder = left_by_a_killed_owner(tmp_path)
    cut(folder / "journal.db-wal")
    repaired = repair(folder)
    assert repaired.copies is not None
    assert sorted(path.name for path in repaired.copies.iterdir())[:2] == ["head", "journal.db"]
    assert verify(folder).findings == []
    assert 0 < len(recover(folder)) < 20


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_database_that_was_lost_or_emptied_is_no_fresh_start(tmp_path: Path, lose: Callable[[Path], object]) -> None:
    written(tmp_path)
    lose(tmp_path / "journal.db")
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"journal\.db"):
            recover(tmp_path)
        assert [finding.file for finding in verify(tmp_path).lost] == ["journal.db"]
        with pytest.raises(JournalDamaged, match=r"journal\.db"):
            repair(tmp_path)  # which would begin anew, in segments


def test_a_database_whose_owner_was_killed_while_it_made_it_is_a_fresh_start_for_tools_too(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    assert verify(tmp_path) == (0, 0, [])
    assert repair(tmp_path) == ([], None)
    with pytest.raises(NotFound, match="there is no journal in"):
        JournalReader(tmp_path)
    assert recover(tmp_path) == []


def test_a_database_of_the_first_journals_has_no_head_and_gets_one(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "head").unlink()
    assert len(recover(tmp_path)) == 100
    assert (tmp_path / "head").exists()


@pytest.mark.parametrize("start", [0, 4096, 8192])
def test_a_file_that_sqlite_cannot_read_is_damage(tmp_path: Path, start: int) -> None:
    written(tmp_path)
    with open(tmp_path / "journal.db", "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * 4096)
    with pytest.raises(JournalDamaged, match=r"journal.db"):
        recover(tmp_path)


def test_a_format_of_the_future_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    change(tmp_path, "PRAGMA user_version = 2")
    with pytest.raises(JournalTooNew, match=r"journal.db has journal format 2"):
        recover(tmp_path)


def test_a_failed_write_stops_the_store(tmp_path: Path) -> None:
    written(tmp_path)
    store = SqliteStore(Folder(tmp_path))
    list(store.recover().frames)
    store.append([b"x"])
    store._connection.execute("PRAGMA max_page_count = 1")  # rounded up to what there is: SQLite says that it is full
    for _ in range(2):
        with pytest.raises(JournalFailed, match=r"could not write journal.db: database or disk is full"):
            store.append([bytes(50_000)])
    with pytest.raises(JournalFailed):
        store.sync()
    store.close()
    assert len(recover(tmp_path)) == 100


def test_it_has_one_owner_and_readers_beside_it(tmp_path: Path) -> None:
    store = SqliteStore(Folder(tmp_path))
    list(store.recover().frames)
    with pytest.raises(JournalInUse):
        SqliteStore(Folder(tmp_path))
    store.append([b"x"])
    assert list(SqliteReader(Folder(tmp_path)).read()) == []
    store.sync()
    assert list(SqliteReader(Folder(tmp_path)).read()) == [(1, b"x")]
    store.close()
    assert list(SqliteReader(Folder(tmp_path)).read()) == [(1, b"x")]


def test_a_folder_without_a_journal_has_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(JournalFailed, match="unable to open"):
        SqliteReader(Folder(tmp_path)).end()
