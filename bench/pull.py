"""A pull costs what it returns, not what waits: a backlog behind blocked keys should not be felt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import MESSAGE_BYTES, ORDERED, WrongResult
from inorder import Message
from inorder.broker import MessageQueue

BATCH = 100
PER_KEY = 10


class Round(NamedTuple):
    """Medians of one repetition, in microseconds per call of 100 messages."""

    publish: float
    pull: float
    ack: float


def measure(effort: Effort) -> Iterator[Table]:
    blocked_keys, rounds = effort.of((100_000, 300), (10_000, 100))
    empty, crowded = _broker(), _broker()
    _block(crowded, blocked_keys)
    numbers = count()

    def run(broker: MessageQueue) -> Round:
        calls = [_round(broker, [f"fresh-{next(numbers)}" for _ in range(BATCH)]) for _ in range(rounds)]
        return Round(*(median(column) for column in zip(*calls, strict=True)))

    runs = interleaved({"crowded": partial(run, crowded), "empty": partial(run, empty)}, effort)
    waiting = crowded.metrics("s").backlog_messages - blocked_keys
    yield Table(
        f"{BATCH} messages of fresh keys, {waiting:,} messages behind {blocked_keys:,} blocked keys, "
        "against an empty queue",
        "µs a call",
        [
            Row(name, [run[index] for run in runs["crowded"]], [run[index] for run in runs["empty"]], target)
            for index, (name, target) in enumerate((("publish", None), ("pull", Target(2, below=True)), ("ack", None)))
        ],
    )
    crowded.close()
    empty.close()


def _broker() -> MessageQueue:
    broker = MessageQueue()
    broker.register_topic("t")
    broker.register_subscription("s", "t", ORDERED)
    return broker


def _block(broker: MessageQueue, keys: int) -> None:
    """Every key has one message out and others behind it."""
    for turn in range(1 + PER_KEY):
        for first in range(0, keys, 1_000):
            broker.publish("t", [_message(f"blocked-{key}") for key in range(first, first + 1_000)])
        if turn == 0:
            broker.pull("s", keys)


def _message(key: str) -> Message:
    return Message(bytes(MESSAGE_BYTES), ordering_key=key)


def _round(broker: MessageQueue, keys: list[str]) -> Round:
    messages = [_message(key) for key in keys]
    start = perf_counter_ns()
    broker.publish("t", messages)
    published = perf_counter_ns()
    pulled = broker.pull("s", BATCH)
    received = perf_counter_ns()
    broker.ack([message.ack_id for message in pulled])
    acked = perf_counter_ns()
    if [message.ordering_key for message in pulled] != keys:
        raise WrongResult("a pull returned other messages than the fresh ones")
    return Round((published - start) / 1000, (received - published) / 1000, (acked - received) / 1000)
