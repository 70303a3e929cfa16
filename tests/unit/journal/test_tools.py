"""What verify says about a journal, and what repair keeps of it."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from inorder.broker import MessageQueue
from inorder.errors import JournalDamaged, JournalInUse, NotFound
from inorder.journal import Store
from inorder.journal.files import File, Folder
from inorder.journal.journal import Journal
from inorder.journal.reader import SegmentReader
from inorder.journal.reading import JournalReader
from inorder.journal.segment_tools import repair_segments, verify_segments
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.journal.tools import repair, verify
from inorder.message import Message

BODIES = [b"%d " % number * 12 for number in range(10, 22)]  # four frames in each of three segments
FRAME = 24 + len(BODIES[0])
Kind = Callable[..., Store]


def opened(folder: Path, kind: Kind = SegmentStore) -> tuple[Store, list[bytes]]:
    store = kind(Folder(folder), segment_bytes=300)
    recovered = store.recover()
    return store, [body for _, body in recovered.frames]


def written(folder: Path, *, snapshot_after: int | None = None, kind: Kind = SegmentStore) -> Path:
    store, _ = opened(folder, kind)
    for number, body in enumerate(BODIES):
        store.append([body])
        if number == snapshot_after:
            store.save_snapshot([b"state"])
    store.close()
    return folder


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def kept(folder: Path, kind: Kind = SegmentStore) -> list[bytes]:
    """What a repaired journal holds, having shown that it is well and can be written to."""
    assert verify(folder).lost == []
    assert repair(folder) == ([], None)
    store, bodies = opened(folder, kind)
    assert store.report == []
    store.append([b"new"])
    store.close()
    store, with_new = opened(folder, kind)
    store.close()
    assert with_new == [*bodies, b"new"]
    return bodies


@pytest.mark.parametrize("kind", [SegmentStore, SqliteStore])
def test_a_whole_journal_is_counted_and_left_alone(tmp_path: Path, kind: Kind) -> None:
    written(tmp_path, snapshot_after=5, kind=kind)
    before = contents(tmp_path)
    told: list[tuple[int, int]] = []
    verified = verify(tmp_path, lambda done, total: told.append((done, total)))
    assert (verified.frames, verified.findings) == (12, [])
    assert told[-1] == (verified.size, verified.size)
    assert repair(tmp_path) == ([], None)
    after = contents(tmp_path)
    assert all(after[name] == data for name, data in before.items() if name != "lock")


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for tool in (verify, repair):
        with pytest.raises(NotFound, match="nowhere"):
            tool(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told_on_the_way(tmp_path: Path) -> None:
    store = SegmentStore(Folder(tmp_path))
    list(store.recover().frames)
    for _ in range(10):
        store.append([bytes(1_000_000)])
    store.close()
    told: list[int] = []
    size = verify(tmp_path, lambda done, total: told.append(done)).size
    assert len(told) >= 5
    assert told == sorted(told)
    assert told[-1] == size


def test_every_damaged_place_is_found_with_what_can_be_read_around_it(tmp_path: Path) -> None:
    written(tmp_path)
    flip(tmp_path / "00000001.log", 32 + FRAME + 30)
    flip(tmp_path / "00000001.log", 32 + 3 * FRAME + 30)
    flip(tmp_path / "00000002.log", 3)
    flip(tmp_path / "00000003.log", 32 + 2 * FRAME)
    before = contents(tmp_path)
    verified = verify(tmp_path)
    assert contents(tmp_path) == before
    assert verified.frames == 9
    assert [finding[:2] + finding[3:6] for finding in verified.findings] == [
        ("00000001.log", 32 + FRAME, True, FRAME, 1),
        ("00000001.log", 32 + 3 * FRAME, True, FRAME, 2),
        ("00000002.log", 0, True, 32, 0),
        ("00000003.log", 32 + 2 * FRAME, True, FRAME, 2),
    ]


class Racing(Folder):
    """A folder whose last segment is looked at just when its last frame is being written."""

    def open(self, name: str, *, write: bool = False) -> File:
        file = super().open(name, write=write)
        return _Torn(file) if name == "00000003.log" else file


class _Torn:
    def __init__(self, file: File) -> None:
        self._file = file
        self._reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, position: int, size: int) -> bytes:
        data = self._file.read(position, size)
        self._reads += size > 32  # the file header is not what is torn
        return data[:-10] + bytes(10) if self._reads == 1 else data


def test_a_frame_that_is_written_meanwhile_is_no_damage(tmp_path: Path) -> None:
    written(tmp_path)
    verified = verify_segments(Racing(tmp_path))
    assert (verified.frames, verified.findings) == (12, [])


class BeingMade(Folder):
    """A folder whose last segment is looked at just when it is being made."""

    def open(self, name: str, *, write: bool = False) -> File:
        file = super().open(name, write=write)
        return _Headless(file) if name == "00000003.log" else file


class _Headless(_Torn):
    def read(self, position: int, size: int) -> bytes:
        self._reads += 1
        return self._file.read(position, size) if self._reads > 1 else b""


def test_a_segment_that_is_made_meanwhile_is_no_damage(tmp_path: Path) -> None:
    written(tmp_path)
    verified = verify_segments(BeingMade(tmp_path))
    assert (verified.frames, verified.findings) == (12, [])


class Dropping(Folder):
    """A folder whose owner drops what was the last segment before it is looked at."""

    def open(self, name: str, *, write: bool = False) -> File:
        if name == "00000003.log":
            raise FileNotFoundError(name)
        return super().open(name, write=write)


def test_a_segment_that_is_dropped_meanwhile_is_no_damage(tmp_path: Path) -> None:
    written(tmp_path)
    verified = verify_segments(Dropping(tmp_path))
    assert (verified.frames, verified.findings) == (8, [])


class Counting(Folder):
    """A folder that knows how many of its files are open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.most = 0
        self._open: WeakSet[_Torn] = WeakSet()

    def open(self, name: str, *, write: bool = False) -> File:
        file = _Headed(super().open(name, write=write))
        self._open.add(file)
        self.most = max(self.most, len(self._open))
        return file


