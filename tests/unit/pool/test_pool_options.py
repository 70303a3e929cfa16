"""A pool says at once what is wrong with its options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from inorder.errors import InvalidArgument
from inorder.pool import Autoscale, PoolOptions, Retry, WorkerPool
from inorder.testing import ManualClock

NOT_A_NUMBER: list[Any] = ["1", None, math.nan, True]


def double(item: int) -> int:
    return 2 * item


async def double_async(item: int) -> int:
    return 2 * item


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: a whole number of at least 1, not 0"),
        ({"workers": 2.5}, "workers: a whole number of at least 1, not 2.5"),
        ({"workers": True}, "workers: a whole number of at least 1, not True"),
        ({"workers": 2, "autoscale": Autoscale()}, "workers: a fixed number, or autoscale, but not both"),
        ({"autoscale": 4}, "autoscale: an Autoscale(...), not 4"),
        ({"autoscale": {"max_workers": 4}}, "autoscale: an Autoscale(...), not {'max_workers': 4}"),
        ({"preserve_order": 1}, "preserve_order: True or False, not 1"),
        ({"partition_key": "key"}, "partition_key: something to call, not 'key'"),
        ({"order_buffer_size": 0, "preserve_order": True}, "order_buffer_size: a whole number of at least 1, not 0"),
        (
            {"order_buffer_size": 3, "workers": 4, "preserve_order": True},
            "order_buffer_size: at least the number of workers, 4, not 3: the rest would never have work",
        ),
        (
            {"order_buffer_size": 3, "autoscale": Autoscale(max_workers=4), "preserve_order": True},
            "order_buffer_size: at least the number of workers, 4, not 3: the rest would never have work",
        ),
        ({"order_timeout": 1}, "order_timeout: means something with preserve_order=True only"),
        ({"order_timeout": 0, "preserve_order": True}, "order_timeout: above 0, up to 1000000000, not 0"),
        ({"order_timeout": 1e300, "preserve_order": True}, "order_timeout: above 0, up to 1000000000, not 1e+300"),
        ({"order_timeout": math.inf, "preserve_order": True}, "order_timeout: above 0, up to 1000000000, not inf"),
        ({"on_error": "ignore"}, "on_error: one of 'skip', 'emit', 'raise', a Retry(...), not 'ignore'"),
        ({"on_error": []}, "on_error: one of 'skip', 'emit', 'raise', a Retry(...), not []"),
        ({"error_handler": "log"}, "error_handler: something to call, not 'log'"),
        ({"process_timeout": 0}, "process_timeout: above 0, up to 1000000000, not 0"),
        ({"process_timeout": -1}, "process_timeout: above 0, up to 1000000000, not -1"),
        ({"process_timeout": math.inf}, "process_timeout: above 0, up to 1000000000, not inf"),
        ({"kind": "greenlet"}, "kind: one of 'async', 'thread', 'process', not 'greenlet'"),
        ({"buffer_size": -1}, "buffer_size: a whole number of at least 0, not -1"),
        ({"on_metrics": 1}, "on_metrics: something to call, not 1"),
        ({"metrics_interval": 0}, "metrics_interval: above 0, up to 1000000000, not 0"),
        ({"metrics_interval": math.inf}, "metrics_interval: above 0, up to 1000000000, not inf"),
        ({"clock": None}, "clock: a clock, not None"),
        ({"clock": ManualClock}, "clock: a clock, not <class 'inorder.testing.clock.ManualClock'>"),
    ],
    ids=str,
)
def test_a_bad_option_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}$"):
        WorkerPool(double, **options)


@pytest.mark.parametrize("name", ["partition_key", "on_metrics"])
def test_what_nobody_awaits_is_no_async_def(name: str) -> None:
    options: dict[str, Any] = {name: double_async}
    with pytest.raises(InvalidArgument, match=f"^{name}: a def, not an async def: what that returns is not awaited$"):
        WorkerPool(double, **options)


@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=str)
@pytest.mark.parametrize("name", ["metrics_interval", "process_timeout", "order_timeout"])
def test_a_time_is_a_number(name: str, value: Any) -> None:
    if value is None and name != "metrics_interval":
        assert getattr(PoolOptions(fn=double, **{name: None}), name) is None
        return
    with pytest.raises(InvalidArgument, match=f"^{name}: above 0, up to 1000000000, not "):
        PoolOptions(fn=double, preserve_order=True, **{name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(max_attempts=0), "max_attempts: a whole number of at least 1, not 0"),
        (lambda: Retry(minimum_backoff=-1), "minimum_backoff: at least 0, up to 1000000000, not -1"),
        (lambda: Retry(minimum_backoff=math.inf), "minimum_backoff: at least 0, up to 1000000000, not inf"),
        (lambda: Retry(minimum_backoff=2, maximum_backoff=1), "maximum_backoff: at least 2, up to 1000000000, not 1"),
        (lambda: Retry(maximum_backoff=math.inf), "maximum_backoff: at least 0.1, up to 1000000000, not inf"),
        (lambda: Retry(then="again"), "then: one of 'skip', 'emit', 'raise', not 'again'"),  # type: ignore[arg-type]
        (lambda: Autoscale(min_workers=0), "min_workers: a whole number of at least 1, not 0"),
        (lambda: Autoscale(min_workers=5, max_workers=4), "max_workers: a whole number of at least 5, not 4"),
        (lambda: Autoscale(interval=0), "interval: above 0, up to 1000000000, not 0"),
        (lambda: Autoscale(interval=math.inf), "interval: above 0, up to 1000000000, not inf"),
        (lambda: Autoscale(scale_down_after=-1), "scale_down_after: at least 0, up to 1000000000, not -1"),
    ],
    ids=range(11),
)
def test_so_is_a_bad_part_of_one(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(message)}$"):
        make()


def test_a_misspelt_option_is_refused_with_the_closest_name() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'preserve_order'"):
        WorkerPool(double, preserv_order=True)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^fn: something to call, not 7$"):
        WorkerPool(7)  # type: ignore[arg-type]


def test_a_function_that_no_process_can_import_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="it must be a function of a module"):
        WorkerPool(lambda item: item, kind="process")


def test_what_is_no_iterable_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^source: an iterable or an asynchronous iterable, not int$"):
        WorkerPool(double).map(7)  # type: ignore[arg-type]


def test_an_async_function_runs_in_tasks_and_another_one_in_threads() -> None:
    class Callable:
        async def __call__(self, item: int) -> int:
            return item

    assert PoolOptions(fn=double).work_kind == "thread"
    assert PoolOptions(fn=double_async).work_kind == "async"
    assert PoolOptions(fn=Callable()).work_kind == "async"
    assert PoolOptions(fn=double_async, kind="thread").work_kind == "thread"


def test_the_window_is_twice_the_largest_number_of_workers_unless_told() -> None:
    """ordered-worker-pool: Configuration API, OrderBufferSize"""
    assert PoolOptions(fn=double, workers=4, preserve_order=True).window == 8
    assert PoolOptions(fn=double, autoscale=Autoscale(min_workers=2, max_workers=16), preserve_order=True).window == 32
    assert PoolOptions(fn=double, workers=4, preserve_order=True, order_buffer_size=5).window == 5
    assert PoolOptions(fn=double, workers=4, order_buffer_size=3).window == 8  # only used where order is preserved


def test_order_is_kept_only_if_asked_for() -> None:
    """ordered-worker-pool: Configuration API, PreserveOrder"""
    assert not PoolOptions(fn=double).preserve_order


def test_a_failure_is_raised_unless_somebody_handles_it() -> None:
    def handler(item: object, error: BaseException) -> None: ...

    assert PoolOptions(fn=double).when_failed == "raise"
    assert PoolOptions(fn=double, error_handler=handler).when_failed == "skip"
    assert PoolOptions(fn=double, error_handler=handler, on_error="emit").when_failed == "emit"
    assert PoolOptions(fn=double, on_error=Retry()).when_failed == "raise"
    assert PoolOptions(fn=double, on_error=Retry(), error_handler=handler).when_failed == "skip"
    assert PoolOptions(fn=double, on_error=Retry(then="emit"), error_handler=handler).when_failed == "emit"


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    retry = Retry(minimum_backoff=0.1, maximum_backoff=1)
    assert [retry.backoff(failures) for failures in (1, 2, 3, 4, 5, 10_000)] == [0.1, 0.2, 0.4, 0.8, 1, 1]


def test_a_pool_shows_what_it_is() -> None:
    shown = repr(WorkerPool(double, workers=3))
    assert re.fullmatch(r"WorkerPool\(<function double .*>, kind='thread', workers=3\)", shown)
