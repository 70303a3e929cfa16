"""A reader beside the owner sees what is durable, all of it, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from inorder.errors import FrameDropped, JournalDamaged
from inorder.journal import Location
from inorder.journal.files import Folder
from inorder.journal.frames import FRAME_HEADER, OFFSET_MASK
from inorder.journal.reader import SegmentReader
from inorder.journal.segments import SegmentStore
from inorder.testing.faults import FaultyDisk


def owned(disk: FaultyDisk) -> SegmentStore:
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    return store


def append(store: SegmentStore, count: int) -> list[tuple[Location, bytes]]:
    bodies = [b"%d " % number * 12 for number in range(count)]
    return [(store.append([body]), body) for body in bodies]


def test_it_sees_frames_when_they_are_synced_and_not_before() -> None:
    disk = FaultyDisk(0)
    reader = SegmentReader(disk)
    assert (reader.end(), reader.parts(), list(reader.read()), reader.snapshot()) == (0, [], [], None)
    store = owned(disk)
    frames = append(store, 3)
    assert list(reader.read()) == []
    store.sync()
    assert list(reader.read()) == frames
    unsynced = append(store, 1)
    assert list(reader.read()) == frames
    store.sync()
    assert list(reader.read()) == frames + unsynced
    assert reader.parts() == store.parts()


def test_it_follows_the_owner_through_segments_and_snapshots() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    seen: list[tuple[Location, bytes]] = []
    frames: list[tuple[Location, bytes]] = []
    at = reader.end()
    for turn in range(40):
        frames += append(store, turn % 3)
        if turn % 2:
            store.sync()
        if turn % 10 == 9:
            store.save_snapshot([b"state %d" % turn])
            assert reader.snapshot() == (store.parts()[-1].first, b"state %d" % turn)
        end = reader.end()
        seen += reader.read(at, end)
        at = end
    assert seen == frames
    assert list(reader.read()) == frames
    for index, (location, _) in enumerate(frames):
        assert list(reader.read(location)) == frames[index:]
        assert list(reader.read(frames[0][0], location)) == frames[:index]


def test_a_dropped_part_is_named_and_a_missing_one_is_damage() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 20)
    store.save_snapshot([b"state"])
    first, second, *_ = store.parts()
    store.drop(first)
    with pytest.raises(FrameDropped, match=f"begins at {second.first}"):
        list(reader.read(frames[0][0]))
    assert list(reader.read()) == [frame for frame in frames if frame[0] >= second.first]
    behind = append(store, 20)
    store.sync()
    disk.remove(f"{(behind[0][0] >> 40) + 1:08d}.log")
    with pytest.raises(JournalDamaged, match="is missing"):
        list(reader.read(behind[0][0]))


def test_all_parts_before_the_snapshot_may_be_gone() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 20)
    store.save_snapshot([b"state"])
    for part in store.parts()[:-1]:
        store.drop(part)
    with pytest.raises(FrameDropped, match=f"begins at {store.end()}"):
        list(reader.read(frames[-1][0]))
    assert list(reader.read()) == []


@pytest.mark.parametrize("said", [None, b"", bytes(32), b"x" * 32])
def test_a_journal_whose_head_says_nothing_is_not_taken_for_an_empty_one(said: bytes | None) -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 3)
    store.close()
    disk.remove("head")
    if said is not None:
        disk.create("head")
        disk.overwrite("head", said)
    for look in (reader.end, reader.parts, lambda: list(reader.read())):
        with pytest.raises(JournalDamaged, match=r"head, byte 0: .*open the broker once"):
            look()
    owned(disk).close()
    assert list(reader.read()) == frames


def test_a_journal_that_is_being_created_is_an_empty_one() -> None:
    disk = FaultyDisk(0)
    owned(disk)
    disk.remove("head")
    assert SegmentReader(disk).end() == 0


def test_damage_is_damage() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 3)
    store.sync()
    location = frames[1][0]
    disk.flip_bit("00000001.log", (location & (1 << 40) - 1) + FRAME_HEADER)
    read = reader.read()
    assert next(read) == frames[0]
    with pytest.raises(JournalDamaged, match="00000001"):
        next(read)


def test_a_file_that_was_cut_at_any_byte_is_damage() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 3)
    store.sync()
    whole = disk.read("00000001.log")
    for size in range(frames[1][0] & OFFSET_MASK, frames[2][0] & OFFSET_MASK):
        disk.overwrite("00000001.log", whole[:size])
        for read in (reader.read(), store.read(frames[0][0])):
            assert next(read) == frames[0]
            with pytest.raises(JournalDamaged, match=f"00000001.log, byte {frames[1][0] & OFFSET_MASK}: "):
                next(read)


def test_zeros_before_the_end_of_what_is_durable_are_damage_and_no_room() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 3)
    store.sync()
    last, whole = frames[2][0] & OFFSET_MASK, disk.read("00000001.log")
    disk.overwrite("00000001.log", whole[:last] + bytes(len(whole) - last))
    for read in (reader.read(), store.read(frames[0][0])):
        assert [next(read), next(read)] == frames[:2]
        with pytest.raises(JournalDamaged, match=f"00000001.log, byte {last}: no frame begins here"):
            next(read)


def test_frames_that_are_gone_from_the_end_of_a_segment_are_damage() -> None:
    disk = FaultyDisk(0)
    store, reader = owned(disk), SegmentReader(disk)
    frames = append(store, 9)
    store.sync()
    last = max(location for location, _ in frames if location < 2 << 40) & OFFSET_MASK
    disk.overwrite("00000001.log", disk.read("00000001.log")[:last])
    with pytest.raises(JournalDamaged, match=f"00000001.log, byte {last}: the file ends here"):
        list(reader.read())


WRITER = """
import sys
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
store = SegmentStore(Folder(sys.argv[1]), segment_bytes=5_000)
list(store.recover().frames)
for number in range(2_000):
    store.append([b"%d" % number])
    if number % 3 == 0:
        store.sync()
store.close()
"""


def test_it_follows_another_process_while_that_writes(tmp_path: Path) -> None:
    reader = SegmentReader(Folder(tmp_path))
    seen: list[bytes] = []
    at = 0
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) as writer:
        while len(seen) < 2_000:
            ended = writer.poll() is not None
            end = reader.end()
            seen += [body for _, body in reader.read(at, end)]
            at = end
            assert not ended or len(seen) == 2_000
    assert seen == [b"%d" % number for number in range(2_000)]
