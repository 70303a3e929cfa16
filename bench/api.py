"""The whole API in one process, from the first publish to the last ack, against the queues of the library.

Handlers keep the data of what they get, and so do the peers' consumers: that all arrived, each key
in order, is checked afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import OPTIONS, PATIENCE_SECONDS, Pair, check_acked, check_order, random_pairs, split
from inorder import Batching, Message, Pending, PubSub, Topic

KEYS = 1_000
BATCH = 100
CHUNK = 1_000  # messages that the producer publishes before others on its loop have a turn

Publish = Callable[[Topic, list[Pair]], Iterator[None]]  # stops after each chunk


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(50_000, 5_000)

    def run(contestant: Callable[[list[Pair]], float]) -> float:
        return contestant(random_pairs(count, KEYS))

    rates = interleaved(
        {
            "publish_message": partial(run, partial(async_handler, one_by_one)),
            "publish_many": partial(run, partial(async_handler, many_at_once)),
            "queue": partial(run, asyncio_queue),
            "queue per key": partial(run, queue_per_key),
        },
        effort,
    )
    one, many = f"publish_message, Batching({BATCH}, 10 ms)", f"publish_many of {BATCH}"
    yield Table(
        f"Whole API, `async def` handler, {KEYS:,} keys, against asyncio.Queue put and get",
        "messages/s",
        [
            Row(one, rates["publish_message"], rates["queue"], Target(0.2)),
            Row(many, rates["publish_many"], rates["queue"], Target(0.2)),
        ],
        ["The aim beyond the target is 0.5 ×."],
    )
    yield Table(
        "The same against keys in order by hand: an asyncio.Queue and a task per key",
        "messages/s",
        [
            Row(one, rates["publish_message"], rates["queue per key"]),
            Row(many, rates["publish_many"], rates["queue per key"]),
        ],
    )

    rates = interleaved(
        {
            "publish_message": partial(run, partial(thread_handler, one_by_one)),
            "publish_many": partial(run, partial(thread_handler, many_at_once)),
            "queue": partial(run, threaded_queue),
        },
        effort,
    )
    yield Table(
        f"Whole API, `def` handler, {KEYS:,} keys, against queue.Queue between two threads",
        "messages/s",
        [
            Row(one, rates["publish_message"], rates["queue"]),
            Row(many, rates["publish_many"], rates["queue"]),
        ],
    )


def one_by_one(topic: Topic, pairs: list[Pair]) -> Iterator[None]:
    topic.set_publish_options(batching=Batching(max_messages=BATCH, max_milliseconds=10))
    for chunk in split(pairs, CHUNK):
        for key, data in chunk:
            topic.publish_message(data, ordering_key=key)
        yield


def many_at_once(topic: Topic, pairs: list[Pair]) -> Iterator[None]:
    for chunk in split(pairs, CHUNK):
        for batch in split(chunk, BATCH):
            topic.publish_many([Message(data, ordering_key=key) for key, data in batch])
        yield


def async_handler(publish: Publish, pairs: list[Pair]) -> float:
    return asyncio.run(_async_handler(publish, pairs))


async def _async_handler(publish: Publish, pairs: list[Pair]) -> float:
    received: list[bytes] = []
    last: asyncio.Future[Pending[None]] = asyncio.get_running_loop().create_future()

    async def handle(message: Message) -> None:
        received.append(message.data)
        acked = message.ack()
        if len(received) == len(pairs):
            last.set_result(acked)

    async with PubSub("memory:") as pubsub:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(**OPTIONS)
        subscription.on("message", handle).open()
        start = perf_counter()
        for _ in publish(topic, pairs):
            await asyncio.sleep(0)
        topic.flush()
        with contextlib.suppress(TimeoutError):
            await (await asyncio.wait_for(last, PATIENCE_SECONDS))
        elapsed = perf_counter() - start
        check_acked(await subscription.metrics())
    check_order(received, len(pairs))
    return len(pairs) / elapsed


def asyncio_queue(pairs: list[Pair]) -> float:
    return asyncio.run(_asyncio_queue(pairs))


async def _asyncio_queue(pairs: list[Pair]) -> float:
    messages: asyncio.Queue[Pair] = asyncio.Queue()
    received: list[bytes] = []

    async def produce() -> None:
        for pair in pairs:
            await messages.put(pair)

    async def consume() -> None:
        for _ in pairs:
            _, data = await messages.get()
            received.append(data)

    start = perf_counter()
    await asyncio.gather(produce(), consume())
    elapsed = perf_counter() - start
    check_order(received, len(pairs))
    return len(pairs) / elapsed


def queue_per_key(pairs: list[Pair]) -> float:
    return asyncio.run(_queue_per_key(pairs))


async def _queue_per_key(pairs: list[Pair]) -> float:
    queues: dict[str, asyncio.Queue[bytes]] = {}
    received: list[bytes] = []

    async def consume(messages: asyncio.Queue[bytes]) -> None:
        while True:
            received.append(await messages.get())
            messages.task_done()

    async with asyncio.TaskGroup() as group:
        consumers: list[asyncio.Task[None]] = []
        start = perf_counter()
        for chunk in split(pairs, CHUNK):
            for key, data in chunk:
                if key not in queues:
                    queues[key] = asyncio.Queue()
                    consumers.append(group.create_task(consume(queues[key])))
                queues[key].put_nowait(data)
            await asyncio.sleep(0)
        for messages in queues.values():
            await messages.join()
        elapsed = perf_counter() - start
        for consumer in consumers:
            consumer.cancel()
    check_order(received, len(pairs))
    return len(pairs) / elapsed


def thread_handler(publish: Publish, pairs: list[Pair]) -> float:
    received: list[bytes] = []
    finished = threading.Event()
    left = iter(range(len(pairs) - 1, -1, -1))  # counts down; `next` is atomic among threads

    def handle(message: Message) -> None:
        received.append(message.data)
        message.ack()
        if next(left) == 0:
            finished.set()

    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("t").create().result()
        subscription = topic.subscription("s").create(**OPTIONS).result()
        subscription.on("message", handle).open()
        start = perf_counter()
        for _ in publish(topic, pairs):
            pass
        topic.flush()
        finished.wait(PATIENCE_SECONDS)
        subscription.close().result()  # with it, acks of other threads are answered
        elapsed = perf_counter() - start
        check_acked(subscription.metrics().result())
    check_order(received, len(pairs))
    return len(pairs) / elapsed


def threaded_queue(pairs: list[Pair]) -> float:
    messages: queue.Queue[Pair] = queue.Queue()
    received: list[bytes] = []

    def consume() -> None:
        for _ in pairs:
            _, data = messages.get()
            received.append(data)

    consumer = threading.Thread(target=consume)
    start = perf_counter()
    consumer.start()
    for pair in pairs:
        messages.put(pair)
    consumer.join()
    elapsed = perf_counter() - start
    check_order(received, len(pairs))
    return len(pairs) / elapsed
