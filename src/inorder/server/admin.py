"""Calls that create, change and delete, and answer when that is on disk, or that look at all of a subscription: they
are rare, and the loop must not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREADS = 4  # so that several share a sync

# To look at a subscription costs what is in its backlog, and others wait meanwhile. So that whoever looks again and
# again never takes more than this part of the time, there is a pause after each look.
LOOKING_SHARE = 0.05


class Admin:
    """A few threads that wait for the disk, however many clients there are."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "inorder-admin")
        self.changing = asyncio.Lock()  # for whoever reads, changes and writes: one at a time, or one would be undone

    async def run(self, call: Callable[[], T]) -> T:
        # A client that goes away stops the waiting, not the work.
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        self._threads.shutdown()
