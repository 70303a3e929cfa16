"""One pass of a source through a pool: between the feed, the crew and the reader. Thread-safe.

Decides what a failure means and watches the time; the order is the window's, the waiting is the crew's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from inorder.clock import MICROSECONDS, Timer
from inorder.errors import FailedPrecondition, InorderError
from inorder.forks import stays_here
from inorder.pending import Pending
from inorder.pool.calls import Calls
from inorder.pool.crew import Crew
from inorder.pool.feeds import Feed, FeedInPlace
from inorder.pool.metrics import PoolMetrics
from inorder.pool.options import PoolOptions
from inorder.pool.outcomes import ItemError, ItemGap, ItemTimeout, Outputs, Raise, WorkersGone, WorkersStuck
from inorder.pool.scaling import Load, Scaler
from inorder.pool.task_crew import is_its_own_cancellation
from inorder.pool.thread_crew import ThreadCrew
from inorder.pool.window import FREE, Job, Window

_log = logging.getLogger(__name__)


class Bell(Protocol):
    """Wakes the reader."""

    def ring(self) -> None:
        """Called on any thread; returns at once."""


class Run:
    """What a crew works on, a feed fills and a reader empties. Started once."""

    feed: Feed
    at_hand: FeedInPlace | None  # the feed, if one need not wait for it
    crew: Crew[Job]
    calls: Calls

    def __init__(self, options: PoolOptions, bell: Bell) -> None:
        self._options = options
        self._clock = options.clock
        self._bell = bell
        # Reentrant, as a partition key may look at the metrics, and the garbage collector may end a forgotten pass.
        self._lock = threading.RLock()
        self._window = Window(
            options.window,
            ordered=options.preserve_order,
            keyed=options.partition_key is not None,
            buffer=options.buffer_size,
        )
        self.ready = self._window.ready
        self._has_time_limit = options.process_timeout is not None
        self._enough = max(1, options.window // 4)  # room that is worth waking somebody for
        self._starved = False  # somebody would take an item from the source if there were room
        self._reader_waits = False
        self._source_over = False
        self.source_error: BaseException | None = None
        self._stopped = False
        self._left: dict[int, Any] = {}  # what was inside then
        self.is_the_parents = False  # of a process that has forked: nothing of it runs in this one
        stays_here(self)
        self._workers_gone = False  # although nobody stopped them
        self.ended_all: Pending[None] = Pending()  # every worker has ended
        self._fixed_workers = options.max_workers  # which options work out whenever they are asked
        self._scaler = (
            None if options.autoscale is None else Scaler(options.autoscale, options.window, self._clock.now_us())
        )
        self._timers: dict[int | str, Timer] = {}  # of retries and time limits, by number; of other things by name
        self._failures: dict[int, int] = {}  # of items that failed and are tried again
        self._verdicts: dict[int, tuple[Any, ...]] = {}  # what is to stand in the places of items that failed
        self._without_key: dict[int, Exception] = {}  # why not
        # Their places are given up, but somebody works on them, or will come upon them; True: past the time limit.
        self._late: dict[int, bool] = {}
        self._untold: set[int] = set()  # past the time limit, too, but keep their places until that was told
        self._stuck = 0  # threads that run past the time limit
        self.doubts = ("late, or stopped",)  # there may always be some
        self.call_sure = self.call
        self.ends = None
        self._counts = dict.fromkeys(("failed", "timed_out", "retries", "gaps", "late_results"), 0)

    def assign(self, feed: Feed, crew: Crew[Job], calls: Calls) -> None:
        """Who takes part: from now on it may be ended, also before it is started."""
        self.feed, self.crew, self.calls = feed, crew, calls
        self.at_hand = feed if isinstance(feed, FeedInPlace) else None
        crew.assign(self)

    def start(self) -> None:
        if self._options.autoscale is not None:  # first: the time counts from here, and not from some item on
            self._repeat("scale", self._options.autoscale.interval, self._scale)
        if self._options.on_metrics is not None:
            self._repeat("metrics", self._options.metrics_interval, self._tell_metrics)
        self.crew.start(self)
        self.feed.start(self)

    # -- for the feed ------------------------------------------------------------------------------

    def room(self) -> bool:
        if self._window.free > 0:
            return True
        self._starved = True
        return self._window.free > 0  # again: the reader may have made room before it could know

    def admit(self, item: Any) -> None:
        with self._lock:
            if self._stopped:
                return  # too late: what was left has been told
            self._admit(item, self._clock.now_us())
        self.crew.wake()

    def _admit(self, item: Any, now_us: int) -> None:
        if self._options.partition_key is None:
            number = self._window.admit(item, FREE, now_us)
        else:
            try:
                found = self._options.partition_key(item)
                key: Hashable = FREE if found is None else (found,)  # so that no key looks like none, as 0 and "" would
                number = self._window.admit(item, key, now_us)
            except Exception as error:  # it fails in its place, where others may wait for it
                self._without_key[self._window.issued] = error
                number = self._window.admit(item, FREE, now_us)
        if self._options.order_timeout is not None and number == self._window.head:
            self._watch_head()

    def source_ended(self, error: BaseException | None) -> None:
        with self._lock:
            self.source_error = error
            self._source_over = True  # last: the reader looks without the lock
            ring = self._reader_can_go_on()
        if ring:
            self._bell.ring()

    # -- for the crew ------------------------------------------------------------------------------

    def take(self, count: int) -> Sequence[Job]:
        with self._lock:
            jobs = [] if self._stopped else self._window.take(count)
            if not jobs and self._fill(count):
                jobs = self._window.take(count)
            ring = self._reader_can_go_on()
        if ring:
            self._bell.ring()
        return jobs

    def _fill(self, count: int) -> bool:
        """Let in what is at hand, if that is how the source is read; whether there was anything."""
        if self.at_hand is None or self._source_over or self._stopped or not self.room():
            return False
        count = min(count, self._window.free)
        items = self.at_hand.fill(count)
        now_us = self._clock.now_us()
        for item in items:
            self._admit(item, now_us)
        if len(items) < count:
            self.source_error = self.at_hand.failure
            self._source_over = True
        return bool(items)

    def more(self) -> bool:
        return self._window.runnable > 0 or self._can_fill()

    def _can_fill(self) -> bool:
        return self.at_hand is not None and not self._source_over and self._window.free > 0

    def begin(self, item: Job) -> bool:
        if self._late and item[0] in self._late:  # given up before anybody had time for it
            with self._lock:
                del self._late[item[0]]
                self._forget(item[0])
                self._window.ended(item)
            return False
        return not self._stopped

    def call(self, item: Job) -> Any:
        if self._without_key and item[0] in self._without_key:
            raise self._without_key[item[0]]
        return self.calls.call(item)

    def done(self, item: Job, value: Any) -> None:
        if self._has_time_limit:
            self.calls.finished(item[0])
        if type(value) is Raise:
            self._counts["failed"] += 1
        self._finish(item, value if type(value) in (Outputs, Raise) else (value,))

    def failed(self, item: Job, error: BaseException) -> Awaitable[object] | None:
        number = item[0]
        if self.calls.gave_up(number):
            assert self._options.process_timeout is not None
            error = ItemTimeout(self._options.process_timeout)
            self._counts["timed_out"] += 1
        if self._has_time_limit:
            self.calls.finished(number)
        with self._lock:
            self._end_timer(number)  # the time limit is for the function, and not for the error handler
            if self._stopped or number in self._late:
                return None
            failures = self._failures.get(number, 0) + 1
            retry = self._options.retry
            if retry is not None and failures < retry.max_attempts and _is_a_failure(error):
                self._failures[number] = failures
                self._counts["retries"] += 1
                self._at(number, retry.backoff(failures), partial(self._try_again, item))
                return None
        self._verdicts[number] = self._verdict(number, item[2], error)
        return self._tell(item[2], error)

    def after_failure(self, item: Job) -> None:
        outputs = self._verdicts.pop(item[0], None)
        if outputs is not None or item[0] in self._late:  # else it is tried again, or everything has stopped
            self._finish(item, outputs)

    def _finish(self, item: Job, outputs: tuple[Any, ...] | None) -> None:
        """Nobody works on an item any more, and that is what it came to; None if nobody wants to know."""
        number = item[0]
        with self._lock:
            self._end_timer(number)
            self._forget(number)
            self._window.ended(item)
            if self._late and number in self._late:
                self._stuck -= self._late.pop(number)
                self._counts["late_results"] += 1
            elif outputs is not None:
                self._settle(number, outputs)
            ring = self._reader_can_go_on()
        if ring:
            self._bell.ring()
        if self._starved and self.at_hand is None:  # else this worker itself looks for more
            self._wake_feed()

    def _forget(self, number: int) -> None:
        if self._failures or self._without_key:
            self._failures.pop(number, None)
            self._without_key.pop(number, None)

    def _settle(self, number: int, outputs: tuple[Any, ...]) -> None:
        if self._stopped:
            return  # it is among what was left
        self._window.settle(number, outputs, self._clock.now_us())
        if self._options.order_timeout is not None:
            self._watch_head()

    def give_back(self, items: Sequence[Job]) -> None:
        with self._lock:
            self._window.give_back(list(items))

    def flush(self) -> None: ...

    def crowd(self) -> bool:
        return False

    def limit(self) -> int:
        return self._workers() + self._stuck

    def lost(self, error: InorderError) -> Awaitable[object] | None:
        raise error  # `take` raises nothing

    def ended(self) -> Coroutine[Any, Any, object] | None:
        self.calls.close()
        with self._lock:
            self._workers_gone = not self._stopped
            ring = self._reader_can_go_on()
        if ring:
            self._bell.ring()
        self.ended_all.set_result(None)
        return None

    # -- failures ----------------------------------------------------------------------------------

    def _verdict(self, number: int, item: Any, error: BaseException) -> tuple[Any, ...]:
        """What stands in the place of an item that failed for good."""
        self._counts["failed"] += 1
        if self._options.when_failed == "raise" or not _is_a_failure(error):
            return Raise((error,))
        if self._options.when_failed == "emit":
            return (ItemError(number, item, error, self._failures.get(number, 0) + 1),)
        return ()

    def _tell(self, item: Any, error: BaseException) -> Awaitable[object] | None:
        """Tell the error handler; what it leaves to await is awaited by a task, and here by a thread."""
        if self._options.error_handler is None:
            if self._options.when_failed == "skip":
                _log.error("an item was skipped, because the function failed: %s", error, exc_info=error)
            return None
        try:
            left = self._options.error_handler(item, error)
        except KeyboardInterrupt:
            raise
        except BaseException:  # also by sys.exit(): that is no reason for the others to end
            _log.exception("the error handler of a pool failed")
            return None
        if not inspect.isawaitable(left):
            return None
        if isinstance(self.crew, ThreadCrew):
            asyncio.run(_await(left))
            return None
        return _await(left)

    def _try_again(self, job: Job) -> None:
        with self._lock:
            self._timers.pop(job[0], None)
            if self._stopped:
                return
            self._window.give_back([job])
        self.crew.wake()

    # -- time --------------------------------------------------------------------------------------

    def started(self, job: Job, give_up: Callable[[], object] | None) -> None:
        """A call has begun, and may take so long and no longer; then it can be made to give up, or not."""
        assert self._options.process_timeout is not None
        with self._lock:
            leave = partial(self._leave_behind, job, self._failures.get(job[0], 0))
            self._at(job[0], self._options.process_timeout, give_up or leave)

    def _leave_behind(self, job: Job, failures: int) -> None:
        """The time of a call is over, but its thread cannot be stopped. So its key waits, but its place does not."""
        assert self._options.process_timeout is not None
        number = job[0]
        with self._lock:
            if self._failures.get(number, 0) != failures or self._timers.pop(number, None) is None or self._stopped:
                return  # it has ended meanwhile
            self._counts["timed_out"] += 1
            self._stuck += 1
            given_up = number in self._late
            self._late[number] = True
            if not given_up:
                self._untold.add(number)
            stuck = WorkersStuck(self._stuck) if self._stuck > self._workers() else None
        self.crew.wake()  # another thread takes its place
        if given_up:
            return
        error = ItemTimeout(self._options.process_timeout)
        verdict = self._verdict(number, job[2], error) if stuck is None else Raise((stuck,))
        if self._options.error_handler is None:
            self._tell_and_settle(job, error, verdict)
        else:  # elsewhere: it may wait for something that needs a timer, and this is the thread of all of them
            telling = (job, error, verdict)
            threading.Thread(target=self._tell_and_settle, args=telling, name="inorder-error", daemon=True).start()

    def _tell_and_settle(self, job: Job, error: BaseException, verdict: tuple[Any, ...]) -> None:
        try:
            self._tell(job[2], error)
        finally:
            with self._lock:
                if job[0] in self._untold:  # else its place was given up meanwhile
                    self._untold.remove(job[0])
                    self._settle(job[0], verdict)
                ring = self._reader_can_go_on()
            if ring:
                self._bell.ring()
            if self._starved:
                self._wake_feed()

    def _watch_head(self) -> None:
        """See to it that the head is looked at when it has been one for too long."""
        assert self._options.order_timeout is not None
        if "head" not in self._timers and self._window.head is not None:
            due_us = self._window.head_since_us + round(self._options.order_timeout * MICROSECONDS)
            self._timers["head"] = self._clock.call_at(due_us, self._look_at_head)

    def _look_at_head(self) -> None:
        assert self._options.order_timeout is not None
        ring = False
        with self._lock:
            self._timers.pop("head", None)
            head, now_us = self._window.head, self._clock.now_us()
            if self._stopped or head is None:
                return
            if now_us - self._window.head_since_us >= round(self._options.order_timeout * MICROSECONDS):
                self._give_up(head, now_us)
                ring = self._reader_can_go_on()
            self._watch_head()
        if ring:
            self._bell.ring()

    def _give_up(self, number: int, now_us: int) -> None:
        """Nobody waits for this item any more. If it is not done yet, what it comes to is dropped."""
        item = self._window.inside[number]
        self._counts["gaps"] += 1
        if number in self._untold:
            self._untold.remove(number)  # its thread was left behind before, and may have ended since
        else:
            self._late[number] = False
        self._window.settle(number, (ItemGap("", number, number, 1, "order_timeout", item),), now_us)

    def _at(self, name: int | str, seconds: float, call: Callable[[], object]) -> None:
        if before := self._timers.get(name):
            before.cancel()
        self._timers[name] = self._clock.call_at(self._clock.now_us() + round(seconds * MICROSECONDS), call)

    def _end_timer(self, number: int) -> None:
        if self._timers and (timer := self._timers.pop(number, None)):
            timer.cancel()

    def _repeat(self, name: str, seconds: float, call: Callable[[], object]) -> None:
        def again() -> None:
            if not self._stopped:
                call()
                self._repeat(name, seconds, call)

        with self._lock:
            if not self._stopped:
                self._at(name, seconds, again)

    # -- how many workers --------------------------------------------------------------------------

    def _workers(self) -> int:
        return self._fixed_workers if self._scaler is None else self._scaler.workers

    def _scale(self) -> None:
        assert self._scaler is not None
        with self._lock:
            runnable = self._window.runnable + self.crew.waiting + (self._window.free if self._can_fill() else 0)
            results = len(self.ready) + self._window.behind_head
            load = Load(runnable, self.crew.busy - self._stuck, results, self._window.behind_head)
            changed = self._scaler.look(load, self._clock.now_us())
        if changed:
            self.crew.resize()
            self.calls.resize()

    # -- for the reader ----------------------------------------------------------------------------

    def over(self) -> bool:
        """Whether nothing will be ready any more."""
        return self._stopped or self._workers_gone or (self._source_over and not self._window.inside)

    def reader_waits(self) -> bool:
        """Whether the reader has to wait for the bell. It will ring once."""
        self._reader_waits = True
        if self.ready or self.over():
            self._reader_waits = False
        return self._reader_waits

    def _reader_can_go_on(self) -> bool:
        if self._reader_waits and (self.ready or self.over()):
            self._reader_waits = False
            return True
        return False

    def emitted(self, number: int) -> bool:
        """The reader is about to have the last output of an item; False if it was stopped, and may not."""
        item = self._window.emitted(number)
        if self._stopped:  # perhaps in this moment: what was said to be left is left
            with self._lock:
                if number in self._left:
                    self._window.inside[number] = item
                    return False
        if self._starved:
            self._wake_feed()
        return True

    def _wake_feed(self) -> None:
        """If there is room for something, and enough of it to be worth the trouble, or nothing else will come."""
        if self._window.free >= (self._enough if self.ready else 1):
            self._starved = False
            self.feed.wake()

    def stopped(self) -> bool:
        return self._stopped

    def raise_what_ended_it(self) -> None:
        """All is read: if the source ended with an error, it is raised now, in its place."""
        if self.is_the_parents:
            raise FailedPrecondition("a pass does not survive a fork: its workers are the parent's; call map again")
        if self._stopped:
            return
        if self.source_error is not None:
            raise self.source_error
        if self._window.inside or not self._source_over:
            raise WorkersGone

    async def gone(self) -> None:
        """Wait, on the loop, until nothing of this is left there."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self.feed.gone()
                await self.crew.gone()
                break
            except asyncio.CancelledError as error:  # once more: the others were told already, and are about to end
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def drain(self) -> None:
        """Ask the source for nothing more."""
        self.feed.drain()
        if self.at_hand is not None:
            with self._lock:  # perhaps it has ended by an error, which is still to be raised
                self.source_ended(self.source_error)

    def stop(self) -> list[Any]:
        """Stop at once; returns the inputs that were taken and not put out, in order."""
        with self._lock:
            if self._stopped:
                return list(self._left.values())
            self._stopped = True
            self._left = dict(self._window.inside)
            self.ready.clear()
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            ring, self._reader_waits = self._reader_waits, False
        self.feed.stop()
        self.crew.interrupt()
        self.calls.close()
        if ring:
            self._bell.ring()
        return list(self._left.values())

    def _leave_to_parent(self) -> None:
        self._lock = threading.RLock()  # a thread that is not here may hold the other one
        self._stopped = self.is_the_parents = True
        self._left = dict(self._window.inside)
        self.ready.clear()

    def metrics(self) -> PoolMetrics:
        with self._lock:
            window, now_us = self._window, self._clock.now_us()
            used, issued, workers = len(window.inside), window.issued, self._workers()
            busy = min(workers, max(0, self.crew.busy - self._stuck))
            full = window.free <= 0
            return PoolMetrics(
                window=window.size,
                window_used=used,
                buffered_results=len(window.ready) + window.behind_head,
                workers=workers,
                busy=busy,
                blocked=workers - busy if full else 0,
                idle=0 if full else workers - busy,
                head_of_line=window.head_of_line(now_us),
                head_of_line_seconds=window.head_of_line_seconds(now_us),
                worst_head_of_line=window.worst,
                taken=issued,
                emitted=issued - used,
                scale_events=tuple(self._scaler.events) if self._scaler is not None else (),
                **self._counts,
            )

    def _tell_metrics(self) -> None:
        assert self._options.on_metrics is not None
        try:
            self._options.on_metrics(self.metrics())
        except Exception:
            _log.exception("the metrics callback of a pool failed")


def _is_a_failure(error: BaseException) -> bool:
    """Whether it is the item's. A function may also await something that somebody has cancelled."""
    return isinstance(error, Exception | asyncio.CancelledError)


async def _await(awaitable: Awaitable[object]) -> None:
    try:
        await awaitable
    except (Exception, SystemExit):
        _log.exception("the error handler of a pool failed")
    except asyncio.CancelledError as error:
        if not is_its_own_cancellation(error):
            raise
        _log.exception("the error handler of a pool failed")
