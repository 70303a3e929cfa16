"""A file of SQLite: nothing to install, nothing to run."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from operator import itemgetter
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from inorder.consumers.store import TABLES, Connection, Row, Trouble, Values
from inorder.errors import Closed, FailedPrecondition, InvalidArgument
from inorder.options import check_number

# The log is copied into the file every so many pages of 4 KiB; ten times as many as by default, as states are written
# again and again, and each time it is the last one of a page that counts.
CHECKPOINT_PAGES = 10_000
BUSY_SECONDS = 60  # other processes may write to the same file; their transactions are short

# What a file, a disk or another process is to blame for.
_NOT_THERE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}


_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


class SqliteStore:
    """One file, shared by whoever opens it, in this process and in others. Thread-safe.

    Commits are durable when they return. Handlers get a `sqlite3.Connection`; they neither commit nor roll back. When
    somebody else writes to the file, a transaction waits for up to `busy_seconds`.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        check_number("busy_seconds", busy_seconds, up_to=600)
        # One connection, used by one thread at a time: SQLite has one writer at a time anyway.
        self._lock = threading.RLock()
        self._closed = False
        self._owner: int | None = None  # the thread that is in a transaction
        self._process = os.getpid()
        self._database = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        try:
            _use_wal(self._database, busy_seconds)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            for table in TABLES:
                self._database.execute(table.format(bytes="BLOB", clustered="WITHOUT ROWID"))
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        if self._process != os.getpid():
            raise FailedPrecondition("this store was opened before a fork; open another one in this process")
        with self._lock:
            if self._closed:
                raise Closed("this store is closed")
            if self._owner is not None:
                raise FailedPrecondition("a transaction of this thread is under way: use its connection")
            # Immediate: who has read may be sure that nobody else writes what he is about to write.
            self._database.execute("BEGIN IMMEDIATE")
            self._owner = threading.get_ident()
            try:
                yield _SqliteConnection(self._database)
                if not self._database.in_transaction:
                    raise FailedPrecondition("the transaction was ended: handlers neither commit nor roll back")
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error says more
                    self._database.rollback()
                raise
            finally:
                self._owner = None

    def within(self, raw: Any) -> Connection:
        if raw is not self._database or not self.in_transaction():
            raise InvalidArgument(f"connection: that of a transaction of this store, under way, not {raw!r}")
        return _SqliteConnection(raw)

    def in_transaction(self) -> bool:
        return self._owner == threading.get_ident()

    def trouble(self, error: BaseException) -> Trouble | None:
        return "wait" if isinstance(error, Closed) or not_there(error) else None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._database.close()


class _SqliteConnection:
    row_lock = ""  # whoever has begun has locked everything

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def query(self, statement: str, values: Values) -> list[Row]:
        return self.raw.execute(statement, values).fetchall()

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        wanted: dict[str, Any] = {**values, "among": json.dumps([*among])}
        return self.query(statement.format(among="(SELECT value FROM json_each(:among))"), wanted)

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        # By position: SQLite asks for each name again with each row.
        positional, values_of = _positional(statement)
        return self.raw.executemany(positional, map(values_of, rows)).rowcount

    @contextmanager
    def attempt(self) -> Iterator[None]:
        self.raw.execute("SAVEPOINT inorder")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self.raw.execute("ROLLBACK TO inorder")
                self.raw.execute("RELEASE inorder")
            raise
        self.raw.execute("RELEASE inorder")


@cache
def _positional(statement: str) -> tuple[str, Callable[[Values], Any]]:
    """The same statement with parameters by position, and how to put them there; it has two or more."""
    names = _PARAMETER.findall(statement)
    return _PARAMETER.sub("?", statement), itemgetter(*names)


def not_there(error: BaseException) -> bool:
    """Whether the database cannot be used now, whatever is asked of it."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_THERE


def _use_wal(database: sqlite3.Connection, busy_seconds: float) -> None:
    """Change to the write-ahead log. Of several that do so at once, SQLite lets some fail without waiting."""
    give_up = monotonic() + busy_seconds
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not not_there(error) or monotonic() > give_up:
                raise
            sleep(0.01)
