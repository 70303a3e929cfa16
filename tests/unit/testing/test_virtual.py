"""A virtual loop: time passes without waiting, and to wait for ever is an error."""

import asyncio

import pytest

from inorder.clock import MICROSECONDS
from inorder.testing import Deadlock, ManualClock, run_virtually

YEAR_SECONDS = 365 * 86400


def test_to_sleep_moves_the_clock_and_takes_no_time() -> None:
    clock = ManualClock(start=0)

    async def main() -> str:
        await asyncio.sleep(YEAR_SECONDS)
        return "done"

    assert run_virtually(main(), clock, limit_seconds=2 * YEAR_SECONDS) == "done"
    assert clock.now_us() == YEAR_SECONDS * MICROSECONDS


def test_timers_of_the_clock_and_of_the_loop_run_in_order_of_time() -> None:
    clock = ManualClock(start=0)
    seen: list[tuple[str, float]] = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(("loop", clock.now_us() / MICROSECONDS))

    async def main() -> None:
        for seconds in (0.5, 2.5, 1.5):
            clock.call_at(round(seconds * MICROSECONDS), lambda: seen.append(("clock", clock.now_us() / MICROSECONDS)))
        await asyncio.gather(sleep(3), sleep(1), sleep(2))

    run_virtually(main(), clock)
    assert seen == [("clock", 0.5), ("loop", 1), ("clock", 1.5), ("loop", 2), ("clock", 2.5), ("loop", 3)]


def test_a_timer_of_the_clock_wakes_a_task() -> None:
    clock = ManualClock()

    async def main() -> float:
        woken = asyncio.Event()
        clock.call_at(clock.now_us() + 5 * MICROSECONDS, woken.set)
        await woken.wait()
        return asyncio.get_running_loop().time()

    assert run_virtually(main(), clock) == 5


def test_a_time_limit_within_a_task_is_virtual_too() -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            await asyncio.sleep(20)

    with pytest.raises(TimeoutError):
        run_virtually(main(), ManualClock())


def test_to_wait_for_what_nobody_will_do_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtually(main(), ManualClock())


def test_a_cancelled_timer_does_not_hide_a_deadlock() -> None:
    clock = ManualClock()

    async def main() -> None:
        clock.call_at(clock.now_us() + 1, lambda: None).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer"):
        run_virtually(main(), clock)


def test_a_timer_that_comes_again_and_again_does_not_hide_a_deadlock_for_ever() -> None:
    clock = ManualClock()

    def again() -> None:
        clock.call_at(clock.now_us() + MICROSECONDS, again)

    async def main() -> None:
        again()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="beyond the limit"):
        run_virtually(main(), clock, limit_seconds=100)


def test_a_task_that_ignores_its_cancellation_is_a_deadlock_and_not_a_hang() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        await asyncio.create_task(stubborn())

    with pytest.raises(Deadlock, match="no timer"):
        run_virtually(main(), ManualClock())


def test_a_task_that_is_left_is_an_error() -> None:
    left: set[asyncio.Task[None]] = set()

    async def main() -> None:
        left.add(asyncio.create_task(asyncio.sleep(1000)))

    with pytest.raises(AssertionError, match="1 task"):
        run_virtually(main(), ManualClock())


def test_what_the_coroutine_raises_is_raised() -> None:
    async def main() -> None:
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        run_virtually(main(), ManualClock())
