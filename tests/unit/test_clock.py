"""Timers run in order of time and do not get in each other's way, on the system's clock and on a manual one."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest

from inorder.clock import MICROSECONDS, SystemClock
from inorder.testing.clock import ManualClock

from .interrupts import is_interrupted

PATIENCE_SECONDS = 30


def soon(clock: SystemClock, milliseconds: float, call: Callable[[], object]) -> None:
    clock.call_at(clock.now_us() + round(milliseconds * 1000), call)


@contextmanager
def held(clock: SystemClock) -> Iterator[None]:
    """Nothing runs before all timers of this block are set, however long that takes."""
    go_on = threading.Event()
    clock.call_at(0, lambda: go_on.wait(PATIENCE_SECONDS))
    yield
    go_on.set()


def run_all(clock: SystemClock, milliseconds: float = 30) -> None:
    """Wait until all timers that are due by then have run."""
    over = threading.Event()
    soon(clock, milliseconds, over.set)
    assert over.wait(PATIENCE_SECONDS)


def test_the_system_clock_tells_the_time() -> None:
    clock = SystemClock()
    assert abs(clock.now_us() / MICROSECONDS - time.time()) < 1
    times = [clock.now_us() for _ in range(1_000)]
    assert times == sorted(times)


def test_timers_run_in_order_of_time() -> None:
    clock = SystemClock()
    ran: list[int] = []
    start = clock.now_us()
    with held(clock):
        for number in (3, 1, 4, 0, 2):
            clock.call_at(start + 1_000 * number, lambda number=number: ran.append(number))
    run_all(clock)
    assert ran == [0, 1, 2, 3, 4]


def test_timers_of_the_same_time_run_in_the_order_in_which_they_were_set() -> None:
    clock = SystemClock()
    ran: list[int] = []
    when = clock.now_us()
    with held(clock):
        for number in range(5):
            clock.call_at(when, lambda number=number: ran.append(number))
    run_all(clock)
    assert ran == [0, 1, 2, 3, 4]


def test_a_timer_never_runs_early() -> None:
    clock = SystemClock()
    when = clock.now_us() + 10_000
    ran: list[int] = []
    clock.call_at(when, lambda: ran.append(clock.now_us()))
    run_all(clock)
    assert ran[0] >= when


def test_a_timer_of_the_past_runs_at_once() -> None:
    clock = SystemClock()
    ran = threading.Event()
    clock.call_at(0, ran.set)
    assert ran.wait(PATIENCE_SECONDS)


def test_a_timer_that_is_set_later_but_due_earlier_runs_first() -> None:
    clock = SystemClock()
    soon(clock, 600_000, lambda: None)
    time.sleep(0.002)  # the thread sleeps now, until that one is due
    run_all(clock, 1)


def test_a_cancelled_timer_does_not_run() -> None:
    clock = SystemClock()
    ran: list[int] = []
    with held(clock):
        timer = clock.call_at(clock.now_us(), lambda: ran.append(1))
        timer.cancel()
        timer.cancel()
    run_all(clock)
    assert ran == []


def test_a_timer_may_be_cancelled_after_it_ran() -> None:
    clock = SystemClock()
    timer = clock.call_at(0, lambda: None)
    run_all(clock)
    timer.cancel()


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_callback_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    clock = SystemClock()
    ran: list[int] = []
    with held(clock):
        clock.call_at(1, fail)
        clock.call_at(2, lambda: ran.append(1))
    run_all(clock)
    assert ran == [1]
    assert error.__name__ in caplog.text


def test_a_callback_may_set_and_cancel_timers() -> None:
    clock = SystemClock()
    ran: list[str] = []
    over = threading.Event()

    def first() -> None:
        doomed.cancel()
        soon(clock, 1, second)

    def second() -> None:
        ran.append("second")
        soon(clock, 1, over.set)

    with held(clock):
        soon(clock, 1, first)
        doomed = clock.call_at(clock.now_us() + 2_000, lambda: ran.append("doomed"))
    assert over.wait(PATIENCE_SECONDS)
    assert ran == ["second"]


def test_all_timers_share_one_thread() -> None:
    clock = SystemClock()
    before = set(threading.enumerate())
    idents: set[int] = set()
    for number in range(20):
        soon(clock, number, lambda: idents.add(threading.get_ident()))
    run_all(clock)
    [thread] = set(threading.enumerate()) - before
    assert (thread.name, thread.daemon, {thread.ident}) == ("inorder-timers", True, idents)


@pytest.mark.parametrize("others", [0, 1, 10])
def test_a_timer_whose_setting_is_interrupted_at_any_step_holds_up_no_other(others: int) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        clock = SystemClock()
        ran: list[int] = []
        with held(clock) if others > 1 else nullcontext():
            for number in range(others):
                clock.call_at(number, partial(ran.append, number))
            if others == 1:
                run_all(clock, 0)  # and then nothing is to be done
            clock._timers._heap_limit = others  # so that it looks for cancelled ones
            # Where a first timer is set, also a thread is started, within which nothing can be helped.
            within = ("inorder.clock", "threading") if others else ("inorder.clock",)
            went_through = not is_interrupted(partial(clock.call_at, 0, list), step, *within)
        over = threading.Event()
        # On another thread, which does not have the locks of this one.
        threading.Thread(target=soon, args=(clock, 0, over.set), daemon=True).start()
        assert over.wait(PATIENCE_SECONDS), f"step {step}"
        assert ran == [*range(others)], f"step {step}"
    assert step > 3


def test_threads_set_timers_at_the_same_time() -> None:
    clock = SystemClock()
    ran: list[int] = []

    def add() -> None:
        for _ in range(200):
            soon(clock, 1, lambda: ran.append(1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run_all(clock)
    assert len(ran) == 800


def test_cancelled_timers_are_forgotten() -> None:
    """A broker sets a timer for its next deadline over and over; most are cancelled long before their time."""
    clock = SystemClock()
    for _ in range(10_000):
        clock.call_at(clock.now_us() + 600 * MICROSECONDS, lambda: None).cancel()
    assert len(clock._timers._heap) < 200


def test_a_forked_process_has_timers_of_its_own() -> None:
    script = """
