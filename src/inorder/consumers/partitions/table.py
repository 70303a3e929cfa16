"""The routes where everybody finds them: their text in a store, and in the broker a topic that counts their changes.

The store keeps them durably, each change on top of the version that was read. To ask a store before each message
would be slow, and would make publishers wait for whoever writes there. So each change is announced in the topic
`NAME-changes`, and to look whether that has moved on costs a look at its metadata.

What makes this safe is the order of things: the topic is looked at *before* the routes are read; and no slot is
sealed before it was written that the slot leaves, and *then* announced. Whoever finds the topic where it was knows that
nothing was sealed that he takes to be open. What else he has not read (that a slot was opened) can do no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from inorder.client.pubsub import PubSub
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.store import Conflict, States, Store, Stored
from inorder.errors import AlreadyExists, FailedPrecondition, NotFound, TopicNotFound
from inorder.metadata import TopicMetadata
from inorder.pending import Pending

TRIES = 100  # of a change that others were faster than: each time, one of them got on
ROUTES = "routes"


class View(NamedTuple):
    """Routes, and how many changes had been announced before they were read."""

    announced: int
    routes: Routes


class Table:
    """The routes of one partitioned topic. Thread-safe; several may be at work on the same, in several processes."""

    def __init__(self, pubsub: PubSub, store: Store, name: str) -> None:
        self.name = name
        self.row = f"partitions of {name}"  # what the store knows it by
        self.store = store
        self._changes = pubsub.topic(f"{name}-changes")
        self._flushes = pubsub.topic(f"{name}-flushes")
        self._told = 0  # the version of which this one has told everybody
        self._view: View | None = None
        self._last: Routes | None = None
        self._looking = threading.Lock()
        self._looked = 0.0

    # -- reading -----------------------------------------------------------------------------------

    @property
    def known(self) -> Routes:
        """As they were when somebody here looked last."""
        return (self._view or self.look()).routes

    def look(self) -> View:
        """Read them anew; of several who look at once, one reads for all."""
        asked = perf_counter()
        with self._looking:
            if self._view is None or self._looked < asked:
                self._looked = perf_counter()
                self._view = self._read()
            return self._view

    def _read(self) -> View:
        try:
            topic = self._changes.metadata().result()
        except TopicNotFound:  # of whose name users know nothing
            raise self._missing() from None
        routes = self.load()
        if routes.origin != _origin(topic):
            raise FailedPrecondition(
                f"partitions of {self.name!r}: the store knows those of another broker, made {routes.origin}, "
                f"and this one was made {_origin(topic)}"
            )
        return View(topic.published, routes)

    def current(self) -> Routes:
        """What all know who have acted so far."""
        return self.unchanged().result() or self._look_unless_seen()

    def _look_unless_seen(self) -> Routes:
        """Read them, unless somebody has done so while this one waited for his turn."""
        with self._looking:
            routes = self.unchanged().result()
            if routes is None:
                self._looked = perf_counter()
                self._view = self._read()
                routes = self._view.routes
            return routes

    def unchanged(self) -> Pending[Routes | None]:
        """The routes that are known here, if nothing was announced since; else None."""
        view = self._view
        if view is None:
            return Pending.of(None)
        announced, routes = view
        asked = self._changes.metadata()
        if asked.done() and asked.exception() is None:  # as in one process it is, for every message
            return Pending.of(routes if asked.result().published == announced else None)
        return asked.map(lambda topic: routes if topic.published == announced else None)

    def announced(self) -> int:
        """How many announcements there were so far."""
        return self._changes.metadata().result().published

    def load(self) -> Routes:
        """As they are in the store."""
        with self.store.transaction() as connection:
            found = States(connection, self.row).load([ROUTES]).get(ROUTES)
        if found is None:
            raise self._missing()
        last = self._last
        if last is None or last.version != found.version:  # else the same was read before
            state = bytes(found.state)  # a driver may have its own kind
            self._last = last = Routes.load(state, found.version)
        return last

    def _missing(self) -> NotFound:
        return NotFound(f"partitions of {self.name!r} do not exist; create them first")

    # -- writing -----------------------------------------------------------------------------------

    def create(self, count: int, strict: bool) -> Routes:
        """Write the first routes, or find those that are there."""
        for topic in (self._changes, self._flushes):
            with suppress(AlreadyExists):
                topic.create().result()
        origin = _origin(self._changes.metadata().result())
        with suppress(Conflict):
            self._save(Routes.new(count, strict=strict, origin=origin), 0)
        return self.look().routes

    def announce(self) -> None:
        """Have everybody look."""
        self._changes.publish_message().result()

    def announce_version(self, routes: Routes) -> None:
        """Make sure that everybody was told of these routes: who wrote them may have died before."""
        if self._told != routes.version:
            self.announce()
            self._told = routes.version

    def flush(self) -> None:
        """When this returns, all that the broker had done before is durable."""
        self._flushes.publish_message().result()

    def save(self, after: Routes) -> Routes:
        """Write what comes after the version that `after` was made from, and tell; `Conflict` if that is not there."""
        with self._looking:  # who wants to look meanwhile finds here what he would read
            looked, announced = perf_counter(), self.announced()
            written = self._save(after, after.version)
            self.announce_version(written)
            # All that had been announced before is in what this was written on top of; then only this was.
            if self._view is not None and self.announced() == announced + 1:
                self._looked, self._view = looked, View(announced + 1, written)
            return written

    def change(self, step: Callable[[Routes], Routes]) -> Routes:
        """Write what a step makes of the routes, whoever else writes; nothing if it changes nothing."""
        for attempt in range(TRIES):
            before = self.load()
            after = step(before)
            if after == before:
                return before
            try:
                return self.save(after)
            except Conflict:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _save(self, routes: Routes, before: int) -> Routes:
        with self.store.transaction() as connection:
            States(connection, self.row).save({ROUTES: Stored(before + 1, "", 0, routes.dump())})
        self._last = written = replace(routes, version=before + 1)  # who looks now need not read it
        return written


def _origin(topic: TopicMetadata) -> str:
    return topic.created.isoformat()
