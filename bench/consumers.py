"""Consumers with their state in SQLite, against a bare upsert of the same rows in batches of the same size.

The bare one writes the rows that ours has written, of the events and of the states, byte by byte and batch by batch,
from lists in memory, by two statements and a commit, with a sync, per batch. It reads nothing and decides nothing. Ours
has the messages from a broker, reads the states, takes the step, calls a handler that writes its rows in one go, and
acks. Another line is against half of that work: the rows of the events alone, which is what a consumer does that
trusts their order.

The last lines say how much of the difference is the price of Python: one loop, written by hand, that has the messages
as columns and keeps the newest number of each key. It writes the same rows, and does nothing else: it knows no lease,
no other consumer, no earlier life and no failure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

from bench.patterns import FAR
from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import PATIENCE_SECONDS, WrongResult, check_acked, random_pairs
from inorder import Message, Pending, PubSub, QueueLimits, Subscription
from inorder.consumers import Applied, Consumer, SqliteStore
from inorder.consumers.store import TABLES, Connection, names_of
from inorder.patterns import LastWriteWins, Resequencer, VersionGate

KEYS = 1_000
Tuple = tuple[Any, ...]  # key, number, data
LATEST = "version gate, latest only, disordered"
WANTED = Target(0.5)  # of the bare upsert: what the promise may cost

CREATE = "CREATE TABLE rows (entity TEXT PRIMARY KEY, number INTEGER NOT NULL, data BLOB NOT NULL)"
UPSERT = """INSERT INTO rows VALUES (?, ?, ?)
    ON CONFLICT (entity) DO UPDATE SET number = excluded.number, data = excluded.data"""


UPSERT_STATE = """INSERT INTO inorder_states (version, deliverer, fence, state, wake_at_us, consumer, entity)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version,
    deliverer = excluded.deliverer, fence = excluded.fence, state = excluded.state, wake_at_us = excluded.wake_at_us"""


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(10_000, 4_000)
    for batch in (100, 1_000):
        rows = []
        for name, (make, disordered) in SUBJECTS.items():
            events = _events(count, FAR // 10 if disordered else 0)
            written = _written(make, events, batch)
            rates = interleaved(
                {
                    "ours": partial(_consumed, make, events, batch),
                    "bare": partial(_upserted, written, count, with_states=True),
                    "rows": partial(_upserted, written, count, with_states=False),
                },
                effort,
            )
            rows.append(Row(name, rates["ours"], rates["bare"], WANTED))
            rows.append(Row(f"{name}, against the rows alone", rates["ours"], rates["rows"], WANTED))
        rows += _hand_rows(count, batch, effort)
        yield Table(
            f"Consumers with their state in SQLite: {count:,} events of {KEYS:,} keys, in batches of {batch:,}, "
            "against a bare upsert",
            "events/s",
            rows,
        )


def _hand_rows(count: int, batch: int, effort: Effort) -> list[Row]:
    """What a loop by hand leaves of the bare upsert, ours of that loop, and what it gains by commits beside."""
    make, _ = SUBJECTS[LATEST]
    events = _events(count, FAR // 10)
    rates = interleaved(
        {
            "ours": partial(_consumed, make, events, batch),
            "at once": partial(_consumed, make, events, batch, AtOnce),
            "hand": partial(_by_hand, events, batch),
            "bare": partial(_upserted, _written(make, events, batch), count, with_states=True),
        },
        effort,
    )
    return [
        Row("a loop by hand, latest only, disordered", rates["hand"], rates["bare"]),
        Row(f"{LATEST}, against the loop by hand", rates["ours"], rates["hand"]),
        Row(f"{LATEST}, against itself with each commit before the next list", rates["ours"], rates["at once"]),
    ]


def _events(count: int, far: int) -> list[Tuple]:
    """Key, number from 1, data; up to so many places from where they belong."""
    numbers: dict[str, int] = {}
    events: list[Tuple] = []
    for key, data in random_pairs(count, KEYS):
        numbers[key] = numbers.get(key, 0) + 1
        events.append((key, numbers[key], data))
    random = Random(count)
    places = [(place + (random.randrange(far) if far else 0), place) for place in range(count)]
    return [events[place] for _, place in sorted(places)]


class Reader:
    """Reads events, and tells when it has read the last one."""

    def __init__(self, count: int, writes: bool) -> None:
        self.left = count
        self.writes = writes
        self.done = Event()

    def __call__(self, message: Message) -> Tuple:
        self.left -= 1
        if not self.left:
            self.done.set()
        key: Any = message.ordering_key
        number = int(message.attributes["n"])
        return (key, number, "producer", message.data) if self.writes else (key, number)


class AtOnce(SqliteStore):
    """A store that leaves no commit to others: each list is committed before the next one is read."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:  # type: ignore[override]
        with super().transaction() as connection:
            yield connection


