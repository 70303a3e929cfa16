"""The messages of a topic by their position: which are visible, which are kept, and where to read them again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

from inorder.clock import MICROSECONDS
from inorder.core.ranges import Ranges
from inorder.message import POSITION, STORED_US, Record

_position = itemgetter(POSITION)
_stored_us = itemgetter(STORED_US)


class History(Protocol):
    """Where messages are read again that were stored before."""

    complete: bool  # whether all that anybody still waits for is there, not only what is kept for replay

    def keep(self, records: Sequence[Record]) -> None:
        """These were published just now, and somebody wants them to be kept."""

    def forget_before(self, time_us: int) -> None:
        """Nobody asks any more for what was stored earlier."""

    def read(self, first: int, end: int) -> list[Record]:
        """Some of the messages between the two, from the first that is there on; empty if none is."""

    def first_since(self, time_us: int) -> int | None:
        """The first position that is there and was stored at that time or later."""

    def missing(self, end: int) -> Ranges:
        """What of all that was stored before `end` cannot be read again, although somebody may still wait for it."""

    def size(self, first: int, end: int) -> int:
        """About how many bytes lie between the two."""


class MemoryHistory:
    """What is kept for replay, in memory: subscriptions hold what they still wait for themselves."""

    complete = False

    def __init__(self) -> None:
        self._records: list[Record] = []

    def keep(self, records: Sequence[Record]) -> None:
        self._records += records

    def forget_before(self, time_us: int) -> None:
        if self._records and self._records[0][STORED_US] < time_us:
            del self._records[: bisect_left(self._records, time_us, key=_stored_us)]

    def read(self, first: int, end: int) -> list[Record]:
        return self._records[self._index(first) : self._index(end)]

    def first_since(self, time_us: int) -> int | None:
        index = bisect_left(self._records, time_us, key=_stored_us)
        return self._records[index][POSITION] if index < len(self._records) else None

    def missing(self, end: int) -> Ranges:
        return Ranges()  # who waits for something has it

    def size(self, first: int, end: int) -> int:
        return 0  # nobody reads on from here

    def _index(self, position: int) -> int:
        return bisect_left(self._records, position, key=_position)


class Log:
    """One topic's messages, as positions."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.next_position = 0
        self.stored_us = 0  # when the latest message was stored; no later one is stored before
        self.visible = 0  # what lies before may be delivered; what lies behind is not durable yet
        self.retention_us = 0  # 0: nothing is kept; the longest that the topic or a subscription asks for

    def keep(self, records: Sequence[Record]) -> None:
        """Retain new messages, for as long as anybody asks for."""
        self.history.keep(records)
        self.history.forget_before(records[-1][STORED_US] - self.retention_us)

    def retain(self, seconds: float) -> None:
        """Keep what comes from now on for so long; 0 keeps nothing."""
        self.retention_us = round(seconds * MICROSECONDS)
        if not self.retention_us:
            self.history.forget_before(1 << 62)

    def retained_from(self, now_us: int) -> int:
        """The first position that can be replayed, or the next one to come."""
        if not self.retention_us:
            return self.next_position
        first = self.history.first_since(now_us - self.retention_us)
        return self.visible if first is None else first
