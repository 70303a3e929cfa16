"""Calls that create, change and delete, and answer when that is on disk, or that look at all of a subscription: they
are rare, and the loop must not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from inorder.server.documents import to_the_end
from inorder.server.status import Call, Context

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


def lasting(call: Call) -> Call:
    """The same for a call of several steps, which go on when its client goes away.

    Else a change would be made and what follows from it would not, to push a new subscription for instance; and whoever
    comes next would change what is still being changed.
    """

    async def run(request: Any, context: Context) -> Any:
        return await to_the_end(call(request, context))

    return run
