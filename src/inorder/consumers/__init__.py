"""The ordering patterns behind a subscription, with their state in a database."""

from inorder.consumers.consumer import Applied, Consumer
from inorder.consumers.partitions import Group, Member, PartitionedTopic, SlotWait
from inorder.consumers.queues import Guarantees, PartitionedQueue, Queue
from inorder.consumers.sql_store import SqlStore
from inorder.consumers.sqlite_store import SqliteStore
from inorder.consumers.store import Conflict, Store

__all__ = [
    "Applied",
    "Conflict",
    "Consumer",
    "Group",
    "Guarantees",
    "Member",
    "PartitionedQueue",
    "PartitionedTopic",
    "Queue",
    "SlotWait",
    "SqlStore",
    "SqliteStore",
    "Store",
]
