"""How a user's function is called for an item, and what can be done when that takes too long."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from inorder.pool.functions import asynchronous, synchronous
from inorder.pool.outcomes import Raise
from inorder.pool.processes import Process, Processes
from inorder.pool.window import Job

# Told when a call really begins, if somebody wants to know, and how to have it raise soon, if that is possible.
Started = Callable[[Job, Callable[[], object] | None], None]


class Calls(ABC):
    """Calls the function for an item."""

    @abstractmethod
    def call(self, job: Job) -> Any: ...

    def gave_up(self, number: int) -> bool:
        """Whether a call was told to give up; asked before it is finished."""
        return False

    def finished(self, number: int) -> None:
        """The call has returned or raised; said once, where it was made, before there can be another one."""
        return

    def resize(self) -> None:
        """There may be fewer workers now."""
        return

    def close(self) -> None:
        """There will be no more calls, and what runs does not matter any more."""
        return


class ThreadCalls(Calls):
    """On the thread of the worker, which nobody can stop."""

    def __init__(self, fn: Callable[..., Any], started: Started | None) -> None:
        self._fn = synchronous(fn)
        self._started = started

    def call(self, job: Job) -> Any:
        if self._started is not None:
            self._started(job, None)
        return self._fn(job[2])


class TaskCalls(Calls):
    """On a loop, within the task of the worker."""

    def __init__(
        self, fn: Callable[..., Any], started: Started | None, soon: Callable[[Callable[[], object]], object]
    ) -> None:
        self._fn = asynchronous(fn)
        self._started = started
        self._soon = soon
        self._attempts: dict[int, _Attempt] = {}

    def call(self, job: Job) -> Coroutine[Any, Any, Any]:
        if self._started is not None:
            attempt = self._attempts[job[0]] = _Attempt()
            self._started(job, lambda: self._soon(partial(self._cancel, job[0], attempt)))
        return self._guarded(job[2])

    async def _guarded(self, item: Any) -> Any:
        """These two would end the loop, and with it whoever else is there; so the reader raises them."""
        try:
            return await self._fn(item)
        except (SystemExit, KeyboardInterrupt) as error:
            return Raise((error,))

    def _cancel(self, number: int, attempt: _Attempt) -> None:
        if self._attempts.get(number) is attempt:  # else it has ended meanwhile
            attempt.gave_up = True
            attempt.task.cancel()

    def gave_up(self, number: int) -> bool:
        attempt = self._attempts.get(number)
        return attempt is not None and attempt.gave_up

    def finished(self, number: int) -> None:
        if self._attempts and (attempt := self._attempts.pop(number, None)) and attempt.gave_up:
            attempt.task.uncancel()  # the worker goes on: only this call was cancelled


class _Attempt:
    """A call that runs within a task."""

    __slots__ = ("gave_up", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.gave_up = False


class ProcessCalls(Calls):
    """In a process, while the thread of the worker waits for the answer."""

    def __init__(self, fn: Callable[..., Any], started: Started | None, limit: Callable[[], int]) -> None:
        self._processes = Processes(fn, limit)
        self._started = started
        self._lock = threading.Lock()
        self._running: dict[int, Process] = {}  # those that may be told to give up
        self._given_up: set[int] = set()

    def call(self, job: Job) -> Any:
        with self._processes.one() as process:
            process.wait_until_ready()
            if self._started is None:
                return process.call(job[2])
            self._running[job[0]] = process
            self._started(job, partial(self._kill, job[0], process))
            try:
                return process.call(job[2])
            finally:
                with self._lock:
                    del self._running[job[0]]

    def _kill(self, number: int, process: Process) -> None:
        with self._lock:
            if self._running.get(number) is process:  # else it has another item by now
                self._given_up.add(number)
                process.kill()

    def gave_up(self, number: int) -> bool:
        return number in self._given_up

    def finished(self, number: int) -> None:
        self._given_up.discard(number)

    def resize(self) -> None:
        self._processes.retire()

    def close(self) -> None:
        self._processes.close()
