"""What has happened: facts that replaying gives back the same state.

One event covers a whole batch. Leases are no events: a crash forgets them, and their messages come
again. `leases` in an event says which of them it ended; a journal has no use for that part.

The two kinds that come with every message are plain tuples, which their first item tells apart; the others
have names for their parts (measured: with names, publishing, pulling and acking one message took a sixth longer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from inorder.core.producers import Attempt
from inorder.message import Batch, Record
from inorder.options import SubscriptionOptions, TopicOptions

T = TypeVar("T")

# Kinds of events. All others begin with a name, which equals no number.
PUBLISHED: Final = 1
ACKED: Final = 2

# A batch takes the next positions of its topic. Full subscriptions miss what is refused. Topic, records, their size,
# refused (subscription → positions), the same messages as they were handed in (None: these are dead letters).
Published: TypeAlias = tuple[Literal[1], str, list[Record], int, Mapping[str, frozenset[int]], Batch | None]

# Messages are done. Subscription, leases, records.
Acked: TypeAlias = tuple[Literal[2], str, Sequence[int], Sequence[Record]]


class TopicCreated(NamedTuple):
    topic: str
    serial: int  # never used again, unlike the name
    id_prefix: str  # of its message ids, unique over topics and restarts
    options: TopicOptions
    now_us: int


class TopicDeleted(NamedTuple):
    topic: str


class TopicUpdated(NamedTuple):
    topic: str
    options: TopicOptions


class SubscriptionCreated(NamedTuple):
    subscription: str
    topic: str
    serial: int
    options: SubscriptionOptions
    now_us: int


class SubscriptionUpdated(NamedTuple):
    subscription: str
    options: SubscriptionOptions


class SubscriptionDetached(NamedTuple):
    """On request: its topic is still there, but it gets nothing of it any more."""

    subscription: str


class SubscriptionDeleted(NamedTuple):
    subscription: str


class Written(NamedTuple):
    """The batch before this one is part `part` of `epoch` of a writer: neither it nor an earlier one comes again."""

    topic: str
    writer: str
    epoch: int
    part: int


class ProducerOpened(NamedTuple):
    """A producer of this name begins to count anew, and its earlier epochs are over."""

    topic: str
    producer: str
    epoch: int
    now_us: int


class Attempted(NamedTuple):
    """The batch before this one is what a producer attempted: it is answered so, however often it comes again."""

    topic: str
    attempt: Attempt
    first: int  # position
    messages: int
    now_us: int


class Failure(NamedTuple):
    """What is known of a message that was out and came back."""

    times: int  # that it has failed
    first_out_us: int  # when it was delivered first


class Return(NamedTuple):
    """What comes back of one key (or one message without a key), in order, and until when it waits."""

    key: str  # "": there is no order to keep
    leases: Sequence[int]
    records: Sequence[Record]  # a gap record stands where a message was given up
    failures: Mapping[int, Failure]  # by position
    until_us: int | None  # 0: free at once; None: the key is parked
    waits_for: int  # the position of the message for which the key waits, if it does


class Failed(NamedTuple):
    """Deliveries that ended in a nack or in silence."""

    subscription: str
    returns: Sequence[Return]
    failed: int  # deliveries, those that were dead-lettered included
    spared: int  # how many of them should have been dead-lettered but could not
    expired: bool
    now_us: int


class DeadLettered(NamedTuple):
    """These were published to the dead-letter topic, in the same step, and are gone from here."""

    subscription: str
    records: Sequence[Record]
    ordered: bool  # whether there is order to keep here, and so a gap in the key of each


class KeyResumed(NamedTuple):
    subscription: str
    key: str


class HeadSkipped(NamedTuple):
    subscription: str
    key: str


class Sought(NamedTuple):
    """All from `replay_from` on comes again, and before it what was not done from `position` on; no more.

    What was not visible yet comes, or was missed, as if it were published afterwards, from `position` on.
    """

    subscription: str
    position: int
    replay_from: int
    visible: int


class SnapshotCreated(NamedTuple):
    """What a subscription has done is remembered: all else, and all that comes, is kept while the snapshot lives."""

    snapshot: str
    subscription: str
    topic: str
    done: Sequence[tuple[int, int]]  # ranges of positions, ascending
    expires_us: int
    annotations: str
    now_us: int


class SnapshotUpdated(NamedTuple):
    snapshot: str
    expires_us: int
    annotations: str


class SnapshotDeleted(NamedTuple):
    snapshot: str


class SoughtSnapshot(NamedTuple):
    """What was not done when the snapshot was made comes again, and all that came after; no more.

    What was not visible yet comes, or was missed, as if it were published afterwards.
    """

    subscription: str
    snapshot: str
    visible: int


class Elapsed(NamedTuple):
    """Time has passed: backoffs that are over are over, what is older than the retention is gone."""

    subscription: str
    now_us: int


Event: TypeAlias = (
    TopicCreated
    | TopicUpdated
    | TopicDeleted
    | SubscriptionCreated
    | SubscriptionUpdated
    | SubscriptionDetached
    | SubscriptionDeleted
    | Published
    | Written
    | ProducerOpened
    | Attempted
    | Acked
    | Failed
    | DeadLettered
    | KeyResumed
    | HeadSkipped
    | Sought
    | SnapshotCreated
    | SnapshotUpdated
    | SnapshotDeleted
    | SoughtSnapshot
    | Elapsed
)


# What a command comes to: the answer, what will be true once it is applied, and what a person should
# know (nothing was lost, but something needs care). A plain tuple: there is one for every call.
Decision: TypeAlias = tuple[T, Sequence[Event], Sequence[str]]
