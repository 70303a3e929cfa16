"""`MessageQueue` with `Message` objects, as a program calls it, against `queue.Queue`. For information.

Timed by CPU time, as the core is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time

from bench.core import standard_queue
from bench.report import Effort, Row, Table, interleaved
from bench.workload import ORDERED, check_order, random_pairs, split
from inorder import Message
from inorder.broker import MessageQueue

KEYS = 1_000
BATCH = 100


def measure(effort: Effort) -> Iterator[Table]:
    for batch, count in ((BATCH, effort.of(50_000, 10_000)), (1, effort.of(15_000, 3_000))):
        rates = interleaved(
            {
                "acks by id": partial(_broker, count, batch, _ack_by_id),
                "message.ack()": partial(_broker, count, batch, _ack_each),
                "queue": partial(_queue, count),
            },
            effort,
        )
        yield Table(
            f"MessageQueue: publish, pull and ack, {KEYS:,} keys, in batches of {batch}",
            "messages/s of CPU",
            [
                Row(f"{name}, against queue.Queue", rates[name], rates["queue"])
                for name in ("acks by id", "message.ack()")
            ],
        )


def _broker(count: int, batch: int, ack: Callable[[MessageQueue, list[Message]], None]) -> float:
    broker = MessageQueue()
    broker.register_topic("t")
    broker.register_subscription("s", "t", ORDERED)
    batches = split([Message(data, ordering_key=key) for key, data in random_pairs(count, KEYS)], batch)
    received: list[Message] = []
    start = process_time()
    for part in batches:
        broker.publish("t", part)
        pulled = broker.pull("s", batch)
        ack(broker, pulled)
        received += pulled
    while pulled := broker.pull("s", batch):
        ack(broker, pulled)
        received += pulled
    elapsed = process_time() - start
    broker.close()
    check_order([message.data for message in received], count)
    return count / elapsed


def _ack_by_id(broker: MessageQueue, messages: list[Message]) -> None:
    broker.ack([message.ack_id for message in messages])


def _ack_each(_: MessageQueue, messages: list[Message]) -> None:
    for message in messages:
        message.ack()


def _queue(count: int) -> float:
    return standard_queue(random_pairs(count, KEYS), 1, True)
