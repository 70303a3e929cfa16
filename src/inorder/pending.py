"""A result on its way: `.result()` blocks a thread, `await` suspends a task.

`concurrent.futures.Future` makes a lock and a condition for each result, which costs more than the
whole publish of a message. Here there is no lock, and nothing to wait with until somebody has to.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from inorder.errors import Aborted, DeadlineExceeded
from inorder.forks import after_fork
from inorder.put_off import hurry, running_loop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
U = TypeVar("U")

_UNSET: Any = object()

_first = threading.Lock()  # for all: it is held for a few instructions

_log = logging.getLogger(__name__)


class Pending(Generic[T]):
    """One result or one error, set once. Thread-safe."""

    __slots__ = ("_callbacks", "_error", "_value")

    def __init__(self) -> None:
        self._value: Any = _UNSET
        self._error: BaseException | None = None
        # Whoever finishes this sets the result and then looks here, whoever waits comes here and then looks for the
        # result, and of two who call those that wait each takes one at a time: so nobody needs a lock but the first
        # who waits. Mostly nobody does, and then there is no list, which every search for garbage would look at.
        self._callbacks: list[Callable[[Pending[T]], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Pending[T]:
        """A result that is there already."""
        pending = cls()
        pending._value = value
        return pending

    @classmethod
    def failed(cls, error: BaseException) -> Pending[T]:
        """An error that is there already."""
        pending = cls()
        pending._error = error
        return pending

    @classmethod
    def run(cls, call: Callable[[], T]) -> Pending[T]:
        """What `call` returns or raises, now."""
        try:
            return cls.of(call())
        except Exception as error:
            return cls.failed(error)

    @classmethod
    def all(cls, pendings: Iterable[Pending[U]]) -> Pending[list[U]]:
        """All results in their order, or the first of their errors, when every one is done."""
        gathered: Pending[list[U]] = Pending()
        listed = list(pendings)
        left = iter(listed)

        def look_on(_: object) -> None:
            # One is waited for at a time: mostly all are set together, and then the first to call finds all done.
            for pending in left:
                if pending._value is _UNSET and pending._error is None:
                    pending.add_done_callback(look_on)
                    return
            gathered._settle_by(lambda: [pending.result() for pending in listed])

        look_on(None)
        return gathered

    def map(self, change: Callable[[T], U]) -> Pending[U]:
        """The result changed by a function, which may raise; an error stays as it is."""
        changed: Pending[U] = Pending()
        self.add_done_callback(lambda done: changed._settle_by(lambda: change(done.result())))
        return changed

    def then(self, follow: Callable[[T], Pending[U]]) -> Pending[U]:
        """What `follow` answers to the result; an error stays as it is."""
        followed: Pending[U] = Pending()

        def finished(done: Pending[T]) -> None:
            try:
                after = follow(done.result())
            except KeyboardInterrupt:
                followed.set_exception(_interrupted())
                raise
            except BaseException as error:
                followed.set_exception(error)
            else:
                after.add_done_callback(lambda last: followed._settle_by(last.result))

        self.add_done_callback(finished)
        return followed

    def hand_to(self, other: Pending[T]) -> None:
        """Give another one the same result or error, when it is there."""
        self.add_done_callback(lambda done: other._settle_by(done.result))

    def done(self) -> bool:
        return self._value is not _UNSET or self._error is not None

    def set_result(self, value: T) -> None:
        self._value = value
        if self._callbacks:
            self._hand_over()

    @staticmethod
    def set_results(pendings: Iterable[Pending[U]], values: Iterable[U]) -> None:
        """Each pending gets its value; much cheaper than one call for each."""
        awaited: list[Pending[U]] = []
        for pending, value in zip(pendings, values):  # noqa: B905 - strict costs time here
            pending._value = value
            if pending._callbacks:
                awaited.append(pending)
        if len(awaited) == 1:
            awaited[0]._hand_over()
        elif awaited:
            with _alarms_at_the_end():
                for pending in awaited:
                    pending._hand_over()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        if self._callbacks:
            self._hand_over()

    def _settle_by(self, call: Callable[[], T]) -> None:
        try:
            value = call()
        except KeyboardInterrupt:  # is for this thread, and somebody else may wait for the result
            self.set_exception(_interrupted())
            raise
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None if there is a result; waits for whichever comes."""
        self._wait(timeout)
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """The result, or its error raised. A timeout stops the waiting, not the work."""
        if not self.done():
            self._wait(timeout)
        if self._error is not None:
            raise _afresh(self._error)
        return self._value  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[[Pending[T]], None]) -> None:
        """Call `callback(self)` when done, on the thread that finishes it; at once if it is done.

        It must not wait: that thread may be the one that runs the timers of the whole process, or a loop.
        What it raises is logged: neither who finishes this nor who else waits for it can help.
        """
        (self._callbacks or self._first_waits()).append(callback)
        if self._value is not _UNSET or self._error is not None:
            self._hand_over()  # perhaps since a moment ago, and its thread has not seen the callback

    def __await__(self) -> Generator[Any, None, T]:
        # Written out, as this is most of what waiting costs: a task waits for every message that it publishes.
        if self._value is _UNSET and self._error is None:
            loop = _running_loop()
            woken: asyncio.Future[None] = loop.create_future()
            finished = partial(_alarm_of(loop).wake, woken)
            (self._callbacks or self._first_waits()).append(finished)
            if self._value is not _UNSET or self._error is not None:
                self._hand_over()
            try:
                yield from woken
            except BaseException:  # who waited was cancelled
                self._forget(finished)
                raise
        if self._error is not None:
            raise _afresh(self._error)
        return self._value  # type: ignore[no-any-return]

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        hurry()
        # A lock, not an event, which is made of several: one of them may be left taken by Ctrl-C.
        arrived = threading.Lock()
        arrived.acquire()

        def finished(_: Pending[T]) -> None:
            arrived.release()

        self.add_done_callback(finished)
        try:
            in_time = arrived.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        except BaseException:  # as Ctrl-C: who waited does so no longer
            self._forget(finished)
            raise
        if not in_time:
            self._forget(finished)
            raise DeadlineExceeded(f"no answer within {timeout} s")

    def _hand_over(self) -> None:
        """This is done: call whoever waits for it."""
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            try:
                callback(self)
            except KeyboardInterrupt:
                self._hand_over()  # others wait for this, too
                raise
            except BaseException:  # also by sys.exit(): others wait for this, too
                _log.exception("a callback of a pending result failed")

    def _first_waits(self) -> list[Callable[[Pending[T]], None]]:
        with _first:
            if self._callbacks is None:
                self._callbacks = []
        return self._callbacks

    def _forget(self, callback: Callable[[Pending[T]], None]) -> None:
        """Somebody stopped waiting: a result that takes long must not collect them."""
        with contextlib.suppress(ValueError):  # it was called meanwhile
            (self._callbacks or []).remove(callback)


