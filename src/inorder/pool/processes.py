"""Worker processes: each is asked by one thread at a time, and replaced when it dies."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from inorder.forks import after_fork, stays_here
from inorder.pool.functions import synchronous
from inorder.pool.outcomes import WorkerDied

# A forked copy of a process with threads may find their locks held for ever.
_context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)

# One at a time learns how a process has ended: another one would read nothing, and take that for exit code 255. And
# whoever starts a process looks at all others. Reentrant, as the garbage collector may end a forgotten pass meanwhile.
_reaping = threading.RLock()


def _after_fork_in_child() -> None:
    global _reaping
    _reaping = threading.RLock()  # a thread that is not here may hold the other one


after_fork(_after_fork_in_child)


class Processes:
    """As many as there are calls at once. Thread-safe."""

    def __init__(self, fn: Callable[..., Any], limit: Callable[[], int]) -> None:
        self._fn = fn
        self._limit = limit
        self._lock = threading.RLock()  # reentrant, as the garbage collector may close this in the middle of it
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
        if process is not None and not process.alive():
            process.close()
            process = None
        if process is None:
            process = Process(self._fn)
        with self._lock:
            self._busy.add(process)
            if self._closed:
                process.kill()
        return process

    def _give_back(self, process: Process) -> None:
        with self._lock:
            self._busy.discard(process)
            limit = self._limit()
            keep = not process.ended and not self._closed and len(self._idle) + len(self._busy) < limit
            if keep:
                self._idle.append(process)
        if not keep:
            process.close()

    def retire(self) -> None:
        """End idle processes that are too many now."""
        with self._lock:
            keep = max(0, self._limit() - len(self._busy))
            idle, self._idle = self._idle[keep:], self._idle[:keep]
        for process in idle:
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
        with _reaping:
            self._process.start()
        theirs.close()  # so that the pipe ends when the process does
        self._ready = False
        self.ended = False  # as far as we know, without asking the system
        stays_here(self)

    def _leave_to_parent(self) -> None:
        """Else it would outlive the parent for as long as this process lives, or die when this one exits."""
        self._pipe.close()
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]

    def alive(self) -> bool:
        with _reaping:
            return not self.ended and bool(self._process.is_alive())

    def wait_until_ready(self) -> None:
        """To start takes a while, which is nobody's fault."""
        if not self._ready:
            self._receive()
            self._ready = True

    def call(self, item: Any) -> Any:
        """What the function returns for an item, or raises; `WorkerDied` if the process ends meanwhile."""
        try:  # apart from the pipe: what it raises is no news of the process
            question = _pickled(item)
        except Exception as error:
            raise TypeError(f"the item cannot be sent to another process: {_shown(error)}") from error
        with contextlib.suppress(OSError):  # if it has ended, there is no answer either
            self._pipe.send_bytes(question)
        succeeded, answer = pickle.loads(self._receive())
        if succeeded:
            return answer
        raise answer

    def _receive(self) -> bytes:
        try:
            return self._pipe.recv_bytes()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self.ended = True
            self._wait_for_end()
            raise WorkerDied(self._process.exitcode) from None

    def kill(self) -> None:
        self.ended = True
        self._process.kill()

    def close(self) -> None:
        self._pipe.close()  # which ends its loop, should it still be in one
        self._process.kill()
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        wait([self._process.sentinel])
        with _reaping:
            self._process.join()


def _serve(pipe: Connection, fn: Callable[..., Any]) -> None:
    """The life of a worker process: it ends when nobody is left to ask it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who is interrupted is the program, and that ends us
    # What the function starts may outlive us; with our end of the pipe nobody would notice that we have ended, and what
    # is forked would answer as well, to the next question.
    os.set_inheritable(pipe.fileno(), False)
    after_fork(pipe.close)
    call = synchronous(fn)
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            question = pipe.recv_bytes()
            pipe.send_bytes(_answer(call, question))


def _answer(call: Callable[[Any], Any], question: bytes) -> bytes:
    try:
        value = call(pickle.loads(question))
    except BaseException as error:
        return _pickled((False, _portable(error)))
    try:
        return _pickled((True, value))
    except Exception as error:
        refusal = TypeError(f"the result cannot be sent to another process: {_shown(error)}")
        return _pickled((False, refusal))


def _pickled(value: Any) -> bytes:
    # Not `ForkingPickler.dumps`: it returns a view of a buffer, which complains when both are collected as garbage.
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(value)
    return buffer.getvalue()


def _portable(error: BaseException) -> BaseException:
    """The error, with the trace it had here, if it survives the way; else one that says the same."""
    try:
        error.add_note("".join(traceback.format_exception(error)))
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {_shown(error)}")


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it cannot be shown)"
