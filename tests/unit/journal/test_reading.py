"""Messages by topic and position beside the owner: what is durable, all of it, and nothing else."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument, JournalDamaged, JournalFailed, NotFound, NotRetained, TopicNotFound
from inorder.journal import Location, Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.reader import SegmentReader
from inorder.journal.reading import JournalReader, Stretch, read_slice
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.journal.tools import verify
from inorder.message import DATA, KEY, POSITION, Message
from inorder.testing import ManualClock

KINDS = {"segments": SegmentStore, "sqlite": SqliteStore}


@pytest.fixture(params=["segments", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(folder: Path, kind: str, clock: ManualClock | None = None) -> MessageQueue:
    store: Store = KINDS[kind](Folder(folder), segment_bytes=2_000)
    return MessageQueue(clock or ManualClock(), Journal(store))


def publish(queue: MessageQueue, topic: str, *batches: int) -> None:
    """Batches of messages that carry their position."""
    for count in batches:
        found = queue.get_topic(topic)
        assert found is not None
        positions = range(found.next_position, found.next_position + count)
        queue.publish(topic, [Message(b"%d" % p * 20, ordering_key=f"k{p % 7}") for p in positions])


def positions(stretches: "list[Stretch]") -> list[int]:
    """All positions that were read, each with what was published there."""
    found = [record for stretch in stretches for record in stretch.records()]
    assert [record[DATA] for record in found] == [b"%d" % record[POSITION] * 20 for record in found]
    assert [record[KEY] for record in found] == [f"k{record[POSITION] % 7}" for record in found]
    return [record[POSITION] for record in found]


def test_every_stretch_of_positions_can_be_read(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.register_topic("other")
    for count in (1, 5, 2, 9, 1, 1, 4, 30, 2):
        publish(queue, "orders", count)
        publish(queue, "other", count + 1)
    reader = JournalReader(tmp_path)
    assert (reader.kind, reader.begin("orders"), reader.end("orders"), reader.end("other")) == (kind, 0, 55, 64)
    for first in range(0, 60, 3):
        for end in (None, *range(0, 60, 4)):
            expected = list(range(first, min(55, 55 if end is None else end)))
            assert positions(list(reader.read("orders", first, end))) == expected
    assert positions(list(reader.read("other"))) == list(range(64))
    queue.close()


def test_columns_are_what_was_published(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"one", {"a": "1"}, "k"), Message(b"", None, "schlüssel"), Message(b"three")])
    [stretch] = JournalReader(tmp_path).read("orders", 1)
    found = stretch.batch
    assert (stretch.first, stretch.end, found.first, found.end) == (1, 3, 0, 3)
    assert (bytes(found.keys), found.key_offsets.tolist()) == ("kschlüssel".encode(), [0, 1, 11, 11])
    assert (bytes(found.data), found.data_offsets.tolist()) == (b"onethree", [0, 3, 3, 8])
    assert found.attributes() == [{"a": "1"}, None, None]
    assert found.publish_times_us() is None
    assert [record[POSITION] for record in stretch.records()] == [1, 2]
    queue.close()


def test_a_dead_letter_keeps_the_time_at_which_it_was_published(tmp_path: Path, kind: str) -> None:
    clock = ManualClock()
    queue = opened(tmp_path, kind, clock)
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("morgue", "dead")
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("billing", "orders", {"dead_letter_policy": policy})
    queue.publish("orders", [Message(b"bad")])
    published_us = clock.now_us()
    clock.advance(5)
    queue.nack([message.ack_id for message in queue.pull("billing", 1)])
    queue.close()
    [stretch] = JournalReader(tmp_path).read("dead")
    times = stretch.batch.publish_times_us()
    assert times is not None
    assert (times.tolist(), stretch.batch.stored_us) == ([published_us], published_us + 5_000_000)


def test_a_reader_follows_the_owner_when_it_is_refreshed(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    reader = JournalReader(tmp_path)
    assert reader.topics() == []
    seen: list[int] = []
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    for turn in range(60):
        publish(queue, "orders", turn % 4 + 1)
        if turn % 3 == 0:
            reader.refresh()
            seen += positions(list(reader.read("orders", len(seen))))
        if turn % 10 == 9:
            queue._save()
    reader.refresh()
    seen += positions(list(reader.read("orders", len(seen))))
    assert seen == list(range(150))
    fresh = JournalReader(tmp_path)
    assert positions(list(fresh.read("orders"))) == seen
    assert fresh.topics() == reader.topics()
    assert fresh.book == reader.book
    queue.close()
    assert JournalReader(tmp_path).topics() == reader.topics()


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_what_is_not_synced_is_not_seen(tmp_path: Path, kind: str, sync: str) -> None:
    queue = MessageQueue.open(tmp_path, journal=kind, sync=sync, sync_seconds=3600)  # type: ignore[arg-type]
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, "orders", 3)
    assert JournalReader(tmp_path).topics() == []
    queue.close()
    assert positions(list(JournalReader(tmp_path).read("orders"))) == [0, 1, 2]


def test_what_was_dropped_is_named_with_what_is_left(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, "orders", *[1] * 300)
    before = JournalReader(tmp_path)
    behind = before.read("orders", 0)
    next(behind)
    queue.ack([message.ack_id for message in queue.pull("billing", 280)])
    queue._save()
    for reader in (before, JournalReader(tmp_path)):
        reader.refresh()
        begin = reader.begin("orders")
        assert 0 < begin <= 280
        assert positions(list(reader.read("orders"))) == list(range(begin, 300))
        with pytest.raises(NotRetained, match=f"position 0 is no longer retained.* from {begin} on"):
            next(reader.read("orders", 0))
        assert reader.topic("orders").begin == begin
    with pytest.raises(NotRetained):
        list(behind)
    queue.close()


def test_a_time_of_which_all_was_dropped_since_is_that_of_the_first_that_is_left(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, "orders", *[1] * 300)
    reader = JournalReader(tmp_path)
    queue.ack([message.ack_id for message in queue.pull("billing", 280)])
    queue._save()
    position = reader.position_at("orders", 0)  # as it was before, without a refresh
    assert position == JournalReader(tmp_path).begin("orders") > 0
    queue.close()


def test_what_others_have_left_behind_between_two_messages_is_not_missed(tmp_path: Path, kind: str) -> None:
    """A topic that keeps its messages is read on, whatever is dropped of another one beside it."""
    queue = opened(tmp_path, kind)
    queue.register_topic("orders", {"message_retention_duration": 86_400})
    queue.register_topic("other")
    queue.register_subscription("others", "other")
    publish(queue, "orders", 2)
    publish(queue, "other", *[5] * 60)
    publish(queue, "orders", 3)
    before = JournalReader(tmp_path)
    planned = before.slices("orders", 0, 5, 1)
    queue.ack([message.ack_id for message in queue.pull("others", 300)])
    queue._save()
    assert len(JournalReader(tmp_path).parts) < len(before.parts)
    for reader in (before, JournalReader(tmp_path)):
        reader.refresh()
        assert positions(list(reader.read("orders"))) == [*range(5)]
    assert [positions([*read_slice(tmp_path, slice)]) for slice in planned] == [[*range(5)]]
    queue.close()


def test_a_hole_is_not_passed_over(tmp_path: Path) -> None:
    queue = opened(tmp_path, "segments")
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, "orders", *[5] * 60)
    messages = queue.pull("billing", 300)
    queue.ack([message.ack_id for message in messages if 3 < message.position < 250])
    queue._save()
    reader = JournalReader(tmp_path)
    begin = reader.begin("orders")
    assert 200 < begin <= 250
    read = reader.read("orders", 0)
    found: list[Stretch] = []
    with pytest.raises(NotRetained):
        found.extend(read)
    assert positions(found) == list(range(found[-1].end))
    assert 4 < found[-1].end < 250
    assert positions(list(reader.read("orders", 1, 4))) == [1, 2, 3]
    queue.close()


def test_a_topic_of_the_same_name_is_another_topic(tmp_path: Path, kind: str) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    publish(queue, "orders", 5)
    reader = JournalReader(tmp_path)
    first = reader.topic("orders")
    queue.unregister_topic("orders")
    reader.refresh()
    for call in (reader.topic, reader.begin, reader.end, reader.read):
        with pytest.raises(TopicNotFound, match="orders"):
            call("orders")
    queue.register_topic("orders")
    publish(queue, "orders", 2)
    reader.refresh()
    assert reader.topic("orders").serial != first.serial
    assert positions(list(reader.read("orders"))) == [0, 1]
    queue.close()


def test_a_topic_says_what_there_is_of_it(tmp_path: Path, kind: str) -> None:
    clock = ManualClock()
    queue = opened(tmp_path, kind, clock)
    queue.register_topic("orders", {"message_retention_duration": 60})
    created_us = clock.now_us()
    reader = JournalReader(tmp_path)
    view = reader.topic("orders")
    assert (view.begin, view.end, view.size, view.oldest_us, view.newest_us) == (0, 0, 0, None, None)
    publish(queue, "orders", 3)
    clock.advance(9)
    [identity] = queue.publish("orders", [Message(b"x")])
    reader.refresh()
    view = reader.topic("orders")
    assert (view.created_us, view.oldest_us, view.newest_us) == (created_us, created_us, created_us + 9_000_000)
    assert (view.begin, view.end, view.size) == (0, 4, 3 * 20 + 3 * 2 + 1)
    assert view.options.message_retention_duration == 60
    assert identity == f"{view.id_prefix}3"
    queue.close()


def test_where_there_is_no_journal_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("no journal")
    with pytest.raises(NotFound, match="no journal"):
        JournalReader(tmp_path)
    with pytest.raises(NotFound, match="no folder"):
        JournalReader(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["readme.txt"]


def test_a_position_is_at_least_0(tmp_path: Path) -> None:
    queue = opened(tmp_path, "segments")
    queue.register_topic("orders")
    with pytest.raises(InvalidArgument, match="-1"):
        JournalReader(tmp_path).read("orders", -1)
    queue.close()


def test_a_frame_that_means_nothing_is_damage(tmp_path: Path, kind: str) -> None:
    store: Store = KINDS[kind](Folder(tmp_path))
    list(store.recover().frames)
    store.append([b"nonsense"])
    store.close()
    place = {"segments": "00000001.log, byte 32", "sqlite": "journal.db, frame 1"}[kind]
    with pytest.raises(JournalDamaged, match=f"journal damaged: {place}: the frame cannot be decoded"):
        JournalReader(tmp_path)


def test_a_snapshot_that_means_nothing_is_damage(tmp_path: Path, kind: str) -> None:
    store: Store = KINDS[kind](Folder(tmp_path))
    list(store.recover().frames)
    store.save_snapshot([b"{}"])
    store.close()
    with pytest.raises(JournalDamaged, match="snapshot cannot be decoded"):
        JournalReader(tmp_path)


@pytest.mark.parametrize("size", [None, 0, 500])
def test_a_segment_that_is_lost_before_the_snapshot_is_damage_for_readers_too(tmp_path: Path, size: int | None) -> None:
    queue = opened(tmp_path, "segments")
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    publish(queue, "orders", *[5] * 40)
    queue.close()
    assert JournalReader(tmp_path).begin("orders") == 0
    if size is None:
        (tmp_path / "00000002.log").unlink()
    else:
        os.truncate(tmp_path / "00000002.log", size)
    with pytest.raises(JournalDamaged, match=f"journal damaged: 00000002.log, byte {size or 32}: the part"):
        JournalReader(tmp_path)


def test_a_reader_sees_that_its_folder_was_set_back(tmp_path: Path, kind: str) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    queue = opened(folder, kind)
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    publish(queue, "orders", 2)
    queue.close()
    shutil.copytree(folder, copy)
    queue = opened(folder, kind)
    publish(queue, "orders", 1, 1)
    queue.close()
    reader = JournalReader(folder)
    assert reader.end("orders") == 4
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    reader.refresh()
    assert reader.end("orders") == 2
    queue = opened(folder, kind)
    publish(queue, "orders", 3)
    reader.refresh()
    assert positions(list(reader.read("orders"))) == [0, 1, 2, 3, 4]
    queue.close()


@pytest.mark.parametrize("pattern", ["head", "*.snapshot"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, pattern: str) -> None:
    queue = opened(tmp_path, "segments")
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    publish(queue, "orders", *[5] * 40)
    queue.close()
    [path] = tmp_path.glob(pattern)
    path.unlink()
    path.mkdir()  # as good as a broken disk: it can be opened, and not read
    with pytest.raises(JournalFailed, match=f"{path}'"):
        JournalReader(tmp_path)
    with pytest.raises(OSError, match=f"{path}'"):
        verify(tmp_path)


class CutShort(SegmentReader):
    """Its first so many frames can be read, and then none for now."""

    frames: int | None = None

    def read(self, start: Location | None = None, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        for number, frame in enumerate(super().read(start, end)):
            if number == self.frames:
                raise JournalFailed("read", "a file", OSError("not now"))
            yield frame


def test_what_was_read_before_a_failure_is_not_taken_in_twice(tmp_path: Path) -> None:
    queue = opened(tmp_path, "segments")
    queue.register_topic("orders")
    reader = JournalReader(tmp_path)
    reader.frames = cut = CutShort(Folder(tmp_path))
    queue.unregister_topic("orders")  # which nobody can do twice
    queue.register_topic("orders")
    publish(queue, "orders", 1, 2)
    for cut.frames in range(4):
        with pytest.raises(JournalFailed, match="not now"):
            reader.refresh()
    cut.frames = None
    reader.refresh()
    assert positions(list(reader.read("orders"))) == [0, 1, 2]
    queue.close()
