"""Where each slot is, where it was, and where it is to go: a value, and the steps from one to the next.

A **term** is the time during which a partition has a slot. Messages carry the number of the term for which they were
published. A term is **sealed** by a position of its partition: what is stored below it counts, what is stored there or
later does not, and is published again for a later term by whoever published it. So two terms of a slot never mix,
however late a message is stored.

    open ──▶ leaving ──▶ sealed ──▶ open, in another partition
      ▲         │           │
      └─────────┴───────────┴────── cancelled

This file knows no store, no broker and no clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from inorder.errors import FailedPrecondition
from inorder.patterns.partitioning import SlotTable, rebalanced

Verdict = Literal["counts", "void", "undecided"]


class Term(NamedTuple):
    """What one partition has of one slot."""

    number: int  # among the terms of the slot
    partition: int
    until: int | None  # the first position that does not count; None before it is sealed


History: TypeAlias = tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """The terms of every slot, the latest last, and the partition that each slot should be in."""

    terms: tuple[History, ...]
    wanted: tuple[int, ...]
    groups: Mapping[str, Mapping[str, Any]]  # the options of their subscriptions
    strict: bool  # a partition is one sequence, and not one for each key
    origin: str  # which topic of which broker the positions are of
    version: int = 0  # of the row it was read from

    @classmethod
    def new(cls, count: int, *, strict: bool, origin: str) -> Routes:
        wanted = SlotTable.even(count).partitions
        first = [(Term(0, partition, None),) for partition in range(count)]
        return cls(tuple([first[partition] for partition in wanted]), wanted, {}, strict, origin)

    # -- what there is -----------------------------------------------------------------------------

    @property
    def owners(self) -> tuple[int, ...]:
        """The partition that each slot is in, or was in last."""
        return tuple([terms[-1].partition for terms in self.terms])

    def owner(self, slot: int) -> int:
        """The partition that a slot is in, or was in last."""
        return self.terms[slot][-1].partition

    @property
    def live(self) -> list[int]:
        """The partitions that have slots, or are to have some."""
        return sorted({*self.owners, *self.wanted})

    def is_even(self, count: int) -> bool:
        """Whether so many partitions share the slots as evenly as can be."""
        shares = Counter(self.owners)
        return sorted(shares) == list(range(count)) and max(shares.values()) - min(shares.values()) <= 1

    def open_term(self, slot: int) -> Term | None:
        """What a message of the slot is published for now; None while the slot moves."""
        term = self.terms[slot][-1]
        return term if term.until is None and term.partition == self.wanted[slot] else None

    def judge(self, slot: int, number: int, position: int) -> Verdict:
        """Whether a message counts that was published for this term of its slot, and stored there."""
        for term in reversed(self.terms[slot]):
            if term.number == number:
                break
        else:
            raise FailedPrecondition(f"slot {slot} never had a term {number}: the message is of another table")
        if term.until is not None:
            return "counts" if position < term.until else "void"
        return "counts" if term.partition == self.wanted[slot] else "undecided"

    # -- what is to be done ------------------------------------------------------------------------

    @property
    def moving(self) -> bool:
        return self.owners != self.wanted or any(terms[-1].until is not None for terms in self.terms)

    def leaving(self) -> dict[int, list[int]]:
        """Slots that are to be sealed, by the partition they are in."""
        return self._to_move(sealed=False)

    def draining(self) -> dict[int, list[int]]:
        """Slots that are sealed and go elsewhere, by the partition they are in."""
        return self._to_move(sealed=True)

    def _to_move(self, *, sealed: bool) -> dict[int, list[int]]:
        slots: dict[int, list[int]] = {}
        for slot, (terms, wanted) in enumerate(zip(self.terms, self.wanted, strict=True)):
            _, partition, until = terms[-1]
            if partition != wanted and (until is not None) == sealed:
                slots.setdefault(partition, []).append(slot)
        return slots

    def staying(self) -> list[int]:
        """Slots that are sealed, and stay after all: in one partition the order of positions is enough."""
        latest = ((terms[-1], wanted) for terms, wanted in zip(self.terms, self.wanted, strict=True))
        return [s for s, (term, wanted) in enumerate(latest) if term.until is not None and term.partition == wanted]

    # -- steps -------------------------------------------------------------------------------------

    def resized(self, count: int) -> Routes:
        """From now on, slots go to so many partitions, the fewest of them."""
        return replace(self, wanted=rebalanced(self.owners, count))

    def cancelled(self) -> Routes:
        """Slots that have not moved yet stay where they are."""
        return replace(self, wanted=self.owners)

    def sealed(self, positions: Mapping[int, int]) -> Routes:
        """All that leave these partitions are sealed there."""
        terms = list(self.terms)
        made: dict[History, History] = {}  # many slots have the same history, and share it
        for partition, slots in self.leaving().items():
            if partition in positions:
                for slot in slots:
                    before = terms[slot]
                    if before not in made:
                        made[before] = (*before[:-1], before[-1]._replace(until=positions[partition]))
                    terms[slot] = made[before]
        return replace(self, terms=tuple(terms))

    def opened(self, slots: Collection[int]) -> Routes:
        """These slots, which are sealed, begin a term where they should be."""
        terms = list(self.terms)
        made: dict[tuple[History, int], History] = {}
        for slot in slots:
            before, wanted = terms[slot], self.wanted[slot]
            if (before, wanted) not in made:
                assert before[-1].until is not None
                made[before, wanted] = (*before, Term(before[-1].number + 1, wanted, None))
            terms[slot] = made[before, wanted]
        return replace(self, terms=tuple(terms))

    def with_group(self, name: str, options: Mapping[str, Any]) -> Routes:
        return replace(self, groups={**self.groups, name: options})

    def without_group(self, name: str) -> Routes:
        return replace(self, groups={group: options for group, options in self.groups.items() if group != name})

    # -- as bytes ----------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Many slots share a history, which is told once."""
        histories = {id(terms): terms for terms in self.terms}
        number = {name: number for number, name in enumerate(histories)}
        told = {
            "histories": list(histories.values()),
            "history of slot": [number[id(terms)] for terms in self.terms],
            "wanted": self.wanted,
            "groups": self.groups,
            "strict": self.strict,
            "origin": self.origin,
        }
        return json.dumps(told).encode()

    @classmethod
    def load(cls, data: bytes, version: int) -> Routes:
        told = json.loads(data)
        histories = [tuple(Term(*term) for term in terms) for terms in told["histories"]]
        terms = tuple([histories[number] for number in told["history of slot"]])
        return cls(terms, tuple(told["wanted"]), told["groups"], told["strict"], told["origin"], version)
