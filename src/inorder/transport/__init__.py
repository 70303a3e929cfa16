"""How a client reaches a broker.

The protocol is what a client needs and no more; every answer is a `Pending`, because another
transport has to wait for it. `Deliveries` is one consumer's side of a subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from inorder.clock import Clock
from inorder.message import Batch, Gap, Leased, Message, Recipient, Source
from inorder.metadata import BlockedKey, Metrics, SubscriptionMetadata, TopicMetadata, Unacked
from inorder.options import SubscriptionOptions, TopicOptions
from inorder.pending import Pending


class Terms(Protocol):
    """What a consumer goes by. An attribute and no call, as it is looked at whenever messages are taken."""

    options: SubscriptionOptions | None
    """Those in force, at least as new as the last `take`; another object after each change.

    None once the subscription is deleted, though there may be another one of its name.
    """


class Taken(NamedTuple):
    """What was taken, and the options by which it was: others may be in force when somebody looks at it."""

    messages: list[Message]
    options: SubscriptionOptions | None
    since_us: int  # their leases last from then on, by the clock of the transport: from afar it took time to come


class TakenLists(NamedTuple):
    """The same as columns."""

    batches: Sequence[Leased]
    options: SubscriptionOptions | None
    since_us: int


class Deliveries(Protocol):
    """One consumer of a subscription. Lease numbers mean something to this object only."""

    id_prefix: str
    ack_id_prefix: str

    @property
    def terms(self) -> Terms:
        """The same object from first to last."""

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Taken:
        """What is there now, within the limits; a gap record in its place. Never waits.

        `room` is how many messages could be held in all: from afar that many may be on their way afterwards. What has
        come from there comes whole; 0 messages ask for that alone.
        Raises `SubscriptionNotFound` once the subscription is deleted.
        """

    def lease(self, max_messages: int, max_bytes: int, alone: bool, recipient: Recipient, room: int) -> TakenLists:
        """As `take`, without an object of each message."""

    def hold(self) -> None:
        """Have nothing more come from afar until somebody asks for more."""

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        """Answer for leases, each once; the reply, once that is durable, is those that were over already."""

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        """Keep leases for so long from now; the reply is those that were over already."""

    def release(self, leases: Sequence[int], recipient: Recipient) -> Pending[None]:
        """Give back what was not begun, and be a consumer no longer."""

    def close(self) -> Pending[None]:
        """Stop being told about messages; done when what was on its way has gone back. Leases may still be answered."""


class Transport(Protocol):
    """A broker, as far as a client is concerned."""

    clock: Clock

    answers_at_once: bool
    """Whether the answer to a publish is mostly there when the call returns."""

    in_order: bool
    """Whether batches of a topic may be handed over before those before are answered.

    They are stored in that order then, and what has a key of one that failed fails as well.
    """

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]: ...

    def delete_topic(self, name: str) -> Pending[None]: ...

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]: ...

    def list_topics(self) -> Pending[list[TopicMetadata]]: ...

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]: ...

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]: ...

    def delete_subscription(self, name: str) -> Pending[None]: ...

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]: ...

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]: ...

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]: ...

    def stop_waiting(self) -> None:
        """Give up, with `Closed`, publishes that wait for room, now or later: nobody may be left to make it."""

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        """What is there now; gap records are acked and told to `on_gap`."""

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> Deliveries:
        """Become a consumer. `wake` is called, on any thread, when `take` may find something, or `options` changed.

        One that is `eager` may get from afar, ahead of each `take`, all that it has room for.
        """

    def seek(self, subscription: str, position: int | None, time: datetime | float | None) -> Pending[None]: ...

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]: ...

    def resume_key(self, subscription: str, key: str) -> Pending[None]: ...

    def skip(self, subscription: str, key: str) -> Pending[str]: ...

    def unacked(self, subscription: str) -> Pending[Unacked]: ...

    def metrics(self, subscription: str) -> Pending[Metrics]: ...

    def close(self) -> None:
        """Every later call is answered with `Closed`."""
