"""Partitions are resized while everything happens that can: no key is reordered, nothing is lost, nobody overlaps.

A failure names its seed, which replays it. PARTITION_SEEDS says how many are tried.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from inorder.consumers.partitions.gate import Gate
from inorder.consumers.partitions.resizing import Resizer
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.partitions.table import Table
from inorder.message import Message
from inorder.pending import Pending
from inorder.testing.history import Anomalies, anomalies

from .partition_world import World

SEEDS = int(os.environ.get("PARTITION_SEEDS", "5"))
STEPS = 600
ENOUGH = 60  # seeds, in which a planted bug must show


def found_in(seed: int, **options: Any) -> tuple[World, list[Anomalies]]:
    with closing(World(seed, **options)) as world:
        world.run(STEPS)
        return world, [anomalies(history) for history in world.histories.values()]


@pytest.mark.parametrize("strict", [False, True], ids=["keys", "strict"])
def test_resizes_under_load_keep_every_key_in_order_and_lose_nothing(strict: bool) -> None:
    """ordering-guarantees Gotcha 7 and ordering-in-event-driven-systems Partition per entity."""
    happened: dict[str, int] = {}
    for seed in range(SEEDS):
        world, found = found_in(seed, strict=strict)
        for one in found:
            assert not one, f"seed {seed}: {one}"
        for what, count in world.happened.items():
            happened[what] = happened.get(what, 0) + count
        happened["message"] = happened.get("message", 0) + found[0].messages
        happened["redelivery"] = happened.get("redelivery", 0) + sum(one.redeliveries for one in found)
    kinds = ("resize", "cancel", "void", "redelivery", "request lost", "answer lost", "partition given")
    crashes = [f"crash of {who}" for who in ("publisher", "member", "operator")]
    quiet = [kind for kind in (*kinds, *crashes) if not happened.get(kind)]
    assert not quiet, f"too quiet to say anything: no {quiet} in {happened}"


class NoBarrier(Resizer):
    """Opens a slot in its new partition while the old one still has messages of it."""

    def _drained(self, routes: Routes) -> Iterator[int]:
        return (slot for slots in routes.draining().values() for slot in slots)


class NoGate(Gate):
    """Handles what came too late for its partition."""

    def counts(self, message: Message) -> bool:
        return True


class NoCheck(Table):
    """Believes that the routes are still what they were."""

    def unchanged(self) -> Pending[Routes | None]:
        return Pending.of(self.known)


PLANTED = {
    "no barrier": ({"resizer": NoBarrier}, {"reordered", "overlapping"}),
    "no gate": ({"gate": NoGate}, {"reordered", "overlapping"}),
    "no check": ({"publisher's table": NoCheck}, {"lost"}),
}


@pytest.mark.parametrize(("bug", "names"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_bug_is_found(bug: dict[str, Any], names: set[str]) -> None:
    """ordering-guarantees Gotcha 7: without the barrier, new messages overtake those in the old partition."""
    for seed in range(ENOUGH):
        _, found = found_in(seed, **bug)
        if any(one.names & names for one in found):
            return
    pytest.fail(f"no history of {ENOUGH} shows it")
