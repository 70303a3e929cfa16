"""What consumers remember, in the database that their handlers write to, and in the same transaction.

The statements are the same for every database; a `Store` knows how one of them is spoken to. What is read is locked
until the transaction ends, if the database can do that. And whoever writes a state says which version of it he has
read: if that is not there any more, nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from inorder.errors import Aborted, FailedPrecondition, InvalidArgument

Row = Sequence[Any]
Values = Mapping[str, Any]
Trouble = Literal["again", "wait"]  # somebody was faster; the database is not there
Commit = Callable[[Callable[[], None]], object]  # calls what it gets, which ends a transaction, now or soon

TABLES = (
    """CREATE TABLE IF NOT EXISTS inorder_states (
        consumer TEXT NOT NULL,
        entity TEXT NOT NULL,
        version BIGINT NOT NULL,
        deliverer TEXT NOT NULL,
        fence BIGINT NOT NULL,
        state {bytes} NOT NULL,
        wake_at_us BIGINT,
        PRIMARY KEY (consumer, entity)
    ) {clustered}""",
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
    """CREATE TABLE IF NOT EXISTS inorder_marks (
        consumer TEXT NOT NULL,
        message_id TEXT NOT NULL,
        handler TEXT NOT NULL,
        since_us BIGINT NOT NULL,
        PRIMARY KEY (consumer, message_id, handler)
    ) {clustered}""",
    """CREATE TABLE IF NOT EXISTS inorder_sequences (
        name TEXT NOT NULL,
        entity TEXT NOT NULL,
        upcoming BIGINT NOT NULL,
        PRIMARY KEY (name, entity)
    ) {clustered}""",
)


_NONE: Mapping[str, Any] = MappingProxyType({})
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


@cache
def names_of(statement: str) -> tuple[str, ...]:
    """The names of the parameters of a statement, as they come."""
    return tuple(_PARAMETER.findall(statement))


@cache
def positional(statement: str) -> str:
    """The same statement with parameters by position."""
    return _PARAMETER.sub("?", statement)


class Conflict(Aborted):
    """Somebody else has written what was read before, or has got the message by now: nothing was written."""

    def __init__(self, consumer: str, entities: Collection[str]) -> None:
        shown = ", ".join(repr(entity) for entity in sorted(entities)[:3])
        more = f" and {len(entities) - 3} more" if len(entities) > 3 else ""
        super().__init__(f"consumer {consumer!r}: another consumer has changed {shown}{more} in the meantime")


class TransactionEnded(FailedPrecondition):
    """The transaction of a handler is over before its end; what was written in it may be gone."""

    def __init__(self) -> None:
        super().__init__(
            "the transaction was ended: handlers neither commit nor roll back, "
            "nor use what makes SQLite roll back (ON CONFLICT ROLLBACK, OR ROLLBACK, RAISE(ROLLBACK))"
        )


class Connection(Protocol):
    """One transaction. `raw` is the database's own connection, for the handlers."""

    raw: Any
    row_lock: str  # what to write behind a query to lock what it finds

    def query(self, statement: str, values: Values) -> list[Row]: ...

    def query_in(self, statement: str, values: Values, among: Collection[str]) -> list[Row]:
        """The same with `{among}` in the statement, which stands for these strings, however many."""

    def write(self, statement: str, rows: Sequence[Row]) -> int:
        """Once for each row, whose values come as the statement names them, each name once.

        Returns how many rows of the database that changed.
        """

    def as_of(self) -> Hashable | None:
        """What the database is like: equal to what the last transaction of this store was `until`, if nobody else has
        committed anything since. None if that cannot be told."""

    def until(self) -> Hashable | None:
        """What `as_of` of the next transaction will be, if this one writes nothing more, and nobody else before it."""

    def check(self) -> None:
        """`TransactionEnded` if that is so and can be told now; else it is told when it would be committed."""

    def attempt(self) -> AbstractContextManager[None]:
        """What is raised inside undoes what was written inside, and nothing else."""


def at_once(commit: Callable[[], None]) -> None:
    """As most transactions are committed: whoever comes to the end of one waits for that."""
    commit()


class Store(Protocol):
    """A database. Thread-safe."""

    def transaction(self, commit: Commit = at_once) -> AbstractContextManager[Connection]:
        """Commits at its end, unless something was raised. The tables are there.

        The last step, if it may be done by another thread, is left to `commit`; the next transaction of the same
        connection waits for it.
        """

    def within(self, raw: Any) -> Connection:
        """A transaction that is under way, by the connection that handlers get."""

    def in_transaction(self) -> bool:
        """Whether this thread is in a transaction of this store."""

    def trouble(self, error: BaseException) -> Trouble | None:
        """What to do about an error of the database that is nobody's fault; None: it is somebody's."""

    def close(self) -> None: ...


def check_store(store: object) -> None:
    """Refuse what no transaction can be begun with."""
    if not callable(getattr(store, "transaction", None)):
        raise InvalidArgument(f"store: a SqliteStore, a SqlStore or one like them, not {store!r}")


