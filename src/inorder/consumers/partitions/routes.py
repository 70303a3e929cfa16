"""Where each slot is, where it was, and where it is to go: a value, and the steps from one to the next.

A **term** is the time during which a partition has a slot. Messages carry the number of the term for which they were
published. A term is **sealed** by a position of its partition: what is stored below it counts, what is stored there or
later does not, and is published again for a later term by whoever published it. So two terms of a slot never mix,
however late a message is stored.

    open ──▶ leaving ──▶ sealed ──▶ open, in another partition
      ▲         │           │
      └─────────┴───────────┴────── cancelled

There are thousands of slots and few routes, which they share: so each route is kept once, and of each slot the number
of its route. A step deals with the few: who walks the many, one by one, keeps publishers from the interpreter.

This file knows no store, no broker and no clock.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Literal, NamedTuple

from inorder.errors import FailedPrecondition, ForeignState
from inorder.options import SLOTS
from inorder.patterns.partitioning import SlotTable, rebalanced

FORM = 2  # of the bytes

Verdict = Literal["counts", "void", "undecided"]

_NUMBERS = Struct(f"<{SLOTS}H")


class Term(NamedTuple):
    """What one partition has of one slot."""

    number: int  # among the terms of the slot
    partition: int
    until: int | None  # the first position that does not count; None before it is sealed


class Route(NamedTuple):
    """Where a slot was, is, and should be."""

    terms: tuple[Term, ...]  # the latest last
    wanted: int  # the partition that it should be in

    @property
    def owner(self) -> int:
        """The partition that the slot is in, or was in last."""
        return self.terms[-1].partition

    @property
    def moves(self) -> bool:
        """Whether the slot is to go elsewhere."""
        return self.terms[-1].partition != self.wanted

    @property
    def is_sealed(self) -> bool:
        return self.terms[-1].until is not None

    def to_drain(self, partition: int) -> int:
        """Below which position a partition is to be drained of the slot before that moves; 0 if it need not be."""
        term = self.terms[-1]
        return term.until or 0 if term.partition == partition != self.wanted else 0

    def sealed(self, until: int) -> Route:
        return self._replace(terms=(*self.terms[:-1], self.terms[-1]._replace(until=until)))

    def opened(self) -> Route:
        assert self.is_sealed
        return self._replace(terms=(*self.terms, Term(self.terms[-1].number + 1, self.wanted, None)))


@dataclass(frozen=True, slots=True)
class Routes:
    """The route of every slot."""

    distinct: tuple[Route, ...]  # each of them once, in the order of the slots
    of_slot: tuple[int, ...]  # which of them each slot has
    groups: Mapping[str, Mapping[str, Any]]  # the options of their subscriptions
    strict: bool  # a partition is one sequence, and not one for each key
    origin: str  # which topic of which broker the positions are of
    version: int = 0  # of the row it was read from

    @classmethod
    def new(cls, count: int, *, strict: bool, origin: str) -> Routes:
        first = tuple(Route((Term(0, partition, None),), partition) for partition in range(count))
        return cls(first, SlotTable.even(count).partitions, {}, strict, origin)

    # -- what there is -----------------------------------------------------------------------------

    def route(self, slot: int) -> Route:
        return self.distinct[self.of_slot[slot]]

    @property
    def owners(self) -> tuple[int, ...]:
        """The partition that each slot is in, or was in last."""
        owners = [route.owner for route in self.distinct]
        return tuple([owners[number] for number in self.of_slot])

    @property
    def shares(self) -> dict[int, int]:
        """How many slots each partition has."""
        shares: Counter[int] = Counter()
        for number, slots in Counter(self.of_slot).items():
            shares[self.distinct[number].owner] += slots
        return dict(sorted(shares.items()))

    @property
    def live(self) -> list[int]:
        """The partitions that have slots, or are to have some."""
        return sorted({partition for route in self.distinct for partition in (route.owner, route.wanted)})

    @property
    def last(self) -> int:
        """The highest number of a partition that ever had a slot, or is to have one."""
        return max(n for route in self.distinct for n in (route.wanted, *(term.partition for term in route.terms)))

    def is_even(self, count: int) -> bool:
        """Whether so many partitions share the slots as evenly as can be."""
        shares = self.shares
        return [*shares] == [*range(count)] and max(shares.values()) - min(shares.values()) <= 1

    def open_term(self, slot: int) -> Term | None:
        """What a message of the slot is published for now; None while the slot moves."""
        terms, wanted = self.distinct[self.of_slot[slot]]
        term = terms[-1]
        return term if term.until is None and term.partition == wanted else None

    def judge(self, slot: int, number: int, position: int) -> Verdict:
        """Whether a message counts that was published for this term of its slot, and stored there."""
        terms, wanted = self.distinct[self.of_slot[slot]]
        for term in reversed(terms):
            if term.number == number:
                break
        else:
            raise FailedPrecondition(f"slot {slot} never had a term {number}: the message is of another table")
        if term.until is not None:
            return "counts" if position < term.until else "void"
        return "counts" if term.partition == wanted else "undecided"

    # -- what is to be done ------------------------------------------------------------------------

    @property
    def moving(self) -> bool:
        return any(route.moves or route.is_sealed for route in self.distinct)

    def leaving(self) -> dict[int, list[int]]:
        """Slots that are to be sealed, by the partition they are in."""
        return self._slots(lambda route: route.moves and not route.is_sealed)

    def draining(self) -> dict[int, list[int]]:
        """Slots that are sealed and go elsewhere, by the partition they are in."""
        return self._slots(lambda route: route.moves and route.is_sealed)

    def staying(self) -> dict[int, list[int]]:
        """Slots that are sealed, and stay after all: in one partition the order of positions is enough."""
        return self._slots(lambda route: not route.moves and route.is_sealed)

    def _slots(self, chosen: Callable[[Route], bool]) -> dict[int, list[int]]:
        """Those with such a route, by the partition they are in."""
        by_owner: dict[int, list[int]] = {}
        slots = {n: by_owner.setdefault(route.owner, []) for n, route in enumerate(self.distinct) if chosen(route)}
        if slots:  # most often there is none, and no slot is looked at
            for slot, number in enumerate(self.of_slot):
                if number in slots:
                    slots[number].append(slot)
        return by_owner

    # -- steps -------------------------------------------------------------------------------------

    def resized(self, count: int) -> Routes:
        """From now on, slots go to so many partitions, the fewest of them."""
        wanted = rebalanced(self.owners, count)
        # A route and a partition as one number, which is looked up faster than a pair of them.
        pairs = [number * count + partition for number, partition in zip(self.of_slot, wanted, strict=True)]
        return self._with(pairs, lambda pair: self.distinct[pair // count]._replace(wanted=pair % count))

    def cancelled(self) -> Routes:
        """Slots that have not moved yet stay where they are."""
        return self._each(lambda route: route._replace(wanted=route.owner))

    def sealed(self, positions: Mapping[int, int]) -> Routes:
        """All that leave these partitions are sealed there."""

        def sealed(route: Route) -> Route:
            leaves = route.moves and not route.is_sealed and route.owner in positions
            return route.sealed(positions[route.owner]) if leaves else route

        return self._each(sealed)

    def opened(self, slots: Collection[int]) -> Routes:
        """These slots, which are sealed, begin a term where they should be."""
        numbers = list(self.of_slot)
        behind = len(self.distinct)  # the numbers from here on are those of routes that are opened
        for slot in slots:
            numbers[slot] += behind
        return self._with(numbers, lambda n: self.distinct[n] if n < behind else self.distinct[n - behind].opened())

    def _each(self, step: Callable[[Route], Route]) -> Routes:
        """With a step taken by every route."""
        distinct = tuple(step(route) for route in self.distinct)
        if len({*distinct}) == len(distinct):  # none has become like another: the slots keep their numbers
            return replace(self, distinct=distinct)
        return self._with(self.of_slot, distinct.__getitem__)

    def _with(self, keys: Sequence[int], route_of: Callable[[int], Route]) -> Routes:
        """With other routes: there is a key for each slot, and a route for each key."""
        routes = {key: route_of(key) for key in dict.fromkeys(keys)}
        numbers = {route: number for number, route in enumerate(dict.fromkeys(routes.values()))}
        number_of = {key: numbers[route] for key, route in routes.items()}
        return replace(self, distinct=tuple(numbers), of_slot=tuple([number_of[key] for key in keys]))

    def with_group(self, name: str, options: Mapping[str, Any]) -> Routes:
        return replace(self, groups={**self.groups, name: options})

    def without_group(self, name: str) -> Routes:
        return replace(self, groups={group: options for group, options in self.groups.items() if group != name})

    # -- as bytes ----------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The numbers of the slots' routes are two bytes each, the lower first, in base 64: JSON is slow with lists."""
        told = {
            "form": FORM,
            "routes": self.distinct,
            "route of slot": b64encode(_NUMBERS.pack(*self.of_slot)).decode(),
            "groups": self.groups,
            "strict": self.strict,
            "origin": self.origin,
        }
        return json.dumps(told).encode()

    @classmethod
    def load(cls, data: bytes, version: int) -> Routes:
        told = json.loads(data)
        if told.get("form") != FORM:
            raise ForeignState("partitions", f"it is of form {told.get('form', 1)}, and form {FORM} is read")
        distinct = tuple(Route(tuple(Term(*term) for term in terms), wanted) for terms, wanted in told["routes"])
        of_slot = _NUMBERS.unpack(b64decode(told["route of slot"]))
        return cls(distinct, of_slot, told["groups"], told["strict"], told["origin"], version)
