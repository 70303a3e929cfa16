"""Any database that SQLAlchemy knows and that has `ON CONFLICT`: PostgreSQL above all.

SQLAlchemy is an extra, `inorder[sql]`, and is imported when a store is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inorder.consumers.store import TABLES, Connection, Row, Values
from inorder.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from sqlalchemy import Engine

BYTES = {"postgresql": "BYTEA", "sqlite": "BLOB"}


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
        self._engine = sqlalchemy.create_engine(database) if isinstance(database, str) else database
        dialect = self._engine.dialect.name
        if dialect not in BYTES:
            raise InvalidArgument(f"database: one of {', '.join(BYTES)}, not {dialect!r}")
        with self._engine.begin() as connection:
            if dialect == "postgresql":  # two that create a table at once trip over each other
                connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(hashtext('inorder'))"))
            for table in TABLES:
                connection.execute(sqlalchemy.text(table.format(bytes=BYTES[dialect])))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield _SqlConnection(connection, self._sql)

    def close(self) -> None:
        if self._own:
            self._engine.dispose()


class _SqlConnection:
    def __init__(self, raw: Any, sql: Any) -> None:
        self.raw = raw
        self._sql = sql

    def query(self, statement: str, values: Values) -> list[Row]:
        return self.raw.execute(self._sql.text(statement), values).fetchall()  # type: ignore[no-any-return]

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        text = self._sql.text(statement.format(among=":among"))
        text = text.bindparams(self._sql.bindparam("among", expanding=True))
        return self.raw.execute(text, {**values, "among": [*among]}).fetchall()  # type: ignore[no-any-return]

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        return self.raw.execute(self._sql.text(statement), list(rows)).rowcount  # type: ignore[no-any-return]
