"""What an audit found, as plain values: for programs as JSON, for people as text. Knows nothing of Spark."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from inorder.clock import MICROSECONDS

Kind = Literal["reordered", "gap", "duplicate", "overlapping", "unplaced"]
KINDS: tuple[Kind, ...] = ("reordered", "gap", "duplicate", "overlapping", "unplaced")

# Where the bars of a histogram begin; the last is open.
PLACES = tuple(2**power for power in range(21))
_MINUTE_US = 60 * MICROSECONDS
TIMES_US = (
    *(0, 1_000, 10_000, 100_000, MICROSECONDS, 10 * MICROSECONDS),
    *(_MINUTE_US, 10 * _MINUTE_US, 60 * _MINUTE_US, 6 * 60 * _MINUTE_US, 24 * 60 * _MINUTE_US),
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it should be, where it is."""

    kind: Kind
    key: str
    position: str  # for a gap: of the first event that came from behind it
    value: int | None  # the number, or the time in microseconds; of a gap the first that is missing
    until: int | None = None  # of a gap, the last that is missing
    other_position: str | None = None  # of the event that overtook it first
    places: int | None = None  # how many events of its key came since it was overtaken
    # How long that was; without times of arrival, how much earlier it happened than the latest event before it; or for
    # how long the runs overlapped.
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """So many late events were late by at least `at_least`, and by less than the next bar says."""

    at_least: int
    count: int


@dataclass(frozen=True, slots=True)
class KeyFindings:
    """One key among the hottest, or among those with most to be said of."""

    key: str
    events: int
    share: float  # of all events that have a key
    reordered: int
    gaps: int
    duplicates: int
    overlapping: int
    unplaced: int
    buffer: int


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """A partition and what falls to it."""

    name: str
    events: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the audit was told, or knew."""

    key: str
    sequence: str | None
    arrival_order: str
    time: str | None
    arrival_time: str | None
    runs: str | None
    partition: str | None

    @property
    def ordered_by(self) -> str:
        return self.sequence or self.time or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The outcome of an audit. What could not be measured, for lack of a column, is None."""

    source: str
    columns: Columns
    allowed: tuple[Kind, ...]
    events: int
    unkeyed: int
    unplaced: int
    keys: int
    broken_keys: int
    reordered: int
    gaps: int
    missing: int
    duplicates: int
    overlapping: int | None
    unmeasured_runs: int | None
    untimed: int | None
    farthest: int
    longest_wait_us: int | None
    buffer: int
    timeout_us: int | None
    watermark_us: int | None
    lateness: tuple[Bar, ...]
    waits: tuple[Bar, ...] | None
    hot_keys: tuple[KeyFindings, ...]
    worst_keys: tuple[KeyFindings, ...]
    partitions: tuple[PartitionLoad, ...]  # the 4,096 with the highest load, if there are more
    imbalance: float  # the load of the hottest partition, as a multiple of an equal share; 1 is even
    split_keys: int | None
    violations: tuple[Violation, ...]  # the first few

    def count(self, kind: Kind) -> int:
        """How many there are of a kind; 0 if it was not looked for."""
        counts = (self.reordered, self.gaps, self.duplicates, self.overlapping or 0, self.unplaced)
        return dict(zip(KINDS, counts, strict=True))[kind]

    @property
    def partition_count(self) -> int:
        """How many there are, also those that `partitions` has no room for."""
        hottest = max((one.share for one in self.partitions), default=0)
        return round(self.imbalance / hottest) if hottest else len(self.partitions)

    @property
    def in_order(self) -> bool:
        """Proven: every event that has a key was looked at, and nothing was found but what is allowed."""
        return not any(self.count(kind) for kind in KINDS if kind not in self.allowed)

    @property
    def verdict(self) -> str:
        """In one sentence."""
        keyed = self.events - self.unkeyed
        subject = f"{counted(keyed, 'event')} of {counted(self.keys, 'key')}"
        found = [_so_many(self.count(kind), kind) for kind in KINDS if self.count(kind)]
        if not keyed:
            return f"nothing to judge: {'no event has a key' if self.events else 'there are no events'}"
        if self.in_order:
            return f"in order: {subject}" + (f"; allowed: {', '.join(found)}" if found else "")
        return f"broken: {', '.join(found)} among {subject}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        return {"in_order": self.in_order, "verdict": self.verdict, **plain}

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)


def counted(count: int, noun: str) -> str:
    """`1 event`, `1,234 events`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _so_many(count: int, kind: Kind) -> str:
    """`1 gap`, `2 gaps`, `2 reordered`."""
    return counted(count, kind) if kind in ("gap", "duplicate") else f"{count:,} {kind}"
