"""The words of a forwarder: what it adds to a message, what it reports, and the subscription that it reads.

A forwarded message carries where it came from, in three attributes; `origin_of` reads them. They are what makes a
repetition recognisable, here by the forwarder itself and in any consumer of the target by `read_forwarded`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.clock import MICROSECONDS
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.message import Message
from inorder.options import FlowControl, QueueLimits
from inorder.pending import Pending

SOURCE_TOPIC: Final = "inorder_source_topic"
SOURCE_ID: Final = "inorder_source_id"
SOURCE_POSITION: Final = "inorder_source_position"
BARRIER: Final = "inorder_barrier"  # of a message that is no event: what came before it has been forwarded

AFTER_ALL_FORWARDED: Final = 2**62  # a topic has no position as high

ForwarderState = Literal["copying", "retrying", "draining", "drained", "stopped", "closed"]


class Origin(NamedTuple):
    """Where a forwarded message came from."""

    topic: str
    id: str
    position: int


def origin_of(message: Message) -> Origin | None:
    """What the forwarder has written on a message; None for one that was published here."""
    attributes = message.attributes
    position = attributes.get(SOURCE_POSITION, "")
    if SOURCE_TOPIC not in attributes or SOURCE_ID not in attributes or not position.isdecimal():
        return None
    return Origin(attributes[SOURCE_TOPIC], attributes[SOURCE_ID], int(position))


def with_origin(message: Message, topic: str) -> Message:
    """The message to publish at the target."""
    attributes = message.attributes
    attributes[SOURCE_TOPIC] = topic
    attributes[SOURCE_ID] = message.id
    attributes[SOURCE_POSITION] = str(message.position)
    return Message(message.data, attributes, message.ordering_key)


def read_forwarded(message: Message) -> tuple[str, int]:
    """`read` of a `Consumer` at the target that drops repetitions, with `VersionGate(mode="latest_only")`.

    The event is (key, number). Numbers of a key grow in the order of the source; what was published at the target
    itself, after the switch, comes behind all that was forwarded. A message without a key is an entity of its own.
    """
    origin = origin_of(message)
    if origin is None:
        return message.ordering_key or message.id, AFTER_ALL_FORWARDED + message.position
    return message.ordering_key or origin.id, origin.position + 1


def is_barrier(message: Message) -> bool:
    """Whether a message of the source is no event but a mark of a key's switch; consumers of the source ack it."""
    return BARRIER in message.attributes


def forwarding_subscription(topic: Topic, name: str, **options: Any) -> Pending[Subscription]:
    """Create the subscription that a forwarder reads: keys in order, many of a key at once, nothing dropped.

    `options` are those of a subscription, and go before these. To forward what was published before, let the topic
    retain it and call `seek`.
    """
    return topic.subscription(name).create(
        **{
            "enable_message_ordering": True,
            "max_outstanding_per_key": 10_000,  # or a key with a long backlog would go one by one
            "flow_control": FlowControl(max_messages=1_000_000),
            "queue_limits": QueueLimits(max_messages=None, max_bytes=None),  # the target may be away for long
            **options,
        }
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a forwarder is. Counts begin when it is opened."""

    state: ForwarderState
    forwarded: int  # published at the target and answered
    repeated: int  # that the target had already: from before a crash, or an answer was lost
    refused: int  # by the target, for good
    missing: int  # that the source itself could not deliver, and told so by gap records
    lag: int  # messages that are unacked at the source
    keys: int  # of which something was forwarded
    rate: float  # messages forwarded per second
    error: BaseException | None  # why it is stopped, or retrying


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the target does not take, now or ever."""

    message: Message
    error: BaseException
    fate: Literal["stopped", "skipped", "dead_lettered", "found"]  # the last one in a dry run


@dataclass(slots=True)
class Tally:
    """What a forwarder counts."""

    opened_us: int
    forwarded: int = 0
    repeated: int = 0
    refused: int = 0
    missing: int = 0
    keys: set[str] = field(default_factory=set)

    def note_keys(self, messages: Iterable[Message]) -> None:
        self.keys.update(message.ordering_key for message in messages if message.ordering_key)

    def progress(self, state: ForwarderState, lag: int, now_us: int, error: BaseException | None) -> Progress:
        seconds = (now_us - self.opened_us) / MICROSECONDS
        rate = self.forwarded / seconds if seconds else 0.0
        counts = (self.forwarded, self.repeated, self.refused, self.missing)
        return Progress(state, *counts, lag, len(self.keys), rate, error)


def check_source(source: Subscription) -> str:
    """Refuse a subscription that would lose or reorder; the name of its topic."""
    metadata = source.metadata().result()
    if not metadata.options.enable_message_ordering:
        raise InvalidArgument(
            f"subscription {source.name!r} does not keep keys in order, so the target could not either: "
            "create it with enable_message_ordering=True, or by forwarding_subscription"
        )
    limits = metadata.options.queue_limits
    if limits and limits.when_full == "drop" and (limits.max_messages or limits.max_bytes):
        raise InvalidArgument(
            f"subscription {source.name!r} drops messages when it is full, as it may be while the target is away: "
            "set queue_limits without limits, or with when_full='block', or use forwarding_subscription"
        )
    return metadata.topic


def refuse_circle(message: Message) -> None:
    """Ids are unique over topics and restarts: what comes from this very topic went round."""
    origin = origin_of(message)
    if origin and origin.id.removesuffix(str(origin.position)) == message.id.removesuffix(str(message.position)):
        raise FailedPrecondition(
            f"message {message.id!r} was forwarded from topic {origin.topic!r} and has come back to it: "
            "the target of this forwarder is its source, or is forwarded to it"
        )
