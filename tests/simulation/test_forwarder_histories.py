"""A topic moves while everything goes wrong: nothing is lost, no key is reordered, nothing comes twice.

A seed replays its history. `FORWARDER_SEEDS=20000` searches longer.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from inorder.consumers import Forwarder, MovingTopic
from inorder.consumers.moving.receipts import Receipts
from inorder.pending import Pending
from inorder.testing.history import Anomalies, anomalies

from .forwarder_world import ACK_DEADLINE, REFUSED, Died, Process, World, play

SEEDS = int(os.environ.get("FORWARDER_SEEDS", "150"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Errors are what this is about; they would fill pages."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def verdict(seed: int, **options: Any) -> Anomalies:
    return anomalies(play(seed, **options).history)


def test_nothing_is_lost_reordered_or_repeated_whatever_happens() -> None:
    """ordering-in-event-driven-systems Message broker migration: with crashes, a target that fails, and a switch."""
    for seed in range(SEEDS):
        found = verdict(seed)
        assert not found, f"seed {seed}: {found}"
        assert found.duplicates == 0, f"seed {seed}: {found}"


def test_without_receipts_there_are_repetitions_and_only_where_the_page_says_so() -> None:
    """Where an answer was lost, or the forwarder died; and they never come before the first copy."""
    repeated = 0
    for seed in range(SEEDS):
        world = play(seed, deduplicate=False)
        found = anomalies(world.history)
        assert not found, f"seed {seed}: {found}"
        repeated += found.duplicates
    assert repeated


def life_and_death(dies_at: int, **options: Any) -> tuple[World, bool]:
    """Twelve messages of three keys and none, a switch, six more; the first forwarder dies at one of its calls."""
    world = World(**options)
    for number in range(12):
        world.publish(world.keys[number % 4])
    try:
        world.start(Process(dies_at))
        while world.step() > 0:
            world.consume(2)
    except Died:
        pass
    died = world.process.dead
    if died:
        world.clock.advance(ACK_DEADLINE + 1)
        world.start(Process())
    assert world.forwarder is not None
    switched = world.moving.switch(world.forwarder)
    for number in range(6):
        world.publish(world.keys[number % 4])
    world.finish()
    assert switched.result(0) is None
    return world, died


@pytest.mark.parametrize("deduplicate", [True, False])
def test_the_forwarder_may_die_before_and_after_each_of_its_calls(deduplicate: bool) -> None:
    dies_at, died, repeated = 0, True, 0
    while died:
        world, died = life_and_death(dies_at, deduplicate=deduplicate)
        found = anomalies(world.history)
        assert not found, f"died at call {dies_at}: {found}"
        assert found.messages == 18
        repeated += found.duplicates
        dies_at += 1
    assert dies_at > 20, "hardly anything was called"
    assert bool(repeated) is not deduplicate


def test_a_forwarder_that_was_given_up_and_comes_back_repeats_at_most() -> None:
    """Two of them at work: one stalls with messages in its hands, loses its leases, and goes on without knowing."""
    repeated = 0
    for seed in range(SEEDS // 3):
        chance, world = random.Random(seed), World(keys=2)
        world.start(Process())
        stalled, first = world.process, world.forwarder
        assert first is not None
        for number in range(30):
            world.publish(world.keys[number % 3])
        first._start()
        first._fetch()  # and here it stalls
        stalled.stalled = True
        world.clock.advance(ACK_DEADLINE + 1)
        world.start(Process())
        for _ in range(20):
            if chance.random() < 0.4:
                first.step()
            else:
                world.step()
            world.consume(chance.randint(1, 4))
        world.finish()
        found = anomalies(world.history)
        assert not found, f"seed {seed}: {found}"
        repeated += found.duplicates
    assert repeated


def test_what_is_refused_for_good_is_all_that_is_missing() -> None:
    for seed in range(20):
        world = World(on_refused="skip")
        world.start(Process())
        for number in range(20):
            world.publish(world.keys[(number + seed) % 3])
        world.publish("order-0", REFUSED)
        for number in range(20):
            world.publish(world.keys[number % 3])
        world.finish()
        found = anomalies(world.history)
        assert found.names == {"lost"}
        assert [anomaly.values for anomaly in found] == [(REFUSED,)]


# -- whoever breaks the protocol is caught ---------------------------------------------------------


class AcksFirst(Forwarder):
    def _advance(self) -> int:
        assert self._batches is not None
        self._batches.ack(self._at_hand)  # type: ignore[arg-type]
        return super()._advance()


class SwitchesAtOnce(MovingTopic):
    def _drained(self, forwarder: Forwarder, key: str) -> Pending[None]:
        return Pending.of(None)


class HoldsNobody(MovingTopic):
    def _state_of(self, key: str) -> Any:
        state = super()._state_of(key)
        return "copying" if state == "draining" else state


class GoesOnBehindAnError(Forwarder):
    def _advance(self) -> int:
        done = super()._advance()
        if not done:
            self._at_hand.rotate(-1)
        return done


class TrustsEveryError(Forwarder):
    def __init__(self, *both: Any, **options: Any) -> None:
        super().__init__(*both, **options)
        self._outlet._learn_what_is_stored = lambda _: True  # type: ignore[method-assign]


class ForgetsWhatItHas(Receipts):
    """Lets receipts go before the source has confirmed."""

    def read(self) -> None:
        super().read()
        self.let_go([*self.ids])


class WithForgetfulReceipts(Forwarder):
    def __init__(self, source: Any, target: Any, **options: Any) -> None:
        super().__init__(source, target, **options)
        self._outlet._receipts = ForgetsWhatItHas(target, self.name, self._source_topic)


BUGS: dict[str, tuple[dict[str, Any], str]] = {
    "ack before publish": ({"forwarder": AcksFirst}, "lost"),
    "switch without a drain": ({"moving": SwitchesAtOnce}, "reordered"),
    "publishers are not held": ({"moving": HoldsNobody}, "reordered"),
    "the next goes before the one that failed": ({"forwarder": GoesOnBehindAnError}, "reordered"),
    "an error is taken for nothing stored": ({"forwarder": TrustsEveryError}, "repeated"),
    "receipts are let go of too early": ({"forwarder": WithForgetfulReceipts}, "repeated"),
}


@pytest.mark.parametrize(("bug", "name"), BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(bug: dict[str, Any], name: str) -> None:
    for seed in range(400):
        try:
            found = verdict(seed, **bug)
        except AssertionError:  # it never ends, which is found as well
            continue
        if name in found.names or (name == "repeated" and found.duplicates):
            return
    raise AssertionError(f"400 histories, and nothing was {name}")
