"""A crew of threads and its limit: whoever is one too many leaves, and whoever is not goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from inorder.errors import InorderError
from inorder.pool.task_crew import LoopThread
from inorder.pool.thread_crew import ThreadCrew

PATIENCE_SECONDS = 30


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


class Chores:
    """Work for a crew: calls to be made, at most so many at once."""

    doubts = ()
    ends = None

    @property
    def call_sure(self) -> Callable[[Callable[[], Any]], Any]:
        return self.call

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: deque[Callable[[], Any]] = deque()
        self.finished: list[Any] = []
        self.over = threading.Event()
        self.before_limit: Callable[[], None] = lambda: None

    def take(self, count: int) -> Sequence[Callable[[], Any]]:
        return [self.calls.popleft()] if self.calls else []

    def more(self) -> bool:
        return bool(self.calls)

    def begin(self, item: Callable[[], Any]) -> bool:
        return True

    def call(self, item: Callable[[], Any]) -> Any:
        return item()

    def done(self, item: Callable[[], Any], value: Any) -> None:
        self.finished.append(value)

    def failed(self, item: Callable[[], Any], error: BaseException) -> None:
        self.finished.append(error)

    def after_failure(self, item: Callable[[], Any]) -> None: ...

    def give_back(self, items: Sequence[Callable[[], Any]]) -> None:
        self.calls.extendleft(reversed(items))

    def flush(self) -> None: ...

    def crowd(self) -> bool:
        return False

    def limit(self) -> int:
        self.before_limit()
        return self.most

    def lost(self, error: InorderError) -> None:
        raise error

    def ended(self) -> None:
        self.over.set()


def crew_of(chores: Chores) -> ThreadCrew[Callable[[], Any]]:
    crew: ThreadCrew[Callable[[], Any]] = ThreadCrew("inorder-test")
    crew.start(chores)
    return crew


def end(crew: ThreadCrew[Any], chores: Chores) -> None:
    crew.end()
    assert chores.over.wait(PATIENCE_SECONDS)


def grow(crew: ThreadCrew[Any], chores: Chores, count: int) -> None:
    """Have so many threads, all of them idle."""
    together = threading.Barrier(count)
    chores.calls.extend([lambda: together.wait(PATIENCE_SECONDS)] * count)
    crew.wake()
    wait_until(lambda: len(chores.finished) == count and crew.busy == 0)
    chores.finished.clear()


def test_a_thread_that_seemed_one_too_many_goes_on_when_the_others_have_left() -> None:
    """It found the limit lower, but before it could leave another one had left; then the work is its own."""
    chores = Chores(2)
    crew = crew_of(chores)
    grow(crew, chores, 2)
    worker: list[int] = []

    def other_leaves() -> None:
        if threading.get_ident() in worker and chores.most == 2:
            chores.most = 1
            crew.resize()
            wait_until(lambda: crew._count == 1)
            chores.calls.append(lambda: "second")  # nobody is told: the worker is about to look

    def first() -> str:
        worker.append(threading.get_ident())
        return "first"

    chores.before_limit = other_leaves
    chores.calls.append(first)
    crew.wake()
    wait_until(lambda: chores.finished == ["first", "second"])
    end(crew, chores)


def test_idle_threads_leave_when_the_limit_is_lower_and_one_stays() -> None:
    chores = Chores(4)
    crew = crew_of(chores)
    grow(crew, chores, 4)
    chores.most = 1
    crew.resize()
    wait_until(lambda: crew._count == 1)
    chores.calls.extend([lambda: "done"] * 5)
    crew.wake()
    wait_until(lambda: chores.finished == ["done"] * 5)
    end(crew, chores)


def test_busy_threads_leave_between_two_items_when_the_limit_is_lower() -> None:
    chores = Chores(3)
    crew = crew_of(chores)
    go_on = threading.Event()
    begun: list[int] = []

    def wait() -> str:
        begun.append(threading.get_ident())
        assert go_on.wait(PATIENCE_SECONDS)
        return "waited"

    chores.calls.extend([wait] * 3)
    crew.wake()
    wait_until(lambda: len(begun) == 3)
    chores.most = 1
    crew.resize()
    chores.calls.extend([lambda: "done"] * 9)
    assert chores.finished == []  # nobody is interrupted
    go_on.set()
    wait_until(lambda: sorted(chores.finished) == ["done"] * 9 + ["waited"] * 3 and crew._count == 1)
    end(crew, chores)


def test_whatever_a_call_raises_its_thread_goes_on() -> None:
    chores = Chores(1)

    def fail(error: BaseException) -> Any:
        raise error

    errors = [ValueError(), SystemExit(), KeyboardInterrupt()]
    chores.calls.extend([lambda error=error: fail(error) for error in errors] + [lambda: "done"])
    crew = crew_of(chores)
    wait_until(lambda: chores.finished == [*errors, "done"])
    end(crew, chores)


def test_a_crew_that_never_had_a_thread_ends() -> None:
    chores = Chores(0)
    end(crew_of(chores), chores)


def test_what_the_start_on_a_loop_raises_is_raised_here() -> None:
    loop = LoopThread()
    try:
        loop.call(lambda: 1 / 0)
    except ZeroDivisionError:
        pass
    else:
        raise AssertionError
    assert loop.call(lambda: "made") == "made"
    loop.stop()
