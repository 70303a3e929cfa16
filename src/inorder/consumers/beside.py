"""Something done in another thread while the one that wants it goes on, such as the wait for a disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Beside:
    """Does one thing at a time, for one thread. `start` it, go on with something else, then `finish` it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self.is_started = False

    def start(self, function: Callable[[], None]) -> None:
        """Have it called; returns when that has begun."""
        self.is_started = True
        if self._thread is None:
            try:
                self._open()
            except RuntimeError:  # there are too many threads: it is done here, only not beside anything
                self._ended.put(_raised_by(function))
                return
        self._given.put(function)
        self._begun.get()  # or it would begin when this thread rests: threads take turns only every few milliseconds

    def finish(self) -> None:
        """Wait for its end. What it has raised is raised here."""
        self.is_started = False
        if (raised := self._ended.get()) is not None:
            raise raised

    def close(self) -> None:
        """End the thread, when nothing is started any more."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _open(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        while (function := self._given.get()) is not None:
            self._begun.put(None)
            self._ended.put(_raised_by(function))


def _raised_by(function: Callable[[], None]) -> BaseException | None:
    try:
        function()
    except BaseException as error:
        return error
    return None