class _Headed(_Torn):
    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)


def test_files_are_not_all_open_at_once(tmp_path: Path) -> None:
    store = SegmentStore(Folder(tmp_path), segment_bytes=100)
    assert list(store.recover().frames) == []
    for body in BODIES:
        store.append([body])
    store.close()
    folder = Counting(tmp_path)
    assert verify_segments(folder).frames == len(BODIES) == len([*tmp_path.glob("*.log")])
    assert folder.most < 4


def test_a_file_that_was_read_is_let_go_when_its_part_is_dropped(tmp_path: Path) -> None:
    folder = Counting(tmp_path)
    store = SegmentStore(folder, segment_bytes=300)
    list(store.recover().frames)
    for body in BODIES:
        store.append([body])
    store.save_snapshot([b"state"])
    for part in store.parts()[:-1]:
        assert [body for _, body in store.read(part.first, part.end)] != []
        before = len(folder._open)
        store.drop(part)
        assert len(folder._open) < before  # else its bytes would stay on disk
    store.close()


def test_a_torn_end_is_found_but_not_called_a_loss(tmp_path: Path) -> None:
    written(tmp_path)
    with open(tmp_path / "00000003.log", "ab") as file:
        file.write(b"torn")
    (finding,) = verify(tmp_path).findings
    assert finding[:6] == ("00000003.log", 32 + 4 * FRAME, "the frame is incomplete", False, 4, 4)
    assert repair(tmp_path) == ([], None)
    store, bodies = opened(tmp_path)
    assert bodies == BODIES
    assert len(store.report) == 1
    store.close()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_repair_keeps_what_comes_before_the_damage_and_copies_the_rest(tmp_path: Path, number: int) -> None:
    name = f"{number:08d}.log"
    original = written(tmp_path / "original")
    for position in range(32, (original / name).stat().st_size, 7):
        folder = tmp_path / str(position)
        shutil.copytree(original, folder)
        flip(folder / name, position)
        damaged = contents(folder)
        repaired = repair(folder)
        assert repaired.actions
        assert repaired.copies is not None
        assert repaired.copies.parent == folder
        copies = contents(repaired.copies)
        assert copies == {file: damaged[file] for file in damaged if file >= name and file != "lock"}
        readable = 4 * (number - 1) + (position - 32) // FRAME
        assert kept(folder) == BODIES[:readable]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("size", [None, 0, 31, 32, 32 + FRAME, 33 + FRAME])
