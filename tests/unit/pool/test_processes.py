"""Worker processes: what dies fails in its place and is replaced; what cannot travel is the item's failure."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from inorder.pool import Autoscale, ItemError, ItemTimeout, Retry, WorkerDied, WorkerPool
from inorder.pool.processes import Process
from inorder.testing import ManualClock

from . import victims

PATIENCE_SECONDS = 30


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def run(fn: Callable[[Any], Any], items: Any, **options: Any) -> list[Any]:
    """Outputs in order, and the text of errors in the places of items that failed."""
    options = {"workers": 1, "preserve_order": True, "on_error": "emit", **options}
    pool: WorkerPool[Any] = WorkerPool(fn, kind="process", **options)
    return [plain(output) for output in pool.map(items)]


def plain(output: Any) -> Any:
    return f"{type(output.error).__name__}: {output.error}" if isinstance(output, ItemError) else output


@pytest.mark.parametrize(
    ("fn", "outputs"),
    [
        (victims.double, [2, 4, 6]),
        (victims.double_async, [2, 4, 6]),
        (victims.repeat, [1, 2, 2, 3, 3, 3]),
        (victims.repeat_async, [1, 2, 2, 3, 3, 3]),
    ],
)
def test_every_kind_of_function_runs_in_a_process(fn: Callable[[int], Any], outputs: list[int]) -> None:
    assert run(fn, [1, 2, 3]) == outputs


def test_an_async_reader_may_have_processes() -> None:
    async def main() -> list[int]:
        pool: WorkerPool[int] = WorkerPool(victims.double, kind="process", workers=2, preserve_order=True)
        return [output async for output in pool.map(range(5))]

    assert asyncio.run(main()) == [0, 2, 4, 6, 8]


def test_order_is_kept_under_stress() -> None:
    assert run(victims.jitter, iter(range(300)), workers=3) == list(range(300))


def test_processes_are_used_again() -> None:
    assert len(set(run(victims.process_id, range(30), workers=2))) <= 2
    assert os.getpid() not in run(victims.process_id, [1])


@pytest.mark.parametrize(
    ("fn", "how"), [(victims.exit_on_three, "with exit code 7"), (victims.kill_itself_on_three, "by signal 9")]
)
def test_a_process_that_dies_fails_its_item_in_its_place_and_is_replaced(fn: Callable[[int], int], how: str) -> None:
    died = f"WorkerDied: a worker process ended {how} in the middle of the item"
    assert run(fn, [0, 1, 2, 3, 4, 3, 5], workers=1) == [0, 1, 2, died, 4, died, 5]


def test_how_a_process_ended_is_told_also_if_another_one_is_started_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever starts one looks at all others, and of two who look at the end of a process the second sees nothing."""
    about_to_read, others_have_read = threading.Event(), threading.Event()
    read = forkserver.read_signed

    def read_last(place: int) -> int:
        if threading.current_thread() is asking:
            about_to_read.set()
            others_have_read.wait(0.1)
            return read(place)
        status = read(place)
        others_have_read.set()
        return status

    def ask() -> None:
        with pytest.raises(WorkerDied) as died:
            process.call(3)
        told.append(str(died.value))

    told: list[str] = []
    process = Process(victims.exit_on_three)
    process.wait_until_ready()
    asking = threading.Thread(target=ask)
    monkeypatch.setattr(forkserver, "read_signed", read_last)
    asking.start()
    assert about_to_read.wait(PATIENCE_SECONDS)
    Process(victims.exit_on_three).close()
    asking.join()
    assert told == ["a worker process ended with exit code 7 in the middle of the item"]


