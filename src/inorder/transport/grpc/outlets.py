"""What a client publishes, by topics. What comes before it is known which kind the server is waits here, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from inorder.message import Batch
from inorder.pending import Pending
from inorder.transport.grpc.calls import call_back, later
from inorder.transport.grpc.publishing import Outlet

Open: TypeAlias = Callable[[str], Pending[Outlet]]
"""Makes the outlet of a topic, once the server is known."""

Waiting: TypeAlias = tuple[Batch, Pending[list[str]]]
"""A batch, and who waits for its ids."""


class Early:
    """What is published to a topic before its outlet is there."""

    __slots__ = ("batches", "emptied")

    def __init__(self) -> None:
        self.batches: deque[Waiting] = deque()
        self.emptied = False  # by somebody, now

    def all(self) -> list[Waiting]:
        taken = [*self.batches]
        self.batches.clear()
        return taken


class Outlets:
    """One for each topic, made when it is needed first. Thread-safe."""

    def __init__(self, open_outlet: Open) -> None:
        self._open = open_outlet
        self._lock = threading.Lock()
        self._outlets: dict[str, Outlet] = {}  # those with nothing early before them
        self._early: dict[str, Early] = {}
        self._may_wait = True

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        outlet = self._outlets.get(topic)
        if outlet is not None:
            return outlet.publish(batch)
        answer: Pending[list[str]] = Pending()
        try:
            with self._lock:
                outlet = self._outlets.get(topic)
                if outlet is None:
                    self._early.setdefault(topic, Early()).batches.append((batch, answer))
            if outlet is None:
                self._empty_soon(topic)
                return answer
        except BaseException:  # as Ctrl-C: others publish here, too
            later(0, partial(self._empty_soon, topic))
            raise
        return outlet.publish(batch)  # which is there since a moment ago

    def _empty_soon(self, topic: str) -> None:
        call_back(self._open(topic), partial(self._opened, topic))

    def stop_waiting(self) -> None:
        """As that of each outlet, also of those that are made later."""
        with self._lock:
            self._may_wait = False
            outlets = [*self._outlets.values()]
        for outlet in outlets:
            outlet.stop_waiting()

    def _opened(self, topic: str, done: Pending[Outlet]) -> None:
        error = done.exception()
        if error is not None:
            self._fail(topic, error)
            return
        with self._lock:
            early = self._early.get(topic)
            if early is None or early.emptied:  # by somebody who also takes what came with this
                return
            early.emptied = True
        self._empty(topic, early, done.result())

    def _fail(self, topic: str, error: BaseException) -> None:
        # All of it: were something behind it stored, it would be out of order.
        with self._lock:
            early = self._early.get(topic)
            failed = [] if early is None or early.emptied else early.all()
        for _, answer in failed:
            answer.set_exception(error)

    def _empty(self, topic: str, early: Early, outlet: Outlet) -> None:
        while (first := self._next(topic, early, outlet)) is not None:
            batch, answer = first
            outlet.publish(batch).hand_to(answer)
        if not self._may_wait:
            outlet.stop_waiting()

    def _next(self, topic: str, early: Early, outlet: Outlet) -> Waiting | None:
        """Only when nothing early is left may others publish without coming here: they would overtake it."""
        with self._lock:
            if early.batches:
                return early.batches.popleft()
            self._outlets[topic] = outlet
            del self._early[topic]
            return None
