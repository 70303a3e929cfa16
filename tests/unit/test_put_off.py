"""What is put off to the end of a loop's turn is done once: by the loop, or by another thread if that has to wait."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from inorder import DeadlineExceeded, Pending
from inorder.put_off import at_the_end_of_the_turn

PATIENCE_SECONDS = 30


@pytest.mark.usefixtures("loops_in_time")
def test_it_is_done_after_the_tasks_that_are_ready_and_what_it_puts_off_right_after_it() -> None:
    done: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def first() -> None:
            done.append("first")
            at_the_end_of_the_turn(second)

        def second() -> None:
            done.append("second")
            if done.count("second") < 3:  # again: not in this turn
                at_the_end_of_the_turn(second)

        loop.call_soon(done.append, "ready")
        at_the_end_of_the_turn(first)
        await asyncio.sleep(0)
        assert done == ["ready", "first", "second"]
        await asyncio.sleep(0)
        assert done == ["ready", "first", "second", "second"]
        await asyncio.sleep(0)
        assert done == ["ready", "first", "second", "second", "second"]

    asyncio.run(run())


@pytest.mark.usefixtures("loops_in_time")
def test_one_that_fails_keeps_no_other_one_from_being_done() -> None:
    done: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: done.append(str(context["exception"])))

        def fail() -> None:
            at_the_end_of_the_turn(lambda: done.append("put off by it"))
            raise ValueError("failed")

        at_the_end_of_the_turn(fail)
        at_the_end_of_the_turn(lambda: done.append("other"))
        await asyncio.sleep(0)

    asyncio.run(run())
    assert done == ["put off by it", "failed", "other"]


def put_off(done: threading.Event, threads: list[str]) -> Callable[[], None]:
    def call() -> None:
        threads.append(threading.current_thread().name)
        done.set()

    at_the_end_of_the_turn(call)
    return call


def test_another_thread_does_it_if_the_loop_was_stopped() -> None:
    done, threads = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    loop.call_soon(loop.stop)
    loop.call_soon(put_off, done, threads)
    loop.run_forever()
    loop.close()
    assert done.wait(PATIENCE_SECONDS)
    assert threads == ["inorder-timers"]


def test_another_thread_does_it_if_the_thread_of_the_loop_waits_for_whatever() -> None:
    done, threads = threading.Event(), list[str]()

    async def run() -> None:
        put_off(done, threads)
        assert done.wait(PATIENCE_SECONDS)

    asyncio.run(run())
    assert threads == ["inorder-timers"]  # once


@pytest.mark.usefixtures("loops_in_time")
def test_another_thread_does_it_at_once_if_the_thread_of_the_loop_waits_for_a_result() -> None:
    answer: Pending[str] = Pending()

    async def run() -> None:
        at_the_end_of_the_turn(lambda: answer.set_result(threading.current_thread().name))
        assert answer.result(PATIENCE_SECONDS) == "inorder-timers"

    asyncio.run(run())


def test_a_result_that_does_not_come_is_waited_for_no_longer_than_said_whatever_is_put_off() -> None:
    over = threading.Event()

    async def run() -> None:
        def again() -> None:
            if not over.is_set():
                at_the_end_of_the_turn(again)

        again()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            Pending[None]().result(0.05)
        over.set()
        assert time.monotonic() - began < PATIENCE_SECONDS

    asyncio.run(run())


@pytest.mark.usefixtures("loops_in_time")
def test_it_is_done_once_however_often_it_is_put_off_and_not_at_all_without_a_loop() -> None:
    done: list[int] = []

    def call() -> None:
        done.append(1)

    async def run() -> None:
        assert all(at_the_end_of_the_turn(call) for _ in range(3))
        await asyncio.sleep(0)
        assert done == [1]
        assert at_the_end_of_the_turn(call)
        await asyncio.sleep(0)
        assert done == [1, 1]

    asyncio.run(run())
    assert not at_the_end_of_the_turn(call)
    assert done == [1, 1]
