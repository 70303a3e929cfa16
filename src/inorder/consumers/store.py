"""What consumers remember, in the database that their handlers write to, and in the same transaction.

The statements are the same for every database; a `Store` knows how one of them is spoken to. Whoever writes a
state says which version of it he has read: if that is not there any more, nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from inorder.errors import Aborted

Row = Sequence[Any]
Values = Mapping[str, Any]

TABLES = (
    """CREATE TABLE IF NOT EXISTS inorder_states (
        consumer TEXT NOT NULL,
        entity TEXT NOT NULL,
        version BIGINT NOT NULL,
        fence BIGINT NOT NULL,
        state {bytes} NOT NULL,
        wake_at_us BIGINT,
        PRIMARY KEY (consumer, entity)
    )""",
    "CREATE INDEX IF NOT EXISTS inorder_wakes ON inorder_states (consumer, wake_at_us) WHERE wake_at_us IS NOT NULL",
    """CREATE TABLE IF NOT EXISTS inorder_quarantine (
        consumer TEXT NOT NULL,
        message_id TEXT NOT NULL,
        entity TEXT NOT NULL,
        reason TEXT NOT NULL,
        since_us BIGINT NOT NULL,
        data {bytes} NOT NULL,
        attributes TEXT NOT NULL,
        PRIMARY KEY (consumer, message_id)
    )""",
)


class Conflict(Aborted):
    """Somebody else has written what was read before, or has a newer delivery: nothing was written."""

    def __init__(self, consumer: str, entities: Collection[str]) -> None:
        shown = ", ".join(repr(entity) for entity in sorted(entities)[:3])
        more = f" and {len(entities) - 3} more" if len(entities) > 3 else ""
        super().__init__(f"consumer {consumer!r}: another consumer has changed {shown}{more} in the meantime")


class Connection(Protocol):
    """One transaction. `raw` is the database's own connection, for the handlers."""

    raw: Any

    def query(self, statement: str, values: Values) -> list[Row]: ...

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        """The same with `{among}` in the statement, which stands for these strings, however many."""

    def write(self, statement: str, rows: Sequence[Values]) -> int:
        """Once for each row; returns how many rows of the database that changed."""


class Store(Protocol):
    """A database. Thread-safe."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Commits at its end, unless something was raised. The tables are there."""

    def close(self) -> None: ...


class Stored(NamedTuple):
    """What is known of an entity."""

    version: int
    fence: int
    state: bytes


class Change(NamedTuple):
    """What is to be known of it from now on."""

    before: int | None  # the version that was read; None if there was nothing
    fence: int  # the number of the delivery for which it is written
    state: bytes | None  # None: forget it
    wake_at_us: int | None


class States:
    """The states of one consumer within a transaction."""

    def __init__(self, connection: Connection, consumer: str) -> None:
        self._connection = connection
        self._consumer = consumer

    def load(self, entities: Collection[str]) -> dict[str, Stored]:
        rows = self._connection.query_in(
            "SELECT entity, version, fence, state FROM inorder_states WHERE consumer = :consumer AND entity IN {among}",
            {"consumer": self._consumer},
            entities,
        )
        return {entity: Stored(version, fence, bytes(state)) for entity, version, fence, state in rows}

    def save(self, changes: Mapping[str, Change]) -> None:
        """Write them all, or raise `Conflict`; then the transaction must be given up."""
        rows = [
            self._row(*item) for item in sorted(changes.items())
        ]  # in one order, so that no two wait for each other
        new = [row for row in rows if row["before"] is None and row["state"] is not None]
        known = [row for row in rows if row["before"] is not None]
        written = self._write(
            """INSERT INTO inorder_states (consumer, entity, version, fence, state, wake_at_us)
            VALUES (:consumer, :entity, :version, :fence, :state, :wake_at_us) ON CONFLICT DO NOTHING""",
            new,
        )
        condition = "WHERE consumer = :consumer AND entity = :entity AND version = :before AND fence <= :fence"
        written += self._write(
            f"""UPDATE inorder_states SET version = :version, fence = :fence, state = :state,
            wake_at_us = :wake_at_us {condition}""",
            [row for row in known if row["state"] is not None],
        )
        written += self._write(
            f"DELETE FROM inorder_states {condition}", [row for row in known if row["state"] is None]
        )
        if written != len(new) + len(known):
            raise Conflict(self._consumer, changes.keys())

    def _row(self, entity: str, change: Change) -> dict[str, Any]:
        # Not simply one more: an entity that was forgotten and came back must not have a version it had before.
        version = max(change.fence, (change.before or 0) + 1)
        return {"consumer": self._consumer, "entity": entity, "version": version, **change._asdict()}

    def _write(self, statement: str, rows: Sequence[Values]) -> int:
        return self._connection.write(statement, rows) if rows else 0

    def due(self, now_us: int, limit: int) -> list[str]:
        """Entities whose time to wake up has come, the longest waiting first."""
        rows = self._connection.query(
            """SELECT entity FROM inorder_states WHERE consumer = :consumer AND wake_at_us <= :now_us
            ORDER BY wake_at_us LIMIT :limit""",
            {"consumer": self._consumer, "now_us": now_us, "limit": limit},
        )
        return [entity for (entity,) in rows]

    def next_wake_us(self) -> int | None:
        """When the next one is to wake up."""
        rows = self._connection.query(
            "SELECT MIN(wake_at_us) FROM inorder_states WHERE consumer = :consumer AND wake_at_us IS NOT NULL",
            {"consumer": self._consumer},
        )
        return rows[0][0]  # type: ignore[no-any-return]

    def quarantine(self, row: Values) -> None:
        """Keep a message that is not applied, for somebody to look at; once."""
        self._write(
            """INSERT INTO inorder_quarantine (consumer, message_id, entity, reason, since_us, data, attributes)
            VALUES (:consumer, :message_id, :entity, :reason, :since_us, :data, :attributes) ON CONFLICT DO NOTHING""",
            [{"consumer": self._consumer, **row}],
        )