def test_a_process_that_dies_before_what_it_has_started_fails_its_item_at_once(tmp_path: Path) -> None:
    pool: WorkerPool[Any] = WorkerPool(victims.die_before_somebody, kind="process", workers=1, on_error="emit")
    outputs: list[Any] = []
    reader = threading.Thread(target=lambda: outputs.extend(map(plain, pool.map([str(tmp_path)]))))
    reader.start()
    reader.join(PATIENCE_SECONDS)
    told = list(outputs)
    (tmp_path / "alive").unlink()
    reader.join(PATIENCE_SECONDS)
    assert told == ["WorkerDied: a worker process ended with exit code 7 in the middle of the item"]


def test_a_function_that_forks_has_one_output() -> None:
    assert run(victims.fork_on_three, range(6)) == list(range(6))


def test_a_process_that_is_killed_from_outside_fails_its_item(tmp_path: Path) -> None:
    pool: WorkerPool[Any] = WorkerPool(victims.tell_process_and_wait, kind="process", workers=2, on_error="raise")
    outputs: list[Any] = []

    def read() -> None:
        try:
            outputs.extend(pool.map([str(tmp_path)]))
        except WorkerDied as error:
            outputs.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: list(tmp_path.iterdir()))
    os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)
    reader.join(PATIENCE_SECONDS)
    assert str(outputs[0]) == "a worker process ended by signal 9 in the middle of the item"


def test_an_item_whose_process_died_may_be_tried_again(tmp_path: Path) -> None:
    retry = Retry(minimum_backoff=0, then="emit")
    assert run(victims.die_once, [str(tmp_path / "a"), str(tmp_path / "b")], on_error=retry) == ["survived"] * 2


def test_a_process_that_died_while_it_was_idle_is_replaced() -> None:
    pool: WorkerPool[int] = WorkerPool(victims.double, kind="process", workers=1, preserve_order=True)
    outputs = iter(pool.map(range(9)))
    assert next(outputs) == 0
    results = [next(outputs)]
    wait_until(lambda: len(multiprocessing.active_children()) == 1)
    # The window is full soon, as nobody reads; then the process is idle.
    wait_until(lambda: outputs.gi_frame.f_locals["run"].metrics().blocked)  # type: ignore[attr-defined]
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    assert [*results, *outputs] == [2 * number for number in range(1, 9)]


def test_a_function_that_takes_too_long_is_killed_and_its_item_fails_in_its_place() -> None:
    outputs = run(victims.hang_on_three, [1, 2, 3, 4], workers=1, process_timeout=2)
    assert outputs == [1, 2, "ItemTimeout: the function took longer than process_timeout=2 s for the item", 4]


def test_time_limits_that_come_close_hit_nobody_else() -> None:
    """A limit that is about as long as the calls: an item is done, or took too long; no process dies of another's."""
    pool: WorkerPool[Any] = WorkerPool(
        victims.jitter, kind="process", workers=2, preserve_order=True, on_error="emit", process_timeout=0.003
    )
    outputs = list(pool.map(range(9)))
    for number, output in enumerate(outputs):
        assert output == number or (output.index == number and isinstance(output.error, ItemTimeout))
    assert len(outputs) == 9


def test_what_a_function_raises_arrives_with_its_trace() -> None:
    pool: WorkerPool[Any] = WorkerPool(victims.fail_on_three, kind="process", workers=1, preserve_order=True)
    outputs: list[Any] = []
    with pytest.raises(ValueError, match="three") as raised:
        outputs.extend(pool.map(range(9)))
    assert outputs == [0, 1, 2]
    assert "in fail_on_three" in "".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (victims.fail_wordily, "RuntimeError: Wordy: one and two"),
        (victims.fail_mutely, "RuntimeError: Mute: (it cannot be shown)"),
        (victims.fail_frozen, "RuntimeError: Frozen: cold"),
    ],
)
def test_an_error_that_cannot_travel_is_told_by_another_one(fn: Callable[[int], int], text: str) -> None:
    assert run(fn, [1, 2]) == [text, text]


def test_an_error_of_ours_arrives_in_its_own_words() -> None:
    assert run(victims.not_found_on_three, [2, 3]) == [2, "TopicNotFound: Topic not found: orders"]


