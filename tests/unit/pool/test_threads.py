"""Threads as workers, and loops of our own for readers that have none: what they do, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from inorder.clock import SYSTEM_CLOCK
from inorder.pool import Autoscale, ItemError, ItemGap, ItemTimeout, Outputs, Retry, WorkerPool, WorkersStuck
from inorder.testing import ManualClock

from ..interrupts import is_interrupted, is_signalled

PATIENCE_SECONDS = 30


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, sorted(one.name for one in threading.enumerate())
        time.sleep(0.001)


others: set[threading.Thread] = set()  # what other tests have started may still be about to end


@pytest.fixture(autouse=True)
def count_what_the_test_starts() -> None:
    others.clear()
    others.update(threading.enumerate())


def threads(name: str) -> int:
    return sum(one.name == name for one in threading.enumerate() if one not in others)


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        if number % 7 == 0:
            await asyncio.sleep(0)
        yield number


async def same_async(item: Any) -> Any:
    await asyncio.sleep(0)
    return item


def same(item: Any) -> Any:
    return item


SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: list(range(200)),
    "range": lambda: range(200),
    "deque": lambda: deque(range(200)),
    "dict": lambda: dict.fromkeys(range(200)),
    "iterator": lambda: iter(range(200)),
    "generator": lambda: (number for number in range(200)),
    "async generator": lambda: numbers(200),
}


@pytest.mark.parametrize("reader", ["for", "async for"])
@pytest.mark.parametrize("fn", [same, same_async], ids=["def", "async def"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_source_goes_with_every_function_and_every_reader(
    source: Callable[[], Any], fn: Callable[[Any], Any], reader: str
) -> None:
    pool: WorkerPool[int] = WorkerPool(fn, workers=3, preserve_order=True)

    async def read() -> list[int]:
        return [output async for output in pool.map(source())]

    outputs = list(pool.map(source())) if reader == "for" else asyncio.run(read())
    assert outputs == list(range(200))


def test_an_old_sequence_is_a_source() -> None:
    class Old:
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise IndexError
            return index

    assert list(WorkerPool[int](same, preserve_order=True).map(Old())) == [0, 1, 2, 3, 4]  # type: ignore[arg-type]


def test_an_async_function_may_run_in_threads_and_another_one_on_a_loop() -> None:
    assert list(WorkerPool[int](same_async, kind="thread", preserve_order=True).map(range(9))) == list(range(9))
    assert list(WorkerPool[int](same, kind="async", preserve_order=True).map(range(9))) == list(range(9))


def test_functions_generate_in_threads_too() -> None:
    def repeat(item: int) -> Iterator[int]:
        for _ in range(item):
            yield item

    assert list(WorkerPool[int](repeat, preserve_order=True).map([2, 0, 1])) == [2, 2, 1]


# -- stress ------------------------------------------------------------------------------------------------


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Stress:
    """A function that takes a random time, fails, filters and multiplies; and what it saw."""

    def __init__(self, seed: int, keys: int = 4) -> None:
        self.random = Random(seed)
        self.keys = keys
        self.lock = threading.Lock()
        self.at_work: Counter[int] = Counter()
        self.most_at_work = 0
        self.overlaps = 0
        self.order: dict[int, list[int]] = {}
        self.attempts: Counter[int] = Counter()

    def key(self, item: int) -> int:
        return item % self.keys

    def __call__(self, item: int) -> Any:
        key = self.key(item)
        with self.lock:
            self.overlaps += self.at_work[key] > 0
            self.at_work[key] += 1
            self.most_at_work = max(self.most_at_work, self.at_work.total())
            self.order.setdefault(key, []).append(item)
            self.attempts[item] += 1
            attempt = self.attempts[item]
            pause = self.random.choice([0, 0, 0, 0.0005, 0.002])
        try:
            if pause:
                time.sleep(pause)
            if item % 11 == 3 and attempt == 1:
                raise ValueError(item)
            if item % 13 == 5:
                return Outputs()
            return Outputs([item, item]) if item % 13 == 6 else item
        finally:
            with self.lock:
                self.at_work[key] -= 1

    @staticmethod
    def expected(count: int) -> list[int]:
        return [item for item in range(count) for _ in range({5: 0, 6: 2}.get(item % 13, 1))]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("size", [{"workers": 5}, {"autoscale": Autoscale(max_workers=5, interval=0.005)}], ids=str)
@pytest.mark.parametrize("at_hand", [True, False], ids=["at hand", "not at hand"])
def test_threads_under_stress(seed: int, keyed: bool, ordered: bool, size: dict[str, Any], at_hand: bool) -> None:
    stress = Stress(seed)
    pool: WorkerPool[int] = WorkerPool(
        stress,
        preserve_order=ordered,
        partition_key=stress.key if keyed else None,
        on_error=Retry(minimum_backoff=0.001),
        **size,
    )
    outputs = list(pool.map(range(200) if at_hand else iter(range(200))))
    assert (outputs if ordered else sorted(outputs)) == stress.expected(200)
    assert stress.most_at_work <= 5
    if keyed:
        assert not stress.overlaps
        for order in stress.order.values():
            assert order == sorted(order)  # an item that is tried again comes twice, and nothing in between


@pytest.mark.usefixtures("hasty")
def test_nobody_waits_for_ever_however_often_it_begins_and_ends() -> None:
    pool: WorkerPool[int] = WorkerPool(same, workers=4, preserve_order=True)
    for count in range(150):
        items = list(range(count % 12))
        assert list(pool.map(items)) == items
        assert list(pool.map(iter(items))) == items


@pytest.mark.usefixtures("hasty")
def test_many_items_that_only_compute_go_through() -> None:
    assert list(WorkerPool[int](same, workers=8, preserve_order=True).map(iter(range(10_000)))) == list(range(10_000))


@pytest.mark.usefixtures("hasty")
def test_several_threads_may_stop_drain_and_look_at_the_same_time() -> None:
    for _ in range(30):
        results = WorkerPool[int](same, workers=3).map(iter(range(10**9)))
        outputs: list[int] = []
        reader = threading.Thread(target=lambda results=results, outputs=outputs: outputs.extend(results))
        reader.start()
        wait_until(lambda outputs=outputs: outputs)
        left: list[list[int]] = []
        stops = [threading.Thread(target=lambda r=results, to=left: to.append(r.stop())) for _ in range(3)]
        for one in stops:
            one.start()
        results.drain()
        results.metrics()
        for one in (*stops, reader):
            one.join(PATIENCE_SECONDS)
        assert left[0] == left[1] == left[2] == sorted(left[0])
        assert not set(left[0]).intersection(outputs)
        assert sorted([*left[0], *outputs]) == list(range(results.metrics().taken))


# -- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_hand", [True, False])
@pytest.mark.parametrize("fn", [same, same_async])
def test_a_pass_that_is_interrupted_at_any_step_of_its_beginning_leaves_nothing_behind(
    fn: Callable[[int], Any], at_hand: bool
) -> None:
    step, interrupted = 0, True
    while interrupted:
        step += 1
        outputs = iter(WorkerPool[int](fn, workers=2).map(range(10**9) if at_hand else iter(range(10**9))))
        interrupted = is_interrupted(partial(next, outputs), step)
        del outputs
        wait_until(lambda: not any(map(threads, ("inorder-worker", "inorder-source", "inorder-loop"))))
    assert step > 20


@pytest.mark.parametrize("at_hand", [True, False])
@pytest.mark.parametrize("end", ["drain", "stop"])
def test_a_signal_handler_may_end_the_pass_at_any_step_of_the_thread_that_reads(end: str, at_hand: bool) -> None:
    step, signalled = 0, True
    while signalled:
        step += 1
        results = WorkerPool[int](same, workers=1, preserve_order=True, order_buffer_size=2).map(
            range(4) if at_hand else iter(range(4))
        )
        outputs: list[int] = []
        ended = deque[bool]()

        def read(results: Any = results, outputs: Any = outputs, ended: Any = ended, step: int = step) -> None:
            ended.append(
                is_signalled(lambda: outputs.extend(results), step, getattr(results, end), "inorder.pool", "threading")
            )

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(PATIENCE_SECONDS)
        assert ended, f"step {step}: it waits for ever, or failed"
        signalled = ended.pop()
        left = results.stop()
        assert outputs + left == list(range(len(outputs) + len(left))), f"step {step}"
        assert end == "stop" or not left, f"step {step}"
    assert outputs == list(range(4))


@pytest.mark.parametrize("fn", [same, same_async], ids=["def", "async def"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_an_endless_source_is_not_read_far_ahead(fn: Callable[[int], Any], ordered: bool) -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = WorkerPool[int](fn, workers=3, preserve_order=ordered).map(endless())
    for read, _ in enumerate(results, start=1):
        assert taken <= read + 6
        if read == 500:
            break


def test_those_threads_do_it_that_the_system_has() -> None:
    def fn(number: int) -> int:
        threading.stack_size(2**47)  # so that no other thread can be started
        return number

    outputs: list[int] = []
    pool: WorkerPool[int] = WorkerPool(fn, kind="thread", workers=3, preserve_order=True)
    reader = threading.Thread(target=lambda: outputs.extend(pool.map(range(20))), daemon=True)
    before = threading.stack_size()
    try:
        reader.start()
        reader.join(PATIENCE_SECONDS)
    finally:
        threading.stack_size(before)
    assert outputs == list(range(20))


def test_there_are_as_many_threads_as_calls_that_wait_and_no_more() -> None:
    go_on = threading.Event()
    at_work: list[int] = []

    def work(item: int) -> int:
        at_work.append(item)
        assert go_on.wait(PATIENCE_SECONDS)
        return item

    results = WorkerPool[int](work, workers=3, preserve_order=True).map(iter(range(50)))
    reader = threading.Thread(target=lambda: list(results))
    reader.start()
    wait_until(lambda: len(at_work) == 3)
    wait_until(lambda: results.metrics().taken == 6)
    assert threads("inorder-worker") == 3
    metrics = results.metrics()
    assert (metrics.busy, metrics.window_used) == (3, 6)
    go_on.set()
    reader.join(PATIENCE_SECONDS)
    assert results.metrics().emitted == 50


# -- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [same, same_async], ids=["def", "async def"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async source", "source"])
def test_who_leaves_the_loop_is_told_what_was_left(fn: Callable[[int], Any], asynchronous: bool) -> None:
    results = WorkerPool[int](fn, workers=2, preserve_order=True).map(numbers(10**9) if asynchronous else range(10**9))
    for output in results:
        if output == 50:
            break
    left = results.stop()
    assert left == list(range(51, results.metrics().taken))
    results.drain()  # means nothing any more


def test_a_generator_that_is_left_is_closed_on_the_thread_that_ran_it() -> None:
    ran: list[int] = []
    closed: list[int] = []

    def source() -> Iterator[int]:
        try:
            ran.append(threading.get_ident())
            while True:
                yield 1
        finally:
            closed.append(threading.get_ident())

    for _ in WorkerPool[int](same).map(source()):
        break
    wait_until(lambda: closed)
    assert closed == ran


@pytest.mark.parametrize("fn", [same, same_async], ids=["def", "async def"])
def test_what_the_reader_raises_ends_the_pass(fn: Callable[[int], Any]) -> None:
    def read() -> None:
        for _ in WorkerPool[int](fn, workers=2).map(iter(range(10**9))):
            raise LookupError("the reader")

    with pytest.raises(LookupError, match="the reader"):
        read()


def test_a_pass_that_was_begun_and_forgotten_ends() -> None:
    outputs = iter(WorkerPool[int](same, workers=2).map(iter(range(10**9))))
    next(outputs)
    assert threads("inorder-source") == 1
    del outputs
    gc.collect()
    wait_until(lambda: not threads("inorder-source") and not threads("inorder-worker"))


@pytest.mark.parametrize("where", ["the function", "the partition key"])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_forgotten_pass_ends_wherever_the_garbage_collector_finds_it(kind: str, where: str) -> None:
    forgotten, collected = threading.Event(), threading.Event()

    def called(caller: str, item: int) -> int:
        if caller == where and item == 2:
            gc.collect()
            collected.set()
        return item

    def source() -> Iterator[int]:
        yield 1
        assert forgotten.wait(PATIENCE_SECONDS)
        yield 2

    pool: WorkerPool[int] = WorkerPool(
        lambda item: called("the function", item),
        kind=kind,
        partition_key=lambda item: called("the partition key", item),
    )
    gc.disable()  # before there is a thread of the pass, which might be about to collect
    try:
        cycle: list[Any] = [iter(pool.map(source()))]
        cycle.append(cycle)
        next(cycle[0])
        del cycle
        forgotten.set()
        assert collected.wait(PATIENCE_SECONDS)
    finally:
        gc.enable()


def test_a_partition_key_may_look_at_the_metrics() -> None:
    seen: list[int] = []

    def key(item: int) -> int:
        seen.append(results.metrics().taken)
        return item

    results = WorkerPool[int](same, partition_key=key, preserve_order=True).map([1, 2, 3])
    assert list(results) == [1, 2, 3]
    assert seen == [0, 1, 2]


def test_a_cancelled_reader_of_threads_ends_the_pass() -> None:
    async def main() -> None:
        results = WorkerPool[int](same, workers=2).map(iter(range(10**9)))
        enough = asyncio.Event()

        async def read_on() -> None:
            async for output in results:
                if output > 10:
                    enough.set()
                await asyncio.sleep(0)

        reader = asyncio.create_task(read_on())
        await enough.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(main())


@pytest.mark.parametrize("reader", ["for", "async for"])
def test_an_error_of_the_source_comes_after_everything_before_it(reader: str) -> None:
    def broken() -> Iterator[int]:
        yield from range(20)
        raise OSError("the source broke")

    outputs: list[int] = []
    results = WorkerPool[int](same, workers=3, preserve_order=True).map(broken())

    async def read() -> None:
        async for output in results:
            outputs.append(output)  # noqa: PERF401 - what comes before an error counts

    def read_all() -> None:
        outputs.extend(results)

    with pytest.raises(OSError, match="the source broke"):
        read_all() if reader == "for" else asyncio.run(read())
    assert outputs == list(range(20))


def test_a_collection_that_changes_meanwhile_is_an_error_after_what_came_before() -> None:
    source = deque(range(100))
    outputs: list[int] = []

    def work(item: int) -> int:
        if item == 1:
            source.append(100)
        return item

    with pytest.raises(RuntimeError, match="mutated"):
        outputs.extend(WorkerPool[int](work, workers=2, preserve_order=True).map(source))
    assert outputs == list(range(len(outputs)))
    assert outputs


def test_to_drain_a_collection_that_has_failed_does_not_hide_its_error() -> None:
    source = deque(range(100))
    results = WorkerPool[int](same, workers=2, preserve_order=True).map(source)
    outputs: list[int] = []

    def read() -> None:
        for output in results:
            if output == 0:
                source.append(100)
            outputs.append(output)
            if output == 3:  # of the first ones, which were taken together
                wait_until(lambda: results._run is not None and results._run.source_error)
                results.drain()

    with pytest.raises(RuntimeError, match="mutated"):
        read()
    assert outputs in ([0, 1, 2, 3], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_whatever_a_function_raises_the_reader_raises(error: type[BaseException], kind: str) -> None:
    def work(item: int) -> int:
        if item == 3:
            raise error
        return item

    outputs: list[int] = []
    with pytest.raises((error, RuntimeError)):
        outputs.extend(WorkerPool[int](work, workers=2, preserve_order=True, kind=kind).map(range(10)))
    assert outputs == [0, 1, 2]


@pytest.mark.parametrize("raises", [None, KeyError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("handler", ["def", "async def"])
def test_an_error_handler_is_told_in_threads_too(handler: str, raises: type[BaseException] | None) -> None:
    told: list[int] = []

    def handle(item: int, _: BaseException) -> None:
        told.append(item)
        if raises is not None:
            raise raises("the handler")

    async def handle_async(item: int, error: BaseException) -> None:
        await asyncio.sleep(0)
        handle(item, error)

    def fail(item: int) -> int:
        raise ValueError(item)

    pool: WorkerPool[int] = WorkerPool(
        fail, workers=2, error_handler=handle_async if handler == "async def" else handle
    )
    assert list(pool.map(iter(range(20)))) == []
    assert sorted(told) == list(range(20))


# -- time limits -------------------------------------------------------------------------------------------


class Hanging:
    """Functions that wait until they are let go, by item."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.go_on = threading.Event()

    def __call__(self, item: int) -> int:
        if item < 0:
            self.begun.add(item)
            assert self.go_on.wait(PATIENCE_SECONDS)
        return item


