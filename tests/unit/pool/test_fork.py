"""What a process that has forked can do with a pass of its parent's pool."""

import contextlib
import faulthandler
import multiprocessing.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from inorder import WorkerPool
from inorder.errors import FailedPrecondition
from inorder.pool.pool import Results

from . import victims

PATIENCE_SECONDS = 30


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


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


def test_a_forked_process_that_exits_leaves_the_worker_processes_to_its_parent() -> None:
    results: Results[int] = WorkerPool(victims.process_id, kind="process", workers=1).map(range(20))
    reading = iter(results)
    worker = next(reading)
    child = os.fork()
    if not child:
        try:
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # as a process does that exits
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert set(reading) == {worker}


KILLED_BEFORE_WHAT_IT_FORKED = """
import os, signal, time
from inorder import WorkerPool
from tests.unit.pool import victims

reading = iter(WorkerPool(victims.process_id, kind="process", workers=1).map(iter(range(10**9))))
worker = next(reading)
if forked := os.fork():
    print(worker, forked, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def test_worker_processes_end_with_their_program_whatever_it_has_forked() -> None:
    program = subprocess.Popen([sys.executable, "-c", KILLED_BEFORE_WHAT_IT_FORKED], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    worker, forked = map(int, program.stdout.readline().split())
    program.wait()
    try:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while is_alive(worker):
            assert time.monotonic() < give_up
            time.sleep(0.001)
    finally:
        os.kill(forked, signal.SIGKILL)
        program.stdout.close()
