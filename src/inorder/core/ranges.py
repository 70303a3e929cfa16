"""A set of positions that costs what its holes cost: nearly all of a long backlog is acked in one piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain


class Ranges:
    """Positions as disjoint half-open ranges, ascending. Not thread-safe."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self._append(start, end)

    def __contains__(self, position: int) -> bool:
        index = bisect_right(self._starts, position) - 1
        return index >= 0 and position < self._ends[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and (self._starts, self._ends) == (other._starts, other._ends)

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    def __bool__(self) -> bool:
        return bool(self._starts)

    def count(self) -> int:
        """How many positions there are."""
        return sum(self._ends) - sum(self._starts)

    def end_at(self, position: int) -> int:
        """Where the range around `position` ends; `position` itself, if there is none."""
        index = bisect_right(self._starts, position) - 1
        return max(position, self._ends[index]) if index >= 0 else position

    def within(self, start: int, end: int) -> Ranges:
        """What lies between the two."""
        return Ranges(self._within(start, end))

    def _within(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._starts)):
            first, last = self._starts[index], self._ends[index]
            if first >= end:
                return
            if last > start:
                yield max(first, start), min(last, end)

    def marks(self, start: int, end: int) -> bytearray:
        """A 1 for each position between the two that is among them, and a 0 for each other."""
        marks = bytearray(end - start)
        for first, last in self._within(start, end):
            _mark(marks, first - start, last - start)
        return marks

    def union(self, other: Iterable[tuple[int, int]]) -> Ranges:
        """Both together."""
        return Ranges(sorted([*self, *other]))

    def _append(self, start: int, end: int) -> None:
        if self._ends and start <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], end)
        elif start < end:
            self._starts.append(start)
            self._ends.append(end)


SPARSE = 16  # from so many places for each position on, sorting them takes less than a look at all places


def runs_of(chunks: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Positions in any order, some of them perhaps twice, as ranges."""
    chunks = [*filter(None, chunks)]
    if not chunks:
        return
    bounds = [*map(_bounds, chunks)]
    start, end = min(first for first, _ in bounds), max(behind for _, behind in bounds)
    if end - start >= SPARSE * sum(map(len, chunks)):
        yield from runs(sorted({*chain.from_iterable(chunks)}))
        return
    # Marked where they are, and the ends of what is marked found in C: a third of what sorting half a million takes.
    marks = bytearray(end - start)
    for chunk in chunks:
        if isinstance(chunk, range):
            _mark(marks, chunk.start - start, chunk.stop - start)
        else:
            for position in chunk:
                marks[position - start] = 1
    first = marks.find(1)
    while first >= 0:
        behind = marks.find(0, first)
        if behind < 0:
            behind = len(marks)
        yield start + first, start + behind
        first = marks.find(1, behind)


def _bounds(chunk: Sequence[int]) -> tuple[int, int]:
    """The first position, and the one behind the last."""
    return (chunk.start, chunk.stop) if isinstance(chunk, range) else (min(chunk), max(chunk) + 1)


def _mark(marks: bytearray, first: int, behind: int) -> None:
    marks[first:behind] = b"\1" * (behind - first)


def runs(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending positions as ranges."""
    start = end = -1
    for position in positions:
        if position != end:
            if start < end:
                yield start, end
            start = position
        end = position + 1
    if start < end:
        yield start, end
