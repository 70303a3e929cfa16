"""The ordering patterns behind a subscription, with their state in a database."""

from inorder.consumers.consumer import Applied, Consumer
from inorder.consumers.cut_over import MovingTopic
from inorder.consumers.forwarder import Forwarder
from inorder.consumers.forwarding import (
    Origin,
    Progress,
    Refused,
    forwarding_subscription,
    is_barrier,
    origin_of,
    read_forwarded,
)
from inorder.consumers.shadow import Difference, Shadow
from inorder.consumers.sql_store import SqlStore
from inorder.consumers.sqlite_store import SqliteStore
from inorder.consumers.store import Conflict, Store

__all__ = [
    "Applied",
    "Conflict",
    "Consumer",
    "Difference",
    "Forwarder",
    "MovingTopic",
    "Origin",
    "Progress",
    "Refused",
    "Shadow",
    "SqlStore",
    "SqliteStore",
    "Store",
    "forwarding_subscription",
    "is_barrier",
    "origin_of",
    "read_forwarded",
]
