"""PostgreSQL, or a file of SQLite, through SQLAlchemy: for handlers that speak it.

SQLAlchemy is an extra, `inorder[sql]`, and is imported when a store is opened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from inorder.consumers.sqlite_store import not_there
from inorder.consumers.store import (
    TABLES,
    Commit,
    Connection,
    Row,
    TransactionEnded,
    Trouble,
    Values,
    at_once,
    names_of,
)
from inorder.errors import Closed, FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from sqlalchemy import Engine

BYTES = {"postgresql": "BYTEA", "sqlite": "BLOB"}

# Classes of PostgreSQL's SQLSTATE. Serialization and deadlock; a row that somebody has locked:
_AGAIN = ("40001", "40P01", "55P03")
# no connection; no room, memory or connections left; shutting down; errors of its machine; a copy that is only read.
_NOT_THERE = ("08", "53", "57P", "58", "25006")

MOST_AMONG = 30_000  # at once: a statement of PostgreSQL has 65,535 parameters at most, one of SQLite 32,766

_IDLE, _BEGUN = 0, 2  # PQTRANS_IDLE and PQTRANS_INTRANS of PostgreSQL's own library


class SqlStore:
    """A database by its URL, or by an `Engine` of yours. Thread-safe.

    Handlers get a `sqlalchemy.Connection` in a transaction; they neither commit nor roll back.
    """

    def __init__(self, database: str | Engine) -> None:
        try:
            import sqlalchemy
        except ImportError:
            raise FailedPrecondition("SqlStore needs SQLAlchemy: pip install 'inorder[sql]'") from None
        self._sql = sqlalchemy
        self._own = isinstance(database, str)
        self._closed = False
        self._process = os.getpid()
        self._here = threading.local()  # the connection of the transaction that this thread is in
        self._engine = self._engine_of(database) if isinstance(database, str) else database
        if not isinstance(self._engine, sqlalchemy.Engine):
            raise InvalidArgument(f"database: a URL, or an Engine of SQLAlchemy, not {database!r}")
        self._dialect = self._engine.dialect.name
        if self._dialect not in BYTES:
            raise InvalidArgument(f"database: one of {', '.join(BYTES)}, not {self._dialect!r}")
        # Connections to SQLite may be bound to a thread: ours are not, unless the URL says so.
        self._any_thread = self._dialect != "sqlite" or (
            self._own and "check_same_thread" not in self._engine.url.query
        )
        if isinstance(self._engine.pool, sqlalchemy.pool.SingletonThreadPool):
            raise InvalidArgument("database: in memory, each thread would have one of its own; use a file")
        try:
            self._prepare()
        except sqlalchemy.exc.DBAPIError as error:
            self.close()  # with the connections that it may have by now
            raise FailedPrecondition(f"store: the database cannot be used: {error.orig}") from None

    def _engine_of(self, url: str) -> Engine:
        example = "database: a URL such as 'postgresql+psycopg://user@host:5432/database'"
        try:
            # A connection that the server has ended meanwhile is noticed before it is used.
            return self._sql.create_engine(url, pool_pre_ping=True)
        except self._sql.exc.ArgumentError as error:
            raise InvalidArgument(f"{example}: {error}") from None
        except ValueError:  # it names what may be a part of a password
            raise InvalidArgument(f"{example}: its port, or an option behind '?', cannot be read") from None
        except ImportError as error:
            told = f"store: the driver of the database is not installed: {error}"
            if url.startswith("postgresql"):
                told += "; that of 'postgresql+psycopg://…' is in `pip install 'inorder[postgresql]'`"
            raise FailedPrecondition(told) from None

    def _prepare(self) -> None:
        with self.transaction() as connection:
            if getattr(connection.raw.connection.dbapi_connection, "autocommit", False) is True:
                raise InvalidArgument("database: an engine with transactions, not with isolation_level='AUTOCOMMIT'")
            if self._dialect == "postgresql":  # two that create a table at once trip over each other
                connection.query("SELECT pg_advisory_xact_lock(hashtext('inorder'))", {})
            for table in TABLES:
                clustered = "WITHOUT ROWID" if self._dialect == "sqlite" else ""
                connection.raw.exec_driver_sql(table.format(bytes=BYTES[self._dialect], clustered=clustered))

    @contextmanager
    def transaction(self, commit: Commit = at_once) -> Iterator[Connection]:
        if self._process != os.getpid():
            raise FailedPrecondition("this store was opened before a fork; open another one in this process")
        if self._closed:
            raise Closed("this store is closed")
        if self.in_transaction():
            raise FailedPrecondition("a transaction of this thread is under way: use its connection")
        with ExitStack() as begun:
            connection = begun.enter_context(self._engine.connect())
            begun.callback(self._let_go, connection)
            begun.enter_context(connection.begin())
            self._here.connection = connection
            try:
                if self._dialect == "sqlite":  # or what is read may have changed before it is written
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    connection.exec_driver_sql("SAVEPOINT inorder_begun")
                yield self._wrapped(connection)
                if self._dialect == "sqlite":
                    self._check_not_ended(connection)
            finally:
                self._here.connection = None
            if self._any_thread:
                commit(begun.pop_all().close)

    def _let_go(self, connection: Any) -> None:
        if self._closed and self._own:  # meanwhile, and there is no pool any more that would do so
            connection.invalidate()

    def _check_not_ended(self, connection: Any) -> None:
        """The driver begins another transaction when SQLite has rolled one back, but that does not have this mark."""
        try:
            connection.exec_driver_sql("RELEASE inorder_begun")
        except self._sql.exc.OperationalError as error:
            if self.trouble(error) is not None:
                raise
            raise TransactionEnded from error

    def within(self, raw: Any) -> Connection:
        """Also in a transaction of your own, on whatever connection to the same database."""
        if not isinstance(raw, self._sql.Connection) or not raw.in_transaction():
            raise InvalidArgument(f"connection: a sqlalchemy.Connection in a transaction, not {raw!r}")
        return self._wrapped(raw)

    def in_transaction(self) -> bool:
        return getattr(self._here, "connection", None) is not None

    def _wrapped(self, raw: Any) -> Connection:
        return _SqlConnection(raw, self._sql, self._dialect == "postgresql")

    def trouble(self, error: BaseException) -> Trouble | None:
        errors = self._sql.exc
        if isinstance(error, Closed | errors.TimeoutError):
            return "wait"
        if not isinstance(error, errors.DBAPIError):
            return None
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if state in _AGAIN:
            return "again"
        gone = error.connection_invalidated or (error.orig is not None and not_there(error.orig))
        if state is None:  # it did not come from the server: so there is none
            gone = gone or (self._dialect == "postgresql" and isinstance(error, errors.OperationalError))
        return "wait" if gone or (state or "").startswith(_NOT_THERE) else None

    def close(self) -> None:
        self._closed = True
        if self._own:
            self._engine.dispose(close=self._process == os.getpid())  # or the parent's connections would end


class _SqlConnection:
    def __init__(self, raw: Any, sql: Any, locks_rows: bool) -> None:
        self.raw = raw
        self.row_lock = "FOR UPDATE" if locks_rows else ""
        self._is_sqlite = not locks_rows
        self._sql = sql

    def query(self, statement: str, values: Values) -> list[Row]:
        return self.raw.execute(self._sql.text(statement), values).fetchall()  # type: ignore[no-any-return]

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        text = self._sql.text(statement.format(among=":among"))
        text = text.bindparams(self._sql.bindparam("among", expanding=True))
        wanted = sorted(among)  # all lock what they find in about one order
        rows: list[Row] = []
        for begin in range(0, len(wanted), MOST_AMONG):
            rows += self.raw.execute(text, {**values, "among": wanted[begin : begin + MOST_AMONG]}).fetchall()
        return rows

    def write(self, statement: str, rows: Sequence[Row]) -> int:
        text, names = self._sql.text(statement), names_of(statement)
        named = [dict(zip(names, row, strict=True)) for row in rows]
        if self.raw.dialect.supports_sane_multi_rowcount:
            return self.raw.execute(text, named).rowcount  # type: ignore[no-any-return]
        return sum(self.raw.execute(text, row).rowcount for row in named)

    def as_of(self) -> None:
        """What others commit meanwhile cannot be told."""

    def until(self) -> None:
        """As `as_of`."""

    def check(self) -> None:
        # SQLAlchemy does not know what a statement may do; drivers do.
        driver = self.raw.connection.dbapi_connection
        info = getattr(driver, "info", None)
        begun = driver.in_transaction if self._is_sqlite else getattr(info, "transaction_status", _BEGUN) != _IDLE
        if not begun:
            raise TransactionEnded

    def attempt(self) -> AbstractContextManager[None]:
        return self.raw.begin_nested()  # type: ignore[no-any-return]