class Reader:
    """Reads in a thread of its own, while the test moves the clock."""

    def __init__(self, fn: Callable[[int], Any], source: Any, **options: Any) -> None:
        self.clock = ManualClock()
        self.outputs: list[Any] = []
        self.error: BaseException | None = None
        self.results = WorkerPool[Any](fn, clock=self.clock, **options).map(source)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            self.outputs.extend(self.results)
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


def test_a_thread_that_takes_too_long_is_left_behind_and_another_one_goes_on() -> None:
    hanging, told = Hanging(), []
    reader = Reader(
        hanging,
        iter([1, -1, 2, 3]),
        workers=1,
        preserve_order=True,
        process_timeout=5,
        on_error="emit",
        error_handler=lambda item, error: told.append((item, type(error))),
    )
    wait_until(lambda: hanging.begun)
    reader.clock.advance(5)
    reader.join()
    first, late, *rest = reader.outputs
    assert (first, rest) == (1, [2, 3])
    assert isinstance(late, ItemError)
    assert isinstance(late.error, ItemTimeout)
    assert told == [(-1, ItemTimeout)]
    assert reader.results.metrics().timed_out == 1
    hanging.go_on.set()


def test_more_threads_that_hang_than_workers_are_an_error() -> None:
    hanging = Hanging()
    reader = Reader(
        hanging, iter([-1, -2, -3, -4, -5, 1]), workers=2, preserve_order=True, process_timeout=5, on_error="emit"
    )
    wait_until(lambda: len(hanging.begun) == 2)
    reader.clock.advance(5)
    wait_until(lambda: len(hanging.begun) == 4)
    assert threads("inorder-worker") == 4
    reader.clock.advance(5)
    reader.join()
    assert isinstance(reader.error, WorkersStuck)
    assert [one.item for one in reader.outputs] == [-1, -2]
    hanging.go_on.set()


