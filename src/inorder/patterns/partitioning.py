"""Partitions: key → one of 4,096 slots, by a hash that is the same everywhere → partition, by a table.

The slot of a key never changes. A resize changes the table, and moves as few slots as can be; that a slot is drained
before it moves is the business of whoever owns the queues.

The hash is CRC-32 as zlib, gzip, PNG and Ethernet have it (reflected polynomial 0xEDB88320, initial value and final
XOR 0xFFFFFFFF), of the key in UTF-8. The slot is the highest 12 bits of its product with 2654435761, modulo 2**32:
Knuth's multiplicative hash, without which a few dozen numbered keys ("order-1", "order-2", …) would crowd together, as
a CRC is linear. Any language has both, and so has Spark SQL, in 64 bits with a sign:
`shiftright(pmod(crc32(key) * -1640531535L, 4294967296L), 20)`. It resists nobody who picks keys to hit one slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from inorder.errors import InvalidArgument
from inorder.message import check_ordering_key
from inorder.options import SLOTS, check_whole

_KNUTH = 2654435761  # 2**32 divided by the golden ratio, as a prime
_32_BITS = 2**32 - 1
_PER_SLOT = 2**32 // SLOTS


def slot_of(key: str) -> int:
    """The slot of a key, 0 to 4,095: the same in every process, language and version."""
    check_ordering_key(key)
    return (crc32(key.encode()) * _KNUTH & _32_BITS) // _PER_SLOT


class Move(NamedTuple):
    """A slot that changes its partition."""

    slot: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SlotTable:
    """The partition of each slot. Partitions are numbered from 0 without holes."""

    partitions: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.partitions) != SLOTS:
            raise InvalidArgument(f"partitions: one for each of {SLOTS} slots, not {len(self.partitions)}")
        used = {*self.partitions}
        if not all(type(partition) is int for partition in used) or used != {*range(len(used))}:
            raise InvalidArgument(f"partitions: numbered from 0 without holes, not {sorted(used, key=str)[:10]}")

    @classmethod
    def even(cls, count: int) -> SlotTable:
        """A new table: each partition has a range of slots, all of them of one size or nearly so."""
        check_count(count)
        return cls(tuple(slot * count // SLOTS for slot in range(SLOTS)))

    @property
    def count(self) -> int:
        """How many partitions there are."""
        return max(self.partitions) + 1

    def partition_of(self, key: str) -> int:
        """Where all events of a key go."""
        return self.partitions[slot_of(key)]

    def resize(self, count: int) -> ResizePlan:
        """How to come to so many partitions. Beyond the slots that must move, none does."""
        check_count(count)
        after = SlotTable(rebalanced(self.partitions, count))
        changes = zip(self.partitions, after.partitions, strict=True)
        moves = tuple(Move(slot, old, new) for slot, (old, new) in enumerate(changes) if old != new)
        return ResizePlan(self, after, moves)


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """What changes from one table to the next. A slot that is in no move keeps its partition, and its order."""

    before: SlotTable
    after: SlotTable
    moves: tuple[Move, ...]

    @property
    def share(self) -> float:
        """The share of all slots that moves."""
        return len(self.moves) / SLOTS


def rebalanced(owners: Sequence[int], count: int) -> tuple[int, ...]:
    """Owners of the same slots, 0 to `count` - 1: equal shares, or differing by one, with the fewest changes."""
    held = Counter(owners)
    least, more = divmod(len(owners), count)
    # The larger shares go to those that hold most already, so that the fewest slots leave them.
    by_holding = sorted(range(count), key=lambda owner: (-held[owner], owner))
    room = {owner: least + (rank < more) for rank, owner in enumerate(by_holding)}
    after = list(owners)
    homeless: list[int] = []
    for slot, owner in enumerate(owners):
        if room.get(owner, 0):
            room[owner] -= 1
        else:
            homeless.append(slot)
    free: Iterable[int] = (owner for owner in range(count) for _ in range(room[owner]))
    for slot, owner in zip(homeless, free, strict=True):
        after[slot] = owner
    return tuple(after)


def check_count(count: object) -> None:
    """Refuse a number of partitions that cannot be."""
    check_whole("partitions", count)
    if isinstance(count, int) and count > SLOTS:
        raise InvalidArgument(f"partitions: up to {SLOTS}, one slot each, not {count}")
