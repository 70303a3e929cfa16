"""Messages that survive a power cut, against other software that promises the same, on the same disk.

The servers are started by this bench, on loopback, and stopped by it. What is not installed is named.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from bench import ours
from bench.peers import Missing, NewPublisher, NewQueue, servers, sqlite, start_peer
from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.workload import MESSAGE_BYTES, WrongResult, check_order, random_pairs, split

T = TypeVar("T")
Start = Callable[[], AbstractContextManager[Any]]  # of a NewQueue, or of a NewPublisher

KEYS = 1_000
BATCH = 100
PUBLISHERS = 64
OURS = "inorder"


class Peer(NamedTuple):
    name: str
    start: Start
    target: Target | None


def measure(effort: Effort) -> Iterator[Table]:
    peers = [
        Peer("SQLite, marks what is out", partial(sqlite.started, sqlite.Marking), Target(2)),
        Peer("SQLite, remembers what is out", partial(sqlite.started, sqlite.Remembering), Target(2)),
        Peer("Redis Streams, appendfsync always", partial(start_peer, "redis_streams"), Target(8)),
        Peer("PostgreSQL, COPY and SKIP LOCKED", partial(start_peer, "postgresql"), Target(3)),
    ]
    work = partial(publish_take_ack, effort.of(30_000, 3_000))
    title = f"Durable: publish, take and ack, {KEYS:,} keys, batches of {BATCH}"
    notes = [_disk(), *_versions("redis-server", "postgres"), "Our acks are written, and synced with the next publish."]
    yield Table(title, "messages/s", _compare(ours.queues, peers, work, effort), notes)

    rows = _compare(partial(ours.queues, ours.ColumnBroker), peers, work, effort)
    yield Table(f"{title}; ours by columns, without an object of each message", "messages/s", rows)

    # The same promise on both sides: the peers sync an ack before they answer it.
    rows = _compare(
        partial(ours.queues, ours.SyncedBroker), [peer._replace(target=None) for peer in peers], work, effort
    )
    yield Table(f"{title}, and every ack is synced before it is answered", "messages/s", rows)

    rows = _compare(
        ours.publishers,
        [
            Peer("NATS JetStream, sync_interval always", partial(start_peer, "nats_jetstream", True), Target(4)),
            Peer("NATS JetStream, syncs every 2 minutes (default)", partial(start_peer, "nats_jetstream", False), None),
        ],
        partial(_publish_and_wait, effort.of(25_600, 640)),
        effort,
    )
    title = f"Durable: {PUBLISHERS} tasks, each publishes one message and waits for the answer, then the next"
    yield Table(title, "messages/s", rows, _versions("nats-server"))

    # The same promise on both sides: what was answered survives the end of the process, and is synced later.
    rows = _compare(
        partial(ours.publishers, "interval"),
        [
            Peer(
                "NATS JetStream, syncs every 2 minutes (default)",
                partial(start_peer, "nats_jetstream", False),
                Target(4),
            )
        ],
        partial(_publish_and_wait, effort.of(25_600, 640)),
        effort,
    )
    yield Table(f'{title}; ours with sync="interval", every 0.1 s', "messages/s", rows)


def _compare(our_start: Start, peers: Sequence[Peer], run: Callable[[Any], float], effort: Effort) -> list[Row]:
    """Start all that can be started, and let them take turns."""
    contestants: dict[str, Callable[[], float]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name, start in ((OURS, our_start), *((peer.name, peer.start) for peer in peers)):
            try:
                contestants[name] = partial(run, stack.enter_context(start()))
            except Missing as reason:
                missing[name] = str(reason)
        rates = interleaved(contestants, effort)
    return [
        Row(
            f"against {peer.name}",
            rates.get(OURS, ()),
            rates.get(peer.name, ()),
            peer.target,
            ", ".join(missing[name] for name in (OURS, peer.name) if name in missing),
        )
        for peer in peers
    ]


def publish_take_ack(count: int, new_queue: NewQueue) -> float:
    """Messages per second through a queue, in step: a batch in, a batch out and done."""
    batches, received = split(random_pairs(count, KEYS), BATCH), list[bytes]()
    with new_queue() as queue:
        start = perf_counter()
        for batch in batches:
            queue.publish(batch)
            received += queue.take(BATCH)
            queue.ack()
        while taken := queue.take(BATCH):  # what had to wait for another one of its key
            received += taken
            queue.ack()
        elapsed = perf_counter() - start
    check_order(received, count)
    return count / elapsed


def _publish_and_wait(count: int, new_publisher: NewPublisher) -> float:
    return asyncio.run(_publish_and_wait_async(count, new_publisher))


async def _publish_and_wait_async(count: int, new_publisher: NewPublisher) -> float:
    left = iter(random_pairs(count, KEYS))
    async with new_publisher() as publisher:

        async def publish() -> None:
            for key, data in left:
                await publisher.publish(key, data)

        start = perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(PUBLISHERS):
                group.create_task(publish())
        elapsed = perf_counter() - start
        stored = await publisher.stored()
    if stored != count:
        raise WrongResult(f"{stored:,} of {count:,} messages are stored")
    return count / elapsed


def _disk() -> str:
    """What syncing costs here: on a file system in memory nothing, and then the figures mean little."""
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(100):
            start = perf_counter()
            file.write(bytes(BATCH * MESSAGE_BYTES))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - start)
    size = f"{BATCH * MESSAGE_BYTES:,} bytes"
    where = f"{tempfile.gettempdir()} ({_file_system(Path(tempfile.gettempdir()))})"
    return f"In {where}, appending {size} with fdatasync takes {number(median(times) * 1e6)} µs."


def _file_system(path: Path) -> str:
    """Its type, by the longest mount point that holds the path."""
    mounts = Path("/proc/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    holding = [(len(point), kind) for _, point, kind, *_ in lines if path.resolve().is_relative_to(point)]
    return max(holding)[1] if holding else "unknown file system"


def _versions(*names: str) -> list[str]:
    found = []
    for name in names:
        with suppress(Missing):
            found.append(f"{name}: {servers.version(name)}")
    return found
