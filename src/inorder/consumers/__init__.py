"""The ordering patterns behind a subscription, with their state in a database."""

from inorder.consumers.consumer import Consumer
from inorder.consumers.dispatching import Dispatcher
from inorder.consumers.events import Applied
from inorder.consumers.sequences import Sequences
from inorder.consumers.sql_store import SqlStore
from inorder.consumers.sqlite_store import SqliteStore
from inorder.consumers.store import Conflict, Store

__all__ = ["Applied", "Conflict", "Consumer", "Dispatcher", "Sequences", "SqlStore", "SqliteStore", "Store"]
