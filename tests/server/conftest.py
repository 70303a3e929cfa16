"""A server on a loop of its own, as another process would be, and Google's clients for it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient as RawPublisher
from google.pubsub_v1.services.publisher.transports.grpc import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport

from inorder.broker import MessageQueue
from inorder.server import Server
from inorder.transport.address import host_and_port

PROJECT = "shop"


class Running:
    """A server that serves until it is stopped."""

    def __init__(
        self, broker: MessageQueue, host: str = "127.0.0.1", port: int = 0, *, rest: bool = False, **options: Any
    ) -> None:
        self.broker = broker
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = Server(broker, **options)
        self.port: int = self.run(self.server.start(host, port, rest=rest))
        self.address = host_and_port(host, self.port)
        self._channels: list[grpc.Channel] = []

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def channel(self) -> grpc.Channel:
        channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._channels.append(channel)
        return channel

    def publisher(self, **options: Any) -> pubsub_v1.PublisherClient:
        return pubsub_v1.PublisherClient(
            transport=PublisherGrpcTransport(channel=self.channel(), credentials=AnonymousCredentials()), **options
        )

    def raw_publisher(self) -> RawPublisher:
        """The client beneath Google's publisher, which sends a batch as it is given."""
        transport = PublisherGrpcTransport(channel=self.channel(), credentials=AnonymousCredentials())
        return RawPublisher(transport=transport)

    def subscriber(self) -> pubsub_v1.SubscriberClient:
        return pubsub_v1.SubscriberClient(
            transport=SubscriberGrpcTransport(channel=self.channel(), credentials=AnonymousCredentials())
        )

    def wait_until_given_up(self, call: str) -> None:
        """The server has seen that a client of this call has gone."""
        ended = self.server._exporter._calls.ended
        for _ in range(10_000):
            if ended[call, "CANCELLED"]:
                return
            time.sleep(0.002)
        raise AssertionError(f"nobody has given up {call}")

    def stop(self) -> None:
        """As on SIGTERM."""
        if self._thread.is_alive():
            self.run(self.server.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.stop()
        self.broker.close()


Serve = Callable[..., Running]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers; all are stopped at the end."""
    running: list[Running] = []

    def start(broker: MessageQueue | None = None, **options: Any) -> Running:
        running.append(Running(broker or MessageQueue(), **options))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture(params=["memory", "file"])
def server(request: pytest.FixtureRequest, tmp_path: Path, serve: Serve) -> Running:
    """One in memory, and one on disk."""
    return serve(MessageQueue() if request.param == "memory" else MessageQueue.open(tmp_path / "data"))
