"""The forwarder between two brokers in memory, against a loop that pulls, publishes and acks without a second thought.

The loop adds no origin, keeps no lease and remembers nothing, so that a crash or a lost answer repeats messages. One
thread that never waits is timed by its CPU time, which others on the machine disturb less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import WrongResult, random_pairs, split
from inorder import Message, PubSub
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.consumers import Forwarder, forwarding_subscription

BATCH = 1_000

WANTED = Target(20_000, figure=True)  # messages a second: a topic of a few millions moves within minutes

Move = Callable[[Subscription, Topic], None]


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(50_000, 10_000)
    rows = []
    for name, keys, deduplicate in (
        ("1,000 keys, with receipts", 1_000, True),
        ("1,000 keys, without receipts", 1_000, False),
        ("one key, with receipts", 1, True),
    ):
        ours, by_hand = partial(_forward, deduplicate), _by_hand
        moves = {"ours": partial(_timed, ours, count, keys), "by hand": partial(_timed, by_hand, count, keys)}
        rates = interleaved(moves, effort)
        rows.append(Row(name, rates["ours"], rates["by hand"], WANTED))
    title = f"Forwarder: {count:,} messages from memory to memory, against pull, publish and ack by hand"
    yield Table(title, "messages/s of CPU", rows)


def _timed(move: Move, count: int, keys: int) -> float:
    with PubSub("memory:") as source, PubSub("memory:") as target:
        orders, moved = source.topic("orders").create().result(), target.topic("orders").create().result()
        mover = forwarding_subscription(orders, "mover").result()
        for batch in split(random_pairs(count, keys), BATCH):
            orders.publish_many([Message(data, ordering_key=key) for key, data in batch]).result()
        start = process_time()
        move(mover, moved)
        elapsed = process_time() - start
        if moved.metadata().result().published != count or mover.metrics().result().backlog_messages:
            raise WrongResult("not all messages were forwarded, once")
    return count / elapsed


def _forward(deduplicate: bool, mover: Subscription, moved: Topic) -> None:
    forwarder = Forwarder(mover, moved, batch=BATCH, deduplicate=deduplicate)
    while forwarder.step():
        pass
    forwarder.close()


def _by_hand(mover: Subscription, moved: Topic) -> None:
    while messages := mover.pull(BATCH).result():
        moved.publish_many(messages).result()
        for message in messages:
            message.ack()
