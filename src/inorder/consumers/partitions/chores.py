"""Work beside: a thread that is there only while there is something to do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter

from inorder.errors import Closed, InorderError

PAUSE_SECONDS = 0.02  # between two looks at what waits, unless somebody wakes
REST = 2  # times as long as a look took: to look costs the broker what is in its backlog

_log = logging.getLogger(__name__)


class Chore:
    """Something to do again and again, for as long as it says that there is more, and whenever somebody wakes it."""

    def __init__(self, name: str, do: Callable[[], bool], given_up: Callable[[InorderError], None]) -> None:
        self._name = name
        self._do = do
        self._given_up = given_up  # told when the broker or the store is closed
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._stopped = False
        self._told = ""  # of what keeps it from being done

    def wake(self) -> None:
        """There is something to do. Returns at once, on any thread."""
        with self._lock:
            self._woken.set()
            if not self._is_at_it() and not self._stopped:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Do no more; what is being done is finished first."""
        with self._lock:
            self._stopped = True
            self._woken.set()
            thread = self._thread if self._is_at_it() else None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _is_at_it(self) -> bool:
        # Ctrl-C may have come between the making of a thread and its start.
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        more = True
        while self._goes_on(more):
            start = perf_counter()
            more = self._once()
            if more:
                self._woken.wait(max(PAUSE_SECONDS, REST * (perf_counter() - start)))

    def _goes_on(self, more: bool) -> bool:
        with self._lock:
            goes_on = (more or self._woken.is_set()) and not self._stopped
            self._woken.clear()
            if not goes_on:
                self._thread = None
            return goes_on

    def _once(self) -> bool:
        try:
            more = self._do()
        except Closed as error:
            self._given_up(error)
            return False
        except Exception as error:
            self._tell(error)
            return True
        self._told = ""
        return more

    def _tell(self, error: Exception) -> None:
        """Once, until it is another one or all is well again: fifty times a second says no more."""
        if self._told == repr(error):
            return
        self._told = repr(error)
        if isinstance(error, InorderError):
            _log.warning("%s: %s", self._name, error)
        else:
            _log.error("%s: the store failed", self._name, exc_info=error)
