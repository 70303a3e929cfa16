"""A torn end is cut, damage is DataLoss that names file and byte, and never the other way round."""

import json
from collections.abc import Callable
from struct import pack
from zlib import crc32

import pytest

from inorder.broker import MessageQueue
from inorder.errors import DataLoss, InvalidArgument, JournalDamaged, JournalTooNew
from inorder.journal import Location
from inorder.journal.frames import FILE_HEADER, FRAME_HEADER, LONGEST_BODY, SEGMENT_SHIFT, frame_header
from inorder.journal.journal import Journal
from inorder.journal.layout import write_snapshot
from inorder.journal.segment_tools import verify_segments
from inorder.journal.segments import SegmentStore
from inorder.message import Message
from inorder.testing.clock import ManualClock
from inorder.testing.faults import Faults, FaultyDisk

LAST = "00000003.log"
BODIES = [b"%d " % number * 12 for number in range(10, 22)]  # four frames in each of three segments


def recovered(disk: FaultyDisk) -> tuple[list[bytes], list[str]]:
    disk.kill()
    store = SegmentStore(disk, segment_bytes=300)
    bodies = [body for _, body in store.recover().frames]
    store.close()
    return bodies, store.report


def contents(disk: FaultyDisk) -> dict[str, bytes]:
    return {name: disk.read(name) for name in disk.names()}


def damage(disk: FaultyDisk) -> JournalDamaged:
    """The damage that recovery finds, having changed nothing."""
    before = contents(disk)
    with pytest.raises(JournalDamaged) as raised:
        recovered(disk)
    assert contents(disk) == before
    return raised.value


def written(*, synced: bool = True, seed: int = 0) -> tuple[FaultyDisk, list[Location]]:
    disk = FaultyDisk(seed)
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    locations = []
    for body in BODIES:
        store.sync()
        locations.append(store.append([body]))
    assert sorted(disk.names())[:3] == ["00000001.log", "00000002.log", LAST]
    if synced:
        store.sync()
    return disk, locations


def place(location: Location) -> tuple[str, int]:
    return f"{location >> 40:08d}.log", location & (1 << 40) - 1


LAST_FRAME = FRAME_HEADER + len(BODIES[-1])


@pytest.mark.parametrize("kept", range(LAST_FRAME))
def test_a_frame_torn_at_any_byte_is_cut(kept: int) -> None:
    disk, locations = written(synced=False)
    whole, (_, start) = disk.read(LAST), place(locations[-1])
    for rest in (b"", bytes(LAST_FRAME - kept), b"\xff" * 10, bytes(1000)):
        disk.overwrite(LAST, whole[: start + kept] + rest)
        bodies, report = recovered(disk)
        cut = len((whole[start : start + kept] + rest).rstrip(b"\0"))  # zeros are room for frames
        if kept + len(rest) == LAST_FRAME and bodies == BODIES:  # the bytes that were lost happened to be zeros
            continue
        assert bodies == BODIES[:-1]
        assert report == ([f"cut {cut} bytes of an incomplete frame at the end of {LAST}"] if cut else [])
        assert disk.read(LAST) == whole[:start]
        assert recovered(disk) == (BODIES[:-1], [])


@pytest.mark.parametrize("kept", range(LAST_FRAME))
def test_a_frame_that_had_been_durable_is_never_cut(kept: int) -> None:
    disk, locations = written()
    name, start = place(locations[-1])
    disk.overwrite(name, disk.read(name)[: start + kept])
    found = damage(disk)
    assert (found.file, found.position) in ((name, start), (name, start + LAST_FRAME))


@pytest.mark.parametrize("name", ["00000001.log", "00000002.log", LAST])
def test_a_flip_of_any_bit_is_found_where_it_is(name: str) -> None:
    disk, locations = written()
    starts = [0, *(start for file, start in map(place, locations) if file == name)]
    used = place(locations[-1])[1] + LAST_FRAME if name == LAST else len(disk.read(name))  # the rest is room
    for position in range(used):
        before = disk.read(name)
        disk.flip_bit(name, position)
        found = damage(disk)
        assert (found.file, found.position) == (name, max(start for start in starts if start <= position))
        disk.overwrite(name, before)
    assert recovered(disk)[0] == BODIES


@pytest.mark.parametrize("name", ["00000001.log", "00000002.log", LAST])
def test_later_frames_and_segments_prove_what_was_durable_without_a_head(name: str) -> None:
    disk, locations = written()
    disk.remove("head")
    for position in range(len(disk.read(name))):
        if (name, position) >= place(locations[-1]):
            return  # nothing comes behind the very last frame
        before = disk.read(name)
        disk.flip_bit(name, position)
        damage(disk)
        disk.overwrite(name, before)


