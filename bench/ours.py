"""The durable broker of inorder as the durable benchmarks use it. All that they know of it is here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers import Missing, NewPublisher, NewQueue, Queue
from bench.workload import OPTIONS, ORDERED, Pair, side_by_side
from inorder import Message, PubSub, Subscription, Topic
from inorder.broker import MessageQueue
from inorder.commits import Sync
from inorder.message import Leased

TOPIC, SUBSCRIPTION = "t", "s"


def check() -> None:
    """`Missing` if there is no durable broker."""
    _opener()


def _opener() -> Callable[[Path], MessageQueue]:
    opener: Callable[[Path], MessageQueue] | None = getattr(MessageQueue, "open", None)
    if opener is None:
        raise Missing("inorder's durable broker")
    return opener


def open_broker(folder: Path) -> MessageQueue:
    """Open a folder, or make it; everything is back when this returns."""
    return _opener()(folder)


def new_broker(folder: Path) -> MessageQueue:
    """An empty one, with a topic and its subscription."""
    broker = open_broker(folder)
    broker.register_topic(TOPIC)
    broker.register_subscription(SUBSCRIPTION, TOPIC, ORDERED)
    return broker


def backlog(broker: MessageQueue) -> int:
    return broker.metrics(SUBSCRIPTION).backlog_messages


class Broker:
    """As most use it: an object for each message."""

    def __init__(self, broker: MessageQueue) -> None:
        self._broker = broker
        self._out: list[Message] = []

    def publish(self, messages: Sequence[Pair]) -> None:
        self._broker.publish(TOPIC, [Message(data, None, key) for key, data in messages])

    def take(self, count: int) -> list[bytes]:
        self._out = self._broker.pull(SUBSCRIPTION, count)
        return [message.data for message in self._out]

    def ack(self) -> None:
        self._broker.ack(self._out)


class ColumnBroker(Broker):
    """One that is given columns, and gives them: no object is made of a message."""

    _leased: Leased

    def publish(self, messages: Sequence[Pair]) -> None:
        self._broker.publish(TOPIC, side_by_side(messages))

    def take(self, count: int) -> list[bytes]:
        self._leased = self._broker.lease(SUBSCRIPTION, count)
        return self._leased.data

    def ack(self) -> None:
        self._broker.ack(self._leased)


class SyncedBroker(Broker):
    """One whose acks, too, are on disk before they are answered, as those of the peers are."""

    def ack(self) -> None:
        super().ack()
        self._broker.durable().result()


@contextmanager
def queues(kind: type[Broker] = Broker) -> Iterator[NewQueue]:
    check()

    @contextmanager
    def new() -> Iterator[Queue]:
        with (
            TemporaryDirectory(prefix="inorder-bench-") as folder,
            closing(new_broker(Path(folder, "data"))) as broker,
        ):
            yield kind(broker)

    yield new


class Publisher:
    def __init__(self, topic: Topic, subscription: Subscription) -> None:
        self._topic = topic
        self._subscription = subscription

    async def publish(self, key: str, data: bytes) -> None:
        await self._topic.publish_message(data, ordering_key=key)

    async def stored(self) -> int:
        return (await self._subscription.metrics()).backlog_messages


@contextmanager
def publishers(sync: Sync = "commit") -> Iterator[NewPublisher]:
    check()
    yield partial(_publisher, sync)


@asynccontextmanager
async def _publisher(sync: Sync) -> AsyncIterator[Publisher]:
    """A topic, and a subscription that keeps what is published."""
    with TemporaryDirectory(prefix="inorder-bench-") as folder:
        async with PubSub(f"file:{Path(folder, 'data')}?sync={sync}") as pubsub:
            topic = await pubsub.topic(TOPIC).create()
            yield Publisher(topic, await topic.subscription(SUBSCRIPTION).create(**OPTIONS))