def check_consumer_name(name: object) -> str:
    """Refuse a name that no row could be found by again."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgument(f"name: a string that is not empty and has no NUL, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InvalidArgument(f"name: a string that can be stored: {error}") from None
    return name


class Stored(NamedTuple):
    """What is known of an entity."""

    version: int  # 1 when it is written first, and one more with each time
    deliverer: str  # who gave the fence: a number means nothing beside that of another broker
    fence: int  # the number of the delivery for which it was written
    state: bytes
    wake_at_us: int | None = None


class Writes(NamedTuple):
    """Rows of states, as the statements want them that write them."""

    new: Sequence[Row]
    known: Sequence[Row]
    waking: Sequence[Row]  # known, and their time to wake up is another one
    forgotten: Sequence[Row]
    entities: Collection[str]


def writes(
    consumer: str,
    changes: Mapping[str, Stored],
    forget: Mapping[str, int] = _NONE,
    before: Mapping[str, Stored] = _NONE,
) -> Writes:
    """To write entities, each as the version after the one that was read, and forget those that are at these versions.

    Of entities that are in `before`, as they were read, a time to wake up that stays is not written: most have none,
    and to write it costs a fifth.
    """
    new: list[Row] = []
    known: list[Row] = []
    waking: list[Row] = []
    for entity in sorted(changes):
        version, deliverer, fence, state, wake_at_us = row = changes[entity]
        if version == 1:
            new.append((*row, consumer, entity))
        elif entity in before and before[entity].wake_at_us == wake_at_us:
            known.append((version, deliverer, fence, state, consumer, entity, version - 1))
        else:
            waking.append((*row, consumer, entity, version - 1))
    forgotten = [(consumer, entity, forget[entity]) for entity in sorted(forget)]
    return Writes(new, known, waking, forgotten, changes.keys() | forget.keys())


class States:
    """The states of one consumer within a transaction."""

    def __init__(self, connection: Connection, consumer: str) -> None:
        self._connection = connection
        self._consumer = consumer
        self.quarantined: list[Row] = []  # in this transaction

    def load(self, entities: Collection[str]) -> dict[str, Stored]:
        """What is known of entities; they are locked, in one order, so that no two wait for each other."""
        if not entities:
            return {}
        rows = self._connection.query_in(
            f"""SELECT version, deliverer, fence, state, wake_at_us, entity FROM inorder_states
            WHERE consumer = :consumer AND entity IN {{among}} ORDER BY entity {self._connection.row_lock}""",
            {"consumer": self._consumer},
            entities,
        )
        return {row[5]: Stored._make(row[:5]) for row in rows}

    def entities(self) -> list[str]:
        """All that something is known of."""
        rows = self._connection.query(
            "SELECT entity FROM inorder_states WHERE consumer = :consumer", {"consumer": self._consumer}
        )
        return [entity for (entity,) in rows]

    def save(
        self, changes: Mapping[str, Stored], forget: Mapping[str, int] = _NONE, before: Mapping[str, Stored] = _NONE
    ) -> None:
        """Write what `writes` makes of this."""
        self.write(writes(self._consumer, changes, forget, before))

    def write(self, writes: Writes) -> None:
        """All of it, or `Conflict` is raised; then the transaction must be given up."""
        written = self._write(
            """INSERT INTO inorder_states (version, deliverer, fence, state, wake_at_us, consumer, entity)
            VALUES (:version, :deliverer, :fence, :state, :wake_at_us, :consumer, :entity) ON CONFLICT DO NOTHING""",
            writes.new,
        )
        columns = "version = :version, deliverer = :deliverer, fence = :fence, state = :state"
        condition = "WHERE consumer = :consumer AND entity = :entity AND version = :before"
        written += self._write(f"UPDATE inorder_states SET {columns} {condition}", writes.known)
        written += self._write(
            f"UPDATE inorder_states SET {columns}, wake_at_us = :wake_at_us {condition}", writes.waking
        )
        written += self._write(f"DELETE FROM inorder_states {condition}", writes.forgotten)
        if written != len(writes.entities):
            raise Conflict(self._consumer, writes.entities)

    def _write(self, statement: str, rows: Sequence[Row]) -> int:
        return self._connection.write(statement, rows) if rows else 0

    def due(self, now_us: int, after: tuple[int, str], limit: int) -> list[tuple[int, str]]:
        """When and who: entities whose time to wake up has come, in this order, those behind `after`."""
        rows = self._connection.query(
            """SELECT wake_at_us, entity FROM inorder_states
            WHERE consumer = :consumer AND wake_at_us <= :now_us
            AND (wake_at_us > :wake_at_us OR wake_at_us = :wake_at_us AND entity > :entity)
            ORDER BY wake_at_us, entity LIMIT :limit""",
            {
                "consumer": self._consumer,
                "now_us": now_us,
                "wake_at_us": after[0],
                "entity": after[1],
                "limit": limit,
            },
        )
        return [(wake_at_us, entity) for wake_at_us, entity in rows]

    def asleep(self, until_us: int, after: str, limit: int) -> list[str]:
        """Entities that are to wake up after that time, or never, in their order, those behind `after`."""
        rows = self._connection.query(
            """SELECT entity FROM inorder_states WHERE consumer = :consumer AND entity > :after
            AND (wake_at_us IS NULL OR wake_at_us > :until_us) ORDER BY entity LIMIT :limit""",
            {"consumer": self._consumer, "after": after, "until_us": until_us, "limit": limit},
        )
        return [entity for (entity,) in rows]

    def next_wake_us(self, now_us: int) -> int | None:
        """When the next one is to wake up, after now."""
        rows = self._connection.query(
            "SELECT MIN(wake_at_us) FROM inorder_states WHERE consumer = :consumer AND wake_at_us > :now_us",
            {"consumer": self._consumer, "now_us": now_us},
        )
        return rows[0][0]  # type: ignore[no-any-return]

    def quarantine(self, row: Row) -> None:
        """Keep a message that is not applied, for somebody to look at; once.

        The row is its id, entity, why, since when, data and attributes.
        """
        self._write(
            """INSERT INTO inorder_quarantine (consumer, message_id, entity, reason, since_us, data, attributes)
            VALUES (:consumer, :message_id, :entity, :reason, :since_us, :data, :attributes) ON CONFLICT DO NOTHING""",
            [(self._consumer, *row)],
        )
        self.quarantined.append(row)
