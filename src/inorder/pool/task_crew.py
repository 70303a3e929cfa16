"""Workers that are tasks on a loop, and a loop for whoever has none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from math import inf
from time import perf_counter
from typing import Any, TypeVar

from inorder.errors import InorderError
from inorder.pending import Pending
from inorder.pool.crew import Crew, Item

# For so long a task works on items before others on its loop have a turn: as long as a thread has the interpreter, or
# twice as long as the loop had other things to do, within limits. Who goes sooner falls behind a producer on the same
# loop, and what waits longer is out of the processor's caches.
TURN_SECONDS = 0.005
LONGEST_TURN_SECONDS = 0.05
SHARE = 2
BETWEEN_LOOKS = 10  # items that are worked on before it looks at the time
# Items that are taken together, which costs as much as some twenty of them. More would be so many objects at once
# that the garbage collector goes over them again and again.
BURST = 200


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
        self._looking = 0  # workers that look for something to begin
        self._woken = False
        self._left_at = inf  # when others had the loop, although there was more to do
        self._last = threading.Lock()  # taken once, by whoever ends it all

    @property
    def busy(self) -> int:
        return len(self._workers) - (self._spare is not None)

    def wake(self) -> None:
        # What a loop was asked for before it was closed, it never does.
        if self._started and (not self._woken or self._loop.is_closed()):
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
        ready, work = self._ready, self._work
        doubts, begin, call, call_sure = work.doubts, work.begin, work.call, work.call_sure
        done, ends = work.done, work.ends
        self._spare = None
        try:
            while True:
                turn_ends = self._turn_ends()
                while perf_counter() < turn_ends:
                    for _ in range(BETWEEN_LOOKS):
                        if self._closing or not (ready or await self._more()):
                            return
                        item = ready.popleft()
                        if self._spare is None:
                            self._add_worker()
                        if doubts and not begin(item):
                            continue
                        try:
                            value = await (call(item) if doubts else call_sure(item))
                        except GeneratorExit as error:
                            if asyncio.current_task(self._loop) not in self._workers:
                                raise  # from the garbage collector, long after the loop was closed, with any lock held
                            await self._failed(item, error)
                        except BaseException as error:
                            await self._failed(item, error)
                        else:
                            if ends is None:
                                done(item, value)
                            else:
                                ends(item)
                self._left_at = perf_counter()
                self._add_worker()
                if self._spare is not None:
                    self._workers.discard(asyncio.current_task())  # at once: that one does not wait for this one
                    return  # that one goes on when others on the loop had their turn
                await asyncio.sleep(0)
        except InorderError as error:
            if not self._closing:
                self._close()  # which waits for this worker
                if (telling := self._work.lost(error)) is not None:
                    await telling

    def _turn_ends(self) -> float:
        now = perf_counter()
        others = max(now - self._left_at, 0)
        self._left_at = inf
        return now + min(max(TURN_SECONDS, SHARE * others), LONGEST_TURN_SECONDS)

    async def _more(self) -> bool:
        """Whether there is something to begin, now that nothing was ready."""
        self._looking += 1
        try:
            if self.busy > self._looking and self._work.crowd():
                await asyncio.sleep(0)
        finally:
            self._looking -= 1
        if len(self._workers) > self._work.limit():
            return False
        if not self._ready:
            self._ready.extend(self._work.take(BURST))
        return bool(self._ready)

    async def _failed(self, item: Item, error: BaseException) -> None:
        try:
            telling = self._work.failed(item, error)
            if not isinstance(error, Exception | GeneratorExit) and not is_its_own_cancellation(error):
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
        else:  # whoever noticed the end may be on another loop, in the middle of something else
            threading.Thread(target=asyncio.run, args=(telling,), name="inorder-loop", daemon=True).start()


def is_its_own_cancellation(error: BaseException) -> bool:
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
        try:
            self._thread.start()
            self.loop = self._ready.result()
        except BaseException:  # as Ctrl-C: nobody else will end it
            self._ready.map(lambda loop: loop.call_soon_threadsafe(self._stop.set))
            raise

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

    def soon(self, call: Callable[[], object]) -> None:
        """Have the loop make a call, behind all others."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        self.soon(self._stop.set)

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
