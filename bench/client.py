"""`PubSub("grpc://…")` and `inorder serve` in another process, on loopback, durable, beside other software.

What a client does is most of the work: so each figure is that of a server and one process that publishes and handles.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count as numbers
from math import log10
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from bench.certificate import self_signed
from bench.durable import publish_take_ack
from bench.peers import Missing, NewPublisher, NewQueue, servers, start_peer
from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.server import ours as our_command
from bench.server import serving
from bench.workload import (
    OPTIONS,
    PATIENCE_SECONDS,
    Pair,
    WrongResult,
    check_order,
    even_pairs,
    random_pairs,
    side_by_side,
    split,
)
from inorder import Columns, Message, Pending, PubSub, Subscription, Topic

KEYS = 1_000
BATCH = 1_000
WINDOW = 1_000  # messages of a key that may be out, in order
PUBLISHERS = 64
HANDLER_SECONDS = 0.001
UNANSWERED = 8  # batches: a publisher need not wait for each, and should not run away
STRICT_BATCH = 100
AHEAD = 6  # lists that come while one is worked on: with 3, the server waits for the consumer now and then
OURS, NATS, REDIS, GOOGLE = "inorder", "NATS JetStream", "Redis Streams, everysec", "Google's client"
COLUMNS, LISTS = "inorder, by columns", "inorder, by lists"
POSTGRESQL = "PostgreSQL, COPY and SKIP LOCKED"
RARELY = ", gc.set_threshold(5_000)"  # as a program may say that makes many objects, and none in circles

_names = numbers()


def measure(effort: Effort) -> Iterator[Table]:
    with ExitStack() as stack:
        folder = stack.enter_context(servers.folder())
        address = stack.enter_context(serving(our_command("--data", str(folder / "data")))).address
        yield _end_to_end(effort, address)
        yield _strict(effort, address)
        yield _hot_key(effort, address)
        yield from _single_publishes(effort, address)
        yield _keys_together(effort, address)
        yield _by_tls(effort, folder, address)


@contextmanager
def _subscribed(address: str, **options: Any) -> Iterator[tuple[Topic, Subscription]]:
    """A topic and a subscription that nobody else uses."""
    name = f"bench-{next(_names)}"
    with PubSub(f"grpc://{address}") as pubsub:
        topic = pubsub.topic(name).create().result()
        topic.set_publish_options(flow_control={"max_messages": 10 * BATCH})
        flow = {"max_messages": 10 * BATCH}
        subscription = topic.subscription(name).create(**OPTIONS, flow_control=flow, **options).result()
        yield topic, subscription
        subscription.close().result()
        subscription.delete().result()
        topic.delete().result()


# -- end to end ------------------------------------------------------------------------------------


def _end_to_end(effort: Effort, address: str) -> Table:
    count, of_nats = effort.of(100_000, 10_000), effort.of(20_000, 2_000)
    contestants: dict[str, Callable[[], float]] = {
        OURS: partial(_through_our_client, address, count),
        LISTS: partial(_through_our_lists, address, count, BATCH, WINDOW),
        COLUMNS: partial(_through_our_columns, address, count),
    }
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name, start, run, of_peer in (
            (NATS, partial(start_peer, "nats_jetstream", False), _through_nats, of_nats),
            (REDIS, partial(start_peer, "redis_streams", "everysec"), _through_redis, count),
        ):
            try:
                contestants[name] = partial(run, stack.enter_context(start()), of_peer)
            except Missing as reason:
                missing[name] = str(reason)
        for name in {LISTS, COLUMNS, REDIS} & contestants.keys():
            contestants[name + RARELY] = partial(_collecting_rarely, contestants[name])
        rates = interleaved(contestants, effort)
    return Table(
        f"Client: publish, handle and ack, {KEYS:,} keys, batches of {BATCH:,}, end to end",
        "messages/s",
        [
            Row(f"{how}, against {peer}", rates[ours], rates.get(peer, ()), target, missing.get(peer, ""))
            for ours, how, targets in (
                (COLUMNS, "by columns", (Target(8), Target(3))),
                (LISTS, "by lists", (Target(8), Target(3))),
                (OURS, "a handler for each", (None, None)),
            )
            for peer, target in zip((NATS, REDIS), targets, strict=True)
        ]
        + [
            Row(
                f"{how}, against {REDIS}, both{RARELY}",
                rates[ours + RARELY],
                rates.get(REDIS + RARELY, ()),
                None,
                missing.get(REDIS, ""),
            )
            for ours, how in ((COLUMNS, "by columns"), (LISTS, "by lists"))
        ],
        [
            f"Up to {WINDOW:,} messages of a key are out at once, in order. Ours syncs before it answers a publish;",
            "NATS syncs every two minutes, Redis every second. By columns and by lists, as the peers: a list is taken,",
            "handled and acked as one; by columns nobody makes an object of each message, as Redis's client does not.",
            "A handler is an `async def` that is called, and acks, message by message.",
        ],
    )


def _strict(effort: Effort, address: str) -> Table:
    count = effort.of(30_000, 3_000)
    contestants = {LISTS: partial(_through_our_lists, address, count, STRICT_BATCH, 1)}
    missing = ""
    with ExitStack() as stack:
        try:
            peer = stack.enter_context(start_peer("postgresql"))
            contestants[POSTGRESQL] = partial(publish_take_ack, count, peer)
        except Missing as reason:
            missing = str(reason)
        rates = interleaved(contestants, effort)
    return Table(
        f"Client: publish, take and ack, {KEYS:,} keys, one of a key out, batches of {STRICT_BATCH}, end to end",
        "messages/s",
        [Row(f"against {POSTGRESQL}", rates[LISTS], rates.get(POSTGRESQL, ()), Target(0.8), missing)],
        ["Both sync before they answer a publish; PostgreSQL syncs acks, too."],
    )


def _collecting_rarely(run: Callable[[], float]) -> float:
    before = gc.get_threshold()
    gc.set_threshold(5_000)
    try:
        return run()
    finally:
        gc.set_threshold(*before)


def _through_our_client(address: str, count: int) -> float:
    pairs = random_pairs(count, KEYS)
    with _subscribed(address, max_outstanding_per_key=WINDOW) as (topic, subscription):
        handled = _Handled(count)
        subscription.on("message", handled.handle).open()
        start = perf_counter()
        _publish(topic, pairs, BATCH)
        handled.wait()
        elapsed = perf_counter() - start
    check_order(handled.received, count)
    return count / elapsed


def _through_our_lists(address: str, count: int, size: int, window: int) -> float:
    pairs, received = random_pairs(count, KEYS), list[bytes]()
    with _subscribed(address, max_outstanding_per_key=window) as (topic, subscription):
        batches = subscription.batches(size, one_per_key=window == 1, ahead=AHEAD)

        def consume() -> None:
            for batch in batches:
                received.extend([message.data for message in batch])
                batches.ack(batch)
                if len(received) >= count:
                    break

        consumer = threading.Thread(target=consume)
        start = perf_counter()
        consumer.start()
        _publish(topic, pairs, size)
        consumer.join(PATIENCE_SECONDS)
        elapsed = perf_counter() - start
        batches.close()
    check_order(received, count)
    return count / elapsed


def _through_our_columns(address: str, count: int) -> float:
    pairs, received = random_pairs(count, KEYS), list[bytes]()
    with _subscribed(address, max_outstanding_per_key=WINDOW) as (topic, subscription):
        columns = subscription.columns(BATCH, ahead=AHEAD)

        def consume() -> None:
            for leased in columns:
                received.extend(leased.data)
                columns.ack(leased)
                if len(received) >= count:
                    break

        consumer = threading.Thread(target=consume)
        start = perf_counter()
        consumer.start()
        _publish(topic, pairs, BATCH, side_by_side)
        consumer.join(PATIENCE_SECONDS)
        elapsed = perf_counter() - start
        columns.close()
    check_order(received, count)
    return count / elapsed


def _objects(batch: Sequence[Pair]) -> list[Message]:
    return [Message(data, ordering_key=key) for key, data in batch]


def _publish(
    topic: Topic,
    pairs: Sequence[Pair],
    size: int,
    made: Callable[[Sequence[Pair]], list[Message] | Columns] = _objects,
) -> None:
    unanswered: deque[Pending[list[str]]] = deque()
    for batch in split(pairs, size):
        unanswered.append(topic.publish_many(made(batch)))
        if len(unanswered) == UNANSWERED:
            unanswered.popleft().result()
    for answer in unanswered:
        answer.result()


class _Handled:
    """An `async def` handler that keeps what it gets."""

    def __init__(self, count: int, seconds: float = 0) -> None:
        self.received: list[bytes] = []
        self._count = count
        self._seconds = seconds
        self._all = threading.Event()

    async def handle(self, message: Message) -> None:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self.received.append(message.data)
        message.ack()
        if len(self.received) == self._count:
            self._all.set()

    def wait(self) -> None:
        if not self._all.wait(PATIENCE_SECONDS):
            raise WrongResult(f"{len(self.received):,} of {self._count:,} messages arrived")


def _through_redis(new_queue: NewQueue, count: int) -> float:
    batches, received = split(random_pairs(count, KEYS), BATCH), list[bytes]()
    with new_queue() as queue:
        start = perf_counter()
        for batch in batches:
            queue.publish(batch)
            received += queue.take(BATCH)
            queue.ack()
        elapsed = perf_counter() - start
    check_order(received, count)
    return count / elapsed


def _through_nats(new_publisher: NewPublisher, count: int) -> float:
    return asyncio.run(_through_nats_async(new_publisher, count))


async def _through_nats_async(new_stream: Callable[[], Any], count: int) -> float:
    received: list[bytes] = []
    async with new_stream() as stream:
        start = perf_counter()
        for batch in split(random_pairs(count, KEYS), BATCH):
            await asyncio.gather(*(stream.publish(key, data) for key, data in batch))
            taken = len(received) + len(batch)
            while len(received) < taken:
                received += await stream.take_and_ack(taken - len(received))
        elapsed = perf_counter() - start
    if sorted(received) != sorted(data for _, data in random_pairs(count, KEYS)):
        raise WrongResult("what came is not what was published")
    return count / elapsed


def _by_tls(effort: Effort, folder: Path, plain: str) -> Table:
    count = effort.of(100_000, 10_000)
    try:
        certificate, key = self_signed(folder)
    except ImportError as error:
        missing = Row("by TLS", (), missing=f"the package {error.name}, to make a certificate")
        return Table("Client: what TLS costs", "messages/s", [missing])
    command = our_command("--data", str(folder / "tls"), "--tls-certificate", str(certificate), "--tls-key", str(key))
    with serving(command, certificate) as server:
        secure = f"{server.address}?tls=1&ca={certificate}"
        contestants = {
            "tls": partial(_through_our_client, secure, count),
            "plain": partial(_through_our_client, plain, count),
        }
        rates = interleaved(contestants, effort)
    return Table(
        f"Client: publish, handle and ack, {KEYS:,} keys, batches of {BATCH:,}, by TLS",
        "messages/s",
        [Row("against the same without TLS", rates["tls"], rates["plain"], Target(0.7))],
    )


# -- one hot key -----------------------------------------------------------------------------------


def _hot_key(effort: Effort, address: str) -> Table:
    ours, googles = effort.of(20_000, 5_000), effort.of(200, 50)
    rates = interleaved(
        {
            "window": partial(_one_key, address, ours, WINDOW),
            "strict": partial(_one_key, address, ours // 10, 1),
            GOOGLE: partial(_one_key_by_google, address, googles),
        },
        effort,
    )
    return Table(
        f"Client: one hot key, published before, handled and acked, against {GOOGLE} on the same server",
        "messages/s",
        [
            Row(f"up to {WINDOW:,} of the key out, in order", rates["window"], rates[GOOGLE], Target(100)),
            Row("one of the key out", rates["strict"], rates[GOOGLE]),
        ],
    )


def _one_key(address: str, count: int, window: int) -> float:
    pairs = even_pairs(count, 1)
    with _subscribed(address, max_outstanding_per_key=window) as (topic, subscription):
        topic.publish_many([Message(data, ordering_key=key) for key, data in pairs]).result()
        handled = _Handled(count)
        start = perf_counter()
        subscription.on("message", handled.handle).open()
        handled.wait()
        elapsed = perf_counter() - start
    check_order(handled.received, count)
    return count / elapsed


def _one_key_by_google(address: str, count: int) -> float:
    import grpc
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import pubsub_v1
    from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport

    received: list[bytes] = []
    done = threading.Event()

    def handle(message: Any) -> None:
        received.append(message.data)
        message.ack()
        if len(received) == count:
            done.set()

    with _subscribed(address, max_outstanding_per_key=WINDOW) as (topic, subscription):
        topic.publish_many([Message(data, ordering_key=key) for key, data in even_pairs(count, 1)]).result()
        with grpc.insecure_channel(address) as channel:
            transport = SubscriberGrpcTransport(channel=channel, credentials=AnonymousCredentials())
            client = pubsub_v1.SubscriberClient(transport=transport)
            start = perf_counter()
            pulling = client.subscribe(f"projects/inorder/subscriptions/{subscription.name}", handle)
            if not done.wait(PATIENCE_SECONDS):
                raise WrongResult(f"{len(received):,} of {count:,} messages arrived")
            elapsed = perf_counter() - start
            pulling.cancel()
            pulling.result()
    check_order(received, count)
    return count / elapsed


# -- one message at a time -------------------------------------------------------------------------


def _single_publishes(effort: Effort, address: str) -> Iterator[Table]:
    count = effort.of(6_400, 640)
    contestants = {OURS: partial(_one_by_one, partial(_publisher, address), count)}
    missing = ""
    with ExitStack() as stack:
        try:
            nats = stack.enter_context(start_peer("nats_jetstream", False))
            contestants[NATS] = partial(_one_by_one, nats, count)
        except Missing as reason:
            missing = str(reason)
        found = interleaved(contestants, effort)
    rates = {name: [rate for rate, _ in runs] for name, runs in found.items()}
    title = f"Client: {PUBLISHERS} tasks, each publishes one message and waits for the answer, then the next"
    yield Table(
        title,
        "messages/s",
        [
            Row(f"against {NATS}", rates[OURS], rates.get(NATS, ()), Target(0.5), missing),
            Row("at least", rates[OURS], target=Target(5_000, figure=True)),
        ],
    )
    waits = {name: [quantiles(seconds, n=100) for _, seconds in runs] for name, runs in found.items()}
    yield Table(
        f"{title}: how long for one",
        "ms",
        [
            Row(
                f"p{percent}",
                [1000 * run[percent - 1] for run in waits[OURS]],
                [1000 * run[percent - 1] for run in waits.get(NATS, ())],
                missing=missing,
            )
            for percent in (50, 99)
        ],
    )


class _Publisher:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    async def publish(self, key: str, data: bytes) -> None:
        await self._topic.publish_message(data, ordering_key=key)

    async def stored(self) -> int:
        return (await self._topic.metadata()).published


@asynccontextmanager
async def _publisher(address: str) -> AsyncIterator[_Publisher]:
    with _subscribed(address) as (topic, _):
        yield _Publisher(topic)


def _one_by_one(new_publisher: NewPublisher, count: int) -> tuple[float, list[float]]:
    return asyncio.run(_one_by_one_async(new_publisher, random_pairs(count, KEYS)))


async def _one_by_one_async(new_publisher: NewPublisher, pairs: Sequence[Pair]) -> tuple[float, list[float]]:
    left, waits = iter(pairs), list[float]()
    async with new_publisher() as publisher:

        async def publish() -> None:
            for key, data in left:
                begun = perf_counter()
                await publisher.publish(key, data)
                waits.append(perf_counter() - begun)

        start = perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(PUBLISHERS):
                group.create_task(publish())
        elapsed = perf_counter() - start
        stored = await publisher.stored()
    if stored != len(pairs):
        raise WrongResult(f"{stored:,} of {len(pairs):,} messages are stored")
    return len(pairs) / elapsed, waits


# -- keys side by side -----------------------------------------------------------------------------


def _keys_together(effort: Effort, address: str) -> Table:
    keys = (1, 10, 100)
    of_each = effort.of(300, 60)
    rates = interleaved({str(one): partial(_with_handlers, address, one, of_each) for one in keys}, effort)
    points = [(log10(one), log10(median(rates[str(one)]))) for one in keys]
    slope = _slope(points)
    return Table(
        f"Client: handlers of {1000 * HANDLER_SECONDS:g} ms, {of_each} messages of each key",
        "messages/s",
        [Row(f"{one} {'key' if one == 1 else 'keys'}", rates[str(one)]) for one in keys],
        [f"Throughput grows as the number of keys to the power of {number(slope)}; 1 is linear."],
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits best."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def _with_handlers(address: str, keys: int, of_each: int) -> float:
    pairs = even_pairs(keys * of_each, keys)
    with _subscribed(address, max_outstanding_per_key=20) as (topic, subscription):
        for batch in split(pairs, BATCH):
            topic.publish_many([Message(data, ordering_key=key) for key, data in batch]).result()
        handled = _Handled(len(pairs), HANDLER_SECONDS)
        start = perf_counter()
        subscription.on("message", handled.handle).open()
        handled.wait()
        elapsed = perf_counter() - start
    check_order(handled.received, len(pairs))
    return len(pairs) / elapsed
