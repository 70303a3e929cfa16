"""What a broker's journal drops and what it keeps, and where messages are found again, on both stores."""

from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message
from inorder.testing.clock import ManualClock

STORES = (SegmentStore, SqliteStore)
CLOCK = ManualClock()


@pytest.fixture(params=STORES)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> "Journals":
    return Journals(request.param, tmp_path)


class Journals:
    """Opens brokers in one folder, with parts of a few messages."""

    def __init__(self, store: type[SegmentStore] | type[SqliteStore], folder: Path) -> None:
        self._store, self._folder = store, folder

    def open(self, *, snapshot_bytes: int = 1 << 30) -> MessageQueue:
        store = self._store(Folder(self._folder), segment_bytes=1000)
        return MessageQueue(CLOCK, Journal(store, snapshot_bytes=snapshot_bytes))


def publish(queue: MessageQueue, topic: str, count: int) -> None:
    for number in range(count):
        queue.publish(topic, [Message(b"%d" % number * 100)])


def consume(queue: MessageQueue, name: str, count: int) -> list[int]:
    positions = []
    for _ in range(count):
        (message,) = queue.pull(name, 1)
        queue.ack(message.ack_id)
        positions.append(message.position)
    return positions


def parts(queue: MessageQueue) -> int:
    assert queue._journal is not None
    return len(queue._journal.store.parts())


def test_a_broker_that_drops_parts_goes_on(journal: Journals) -> None:
    queue = journal.open(snapshot_bytes=3000)
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    for _ in range(10):
        publish(queue, "orders", 10)
        consume(queue, "worker", 10)
    assert parts(queue) < 8
    queue.close()


def test_a_part_stays_for_as_long_as_one_message_in_it_waits(journal: Journals) -> None:
    queue = journal.open()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    publish(queue, "orders", 40)
    assert consume(queue, "worker", 20) == [*range(20)]
    before = parts(queue)
    queue.close()
    queue = journal.open()
    assert 0 < parts(queue) < before
    queue.close()
    queue = journal.open()
    assert consume(queue, "worker", 20) == [*range(20, 40)]
    queue.close()


def test_messages_are_read_although_the_part_behind_them_is_gone(journal: Journals) -> None:
    queue = journal.open()
    for topic in ("orders", "others"):
        queue.register_topic(topic)
        queue.register_subscription(topic, topic)
        publish(queue, topic, 40)
    publish(queue, "orders", 1)
    consume(queue, "others", 40)
    queue.close()
    queue = journal.open()
    assert consume(queue, "orders", 41) == [*range(41)]
    queue.close()


def test_a_seek_to_a_time_whose_messages_are_dropped_goes_to_the_first_that_are_left(journal: Journals) -> None:
    queue = journal.open()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    publish(queue, "orders", 40)
    consume(queue, "worker", 30)
    queue.close()
    queue = journal.open()
    queue.seek("worker", time=0)
    assert consume(queue, "worker", 10) == [*range(30, 40)]
    queue.close()