def test_a_header_proves_what_was_durable_even_if_its_own_frame_is_torn() -> None:
    disk, locations = written(synced=False)
    disk.remove("head")
    (name, before_last), (_, last) = place(locations[-2]), place(locations[-1])
    disk.overwrite(name, disk.read(name)[: last + FRAME_HEADER])
    disk.flip_bit(name, before_last + FRAME_HEADER)
    found = damage(disk)
    assert (found.file, found.position) == (name, before_last)


def test_whole_frames_behind_a_torn_one_are_cut_with_it_if_none_was_durable() -> None:
    disk = FaultyDisk(0)
    store = SegmentStore(disk)
    list(store.recover().frames)
    start = [store.append([body]) for body in BODIES][5] & (1 << 40) - 1
    disk.flip_bit("00000001.log", start)
    size = len(disk.read("00000001.log").rstrip(b"\0"))
    assert recovered(disk) == (
        BODIES[:5],
        [f"cut {size - start} bytes of an incomplete frame at the end of 00000001.log"],
    )


def test_a_message_that_carries_a_journal_proves_nothing_about_this_one() -> None:
    other, _ = written()
    disk = FaultyDisk(0)
    store = SegmentStore(disk)
    list(store.recover().frames)
    for _ in range(3):
        store.append([other.read(LAST)])
    disk.flip_bit("00000001.log", FILE_HEADER)
    assert recovered(disk)[0] == []


def test_damage_of_any_byte_of_the_head_is_harmless() -> None:
    disk, _ = written()
    for position in range(len(disk.read("head"))):
        disk.flip_bit("head", position)
        assert recovered(disk) == (BODIES, [])


@pytest.mark.parametrize("missing", ["00000001.log", "00000002.log", LAST])
def test_a_missing_segment_is_damage(missing: str) -> None:
    disk, _ = written()
    disk.remove(missing)
    assert damage(disk).file == missing


@pytest.mark.parametrize("stray", ["20261116.log", "20261116202611162026.log"])
def test_a_stray_file_with_a_large_number_is_named_and_costs_nothing(stray: str) -> None:
    disk, _ = written()
    disk.create(stray)
    disk.overwrite(stray, disk.read(LAST))
    found = damage(disk)
    assert found.file == "00000004.log"
    assert stray in found.problem
    assert {"00000004.log", stray} <= {finding.file for finding in verify_segments(disk).findings}
    disk.remove(stray)
    assert recovered(disk)[0] == BODIES


@pytest.mark.parametrize(
    "stray", ["4.log", "notes.log", "\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2\u00b2.log", "7.snapshot"]
)
def test_files_of_other_names_are_none_of_ours(stray: str) -> None:
    disk, _ = written()
    disk.create(stray)
    assert recovered(disk)[0] == BODIES


def test_a_segment_in_the_place_of_another_is_damage_that_names_both() -> None:
    disk, _ = written()
    disk.overwrite(LAST, disk.read("00000002.log"))
    found = damage(disk)
    assert (found.file, found.problem) == (LAST, "the file says that it is number 2")


class TooLong(bytes):
    def __len__(self) -> int:
        return LONGEST_BODY + 1


def test_a_frame_that_its_header_could_not_tell_the_length_of_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 4294967295 bytes, not 4294967296"):
        frame_header(0, 0, TooLong())


def test_a_segment_that_was_being_created_is_removed_and_proves_the_one_before_it() -> None:
    disk, locations = written()
    disk.remove("head")
    disk.overwrite(LAST, disk.read(LAST)[:20])
    whole = contents(disk)
    assert recovered(disk) == (BODIES[:8], [f"removed {LAST}, which was being created"])
    assert LAST not in disk.names()
    for name, data in whole.items():
        if name != LAST:
            disk.overwrite(name, data)
    disk.create(LAST)
    disk.remove("head")
    name, start = place(locations[7])
    disk.flip_bit(name, start)
    found = damage(disk)
    assert (found.file, found.position) == (name, start)


def test_the_header_of_an_empty_segment_is_missed_if_head_or_snapshot_know_of_it() -> None:
    for without in ("head", "00000004.snapshot"):
        disk, _ = written()
        disk.kill()
        store = SegmentStore(disk, segment_bytes=300)
        list(store.recover().frames)
        store.save_snapshot([b"state"])
        disk.remove(without)
        disk.overwrite("00000004.log", disk.read("00000004.log")[:20])
        found = damage(disk)
        assert (found.file, found.position) == ("00000004.log", 0)


