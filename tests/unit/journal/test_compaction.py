"""A part of the journal is dropped when nobody needs it any more, and not before, on both stores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message
from inorder.testing.clock import ManualClock
from inorder.testing.faults import Faults, FaultyDisk, PowerCut

both = pytest.mark.parametrize("kind", [SegmentStore, SqliteStore])


def opened(folder: Path, kind: Callable[..., Store]) -> MessageQueue:
    return MessageQueue(journal=Journal(kind(Folder(folder), segment_bytes=2_000)))


def on(disk: FaultyDisk) -> MessageQueue:
    return MessageQueue(ManualClock(), Journal(SegmentStore(disk, segment_bytes=1_000)))


def publish(queue: MessageQueue, count: int) -> None:
    for number in range(count):
        queue.publish("orders", [Message(b"%d" % number * 50)])


@both
def test_parts_with_a_backlog_are_kept_through_snapshots_and_restarts(
    tmp_path: Path, kind: Callable[..., Store]
) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, 100)
    queue._save()
    queue.close()
    queue = opened(tmp_path, kind)
    assert [message.position for message in queue.pull("billing", 1_000)] == list(range(100))
    queue.close()


@both
def test_parts_whose_messages_are_all_acked_are_dropped(tmp_path: Path, kind: Callable[..., Store]) -> None:
    queue = opened(tmp_path, kind)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    publish(queue, 100)
    queue.ack([message.ack_id for message in queue.pull("billing", 90)])
    assert queue._journal is not None
    before = len(queue._journal.store.parts())
    queue._save()
    left = queue._journal.store.parts()
    assert before > 8
    assert len(left) <= 5
    queue.close()
    queue = opened(tmp_path, kind)
    assert [message.position for message in queue.pull("billing", 1_000)] == list(range(90, 100))
    queue.close()


def test_a_topic_to_which_nobody_publishes_any_more_keeps_its_last_part_no_longer_than_its_messages() -> None:
    clock, disk = ManualClock(), FaultyDisk(0)
    queue = MessageQueue(clock, Journal(SegmentStore(disk, segment_bytes=1_000)))
    queue.register_topic("orders")
    queue.register_topic("retained", {"message_retention_duration": 600})
    queue.register_topic("unacked")
    queue.register_subscription("billing", "unacked", {"message_retention_duration": 600})
    queue.publish("retained", [Message(b"one")])
    queue.publish("unacked", [Message(b"one")])
    publish(queue, 30)
    clock.advance(600)
    queue._save()
    assert "00000001.log" in disk.names()
    clock.advance(0.000_001)
    publish(queue, 30)
    queue._save()
    assert "00000001.log" not in disk.names()


@pytest.mark.parametrize("restart", [FaultyDisk.restart, FaultyDisk.restart_without_the_unsynced, FaultyDisk.kill])
def test_a_crash_anywhere_while_parts_are_dropped_leaves_a_journal_that_opens(
    restart: Callable[[FaultyDisk], None],
) -> None:
    lost_power = True
    cut_at = 0
    while lost_power:
        cut_at += 1
        disk = FaultyDisk(cut_at)
        queue = on(disk)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        publish(queue, 60)
        queue._save()
        queue.ack([message.ack_id for message in queue.pull("billing", 50)])
        disk.faults = Faults(power_cut_at=disk.changes + cut_at)
        try:
            queue._save()
            lost_power = False
        except PowerCut:
            restart(disk)
            queue = on(disk)
            assert [message.position for message in queue.pull("billing", 100)][-10:] == [*range(50, 60)]
    assert cut_at > 20
