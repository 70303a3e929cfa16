"""The window: so many inside and no more, out in order, and the head always has a place. Pure."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from inorder.clock import MICROSECONDS
from inorder.pool.window import FREE, HeadOfLine, Window


def filled(count: int, size: int = 8, **options: Any) -> Window:
    window = Window(size, **{"ordered": True, "keyed": False, **options})
    for number in range(count):
        assert window.admit(f"item {number}", FREE, 0) == number
    return window


def numbers(jobs: list[Any]) -> list[int]:
    return [job[0] for job in jobs]


def out(window: Window) -> list[int]:
    """Read all that is ready."""
    read = []
    while window.ready:
        number, _ = window.ready.popleft()
        window.emitted(number)
        read.append(number)
    return read


def test_items_are_worked_on_in_their_order() -> None:
    window = filled(4)
    assert window.runnable == 4
    assert numbers(window.take(3)) == [0, 1, 2]
    assert numbers(window.take(3)) == [3]
    assert window.take(3) == []


def test_b_c_and_d_wait_for_a() -> None:
    """ordered-worker-pool: Motivation"""
    window = filled(4)
    for number in (1, 2, 3):
        window.settle(number, ("fast",), 0)
        assert out(window) == []
    assert window.behind_head == 3
    window.settle(0, ("slow",), 0)
    assert out(window) == [0, 1, 2, 3]
    assert window.behind_head == 0


def test_without_order_whoever_is_done_comes_out() -> None:
    """ordered-worker-pool: Motivation"""
    window = filled(4, ordered=False)
    for number in (1, 2, 3, 0):
        window.settle(number, ("done",), 0)
    assert out(window) == [1, 2, 3, 0]
    assert window.head is None


def test_a_place_is_free_again_when_the_outputs_are_out_and_not_before() -> None:
    window = filled(2, size=2)
    assert window.free == 0
    window.settle(0, ("done",), 0)
    assert window.free == 0
    out(window)
    assert window.free == 1


def test_what_was_filtered_needs_no_reader_to_leave() -> None:
    window = filled(2, size=2)
    window.settle(1, (), 0)
    assert window.free == 0  # it waits for the head, as it might have had outputs
    window.settle(0, (), 0)
    assert window.free == 2
    assert not window.ready
    assert not window.inside


def test_results_that_are_ready_may_wait_in_a_buffer_and_take_no_place() -> None:
    window = filled(4, size=4, buffer=2)
    for number in range(4):
        window.settle(number, ("done",), 0)
    assert window.free == 2
    out(window)
    assert window.free == 4


def test_results_behind_the_head_are_not_in_the_buffer() -> None:
    window = filled(4, size=4, buffer=2)
    for number in (1, 2, 3):
        window.settle(number, ("done",), 0)
    assert window.free == 0


def test_a_head_that_is_tried_again_keeps_its_place_and_goes_first() -> None:
    """ordered-worker-pool: Head-of-Line Blocking

    If the buffer of results were bounded, and not the window, results could fill it while the head has no worker.
    """
    window = filled(4, size=4)
    head, *others = window.take(4)
    for number, _, _ in others:
        window.settle(number, ("done",), 0)
    window.give_back([head])
    assert (window.free, window.head, window.runnable) == (0, 0, 1)
    assert window.take(9) == [head]
    window.settle(0, ("at last",), 0)
    assert out(window) == [0, 1, 2, 3]


def test_of_a_key_one_is_out_at_a_time_and_items_without_a_key_are_free() -> None:
    window = Window(9, ordered=True, keyed=True)
    for number, key in enumerate([("a",), ("a",), FREE, ("b",), FREE]):
        window.admit(number, key, 0)
    jobs = window.take(9)
    assert numbers(jobs) == [0, 2, 3, 4]
    window.ended(jobs[0])
    assert numbers(window.take(9)) == [1]


def test_a_key_waits_for_its_item_that_is_tried_again() -> None:
    window = Window(9, ordered=False, keyed=True)
    for number in range(2):
        window.admit(number, ("a",), 0)
    (first,) = window.take(9)
    assert window.take(9) == []
    window.give_back([first])
    assert numbers(window.take(9)) == [0]
    window.ended(first)
    assert numbers(window.take(9)) == [1]


def test_the_time_that_results_waited_for_the_head_is_measured_and_so_is_who_caused_it() -> None:
    """ordered-worker-pool: Future Extensions, Metrics"""
    window = filled(4)
    second = MICROSECONDS
    assert window.head_of_line(5 * second) is None  # nobody waits
    window.settle(1, ("done",), 5 * second)
    assert window.head_of_line(7 * second) == HeadOfLine(0, "item 0", 2)
    window.settle(3, ("done",), 8 * second)
    window.settle(0, ("done",), 9 * second)
    assert window.worst == HeadOfLine(0, "item 0", 4)
    assert window.head_of_line(10 * second) == HeadOfLine(2, "item 2", 1)
    window.settle(2, ("done",), 12 * second)
    assert window.head_of_line(99 * second) is None
    assert window.head_of_line_seconds(99 * second) == 7
    assert window.worst == HeadOfLine(0, "item 0", 4)


def test_the_head_is_as_old_as_its_turn_to_be_the_head() -> None:
    window = Window(4, ordered=True, keyed=False)
    window.admit("a", FREE, 10)
    window.admit("b", FREE, 20)
    assert window.head_since_us == 10
    window.settle(0, ("done",), 30)
    assert window.head_since_us == 30
    window.settle(1, ("done",), 40)
    assert window.head is None
    window.admit("c", FREE, 50)
    assert (window.head, window.head_since_us) == (2, 50)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "unkeyed"])
def test_never_more_than_the_window_inside_and_everything_comes_out(seed: int, ordered: bool, keyed: bool) -> None:
    """Items in, worked on, tried again and read in any order: something is always possible until all is out."""
    random = Random(seed)
    size, total = random.randint(1, 6), 60
    window = Window(size, ordered=ordered, keyed=keyed)
    at_work: list[Any] = []
    read: list[int] = []

    def admit() -> None:
        window.admit(window.issued, random.choice([FREE, ("a",), ("b",)]), 0)

    def take() -> None:
        at_work.extend(window.take(random.randint(1, 3)))

    def finish() -> None:
        job = at_work.pop(random.randrange(len(at_work)))
        if random.random() < 0.3:
            window.give_back([job])
        else:
            window.ended(job)
            window.settle(job[0], ("done",) * random.randint(0, 2), 0)

    def emit() -> None:
        number, _ = window.ready.popleft()
        window.emitted(number)
        read.append(number)

    while True:
        moves = [
            *([admit] if window.free and window.issued < total else []),
            *([take] if window.runnable else []),
            *([finish] if at_work else []),
            *([emit] if window.ready else []),
        ]
        if not moves:
            break
        random.choice(moves)()
        assert len(window.inside) <= size
        assert len(window.ready) + window.behind_head <= size
        keys = [job[1] for job in at_work if job[1] != FREE]
        assert not keyed or len(keys) == len(set(keys))
    assert window.issued == total
    assert not window.inside
    assert len(read) == len(set(read))
    assert not ordered or read == sorted(read)
