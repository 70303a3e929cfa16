"""A file of SQLite: nothing to install, nothing to run."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from inorder.consumers.store import (
    TABLES,
    Commit,
    Connection,
    Row,
    TransactionEnded,
    Trouble,
    Values,
    at_once,
    positional,
)
from inorder.errors import Closed, FailedPrecondition, InvalidArgument
from inorder.options import check_number

# The log is copied into the file when it has so many times the pages of the file, within limits: states are written
# again and again, and of each page only the last one is copied; but a log that still grows takes longer to sync.
CHECKPOINT_TIMES = 4
LEAST_CHECKPOINT_PAGES = 1_000
MOST_CHECKPOINT_PAGES = 10_000
BETWEEN_LOOKS = 100  # commits, at how long the file is
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
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}


class SqliteStore:
    """One file, shared by whoever opens it, in this process and in others. Thread-safe.

    Commits are durable when they return. Handlers get a `sqlite3.Connection`; they neither commit nor roll back. When
    somebody else writes to the file, a transaction waits for up to `busy_seconds`. `":memory:"` is for tests: all of it
    ends with the store.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        check_number("busy_seconds", busy_seconds, up_to=600)
        if not os.fspath(path):  # for SQLite a file by chance, which it deletes when it is closed
            raise InvalidArgument("path: that of a file, not ''")
        # One connection, used by one thread at a time: SQLite has one writer at a time anyway.
        self._lock = threading.RLock()
        self._committed = threading.Event()  # or undone: no other thread is about to end a transaction
        self._committed.set()
        self._closed = False
        self._owner: int | None = None  # the thread that is in a transaction
        self._commits = 0
        self._process = os.getpid()
        try:
            self._database = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise FailedPrecondition(f"store: {str(path)!r} cannot be opened: {error}") from None
        try:
            _use_wal(self._database, busy_seconds)
            self._database.execute("PRAGMA synchronous = FULL")
            for table in TABLES:
                self._database.execute(table.format(bytes="BLOB", clustered="WITHOUT ROWID"))
            self._limit_log()
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def transaction(self, commit: Commit = at_once) -> Iterator[Connection]:
        if self._process != os.getpid():
            raise FailedPrecondition("this store was opened before a fork; open another one in this process")
        with self._lock:
            if self._closed:
                raise Closed("this store is closed")
            if self._owner is not None:
                raise FailedPrecondition("a transaction of this thread is under way: use its connection")
            self._committed.wait()
            try:
                # Immediate: who has read may be sure that nobody else writes what he is about to write. It may wait for
                # others, and Ctrl-C meanwhile is noticed when it has begun: so that, too, is undone.
                self._database.execute("BEGIN IMMEDIATE")
                self._owner = threading.get_ident()
                yield _SqliteConnection(self._database)
                if not self._database.in_transaction:
                    raise TransactionEnded
                self._owner = None
                self._committed.clear()
                commit(self._commit)
            except BaseException:
                self._undo()
                raise
            finally:
                self._owner = None

    def _commit(self) -> None:
        try:
            self._database.commit()
            self._commits += 1
            if not self._commits % BETWEEN_LOOKS:
                with suppress(sqlite3.Error):  # what was committed is committed, whatever becomes of this
                    self._limit_log()
        except BaseException:
            self._undo()
            raise
        self._committed.set()

    def _undo(self) -> None:
        try:
            with suppress(sqlite3.Error):  # the first error says more
                self._database.rollback()
        finally:
            self._committed.set()

    def _limit_log(self) -> None:
        pages = CHECKPOINT_TIMES * self._database.execute("PRAGMA page_count").fetchone()[0]
        pages = min(max(pages, LEAST_CHECKPOINT_PAGES), MOST_CHECKPOINT_PAGES)
        self._database.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    def within(self, raw: Any) -> Connection:
        if raw is not self._database or not self.in_transaction():
            raise InvalidArgument(f"connection: that of a transaction of this store, under way, not {raw!r}")
        return _SqliteConnection(self._database)

    def in_transaction(self) -> bool:
        return self._owner == threading.get_ident()

    def trouble(self, error: BaseException) -> Trouble | None:
        return "wait" if isinstance(error, Closed) or not_there(error) else None

    def close(self) -> None:
        if self._process != os.getpid():  # it is the parent's, and so is who has the lock
            return
        with self._lock:
            self._committed.wait()
            self._closed = True
            self._database.close()


class _SqliteConnection:
    row_lock = ""  # whoever has begun has locked everything

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self._changes = raw.total_changes  # of rows, by this store, before this transaction
        self._as_of: tuple[int, int] | None = None

    def query(self, statement: str, values: Values) -> list[Row]:
        return self.raw.execute(statement, values).fetchall()

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        wanted: dict[str, Any] = {**values, "among": json.dumps([*among])}
        return self.query(statement.format(among="(SELECT value FROM json_each(:among))"), wanted)

    def write(self, statement: str, rows: Sequence[Row]) -> int:
        self.check()
        # By position: SQLite asks for each name again with each row.
        return self.raw.executemany(positional(statement), rows).rowcount

    def as_of(self) -> tuple[int, int]:
        if self._as_of is None:
            # This changes when another connection commits, of whatever process, and not when this one does.
            self._as_of = self.raw.execute("PRAGMA data_version").fetchone()[0], self._changes
        return self._as_of

    def until(self) -> Hashable:
        version, _ = self.as_of()
        return version, self.raw.total_changes

    def check(self) -> None:
        # Outside of a transaction each statement is committed by itself: a state, and not its effect that was undone.
        if not self.raw.in_transaction:
            raise TransactionEnded

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