def _interrupted() -> Aborted:
    return Aborted("what was to be done with the result before was interrupted")


def _afresh(error: BaseException) -> BaseException:
    """An error as if it were raised for the first time: one that many wait for would grow with each of them."""
    return error.with_traceback(None)


class _Alarm:
    """Wakes tasks of one loop from any thread. Many that are woken together cost one call to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self._to_wake: deque[asyncio.Future[None]] = deque()
        self._rings = False

    def wake(self, future: asyncio.Future[None], _: object) -> None:
        self._to_wake.append(future)
        if self._rings:
            return
        self._rings = True
        try:
            if _here.alarms is None:
                self.ring()
            else:
                _here.alarms.append(self)
        except BaseException:  # as Ctrl-C: nobody else rings before this was heard, so no task of the loop would go on
            self.ring()
            raise

    def ring(self) -> None:
        loop = self.loop()
        if loop is not None:
            # A closed loop raises: then nobody is left to wake.
            with contextlib.suppress(RuntimeError):
                call = loop.call_soon if running_loop() is loop else loop.call_soon_threadsafe
                call(self._ring)

    def _ring(self) -> None:
        self._rings = False  # first: who comes now rings again
        to_wake = self._to_wake
        while to_wake:
            future = to_wake.popleft()
            if not future.done():
                future.set_result(None)


class _Here(threading.local):
    alarms: list[_Alarm] | None = None  # to be rung at the end


_here = _Here()


@contextlib.contextmanager
def _alarms_at_the_end() -> Iterator[None]:
    """Loops are woken when all is done here: one that woke at once would take turns with this thread at every step."""
    if _here.alarms is not None:  # somebody further out does so
        yield
        return
    alarms = _here.alarms = []
    try:
        yield
    finally:
        _here.alarms = None
        try:
            _ring(alarms)
        except BaseException:  # as Ctrl-C: all of them, perhaps once more
            _ring(alarms)
            raise


def _ring(alarms: Iterable[_Alarm]) -> None:
    for alarm in alarms:
        alarm.ring()


_alarms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Alarm] = weakref.WeakKeyDictionary()
_latest: _Alarm | None = None  # the one that was asked for last: mostly there is one loop


def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    global _latest
    alarm = _latest
    if alarm is None or alarm.loop() is not loop:
        alarm = _latest = _alarms.get(loop) or _Alarm(loop)
        _alarms[loop] = alarm
    return alarm


def _after_fork_in_child() -> None:
    global _first
    _first = threading.Lock()  # a thread that is not here may hold the other one


after_fork(_after_fork_in_child)


def _import_and_ask() -> asyncio.AbstractEventLoop:
    global _running_loop
    from asyncio import get_running_loop

    _running_loop = get_running_loop
    return get_running_loop()


# asyncio is imported by the first who waits on a loop: others need not.
_running_loop: Callable[[], asyncio.AbstractEventLoop] = _import_and_ask
