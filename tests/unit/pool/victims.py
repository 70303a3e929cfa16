"""Functions that worker processes import, most of which come to a bad end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inorder.errors import TopicNotFound


def double(item: int) -> int:
    return 2 * item


async def double_async(item: int) -> int:
    await asyncio.sleep(0)
    return 2 * item


def repeat(item: int) -> Iterator[int]:
    for _ in range(item):
        yield item


async def repeat_async(item: int) -> AsyncIterator[int]:
    for _ in range(item):
        yield item


def jitter(item: int) -> int:
    time.sleep((item * 7919 % 13) / 4000)
    return item


def process_id(item: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def not_found_on_three(item: int) -> int:
    if item == 3:
        raise TopicNotFound("orders")
    return item


def exit_on_three(item: int) -> int:
    if item == 3:
        os._exit(7)
    return item


def kill_itself_on_three(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def fork_on_three(item: int) -> int:
    """Both processes go on."""
    if item == 3:
        os.fork()
    return item


def _leave_somebody(folder: str) -> None:
    """Somebody who lives until the file is gone, by a fork or by the shell."""
    alive = Path(folder, "alive")
    alive.touch()
    if not os.fork():
        while alive.exists():
            time.sleep(0.001)
        os._exit(0)
    os.system(f"while [ -e '{alive}' ]; do sleep 0.01; done &")  # which inherits what may be inherited


def die_before_somebody(folder: str) -> None:
    _leave_somebody(folder)
    os._exit(7)


def die_once(item: str) -> str:
    """Dies if it is the first to come by."""
    try:
        Path(item).touch(exist_ok=False)
    except FileExistsError:
        return "survived"
    os._exit(1)


def tell_process_and_wait(folder: str) -> None:
    """Write who we are, then wait to be killed."""
    Path(folder, str(os.getpid())).touch()
    threading.Event().wait()


def hang_on_three(item: int) -> int:
    if item == 3:
        threading.Event().wait()
    return item


def fail_on_three(item: int) -> int:
    if item == 3:
        raise ValueError("three")
    return item


class Wordy(Exception):
    """An error that cannot be made again from its text."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Mute(Exception):
    """An error that cannot even be shown."""

    def __reduce__(self) -> Any:
        raise TypeError("no way out")

    def __str__(self) -> str:
        raise RuntimeError("no words")


@dataclass(frozen=True)
class Frozen(Exception):
    """An error that takes no notes."""

    reason: str


def fail_frozen(item: int) -> int:
    raise Frozen("cold")


def fail_wordily(item: int) -> int:
    raise Wordy("one", "two")


def fail_mutely(item: int) -> int:
    raise Mute


def leave(item: int) -> int:
    sys.exit(item)


def unpicklable(item: int) -> Any:
    return (lambda: item) if item == 3 else item


class Awkward:
    """Goes out, but raises what looks like the end of a pipe: on its way out, or on its way in."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        if self.where == "out":
            raise OSError("no way out")
        return (_arrive, (self.where,))


def _arrive(where: str) -> Awkward:
    if where == "in":
        raise EOFError("no way in")
    return Awkward(where)


def awkward(item: int) -> Any:
    return {3: Awkward("in"), 4: Awkward("out")}.get(item, item)


def accept(item: Any) -> str:
    return "here" if isinstance(item, Awkward) else item
