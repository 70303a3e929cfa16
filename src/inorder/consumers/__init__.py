"""The ordering patterns behind a subscription, with their state in a database."""

from inorder.consumers.consumer import Consumer
from inorder.consumers.dispatching import Dispatcher
from inorder.consumers.events import Applied
from inorder.consumers.moving.cut_over import MovingTopic
from inorder.consumers.moving.forwarder import Forwarder
from inorder.consumers.moving.forwarding import (
    Origin,
    Progress,
    Refused,
    forwarding_subscription,
    is_barrier,
    origin_of,
    read_forwarded,
)
from inorder.consumers.moving.shadow import Difference, Shadow
from inorder.consumers.partitions import Group, Member, PartitionedTopic, SlotWait
from inorder.consumers.queues import Guarantees, PartitionedQueue, Queue
from inorder.consumers.sequences import Sequences
from inorder.consumers.sql_store import SqlStore
from inorder.consumers.sqlite_store import SqliteStore
from inorder.consumers.store import Conflict, Store

__all__ = [
    "Applied",
    "Conflict",
    "Consumer",
    "Difference",
    "Dispatcher",
    "Forwarder",
    "Group",
    "Guarantees",
    "Member",
    "MovingTopic",
    "Origin",
    "PartitionedQueue",
    "PartitionedTopic",
    "Progress",
    "Queue",
    "Refused",
    "Sequences",
    "Shadow",
    "SlotWait",
    "SqlStore",
    "SqliteStore",
    "Store",
    "forwarding_subscription",
    "is_barrier",
    "origin_of",
    "read_forwarded",
]