def test_a_function_that_leaves_makes_the_reader_leave() -> None:
    with pytest.raises(SystemExit):
        run(victims.leave, [1], on_error="skip")


def test_an_item_that_cannot_travel_fails_in_its_place() -> None:
    first, bad, last = run(victims.double, [1, lambda: None, 2])
    assert (first, last) == (2, 4)
    assert bad.startswith("TypeError: the item cannot be sent to another process: ")


def test_a_result_that_cannot_travel_is_a_failure_in_its_place() -> None:
    *first, bad, last = run(victims.unpicklable, [1, 2, 3, 4])
    assert (first, last) == ([1, 2], 4)
    assert bad.startswith("TypeError: the result cannot be sent to another process: ")


def test_what_fails_on_the_way_is_not_taken_for_the_end_of_a_process() -> None:
    out = "TypeError: the {} cannot be sent to another process: no way out"
    assert run(victims.awkward, [2, 3, 4, 5]) == [2, "EOFError: no way in", out.format("result"), 5]
    items = [victims.Awkward("out"), victims.Awkward("in"), victims.Awkward("well")]
    assert run(victims.accept, items) == [out.format("item"), "EOFError: no way in", "here"]


def test_a_forced_stop_kills_the_processes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    results = WorkerPool[Any](victims.tell_process_and_wait, kind="process", workers=2).map(map(str, folders))
    outputs: list[Any] = []
    reader = threading.Thread(target=lambda: outputs.extend(results))
    reader.start()
    wait_until(lambda: any(folders[0].iterdir()) and any(folders[1].iterdir()) and results.metrics().taken == 3)
    assert results.stop() == [str(folder) for folder in folders]
    reader.join(PATIENCE_SECONDS)
    assert outputs == []
    wait_until(lambda: not multiprocessing.active_children())


def test_to_leave_the_loop_kills_the_processes() -> None:
    for output in WorkerPool[int](victims.double, kind="process", workers=2).map(iter(range(10**9))):
        assert output % 2 == 0
        break
    wait_until(lambda: not multiprocessing.active_children())


def test_a_forgotten_pass_ends_although_the_garbage_collector_finds_it_while_a_process_is_given_back() -> None:
    forgotten, collected = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert forgotten.wait(PATIENCE_SECONDS)
        yield 2

    results: Any = WorkerPool[int](victims.process_id, kind="process", workers=1).map(source())
    gc.disable()
    try:
        cycle: list[Any] = [iter(results)]
        cycle.append(cycle)
        next(cycle[0])
        processes = results._run.calls._processes
        wait_until(lambda: processes._idle)
        limit = processes._limit

        def collect() -> int:
            gc.collect()
            collected.set()
            return int(limit())

        processes._limit = collect
        del cycle
        forgotten.set()
        assert collected.wait(PATIENCE_SECONDS)
        wait_until(lambda: not processes._idle and not processes._busy)
    finally:
        gc.enable()


def test_idle_processes_end_when_the_pool_shrinks() -> None:
    clock = ManualClock()
    go_on = threading.Event()
    scale = Autoscale(min_workers=1, max_workers=3, interval=1, scale_down_after=5)

    def source() -> Any:
        yield from range(60)
        go_on.wait(PATIENCE_SECONDS)

    pool: WorkerPool[int] = WorkerPool(victims.jitter, kind="process", autoscale=scale, clock=clock)
    results = pool.map(source())
    outputs = iter(results)
    read = [next(outputs)]
    while len(read) < 60:
        clock.advance(1)
        read.append(next(outputs))
    assert sorted(read) == list(range(60))
    peak = len(multiprocessing.active_children())
    wait_until(lambda: results.metrics().busy == 0)
    for _ in range(20):
        clock.advance(1)
    assert results.metrics().workers == 1
    wait_until(lambda: len(multiprocessing.active_children()) <= 1)
    assert peak >= 1
    go_on.set()
    assert list(outputs) == []
