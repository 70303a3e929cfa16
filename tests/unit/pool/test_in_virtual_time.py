"""What a pool promises, with tasks as workers and time that takes no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from inorder import Gap
from inorder.clock import MICROSECONDS
from inorder.errors import FailedPrecondition
from inorder.pool import (
    Autoscale,
    HeadOfLine,
    ItemError,
    ItemGap,
    ItemTimeout,
    Outputs,
    PoolMetrics,
    Results,
    Retry,
    WorkerPool,
    WorkersGone,
)
from inorder.testing import ManualClock, run_virtually


class Bench:
    """A pool on a virtual loop, and when each output came."""

    def __init__(self, fn: Callable[[Any], Any], **options: Any) -> None:
        self.clock = ManualClock(start=0)
        self.pool: WorkerPool[Any] = WorkerPool(fn, clock=self.clock, **{"kind": "async", **options})
        self.outputs: list[Any] = []
        self.times: list[float] = []
        self.results: Results[Any]
        self.taken = 0

    @property
    def now(self) -> float:
        return self.clock.now_us() / MICROSECONDS

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        self.clock.call_at(round(seconds * MICROSECONDS), call)

    async def source(self, items: Iterable[Any], seconds: float = 0) -> AsyncIterator[Any]:
        for item in items:
            await asyncio.sleep(seconds)
            self.taken += 1
            yield item

    async def read(self, source: Any, seconds: float = 0) -> None:
        self.results = self.pool.map(source)
        async for output in self.results:
            self.outputs.append(output)
            self.times.append(self.now)
            if seconds:
                await asyncio.sleep(seconds)

    def run(self, source: Any, seconds: float = 0) -> list[Any]:
        try:
            run_virtually(self.read(source, seconds), self.clock)
        finally:
            assert self.clock.next_due_us() is None, "a timer is left"
        return self.outputs

    @property
    def metrics(self) -> PoolMetrics:
        return self.results.metrics()


async def sleep(seconds: float) -> float:
    """The item is how long it takes."""
    await asyncio.sleep(seconds)
    return seconds


def failing(times: int, error: Callable[[], BaseException] = lambda: ValueError("no")) -> Callable[[Any], Any]:
    """Fails so many times for "bad", and for nothing else."""
    left = times

    async def work(item: Any) -> Any:
        nonlocal left
        if item == "bad" and left:
            left -= 1
            raise error()
        return item

    return work


# -- order -------------------------------------------------------------------------------------------------

A_SLOW = {"A": 1.0, "B": 0.1, "C": 0.2, "D": 0.3}


async def a_is_slow(item: str) -> str:
    await asyncio.sleep(A_SLOW[item])
    return item


def test_a_is_slow_and_b_c_d_are_fast_without_order() -> None:
    """ordered-worker-pool: Motivation, without ordering"""
    assert Bench(a_is_slow, workers=4).run("ABCD") == ["B", "C", "D", "A"]


@pytest.mark.parametrize("size", [{"workers": 4}, {"autoscale": Autoscale(min_workers=1, max_workers=4)}], ids=str)
def test_a_is_slow_and_b_c_d_are_fast_with_order(size: dict[str, Any]) -> None:
    """ordered-worker-pool: Motivation, with ordering"""
    assert Bench(a_is_slow, preserve_order=True, **size).run("ABCD") == ["A", "B", "C", "D"]


HUNDRED = [5.0] + [0.01] * 99


def test_item_0_takes_5_s_and_the_next_99_take_10_ms() -> None:
    """ordered-worker-pool: Head-of-Line Blocking

    With room for all, everything waits for item 0, and comes in a burst.
    """
    bench = Bench(sleep, workers=4, preserve_order=True, order_buffer_size=100)
    assert bench.run(HUNDRED) == HUNDRED
    assert set(bench.times) == {5.0}
    assert bench.metrics.worst_head_of_line == HeadOfLine(0, 5.0, 4.99)
    assert bench.metrics.head_of_line_seconds == pytest.approx(4.99)


def test_when_the_buffer_is_full_workers_wait() -> None:
    """ordered-worker-pool: Head-of-Line Blocking

    The window is 8 by default: item 0 and 7 results. Nothing more is taken until item 0 is done.
    """
    bench = Bench(sleep, workers=4, preserve_order=True)
    seen: list[PoolMetrics] = []
    bench.at(4.9, lambda: seen.append(bench.metrics))
    assert bench.run(HUNDRED) == HUNDRED
    assert bench.times[:8] == [5.0] * 8
    assert bench.times[-1] == pytest.approx(5 + 0.01 * 92 / 4)
    (full,) = seen
    assert (full.window, full.window_used, full.buffered_results, full.taken) == (8, 8, 7, 8)
    assert (full.workers, full.busy, full.blocked, full.idle) == (4, 1, 3, 0)
    assert full.head_of_line == HeadOfLine(0, 5.0, pytest.approx(4.89))  # type: ignore[arg-type]


def test_the_slow_item_does_not_make_an_autoscaled_pool_grow() -> None:
    """ordered-worker-pool: Autoscaling Considerations, Backpressure"""
    scale = Autoscale(min_workers=2, max_workers=16, interval=0.1)
    bench = Bench(sleep, autoscale=scale, preserve_order=True, order_buffer_size=32)
    sizes: list[int] = []
    bench.at(4.9, lambda: sizes.append(bench.metrics.workers))
    bench.at(4.9, lambda: sizes.append(bench.metrics.window_used))
    assert bench.run([5.0] + [0.03] * 400) == [5.0] + [0.03] * 400
    assert sizes[1] == 32
    assert sizes[0] <= 8  # what there was work for, before results filled the window
    waited = [event for event in bench.metrics.scale_events if event.workers > event.workers_before]
    assert not [event for event in waited if 1 * MICROSECONDS < event.time_us < 5 * MICROSECONDS]


def test_the_buffer_is_sized_by_the_largest_number_of_workers() -> None:
    """ordered-worker-pool: Autoscaling Considerations, Buffer sizing"""
    bench = Bench(sleep, autoscale=Autoscale(min_workers=2, max_workers=16), preserve_order=True)
    bench.run([0.1])
    assert bench.metrics.window == 32
    assert bench.metrics.workers == 2


def test_everything_takes_as_long_as_the_work_shared_among_the_workers() -> None:
    """ordered-worker-pool: Performance Characteristics, Benefits"""
    bench = Bench(sleep, workers=5, preserve_order=True)
    bench.run([1.0] * 20)
    assert bench.now == 4


def test_a_failed_item_leaves_no_hole() -> None:
    """ordered-worker-pool: Mechanism, Reorderer"""
    bench = Bench(failing(1), workers=2, preserve_order=True, on_error="skip")
    assert bench.run(["a", "bad", "b"]) == ["a", "b"]
    assert bench.metrics.failed == 1


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True], ids=["completion order", "input order"])
def test_items_of_a_key_run_one_after_the_other_and_others_beside_them(ordered: bool) -> None:
    """ordered-worker-pool: Partitioned Workers (Kafka-style)"""
    begun: dict[Any, float] = {}

    async def work(item: tuple[Any, int]) -> Any:
        begun[item] = bench.now
        await asyncio.sleep(1)
        return item

    bench = Bench(work, workers=9, partition_key=lambda item: item[0], preserve_order=ordered)
    items = [("a", 0), ("a", 1), ("b", 0), (None, 0), (None, 1), ("a", 2), ("b", 1)]
    outputs = bench.run(items)
    assert begun == {
        **{("a", number): number for number in range(3)},
        **{("b", number): number for number in range(2)},
        **{(None, number): 0 for number in range(2)},
    }
    assert outputs == items if ordered else sorted(outputs, key=begun.__getitem__) == outputs


@pytest.mark.parametrize("key", [0, "", False, (), ("",)], ids=repr)
def test_a_key_that_looks_like_nothing_is_a_key(key: Any) -> None:
    bench = Bench(sleep, workers=9, partition_key=lambda _: key)
    bench.run([1.0, 1.0])
    assert bench.times == [1, 2]


@pytest.mark.parametrize("key", [lambda item: item / 0, lambda _: []], ids=["fails", "cannot be hashed"])
def test_an_item_whose_key_cannot_be_found_fails_in_its_place(key: Callable[[Any], Any]) -> None:
    bench = Bench(sleep, workers=2, preserve_order=True, on_error="emit", partition_key=lambda x: key(x) if x else x)
    first, bad, last = bench.run([0, 1, 0])
    assert (first, last) == (0, 0)
    assert isinstance(bad, ItemError)
    assert isinstance(bad.error, ZeroDivisionError | TypeError)


@pytest.mark.parametrize("at_hand", [True, False])
def test_an_item_whose_key_cannot_be_compared_with_that_of_another_fails_in_its_place(at_hand: bool) -> None:
    class Incomparable:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise TypeError("neither equal nor not")

    bench = Bench(sleep, workers=2, preserve_order=True, on_error="emit", partition_key=lambda _: Incomparable())
    items = [1.0, 2.0, 3.0]
    first, second, third = bench.run(items if at_hand else bench.source(items))
    assert first == 1.0
    assert [str(second.error), str(third.error)] == ["neither equal nor not"] * 2


def test_an_item_that_is_tried_again_keeps_its_key_waiting() -> None:
    order: list[str] = []
    fails = iter([True, False, False])

    async def work(item: str) -> str:
        order.append(item)
        if next(fails):
            raise ValueError
        return item

    bench = Bench(work, workers=4, partition_key=lambda _: "k", on_error=Retry(minimum_backoff=1))
    assert bench.run(["first", "second"]) == ["first", "second"]
    assert order == ["first", "first", "second"]


# -- what a function answers -------------------------------------------------------------------------------


async def several(item: int) -> Outputs:
    await asyncio.sleep(1 / (item + 1))
    return Outputs([item] * item)


async def generated(item: int) -> AsyncIterator[int]:
    for _ in range(item):
        await asyncio.sleep(1 / (item + 1))
        yield item


@pytest.mark.parametrize("fn", [several, generated])
def test_an_item_has_any_number_of_outputs_and_they_stay_together(fn: Callable[[int], Any]) -> None:
    """ordered-worker-pool: Mechanism, ProcessFunc can return multiple outputs"""
    assert Bench(fn, workers=4, preserve_order=True).run([1, 0, 3, 2]) == [1, 3, 3, 3, 2, 2]
    unordered = Bench(fn, workers=4).run([1, 0, 3, 2])
    assert sorted(unordered) == [1, 2, 2, 3, 3, 3]
    assert str(unordered).count("3, 3, 3") == 1


@pytest.mark.parametrize("value", [None, [], [1, 2], (1, 2), (), "text", {}], ids=repr)
def test_any_other_value_is_one_output(value: Any) -> None:
    async def work(_: int) -> Any:
        return value

    assert Bench(work).run([1]) == [value]


def test_a_def_may_be_called_on_the_loop_and_may_generate() -> None:
    def twice(item: int) -> Any:
        yield item
        yield item

    assert Bench(twice, preserve_order=True).run([1, 2]) == [1, 1, 2, 2]
    assert Bench(lambda item: item + 1, preserve_order=True).run([1, 2]) == [2, 3]
    assert Bench(lambda item: sleep(item), preserve_order=True).run([1, 2]) == [1, 2]


def test_a_generator_that_is_cancelled_is_closed_before_the_pass_is_over() -> None:
    closed: list[int] = []

    async def work(item: int) -> AsyncIterator[int]:
        try:
            yield item
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            closed.append(item)

    bench = Bench(work, workers=2, process_timeout=5, on_error="skip")
    assert bench.run([1, 2]) == []
    assert sorted(closed) == [1, 2]


# -- bounds ------------------------------------------------------------------------------------------------


async def endless() -> AsyncIterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.parametrize("options", [{"preserve_order": True}, {}, {"buffer_size": 5}], ids=str)
def test_an_endless_source_is_read_no_further_than_the_window(options: dict[str, Any]) -> None:
    bench = Bench(sleep, workers=3, **options)
    room = 6 + options.get("buffer_size", 0)

    async def main() -> None:
        taken = 0

        async def source() -> AsyncIterator[float]:
            nonlocal taken
            while True:
                taken += 1
                yield 0.01

        read = 0
        results = bench.pool.map(source())
        async for _ in results:
            read += 1
            await asyncio.sleep(10)  # a slow reader: everything that can be done meanwhile is
            assert read + room - 1 <= taken <= read + room
            if read == 20:
                break

    run_virtually(main(), bench.clock)


def test_when_the_block_of_a_pass_is_left_nothing_runs_any_more() -> None:
    bench = Bench(sleep, workers=4, preserve_order=True)

    async def main() -> set[asyncio.Task[Any]]:
        async with bench.pool.map([1.0] * 100) as results:
            async for _ in results:
                break
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert run_virtually(main(), bench.clock) == set()


def test_the_block_of_a_pass_may_be_left_while_another_task_reads() -> None:
    bench = Bench(sleep, workers=4, preserve_order=True)

    async def main() -> tuple[set[asyncio.Task[Any]], list[float]]:
        async with bench.pool.map([1.0] * 100) as results:

            async def read() -> list[float]:
                return [output async for output in results]

            reader = asyncio.create_task(read())
            await asyncio.sleep(1.5)
        left = {task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), reader)}
        return left, await reader

    assert run_virtually(main(), bench.clock) == (set(), [1.0] * 4)


def test_a_slow_reader_slows_the_source() -> None:
    bench = Bench(sleep, workers=2, preserve_order=True)
    seen: list[int] = []
    bench.at(10.5, lambda: seen.append(bench.taken))
    bench.run(bench.source([0.0] * 100), seconds=1)
    assert seen == [11 + 4]
    assert bench.now == 100


def test_a_source_is_read_on_when_everything_is_filtered() -> None:
    async def nothing(_: int) -> Outputs:
        return Outputs()

    bench = Bench(nothing, workers=1)
    assert bench.run(bench.source(range(50))) == []
    assert bench.taken == 50


def test_a_source_is_read_on_when_everything_fails_and_is_skipped() -> None:
    async def fail(_: int) -> None:
        raise ValueError

    bench = Bench(fail, workers=1, on_error="skip", preserve_order=True, error_handler=lambda item, error: None)
    assert bench.run(bench.source(range(50))) == []
    assert bench.metrics.failed == 50


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True], ids=["completion order", "input order"])
def test_a_failed_item_is_skipped_and_the_handler_is_told(ordered: bool) -> None:
    told: list[Any] = []
    bench = Bench(
        failing(1),
        workers=1,
        on_error="skip",
        preserve_order=ordered,
        error_handler=lambda item, error: told.append((item, str(error))),
    )
    assert bench.run(["a", "bad", "b"]) == ["a", "b"]
    assert told == [("bad", "no")]


def test_a_failed_item_that_nobody_handles_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Bench(failing(1), on_error="skip").run(["bad"])
    assert "an item was skipped, because the function failed: no" in caplog.text


def test_a_failed_item_is_put_out_as_an_error_in_its_place() -> None:
    first, error, last = Bench(failing(1), workers=1, on_error="emit", preserve_order=True).run(["a", "bad", "b"])
    assert (first, last) == ("a", "b")
    assert isinstance(error, ItemError)
    assert (error.index, error.item, str(error.error), error.attempts) == (1, "bad", "no", 1)


def test_an_error_is_raised_after_everything_before_it() -> None:
    async def work(item: float) -> float:
        await asyncio.sleep(item)
        if item == 0:
            raise ValueError("no")
        return item

    bench = Bench(work, workers=9, preserve_order=True, on_error="raise")
    with pytest.raises(ValueError, match="no"):
        bench.run([2.0, 3.0, 0.0, 1.0, 50.0])
    assert bench.outputs == [2.0, 3.0]
    assert bench.now == 3  # what runs is cancelled
    assert bench.results.stop() == [0.0, 1.0, 50.0]


def test_a_failed_item_is_tried_again_in_its_place() -> None:
    bench = Bench(
        failing(2), workers=2, preserve_order=True, on_error=Retry(max_attempts=3, minimum_backoff=1, maximum_backoff=9)
    )
    assert bench.run(["a", "bad", "b", "c"]) == ["a", "bad", "b", "c"]
    assert bench.times == [0, 3, 3, 3]  # after 1 s and 2 s more
    assert (bench.metrics.retries, bench.metrics.failed) == (2, 0)


def test_a_retried_head_gets_a_worker_though_the_window_is_full() -> None:
    """ordered-worker-pool: Head-of-Line Blocking"""
    retry = Retry(minimum_backoff=1, max_attempts=4)
    bench = Bench(failing(3), workers=1, preserve_order=True, order_buffer_size=2, on_error=retry)
    items = ["bad", *"abcdef"]
    assert bench.run(items) == items


@pytest.mark.parametrize("then", ["skip", "emit", "raise"])
def test_after_the_last_attempt_it_is_as_without_retry(then: Any) -> None:
    retry = Retry(max_attempts=3, minimum_backoff=0, then=then)
    told: list[Any] = []
    bench = Bench(
        failing(9), workers=2, preserve_order=True, on_error=retry, error_handler=lambda item, _: told.append(item)
    )
    if then == "raise":
        with pytest.raises(ValueError, match="no"):
            bench.run(["a", "bad", "b"])
        assert bench.outputs == ["a"]
    else:
        outputs = bench.run(["a", "bad", "b"])
        assert [one.attempts if isinstance(one, ItemError) else one for one in outputs] == (
            ["a", "b"] if then == "skip" else ["a", 3, "b"]
        )
    assert told == ["bad"]
    assert (bench.metrics.retries, bench.metrics.failed) == (2, 1)


@pytest.mark.parametrize("raises", [None, KeyError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("handler", ["def", "async"])
def test_whatever_an_error_handler_does_the_rest_goes_on(handler: str, raises: type[BaseException] | None) -> None:
    told: list[str] = []

    def handle(item: str, _: BaseException) -> None:
        told.append(item)
        if raises is not None:
            raise raises("the handler")

    async def handle_async(item: str, error: BaseException) -> None:
        await asyncio.sleep(1)
        handle(item, error)

    bench = Bench(
        failing(9),
        workers=1,
        preserve_order=True,
        process_timeout=0.5,  # for the function, not for the handler
        error_handler=handle_async if handler == "async" else handle,
    )
    assert bench.run(["a", "bad", "b", "bad", "c"]) == ["a", "b", "c"]
    assert told == ["bad", "bad"]
    assert bench.metrics.timed_out == 0


def test_a_cancellation_that_the_function_brought_on_itself_is_a_failure() -> None:
    bench = Bench(failing(1, asyncio.CancelledError), workers=1, on_error="emit", preserve_order=True)
    first, error, last = bench.run(["a", "bad", "b"])
    assert (first, last) == ("a", "b")
    assert isinstance(error.error, asyncio.CancelledError)


def test_somebody_who_cancels_the_workers_ends_the_pass_with_an_error() -> None:
    async def work(item: int) -> int:
        if item == 3:
            for task in asyncio.all_tasks():
                if "TaskCrew" in repr(task):
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(5)
        return item

    bench = Bench(work, workers=2, on_error="skip")
    with pytest.raises(WorkersGone, match="cancelled by somebody else"):
        bench.run(bench.source(range(9), seconds=1))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_raised_whatever_the_policy(error: type[BaseException]) -> None:
    bench = Bench(failing(1, error), workers=1, on_error="skip", preserve_order=True)
    with pytest.raises(error):
        bench.run(["a", "bad", "b"])
    assert bench.outputs == ["a"]


@pytest.mark.parametrize("at_hand", [True, False])
def test_an_error_of_the_source_comes_after_everything_before_it(at_hand: bool) -> None:
    class Broken(list[float]):
        def __iter__(self) -> Any:
            yield from (3.0, 2.0, 1.0)
            raise OSError("the source broke")

    async def broken() -> AsyncIterator[float]:
        for item in (3.0, 2.0, 1.0):
            yield item
        raise OSError("the source broke")

    bench = Bench(sleep, workers=4, preserve_order=True)
    with pytest.raises(OSError, match="the source broke"):
        bench.run(Broken() if at_hand else broken())
    assert bench.outputs == [3, 2, 1]


# -- time limits -------------------------------------------------------------------------------------------


def test_a_function_that_takes_too_long_is_cancelled_and_its_item_fails() -> None:
    """ordered-worker-pool: Head-of-Line Blocking, Mitigations"""
    bench = Bench(sleep, workers=1, preserve_order=True, process_timeout=2, on_error="emit")
    first, late, last = bench.run([1, 5, 1])
    assert (first, last) == (1, 1)
    assert isinstance(late.error, ItemTimeout)
    assert str(late.error) == "the function took longer than process_timeout=2 s for the item"
    assert bench.now == 4
    assert bench.metrics.timed_out == 1


def test_each_attempt_has_the_whole_time() -> None:
    bench = Bench(sleep, workers=1, process_timeout=2, on_error=Retry(max_attempts=3, minimum_backoff=1, then="emit"))
    (late,) = bench.run([5])
    assert isinstance(late.error, ItemTimeout)
    assert late.attempts == 3
    assert bench.now == 2 + 1 + 2 + 2 + 2
    assert (bench.metrics.timed_out, bench.metrics.retries) == (3, 2)


def test_a_function_may_ignore_the_end_of_its_time_again_and_again() -> None:
    async def stubborn(item: int) -> int:
        for _ in range(item):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
        return item

    bench = Bench(stubborn, workers=1, preserve_order=True, process_timeout=1.5, on_error="emit")
    assert bench.run([3, 1, 3, 3, 1]) == [3, 1, 3, 3, 1]


def test_the_head_is_given_up_after_the_order_timeout_and_a_gap_is_in_its_place() -> None:
    """ordered-worker-pool: Future Extensions, OrderTimeout"""
    bench = Bench(sleep, workers=2, preserve_order=True, order_timeout=2)
    outputs = bench.run([1, 9, 1, 1])
    gap = ItemGap("", 1, 1, 1, "order_timeout", 9)
    assert outputs == [1, gap, 1, 1]
    assert isinstance(gap, Gap)
    assert bench.times == [1, 3, 3, 3]
    assert (bench.metrics.gaps, bench.metrics.emitted) == (1, 4)


def test_a_result_that_comes_after_its_gap_is_dropped_and_counted() -> None:
    bench = Bench(sleep, workers=2, preserve_order=True, order_timeout=2)
    outputs = bench.run(bench.source([5, *[1] * 9], seconds=0.5))
    assert [one for one in outputs if one != 1] == [ItemGap("", 0, 0, 1, "order_timeout", 5)]
    assert len(outputs) == 10
    assert (bench.metrics.gaps, bench.metrics.late_results) == (1, 1)


def test_the_time_of_the_head_counts_from_when_it_became_the_head() -> None:
    bench = Bench(sleep, workers=9, preserve_order=True, order_timeout=2)
    assert bench.run([1.5, 3.0, 4.5, 6.0]) == [1.5, 3.0, 4.5, 6.0]


def test_an_item_that_waits_to_be_tried_again_is_given_up_too_and_not_tried_again() -> None:
    calls: list[int] = []

    async def fail(item: int) -> int:
        calls.append(item)
        if item:
            return item
        raise ValueError

    bench = Bench(fail, workers=2, preserve_order=True, order_timeout=2, on_error=Retry(minimum_backoff=4))
    outputs = bench.run(bench.source([0, *range(1, 9)], seconds=1))
    assert outputs == [ItemGap("", 0, 0, 1, "order_timeout", 0), *range(1, 9)]
    assert calls.count(0) == 1


def test_an_item_that_nobody_had_time_for_is_given_up_without_being_begun() -> None:
    begun: list[int] = []

    async def work(item: int) -> int:
        begun.append(item)
        await asyncio.sleep(10)
        return item

    bench = Bench(work, workers=1, preserve_order=True, order_timeout=1)
    outputs = bench.run(bench.source([0, 1, 2]))
    assert [type(one) for one in outputs] == [ItemGap] * 3
    assert begun == [0]
    assert bench.now == 3


def test_a_given_up_item_keeps_its_key_waiting_until_it_ends() -> None:
    begun: dict[str, float] = {}

    async def work(item: str) -> str:
        begun[item] = bench.now
        await asyncio.sleep(5)
        return item

    bench = Bench(work, workers=4, preserve_order=True, order_timeout=3, partition_key=lambda _: "k")
    outputs = bench.run(bench.source(["a", "b"], seconds=1))
    assert begun["a"] == 1
    assert "b" not in begun or begun["b"] >= 6
    assert outputs[0] == ItemGap("", 0, 0, 1, "order_timeout", "a")


# -- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_hand", [True, False])
def test_drain_takes_nothing_more_and_finishes_what_was_taken_retries_included(at_hand: bool) -> None:
    failed: set[int] = set()

    async def work(item: int) -> int:
        await asyncio.sleep(1)
        if item not in failed:
            failed.add(item)
            raise ValueError
        return item

    bench = Bench(work, workers=2, preserve_order=True, on_error=Retry(minimum_backoff=3))
    bench.at(0.5, lambda: bench.results.drain())
    items = range(100)
    outputs = bench.run(items if at_hand else bench.source(items))
    assert outputs == list(range(4))
    assert bench.metrics.taken == bench.metrics.emitted == 4
    assert bench.results.stop() == []


@pytest.mark.parametrize("end", ["stop", "drain"])
def test_who_ends_a_pass_before_its_beginning_has_nothing_taken(end: str) -> None:
    bench = Bench(sleep)

    async def main() -> list[Any]:
        outputs = []
        for source in ([1, 2], bench.source([1, 2])):
            results = bench.pool.map(source)
            assert not getattr(results, end)()
            outputs += [output async for output in results]
        return outputs

    assert run_virtually(main(), bench.clock) == []
    assert bench.taken == 0


@pytest.mark.parametrize("ordered", [False, True], ids=["completion order", "input order"])
def test_a_forced_stop_tells_all_that_was_taken_and_not_put_out_in_order(ordered: bool) -> None:
    bench = Bench(sleep, workers=3, preserve_order=ordered)
    left: list[Any] = []
    bench.at(3.5, lambda: left.extend(bench.results.stop()))
    outputs = bench.run(bench.source([1, 4, 2, 3, 9, 8, 7, 6, 5]))
    assert outputs == ([1] if ordered else [1, 2])
    assert left == ([4, 2, 3, 9, 8, 7] if ordered else [4, 3, 9, 8, 7, 6])
    assert bench.now == 3.5
    assert bench.results.stop() == left  # it is the same later


def test_a_forced_stop_tells_what_was_done_but_not_read() -> None:
    bench = Bench(sleep, workers=2, preserve_order=True)
    left: list[Any] = []
    bench.at(4.5, lambda: left.extend(bench.results.stop()))
    outputs = bench.run([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], seconds=3)
    assert outputs == [0.1, 0.2]
    assert left == [0.3, 0.4, 0.5, 0.6]


def test_a_forced_stop_ends_between_two_outputs_of_an_item() -> None:
    async def twice(item: int) -> Outputs:
        return Outputs([item, item])

    bench = Bench(twice, workers=1, preserve_order=True)
    left: list[Any] = []
    bench.at(2.5, lambda: left.extend(bench.results.stop()))
    assert bench.run([1, 2, 3], seconds=1) == [1, 1, 2]
    assert left == [2, 3]


@pytest.mark.parametrize("who", ["the function", "the error handler", "the metrics callback"])
@pytest.mark.parametrize("how", ["stop", "drain"])
def test_whoever_is_called_may_end_the_pass(who: str, how: str) -> None:
    def end(caller: str) -> None:
        if caller == who:
            getattr(bench.results, how)()

    async def work(item: int) -> int:
        await asyncio.sleep(1)
        if item == 5:
            end("the function")
            raise ValueError
        return item

    bench = Bench(
        work,
        workers=2,
        preserve_order=True,
        error_handler=lambda *_: end("the error handler"),
        on_metrics=lambda _: end("the metrics callback"),
        metrics_interval=3.5,
    )
    outputs = bench.run(bench.source(range(1000)))
    assert outputs == [number for number in range(len(outputs) + 1) if number != 5][: len(outputs)]
    assert len(outputs) < 20
    assert bench.now < 20


def test_who_leaves_the_loop_leaves_nothing_behind() -> None:
    bench = Bench(sleep, workers=3, preserve_order=True)
    closed: list[float] = []

    async def source() -> AsyncIterator[float]:
        try:
            async for item in endless():
                yield item / 100
        finally:
            closed.append(bench.now)

    async def main() -> list[Any]:
        results = bench.pool.map(source())
        async for _ in results:
            break
        await asyncio.sleep(0.001)
        return results.stop()

    left = run_virtually(main(), bench.clock)
    assert left == [number / 100 for number in range(1, 7)][: len(left)]
    assert len(left) >= 5
    assert closed == [0]
    assert bench.clock.next_due_us() is None


def test_a_cancelled_reader_cancels_the_work_and_waits_for_its_end() -> None:
    ended: list[float] = []

    async def work(item: int) -> int:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append(bench.now)
        return item

    bench = Bench(work, workers=2)

    async def main() -> None:
        reader = asyncio.create_task(bench.read(bench.source(range(9))))
        bench.at(5, reader.cancel)
        bench.at(5.5, reader.cancel)  # once more, while it waits
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert bench.now == 6

    run_virtually(main(), bench.clock)
    assert ended == [6, 6]


def test_what_the_reader_raises_ends_the_pass() -> None:
    bench = Bench(sleep, workers=2)

    async def main() -> None:
        async for _ in bench.pool.map(endless()):
            raise LookupError("the reader")

    with pytest.raises(LookupError, match="the reader"):
        run_virtually(main(), bench.clock)
    assert bench.clock.next_due_us() is None


def test_the_outputs_of_a_pass_are_read_once_and_there_may_be_many_passes() -> None:
    bench = Bench(sleep, preserve_order=True)

    async def main() -> None:
        results = bench.pool.map([1, 2])
        assert [output async for output in results] == [1, 2]
        with pytest.raises(FailedPrecondition, match="read once; call map again"):
            [output async for output in results]
        assert [output async for output in bench.pool.map([3])] == [3]

    run_virtually(main(), bench.clock)


def test_nothing_begins_before_the_first_output_is_asked_for() -> None:
    results = WorkerPool(sleep).map(iter([1]))
    with pytest.raises(FailedPrecondition, match="metrics: nothing has begun"):
        results.metrics()


def test_an_empty_source_has_no_outputs() -> None:
    bench = Bench(sleep, preserve_order=True, autoscale=Autoscale(), on_metrics=print)
    assert bench.run([]) == []
    assert Bench(sleep).run(bench.source([])) == []


# -- how many workers --------------------------------------------------------------------------------------


def test_a_pool_grows_with_its_work_and_shrinks_between_items() -> None:
    scale = Autoscale(min_workers=1, max_workers=8, interval=0.1, scale_down_after=1)
    bench = Bench(sleep, autoscale=scale, preserve_order=True)

    async def source() -> AsyncIterator[float]:
        for _ in range(100):
            yield 1.0
        for _ in range(10):
            await asyncio.sleep(2)
            yield 1.0

    assert bench.run(source()) == [1.0] * 110
    sizes = [event.workers for event in bench.metrics.scale_events]
    assert sizes[:3] == [2, 4, 8]
    assert sizes[-1] == 1
    assert "item(s) wait and all 1 are busy" in bench.metrics.scale_events[0].reason
    assert "were busy for 1 s" in bench.metrics.scale_events[-1].reason


def test_a_source_that_gives_little_does_not_make_a_pool_grow() -> None:
    scale = Autoscale(min_workers=1, max_workers=8, interval=0.1)
    bench = Bench(sleep, autoscale=scale)
    bench.run(bench.source([0.5] * 20, seconds=1))
    assert bench.metrics.scale_events == ()


# -- metrics -----------------------------------------------------------------------------------------------


def test_metrics_are_told_again_and_again_until_the_end() -> None:
    seen: list[PoolMetrics] = []
    bench = Bench(sleep, workers=2, preserve_order=True, on_metrics=seen.append, metrics_interval=1)
    bench.run([4.5, 0.25, 0.25])
    assert [one.emitted for one in seen] == [0, 0, 0, 0]
    assert [one.busy for one in seen] == [1, 1, 1, 1]
    assert [one.buffered_results for one in seen] == [2, 2, 2, 2]
    assert [one.head_of_line_seconds for one in seen] == [0.75, 1.75, 2.75, 3.75]
    assert bench.metrics.head_of_line_seconds == 4.25
    assert bench.metrics.head_of_line is None


def test_a_metrics_callback_that_fails_is_logged_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: PoolMetrics) -> None:
        raise ValueError("no metrics")

    bench = Bench(sleep, on_metrics=fail, metrics_interval=1)
    assert bench.run([2.5]) == [2.5]
    assert caplog.text.count("the metrics callback of a pool failed") == 2
