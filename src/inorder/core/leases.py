"""Which messages are out, and until when.

A pull is one grant: consecutive lease numbers, one deadline. So the usual life of a lease costs one
dict entry; deadlines are kept per span of leases, and a span whose leases are all gone is dropped
when its time comes. Deadlines are rounded up to a millisecond, so that many small pulls share a span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from inorder.message import Record

GRAIN_US = 1_000


class Leases:
    """The records of one subscription that are out. A number is never used twice. Not thread-safe."""

    def __init__(self, first: int = 1) -> None:
        self.records: dict[int, Record] = {}
        self.next = first
        self._spans: list[list[int]] = []  # a heap of [deadline_us, first, end]
        self._open = [0, 0, 0]  # the span that the next grant may lengthen
        self._own_deadline: dict[int, int] = {}  # of leases that were extended
        self._granted: list[tuple[int, int]] = []  # (first lease, time of its grant), ascending
        self._grants_limit = 64

    def grant(self, records: Sequence[Record], now_us: int, deadline_us: int) -> int:
        """Lease all these until `deadline_us`; returns the first number, the rest follow it."""
        first = self.next
        end = self.next = first + len(records)
        if end == first + 1:
            self.records[first] = records[0]
        else:
            self.records.update(zip(range(first, end), records))  # noqa: B905 - strict costs time here
        deadline_us += -deadline_us % GRAIN_US
        span = self._open
        if span[0] == deadline_us and span[2] == first:
            span[2] = end
        else:
            self._open = [deadline_us, first, end]
            heappush(self._spans, self._open)
            self._granted.append((first, now_us))
            if len(self._granted) > self._grants_limit:
                self._forget_old_grants()
        return first

    def extend(self, leases: Iterable[int], deadline_us: int) -> None:
        """Give these, all of them out, a deadline of their own."""
        deadline_us += -deadline_us % GRAIN_US
        for lease in leases:
            if self._own_deadline.get(lease) != deadline_us:
                self._own_deadline[lease] = deadline_us
                heappush(self._spans, [deadline_us, lease, lease + 1])
        if len(self._spans) > 4 * len(self.records) + 1024:
            self._forget_dead_spans()

    def end(self, leases: Sequence[int]) -> None:
        """These, all of them out and each named once, are out no longer."""
        records, own = self.records, self._own_deadline
        if len(leases) == len(records):
            records.clear()
            if len(self._spans) > 1:  # they would only keep memory from being freed
                self.clear()
        else:
            for lease in leases:
                del records[lease]
        if own:
            for lease in leases:
                own.pop(lease, None)

    def clear(self) -> None:
        """None is out any more."""
        self.records.clear()
        self._own_deadline.clear()
        self._spans.clear()
        self._granted.clear()
        self._open = [0, 0, 0]

    def expired(self, now_us: int) -> list[int]:
        """The leases whose time is over, in order; the caller ends them."""
        over: list[int] = []
        while self._spans and self._spans[0][0] <= now_us:
            deadline_us, first, end = span = heappop(self._spans)
            if span is self._open:
                self._open = [0, 0, 0]
            over += [
                lease for lease in self._within(first, end) if self._own_deadline.get(lease, deadline_us) <= now_us
            ]
        return sorted(set(over))

    def next_deadline_us(self) -> int | None:
        """When to look again; None while nothing is out."""
        return self._spans[0][0] if self.records and self._spans else None

    def granted_us(self, lease: int) -> int:
        """When this lease began."""
        return self._granted[bisect_right(self._granted, (lease, 1 << 62)) - 1][1]

    def _within(self, first: int, end: int) -> list[int]:
        """The leases of a span that are still out, at the cost of the shorter of both."""
        if len(self.records) < end - first:
            return [lease for lease in self.records if first <= lease < end]
        return [lease for lease in range(first, end) if lease in self.records]

    def _forget_dead_spans(self) -> None:
        self._spans = [span for span in self._spans if span is self._open or self._within(span[1], span[2])]
        heapify(self._spans)

    def _forget_old_grants(self) -> None:
        oldest = min(self.records, default=self.next)
        keep = bisect_right(self._granted, (oldest, 1 << 62)) - 1
        del self._granted[: max(keep, 0)]
        self._grants_limit = 2 * len(self._granted) + 64  # so that looking costs little per grant
