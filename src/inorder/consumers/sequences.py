"""Sequence numbers for producers: per entity, each given out once, whoever asks, in whatever process.

A number is on disk as given out before anybody has it, so no crash gives it out again. What a crash can do is lose
numbers that nobody has used: a hole, which a consumer waits for until its gap timeout. Without holes there is a price:
the number is taken in the transaction of whatever it is for, and whoever wants the next one waits for its end.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from inorder.consumers.store import Connection, Store, check_consumer_name, check_store
from inorder.errors import Closed, FailedPrecondition, InvalidArgument
from inorder.message import check_ordering_key
from inorder.options import check_flag, check_whole

MAX_ENTITIES = 10_000  # of which numbers are held ready; those of the others are given back

_TAKE = """INSERT INTO inorder_sequences (name, entity, upcoming) VALUES (:name, :entity, :end)
    ON CONFLICT (name, entity) DO UPDATE SET upcoming = inorder_sequences.upcoming + :count RETURNING upcoming"""
_GIVE_BACK = """UPDATE inorder_sequences SET upcoming = :upcoming
    WHERE name = :name AND entity = :entity AND upcoming = :end"""


class Sequences:
    """Numbers for the events of entities, from `first` on. Thread-safe.

    `next(entity)` takes numbers from the database in blocks of `block`, each in a transaction of its own, and holds
    the rest of a block ready for this process. Several processes that number one entity at a time each have a block of
    their own: then numbers are unique, and increase in each process, but not by time. Let one process at a time number
    an entity, or let `block` be 1. `close` gives back what is not used; a crash leaves a hole.

    With `gapless=True`, `next(entity, connection)` takes a number within your transaction, whose connection this is: a
    rollback gives it back, and until the end others that want a number of this entity wait. So numbers have no holes,
    and are in the order of the commits.
    """

    def __init__(
        self, store: Store, *, name: str = "events", block: int = 1, first: int = 1, gapless: bool = False
    ) -> None:
        check_whole("block", block)
        check_whole("first", first, at_least=0)
        check_flag("gapless", gapless)
        if gapless and block != 1:
            raise InvalidArgument(f"block: of {block} numbers some may be lost, so it cannot be gapless")
        check_store(store)
        self.name = check_consumer_name(name)
        self._store = store
        self._block = block
        self._first = first
        self._gapless = gapless
        self._process = os.getpid()
        self._closed = False
        self._ready: OrderedDict[str, range] = OrderedDict()  # what is left of each block, the newest last
        self._lock = threading.Lock()  # of what is ready; never held while the database is asked
        self._taking = threading.Lock()  # two blocks at once could be used in the wrong order

    def next(self, entity: str, connection: Any = None) -> int:
        """The next number of an entity. If gapless, `connection` is that of your transaction."""
        check_ordering_key(entity)
        if self._gapless:
            if connection is None:
                raise InvalidArgument("connection: a gapless number is taken in your transaction, so hand that in")
            raw = getattr(connection, "raw", connection)
            return self._take(self._store.within(raw), entity, 1).start
        if connection is not None:
            raise InvalidArgument("connection: only gapless numbers are taken in your transaction")
        return self._from_block(entity)

    def close(self) -> None:
        """Give back what is not used, if nobody has taken a block behind it."""
        if self._process != os.getpid():  # they are the parent's, and so is who has the locks
            return
        with self._taking:
            self._closed = True
            with self._lock:
                left, self._ready = list(self._ready.items()), OrderedDict()
            if left:
                with self._store.transaction() as connection:
                    self._give_back(connection, left)

    def __enter__(self) -> Sequences:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _from_block(self, entity: str) -> int:
        if self._process != os.getpid():
            raise FailedPrecondition("these sequences were opened before a fork; open others in this process")
        if (number := self._ready_one(entity)) is not None:
            return number
        if self._store.in_transaction():  # who holds the other lock may wait for its end
            raise FailedPrecondition("within a transaction only gapless numbers can be taken")
        with self._taking:
            if self._closed:
                raise Closed("these sequences are closed")
            if (number := self._ready_one(entity)) is not None:  # another thread was faster
                return number
            given_up = self._surplus()
            with self._store.transaction() as connection:
                self._give_back(connection, given_up)
                taken = self._take(connection, entity, self._block)
            with self._lock:
                self._ready[entity] = taken[1:]
                self._ready.move_to_end(entity)  # where it may have been before, with a block that is used up
            return taken.start

    def _ready_one(self, entity: str) -> int | None:
        with self._lock:
            left = self._ready.get(entity)
            if not left:
                return None
            self._ready[entity] = left[1:]
            return left.start

    def _surplus(self) -> list[tuple[str, range]]:
        """Of entities that are too many, those that were given a block longest ago."""
        with self._lock:
            return [self._ready.popitem(last=False) for _ in range(len(self._ready) - MAX_ENTITIES + 1)]

    def _take(self, connection: Connection, entity: str, count: int) -> range:
        values = {"name": self.name, "entity": entity, "end": self._first + count, "count": count}
        end = connection.query(_TAKE, values)[0][0]
        return range(end - count, end)

    def _give_back(self, connection: Connection, ranges: Iterable[tuple[str, range]]) -> None:
        rows = [(left.start, self.name, entity, left.stop) for entity, left in ranges if left]
        if rows:
            connection.write(_GIVE_BACK, rows)
