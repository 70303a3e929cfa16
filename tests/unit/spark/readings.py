"""A slow and obvious reading of the events of one key, which the audit must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

# An event of one key, in the order of arrival: its number, and the times of its arrival and of its happening.
Event = tuple[int, int, int]


@dataclass
class Reading:
    """What a key's events come to, each question answered by looking at all of them."""

    events: list[Event]
    by: str = "sequence"
    late: list[tuple[int, int]] = field(default_factory=list)  # the index of an event, and of its overtaker
    duplicates: list[int] = field(default_factory=list)
    gaps: list[tuple[int, int, int]] = field(default_factory=list)  # first, last, index where it shows
    buffer: int = 0
    wait_us: int = 0
    delay_us: int = 0

    def __post_init__(self) -> None:
        values = [event[0] if self.by == "sequence" else event[2] for event in self.events]
        firsts = []
        for index, value in enumerate(values):
            if self.by == "sequence" and value in values[:index]:
                self.duplicates.append(index)
                continue
            firsts.append(index)
            overtakers = [earlier for earlier in firsts if values[earlier] > value]
            if overtakers:
                self.late.append((index, overtakers[0]))
                self.wait_us = max(self.wait_us, self.events[index][1] - self.events[overtakers[0]][1])
        if self.by == "sequence" and values:
            missing = sorted({*range(min(values), max(values))} - {*values})
            starts = [number for number in missing if number - 1 not in missing]
            for start in starts:
                end = next(number for number in range(start, max(values)) if number + 1 not in missing)
                shows = next(index for index, value in enumerate(values) if value > end)
                self.gaps.append((start, end, shows))
        self.buffer = self._parked(values, firsts)
        for index, event in enumerate(self.events):
            self.delay_us = max(self.delay_us, max(other[2] for other in self.events[: index + 1]) - event[2])

    def _parked(self, values: list[int], firsts: list[int]) -> int:
        """How many wait at most, if each waits only for those that come."""
        most, waiting = 0, set[int]()
        turn = sorted(firsts, key=lambda index: (values[index], index))
        for index in firsts:
            waiting.add(index)
            while turn and turn[0] in waiting:
                waiting.remove(turn.pop(0))
            most = max(most, len(waiting))
        return most
