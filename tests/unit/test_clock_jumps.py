"""A clock that is set back or forward while a broker is closed breaks no promise."""

from pathlib import Path
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.core import subscription
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.message import Message
from inorder.testing.clock import ManualClock

NOW = 1_700_000_000.0
HOUR = 3600
WEEK = 7 * 24 * HOUR


def opened(folder: Path, now: float) -> tuple[MessageQueue, ManualClock]:
    clock = ManualClock(now)
    return MessageQueue(clock, Journal(SegmentStore(Folder(folder), segment_bytes=500))), clock


def prepared(folder: Path, **options: Any) -> tuple[MessageQueue, ManualClock]:
    queue, clock = opened(folder, NOW)
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True, **options})
    return queue, clock


def publish(queue: MessageQueue, count: int = 1) -> None:
    queue.publish("orders", [Message(b"x" * 100, ordering_key="a") for _ in range(count)])


def came(queue: MessageQueue) -> list[int | None]:
    positions = []
    while messages := queue.pull("worker", 10):
        positions += [message.position for message in messages]
        queue.ack([message.ack_id for message in messages])
    return positions


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_order_is_by_position_whatever_the_clock_says(tmp_path: Path, jump: float) -> None:
    queue, _ = prepared(tmp_path)
    publish(queue, 2)
    queue.close()
    queue, _ = opened(tmp_path, NOW + jump)
    publish(queue, 2)
    assert came(queue) == [0, 1, 2, 3]
    queue.close()


def test_nothing_has_waited_for_less_than_no_time_when_the_clock_is_set_back(tmp_path: Path) -> None:
    dead_letters = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue, _ = prepared(tmp_path, on_poison="park_key", dead_letter_policy=dead_letters)
    publish(queue, 2)
    queue.nack(queue.pull("worker", 1))
    queue.close()
    queue, _ = opened(tmp_path, NOW - HOUR)
    metrics, [key] = queue.metrics("worker"), queue.blocked_keys("worker")
    assert (metrics.backlog_messages, metrics.oldest_unacked_seconds, metrics.head_of_line_seconds) == (2, 0, 0)
    assert (key.reason, key.age_seconds, key.head_of_line_seconds) == ("parked", 0, 0)
    queue.close()


def test_a_backoff_lasts_no_longer_than_a_backoff_can_when_the_clock_is_set_back(tmp_path: Path) -> None:
    queue, _ = prepared(tmp_path, retry_policy={"minimum_backoff": 5, "maximum_backoff": 20})
    publish(queue)
    queue.nack(queue.pull("worker", 1)[0].ack_id)
    queue.close()
    queue, clock = opened(tmp_path, NOW - HOUR)
    assert not queue.pull("worker", 1)
    clock.advance(20)
    assert came(queue) == [0]
    queue.close()


def test_a_backoff_is_over_when_the_clock_is_set_forward(tmp_path: Path) -> None:
    queue, _ = prepared(tmp_path, retry_policy={"minimum_backoff": 5, "maximum_backoff": 20})
    publish(queue)
    queue.nack(queue.pull("worker", 1)[0].ack_id)
    queue.close()
    queue, _ = opened(tmp_path, NOW + HOUR)
    assert [message.delivery_attempt for message in queue.pull("worker", 1)] == [2]
    queue.close()


def test_a_seek_to_a_time_finds_what_was_stored_after_the_clock_was_set_back(tmp_path: Path) -> None:
    queue, _ = prepared(tmp_path, retain_acked_messages=True)
    publish(queue)
    queue.close()
    queue, _ = opened(tmp_path, NOW - HOUR)
    publish(queue)
    assert came(queue) == [0, 1]
    queue.seek("worker", time=NOW)  # nothing is stored earlier than what was stored before it
    assert came(queue) == [0, 1]
    queue.seek("worker", time=NOW + 1)
    assert came(queue) == []
    queue.close()


def test_what_is_too_old_after_a_jump_is_gone_and_new_messages_come(tmp_path: Path) -> None:
    queue, _ = prepared(tmp_path)
    publish(queue, 3)
    queue.close()
    queue, _ = opened(tmp_path, NOW + 2 * WEEK)
    publish(queue)
    assert came(queue) == [3]
    queue.close()


def test_what_was_too_old_and_dropped_stays_away_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "READ_AHEAD", 3)
    monkeypatch.setattr(subscription, "HOT_BYTES", 0)
    queue, _ = prepared(tmp_path)
    for _ in range(20):
        publish(queue)
    queue.close()
    queue, _ = opened(tmp_path, NOW + 2 * WEEK)
    publish(queue)
    queue.close()  # what is too old is dropped
    queue, _ = opened(tmp_path, NOW + HOUR)
    publish(queue)
    positions = came(queue)
    assert positions == sorted(positions, key=lambda position: position or 0)
    assert positions[-2:] == [20, 21]
    queue.close()


def test_what_is_dropped_while_it_waits_without_its_data_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "READ_AHEAD", 3)
    monkeypatch.setattr(subscription, "HOT_BYTES", 0)
    queue, clock = prepared(tmp_path, message_retention_duration=600, ack_deadline_seconds=600)
    for _ in range(20):
        publish(queue)
    (first,) = queue.pull("worker", 10)  # the others of its key are looked at, and put aside
    clock._now_us += 700 * 10**6  # and no timer has run yet
    queue._save()
    clock._now_us -= 700 * 10**6
    queue.ack(first.ack_id)
    publish(queue)
    positions = came(queue)
    assert positions[-1] == 20
    queue.close()
