"""What of its topic's log a subscription has not taken in: where it stands, and what it knows of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inorder.core.failures import gap_for
from inorder.core.ledger import Ledger, Lost
from inorder.core.log import Log
from inorder.core.ranges import Ranges
from inorder.message import POSITION, Record


class Unread:
    """All that is visible from a cursor on and is not done. Not thread-safe."""

    __slots__ = ("_cursor", "_gaps", "_log", "any", "done", "lost", "matches", "straight", "until_us")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._cursor = log.next_position  # see `cursor`; not kept up to date while all goes straight
        self.any = False  # whether the log has more that was not taken in, because enough waits in memory
        self.done = Ranges()  # what need not be read of that
        self._gaps: dict[int, str] = {}  # those that are there and will not come, and why
        self.lost: dict[int, Lost] = {}  # holes among it
        self.until_us: Mapping[int, int | None] = {}  # those that wait, and until when; None: for good
        self.matches: Callable[[Record], bool] | None = None  # which of it are for this subscription; None: all
        self.straight = False  # whether what becomes visible is taken in at once, as nearly always

    @property
    def cursor(self) -> int:
        """What lies before it was taken in."""
        return self._log.visible if self.straight else self._cursor

    def look(self) -> None:
        """See anew whether all goes straight: nothing is left out."""
        self.straight = self.matches is None and not self.any and self._cursor <= self._log.visible

    def move_to(self, cursor: int) -> None:
        self._cursor = cursor
        self.any = cursor < self._log.visible
        self.look()

    def clear(self) -> None:
        """Nothing is known any more, and nothing left: whoever starts over says where."""
        self.any = False
        self.done = Ranges()
        self._gaps, self.lost, self.until_us = {}, {}, {}

    # -- what becomes visible ----------------------------------------------------------------------

    def ahead(self, records: Sequence[Record]) -> list[Record]:
        """Those that were made visible just now and do not lie before the cursor."""
        self.look()  # what was made visible since may have reached the cursor
        cursor = self.cursor
        return [record for record in records if record[POSITION] >= cursor]

    def pass_by(self, position: int) -> None:
        """This one was taken in, or will not be."""
        self._cursor = position + 1

    def leave(self) -> None:
        """What comes from now on stays in the log."""
        self._cursor, self.any = self.cursor, True
        self.straight = False

    def miss(self, position: int, reason: str | None) -> None:
        """This one, which stays in the log, will not come; with a reason that is told in its place."""
        if reason is None:
            self.done = self.done.union([(position, position + 1)])
        else:
            self._gaps[position] = reason

    # -- what waits there --------------------------------------------------------------------------

    def read_on(self) -> list[Record]:
        """The next of it, which are taken in: messages, and gaps in the places of those that will not come."""
        end = self._log.visible
        records = self._log.history.read(self.done.end_at(self.cursor), end)
        self.move_to(records[-1][POSITION] + 1 if records else end)
        if self.done and records:
            first = records[0][POSITION]
            done = self.done.marks(first, records[-1][POSITION] + 1)
            records = [record for record in records if not done[record[POSITION] - first]]
        if self.matches is not None:
            records = list(filter(self.matches, records))
        if reasons := self._gaps:
            records = [gap_for(r, reasons[r[POSITION]]) if r[POSITION] in reasons else r for r in records]
        return records

    def passed_holes(self) -> list[Record]:
        """The holes that reading has passed: they are told from now on, and are not part of this any more."""
        return [self.lost.pop(position).record(position) for position in [*self.lost] if position < self.cursor]

    def gaps(self) -> dict[int, str]:
        """Those that are there and will not come, and why."""
        return {position: reason for position, reason in self._gaps.items() if position >= self.cursor}

    def first(self) -> int | None:
        """The first of it."""
        return self.done.end_at(self.cursor) if self.any else None

    def peek(self) -> list[Record]:
        """Some of it, from the first that is there on."""
        return self._log.history.read(self.done.end_at(self.cursor), self._log.visible) if self.any else []

    def count(self) -> int:
        """How many messages that are; a filter may leave some of them out."""
        if not self.any:
            return 0
        return self._log.visible - self.cursor - self.done.within(self.cursor, self._log.visible).count()

    def size(self) -> int:
        """About how many bytes that are."""
        return self._log.history.size(self.cursor, self._log.visible)

    # -- what survives -----------------------------------------------------------------------------

    def restore(self, ledger: Ledger, vanished: Mapping[int, Lost]) -> None:
        """Stand where the books say: before the first that is not done. Of what has vanished they may not know."""
        self.done = ledger.sorted_done()
        self._gaps, self.lost, self.until_us = dict(ledger.gaps), {**vanished, **ledger.lost}, ledger.until_us()
        self.move_to(self.done.end_at(0))
