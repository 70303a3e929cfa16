"""Where in the journal the messages of a topic stand, and how they are read again.

One entry for many messages: a block is a stretch of frames within one part of the journal. So
the index of a backlog that is larger than memory is small, and what is read costs one block at least.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from inorder.core.ranges import Ranges
from inorder.journal import Location, Part, Store
from inorder.journal.codec import PUBLISHED, Batch, Stored, batch, entries
from inorder.message import Record

INDEXES = "indexes"  # of a snapshot: where the messages of each topic stand
PARTS = "parts"  # of a snapshot: those that it stands for and that are needed. Missing in the first journals


class TopicIndex:
    """The blocks of one topic, ascending. Columns, because there may be many."""

    COLUMNS = ("firsts", "ends", "starts", "lasts", "times", "sizes")

    def __init__(self, columns: Sequence[Sequence[int]] = ((), (), (), (), (), ())) -> None:
        self.firsts, self.ends, self.starts, self.lasts, self.times, self.sizes = (
            array("q", column) for column in columns
        )
        # The first position of a block, and the one behind its last; where its first and its last frame
        # begin; when its first batch was stored; the bytes of its messages.

    def add(self, location: Location, stored: Stored, part: Location, block: int) -> None:
        """A batch stands in the frame at this location, in the part that begins there: no block is in two parts.

        A block is as long as `block`, as locations differ.
        """
        if not self.starts or self.starts[-1] < part or location - self.starts[-1] >= block:
            self.firsts.append(stored.first)
            self.ends.append(stored.end)
            self.starts.append(location)
            self.lasts.append(location)
            self.times.append(stored.stored_us)
            self.sizes.append(0)
        self.ends[-1] = stored.end
        self.lasts[-1] = location
        self.sizes[-1] += stored.size

    def within(self, part: Part) -> tuple[int, int]:
        """The blocks with frames in a part of the journal: the first, and the one behind the last."""
        return bisect_left(self.lasts, part.first), bisect_left(self.starts, part.end)

    def forget(self, part: Part) -> None:
        """A part of the journal is gone."""
        first, end = self.within(part)
        for name in self.COLUMNS:
            del getattr(self, name)[first:end]

    def replace(self, part: Part, other: TopicIndex) -> None:
        """Of a part that is known, this is what is left."""
        first, end = self.within(part)
        if first < end:
            for name in self.COLUMNS:
                getattr(self, name)[first:end] = getattr(other, name)

    def keep(self, parts: Sequence[Part]) -> None:
        """No other part of the journal is left."""
        behind = Part(1 << 64, 0, 0)  # no location is as large: what stands behind the last part is gone as well
        for before, part in pairwise([Part(0, 0, 0), *parts, behind]):
            self.forget(Part(before.end, part.first, 0))

    def columns(self) -> list[list[int]]:
        return [getattr(self, name).tolist() for name in self.COLUMNS]


class JournalHistory:
    """One topic's messages as a `History`: all of them, on disk."""

    complete = True

    def __init__(self, store: Store, serial: int, index: TopicIndex) -> None:
        self._store = store
        self._serial = serial
        self.index = index

    def keep(self, records: Sequence[Record]) -> None:
        """The journal keeps them anyway."""

    def forget_before(self, time_us: int) -> None:
        """The journal is compacted as a whole, when nobody needs a part of it any more."""

    def read(self, first: int, end: int) -> list[Record]:
        firsts = self.index.firsts
        for block in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
            if firsts[block] >= end:
                break
            records: list[Record] = []
            for found in self._batches(block):
                if first < found.first + found.messages and found.first < end:
                    records += found.records()
            if wanted := [record for record in records if first <= record[0] < end]:
                return wanted
        return []

    def first_since(self, time_us: int) -> int | None:
        times = self.index.times
        for block in range(max(bisect_left(times, time_us) - 1, 0), len(times)):
            for found in self._batches(block):
                if found.stored_us >= time_us:
                    return found.first
        return None

    def missing(self, end: int) -> Ranges:
        between = zip([0, *self.index.ends], [*self.index.firsts, end], strict=True)
        return Ranges((before, min(after, end)) for before, after in between if before < min(after, end))

    def size(self, first: int, end: int) -> int:
        if first >= end:
            return 0
        firsts = self.index.firsts
        return sum(self.index.sizes[max(bisect_right(firsts, first) - 1, 0) : bisect_left(firsts, end)])

    def _batches(self, block: int) -> Iterator[Batch]:
        """What was published in a block, without a hole: whoever reads it may take all that lies between for read."""
        start, last = self.index.starts[block], self.index.lasts[block]
        position, end = self.index.firsts[block], self.index.ends[block]
        for location, body in self._store.read(start):
            for kind, entry in entries(body):
                if kind == PUBLISHED and (found := batch(entry)).serial == self._serial:
                    if found.first != position:
                        break
                    yield found
                    position = found.end
            if location >= last:
                break  # without a look at what follows: that part may be gone
        if position != end:
            raise self._store.damage(start, f"messages {position} to {end - 1} are missing in the frames from here on")


def index_from_json(plain: dict[str, Any]) -> dict[int, TopicIndex]:
    """The indexes of all topics, back from plain values."""
    return {int(serial): TopicIndex(columns) for serial, columns in plain.items()}


def plain_snapshot(body: bytes) -> dict[str, Any]:
    """What a broker's snapshot says; nothing if the body is something else, which is for others to judge."""
    try:
        plain = json.loads(body)
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}


def lost_parts(plain: dict[str, Any], found: Sequence[Part]) -> list[tuple[Location, str]]:
    """Where parts are gone or cut that a snapshot names, and what is wrong with them, by what is on disk."""
    ends = {part.first: part.end for part in found}
    lost = []
    for first, end in plain.get(PARTS, ()):
        if first not in ends:
            lost.append((first, "the part that begins here is missing"))
        elif ends[first] < end:
            lost.append((ends[first], "the part ends here, and was longer"))
    return lost
