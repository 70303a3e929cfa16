"""What is inside a pool: taken from the source, not put out yet. Pure, not thread-safe; time is an argument.

The source is asked for an item only when one of the window's places is free, and the place is free again when
the item's outputs have been put out. So whoever works never waits for room, memory is bounded, and the item
that all others wait for always has a place: nothing can lock.

         put out         in order, waiting       being worked on, or waiting         not taken yet
      0 1 2 3 4 5 | 6 ✓  7 ✓ |  8 …  9 ✓  10 …  11 ✓  12 …  13 …  | 14 15 16 17 …
                  |             └ the head                          |
                  └──────────────────── the window ─────────────────┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from inorder.core.lanes import FreeLanes, Lanes

Job: TypeAlias = tuple[int, Hashable, Any]  # number and key, as lanes need them, then the item
FREE: Hashable = ""  # the key of items that have none


@dataclass(frozen=True, slots=True)
class HeadOfLine:
    """An item that results behind it had to wait for, and how long."""

    index: int
    item: Any
    seconds: float


class Window:
    """Numbers items, says whose turn it is to be worked on, and puts results out in order."""

    def __init__(self, size: int, *, ordered: bool, keyed: bool, buffer: int = 0) -> None:
        self.size = size
        self._buffer = buffer  # so many results that are ready for the reader take no place
        self.issued = 0
        self.inside: dict[int, Any] = {}  # number → item, in order; `emitted` takes it out
        self.ready: deque[tuple[int, tuple[Any, ...]]] = deque()  # number and outputs, to be put out next
        self._ordered = ordered
        self._lanes: Lanes[Any] = Lanes() if keyed else FreeLanes()
        self._settled: dict[int, tuple[Any, ...]] = {}  # done, but the head is not
        self._head = 0  # the first number that is not settled
        self.head_since_us = 0
        self._blocked_since_us: int | None = None  # since then something waits for the head
        self._blocked_us = 0
        self.worst: HeadOfLine | None = None

    @property
    def free(self) -> int:
        """So many items may come in."""
        return self.size - len(self.inside) + min(self._buffer, len(self.ready))

    @property
    def head(self) -> int | None:
        """The number of the item that those behind it wait for, once they are done."""
        return self._head if self._ordered and self._head < self.issued else None

    @property
    def behind_head(self) -> int:
        """How many results wait for the head."""
        return len(self._settled)

    @property
    def runnable(self) -> int:
        """How many items could be worked on now, and are not."""
        return self._lanes.ready()

    # -- in ----------------------------------------------------------------------------------------

    def admit(self, item: Any, key: Hashable, now_us: int) -> int:
        """Give an item its number, which is returned, and its place, of which one must be free."""
        number = self.issued
        self._lanes.put(((number, key, item),))  # first: a key that cannot be compared with others raises
        self.issued = number + 1
        self.inside[number] = item
        if number == self._head:
            self.head_since_us = now_us
        return number

    # -- work --------------------------------------------------------------------------------------

    def take(self, count: int) -> list[Job]:
        """Items whose turn it is, in order."""
        return self._lanes.take(count)

    def give_back(self, jobs: list[Job]) -> None:
        """These were taken, and are the first whose turn it is again."""
        self._lanes.untake(jobs)

    def ended(self, job: Job) -> None:
        """Nobody works on it any more: the next of its key may go."""
        if job[1] != FREE:
            self._lanes.done_one(job)

    # -- out ---------------------------------------------------------------------------------------

    def settle(self, number: int, outputs: tuple[Any, ...], now_us: int) -> None:
        """What an item came to, once for each item. Its outputs are ready when their turn has come."""
        if not self._ordered:
            self._put_out(number, outputs)
        elif number != self._head:
            self._settled[number] = outputs
            if self._blocked_since_us is None:
                self._blocked_since_us = now_us
        else:
            if self._blocked_since_us is not None:
                self._unblock(number, now_us)
            self._put_out(number, outputs)
            number += 1
            settled = self._settled
            while settled and number in settled:
                self._put_out(number, settled.pop(number))
                number += 1
            self._head = number
            self.head_since_us = now_us
            self._blocked_since_us = now_us if settled else None

    def _put_out(self, number: int, outputs: tuple[Any, ...]) -> None:
        if outputs:
            self.ready.append((number, outputs))
        else:
            del self.inside[number]  # filtered: nobody will come for it

    def emitted(self, number: int) -> Any:
        """Its outputs have been put out: there is room for another item. Returns this one."""
        return self.inside.pop(number)

    # -- who holds up whom -------------------------------------------------------------------------

    def _unblock(self, number: int, now_us: int) -> None:
        assert self._blocked_since_us is not None
        blocked_us = now_us - self._blocked_since_us
        self._blocked_us += blocked_us
        if self.worst is None or blocked_us > self.worst.seconds * 1e6:
            self.worst = HeadOfLine(number, self.inside[number], blocked_us / 1e6)

    def head_of_line(self, now_us: int) -> HeadOfLine | None:
        """The item for which results wait now."""
        if self._blocked_since_us is None:
            return None
        return HeadOfLine(self._head, self.inside[self._head], (now_us - self._blocked_since_us) / 1e6)

    def head_of_line_seconds(self, now_us: int) -> float:
        """For how long, all in all, results have waited for an item before them."""
        now = self.head_of_line(now_us)
        return self._blocked_us / 1e6 + (now.seconds if now else 0)
