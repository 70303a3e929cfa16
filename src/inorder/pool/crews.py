"""Workers: tasks on a loop, or threads. What they do, and whose turn it is, is for a `Work` to say.

The worker pool and the handlers of subscriptions stand on these two crews, and nothing else runs users' functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from inorder.errors import InorderError
from inorder.pending import Pending

BURST = 100  # items that one worker takes for all, and that a task works on before others on its loop have a turn

Item = TypeVar("Item")


class Work(Protocol[Item]):
    """Where a crew gets its items, and where it leaves them. Called on the crew's threads, or on its loop."""

    def take(self, count: int) -> Sequence[Item]:
        """Items whose turn it is, at most so many; never waits. An `InorderError` is the end: see `lost`."""

    def more(self) -> bool:
        """Whether `take` would find something."""

    def begin(self, item: Item) -> bool:
        """Whether an item that was taken is still to be worked on. It is done, or has failed, afterwards."""

    def call(self, item: Item) -> Any:
        """Work on it; for a crew of tasks the answer is to be awaited."""

    def done(self, item: Item, value: Any) -> None: ...

    def failed(self, item: Item, error: BaseException) -> Awaitable[object] | None:
        """A crew of tasks awaits the answer, unless it is told to end itself."""

    def after_failure(self, item: Item) -> None:
        """Called when that was awaited, or was not."""

    def give_back(self, items: Sequence[Item]) -> None:
        """These were taken, but nobody will begin them."""

    def flush(self) -> None:
        """A worker that was called in is there. Whatever was left to it, now is the time."""

    def crowd(self) -> bool:
        """Whether it is worth waiting a moment for other tasks that end in the same turn of the loop."""

    def limit(self) -> int:
        """How many may work at once."""

    def lost(self, error: InorderError) -> Awaitable[object] | None:
        """`take` raised: the crew ends."""

    def ended(self) -> Coroutine[Any, Any, object] | None:
        """The last worker has ended. A crew of tasks awaits the answer."""


class Crew(ABC, Generic[Item]):
    """Started once, ended once."""

    _work: Work[Item]

    def __init__(self) -> None:
        self._started = False
        self._closing = False
        self._ready: deque[Item] = deque()  # taken together, so that none waits for another one; none is begun

    def start(self, work: Work[Item]) -> None:
        self._work = work
        self._started = True
        self.wake()

    @property
    def waiting(self) -> int:
        """How many items were taken, but not begun."""
        return len(self._ready)

    @property
    @abstractmethod
    def busy(self) -> int:
        """How many are at work, roughly."""

    @abstractmethod
    def wake(self) -> None:
        """There may be something to do. Called on any thread; returns at once."""

    def resize(self) -> None:
        """The limit is another one now."""
        self.wake()

    @abstractmethod
    def end(self) -> None:
        """Begin nothing more. When the last worker has ended, the work is told."""

    @abstractmethod
    def interrupt(self) -> None:
        """End, and have what runs give up, if that is possible."""

    async def gone(self) -> None:
        """Wait, on the loop, until nothing of it is left there."""

    @abstractmethod
    def at_work(self) -> bool:
        """Whether it is one of the workers that asks."""

    @abstractmethod
    def needs_this_thread(self) -> bool:
        """Whether it cannot end while the thread that asks does nothing but wait for it."""

    def _give_back_unbegun(self) -> None:
        unbegun: list[Item] = []
        with contextlib.suppress(IndexError):  # others may take them out meanwhile
            while True:
                unbegun.append(self._ready.popleft())
        if unbegun:
            self._work.give_back(unbegun)


