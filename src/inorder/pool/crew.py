"""What a crew of workers is, and what it works on.

The worker pool and the handlers of subscriptions stand on crews, and nothing else runs users' functions. What
the workers do, and whose turn it is, is for a `Work` to say.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from inorder.errors import InorderError

Item = TypeVar("Item")


class Work(Protocol[Item]):
    """Where a crew gets its items, and where it leaves them. Called on the crew's threads, or on its loop."""

    @property
    def doubts(self) -> Collection[object]:
        """One and the same object, and while it is empty nobody need ask whether an item may `begin`."""

    @property
    def call_sure(self) -> Callable[[Item], Any]:
        """What a crew of tasks calls instead of `call` while there are no doubts."""

    @property
    def ends(self) -> Callable[[Item], object] | None:
        """What a crew of tasks calls instead of `done`, if nobody is interested in the value."""

    def take(self, count: int) -> Sequence[Item]:
        """Items whose turn it is, at most so many; never waits. An `InorderError` is the end: see `lost`."""

    def more(self) -> bool:
        """Whether `take` would find something."""

    def begin(self, item: Item) -> bool:
        """Whether an item that was taken is still to be worked on. It is done, or has failed, afterwards."""

    def call(self, item: Item) -> Any:
        """Work on it; for a crew of tasks the answer is to be awaited."""

    def done(self, item: Item, value: Any) -> None: ...

    def failed(self, item: Item, error: BaseException) -> Awaitable[object] | None:
        """A crew of tasks awaits the answer, unless it is told to end itself."""

    def after_failure(self, item: Item) -> None:
        """Called when that was awaited, or was not."""

    def give_back(self, items: Sequence[Item]) -> None:
        """These were taken, but nobody will begin them."""

    def flush(self) -> None:
        """A worker that was called in is there. Whatever was left to it, now is the time."""

    def crowd(self) -> bool:
        """Whether it is worth waiting a moment for other tasks that end in the same turn of the loop."""

    def limit(self) -> int:
        """How many may work at once."""

    def lost(self, error: InorderError) -> Awaitable[object] | None:
        """`take` raised: the crew ends."""

    def ended(self) -> Coroutine[Any, Any, object] | None:
        """The last worker has ended. A crew of tasks awaits the answer."""


class Crew(ABC, Generic[Item]):
    """Started once, ended once."""

    _work: Work[Item]

    def __init__(self) -> None:
        self._started = False
        self._closing = False
        self._ready: deque[Item] = deque()  # taken together, so that none waits for another one; none is begun

    def assign(self, work: Work[Item]) -> None:
        """What it will work on: from now on it may be ended, also before it is started."""
        self._work = work

    def start(self, work: Work[Item]) -> None:
        self.assign(work)
        self._started = True
        self.wake()

    @property
    def waiting(self) -> int:
        """How many items were taken, but not begun."""
        return len(self._ready)

    @property
    @abstractmethod
    def busy(self) -> int:
        """How many are at work, roughly."""

    @abstractmethod
    def wake(self) -> None:
        """There may be something to do. Called on any thread; returns at once."""

    def resize(self) -> None:
        """The limit is another one now."""
        self.wake()

    @abstractmethod
    def end(self) -> None:
        """Begin nothing more. When the last worker has ended, the work is told."""

    @abstractmethod
    def interrupt(self) -> None:
        """End, and have what runs give up, if that is possible."""

    async def gone(self) -> None:
        """Wait, on the loop, until nothing of it is left there."""

    @abstractmethod
    def at_work(self) -> bool:
        """Whether it is one of the workers that asks."""

    @abstractmethod
    def needs_this_thread(self) -> bool:
        """Whether it cannot end while the thread that asks does nothing but wait for it."""

    def _give_back_unbegun(self) -> None:
        unbegun: list[Item] = []
        with contextlib.suppress(IndexError):  # others may take them out meanwhile
            while True:
                unbegun.append(self._ready.popleft())
        if unbegun:
            self._work.give_back(unbegun)