def test_repair_copes_with_files_that_are_missing_or_too_short(tmp_path: Path, number: int, size: int | None) -> None:
    file = written(tmp_path) / f"{number:08d}.log"
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])
    assert verify(tmp_path).lost
    assert repair(tmp_path).actions
    assert kept(tmp_path) == BODIES[: 4 * (number - 1) + max((size or 0) - 32, 0) // FRAME]


@pytest.mark.parametrize("snapshot_after", [None, 5])
def test_a_damaged_header_costs_no_frame(tmp_path: Path, snapshot_after: int | None) -> None:
    written(tmp_path, snapshot_after=snapshot_after)
    whole = contents(tmp_path)
    for number in (1, 2, 3):
        for position in range(32):
            flip(tmp_path / f"{number:08d}.log", position)
            (action,) = repair(tmp_path).actions
            assert action == f"wrote the header of {number:08d}.log anew: the file header is damaged"
            assert {**contents(tmp_path), "lock": b""} == {**whole, "lock": b""}


def test_room_for_frames_that_a_segment_has_kept_is_no_damage(tmp_path: Path) -> None:
    written(tmp_path)  # and then copied, say, while its owner went on from the second segment to the third
    with (tmp_path / "00000002.log").open("ab") as file:
        file.write(bytes(200))
    store, bodies = opened(tmp_path)
    store.close()
    assert bodies == BODIES
    assert [body for _, body in SegmentReader(Folder(tmp_path)).read()] == BODIES
    assert kept(tmp_path) == BODIES


def test_a_copy_is_of_the_file_before_the_first_change(tmp_path: Path) -> None:
    written(tmp_path)
    flip(tmp_path / "00000002.log", 5)
    flip(tmp_path / "00000002.log", 32 + FRAME + 30)
    damaged = contents(tmp_path)
    repaired = repair(tmp_path)
    assert [action.split(" ")[0] for action in repaired.actions] == ["wrote", "set", "cut"]
    assert repaired.copies is not None
    assert contents(repaired.copies)["00000002.log"] == damaged["00000002.log"]
    assert kept(tmp_path) == BODIES[:5]


class Stopping(Folder):
    """A folder in which a program ends when it is about to remove one file too many."""

    def __init__(self, path: Path, removals: int) -> None:
        super().__init__(path)
        self._left = removals

    def unlink(self, name: str) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        super().unlink(name)


@pytest.mark.parametrize("removals", [0, 1])
def test_a_repair_that_is_interrupted_leaves_a_journal_that_says_so_and_is_repaired_again(
    tmp_path: Path, removals: int
) -> None:
    written(tmp_path)
    flip(tmp_path / "00000001.log", 32 + FRAME + 30)
    with pytest.raises(KeyboardInterrupt):
        repair_segments(Stopping(tmp_path, removals))
    assert next(finding.file for finding in verify(tmp_path).lost) == "00000001.log"
    with pytest.raises(JournalDamaged, match=r"00000001\.log"):
        opened(tmp_path)
    repair(tmp_path)
    assert kept(tmp_path) == BODIES[:1]


def test_a_repair_of_a_folder_that_lost_everything_but_its_head_says_that_it_begins_anew(tmp_path: Path) -> None:
    written(tmp_path)
    for path in tmp_path.glob("*.log"):
        path.unlink()
    assert repair(tmp_path).actions == ["began anew: of the segments up to 00000003.log none is there"]
    assert kept(tmp_path) == []


def test_a_damaged_snapshot_is_set_aside_if_the_journal_can_be_replayed_without_it(tmp_path: Path) -> None:
    written(tmp_path, snapshot_after=5)
    flip(next(tmp_path.glob("*.snapshot")), 60)
    assert [finding.file for finding in verify(tmp_path).lost] == ["00000003.snapshot"]
    assert repair(tmp_path).actions == ["set 00000003.snapshot aside: the segments it stood for are replayed instead"]
    assert kept(tmp_path) == BODIES


def test_a_damaged_snapshot_cannot_be_repaired_once_a_part_was_dropped(tmp_path: Path) -> None:
    written(tmp_path, snapshot_after=5)
    store, _ = opened(tmp_path)
    store.drop(store.parts()[0])
    store.close()
    flip(next(tmp_path.glob("*.snapshot")), 60)
    before = contents(tmp_path)
    with pytest.raises(JournalDamaged, match="cannot be repaired"):
        repair(tmp_path)
    assert contents(tmp_path) | {"lock": b""} == before | {"lock": b""}


def test_damage_before_the_snapshot_is_named_and_costs_nothing_behind_it(tmp_path: Path) -> None:
    written(tmp_path, snapshot_after=5)
    flip(tmp_path / "00000001.log", 100)
    flip(tmp_path / "00000003.log", 32 + FRAME + 30)
    first, *_ = actions = repair(tmp_path).actions
    assert first.startswith("left 00000001.log as it is")
    assert len(actions) == len(set(actions))
    store, bodies = opened(tmp_path)
    assert bodies == BODIES[6:7]
    store.close()


def test_the_segment_behind_a_snapshot_is_begun_anew_if_it_is_lost(tmp_path: Path) -> None:
    written(tmp_path, snapshot_after=5)
    (tmp_path / "00000003.log").unlink()
    assert repair(tmp_path).actions[-1] == "began an empty 00000003.log"
    assert kept(tmp_path) == []


def test_a_journal_in_use_can_be_verified_and_not_repaired(tmp_path: Path) -> None:
    written(tmp_path)
    store, _ = opened(tmp_path)
    store.append([b"not synced"])
    assert verify(tmp_path).findings == []
    with pytest.raises(JournalInUse):
        repair(tmp_path)
    store.close()


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "journal.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_damaged_and_missing_rows_are_found_and_cut(tmp_path: Path) -> None:
    written(tmp_path, kind=SqliteStore)
    change(tmp_path, "UPDATE frames SET body = x'00' WHERE location = 6")
    change(tmp_path, "DELETE FROM frames WHERE location = 8")
    verified = verify(tmp_path)
    assert (verified.frames, [finding.position for finding in verified.findings]) == (10, [6, 8])
    repaired = repair(tmp_path)
    assert repaired.actions == ["cut 6 frames from 6 on"]
    assert repaired.copies is not None
    assert [finding.position for finding in verify(repaired.copies).findings] == [6, 8]
    assert kept(tmp_path, SqliteStore) == BODIES[:5]


def test_rows_that_are_missing_in_a_row_are_told_as_one_however_many_they_seem_to_be(tmp_path: Path) -> None:
    written(tmp_path, kind=SqliteStore)
    change(tmp_path, "DELETE FROM frames WHERE location IN (2, 3)")
    change(tmp_path, 'UPDATE parts SET "end" = 1 << 60 WHERE first = 5')
    found = [(finding.position, finding.problem) for finding in verify(tmp_path).findings]
    assert found == [
        (2, "the frame is missing, and so are all up to 3"),
        (13, f"the frame is missing, and so are all up to {(1 << 60) - 1}"),
    ]
    repair(tmp_path)
    assert kept(tmp_path, SqliteStore) == BODIES[:1]


def test_a_database_that_sqlite_cannot_read_is_left_to_its_own_tools(tmp_path: Path) -> None:
    written(tmp_path, kind=SqliteStore)
    data = bytearray((tmp_path / "journal.db").read_bytes())
    data[4096:8192] = b"\xff" * 4096
    (tmp_path / "journal.db").write_bytes(data)
    assert verify(tmp_path).lost
    with pytest.raises(JournalDamaged, match=r"sqlite3 journal.db .recover"):
        repair(tmp_path)


def with_backlog(folder: Path, kind: Kind = SegmentStore) -> None:
    queue = broker(folder, kind)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    for number in range(60):
        queue.publish("orders", [Message(b"%d" % number * 50)])
    queue.close()


def broker(folder: Path, kind: Kind = SegmentStore) -> MessageQueue:
    return MessageQueue(journal=Journal(kind(Folder(folder), segment_bytes=2_000)))


@pytest.mark.parametrize(
    ("lose", "positions"),
    [
        (lambda path: path.unlink(), range(9, 60)),
        (lambda path: path.write_bytes(b""), range(9, 60)),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), range(9, 60)),
        (lambda path: os.truncate(path, 1_000), [0, 1, *range(9, 60)]),
        (lambda path: flip(path, 1_000), [0, 1, *range(3, 60)]),
    ],
    ids=["missing", "empty", "zeroed", "cut", "flipped"],
)
def test_what_is_lost_before_the_snapshot_is_found_and_after_a_repair_the_rest_is_delivered(
    tmp_path: Path, lose: Callable[[Path], object], positions: Iterable[int]
) -> None:
    with_backlog(tmp_path)
    assert verify(tmp_path).findings == []
    lose(tmp_path / "00000001.log")
    with pytest.raises(JournalDamaged, match=r"00000001\.log"):
        broker(tmp_path)
    assert {finding.file for finding in verify(tmp_path).lost} == {"00000001.log"}
    repaired = repair(tmp_path)
    assert repaired.actions[-1].endswith("without the messages that cannot be read again")
    assert repaired.copies is not None
    assert [path.suffix for path in repaired.copies.iterdir()] == [".snapshot"]
    assert repair(tmp_path).copies is None
    assert JournalReader(tmp_path).end("orders") == 60
    queue = broker(tmp_path)
    assert [message.position for message in queue.pull("billing", 100)] == [*positions]
    queue.close()


