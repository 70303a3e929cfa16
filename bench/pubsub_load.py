"""Load for any server of google.pubsub.v1, in a process of its own: `python -m bench.pubsub_load WORK ADDRESS PID …`.

Requests are made before the time is taken, and go over the wire as bytes, so that the server is what is measured.
Prints how many seconds the work took, and how many of the processor the server of that process id took for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import grpc.aio
from google.pubsub_v1.types import pubsub

from bench.workload import Pair, check_order, random_pairs, split

KEYS = 1_000
BATCH = 1_000
IN_FLIGHT = 8
ATTRIBUTES = {"source": "bench", "kind": "order.created", "trace": "4bf92f3577b34da6"}
STREAM_SECONDS = 60
STALL_SECONDS = 30

PublishRequest = pubsub.PublishRequest.pb()
StreamingPullRequest = pubsub.StreamingPullRequest.pb()
StreamingPullResponse = pubsub.StreamingPullResponse.pb()


class Load:
    """A topic with one ordered subscription, new for each piece of work and deleted after it."""

    def __init__(self, channel: grpc.aio.Channel, pid: int) -> None:
        self._channel = channel
        self._pid = pid
        self.topic = f"projects/bench/topics/t{os.getpid()}"
        self.subscription = f"projects/bench/subscriptions/s{os.getpid()}"

    async def call(self, service: str, method: str, request: Any) -> bytes:
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        answer: bytes = await self._channel.unary_unary(f"/google.pubsub.v1.{service}/{method}")(raw)
        return answer

    async def create(self) -> None:
        await self.call("Publisher", "CreateTopic", pubsub.Topic.pb()(name=self.topic))
        wanted = pubsub.Subscription.pb()(
            name=self.subscription, topic=self.topic, enable_message_ordering=True, ack_deadline_seconds=600
        )
        await self.call("Subscriber", "CreateSubscription", wanted)

    async def delete(self) -> None:
        request = pubsub.DeleteSubscriptionRequest.pb()(subscription=self.subscription)
        await self.call("Subscriber", "DeleteSubscription", request)
        await self.call("Publisher", "DeleteTopic", pubsub.DeleteTopicRequest.pb()(topic=self.topic))

    def requests(self, pairs: Sequence[Pair], attributes: dict[str, str]) -> list[bytes]:
        def request(batch: Sequence[Pair]) -> bytes:
            messages = [{"data": data, "ordering_key": key, "attributes": attributes} for key, data in batch]
            raw: bytes = PublishRequest(topic=self.topic, messages=messages).SerializeToString()
            return raw

        return [request(batch) for batch in split(pairs, BATCH)]

    async def publish(self, requests: Sequence[bytes], in_flight: int) -> None:
        left = iter(requests)

        async def send() -> None:
            for request in left:
                await self.call("Publisher", "Publish", request)

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(send())

    def stream(self) -> Any:
        return self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")()

    def opening(self) -> Any:
        """The first request on a stream."""
        return StreamingPullRequest(
            subscription=self.subscription,
            stream_ack_deadline_seconds=STREAM_SECONDS,
            max_outstanding_messages=10_000,
            max_outstanding_bytes=100_000_000,
        )

    async def receive(self, count: int) -> list[bytes]:
        """So many messages on one stream, each acked on it as it comes."""
        stream = self.stream()
        await stream.write(self.opening().SerializeToString())
        received: list[bytes] = []
        while len(received) < count:
            raw = await asyncio.wait_for(stream.read(), STALL_SECONDS)
            if raw is grpc.aio.EOF:
                raise ConnectionError(f"the stream ended: {await stream.code()} {await stream.details()}")
            messages = StreamingPullResponse.FromString(raw).received_messages
            received += [one.message.data for one in messages]
            acks = StreamingPullRequest(ack_ids=[one.ack_id for one in messages])
            await stream.write(acks.SerializeToString())
        stream.cancel()
        return received

    async def measured(self, work: Callable[[], Awaitable[Any]]) -> tuple[dict[str, float], Any]:
        cpu, start = cpu_seconds(self._pid), perf_counter()
        result = await work()
        return {"seconds": perf_counter() - start, "cpu": cpu_seconds(self._pid) - cpu}, result


async def publish(load: Load, count: int, attributes: dict[str, str]) -> dict[str, float]:
    requests = load.requests(random_pairs(count, KEYS), attributes)
    figures, _ = await load.measured(lambda: load.publish(requests, IN_FLIGHT))
    return figures


async def deliver(load: Load, count: int) -> dict[str, float]:
    # One request after the other: several at once would be in any order.
    await load.publish(load.requests(random_pairs(count, KEYS), {}), 1)
    figures, received = await load.measured(lambda: load.receive(count))
    check_order(received, count)
    return figures


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processor, in its own code and in the kernel's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _run(work: str, address: str, pid: int, count: int) -> dict[str, float]:
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        load = Load(channel, pid)
        await load.create()
        try:
            match work:
                case "publish":
                    return await publish(load, count, {})
                case "publish-attributes":
                    return await publish(load, count, ATTRIBUTES)
                case "deliver":
                    return await deliver(load, count)
            raise SystemExit(f"no work is called {work!r}")
        finally:
            await load.delete()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
