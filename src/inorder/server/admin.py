"""Calls that create, change and delete: rare, and answered when they are on disk, for which the loop must not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

THREADS = 4  # so that several share a sync


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
