"""How many workers: more while there is work for them, never because results wait for one slow item. Pure."""

from inorder.clock import MICROSECONDS
from inorder.pool import Autoscale, ScaleEvent
from inorder.pool.scaling import HISTORY, Load, Scaler


def scaler(smallest: int = 2, largest: int = 16, window: int = 32, scale_down_after: float = 5) -> Scaler:
    options = Autoscale(min_workers=smallest, max_workers=largest, scale_down_after=scale_down_after)
    return Scaler(options, window, 0)


def at(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def test_it_begins_with_the_smallest_number() -> None:
    assert scaler().workers == 2


def test_it_grows_when_items_wait_and_everybody_is_busy() -> None:
    """ordered-worker-pool: Autoscaling Considerations, Scale-up trigger"""
    one = scaler()
    assert one.look(Load(runnable=10, busy=2, results=0, behind_head=0), at(1))
    assert one.events == [ScaleEvent(at(1), 2, 4, "10 item(s) wait and all 2 are busy")]


def test_it_grows_in_proportion_to_what_waits() -> None:
    one = scaler(4)
    assert one.look(Load(1, 4, 0, 0), 0)
    assert one.workers == 5


def test_it_at_most_doubles_at_once_up_to_the_largest_number() -> None:
    one = scaler(window=100)
    sizes = []
    while one.look(Load(99, one.workers, 0, 0), 0):
        sizes.append(one.workers)
    assert sizes == [4, 8, 16]


def test_it_does_not_grow_while_somebody_is_idle_or_nothing_waits() -> None:
    one = scaler()
    assert not one.look(Load(10, 1, 0, 0), 0)
    assert not one.look(Load(0, 2, 0, 0), 0)


def test_it_does_not_grow_when_results_wait_for_the_head() -> None:
    """ordered-worker-pool: Autoscaling Considerations, Backpressure"""
    one = scaler()
    assert not one.look(Load(runnable=13, busy=2, results=17, behind_head=17), 0)


def test_it_does_not_grow_beyond_the_places_that_a_slow_reader_leaves() -> None:
    one = scaler()
    assert one.look(Load(runnable=9, busy=2, results=29, behind_head=0), 0)
    assert one.workers == 3
    assert not one.look(Load(runnable=9, busy=3, results=29, behind_head=0), 0)


def test_it_shrinks_to_as_many_as_were_busy_at_once_for_a_while() -> None:
    """ordered-worker-pool: Autoscaling Considerations, Scale-down"""
    one = scaler()
    one.look(Load(99, 2, 0, 0), 0)
    one.look(Load(99, 4, 0, 0), 0)
    assert one.workers == 8
    assert not one.look(Load(0, 3, 0, 0), at(1))
    assert not one.look(Load(0, 0, 0, 0), at(4.9))
    assert one.look(Load(0, 1, 0, 0), at(5))
    assert one.workers <= 4  # of those who were busy at the last look before
    assert one.events[-1].reason == "at most 4 were busy for 5 s"


def test_it_keeps_the_smallest_number() -> None:
    one = scaler()
    one.look(Load(99, 2, 0, 0), 0)
    for seconds in (1, 6, 7, 12, 18):
        one.look(Load(0, 0, 0, 0), at(seconds))
    assert one.workers == 2


def test_a_moment_of_full_work_begins_the_time_anew() -> None:
    one = scaler()
    one.look(Load(99, 2, 0, 0), 0)
    assert not one.look(Load(0, 0, 0, 0), at(3))
    assert not one.look(Load(0, 4, 0, 0), at(4))
    assert not one.look(Load(0, 4, 0, 0), at(8.9))
    assert one.workers == 4


def test_the_newest_events_are_kept_and_no_more() -> None:
    one = scaler(1, 2, scale_down_after=0)
    for second in range(2 * HISTORY):
        assert one.look(Load(1, 1, 0, 0) if one.workers == 1 else Load(0, 0, 0, 0), at(second))
    assert len(one.events) == HISTORY
    assert one.events[-1].time_us == at(2 * HISTORY - 1)
