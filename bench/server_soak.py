"""Whether the memory of `inorder serve` stays flat under a load that lasts.

    python -m bench.server_soak                 five minutes, on disk
    python -m bench.server_soak --minutes 60

First the load goes as fast as it can for a few seconds; then at half that rate, published and delivered in order with
acks, for as long as asked. What the server has resident is read each second, and the line through the second half of
that is printed: its slope is what a leak would be.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

import grpc
import grpc.aio
from google.pubsub_v1.types import pubsub

from bench.peers import servers
from bench.pubsub_load import KEYS, STALL_SECONDS, Load, StreamingPullRequest, StreamingPullResponse
from bench.report import Row, Table, Target, machine
from bench.server import Started, ours, serving
from bench.workload import MESSAGE_BYTES, WrongResult

BATCH = 100
FULL_SPEED_SECONDS = 5.0
AHEAD = 20_000  # messages that may be published and not delivered yet: more would measure the backlog
MEGABYTES_A_MINUTE = 1.0  # what the slope may be: noise of an allocator, but no leak of a byte per message


@dataclass
class Traffic:
    """What was published, and what has come of it."""

    published: int = 0
    received: int = 0
    expected: dict[bytes, int] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def at_most_ahead(self, messages: int) -> None:
        """Wait until no more than so many are still to come."""
        while self.published - self.received > messages:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), STALL_SECONDS)

    def check(self, data: bytes) -> None:
        key, number = data.split()
        if int(number) != self.expected.get(key, 0):
            raise WrongResult(f"key {key.decode()}: {self.expected.get(key, 0)} expected, {number.decode()} came")
        self.expected[key] = int(number) + 1


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.server_soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    for name, value in machine().items():
        print(f"{name:8} {value}")
    with servers.folder() as folder, serving(ours("--data", str(folder / "data"))) as server:
        print(f"\n{asyncio.run(_soak(server, given.minutes * 60))}")


async def _soak(server: Started, seconds: float) -> Table:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        full, _ = await _run(Load(channel, server.pid), server, FULL_SPEED_SECONDS, None)
        half, resident = await _run(Load(channel, server.pid), server, seconds, full / 2)
    late = resident[len(resident) // 2 :]
    slope = 60 * _slope(late)
    return Table(
        f"Server on disk at half load: {seconds / 60:g} minutes, {KEYS:,} keys, ordered, acked on the stream",
        "see each",
        [
            Row("messages/s at full load", [full]),
            Row("messages/s at half load", [half]),
            Row("resident at first, MB", resident[:1]),
            Row("most resident, MB", [max(resident)]),
            Row(
                "growth over the second half, MB a minute",
                [slope],
                target=Target(MEGABYTES_A_MINUTE, below=True, figure=True),
            ),
        ],
    )


async def _run(load: Load, server: Started, seconds: float, rate: float | None) -> tuple[float, list[float]]:
    """Messages a second that came through, and what the server had resident second by second."""
    await load.create()
    traffic, resident = Traffic(), []
    start = perf_counter()
    receiving = asyncio.create_task(_receive(load, traffic))
    try:
        for request, size in _requests(load):
            elapsed = perf_counter() - start
            if elapsed >= seconds:
                break
            if len(resident) <= elapsed:
                resident.append(server.megabytes())
            await traffic.at_most_ahead(AHEAD)
            if rate is not None:
                await asyncio.sleep(max(traffic.published / rate - elapsed, 0))
            if receiving.done():
                receiving.result()
            await load.call("Publisher", "Publish", request)
            traffic.published += size
        await traffic.at_most_ahead(0)
        return traffic.received / (perf_counter() - start), resident
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await load.delete()


def _requests(load: Load) -> Iterator[tuple[bytes, int]]:
    """Batches without end, keys in turn."""
    for number in count():
        first = number * BATCH
        messages = [
            {
                "data": f"{place % KEYS} {place // KEYS}".encode().ljust(MESSAGE_BYTES),
                "ordering_key": f"key-{place % KEYS}",
            }
            for place in range(first, first + BATCH)
        ]
        yield pubsub.PublishRequest.pb()(topic=load.topic, messages=messages).SerializeToString(), BATCH


async def _receive(load: Load, traffic: Traffic) -> None:
    stream = load.stream()
    await stream.write(load.opening().SerializeToString())
    while True:
        raw: Any = await stream.read()
        if raw is grpc.aio.EOF:
            raise ConnectionError(f"the stream ended: {await stream.code()} {await stream.details()}")
        messages = StreamingPullResponse.FromString(raw).received_messages
        for one in messages:
            traffic.check(one.message.data)
        acks = StreamingPullRequest(ack_ids=[one.ack_id for one in messages])
        await stream.write(acks.SerializeToString())
        traffic.received += len(messages)
        traffic.news.set()


def _slope(figures: list[float]) -> float:
    """Of the line that fits figures which are a second apart, by least squares."""
    middle, mean = (len(figures) - 1) / 2, sum(figures) / len(figures)
    spread = sum((place - middle) ** 2 for place in range(len(figures)))
    return sum((place - middle) * (figure - mean) for place, figure in enumerate(figures)) / spread if spread else 0.0


if __name__ == "__main__":
    main()
