"""A member's place in its group: what it has, what it must give back. In the store, so in any process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from inorder.clock import MICROSECONDS, Clock
from inorder.consumers.partitions.assignment import Roster
from inorder.consumers.partitions.table import TRIES, Table
from inorder.consumers.store import Conflict, States, Store, Stored


class Place(NamedTuple):
    """What a member may work on. It must stop with `to_give`, and then say so by `give`."""

    keeps: frozenset[int]
    to_give: frozenset[int]


class Membership:
    """One member of a group. Has no thread: `beat` must be called well within each session."""

    def __init__(
        self, store: Store, table: Table, group: str, member: str, clock: Clock, session_seconds: float
    ) -> None:
        self.member = member
        self._store = store
        self._table = table
        self._row = f"group {group}"
        self._clock = clock
        self._session_us = round(session_seconds * MICROSECONDS)

    def beat(self) -> Place:
        """Say that this member is alive, and take what is free and should be its own."""
        live = self._table.current().live
        now_us = self._clock.now_us()
        roster = self._change(lambda before: before.heard(self.member, live, now_us, now_us + self._session_us))
        to_give = roster.to_give(self.member, live)
        return Place(frozenset(roster.held_by(self.member) - to_give), frozenset(to_give))

    def give(self, partitions: Collection[int]) -> None:
        """This member has stopped with these partitions."""
        self._change(lambda before: before.given(self.member, partitions))

    def leave(self) -> None:
        """This member has stopped with all of them."""
        self._change(lambda before: before.without(self.member))

    def roster(self) -> Roster:
        return self._change(lambda before: before)

    def _change(self, step: Callable[[Roster], Roster]) -> Roster:
        for _ in range(TRIES - 1):
            try:
                return self._try(step)
            except Conflict:
                continue
        return self._try(step)

    def _try(self, step: Callable[[Roster], Roster]) -> Roster:
        with self._store.transaction() as connection:
            states = States(connection, self._table.row)
            found = states.load([self._row]).get(self._row)
            before = Roster() if found is None else Roster.load(bytes(found.state))  # as in `Table.load`
            after = step(before)
            if after != before:
                version = 1 if found is None else found.version + 1
                states.save({self._row: Stored(version, "", 0, after.dump())})
            return after
