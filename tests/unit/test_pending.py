"""A Pending is set once and seen by everybody: threads, tasks and callbacks, in whatever order they come."""

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from inorder import Aborted, DeadlineExceeded, Pending

from .interrupts import is_interrupted

PATIENCE_SECONDS = 30


def in_threads(*calls: Callable[[], object]) -> None:
    """Run calls at the same time, each in a thread, until all have ended."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        together.wait(PATIENCE_SECONDS)
        call()

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def later(call: Callable[[], object]) -> None:
    """Make a call on another thread, a moment from now."""
    threading.Timer(0.005, call).start()


# -- a result or an error ------------------------------------------------------------------------------


def test_a_result_is_there_for_everybody() -> None:
    pending: Pending[int] = Pending()
    assert not pending.done()
    pending.set_result(7)
    assert pending.done()
    assert (pending.result(), pending.result(0), pending.exception()) == (7, 7, None)


def test_an_error_is_raised_for_everybody() -> None:
    pending: Pending[int] = Pending()
    pending.set_exception(ValueError("broken"))
    assert pending.done()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            pending.result()
    assert isinstance(pending.exception(), ValueError)


def test_none_is_a_result() -> None:
    pending: Pending[None] = Pending()
    pending.set_result(None)
    assert pending.done()
    assert pending.result() is None


def test_a_result_may_be_there_from_the_start() -> None:
    assert Pending.of(7).result() == 7
    assert isinstance(Pending.failed(ValueError()).exception(), ValueError)
    assert Pending.run(lambda: 7).result() == 7
    assert isinstance(Pending.run(lambda: 1 / 0).exception(), ZeroDivisionError)


# -- threads -------------------------------------------------------------------------------------------


def test_a_thread_waits_for_the_result() -> None:
    pending: Pending[int] = Pending()
    later(lambda: pending.set_result(7))
    assert pending.result(PATIENCE_SECONDS) == 7


def test_a_thread_waits_for_the_error() -> None:
    pending: Pending[int] = Pending()
    later(lambda: pending.set_exception(ValueError()))
    assert isinstance(pending.exception(PATIENCE_SECONDS), ValueError)


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_a_timeout_stops_the_waiting_not_the_work(timeout: float) -> None:
    pending: Pending[int] = Pending()
    for wait in (pending.result, pending.exception):
        with pytest.raises(DeadlineExceeded, match="no answer within") as late:
            wait(timeout)
        assert isinstance(late.value, TimeoutError)
        assert late.value.code == 4
    pending.set_result(7)
    assert pending.result(timeout) == 7


def test_who_stopped_waiting_is_forgotten() -> None:
    """Asking again and again for a result that takes long must not fill the memory."""
    pending: Pending[int] = Pending()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pending, 0.001)

    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            pending.result(0)
        asyncio.run(give_up())
    assert not pending._callbacks


def test_many_threads_wait_for_one_result() -> None:
    for _ in range(50):
        pending: Pending[int] = Pending()
        results: list[int] = []
        waiters = [lambda: results.append(pending.result(PATIENCE_SECONDS)) for _ in range(4)]  # noqa: B023
        in_threads(*waiters, lambda: pending.set_result(7))  # noqa: B023
        assert results == [7] * 4


# -- callbacks -----------------------------------------------------------------------------------------


def test_a_callback_is_called_when_it_is_done() -> None:
    pending: Pending[int] = Pending()
    seen: list[tuple[Pending[int], bool]] = []
    pending.add_done_callback(lambda done: seen.append((done, done.done())))
    assert seen == []
    pending.set_result(7)
    assert seen == [(pending, True)]


def test_a_callback_is_called_at_once_if_it_is_done() -> None:
    seen: list[int] = []
    Pending.of(7).add_done_callback(lambda done: seen.append(done.result()))
    assert seen == [7]


def test_a_callback_is_called_on_the_thread_that_finishes_it() -> None:
    pending: Pending[int] = Pending()
    threads: list[int] = []
    pending.add_done_callback(lambda _: threads.append(threading.get_ident()))
    other = threading.Thread(target=pending.set_result, args=(7,))
    other.start()
    ident = other.ident
    other.join()
    assert threads == [ident]


def test_callbacks_are_called_in_the_order_in_which_they_came() -> None:
    pending: Pending[int] = Pending()
    seen: list[int] = []
    for number in range(5):
        pending.add_done_callback(lambda _, number=number: seen.append(number))
    pending.set_result(7)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("done_before", [False, True])
def test_a_callback_that_fails_is_logged_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture, done_before: bool, error: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise error

    pending: Pending[int] = Pending()
    seen: list[int] = []
    if done_before:
        pending.set_result(7)
    pending.add_done_callback(fail)
    pending.add_done_callback(lambda done: seen.append(done.result()))
    if not done_before:
        pending.set_result(7)
    assert seen == [7]
    assert error.__name__ in caplog.text


def test_a_callback_that_is_interrupted_keeps_no_other_from_being_called() -> None:
    def press_ctrl_c(_: object) -> None:
        raise KeyboardInterrupt

    pending: Pending[int] = Pending()
    seen: list[int] = []
    pending.add_done_callback(press_ctrl_c)
    pending.add_done_callback(lambda done: seen.append(done.result()))
    with pytest.raises(KeyboardInterrupt):
        pending.set_result(7)
    assert seen == [7]


def test_who_waits_for_a_change_of_a_result_that_is_interrupted_is_told() -> None:
    def press_ctrl_c(_: object) -> Any:
        raise KeyboardInterrupt

    pending: Pending[int] = Pending()
    changed = [pending.map(press_ctrl_c), pending.then(press_ctrl_c), pending.map(lambda result: result + 1)]
    with pytest.raises(KeyboardInterrupt):
        pending.set_result(7)
    for interrupted in changed[:2]:
        with pytest.raises(Aborted, match="interrupted"):
            interrupted.result(0)
    assert changed[2].result(0) == 8


def test_a_callback_may_add_another_one() -> None:
    pending: Pending[int] = Pending()
    seen: list[str] = []

    def first(done: Pending[int]) -> None:
        done.add_done_callback(lambda _: seen.append("second"))
        seen.append("first")

    pending.add_done_callback(first)
    pending.set_result(7)
    assert seen == ["second", "first"]


def test_each_callback_is_called_once_whoever_is_faster() -> None:
    for _ in range(200):
        pending: Pending[int] = Pending()
        seen: list[int] = []
        adders = [lambda n=n: pending.add_done_callback(lambda _, n=n: seen.append(n)) for n in range(4)]  # noqa: B023
        in_threads(*adders, lambda: pending.set_result(7))  # noqa: B023
        assert sorted(seen) == [0, 1, 2, 3]


# -- tasks ---------------------------------------------------------------------------------------------


def test_a_task_awaits_the_result() -> None:
    async def main() -> int:
        pending: Pending[int] = Pending()
        later(lambda: pending.set_result(7))
        return await pending

    assert asyncio.run(main()) == 7


def test_a_task_awaits_the_error() -> None:
    async def main() -> int:
        pending: Pending[int] = Pending()
        later(lambda: pending.set_exception(ValueError("broken")))
        return await pending

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(main())


def test_what_is_done_is_awaited_without_a_pause() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "another")
        await Pending.of(7)
        order.append("awaited")
        await asyncio.sleep(0)
        return order

    assert asyncio.run(main()) == ["awaited", "another"]


def test_other_tasks_run_while_one_awaits() -> None:
    async def main() -> list[int]:
        pendings: list[Pending[int]] = [Pending() for _ in range(3)]

        async def get(pending: Pending[int]) -> int:
            return await pending

        tasks = [asyncio.create_task(get(pending)) for pending in pendings]
        await asyncio.sleep(0)
        for number, pending in enumerate(pendings):
            pending.set_result(number)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_task_that_is_cancelled_does_not_cancel_the_work() -> None:
    async def main() -> int:
        pending: Pending[int] = Pending()

        async def get() -> int:
            return await pending

        task = asyncio.create_task(get())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not pending.done()
        pending.set_result(7)
        return await pending

    assert asyncio.run(main()) == 7


def test_loops_of_different_threads_await_one_result() -> None:
    pending: Pending[int] = Pending()
    results: list[int] = []

    async def get() -> None:
        results.append(await pending)

    in_threads(
        lambda: asyncio.run(get()),
        lambda: asyncio.run(get()),
        lambda: results.append(pending.result(PATIENCE_SECONDS)),
        lambda: (time.sleep(0.005), pending.set_result(7)),
    )
    assert results == [7, 7, 7]


def test_a_loop_that_was_closed_is_not_woken() -> None:
    pending: Pending[int] = Pending()
    waiting = pending.__await__()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        next(waiting)  # as a task would, that nobody runs any further

    loop.run_until_complete(begin())
    loop.close()
    pending.set_result(7)
    assert pending.result() == 7
    waiting.close()


# -- made of others ------------------------------------------------------------------------------------


def test_a_result_can_be_changed() -> None:
    pending: Pending[int] = Pending()
    changed = pending.map(lambda number: number * 6)
    assert not changed.done()
    pending.set_result(7)
    assert changed.result() == 42


def test_a_change_may_fail() -> None:
    assert isinstance(Pending.of(0).map(lambda number: 1 / number).exception(), ZeroDivisionError)


def test_an_error_is_not_changed() -> None:
    called: list[object] = []
    failed: Pending[int] = Pending.failed(ValueError("broken"))
    assert isinstance(failed.map(called.append).exception(), ValueError)
    assert isinstance(failed.then(lambda _: Pending.run(lambda: called.append(1))).exception(), ValueError)
    assert called == []


def test_one_can_follow_another() -> None:
    first: Pending[int] = Pending()
    second: Pending[str] = Pending()
    followed = first.then(lambda _: second)
    first.set_result(7)
    assert not followed.done()
    second.set_result("done")
    assert followed.result() == "done"


def test_what_follows_may_fail() -> None:
    def fail(_: int) -> Pending[int]:
        raise ValueError("broken")

    assert isinstance(Pending.of(7).then(fail).exception(), ValueError)
    assert isinstance(Pending.of(7).then(lambda _: Pending.failed(KeyError())).exception(), KeyError)


def test_all_results_come_in_their_order() -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    gathered = Pending.all(pendings)
    for number in (2, 0, 1):
        assert not gathered.done()
        pendings[number].set_result(number)
    assert gathered.result() == [0, 1, 2]
    assert Pending.all([]).result() == []
    assert Pending.all(Pending.of(number) for number in range(3)).result() == [0, 1, 2]


def test_an_error_does_not_grow_with_those_who_get_it() -> None:
    """As of a request of many messages that fails: each frame of a traceback keeps what its function knew."""
    pending: Pending[int] = Pending.failed(ValueError("for all"))

    def frames() -> int:
        with pytest.raises(ValueError, match="for all") as caught:
            pending.result()
        return len(list(traceback.walk_tb(caught.value.__traceback__)))

    async def awaited() -> int:
        with pytest.raises(ValueError, match="for all") as caught:
            await pending
        return len(list(traceback.walk_tb(caught.value.__traceback__)))

    assert len({frames() for _ in range(5)}) == 1
    assert len({asyncio.run(awaited()) for _ in range(5)}) == 1


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_whatever_is_raised_on_the_way_whoever_waits_is_told(error: type[BaseException]) -> None:
    def fail(_: object) -> Pending[int]:
        raise error

    assert isinstance(Pending.of(1).map(fail).exception(0), error)
    assert isinstance(Pending.of(1).then(fail).exception(0), error)
    assert isinstance(Pending.all([Pending.of(1), Pending.failed(error())]).exception(0), error)


def test_all_fail_with_the_first_error_when_every_one_is_done() -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    gathered = Pending.all(pendings)
    pendings[2].set_exception(KeyError("last"))
    pendings[0].set_result(0)
    assert not gathered.done()
    pendings[1].set_exception(ValueError("first"))
    assert isinstance(gathered.exception(), ValueError)


def test_all_are_gathered_once_whoever_is_last() -> None:
    for _ in range(100):
        pendings: list[Pending[int]] = [Pending() for _ in range(4)]
        gathered = Pending.all(pendings)
        calls: list[Any] = []
        gathered.add_done_callback(calls.append)
        in_threads(*(lambda n=n: pendings[n].set_result(n) for n in range(4)))  # noqa: B023
        assert gathered.result(0) == [0, 1, 2, 3]
        assert len(calls) == 1


def test_a_loop_is_woken_once_when_all_results_are_set() -> None:
    """If it woke with the first of them, it and the thread that sets them would take turns at every step."""
    rung: list[int] = []

    async def wait_for_all() -> list[int]:
        loop = asyncio.get_running_loop()
        pendings: list[Pending[int]] = [Pending() for _ in range(5)]
        inner: list[Pending[int]] = [Pending() for _ in range(3)]
        # As a publisher does for its messages.
        pendings[2].add_done_callback(lambda _: Pending.set_results(inner, range(3)))
        waiting = asyncio.gather(*(_value_of(one) for one in (*pendings, *inner)))
        await asyncio.sleep(0)
        call = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
            rung.append(sum(one.done() for one in (*pendings, *inner)))
            return call(*arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", counted)
            thread = threading.Thread(target=Pending.set_results, args=(pendings, range(5)))
            thread.start()
            thread.join()
        return await waiting

    assert asyncio.run(wait_for_all()) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert rung == [8]


def test_loops_are_woken_though_a_callback_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def wait_for_all() -> list[int]:
        pendings: list[Pending[int]] = [Pending() for _ in range(3)]
        waiting = asyncio.gather(*map(_value_of, pendings))
        await asyncio.sleep(0)
        pendings[1].add_done_callback(lambda _: 1 // 0)  # type: ignore[arg-type, return-value]
        Pending.set_results(pendings, range(3))
        return await waiting

    assert asyncio.run(wait_for_all()) == [0, 1, 2]
    assert "a callback of a pending result failed" in caplog.text


@pytest.mark.parametrize("together", [1, 3])
def test_tasks_of_a_loop_go_on_although_who_woke_some_of_them_was_interrupted(together: int) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def awaited() -> tuple[Pending[int], Future[int]]:
        pending: Pending[int] = Pending()
        waiting = asyncio.run_coroutine_threadsafe(_value_of(pending), loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_SECONDS)  # by then it waits
        return pending, waiting

    step, interrupted = 0, True
    try:
        while interrupted:
            step += 1
            some = [awaited() for _ in range(together)]
            pendings = [pending for pending, _ in some]
            interrupted = is_interrupted(partial(Pending.set_results, pendings, range(9)), step)
            another, waiting = awaited()
            another.set_result(step)
            assert waiting.result(PATIENCE_SECONDS) == step
            for _, one in some:
                one.cancel()  # the one that was to be woken at that moment may still wait
    finally:
        asyncio.run_coroutine_threadsafe(_ended(), loop).result(PATIENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert step > 5


async def _ended() -> None:
    """Done when all other tasks of the loop are."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _value_of(pending: Pending[int]) -> int:
    return await pending