def test_threads_that_come_back_are_workers_again_and_their_results_are_dropped() -> None:
    hanging = Hanging()
    go_on = threading.Event()

    def source() -> Iterator[int]:
        yield -1
        assert go_on.wait(PATIENCE_SECONDS)
        yield from range(100)

    reader = Reader(hanging, source(), workers=1, preserve_order=True, process_timeout=5, on_error="skip")
    wait_until(lambda: hanging.begun)
    reader.clock.advance(5)
    hanging.go_on.set()
    wait_until(lambda: reader.results.metrics().late_results == 1)
    go_on.set()
    reader.join()
    assert reader.outputs == list(range(100))
    metrics = reader.results.metrics()
    assert (metrics.failed, metrics.timed_out, metrics.late_results, metrics.emitted) == (1, 1, 1, 101)


def test_a_source_is_read_on_when_threads_are_left_behind() -> None:
    hanging = Hanging()
    reader = Reader(hanging, iter([-1, -2, 1, 2, 3, 4, 5]), workers=2, process_timeout=5, on_error="skip")
    wait_until(lambda: len(hanging.begun) == 2)
    reader.clock.advance(5)
    reader.join()
    assert sorted(reader.outputs) == [1, 2, 3, 4, 5]
    hanging.go_on.set()


def test_a_key_waits_for_its_thread_though_its_time_is_over() -> None:
    hanging = Hanging()
    reader = Reader(
        hanging, [-1, 1, 2], workers=3, process_timeout=5, on_error="skip", partition_key=lambda item: item in (-1, 1)
    )
    wait_until(lambda: hanging.begun and reader.outputs == [2])
    reader.clock.advance(5)
    wait_until(lambda: reader.results.metrics().failed == 1)
    assert reader.outputs == [2]
    hanging.go_on.set()
    reader.join()
    assert reader.outputs == [2, 1]