def _rows(events: Sequence[Applied]) -> list[Tuple]:
    return [(event.key, event.fields[1], event.data) for event in events]


def _apply_all(events: Sequence[Applied], connection: sqlite3.Connection) -> None:
    connection.executemany(UPSERT, _rows(events))


def _consumed(
    make: Callable[[], Any],
    events: Sequence[Tuple],
    batch: int,
    kind: type[SqliteStore] = SqliteStore,
    apply_all: Callable[[Sequence[Applied], sqlite3.Connection], None] = _apply_all,
) -> float:
    """Events a second, from an open consumer to the last ack."""
    pattern = make()
    read = Reader(len(events), isinstance(pattern, LastWriteWins))
    with (
        TemporaryDirectory(prefix="inorder-bench-") as folder,
        _topic_of(events) as subscription,
        closing(kind(Path(folder, "store.db"))) as store,
    ):
        with store.transaction() as connection:
            connection.raw.execute(CREATE)
        start = perf_counter()
        with Consumer(subscription, pattern, store=store, read=read, apply_all=apply_all, batch=batch):
            if not read.done.wait(PATIENCE_SECONDS):
                raise WrongResult("events were lost")
        elapsed = perf_counter() - start  # closed: the last transaction is committed, and answered
        check_acked(subscription.metrics().result())
        with store.transaction() as connection:
            _check(connection.raw, events)
    return len(events) / elapsed


@contextmanager
def _topic_of(events: Sequence[Tuple]) -> Iterator[Subscription]:
    """A subscription that waits with all of them."""
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("events").create().result()
        unlimited = QueueLimits(max_messages=None, max_bytes=None)
        subscription = topic.subscription("worker").create(queue_limits=unlimited).result()
        topic.publish_many([Message(data, {"n": str(number)}, key) for key, number, data in events]).result()
        yield subscription


def _by_hand(events: Sequence[Tuple], batch: int) -> float:
    """Events a second of a loop that keeps the newest number of each key, and is sure that nothing ever goes wrong."""
    read = Reader(len(events), writes=False)
    newest: dict[str, int] = {}
    with (
        TemporaryDirectory(prefix="inorder-bench-") as folder,
        _topic_of(events) as subscription,
        closing(_tables(Path(folder, "store.db"))) as connection,
    ):
        start = perf_counter()
        lists = subscription.columns(batch)
        for leased in lists:
            states: dict[str, int] = {}
            applied: list[Applied] = []
            for message in leased.messages(NOBODY):
                key, number = fields = read(message)
                if number > newest.get(key, 0):
                    newest[key] = states[key] = number
                    attributes = message.attributes
                    applied.append(Applied(key, fields, "released", message.id, message.data, attributes))
            connection.execute("BEGIN IMMEDIATE")
            _apply_all(applied, connection)
            connection.executemany(
                UPSERT_STATE,
                [
                    (1, "broker", 0, f'["versioning/1",{number},[],null,[]]'.encode(), None, "worker", key)
                    for key, number in sorted(states.items())
                ],
            )
            connection.execute("COMMIT")
            lists.ack(leased)
            if read.done.is_set():
                break
        elapsed = perf_counter() - start
        check_acked(subscription.metrics().result())
        _check(connection, events)
    return len(events) / elapsed


