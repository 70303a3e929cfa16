"""From just before a publish to the first line of its handler, at a moderate rate, unbatched."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import quantiles
from time import perf_counter_ns

from bench.report import Effort, Row, Table, interleaved
from bench.workload import MESSAGE_BYTES, OPTIONS, WrongResult
from inorder import Message, PubSub

RATE = 2_000  # messages per second
KEYS = 100
SETTLE_SECONDS = 0.05  # for the last messages to arrive

Latencies = list[float]  # microseconds


def measure(effort: Effort) -> Iterator[Table]:
    count = round(RATE * effort.of(2.0, 0.15))
    for title, ours, peer in (
        ("publisher and `async def` handler on one loop, against asyncio.Queue", on_a_loop, asyncio_queue),
        ("publisher in a thread, `def` handler in another, against queue.Queue", in_threads, standard_queue),
    ):
        runs = interleaved({"ours": partial(ours, count), "peer": partial(peer, count)}, effort, warm_up=0)
        rows = []
        for percent in (50, 99):
            figures = {name: [_percentile(run, percent) for run in of_name] for name, of_name in runs.items()}
            rows.append(Row(f"p{percent}", figures["ours"], figures["peer"]))
        yield Table(f"Latency at {RATE:,} messages/s, {title}", "µs", rows)


def _percentile(latencies: Latencies, percent: int) -> float:
    return quantiles(latencies, n=100)[percent - 1]


def _stamp() -> bytes:
    return b"%d" % perf_counter_ns() + b" " * (MESSAGE_BYTES - 20)


def _age_us(data: bytes) -> float:
    return (perf_counter_ns() - int(data)) / 1000


def _delays(count: int) -> Iterator[float]:
    """Seconds to wait before each message, so that all of them keep to the rate."""
    start = time.perf_counter()
    for number in range(count):
        yield max(0.0, start + number / RATE - time.perf_counter())


async def _paced(count: int, send: Callable[[int], object]) -> None:
    for number, delay in enumerate(_delays(count)):
        if delay:
            await asyncio.sleep(delay)
        send(number)
    await asyncio.sleep(SETTLE_SECONDS)


def _paced_in_thread(count: int, send: Callable[[int], object]) -> None:
    for number, delay in enumerate(_delays(count)):
        time.sleep(delay)
        send(number)
    time.sleep(SETTLE_SECONDS)


def _complete(latencies: Latencies, count: int) -> Latencies:
    if len(latencies) != count:
        raise WrongResult(f"{len(latencies)} of {count} messages arrived")
    return latencies


def on_a_loop(count: int) -> Latencies:
    async def run() -> Latencies:
        latencies: Latencies = []

        async def handle(message: Message) -> None:
            latencies.append(_age_us(message.data))
            message.ack()

        async with PubSub("memory:") as pubsub:
            topic = await pubsub.topic("t").create()
            (await topic.subscription("s").create(**OPTIONS)).on("message", handle).open()
            await _paced(count, lambda n: topic.publish_message(_stamp(), ordering_key=f"key-{n % KEYS}"))
        return _complete(latencies, count)

    return asyncio.run(run())


def asyncio_queue(count: int) -> Latencies:
    async def run() -> Latencies:
        messages: asyncio.Queue[bytes] = asyncio.Queue()
        latencies: Latencies = []

        async def consume() -> None:
            for _ in range(count):
                latencies.append(_age_us(await messages.get()))

        consumer = asyncio.create_task(consume())
        await _paced(count, lambda _: messages.put_nowait(_stamp()))
        await consumer
        return latencies

    return asyncio.run(run())


def in_threads(count: int) -> Latencies:
    latencies: Latencies = []

    def handle(message: Message) -> None:
        latencies.append(_age_us(message.data))
        message.ack()

    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("t").create().result()
        topic.subscription("s").create(**OPTIONS).result().on("message", handle).open()
        _paced_in_thread(count, lambda n: topic.publish_message(_stamp(), ordering_key=f"key-{n % KEYS}"))
    return _complete(latencies, count)


def standard_queue(count: int) -> Latencies:
    messages: queue.Queue[bytes] = queue.Queue()
    latencies: Latencies = []

    def consume() -> None:
        for _ in range(count):
            latencies.append(_age_us(messages.get()))

    consumer = threading.Thread(target=consume)
    consumer.start()
    _paced_in_thread(count, lambda _: messages.put(_stamp()))
    consumer.join()
    return latencies