def test_the_head_is_given_up_while_its_thread_works_on() -> None:
    hanging = Hanging()
    reader = Reader(hanging, iter([-1, 1, 2, 3, 4, 5]), workers=2, preserve_order=True, order_timeout=5)
    wait_until(lambda: hanging.begun and reader.results.metrics().buffered_results == 3)
    reader.clock.advance(5)
    reader.join()
    assert reader.outputs == [ItemGap("", 0, 0, 1, "order_timeout", -1), 1, 2, 3, 4, 5]
    hanging.go_on.set()


@pytest.mark.parametrize("ends", ["before the head is given up", "afterwards"])
def test_the_head_is_given_up_while_the_error_handler_is_told_that_its_time_is_over(ends: str) -> None:
    hanging, more, told, tell = Hanging(), threading.Event(), threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield from (-1, 1, 2)
        assert more.wait(PATIENCE_SECONDS)
        yield 3

    def handle(*_: object) -> None:
        told.set()
        assert tell.wait(PATIENCE_SECONDS)

    reader = Reader(
        hanging,
        source(),
        workers=2,
        preserve_order=True,
        process_timeout=5,
        order_timeout=7,
        on_error="skip",
        error_handler=handle,
    )
    metrics = reader.results.metrics
    wait_until(lambda: hanging.begun and metrics().buffered_results == 2)
    reader.clock.advance(5)
    assert told.wait(PATIENCE_SECONDS)
    if ends != "afterwards":
        hanging.go_on.set()
        wait_until(lambda: metrics().late_results)
    reader.clock.advance(2)
    wait_until(lambda: len(reader.outputs) == 3)
    tell.set()
    wait_until(lambda: not threads("inorder-error"))
    hanging.go_on.set()
    wait_until(lambda: metrics().late_results)
    now = metrics()
    assert (now.buffered_results, now.window_used, now.head_of_line) == (0, 0, None)
    assert reader.results._run is not None
    assert reader.results._run.limit() == 2  # none is stuck any more
    assert not reader.results._run._late
    more.set()
    reader.join()
    assert reader.outputs == [ItemGap("", 0, 0, 1, "order_timeout", -1), 1, 2, 3]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_handler_that_is_told_of_a_time_limit_may_wait_for_a_timer(asynchronous: bool) -> None:
    hanging = Hanging()
    told: list[bool] = []

    def wait_for_a_timer() -> None:
        rung = threading.Event()
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now_us(), rung.set)
        told.append(rung.wait(PATIENCE_SECONDS))

    async def handle_async(_: int, error: BaseException) -> None:
        wait_for_a_timer()

    pool = WorkerPool[int](
        hanging,
        workers=2,
        preserve_order=True,
        process_timeout=2,  # of which the others, on a machine that stands still, may need one
        error_handler=handle_async if asynchronous else lambda _, error: wait_for_a_timer(),
    )
    assert list(pool.map([1, -1, 2])) == [1, 2]
    assert told == [True]
    hanging.go_on.set()


