"""Who waits for a forwarder to have forwarded everything, or everything of a key."""

from __future__ import annotations

import threading
from collections.abc import Callable

from inorder.pending import Pending


class Barriers:
    """Those who wait, until they are told or it is over. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drains: list[Pending[None]] = []
        self._tokens: dict[str, Pending[None]] = {}
        self._over: Callable[[], BaseException] | None = None

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._drains or self._tokens)

    @property
    def drain_wanted(self) -> bool:
        return bool(self._drains)

    def drained(self) -> Pending[None]:
        waiting: Pending[None] = Pending()
        with self._lock:
            if self._over is not None:
                return Pending.failed(self._over())
            self._drains.append(waiting)
        return waiting

    def passed(self, token: str) -> Pending[None]:
        with self._lock:
            if self._over is not None:
                return Pending.failed(self._over())
            return self._tokens.setdefault(token, Pending())

    def tell_drained(self) -> None:
        with self._lock:
            drains, self._drains = self._drains, []
        for waiting in drains:
            waiting.set_result(None)

    def tell_passed(self, token: str) -> None:
        with self._lock:
            waiting = self._tokens.pop(token, None)
        if waiting is not None:
            waiting.set_result(None)

    def forget(self, token: str) -> None:
        """Nobody waits for this one any more."""
        with self._lock:
            self._tokens.pop(token, None)

    def end(self, error: BaseException, afterwards: Callable[[], BaseException]) -> None:
        """Nothing will be forwarded any more: tell those who wait, and those who come why."""
        with self._lock:
            waiting = [*self._drains, *self._tokens.values()]
            self._drains, self._tokens, self._over = [], {}, afterwards
        for pending in waiting:
            pending.set_exception(error)