import os, sys, threading, time
from inorder.clock import SYSTEM_CLOCK

SYSTEM_CLOCK.call_at(0, lambda: None)
time.sleep(0.05)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ran = threading.Event()
SYSTEM_CLOCK.call_at(0, ran.set)
os._exit(0 if ran.wait(10) else 1)
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=PATIENCE_SECONDS).returncode == 0


# -- the manual clock ----------------------------------------------------------------------------------


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(start=5)
    assert (clock.now_us(), clock.now_us()) == (5 * MICROSECONDS, 5 * MICROSECONDS)
    clock.advance(0.25)
    assert clock.now_us() == 5_250_000


def test_a_manual_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="forward only"):
        ManualClock().advance(-1)


def test_a_manual_clock_does_not_go_back_behind_a_timer_that_moved_it() -> None:
    clock = ManualClock(start=0)
    clock.call_at(MICROSECONDS, lambda: clock.advance(5))
    clock.advance(2)
    assert clock.now_us() == 6 * MICROSECONDS


def test_each_timer_on_the_way_sees_its_time() -> None:
    clock = ManualClock(start=0)
    seen: list[tuple[str, int]] = []
    for when, name in ((3, "c"), (1, "a"), (2, "b"), (9, "late")):
        clock.call_at(when * MICROSECONDS, lambda name=name: seen.append((name, clock.now_us())))
    clock.advance(5)
    assert seen == [("a", 1_000_000), ("b", 2_000_000), ("c", 3_000_000)]
    assert clock.now_us() == 5_000_000


def test_a_timer_that_is_set_on_the_way_runs_if_it_is_due() -> None:
    clock = ManualClock(start=0)
    seen: list[int] = []

    def again() -> None:
        seen.append(clock.now_us())
        clock.call_at(clock.now_us() + MICROSECONDS, again)

    clock.call_at(MICROSECONDS, again)
    clock.advance(3.5)
    assert seen == [1_000_000, 2_000_000, 3_000_000]


def test_a_timer_of_the_past_runs_at_the_next_move() -> None:
    clock = ManualClock(start=5)
    seen: list[int] = []
    clock.call_at(0, lambda: seen.append(clock.now_us()))
    assert seen == []
    clock.advance(0)
    assert seen == [5_000_000]


def test_a_cancelled_timer_of_a_manual_clock_does_not_run() -> None:
    clock = ManualClock(start=0)
    seen: list[int] = []
    clock.call_at(1, lambda: seen.append(1)).cancel()
    clock.advance(1)
    assert seen == []


def test_a_timer_that_is_due_in_a_million_years_ends_no_others() -> None:
    clock = SystemClock()
    clock.call_at(10**6 * 365 * 86400 * MICROSECONDS, print)
    run_all(clock, 0)
    run_all(clock)


def test_timers_run_also_after_a_thread_for_them_could_not_be_started() -> None:
    clock = SystemClock()
    threading.stack_size(1 << 47)  # more than there are addresses
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            clock.call_at(0, print)
    finally:
        threading.stack_size(0)
    run_all(clock)


def test_timers_run_also_after_the_first_of_them_was_interrupted_at_any_step() -> None:
    step, interrupted = 0, True
    while interrupted:
        step, clock = step + 1, SystemClock()
        try:
            interrupted = is_interrupted(lambda clock=clock: clock.call_at(0, int), step, "inorder.", "threading")
        except RuntimeError:  # Python itself, which was interrupted while it waited for the thread to start
            continue
        run_all(clock, 0)
    assert step > 10


def test_a_manual_clock_tells_when_its_next_timer_is_due() -> None:
    clock = ManualClock(start=0)
    assert clock.next_due_us() is None
    clock.call_at(7, print)
    clock.call_at(5, print).cancel()
    assert clock.next_due_us() == 7