class Nobody:
    """Whom the loop by hand has its messages from: it reads them, and answers by lists."""

    id_prefix = ack_id_prefix = ""

    def ack(self, message: Message, answer: Pending[None]) -> None:
        raise AssertionError("answered by lists")

    nack = ack

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        raise AssertionError("answered by lists")


NOBODY = Nobody()


class Written(NamedTuple):
    """What one transaction has written."""

    rows: list[Tuple]
    states: list[Tuple]
    forgotten: list[Tuple]


def _written(make: Callable[[], Any], events: Sequence[Tuple], batch: int) -> list[Written]:
    """What ours writes of these events, batch by batch."""
    batches: list[Written] = []
    wakes: dict[str, Any] = {}

    def note(statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """The rows of a statement as the bare upsert takes them: whole."""
        names = names_of(statement)
        for row in rows:
            values = dict(zip(names, row, strict=True))
            if statement.startswith("DELETE"):
                batches[-1].forgotten.append((values["consumer"], values["entity"]))
                continue
            wakes[values["entity"]] = values.get("wake_at_us", wakes.get(values["entity"]))
            first = tuple(values[name] for name in ("version", "deliverer", "fence", "state"))
            batches[-1].states.append((*first, wakes[values["entity"]], values["consumer"], values["entity"]))

    class Noted(SqliteStore):
        @contextmanager
        def transaction(self) -> Iterator[Connection]:
            with super().transaction() as connection:
                write = connection.write

                def written(statement: str, rows: Sequence[Sequence[Any]]) -> int:
                    note(statement, rows)
                    return write(statement, rows)

                connection.write = written  # type: ignore[method-assign]
                batches.append(Written([], [], []))
                yield connection

    def apply_all(applied: Sequence[Applied], connection: sqlite3.Connection) -> None:
        batches[-1].rows.extend(_rows(applied))
        _apply_all(applied, connection)

    _consumed(make, events, batch, Noted, apply_all)
    return [written for written in batches if written.rows or written.states]


def _upserted(batches: Sequence[Written], count: int, *, with_states: bool) -> float:
    with (
        TemporaryDirectory(prefix="inorder-bench-") as folder,
        closing(_tables(Path(folder, "rows.db"))) as connection,
    ):
        start = perf_counter()
        for rows, states, forgotten in batches:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(UPSERT, rows)
            if with_states:
                connection.executemany(UPSERT_STATE, states)
                connection.executemany("DELETE FROM inorder_states WHERE consumer = ? AND entity = ?", forgotten)
            connection.execute("COMMIT")
        return count / (perf_counter() - start)


def _tables(path: Path) -> sqlite3.Connection:
    """A database like that of a store, with the table of rows."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(CREATE)
    for table in TABLES:
        connection.execute(table.format(bytes="BLOB", clustered="WITHOUT ROWID"))
    return connection


def _check(connection: sqlite3.Connection, events: Sequence[Tuple]) -> None:
    """Every key is at its last event."""
    last: dict[str, int] = {}
    for key, number, _ in events:
        last[key] = max(last.get(key, 0), number)
    if dict(connection.execute("SELECT entity, number FROM rows")) != last:
        raise WrongResult("a key is not at its last event")


SUBJECTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "resequencer, in order": (partial(Resequencer, when_full="gap"), False),
    "resequencer, disordered": (partial(Resequencer, when_full="gap"), True),
    "version gate, in order": (partial(VersionGate, when_full="gap"), False),
    LATEST: (partial(VersionGate, mode="latest_only"), True),
    "last write wins, disordered": (LastWriteWins, True),
}
