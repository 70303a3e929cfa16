"""Worker processes: each is asked by one thread at a time, and replaced when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from inorder.pool.functions import synchronous
from inorder.pool.outcomes import WorkerDied

# A forked copy of a process with threads may find their locks held for ever.
_context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


class Processes:
    """As many as there are calls at once. Thread-safe."""

    def __init__(self, fn: Callable[..., Any], limit: Callable[[], int]) -> None:
        self._fn = fn
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Process]:
        """A process that nobody else has."""
        process = self._take()
        try:
            yield process
        finally:
            self._give_back(process)

    def _take(self) -> Process:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None or not process.alive():
            process = Process(self._fn)
        with self._lock:
            self._busy.add(process)
            if self._closed:
                process.kill()
        return process

    def _give_back(self, process: Process) -> None:
        with self._lock:
            self._busy.discard(process)
            keep = not process.ended and not self._closed and len(self._idle) + len(self._busy) < self._limit()
            if keep:
                self._idle.append(process)
        if not keep:
            process.close()

    def close(self) -> None:
        """End all processes; calls that run raise."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in idle:
            process.close()
        for process in busy:
            process.kill()


class Process:
    """One worker process, and the pipe to it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs, fn), name="inorder-worker", daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does
        with contextlib.suppress(EOFError, OSError):  # then the first call tells
            self._pipe.recv()  # it is there: what it takes to start is not the time of an item
        self.ended = False  # as far as we know, without asking the system

    def alive(self) -> bool:
        return not self.ended and bool(self._process.is_alive())

    def call(self, item: Any) -> Any:
        """What the function returns for an item, or raises; `WorkerDied` if the process ends meanwhile."""
        sent = ForkingPickler.dumps(item)  # what raises here, or when it is read, is no matter of the pipe
        try:
            self._pipe.send_bytes(sent)
            received = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.ended = True
            self._process.join()
            raise WorkerDied(self._process.exitcode) from None
        succeeded, answer = pickle.loads(received)
        if succeeded:
            return answer
        raise answer

    def kill(self) -> None:
        self.ended = True
        self._process.kill()

    def close(self) -> None:
        self._pipe.close()  # which ends its loop, should it still be in one
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, fn: Callable[..., Any]) -> None:
    """The life of a worker process: it ends when nobody is left to ask it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is interrupted is the program, and that ends us
    call = synchronous(fn)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(None)
        while True:
            try:
                received = pipe.recv_bytes()
            except EOFError:
                return
            try:
                item = pickle.loads(received)
            except Exception as error:  # it came whole, but cannot be read here
                answer = (False, _portable(error))
            else:
                answer = _answer(call, item)
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                pipe.send((False, TypeError(f"the result cannot be sent to another process: {error}")))


def _answer(call: Callable[[Any], Any], item: Any) -> tuple[bool, Any]:
    try:
        return True, call(item)
    except BaseException as error:
        return False, _portable(error)


def _portable(error: BaseException) -> BaseException:
    """The error, with the trace it had here, if it survives the way; else one that says the same."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
