"""Skew: how unevenly the load of keys falls on slots and partitions, and what a better table could do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple, TypeVar

from inorder.options import MAX_WHOLE, check_number, check_whole
from inorder.patterns.partitioning import SlotTable, slot_of

K = TypeVar("K", str, int)


class KeyLoad(NamedTuple):
    """A key with its load and its share of everything."""

    key: str
    load: float
    share: float


class NumberedLoad(NamedTuple):
    """A slot or a partition with its load and its share of everything."""

    number: int
    load: float
    share: float


@dataclass(frozen=True, slots=True)
class SkewReport:
    """Where the load is, the hottest first. `keys` and `slots` are the top few, `partitions` are all."""

    total: float
    keys: tuple[KeyLoad, ...]
    slots: tuple[NumberedLoad, ...]
    partitions: tuple[NumberedLoad, ...]

    @property
    def imbalance(self) -> float:
        """The load of the hottest partition, as a multiple of an equal share; 1 is even."""
        return self.partitions[0].share * len(self.partitions) if self.total else 1.0

    @property
    def least_possible(self) -> float:
        """No table brings the hottest partition below this share: a slot, and so a key, is never divided."""
        return max(1 / len(self.partitions), self.slots[0].share if self.slots else 0.0)


def skew_report(loads: Mapping[str, float] | Iterable[str], table: SlotTable, *, top: int = 10) -> SkewReport:
    """The report for load by key, or for the keys of events, each of which counts one."""
    check_whole("top", top)
    by_key: Mapping[str, float] = loads if isinstance(loads, Mapping) else Counter(loads)
    by_slot: dict[int, float] = {}
    for key, load in by_key.items():
        check_number(f"load of {key!r}", load, up_to=MAX_WHOLE)
        slot = slot_of(key)
        by_slot[slot] = by_slot.get(slot, 0) + load
    by_partition: dict[int, float] = dict.fromkeys(range(table.count), 0)
    for slot, load in by_slot.items():
        by_partition[table.partitions[slot]] += load
    total = sum(by_partition.values())
    whole = total or 1  # of nothing, everybody's share is 0
    return SkewReport(
        total,
        tuple(KeyLoad(key, load, load / whole) for key, load in _hottest(by_key, top)),
        tuple(NumberedLoad(slot, load, load / whole) for slot, load in _hottest(by_slot, top)),
        tuple(NumberedLoad(number, load, load / whole) for number, load in _hottest(by_partition, table.count)),
    )


def _hottest(loads: Mapping[K, float], count: int) -> list[tuple[K, float]]:
    """The greatest loads first; of equal ones the lower name, so that a report is the same every time."""
    return nsmallest(count, loads.items(), key=lambda one: (-one[1], one[0]))
