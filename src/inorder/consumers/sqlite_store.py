"""A file of SQLite: nothing to install, nothing to run."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inorder.consumers.store import TABLES, Connection, Row, Values
from inorder.errors import Closed

BUSY_SECONDS = 60  # other processes may write to the same file; their transactions are short


class SqliteStore:
    """One file, shared by whoever opens it, in this process and in others. Thread-safe.

    Commits are durable when they return. Handlers get a `sqlite3.Connection`; they neither commit nor roll back.
    """

    def __init__(self, path: str | Path) -> None:
        # One connection, used by one thread at a time: SQLite has one writer at a time anyway.
        self._lock = threading.RLock()
        self._closed = False
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        for table in TABLES:
            self._database.execute(table.format(bytes="BLOB"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._lock:
            if self._closed:
                raise Closed("this store is closed")
            # Immediate: who has read may be sure that nobody else writes what he is about to write.
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteConnection(self._database)
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._database.close()


class _SqliteConnection:
    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def query(self, statement: str, values: Values) -> list[Row]:
        return self.raw.execute(statement, values).fetchall()

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        wanted: dict[str, Any] = {**values, "among": json.dumps([*among])}
        return self.query(statement.format(among="(SELECT value FROM json_each(:among))"), wanted)

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        return self.raw.executemany(statement, rows).rowcount
