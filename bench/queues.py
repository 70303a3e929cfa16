"""The kinds of queues side by side, and what a resize costs a key that does not move.

Every kind does the same work: messages of 1,000 groups are sent in batches and handled by `async def` handlers, which
ack. The peer of each row is the standard queue, which keeps no order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter, sleep

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import OPTIONS, PATIENCE_SECONDS, WrongResult, check_order, random_pairs, split
from inorder import Message, PubSub
from inorder.consumers import PartitionedTopic, Queue, SqliteStore
from inorder.patterns import slot_of

GROUPS = 1_000
BATCH = 100
PARTITIONS = 4
NO_LONGER = 1.25  # a ratio of 1, and what noise may add to it
LIMITS = {"queue_limits": OPTIONS["queue_limits"], "ack_deadline_seconds": 600}

Kind = Callable[[PubSub, SqliteStore], Queue]

KINDS: dict[str, Kind] = {
    "standard": lambda pubsub, _: Queue.standard(pubsub, "bench", **LIMITS),
    "fifo": lambda pubsub, _: Queue.fifo(pubsub, "bench", **LIMITS),
    "fifo_groups": lambda pubsub, _: Queue.fifo_groups(pubsub, "bench", **LIMITS),
    "partitioned": lambda pubsub, store: Queue.partitioned(
        pubsub, "bench", store=store, partitions=PARTITIONS, **LIMITS
    ),
    "partitioned, strict": lambda pubsub, store: Queue.partitioned(
        pubsub, "bench", store=store, partitions=PARTITIONS, strict=True, **LIMITS
    ),
}


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(20_000, 2_000)
    rates = interleaved({name: partial(throughput, kind, name, count) for name, kind in KINDS.items()}, effort)
    yield Table(
        f"Kinds of queues, {GROUPS:,} groups, {PARTITIONS} partitions, against the standard one",
        "messages/s",
        [Row(name, rates[name], rates["standard"]) for name in KINDS],
    )
    rounds = effort.of(5, 1)
    whether = {"resize": True, "none": False, "none again": False}
    pauses = interleaved({name: partial(usual_pause, resize, rounds) for name, resize in whether.items()}, effort)
    yield Table(
        f"Longest pause of a key that does not move, {PARTITIONS} to {PARTITIONS + 3} partitions, against no resize",
        "ms",
        [
            Row("resize under load", pauses["resize"], pauses["none"], Target(NO_LONGER, below=True)),
            Row("no resize, once more", pauses["none again"], pauses["none"]),
        ],
        [
            f"Between two answers to a publisher that waits for each, within 300 ms; the median of {rounds} times.",
            "Not longer means a ratio of 1. The second row compares like with like: it tells what noise makes of a 1.",
        ],
    )


def throughput(kind: Kind, name: str, count: int) -> float:
    pairs = random_pairs(count, GROUPS)
    grouped = name not in ("standard", "fifo")
    batches = [
        [Message(data, ordering_key=key if grouped else None) for key, data in batch] for batch in split(pairs, BATCH)
    ]
    received: list[bytes] = []
    done = threading.Event()

    async def handle(message: Message) -> None:
        received.append(message.data)
        message.ack()
        if len(received) == count:
            done.set()

    store = SqliteStore(":memory:")
    with PubSub("memory:") as pubsub:
        queue = kind(pubsub, store)
        consuming = queue.consume(handle)
        start = perf_counter()
        for batch in batches:
            queue.send_many(batch)
        if not done.wait(PATIENCE_SECONDS):
            raise WrongResult(f"{name}: {len(received):,} of {count:,} messages arrived")
        seconds = perf_counter() - start
        consuming.close()
    store.close()
    check_order(sorted(received, key=_number) if name == "standard" else received, count)
    return count / seconds


def _number(data: bytes) -> int:
    return int(data.split()[1])


def usual_pause(resize: bool, rounds: int) -> float:
    """The median of several: the longest of hundreds of pauses is a matter of luck."""
    return median(longest_pause(resize) for _ in range(rounds))


def longest_pause(resize: bool) -> float:
    """Milliseconds between two answers for a key whose slot stays, while others are published and handled."""
    store = SqliteStore(":memory:")
    stop = threading.Event()
    answered: list[float] = []
    with PubSub("memory:") as pubsub, PartitionedTopic(pubsub, "bench", store=store) as topic:
        group = topic.create(PARTITIONS).group("bench").create(**LIMITS)
        member = group.join(_ack)
        unmoved = _unmoved_key(topic)
        others = [Message(b"x", ordering_key=f"key-{number}") for number in range(100)]

        def publish_unmoved() -> None:
            while not stop.is_set():
                topic.publish_message(b"x", ordering_key=unmoved).result(PATIENCE_SECONDS)
                answered.append(perf_counter())
                sleep(0.0005)

        publisher = threading.Thread(target=publish_unmoved)
        publisher.start()
        begin = perf_counter()
        resized = topic.resize(PARTITIONS + 3) if resize else None
        while perf_counter() - begin < 0.3:
            topic.publish_many(others)
            sleep(0.005)
        if resized is not None:
            resized.result(PATIENCE_SECONDS)
        stop.set()
        publisher.join()
        member.close()
    store.close()
    return 1000 * max(later - earlier for earlier, later in pairwise(answered))


def _unmoved_key(topic: PartitionedTopic) -> str:
    """A key that stays where it is when partitions are added: the table keeps the first slots of each."""
    key = next(f"key-{number}" for number in range(10_000) if slot_of(f"key-{number}") < 10)
    assert topic.partition_of(key) == 0
    return key


async def _ack(message: Message) -> None:
    message.ack()
