"""Queues of four kinds, by what they guarantee: each a topic and a subscription, set up as it should be.

standard      no order, all consumers at once
fifo          one sequence: one message at a time, whoever consumes it
fifo_groups   one sequence for each message group, groups side by side
partitioned   the same, in partitions with a consumer each, whose number can change
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.consumers.partitions import PartitionedTopic
from inorder.consumers.partitions.group import OnGap
from inorder.consumers.store import Store
from inorder.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from inorder.message import Message
from inorder.options import RetryPolicy, SubscriptionOptions, check_name, known
from inorder.pending import Pending

# At once, what failed would come before all that was never out, and where there is no order none should wait for it.
STANDARD_RETRY = RetryPolicy(minimum_backoff=0.1, maximum_backoff=10)

Handler = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a kind of queue promises, in the words of its table."""

    kind: str
    ordering: str
    parallel_consumers: str
    retry: str
    message_groups: str
    dead_letters: str


class Consuming(Protocol):
    """A handler at work; `close` finishes what runs."""

    def close(self) -> Pending[None]: ...


class Queue(ABC):
    """A queue with a name. Make one by `Queue.standard`, `.fifo`, `.fifo_groups` or `.partitioned`."""

    guarantees: Guarantees

    def __init__(self, name: str) -> None:
        self.name = check_name("queue", name)

    @classmethod
    def standard(cls, pubsub: PubSub, name: str, **options: Any) -> Queue:
        """No order: every message by itself, to whoever is free. `options` are those of a subscription.

        Without a `retry_policy` a message that fails waits a tenth of a second, then twice as long, up to ten seconds.
        """
        return _TopicQueue(pubsub, name, STANDARD, _no_group, options)

    @classmethod
    def fifo(cls, pubsub: PubSub, name: str, **options: Any) -> Queue:
        """Strictly in the order of sending, one at a time; a message that fails is before all behind it."""
        return _TopicQueue(pubsub, name, FIFO, partial(_no_group, key=name), options)

    @classmethod
    def fifo_groups(cls, pubsub: PubSub, name: str, **options: Any) -> Queue:
        """The same for each message group; groups do not wait for each other."""
        return _TopicQueue(pubsub, name, FIFO_GROUPS, _some_group, options)

    @classmethod
    def partitioned(
        cls,
        pubsub: PubSub,
        name: str,
        *,
        store: Store,
        partitions: int,
        strict: bool = False,
        **options: Any,
    ) -> PartitionedQueue:
        """Message groups in partitions, each partition with one consumer at a time; see `PartitionedTopic`."""
        return PartitionedQueue(pubsub, name, store, partitions, strict, options)

    @abstractmethod
    def send(
        self, data: bytes = b"", attributes: Mapping[str, str] | None = None, *, group: str | None = None
    ) -> Pending[str]:
        """Send one message; the answer is its id."""

    @abstractmethod
    def send_many(self, messages: Iterable[Message]) -> Pending[list[str]]:
        """Send messages in order; the ordering key of each is its group."""

    @abstractmethod
    def consume(self, handler: Handler, *, on_gap: OnGap | None = None) -> Consuming:
        """Begin to handle messages, as by `subscription.on("message", handler)`, until the reply is closed.

        `on_gap` is told, in their place, of messages that will not come, such as dead letters.
        """


