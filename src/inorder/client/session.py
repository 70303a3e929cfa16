"""What the handles of one `PubSub` share: the transport, the publishers, and what is to be closed."""

from __future__ import annotations

import threading
from typing import Protocol

from inorder.client.publisher import Publisher
from inorder.errors import Closed
from inorder.pending import Pending
from inorder.transport import Transport


class Closable(Protocol):
    def close(self) -> Pending[None]: ...


class Session:
    """One connection to a broker. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._publishers: dict[str, Publisher] = {}
        self._open: dict[int, Closable] = {}
        self._lock = threading.Lock()
        self._closed = False

    def publisher(self, topic: str) -> Publisher:
        """The publisher of a topic: one for all handles, or their order would be lost."""
        with self._lock:
            if topic not in self._publishers:
                self._publishers[topic] = Publisher(self.transport, topic)
            return self._publishers[topic]

    def opened(self, closable: Closable) -> None:
        """Remember something that must be closed with the session."""
        with self._lock:
            if self._closed:
                raise Closed("this PubSub is closed")
            self._open[id(closable)] = closable

    def forget(self, closable: Closable) -> None:
        with self._lock:
            self._open.pop(id(closable), None)

    def close(self) -> Pending[None]:
        """Finish handlers, send what is collected, then leave the broker."""
        with self._lock:
            if self._closed:
                return Pending.of(None)
            self._closed = True
            closing = [*self._open.values()]
            publishers = [*self._publishers.values()]
        pending = [closable.close() for closable in closing]
        pending += [publisher.close() for publisher in publishers]
        return Pending.all(pending).map(lambda _: self.transport.close())
