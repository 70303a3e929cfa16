"""A set of positions that costs what its holes cost: nearly all of a long backlog is acked in one piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


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
        clipped = ((max(first, start), min(last, end)) for first, last in self)
        return Ranges((first, last) for first, last in clipped if first < last)

    def union(self, other: Iterable[tuple[int, int]]) -> Ranges:
        """Both together."""
        return Ranges(sorted([*self, *other]))

    def _append(self, start: int, end: int) -> None:
        if self._ends and start <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], end)
        elif start < end:
            self._starts.append(start)
            self._ends.append(end)


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
