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


def left_behind() -> list[str]:
    threads = [one.name for one in threading.enumerate() if one.name.startswith("inorder-")]
    return [name for name in threads if name != "inorder-timers"] + [
        str(one) for one in multiprocessing.active_children()
    ]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])  # worker processes import functions of tests by it
    assert left_behind() == []
    yield
    give_up = time.monotonic() + PATIENCE_SECONDS
    while left := left_behind():
        assert time.monotonic() < give_up, left
        time.sleep(0.001)
