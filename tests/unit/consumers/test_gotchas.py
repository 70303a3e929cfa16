"""What breaks order in practice, each with its cure: distributed consumers, retries, dead letters, skewed clocks.

docs/patterns.md has a paragraph for each. Every test shows first that it is a trap.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inorder import DeadLetterPolicy, Message, PubSub
from inorder.broker import MessageQueue
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.consumers import Applied, Consumer, SqliteStore
from inorder.patterns import HybridLogicalClock, LastWriteWins, Missing, Resequencer, VersionGate
from inorder.testing.clock import ManualClock

SECOND = 1_000_000


class Bench:
    """A topic whose messages are numbered, and a database to which consumers write what they apply."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.pubsub = PubSub(MessageQueue(clock=self.clock))
        self.topic: Topic = self.pubsub.topic("orders").create().result()
        self.store = SqliteStore(path)
        self.database = sqlite3.connect(path)
        self.database.execute("CREATE TABLE applied (value)")
        self.gaps: list[Missing] = []

    def subscribe(self, **options: Any) -> Subscription:
        return self.topic.subscription("worker").create(**options).result()

    def publish(self, *numbers: int) -> None:
        for number in numbers:
            self.topic.publish_message(b"%d" % number, ordering_key="order-7").result()

    def consumer(self, pattern: Any, *, fails: Callable[[Applied], bool] = lambda _: False, **options: Any) -> Any:
        def apply(event: Applied, database: sqlite3.Connection) -> None:
            if fails(event):
                raise RuntimeError(f"{event.data!r} failed")
            database.execute("INSERT INTO applied VALUES (?)", [event.data.decode()])

        options = {"read": numbered, "on_error": lambda *_: None, **options}
        subscription = self.pubsub.subscription("worker")
        return Consumer(subscription, pattern, store=self.store, apply=apply, on_gap=self._note, **options)

    def _note(self, gap: Missing, _: object) -> None:
        self.gaps.append(gap)

    def applied(self) -> list[str]:
        return [value for (value,) in self.database.execute("SELECT value FROM applied ORDER BY rowid")]


def numbered(message: Message) -> tuple[str, int]:
    return message.ordering_key or "", int(message.data)


def ours(_: Message) -> bool:
    return True


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "db")
    yield bench
    bench.pubsub.close().result()
    bench.store.close()
    bench.database.close()


def test_distributed_consumers_break_the_order_of_a_plain_subscription_and_not_of_an_ordered_one(bench: Bench) -> None:
    """ordering-guarantees Gotcha 1: two workers, and the second is faster."""
    for ordered, done in ((False, [2, 1]), (True, [1, 2])):
        subscription = bench.topic.subscription(f"ordered-{ordered}")
        subscription.create(enable_message_ordering=ordered).result()
        workers = [bench.pubsub.subscription(subscription.name) for _ in range(2)]
        bench.publish(1, 2)
        held = [worker.pull(1).result() for worker in workers]
        handled = []
        while any(held):
            for message in [*held[1], *held[0]]:  # the second is always faster
                handled.append(int(message.data))
                message.ack().result()
            held = [worker.pull(1).result() for worker in workers]
        assert handled == done


def test_a_worker_that_was_given_up_cannot_write_behind_the_one_that_took_over(bench: Bench) -> None:
    """ordering-guarantees Gotcha 1: a worker stalls, loses its lease, and comes back without knowing it."""
    subscription = bench.subscribe(enable_message_ordering=True, ack_deadline_seconds=10)
    stalled, other = (bench.consumer(VersionGate(when_full="gap"), name="worker") for _ in range(2))
    bench.publish(1, 2)
    late = subscription.pull(1).result()
    bench.clock.advance(11)
    for _ in range(2):
        other.handle(subscription.pull(1).result(), ours)
    stalled.handle(late, ours)
    assert bench.applied() == ["1", "2"]


def test_a_retry_comes_after_the_messages_behind_it_and_is_put_back_in_its_place(bench: Bench) -> None:
    """ordering-guarantees Gotcha 2: 1-2-3-4-6-7-8-9-10-5, in a consumer with a real store."""
    subscription = bench.subscribe()  # without ordering: other messages go ahead
    tried: list[str] = []

    def fails_once(event: Applied) -> bool:
        tried.append(event.data.decode())
        return event.data == b"5" and tried.count("5") == 1

    consumer = bench.consumer(Resequencer(), fails=fails_once)
    bench.publish(*range(1, 11))
    five: list[Message] = []
    for message in subscription.pull(10).result():
        if message.data == b"5":
            five = [message]
        else:
            consumer.handle([message], ours)
    assert bench.applied() == ["1", "2", "3", "4"]
    consumer.handle(five, ours)
    assert bench.applied() == ["1", "2", "3", "4"], "it failed, and nothing went on without it"
    consumer.handle(subscription.pull(10).result(), ours)
    assert bench.applied() == [str(number) for number in range(1, 11)]
    assert subscription.metrics().result().backlog_messages == 0


def test_a_dead_letter_leaves_a_gap_that_is_waited_for_and_then_told(bench: Bench) -> None:
    """ordering-guarantees Gotcha 4: the key goes on, with a warning, and the dead letter may come back later."""
    dead = bench.pubsub.topic("dead").create().result()
    letters = dead.subscription("letters").create().result()
    subscription = bench.subscribe(
        enable_message_ordering=True, dead_letter_policy=DeadLetterPolicy("dead", max_delivery_attempts=2)
    )
    broken = {b"2"}
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap", late="emit")
    consumer = bench.consumer(pattern, fails=lambda event: event.data in broken)
    bench.publish(1, 2, 3)
    while messages := subscription.pull(1).result():
        consumer.handle(messages, ours)
    assert (bench.applied(), bench.gaps) == (["1"], [])  # 3 is parked, its message acked
    bench.clock.advance(31)
    consumer.wake_up()
    assert bench.applied() == ["1", "3"]
    assert bench.gaps == [Missing("order-7", 2, 2, "timeout")]

    broken.clear()
    [letter] = letters.pull().result()
    bench.topic.publish_message(letter.data, ordering_key="order-7").result()
    consumer.handle(subscription.pull(1).result(), ours)
    assert bench.applied() == ["1", "3", "2"], "late, and the policy lets it through"


def test_a_correction_from_a_clock_that_is_behind_wins_by_its_hybrid_stamp(bench: Bench) -> None:
    """ordering-guarantees Gotcha 5: by wall clocks the correction would lose, and 2038 would win for ever."""
    subscription = bench.subscribe()
    now_us = bench.clock.now_us()
    fast = HybridLogicalClock().send(now_us + 40 * SECOND)
    slow = HybridLogicalClock().receive(fast, now_us - 40 * SECOND).send(now_us - 35 * SECOND)
    mad = HybridLogicalClock().send(now_us + 400_000_000 * SECOND)
    assert now_us - 35 * SECOND < now_us + 40 * SECOND, "by wall clocks the correction is older"
    for stamp, value in ((slow, b"corrected"), (fast, b"first"), (mad, b"from 2038")):
        bench.topic.publish_message(value, {"stamp": str(stamp)}, "order-7").result()

    def read(message: Message) -> tuple[Any, ...]:
        stamp = HybridLogicalClock.parse(message.attributes["stamp"])
        return "order-7", stamp.encode(), "producer", message.data

    consumer = bench.consumer(LastWriteWins(stamps="hybrid"), read=read)
    for message in subscription.pull(10).result():
        consumer.handle([message], ours)
    assert bench.applied() == ["corrected"]
    assert bench.database.execute("SELECT data FROM inorder_quarantine").fetchall() == [(b"from 2038",)]
