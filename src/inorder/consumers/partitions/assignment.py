"""Which member of a group has which partition: a value, and the steps from one to the next.

Partitions are shared evenly, and as few as can be change hands. One that is to change hands is given back by who has
it, and only then taken: it has one member at a time. What a member had of which nothing was heard for a session is
free. This file knows no store, no broker and no clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from inorder.patterns.partitioning import rebalanced


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a group, each with the time until which its word counts, and what each of them has."""

    until_us: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[int, str] = field(default_factory=dict)

    def held_by(self, member: str) -> set[int]:
        return {partition for partition, holder in self.holders.items() if holder == member}

    def shares(self, partitions: Iterable[int]) -> dict[int, str]:
        """Who should have which partition: the same for everybody who asks."""
        members = sorted(self.until_us)
        number = {member: index for index, member in enumerate(members)}
        wanted = sorted(partitions)
        if not members:
            return {}
        # Nobody is numbered behind everybody: what he has is shared out.
        owners = [number.get(self.holders.get(partition, ""), len(members)) for partition in wanted]
        return {p: members[owner] for p, owner in zip(wanted, rebalanced(owners, len(members)), strict=True)}

    def heard(self, member: str, partitions: Collection[int], now_us: int, until_us: int) -> Roster:
        """A member is alive; those that are overdue are not. It takes what is free and should be its own."""
        members = {name: until for name, until in self.until_us.items() if until > now_us} | {member: until_us}
        holders = {partition: holder for partition, holder in self.holders.items() if holder in members}
        roster = Roster(members, holders)
        taken = {p: member for p, one in roster.shares(partitions).items() if one == member and p not in holders}
        return Roster(members, {**holders, **taken})

    def to_give(self, member: str, partitions: Collection[int]) -> set[int]:
        """What a member has and somebody else should have, or nobody any more."""
        shares = self.shares(partitions)
        return {partition for partition in self.held_by(member) if shares.get(partition) != member}

    def given(self, member: str, partitions: Collection[int]) -> Roster:
        """A member has stopped with these."""
        kept = {p: one for p, one in self.holders.items() if one != member or p not in partitions}
        return Roster(self.until_us, kept)

    def without(self, member: str) -> Roster:
        """A member has left, and has stopped with all it had."""
        members = {name: until for name, until in self.until_us.items() if name != member}
        return Roster(members, {p: one for p, one in self.holders.items() if one != member})

    def dump(self) -> bytes:
        return json.dumps({"until_us": self.until_us, "holders": list(self.holders.items())}).encode()

    @classmethod
    def load(cls, data: bytes) -> Roster:
        told = json.loads(data)
        return cls(told["until_us"], dict(told["holders"]))
