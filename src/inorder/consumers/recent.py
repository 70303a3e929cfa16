"""The states that a consumer has read and written last, so that it need not read or decode them again."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from inorder.consumers.store import Connection, States, Stored
from inorder.patterns.step import Pattern

S = TypeVar("S")

_state = attrgetter("state")

MAX_ENTITIES = 10_000
MAX_BYTES = 2_000  # of a state, as of one with some messages parked; a larger one is read again


class StoredPattern(Pattern[S], Protocol[S]):
    """A pattern whose state can be stored."""

    def dump(self, state: S) -> bytes: ...

    def load(self, data: bytes) -> S: ...


class Recent(Generic[S]):
    """Rows of states, and what they mean, by entity. Not thread-safe.

    What our last transaction has left is trusted without a look, if the database can tell that nobody else has
    committed since. Else it is read, and decoded if its bytes are not what they were. What is planned by `rows` and
    `states` before a transaction holds if `stamp` is still the same when that has read them.
    """

    def __init__(self, pattern: StoredPattern[S]) -> None:
        self._pattern = pattern
        self.rows: dict[str, Stored] = {}
        self.states: dict[str, S] = {}
        self._trusted: set[str] = set()
        self._lent: Collection[str] = ()  # to a transaction of which nobody knows yet that it was committed
        self._as_of: Hashable | None = None
        self._news: tuple[Mapping[str, Stored], Mapping[str, S | None]] | None = None
        self.stamp = object()  # another one with every change of what is known

    def read(self, entities: Collection[str], states: States, connection: Connection) -> None:
        """Have `rows` and `states` of these entities as they are in the database, in this transaction."""
        self.catch_up()
        as_of = connection.as_of()
        if as_of is None or as_of != self._as_of:
            self._trusted.clear()
        self._as_of = None  # it is not certain yet how this transaction ends
        for (
            entity
        ) in self._lent:  # the last one was undone: so is what it wrote, and what handlers did to parked events
            self.stamp = object()
            self._forget(entity)
        self._lent = entities
        if len(self.rows) > MAX_ENTITIES:
            self.stamp = object()
            self._trusted.clear()
            self.rows.clear()
            self.states.clear()
        if self._trusted.issuperset(entities):
            return
        unsure = [entity for entity in entities if entity not in self._trusted]
        found = states.load(unsure)
        for entity in unsure:
            row, before = found.get(entity), self.rows.get(entity)
            if row == before:
                continue
            self.stamp = object()
            if row is None:
                self._forget(entity)
                continue
            if before is None or before.state != row.state:
                self.states[entity] = self._pattern.load(bytes(row.state))  # a driver may have its own kind of bytes
            self.rows[entity] = row
        self._trusted.update(found)

    def wrote(self, rows: Mapping[str, Stored], states: Mapping[str, S | None], until: Hashable | None) -> None:
        """The transaction is about to be committed, with these rows, and the states that they mean; None: forgotten.

        They are known when one has caught up with them, which may be while it is being committed.
        """
        self._news = rows, states
        self._as_of = until

    def committed(self) -> None:
        """And so it was."""
        self._lent = ()

    def catch_up(self) -> None:
        """Have what was written last among what is known."""
        if self._news is None:
            return
        (rows, states), self._news = self._news, None
        self.stamp = object()
        self.rows.update(rows)
        self.states.update(states)  # type: ignore[arg-type]  # what is None goes again at once
        self._trusted.update(rows)
        forgotten = states.keys() - rows.keys() if len(states) > len(rows) else ()
        largest = max(map(len, map(_state, rows.values())), default=0)  # in C: mostly none is too large
        large = [entity for entity, row in rows.items() if len(row.state) > MAX_BYTES] if largest > MAX_BYTES else ()
        for entity in (*forgotten, *large):
            self._forget(entity)

    def _forget(self, entity: str) -> None:
        self.rows.pop(entity, None)
        self.states.pop(entity, None)
        self._trusted.discard(entity)