class _TopicQueue(Queue):
    """A topic with one subscription."""

    def __init__(
        self,
        pubsub: PubSub,
        name: str,
        guarantees: Guarantees,
        key: Callable[[str | None], str | None],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(name)
        self.guarantees = guarantees
        self._key = key
        self._topic = pubsub.topic(name)
        ordered = {"enable_message_ordering": guarantees is not STANDARD}
        defaults = {"retry_policy": STANDARD_RETRY} if guarantees is STANDARD else {}
        checked = {**ordered, **defaults, **known(SubscriptionOptions, options)}
        if not ordered.items() <= checked.items():
            raise InvalidArgument(
                f"enable_message_ordering: a queue of the kind {guarantees.kind!r} sets it itself, "
                f"not to {checked['enable_message_ordering']!r}"
            )
        with suppress(AlreadyExists):
            self._topic.create().result()
        try:
            self._topic.subscription(name).create(**checked).result()
        except AlreadyExists:
            self._check_found()

    def _check_found(self) -> None:
        """Refuse a subscription that cannot keep what this kind of queue guarantees."""
        found = self.subscription.metadata().result()
        ordered = found.options.enable_message_ordering
        problem = ""
        if found.detached:
            problem = "it is detached, so that nothing comes to it"
        elif found.topic.rpartition("/")[2] != self._topic.name.rpartition("/")[2]:
            problem = f"it is one of the topic {found.topic!r}"
        elif ordered != (self.guarantees is not STANDARD):
            problem = f"it has enable_message_ordering={ordered}"
        if problem:
            raise FailedPrecondition(
                f"queue {self.name!r}: a subscription {found.name!r} is there, but {problem}; "
                f"so it is no queue of the kind {self.guarantees.kind!r}"
            )

    def send(
        self, data: bytes = b"", attributes: Mapping[str, str] | None = None, *, group: str | None = None
    ) -> Pending[str]:
        return Pending.run(lambda: self._key(group)).then(
            lambda key: self._topic.publish_message(data, attributes, key)
        )

    def send_many(self, messages: Iterable[Message]) -> Pending[list[str]]:
        return Pending.run(lambda: self._all_keyed(messages)).then(self._topic.publish_many)

    def _all_keyed(self, messages: Iterable[Message]) -> list[Message]:
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise InvalidArgument(f"messages: expected several of Message, not {type(messages).__name__}")
        return [self._keyed(message) for message in messages]

    def _keyed(self, message: Message) -> Message:
        if not isinstance(message, Message):
            raise InvalidArgument(f"messages: expected several of Message, not of {type(message).__name__}")
        key = self._key(message.ordering_key)
        return message if key == message.ordering_key else Message(message.data, message.attributes, key)

    @property
    def subscription(self) -> Subscription:
        """For metrics, blocked keys and replay."""
        return self._topic.subscription(self.name)

    def consume(self, handler: Handler, *, on_gap: OnGap | None = None) -> Consuming:
        subscription = self._topic.subscription(self.name).on("message", handler)
        if on_gap is not None:
            subscription.on("gap", on_gap)
        return subscription.open()


class PartitionedQueue(Queue):
    """A queue in partitions. `topic` can resize it, and tell its skew; `consumers` is the group that consumes it."""

    def __init__(
        self, pubsub: PubSub, name: str, store: Store, partitions: int, strict: bool, options: Mapping[str, Any]
    ) -> None:
        super().__init__(name)
        self.guarantees = PARTITIONED
        self.topic = PartitionedTopic(pubsub, name, store=store).create(partitions, strict=strict)
        self.consumers = self.topic.group(name).create(**options)

    def send(
        self, data: bytes = b"", attributes: Mapping[str, str] | None = None, *, group: str | None = None
    ) -> Pending[str]:
        return Pending.run(lambda: _some_group(group)).then(
            lambda key: self.topic.publish_message(data, attributes, key)
        )

    def send_many(self, messages: Iterable[Message]) -> Pending[list[str]]:
        return self.topic.publish_many(messages)

    def consume(self, handler: Handler, *, on_gap: OnGap | None = None) -> Consuming:
        return self.consumers.join(handler, on_gap=on_gap)


def _no_group(group: str | None, key: str | None = None) -> str | None:
    if group is not None:
        raise InvalidArgument(f"group: this kind of queue has none, not {group!r}; see fifo_groups and partitioned")
    return key


def _some_group(group: str | None) -> str:
    if group is None:
        raise InvalidArgument("group: this kind of queue needs one for each message, not None; see standard and fifo")
    return group


STANDARD = Guarantees(
    kind="standard",
    ordering="none",
    parallel_consumers="yes, any message to any consumer",
    retry="a message that fails comes again after others; there is no order to break",
    message_groups="no",
    dead_letters="nothing waits for it",
)
FIFO = Guarantees(
    kind="fifo",
    ordering="strict, per queue",
    parallel_consumers="no: one message at a time, however many consume",
    retry="blocks the queue",
    message_groups="no",
    dead_letters="a gap, which is told in its place",
)
FIFO_GROUPS = Guarantees(
    kind="fifo_groups",
    ordering="strict, per group",
    parallel_consumers="yes, across groups",
    retry="blocks its group",
    message_groups="yes",
    dead_letters="a gap in its group, which is told in its place",
)
PARTITIONED = Guarantees(
    kind="partitioned",
    ordering="strict, per group; if `strict`, per partition",
    parallel_consumers="yes, one per partition",
    retry="blocks its group; if `strict`, its partition",
    message_groups="yes, by partition key",
    dead_letters="a gap in its group, which is told in its place",
)
