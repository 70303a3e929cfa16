"""The worker pool as users see it: a function, applied to whatever comes, by many workers, in order if you like."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from inorder.errors import FailedPrecondition
from inorder.options import build
from inorder.pool.calls import Calls, ProcessCalls, TaskCalls, ThreadCalls
from inorder.pool.crew import Crew
from inorder.pool.feeds import Feed, FeedInPlace, FeedTask, FeedThread, kind_of
from inorder.pool.metrics import PoolMetrics
from inorder.pool.options import PoolOptions
from inorder.pool.outcomes import Raise
from inorder.pool.run import Bell, Run
from inorder.pool.task_crew import LoopThread, TaskCrew
from inorder.pool.thread_crew import ThreadCrew
from inorder.pool.window import Job

In = TypeVar("In")
if TYPE_CHECKING:
    import typing_extensions  # type checkers know it, installed or not

    # What comes out is not what the function returns if that is a generator or `Outputs`, or if errors are put out. So
    # nothing is concluded from the function: a pool is one of anything, unless somebody says `WorkerPool[str](fetch)`.
    Out = typing_extensions.TypeVar("Out", default=Any)
else:
    Out = TypeVar("Out")


class WorkerPool(Generic[Out]):
    """Many workers for one function. `map` may be called as often as you like; each call has workers of its own.

    >>> pool = WorkerPool(str.upper, workers=4, preserve_order=True)
    >>> list(pool.map(["a", "b", "c"]))
    ['A', 'B', 'C']
    """

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        """The function and the options of `PoolOptions`; a misspelt one is an error."""
        self.options = build(PoolOptions, {"fn": fn, **options})

    def map(self, source: Iterable[In] | AsyncIterable[In]) -> Results[Out]:
        """The outputs for everything in `source`: read them by `for` or by `async for`, whatever the source is.

        Nothing begins before the first one is asked for.
        """
        return Results(self.options, source)

    def __repr__(self) -> str:
        return f"WorkerPool({self.options.fn!r}, kind={self.options.work_kind!r}, workers={self.options.max_workers})"


class Results(Generic[Out]):
    """The outputs of one pass, to be read once. To leave the loop early stops everything."""

    def __init__(self, options: PoolOptions, source: Any) -> None:
        self._options = options
        self._kind_of_feed = kind_of(source)
        self._source = source
        self._beginning = threading.RLock()  # reentrant, as a signal handler may end what its thread begins
        self._run: Run | None = None
        self._drained = False
        self._in_block = False
        self._reading: AsyncGenerator[Out] | None = None

    def __iter__(self) -> Iterator[Out]:
        bell = _ThreadBell()
        run, loop_thread = self._begin_in_threads(bell)
        ready = run.ready
        try:
            while not run.over() or ready:
                while ready:
                    try:
                        number, outputs = ready.popleft()
                    except IndexError:  # it was stopped in this moment
                        break
                    if isinstance(outputs, Raise):
                        raise outputs[0]
                    for output in outputs[:-1]:
                        yield output
                        if run.stopped():
                            return
                    if run.emitted(number):
                        yield outputs[-1]
                if run.reader_waits():
                    bell.wait()
            run.raise_what_ended_it()
        finally:
            run.stop()
            if loop_thread is not None and not run.is_the_parents:
                loop_thread.finish(run.gone())

    def __aiter__(self) -> AsyncIterator[Out]:
        reading = self._read()
        if self._in_block:
            self._reading = reading  # which the end of the block ends, and not the garbage collector
        return reading

    async def _read(self) -> AsyncGenerator[Out]:
        bell = _LoopBell()
        run = self._begin(bell, asyncio.get_running_loop())
        ready = run.ready
        try:
            while not run.over() or ready:
                while ready:
                    try:
                        number, outputs = ready.popleft()
                    except IndexError:  # it was stopped in this moment
                        break
                    if isinstance(outputs, Raise):
                        raise outputs[0]
                    for output in outputs[:-1]:
                        yield output
                        if run.stopped():
                            return
                    if run.emitted(number):
                        yield outputs[-1]
                if run.reader_waits():
                    await bell.wait()
            run.raise_what_ended_it()
        finally:
            run.stop()
            await run.gone()

    def __enter__(self) -> Results[Out]:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Results[Out]:
        self._in_block = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """When this returns, nothing runs any more."""
        self.stop()
        if self._reading is not None and not self._reading.ag_running:  # type: ignore[attr-defined]  # as Python's have
            await self._reading.aclose()
        elif self._run is not None:  # another task reads, and ends by itself
            await self._run.gone()

    # -- steering ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ask the source for nothing more; the loop ends when what was taken has been put out.

        What the source is about to give is still taken, or it would be lost: one that waits keeps the loop waiting.
        """
        with self._beginning:
            self._drained = True
        if self._run is not None:
            self._run.drain()

    def stop(self) -> list[Any]:
        """Stop at once: the loop ends. Returns the inputs that were taken and not put out, in their order.

        Tasks are cancelled and processes killed; a thread ends when its function returns.
        """
        with self._beginning:
            self._drained = True  # if it has not begun, nothing will be taken
        return [] if self._run is None else self._run.stop()

    def metrics(self) -> PoolMetrics:
        """What is going on, or how it was in the end."""
        if self._run is None:
            raise FailedPrecondition("metrics: nothing has begun; ask for the first output")
        return self._run.metrics()

    # -- the parts ---------------------------------------------------------------------------------

    def _begin_in_threads(self, bell: _ThreadBell) -> tuple[Run, LoopThread | None]:
        """For a reader without a loop; if one is needed, it is made."""
        if self._options.work_kind != "async" and self._kind_of_feed is not FeedTask:
            return self._begin(bell, None), None
        loop_thread = LoopThread()
        begun: list[Run] = []
        try:
            loop_thread.call(lambda: begun.append(self._begin(bell, loop_thread.loop)))
            return begun[0], loop_thread
        except BaseException:
            # As Ctrl-C: on the loop, for it may only be about to begin.
            loop_thread.soon(lambda: [run.stop() for run in begun])
            loop_thread.stop()
            raise

    def _begin(self, bell: Bell, loop: asyncio.AbstractEventLoop | None) -> Run:
        run: Run | None = None
        try:
            with self._beginning:
                if self._run is not None:
                    raise FailedPrecondition("the outputs of a pass can be read once; call map again for another pass")
                run = Run(self._options, bell)
                crew, calls = self._crew(run, loop)
                run.assign(self._feed(crew, loop), crew, calls)
                self._run = run
                if self._drained:
                    run.drain()
                run.start()
            return run
        except BaseException:  # as Ctrl-C, or that there are no threads: nobody reads, so nobody else ends it
            if run is not None and self._run is run:
                run.stop()
            raise

    def _crew(self, run: Run, loop: asyncio.AbstractEventLoop | None) -> tuple[Crew[Job], Calls]:
        options = self._options
        started = None if options.process_timeout is None else run.started
        if options.work_kind == "async":
            assert loop is not None
            tasks: TaskCrew[Job] = TaskCrew(loop)
            return tasks, TaskCalls(options.fn, started, tasks.soon)
        threads: ThreadCrew[Job] = ThreadCrew("inorder-worker")
        if options.work_kind == "process":
            return threads, ProcessCalls(options.fn, started, run.limit)
        return threads, ThreadCalls(options.fn, started)

    def _feed(self, crew: Crew[Job], loop: asyncio.AbstractEventLoop | None) -> Feed:
        if self._kind_of_feed is FeedInPlace:
            return FeedInPlace(self._source, crew.wake)
        if self._kind_of_feed is FeedTask:
            assert loop is not None
            return FeedTask(self._source, loop)
        return FeedThread(self._source)


class _ThreadBell:
    def __init__(self) -> None:
        # No event: whoever sets one in a signal handler waits for ever for its own thread, should that wait for it.
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rung.put(None)

    def wait(self) -> None:
        self._rung.get()


class _LoopBell:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        if threading.get_ident() == self._thread:
            self._rung.set()
        else:
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung.clear()
