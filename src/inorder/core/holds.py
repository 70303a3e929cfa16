"""Who waits: keys that are held for a backoff or for good, and messages without a key in their backoff."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from inorder.message import POSITION, Record


class Hold(NamedTuple):
    """Why a key waits: for which message, until a time or (None) until somebody resumes it."""

    position: int
    until_us: int | None


def longer(before: Hold | None, hold: Hold) -> Hold:
    """Both together: parked if one of them is, or for as long as the longer one."""
    if before is None:
        return hold
    if before.until_us is None:
        return before
    return hold if hold.until_us is None else Hold(hold.position, max(hold.until_us, before.until_us))


def longest(before: Hold | None, hold: Hold) -> Hold:
    """Of messages that waited each for itself and are of one key now, the one for which that waits.

    The books also have waits that are over, and do not know the time: whoever still waits, waits longer than those.
    """
    if before is None or (before.until_us is not None and (hold.until_us is None or before.until_us < hold.until_us)):
        return hold
    return before


class Holds:
    """The waiting ones of a subscription, and when their time comes. Not thread-safe."""

    def __init__(self) -> None:
        self.keys: dict[str, Hold] = {}
        self._alarms: list[tuple[int, int, str, Record | None]] = []  # (due, position, key or record)

    def hold(self, key: str, hold: Hold) -> None:
        """Let a key wait, or wait longer."""
        self.keys[key] = hold = longer(self.keys.get(key), hold)
        if hold.until_us is not None:
            heappush(self._alarms, (hold.until_us, hold.position, key, None))

    def delay(self, record: Record, until_us: int) -> None:
        """Let a message without a key wait."""
        heappush(self._alarms, (until_us, record[POSITION], "", record))

    def until_us(self) -> dict[int, int | None]:
        """All for which somebody waits, by their position."""
        waiting: dict[int, int | None] = {hold.position: hold.until_us for hold in self.keys.values()}
        waiting.update((position, due_us) for due_us, position, _, record in self._alarms if record is not None)
        return waiting

    def next_us(self) -> int | None:
        """When `due` will have something."""
        return self._alarms[0][0] if self._alarms else None

    def due(self, now_us: int) -> Iterator[tuple[str, Record | None]]:
        """Keys, or messages without one, whose time has come and who wait no longer."""
        while self._alarms and self._alarms[0][0] <= now_us:
            due_us, _, key, record = heappop(self._alarms)
            if record is not None:
                yield "", record
            elif key in self.keys and self.keys[key].until_us == due_us:
                del self.keys[key]
                yield key, None

    def delayed(self) -> Iterator[tuple[int, Record]]:
        """The messages without a key that wait, and until when."""
        return ((due_us, record) for due_us, _, _, record in self._alarms if record is not None)

    def rewrite(self, change: Callable[[Record], Record | None]) -> None:
        """Replace every message without a key that waits; None removes it."""
        changed = [(*alarm[:3], alarm[3] and change(alarm[3])) for alarm in self._alarms]
        self._alarms = [alarm for alarm in changed if alarm[2] or alarm[3]]
        heapify(self._alarms)

    def clear(self) -> None:
        self.keys.clear()
        self._alarms.clear()