def test_frames_missing_at_the_end_of_a_segment_are_damage_although_the_others_are_whole() -> None:
    disk, locations = written()
    name, start = place(locations[3])
    assert name == "00000001.log"
    disk.overwrite(name, disk.read(name)[:start])
    found = damage(disk)
    assert (found.file, found.position) == (name, start)


def test_a_folder_that_lost_everything_but_its_head_is_no_fresh_start() -> None:
    disk, _ = written()
    for name in disk.names():
        if name != "head":
            disk.remove(name)
    assert damage(disk).file == LAST


def with_snapshot() -> FaultyDisk:
    disk, _ = written()
    disk.kill()
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    store.save_snapshot([b"state"])
    store.append([b"behind"])
    store.close()
    disk.kill()
    return disk


def test_a_flip_of_any_bit_of_the_snapshot_is_damage() -> None:
    disk = with_snapshot()
    name = "00000004.snapshot"
    whole = disk.read(name)
    for position in range(len(whole)):
        disk.flip_bit(name, position)
        found = damage(disk)
        assert (found.file, found.position) == (name, FILE_HEADER if position >= FILE_HEADER else 0)
        disk.overwrite(name, whole[:position])
        assert damage(disk).file == name
        disk.overwrite(name, whole)
    disk.overwrite(name, whole + b"more")
    assert damage(disk).file == name
    disk.overwrite(name, whole + frame_header(4 << SEGMENT_SHIFT | len(whole), 0, b"more") + b"more")
    assert damage(disk).problem == "the file has 2 frames where a snapshot has one"


def test_a_lost_snapshot_is_damage_once_segments_before_it_were_dropped() -> None:
    disk = with_snapshot()
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    store.drop(store.parts()[0])
    store.close()
    disk.remove("00000004.snapshot")
    assert damage(disk).file == "00000001.log"


def test_a_missing_segment_behind_the_snapshot_is_damage_and_before_it_none() -> None:
    disk = with_snapshot()
    disk.remove("00000002.log")
    assert recovered(disk)[0] == [b"behind"]
    disk.remove("00000004.log")
    assert damage(disk).file == "00000004.log"


@pytest.mark.parametrize("name", [LAST, "00000004.snapshot"])
def test_a_format_of_the_future_is_named(name: str) -> None:
    disk = with_snapshot() if "snap" in name else written()[0]
    data = disk.read(name)
    header = data[:8] + pack("<I", 2) + data[12 : FILE_HEADER - 4]
    disk.overwrite(name, header + pack("<I", crc32(header)) + data[FILE_HEADER:])
    before = contents(disk)
    with pytest.raises(JournalTooNew, match=f"{name} has journal format 2, .* format 1 only"):
        recovered(disk)
    assert contents(disk) == before


def test_damage_is_found_when_a_frame_is_read_again() -> None:
    disk, locations = written()
    disk.kill()
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    for location in (locations[2], locations[-1]):
        name, start = place(location)
        disk.flip_bit(name, start + FRAME_HEADER)
        with pytest.raises(DataLoss, match=f"{name}, byte {start}: the frame does not match its checksum"):
            list(store.read(location))


@pytest.mark.parametrize(
    ("faults", "call", "message"),
    [
        (Faults(write_error=1), lambda store: store.append([b"x"]), "write 00000003.log: .*Errno 5"),
        (Faults(capacity=0), lambda store: store.append([b"x"]), "write 00000003.log: .*Errno 28"),
        (Faults(sync_error=1), lambda store: (store.append([b"x"]), store.sync()), "sync 00000003.log: .*Errno 5"),
        (Faults(capacity=0), lambda store: store.begin_part(), "create 00000004.log: .*Errno 28"),
        (Faults(sync_error=1), lambda store: store.save_snapshot([b"x"]), "truncate 00000003.log: .*Errno 5"),
    ],
)
def test_a_failed_store_names_what_failed_and_says_so_again(
    faults: Faults, call: Callable[[SegmentStore], object], message: str
) -> None:
    disk, _ = written()
    disk.kill()
    store = SegmentStore(disk, segment_bytes=300)
    list(store.recover().frames)
    disk.faults = faults
    for again in (call, SegmentStore.parts, SegmentStore.sync, lambda store: list(store.read(1 << 40 | FILE_HEADER))):
        with pytest.raises(Exception, match=f"the journal stopped, as it could not {message}"):
            again(store)
        disk.faults = Faults()  # the disk is well again, and the store knows better than to believe it
    store.close()


def test_room_ahead_of_the_frames_is_nothing_to_report() -> None:
    disk, locations = written()
    start = place(locations[-1])[1]
    assert len(disk.read(LAST)) > start + LAST_FRAME  # zeros, made beforehand
    assert recovered(disk) == (BODIES, [])
    assert len(disk.read(LAST)) == start + LAST_FRAME