@pytest.mark.parametrize("raises", [KeyError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_an_error_handler_makes_of_a_time_limit_the_rest_goes_on(
    asynchronous: bool, raises: type[BaseException]
) -> None:
    hanging = Hanging()

    def handle(_: int, error: BaseException) -> None:
        raise raises("the handler")

    async def handle_async(item: int, error: BaseException) -> None:
        handle(item, error)

    handler = handle_async if asynchronous else handle
    reader = Reader(hanging, [1, -1, 2], workers=2, preserve_order=True, process_timeout=1, error_handler=handler)
    wait_until(lambda: reader.outputs and hanging.begun and reader.results.metrics().buffered_results == 1)
    reader.clock.advance(1)
    reader.join()
    assert reader.outputs == [1, 2]
    hanging.go_on.set()


def test_the_time_limit_is_not_for_the_error_handler() -> None:
    told: list[int] = []
    go_on = threading.Event()

    def handle(item: int, _: BaseException) -> None:
        told.append(item)
        assert go_on.wait(PATIENCE_SECONDS)

    def fail(item: int) -> int:
        raise ValueError(item)

    reader = Reader(fail, [7], workers=1, process_timeout=5, error_handler=handle)
    wait_until(lambda: told)
    reader.clock.advance(50)
    go_on.set()
    reader.join()
    metrics = reader.results.metrics()
    assert told == [7]
    assert (metrics.failed, metrics.timed_out) == (1, 0)


def test_threads_grow_and_shrink_with_the_work() -> None:
    hanging = Hanging()
    go_on = threading.Event()

    def source() -> Iterator[int]:
        yield from range(-30, 0)
        assert go_on.wait(PATIENCE_SECONDS)

    scale = Autoscale(min_workers=1, max_workers=4, interval=1, scale_down_after=5)
    reader = Reader(hanging, source(), autoscale=scale)
    for size in (1, 2, 4):
        wait_until(lambda size=size: len(hanging.begun) == size)
        wait_until(lambda size=size: reader.results.metrics().taken == 8)
        wait_until(lambda size=size: threads("inorder-worker") == size)
        reader.clock.advance(1)
    hanging.go_on.set()
    wait_until(lambda: len(reader.outputs) == 30 and reader.results.metrics().busy == 0)
    for _ in range(15):
        reader.clock.advance(1)
    wait_until(lambda: threads("inorder-worker") == 1)
    assert [event.workers for event in reader.results.metrics().scale_events] == [2, 4, 1]
    go_on.set()
    reader.join()


def test_metrics_are_told_on_the_systems_clock_too() -> None:
    told = threading.Event()

    def work(item: int) -> int:
        assert told.wait(PATIENCE_SECONDS)
        return item

    pool: WorkerPool[int] = WorkerPool(work, on_metrics=lambda _: told.set(), metrics_interval=0.01)
    assert list(pool.map([1])) == [1]
