"""What the tests of this folder stand on: a database, a broker, events in JSON, and handlers that write them down."""

import faulthandler
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from inorder import Message, PubSub, RetryPolicy, Subscription
from inorder.broker import MessageQueue
from inorder.clock import SYSTEM_CLOCK, Clock
from inorder.consumers import Applied, Consumer, Sequences, SqliteStore, SqlStore, Store

PATIENCE_SECONDS = 30
SOON = RetryPolicy(minimum_backoff=0.01, maximum_backoff=0.3)

TABLES = (
    "CREATE TABLE IF NOT EXISTS effects (n {serial} PRIMARY KEY, entity TEXT, event TEXT, fate TEXT)",
    "CREATE TABLE IF NOT EXISTS totals (entity TEXT PRIMARY KEY, total BIGINT, seen TEXT)",
)


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, [one.name for one in threading.enumerate()]
        time.sleep(0.001)


def close_in_a_fork(of_the_parent: Store | Sequences) -> None:
    child = os.fork()
    if not child:
        try:
            faulthandler.dump_traceback_later(5, exit=True)  # at a lock that nobody releases
            of_the_parent.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def run(raw: Any, statement: str, **values: Any) -> list[Any]:
    """A statement on whatever connection a handler gets; the rows, if it has any."""
    if isinstance(raw, sqlite3.Connection):
        return raw.execute(statement, values).fetchall()
    import sqlalchemy

    result = raw.execute(sqlalchemy.text(statement), values)
    return [tuple(row) for row in result] if result.returns_rows else []


@dataclass
class Database:
    """A database that several stores may be opened on; `place` says to another process where it is."""

    place: str
    opened: list[Store] = field(default_factory=list)

    def store(self, **options: Any) -> Store:
        store = open_store(self.place, **options)
        self.opened.append(store)
        return store

    def read(self, statement: str, **values: Any) -> list[Any]:
        with closing(open_store(self.place)) as store, store.transaction() as connection:
            return run(connection.raw, statement, **values)

    def effects(self, entity: str | None = None) -> list[Any]:
        """The events that were applied, in order."""
        rows = self.read("SELECT entity, event FROM effects ORDER BY n")
        return [tuple(json.loads(event)) for name, event in rows if entity in (None, name)]

    def close(self) -> None:
        for store in self.opened:
            store.close()


def open_store(place: str, **options: Any) -> Store:
    store: Store = SqlStore(place) if "://" in place else SqliteStore(place, **options)
    with store.transaction() as connection:
        if place.startswith("postgresql"):
            run(connection.raw, "SELECT pg_advisory_xact_lock(42)")
        for table in TABLES:
            run(connection.raw, table.format(serial="BIGSERIAL" if place.startswith("postgresql") else "INTEGER"))
    return store


def read(message: Message) -> tuple[Any, ...]:
    """The event in a message: a JSON array."""
    return tuple(json.loads(message.data))


def write_down(event: Applied, raw: Any) -> None:
    """The handler of most tests."""
    run(
        raw,
        "INSERT INTO effects (entity, event, fate) VALUES (:entity, :event, :fate)",
        entity=event.key,
        event=json.dumps(event.fields),
        fate=event.fate,
    )


class Desk:
    """A broker with one topic and one subscription, and consumers that write into a database."""

    def __init__(self, database: Database, clock: Clock | None = None, **options: Any) -> None:
        self.database = database
        self.clock = clock or SYSTEM_CLOCK
        self.queue = MessageQueue(clock=self.clock)
        self.pubsub = PubSub(self.queue)
        self.topic = self.pubsub.topic("events").create().result()
        self.subscription: Subscription = self.topic.subscription("worker").create(**options).result()
        self.errors: list[BaseException] = []

    def publish(self, events: Iterable[tuple[Any, ...]], ordering_key: str | None = None) -> None:
        messages = [Message(json.dumps(event).encode(), {"n": "1"}, ordering_key or event[0]) for event in events]
        self.topic.publish_many(messages).result()

    def consumer(self, pattern: Any, **options: Any) -> Consumer[Any]:
        given: dict[str, Any] = {"read": read, "apply": write_down, "store": None, "on_error": self.note, **options}
        given["store"] = given["store"] or self.database.store()
        return Consumer(self.pubsub.subscription("worker"), pattern, **given)

    def note(self, error: BaseException, _: object) -> None:
        self.errors.append(error)

    @property
    def backlog(self) -> int:
        return self.subscription.metrics().result().backlog_messages

    def drained(self) -> None:
        """Wait until every message is acked."""
        wait_until(lambda: not self.backlog)

    def consume(self, pattern: Any, **options: Any) -> None:
        """Everything that is there, by one consumer, which is gone then."""
        with self.consumer(pattern, **options):
            self.drained()


@contextmanager
def desk(database: Database, clock: Clock | None = None, **options: Any) -> Iterator[Desk]:
    made = Desk(database, clock, **options)
    try:
        yield made
    finally:
        made.pubsub.close().result(PATIENCE_SECONDS)