class ThreadCrew(Crew[Item]):
    """Threads: as many as there is work for, up to the limit, until the end.

    To wake a thread for each item costs more than the item may. So items are taken in bursts, which all
    threads share, and while something is left of one, exactly one more thread is on its way. If the calls
    wait for something, it is there at once, and calls in the next; if they only compute, it gets its
    turn when the interpreter passes that on, and whoever is one too many then rests.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._changed = threading.Condition()
        self._begun = 0  # calls; roughly, as threads count at once
        self._coming = False  # a thread was called in, and has not looked for work yet
        self._missed = False  # nobody could be called in: whoever is done first looks again
        self._idle = 0
        self._called = 0  # of the idle ones, who have not noticed yet
        self._threads: set[int] = set()  # by their identity
        self._count = 0

    @property
    def busy(self) -> int:
        return self._count - self._idle

    def wake(self) -> None:
        if not self._coming:  # else that one looks later than now
            self._call_in()

    def coming(self) -> bool:
        """Whether a thread is on its way that will flush, and begin what was taken."""
        return bool(self._coming and self._ready)

    def _call_in(self) -> None:
        """Have one more thread look for work."""
        with self._changed:
            if self._coming or self._closing or not self._started:
                return
            if self._idle > self._called:
                self._called += 1
                self._coming = True
                self._changed.notify()
            elif self._count < self._work.limit():
                self._count += 1
                self._coming = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            else:
                self._missed = True

    def at_work(self) -> bool:
        return threading.get_ident() in self._threads

    def needs_this_thread(self) -> bool:
        return self.at_work()

    def end(self) -> None:
        with self._changed:
            first = not self._closing
            self._closing = True
            self._changed.notify_all()
            nobody = first and not self._count
        self._give_back_unbegun()
        if nobody:
            self._work.ended()

    def interrupt(self) -> None:
        """A thread cannot be stopped: what runs is left to itself."""
        self.end()

    def resize(self) -> None:
        self.wake()
        with self._changed:
            self._changed.notify_all()  # those who rest, and are too many, end

    def _run(self) -> None:
        self._threads.add(threading.get_ident())
        stays = True
        try:
            with self._changed:
                self._coming = False
            self._work.flush()
            while stays and not self._closing:
                item = self._next()
                if item is None:
                    stays = self._rest()
                    continue
                begun = self._begun = self._begun + 1
                self._work_on(item)
                if self._count > self._work.limit() and self._leaves():
                    stays = False
                elif self._coming and self._begun != begun:
                    stays = self._rest()  # others go on, and more of them come
        except InorderError as error:
            self._cut_off(error)
        finally:
            with self._changed:
                self._count -= stays
                last = stays and self._closing and not self._count
            if last:
                self._work.ended()
            elif self._ready or self._work.more():  # which this thread would have done, were it not one too many
                self.wake()
            self._threads.discard(threading.get_ident())

    def _work_on(self, item: Item) -> None:
        work = self._work
        try:
            value = work.call(item)
        # Whatever a function raises is its failure, and must not end a thread that others count on.
        except BaseException as error:
            work.failed(item, error)
            work.after_failure(item)
        else:
            work.done(item, value)

    def _next(self) -> Item | None:
        """An item to begin. If there are more, another thread is on its way to them."""
        while True:
            try:
                item = self._ready.popleft()
            except IndexError:
                self._ready.extend(items := self._work.take(BURST))
                if not items:
                    return None
                continue  # another thread may be faster
            if not self._work.begin(item):
                continue
            if not self._coming and (self._ready or self._work.more()):
                self._call_in()
            return item

    def _leaves(self) -> bool:
        """Whether this thread, which has not looked for more work, is one too many; others may have left meanwhile."""
        with self._changed:
            if self._count <= self._work.limit():
                return False
            self._count -= 1  # at once, or others would believe that they are too many as well
            return True

    def _rest(self) -> bool:
        """Wait to be called in; False if this thread is one too many."""
        with self._changed:
            if not self._missed:
                self._idle += 1
                while not self._called and not self._closing:
                    if self._count > self._work.limit():
                        self._idle -= 1
                        self._count -= 1  # at once, or others would believe that they are too many as well
                        return False
                    self._changed.wait()
                self._idle -= 1
                if self._called:
                    self._called -= 1
                self._coming = False
            self._missed = False
        self._work.flush()
        return True

    def _cut_off(self, error: InorderError) -> None:
        """There will be no more work; each thread finds out, one tells it."""
        with self._changed:
            first = not self._closing
            self._closing = True
        if first:
            self._work.lost(error)
        self.end()


class TaskCrew(Crew[Item]):
    """Tasks on a loop. A task goes on to the next item while there is one.

    A call that does not wait is finished before the next task starts, so a burst of such items costs no
    task each; one that waits is overtaken by the next task, which was there already.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._workers: set[asyncio.Task[Any]] = set()
        self._spare: asyncio.Task[None] | None = None  # one that has not begun yet
        self._woken = False
        self._last = threading.Lock()  # taken once, by whoever ends it all

    @property
    def busy(self) -> int:
        return len(self._workers) - (self._spare is not None)

    def wake(self) -> None:
        if self._started and not self._woken:
            self._woken = True
            self.soon(self._start)

    def at_work(self) -> bool:
        return self.needs_this_thread() and asyncio.current_task() in self._workers

    def needs_this_thread(self) -> bool:
        return threading.get_ident() == self._loop_thread and self._loop.is_running()

    def end(self) -> None:
        if not self._loop.is_running():  # then no function will, either
            self._finish()
        elif self.needs_this_thread():
            self._close()  # now: whatever calls this on the loop expects nothing more to begin
        else:
            self.soon(self._close)

    def interrupt(self) -> None:
        self.end()
        if not self.needs_this_thread():
            self.soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        for worker in tuple(self._workers):
            worker.cancel()

    async def gone(self) -> None:
        while self._workers:
            await asyncio.wait(self._workers)

    def soon(self, call: Callable[[], object]) -> bool:
        """Have the loop make a call. If it was closed without us, nothing will run any more: that is the end."""
        try:
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(call)
            else:
                self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            self._finish()
            return False
        return True

    def _start(self) -> None:
        self._woken = False
        self._add_worker()

    def _add_worker(self) -> None:
        if self._spare is None and not self._closing and len(self._workers) < self._work.limit():
            self._spare = self._loop.create_task(self._run())
            self._workers.add(self._spare)
            self._spare.add_done_callback(self._worker_ended)

    async def _run(self) -> None:
        ready, begin, call, done = self._ready, self._work.begin, self._work.call, self._work.done
        self._spare = None
        try:
            while True:
                for _ in range(BURST):
                    if self._closing or not (ready or await self._more()):
                        return
                    item = ready.popleft()
                    if self._spare is None:
                        self._add_worker()
                    if not begin(item):
                        continue
                    try:
                        value = await call(item)
                    except BaseException as error:
                        await self._failed(item, error)
                    else:
                        done(item, value)
                self._add_worker()
                if self._spare is not None:
                    return  # that one goes on when others on the loop had their turn
                await asyncio.sleep(0)
        except InorderError as error:
            if not self._closing:
                self._close()  # which waits for this worker
                if (telling := self._work.lost(error)) is not None:
                    await telling

    async def _more(self) -> bool:
        """Whether there is something to begin, now that nothing was ready."""
        if len(self._workers) > 1 and self._work.crowd():
            await asyncio.sleep(0)
        if len(self._workers) > self._work.limit():
            return False
        if not self._ready:
            self._ready.extend(self._work.take(BURST))
        return bool(self._ready)

    async def _failed(self, item: Item, error: BaseException) -> None:
        try:
            telling = self._work.failed(item, error)
            if not isinstance(error, Exception) and not _is_its_own_cancellation(error):
                if isinstance(telling, Coroutine):
                    telling.close()  # or it would complain that nobody awaits it
                raise error
            if telling is not None:
                await telling
        finally:
            self._work.after_failure(item)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if self._spare is worker:
            self._spare = None
        if worker.cancelled():  # by the end of its loop, or by somebody who wants this to end
            self._close()
        elif self._closing and not self._workers:
            self._finish()
        elif self._ready or self._work.more():
            self._add_worker()

    def _close(self) -> None:
        self._closing = True
        self._give_back_unbegun()
        if not self._workers:
            self._finish()

    def _finish(self) -> None:
        if not self._last.acquire(blocking=False):
            return
        self._closing = True
        telling = self._work.ended()
        if telling is None:
            return
        if self.needs_this_thread():
            self._workers.add(self._loop.create_task(telling))
        else:
            asyncio.run(telling)


def _is_its_own_cancellation(error: BaseException) -> bool:
    """Whether a function raised CancelledError because of something it awaited, not because it shall end."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


Made = TypeVar("Made")


class LoopThread:
    """A loop of our own, for `async def` functions of whom has none."""

    def __init__(self) -> None:
        self._ready: Pending[asyncio.AbstractEventLoop] = Pending()
        self._stop = asyncio.Event()
        self._maker = threading.get_ident()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="inorder-loop", daemon=True)
        self._thread.start()
        self.loop = self._ready.result()

    async def _run(self) -> None:
        self._ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def call(self, make: Callable[[], Made]) -> Made:
        """Run `make` on the loop's thread and return what it makes."""
        made: Pending[Made] = Pending()

        def run() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return made.result()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._stop.set)

    def finish(self, last: Coroutine[Any, Any, object]) -> None:
        """Run something to its end, then end. Who made this loop waits for it.

        Others get here by the garbage collector, in the middle of something that the loop may need.
        """
        ending = asyncio.run_coroutine_threadsafe(last, self.loop)
        if threading.get_ident() != self._maker:
            ending.add_done_callback(lambda _: self.stop())
            return
        ending.result()
        self.stop()
        self._thread.join()
