"""A backlog that does not fit into memory: what waits is read when its turn comes, each key in its order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from inorder.broker import MessageQueue
from inorder.core import subscription as core
from inorder.message import Gap, Message
from inorder.testing.clock import ManualClock


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 5)
    monkeypatch.setattr(core, "HOT_BYTES", 20)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[MessageQueue]:
    queue = MessageQueue.open(tmp_path / "data", clock=ManualClock())
    queue.register_topic("orders")
    yield queue
    queue.close()


def publish(queue: MessageQueue, count: int, keys: int, seed: int = 1) -> dict[str, list[bytes]]:
    random = Random(seed)
    sent: dict[str, list[bytes]] = {}
    for start in range(0, count, 7):
        batch = []
        for number in range(start, min(start + 7, count)):
            key = f"k{random.randrange(keys)}"
            sent.setdefault(key, []).append(b"%d" % number)
            batch.append(Message(b"%d" % number, ordering_key=key))
        queue.publish("orders", batch)
    return sent


def in_memory(queue: MessageQueue) -> int:
    return queue._state.subscriptions["worker"].backlog_messages


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_long_backlog_is_consumed_in_order(queue: MessageQueue, ordered: bool, window: int) -> None:
    options = {"enable_message_ordering": ordered, "max_outstanding_per_key": window if ordered else 1}
    queue.register_subscription("worker", "orders", options)
    sent = publish(queue, 300, keys=4)
    assert queue.metrics("worker").backlog_messages == 300
    assert in_memory(queue) < 20
    got: dict[str, list[bytes]] = {}
    while messages := queue.pull("worker", 3):
        for message in messages:
            got.setdefault(str(message.ordering_key), []).append(message.data)
        queue.ack([message.ack_id for message in messages])
    assert got == sent
    assert queue.metrics("worker").backlog_messages == 0


def test_a_window_reads_no_more_than_it_gives_out(queue: MessageQueue) -> None:
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True, "max_outstanding_per_key": 100})
    for number in range(300):
        queue.publish("orders", [Message((b"%d" % number).ljust(4_000), ordering_key="k")])  # a few to a block
    taken = [int(message.data) for _ in range(3) for message in queue.pull("worker", 20)]
    assert taken == [*range(60)]
    assert in_memory(queue) < 100


def test_a_key_that_is_stuck_keeps_nobody_from_what_lies_behind_it(queue: MessageQueue) -> None:
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True})
    queue.publish("orders", [Message(b"stuck %d" % number, ordering_key="stuck") for number in range(100)])
    queue.publish("orders", [Message(b"free", ordering_key="free")])
    first, free = queue.pull("worker", 10)
    assert (first.data, free.data) == (b"stuck 0", b"free")
    queue.nack(first.ack_id)
    for number in range(100):
        [message] = queue.pull("worker", 10)
        assert message.data == b"stuck %d" % number
        queue.ack(message.ack_id)


def test_what_is_published_while_some_waits_on_disk_comes_after_it(queue: MessageQueue) -> None:
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True})
    sent = publish(queue, 50, keys=1)["k0"]
    got = []
    for number in range(50, 100):
        sent.append(b"%d" % number)
        queue.publish("orders", [Message(b"%d" % number, ordering_key="k0")])
        [message] = queue.pull("worker", 5)
        got.append(message.data)
        queue.ack(message.ack_id)
    while messages := queue.pull("worker", 5):
        got += [message.data for message in messages]
        queue.ack([message.ack_id for message in messages])
    assert got == sent


def test_only_what_a_filter_wants_is_read(queue: MessageQueue) -> None:
    queue.register_subscription("worker", "orders", {"filter": "attributes:wanted"})
    for number in range(100):
        attributes = {"wanted": ""} if number % 10 == 0 else None
        queue.publish("orders", [Message(b"%d" % number, attributes)])
    got = []
    while messages := queue.pull("worker", 3):
        got += [int(message.data) for message in messages]
        queue.ack([message.ack_id for message in messages])
    assert got == list(range(0, 100, 10))


def test_few_messages_that_are_large_are_left_on_disk_too(
    queue: MessageQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 1000)
    monkeypatch.setattr(core, "HOT_BYTES", 10_000)
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True})
    sent = [b"%04d" % number * 250 for number in range(50)]
    for data in sent:
        queue.publish("orders", [Message(data, ordering_key="key")])
    assert in_memory(queue) <= 10
    queue.close()
    again = MessageQueue.open(tmp_path / "data", clock=ManualClock())
    got = []
    while messages := again.pull("worker", 3):
        got += [message.data for message in messages]
        again.ack([message.ack_id for message in messages])
    again.close()
    assert got == sent


@pytest.mark.parametrize("reopened", [False, True])
def test_a_limit_that_is_set_on_a_long_backlog_takes_nothing_of_it_away(tmp_path: Path, reopened: bool) -> None:
    queue = MessageQueue.open(tmp_path / "data", clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True})
    sent = publish(queue, 100, keys=4)
    queue.update_subscription("worker", {"queue_limits": {"max_messages": 10, "when_full": "drop"}})
    queue.publish("orders", [Message(b"on top", ordering_key="k0")])
    if reopened:
        queue.close()
        queue = MessageQueue.open(tmp_path / "data", clock=ManualClock())
    gaps: list[Gap] = []
    got: dict[str, list[bytes]] = {}
    while messages := queue.pull("worker", 3, gaps.append):
        for message in messages:
            got.setdefault(str(message.ordering_key), []).append(message.data)
        queue.ack([message.ack_id for message in messages])
    queue.close()
    assert got == sent
    assert [(gap.ordering_key, gap.reason, gap.count) for gap in gaps] == [("k0", "dropped", 1)]
