"""What a broker tells about its topics, subscriptions and keys: plain values, true when they were made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from inorder.options import SubscriptionOptions, TopicOptions


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic, and how much was published to it."""

    name: str
    created: datetime
    options: TopicOptions
    published: int  # messages so far

    @property
    def next_position(self) -> int:
        """Of the message that comes next: the first has 0, and none is left out."""
        return self.published


@dataclass(frozen=True, slots=True)
class SubscriptionMetadata:
    """A subscription, and whether anything will still come."""

    name: str
    topic: str
    created: datetime
    options: SubscriptionOptions
    detached: bool  # its topic was deleted, or it was detached on request: nothing will come any more
    topic_deleted: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    """What a subscription of the topic had acked once, to which any of them can go back until it expires."""

    name: str
    topic: str
    created: datetime
    expires: datetime
    annotations: str  # kept with it for whoever wants to


@dataclass(slots=True)
class Counters:
    """What has happened on a subscription since it was created (or since the process started)."""

    delivered: int = 0  # leases given, redeliveries included
    redelivered: int = 0  # leases of a message that had one before
    acked: int = 0
    nacked: int = 0
    expired: int = 0  # leases that ran out
    dead_lettered: int = 0
    dropped: int = 0  # refused because the queue was full
    outdated: int = 0  # removed because they were older than the retention
    skipped: int = 0  # given up by `skip`
    dead_letter_failures: int = 0  # the dead-letter topic was missing or refused; nothing was lost


@dataclass(frozen=True, slots=True)
class Metrics:
    """A subscription's counters and how it stands now."""

    counters: Counters
    backlog_messages: int  # unacked, those that are out included
    backlog_bytes: int
    outstanding_messages: int
    outstanding_bytes: int
    oldest_unacked_seconds: float  # 0 with an empty backlog
    blocked_keys: int
    parked_keys: int
    head_of_line_seconds: float  # of the key that has been blocked longest


@dataclass(slots=True)
class CommitCounters:
    """What a broker has written to its journal since it was opened."""

    commits: int = 0  # groups of turns, each written in one go
    written_bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0  # of all of them
    slowest_sync_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnackedKey:
    """What a subscription has still to ack of one key, gap records included."""

    ordering_key: str  # "" for what has none
    messages: int
    position: int  # of the first


@dataclass(frozen=True, slots=True)
class Unacked:
    """What a subscription has still to ack, by key: of all below `known_to`; what lies beyond waits in the topic."""

    keys: tuple[UnackedKey, ...]
    known_to: int


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key whose first message keeps others, or itself, from being delivered."""

    ordering_key: str
    reason: str  # "out" (being handled), "backoff" (waits for its retry) or "parked"
    waiting: int  # messages that have no turn before this is over
    position: int  # of the first message
    failures: int  # of the first message
    age_seconds: float  # since the first message was published
    head_of_line_seconds: float  # since the first message was first delivered