def test_what_is_lost_before_the_snapshot_is_repaired_although_another_one_was_being_written(tmp_path: Path) -> None:
    with_backlog(tmp_path)
    (tmp_path / "00000001.log").unlink()
    (tmp_path / "snapshot.new").write_bytes(b"half of it")  # a broker would remove it, and does not start
    repair(tmp_path)
    queue = broker(tmp_path)
    assert len(queue.pull("billing", 100)) == 51
    queue.close()


@pytest.mark.parametrize(
    ("statement", "positions"),
    [
        ("UPDATE frames SET body = x'00' WHERE location = 5", [0, 1, *range(3, 60)]),
        ("DELETE FROM frames WHERE location IN (5, 6)", [0, 1, *range(4, 60)]),
        ("DELETE FROM frames WHERE location < 12", range(9, 60)),
        ("DELETE FROM parts WHERE first = 1", range(60)),  # though its frames are there
    ],
    ids=["changed", "missing", "a part without frames", "a part that is not known"],
)
def test_what_is_lost_before_the_snapshot_of_a_database_is_passed_over_after_a_repair(
    tmp_path: Path, statement: str, positions: Iterable[int]
) -> None:
    with_backlog(tmp_path, SqliteStore)
    change(tmp_path, statement)
    with pytest.raises(JournalDamaged):
        broker(tmp_path, SqliteStore)
    repaired = repair(tmp_path)
    assert repaired.actions[-1] == "wrote the snapshot anew, without the messages that cannot be read again"
    assert repaired.copies is not None
    assert repair(tmp_path).copies is None
    assert JournalReader(tmp_path).end("orders") == 60
    queue = broker(tmp_path, SqliteStore)
    assert [message.position for message in queue.pull("billing", 100)] == [*positions]
    queue.close()
