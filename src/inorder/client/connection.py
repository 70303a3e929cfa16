"""What the handles of one `PubSub` share: the transport, the publishers, and what is to be closed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from inorder.client.publisher import Publisher
from inorder.client.tracing import Tracing
from inorder.errors import Closed
from inorder.forks import stays_here
from inorder.pending import Pending
from inorder.transport import Transport


class Closable(Protocol):
    closed: Pending[None]

    def close(self) -> Pending[None]: ...

    def at_work(self) -> bool:
        """Whether it is itself that asks, so that it must not be waited for."""

    def needs_this_thread(self) -> bool:
        """Whether it cannot end while the thread that asks does nothing but wait for it."""


class Connection:
    """One connection to a broker. Thread-safe."""

    def __init__(self, transport: Transport, tracing: Tracing | None = None) -> None:
        self.transport = transport
        self.tracing = tracing
        self._publishers: dict[str, Publisher] = {}
        self._open: dict[int, Closable] = {}
        self._lock = threading.Lock()
        self._closing: Pending[None] | None = None
        self._closes = False  # somebody has begun to, and was not interrupted
        stays_here(self)
        self._finished = False  # no handler runs any more, so nothing is left to publish
        self.is_the_parents = False  # of a process that has forked: nothing of it runs in this one

    def publisher(self, topic: str) -> Publisher:
        """The publisher of a topic: one for all handles, or their order would be lost."""
        with self._lock:
            if topic not in self._publishers:
                self._publishers[topic] = Publisher(self.transport, topic)
                if self._finished:
                    self._publishers[topic].close()
            return self._publishers[topic]

    def opened(self, closable: Closable) -> None:
        """Remember something that must be closed with the connection; once that has begun, close it at once."""
        with self._lock:
            if self._closing is None:
                self._open[id(closable)] = closable
                return
        closable.close()
        raise Closed("this PubSub is closed")

    def forget(self, closable: Closable) -> None:
        with self._lock:
            self._open.pop(id(closable), None)

    def close(self) -> Pending[None]:
        """Finish handlers, then send what is collected, also by them, then leave the broker.

        A handler that closes is not made to wait for itself: for it, this is done at once.
        """
        first = False
        try:
            with self._lock:
                still_open = [*self._open.values()]
                publishers = [*self._publishers.values()]
                closing = self._closing = self._closing or Pending()
                first, self._closes = not self._closes, True
            if first:
                self._begin_to_close(still_open, publishers, closing)
        except BaseException:  # as Ctrl-C: who closes it again does all of it
            if first:
                self._closes = False
            raise
        return Pending.of(None) if any(closable.at_work() for closable in still_open) else closing

    def _begin_to_close(
        self, still_open: Iterable[Closable], publishers: Iterable[Publisher], closing: Pending[None]
    ) -> None:
        for closable in still_open:
            closable.close()
        for publisher in publishers:
            publisher.hurry()  # a handler may wait for what is collected
        self.transport.stop_waiting()  # for room, which nobody here makes any more: handlers would for ever
        finished = Pending.all([closable.closed for closable in still_open])
        left = finished.then(self._close_publishers).map(lambda _: self.transport.close())
        left.hand_to(closing)  # also that the journal could not keep the last of it

    def needs_this_thread(self) -> bool:
        """Whether closing cannot end while the thread that asks does nothing but wait for it."""
        with self._lock:
            return any(closable.needs_this_thread() for closable in self._open.values())

    def _close_publishers(self, _: object) -> Pending[list[None]]:
        with self._lock:
            self._finished = True
            publishers = [*self._publishers.values()]
        flushed = Pending.all([publisher.close() for publisher in publishers])
        self.transport.stop_waiting()  # what was collected until now, too
        return flushed

    def _leave_to_parent(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may hold the other one
        self._open = {}  # their threads and loops are the parent's
        self.is_the_parents = True
