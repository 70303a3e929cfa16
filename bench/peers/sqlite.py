"""A queue in a table of SQLite: write-ahead log, a sync at every commit, one owner, as ours has.

Messages that are out are marked in the table, or remembered in memory. The second is what our
leases are, and saves a commit; the first is what most people write, and lets processes share.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers import NewQueue, Queue
from bench.workload import Pair

# The primary key is the order, and what is out is at its front and little: no other index helps.
SETUP = """
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, data BLOB NOT NULL, out INTEGER NOT NULL DEFAULT 0
    );
"""
INSERT = "INSERT INTO messages (key, data) VALUES (?, ?)"
SELECT = "SELECT id, key, data FROM messages WHERE id > ? ORDER BY id LIMIT ?"
MARK = """
    UPDATE messages SET out = 1
    WHERE id IN (SELECT id FROM messages WHERE out = 0 ORDER BY id LIMIT ?)
    RETURNING id, key, data
"""
DELETE = "DELETE FROM messages WHERE id = ?"


class Remembering:
    """What is out is known by the last id that was taken."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last = 0
        self._out: list[tuple[int]] = []

    def publish(self, messages: Sequence[Pair]) -> None:
        self._commit(INSERT, messages)

    def take(self, count: int) -> list[bytes]:
        rows = self._next(count)
        self._out = [(row[0],) for row in rows]
        return [row[2] for row in rows]

    def ack(self) -> None:
        self._commit(DELETE, self._out)

    def _next(self, count: int) -> list[tuple[int, str, bytes]]:
        rows = self._connection.execute(SELECT, (self._last, count)).fetchall()
        self._last = rows[-1][0] if rows else self._last
        return rows

    def _commit(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")


class Marking(Remembering):
    """What is out is marked in the table."""

    def _next(self, count: int) -> list[tuple[int, str, bytes]]:
        return sorted(self._connection.execute(MARK, (count,)).fetchall())


@contextmanager
def started(kind: type[Remembering]) -> Iterator[NewQueue]:
    with TemporaryDirectory(prefix="inorder-bench-") as folder:

        @contextmanager
        def new() -> Iterator[Queue]:
            path = Path(folder, "queue.db")
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.executescript(SETUP)
                yield kind(connection)
            path.unlink()

        yield new
