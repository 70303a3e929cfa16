"""What a process that has forked can do with a pass of its parent's pool."""

import contextlib
import faulthandler
import os
from collections.abc import Callable

import pytest

from inorder import WorkerPool
from inorder.errors import FailedPrecondition
from inorder.pool.pool import Results


async def same(number: int) -> int:
    return number


@pytest.mark.parametrize("fn", [int, same])
def test_a_forked_process_can_leave_the_pass_of_a_pool_and_is_told_that_it_has_no_workers(
    fn: Callable[[int], object],
) -> None:
    results: Results[int] = WorkerPool(fn, workers=3, preserve_order=True).map(range(1_000))
    reading = iter(results)
    next(reading)
    child = os.fork()
    if not child:
        try:
            faulthandler.dump_traceback_later(5, exit=True)  # at a lock that nobody releases
            with contextlib.suppress(FailedPrecondition):
                list(reading)
                os._exit(2)
            results.stop()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(reading) == list(range(1, 1_000))