def test_a_closed_journal_keeps_no_room() -> None:
    disk = FaultyDisk(0)
    store = SegmentStore(disk)
    list(store.recover().frames)
    location = store.append([b"x"])
    assert len(disk.read("00000001.log")) > place(location)[1] + FRAME_HEADER + 1
    store.close()
    assert len(disk.read("00000001.log")) == place(location)[1] + FRAME_HEADER + 1


def broker(disk: FaultyDisk) -> MessageQueue:
    return MessageQueue(ManualClock(), Journal(SegmentStore(disk, segment_bytes=2_000)))


def with_a_backlog_before_the_snapshot() -> FaultyDisk:
    disk = FaultyDisk(0)
    queue = broker(disk)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    for number in range(60):
        queue.publish("orders", [Message(b"%d" % number * 50)])
    queue.ack([message.ack_id for message in queue.pull("billing", 30)])
    queue.close()
    return disk


def backlog(disk: FaultyDisk) -> list[int]:
    queue = broker(disk)
    try:
        return [message.position for message in queue.pull("billing", 1_000)]
    finally:
        disk.kill()


def named(disk: FaultyDisk) -> list[str]:
    return sorted(name for name in disk.names() if name.endswith(".log"))[:-1]


LOSSES: list[Callable[[FaultyDisk, str], None]] = [
    lambda disk, name: disk.remove(name),
    lambda disk, name: disk.overwrite(name, b""),
    lambda disk, name: disk.overwrite(name, bytes(len(disk.read(name)))),
    lambda disk, name: disk.overwrite(name, disk.read(name)[:-1]),
]


@pytest.mark.parametrize("lose", LOSSES, ids=["missing", "empty", "zeroed", "cut"])
def test_whatever_is_lost_before_the_snapshot_is_named_if_messages_that_wait_stand_in_it(
    lose: Callable[[FaultyDisk, str], None],
) -> None:
    assert backlog(with_a_backlog_before_the_snapshot()) == [*range(30, 60)]
    for name in named(with_a_backlog_before_the_snapshot()):
        disk = with_a_backlog_before_the_snapshot()
        lose(disk, name)
        with pytest.raises(JournalDamaged) as raised:
            backlog(disk)
        assert raised.value.file == name


def test_a_lost_segment_that_a_snapshot_names_is_found_before_anything_is_changed() -> None:
    disk = with_a_backlog_before_the_snapshot()
    disk.remove(named(disk)[1])
    before = contents(disk)
    with pytest.raises(JournalDamaged, match="the part that begins here is missing"):
        broker(disk)
    assert contents(disk) == before


def test_a_block_that_reads_with_a_hole_is_damage() -> None:
    disk = FaultyDisk(0)
    queue = broker(disk)
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    queue.publish("orders", [Message(b"a"), Message(b"b")])
    queue.register_subscription("billing", "orders")
    index = queue._state.topics["orders"].history.index  # type: ignore[attr-defined]
    index.ends[-1] = 3  # as if one more had been there
    queue.seek("billing", position=0)
    with pytest.raises(JournalDamaged, match="messages 2 to 2 are missing"):
        queue.pull("billing", 10)


def of_the_first_journals(disk: FaultyDisk) -> FaultyDisk:
    """The same with a snapshot that names no parts."""
    [snapshot] = [name for name in disk.names() if name.endswith(".snapshot")]
    number, body = int(snapshot[:8]), disk.read(snapshot)[FILE_HEADER + FRAME_HEADER :]
    plain = json.loads(body)
    del plain["parts"]
    disk.remove(snapshot)
    write_snapshot(disk, number, json.dumps(plain).encode())
    return disk


def test_a_snapshot_of_the_first_journals_names_no_parts_and_opens() -> None:
    disk = of_the_first_journals(with_a_backlog_before_the_snapshot())
    assert backlog(disk) == [*range(30, 60)]
    disk.remove(named(disk)[0])  # which may have been dropped, for all that anybody knows
    assert backlog(disk)[-1] == 59


@pytest.mark.parametrize("kept", [0, 1])
def test_any_part_may_have_been_dropped_before_a_snapshot_of_the_first_journals(kept: int) -> None:
    disk = of_the_first_journals(with_a_backlog_before_the_snapshot())
    for name in named(disk)[kept:]:
        disk.remove(name)
    queue = broker(disk)
    left = [message.position for message in queue.pull("billing", 1_000)]
    assert left == [*range(30, 39)][: 9 * kept]
    queue.publish("orders", [Message(b"new")])
    assert [message.position for message in queue.pull("billing", 1_000)] == [60]
