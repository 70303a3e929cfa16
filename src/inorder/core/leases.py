"""Which messages are out, and until when.

A pull is one grant: consecutive lease numbers, one deadline. So the records that are out stand in a
list, by lease number, and a grant lengthens it at the cost of copying pointers. Those that stay out
while thousands of others come and go move to a dict, so that the list stays short. Deadlines are kept
per span of leases, rounded up to a millisecond so that many small pulls share one; a span that no lease
ends with is dropped when its time comes, when the next one is opened while nothing is out, or when such
spans have become many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat

from inorder.core.ranges import runs
from inorder.message import Record

GRAIN_US = 1_000
OPEN = 1 << 62  # the end of a span that the next grant may lengthen
TIDY = 1_024  # leases that may have ended before their places in the list are given up
WORTH = 16  # so many are moved up at the most for one that ended in front of them


class Leases:
    """The records of one subscription that are out. A number is never used twice. Not thread-safe."""

    def __init__(self, first: int = 1) -> None:
        self._lasting_us = 0  # how long a lease lasts that nobody extends
        self._recent: list[Record | None] = []  # those from `_base` on; None: it has ended
        self._base = first
        self._ended = 0  # how many of the recent ones have
        self._old: dict[int, Record] = {}  # those before `_base` that are still out
        self._spans: list[list[int]] = []  # a heap of [deadline_us, first, end]
        self._open = [0, 0, 0]  # the latest span, to which all belong that are granted before the next is opened
        self._open_from_us = self._open_until_us = 0  # it is for what is granted after the one, up to the other
        self.new_deadline = False  # whether a span was opened; whoever sets an alarm for it takes this back
        self._own_deadline: dict[int, int] = {}  # of leases that were extended
        self._granted: list[tuple[int, int]] = []  # (first lease, time of its grant), ascending
        self._grants_limit = 64

    @property
    def next(self) -> int:
        """The number of the next lease."""
        return self._base + len(self._recent)

    @property
    def count(self) -> int:
        """How many are out."""
        return len(self._recent) - self._ended + len(self._old)

    def last(self, lasting_us: int) -> None:
        """What is granted from now on lasts so long."""
        self._lasting_us = lasting_us
        self._close_span()

    def grant(self, records: Sequence[Record], now_us: int) -> Sequence[int]:
        """Lease all these; returns their numbers, which follow one another."""
        recent, count = self._recent, len(records)
        first = self._base + len(recent)
        recent += records
        if not self._open_from_us < now_us <= self._open_until_us:
            self._open_span(first, now_us)
        return (first,) if count == 1 else range(first, first + count)

    def _open_span(self, first: int, now_us: int) -> None:
        self._close_span(first)
        if first == self._base and not self._old:  # nothing else is out: what is left would only take memory
            self._spans.clear()
            self._granted.clear()
        deadline_us = _rounded_up(now_us + self._lasting_us)
        self._open = [deadline_us, first, OPEN]
        self._open_until_us = deadline_us - self._lasting_us
        self._open_from_us = self._open_until_us - GRAIN_US
        self.new_deadline = True
        heappush(self._spans, self._open)
        self._granted.append((first, now_us))
        if len(self._granted) > self._grants_limit:
            self._forget_old_grants()
        if len(self._spans) > 4 * self.count + 1024:
            self._forget_dead_spans()

    def _close_span(self, end: int | None = None) -> None:
        """What is granted from now on is of another span."""
        self._open[2] = self.next if end is None else end
        self._open_from_us = self._open_until_us = 0

    def get(self, lease: int) -> Record | None:
        """The record that is out under this number, if it still is."""
        index = lease - self._base
        if index < 0:
            return self._old.get(lease)
        return self._recent[index] if index < len(self._recent) else None

    def of(self, lease: int) -> Record:
        """The record that is out under this number; LookupError if none is."""
        index = lease - self._base
        record = self._recent[index] if index >= 0 else self._old[lease]
        if record is None:
            raise KeyError(lease)
        return record

    def records(self, leases: Sequence[int]) -> list[Record]:
        """The same for many, all or nothing."""
        if len(leases) != 1:
            return self._slice(leases) or [self.of(lease) for lease in leases]
        lease = leases[0]
        record = self._recent[lease - self._base] if lease >= self._base else self._old[lease]
        if record is None:
            raise KeyError(lease)
        return [record]

    def _slice(self, leases: Sequence[int]) -> list[Record] | None:
        """Mostly many are named as they were granted: then a piece of the list has their records."""
        if not leases:
            return None
        start, count = leases[0] - self._base, len(leases)
        if start < 0 or not _is_run(leases):
            return None
        records = self._recent[start : start + count]
        whole = len(records) == count and (not self._ended or all(records))
        return records if whole else None  # type: ignore[return-value]

    def split(self, leases: Iterable[int]) -> tuple[list[int], list[int]]:
        """Those of these that are out, and those that are not, or no longer."""
        leases = list(leases)
        try:
            self.records(leases)
        except LookupError:
            pass
        else:
            return leases, []  # as nearly always
        out: list[int] = []
        over: list[int] = []
        for lease in leases:
            (over if self.get(lease) is None else out).append(lease)
        return out, over

    def out(self) -> Iterator[tuple[int, Record]]:
        """All that are out, in the order in which they went."""
        yield from sorted(self._old.items())
        for lease, record in enumerate(self._recent, self._base):
            if record is not None:
                yield lease, record

    def extend(self, leases: Iterable[int], deadline_us: int) -> None:
        """Give these, all of them out, a deadline of their own."""
        deadline_us = _rounded_up(deadline_us)
        known = self._own_deadline
        changed = [lease for lease in leases if known.get(lease) != deadline_us] if known else [*leases]
        known.update(dict.fromkeys(changed, deadline_us))
        if changed:
            spans = [(changed[0], changed[-1] + 1)] if _is_run(changed) else runs(changed)
            for first, end in spans:
                heappush(self._spans, [deadline_us, first, end])
        if len(self._spans) > 4 * self.count + 1024:
            self._forget_dead_spans()

    def end(self, leases: Sequence[int]) -> None:
        """These, all of them out and each named once, are out no longer."""
        recent, count = self._recent, len(leases)
        if count == len(recent) and not self._old:
            recent.clear()
            self._base += count
            self._own_deadline.clear()
        else:
            self._end_some(leases)

    def _end_some(self, leases: Sequence[int]) -> None:
        base, recent, own = self._base, self._recent, self._own_deadline
        if leases and leases[0] >= base and _is_run(leases):
            start, count = leases[0] - base, len(leases)
            if start or WORTH * count < len(recent):
                recent[start : start + count] = repeat(None, count)
                self._ended += count
            else:  # as mostly: what went first is over first
                del recent[:count]
                self._base += count
        else:
            for lease in leases:
                if lease >= base:
                    recent[lease - base] = None
                    self._ended += 1
                else:
                    del self._old[lease]
        if own:
            for lease in leases:
                own.pop(lease, None)
        if self._ended == len(recent) or (self._ended > TIDY and self._ended > len(recent) // 2):
            self._grow_old()

    def clear(self) -> None:
        """None is out any more."""
        self._base = self.next
        self._ended = 0
        self._recent.clear()
        self._old.clear()
        self._own_deadline.clear()
        self._spans.clear()
        self._granted.clear()
        self._close_span()

    def expired(self, now_us: int) -> list[int]:
        """The leases whose time is over, in order; the caller ends them."""
        self._close_span()  # an alarm went off, perhaps the only one: what is granted now needs another
        over: list[int] = []
        while self._spans and self._spans[0][0] <= now_us:
            deadline_us, first, end = heappop(self._spans)
            over += [
                lease for lease in self._within(first, end) if self._own_deadline.get(lease, deadline_us) <= now_us
            ]
        return sorted(set(over))

    def next_deadline_us(self) -> int | None:
        """When to look again; None while nothing is out."""
        return self._spans[0][0] if self.count and self._spans else None

    def granted_us(self, lease: int) -> int:
        """When this lease began."""
        return self._granted[self._grant_of(lease)][1]

    def _grow_old(self) -> None:
        """Move what is still out to the dict: the list begins anew, at a cost that its growth has paid."""
        self._old.update((lease, record) for lease, record in enumerate(self._recent, self._base) if record is not None)
        self._base = self.next
        self._ended = 0
        self._recent.clear()

    def _within(self, first: int, end: int) -> list[int]:
        """The leases of a span that are still out, at the cost of the shorter of both."""
        if self.count < end - first:
            return [lease for lease, _ in self.out() if first <= lease < end]
        return [lease for lease in range(first, end) if self.get(lease) is not None]

    def _forget_dead_spans(self) -> None:
        """Of most nothing is out any more, or only what has got another deadline since."""
        out, own = [lease for lease, _ in self.out()], self._own_deadline

        def ends_some(deadline_us: int, first: int, end: int) -> bool:
            within = out[bisect_left(out, first) : bisect_left(out, end)]
            return any(own.get(lease, deadline_us) == deadline_us for lease in within)

        self._spans = [span for span in self._spans if span[2] == OPEN or ends_some(*span)]
        heapify(self._spans)

    def _forget_old_grants(self) -> None:
        """Of most nothing is out any more; one that stays out does not keep those that came after it."""
        out = [lease for lease, _ in self.out()]
        self._granted = [self._granted[place] for place in sorted({self._grant_of(lease) for lease in out})]
        self._grants_limit = 2 * len(self._granted) + len(out) + 64  # so that looking costs little per grant

    def _grant_of(self, lease: int) -> int:
        return bisect_right(self._granted, (lease, 1 << 62)) - 1


def _is_run(leases: Sequence[int]) -> bool:
    """Whether each number is one more than the one before. A look at the last one tells most that are not."""
    run = range(leases[0], leases[0] + len(leases))
    return leases[-1] == run[-1] and (leases == run or leases == [*run])


def _rounded_up(deadline_us: int) -> int:
    return deadline_us + -deadline_us % GRAIN_US
