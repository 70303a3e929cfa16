"""Every test of a pool leaves nothing behind: no thread, no process. Virtual loops look for tasks themselves."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 30


def at_work() -> dict[object, str]:
    """Threads and processes of ours, by name."""
    threads = {one: one.name for one in threading.enumerate() if one.name.startswith("inorder-")}
    return {one: name for one, name in threads.items() if name != "inorder-timers"} | {
        one: str(one) for one in multiprocessing.active_children()
    }


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])  # worker processes import functions of tests by it
    before = at_work()  # of other tests, whose threads leave when they have been idle for a while
    yield
    give_up = time.monotonic() + PATIENCE_SECONDS
    while left := [name for one, name in at_work().items() if one not in before]:
        assert time.monotonic() < give_up, left
        time.sleep(0.001)
