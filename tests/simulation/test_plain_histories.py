"""Consumers of a server that knows google.pubsub.v1 only, over connections that are cut: in order, and none is lost.

The server is a model of what it has out. What is sent, read, answered and cut, and when, is generated; a failure prints
its seed, and `live_through(seed)` replays it. `PLAIN_SEEDS=5000` searches longer.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from inorder.client.intake import Intake
from inorder.client.stock import Stock
from inorder.message import Leased, Message
from inorder.pending import Pending
from inorder.transport.grpc.plain_rewinds import Rewind
from tests.simulation.plain_world import DEADLINE_SECONDS, PlainWorld

SEEDS = int(os.environ.get("PLAIN_SEEDS", "80"))
STEPS = 120
MESSAGES = 40  # of a key
KEYS = "ab"
AT_ONCE = 4


class Consumer(ABC):
    """Takes lists and answers for them, and judges what it gets."""

    failing = 0.15  # of the lists

    def __init__(self, world: PlainWorld, random: Random) -> None:
        self._world = world
        self._random = random
        self._acked: dict[str, set[int]] = {key: set() for key in KEYS}
        self.happened: Counter[str] = Counter()

    @abstractmethod
    def take(self) -> bool:
        """Take what there is, and answer for all of it, or for some; whether there was anything."""

    def judge(self, given: list[tuple[str, int]]) -> None:
        """Nothing comes before one of its key that the server has, and that nobody has acked."""
        done = {key: {*acked} for key, acked in self._acked.items()}
        for key, number in given:
            before = {other for other in self._world.unacked[key] if other < number} - done[key]
            assert not before, f"{key}{number} came before {key}{min(before)}"
            done[key].add(number)
            self.happened["again" if number in self._acked[key] else "given"] += 1

    def acked(self, given: list[tuple[str, int]], answer: Pending[None]) -> None:
        """These are, unless it turns out that they were somebody else's."""
        for key, number in given:
            self._acked[key].add(number)

        def answered(done: Pending[None]) -> None:
            if done.exception() is not None:
                self.happened["too late"] += 1
                for key, number in given:
                    self._acked[key].discard(number)

        answer.add_done_callback(answered)

    def fails(self) -> bool:
        return self._random.random() < self.failing


class ByColumns(Consumer):
    """A loop over columns."""

    def __init__(self, world: PlainWorld, random: Random) -> None:
        super().__init__(world, random)
        self._stock = Stock(world, "worker", lambda: None, print, AT_ONCE, 3 * AT_ONCE)  # type: ignore[arg-type]

    def take(self) -> bool:
        leased = self._stock.next()
        if leased is None:
            return False
        given = [(key, int(data)) for key, data in zip(leased.keys, leased.data, strict=True)]
        self.judge(given)
        if self.fails():  # from one on: what is behind it in its key must not be done before it
            at = self._random.randrange(len(given))
            self._ack(leased.only({*leased.leases[:at]}), given[:at])
            if self._random.random() < 0.5:
                self._stock.nack(leased.only({*leased.leases[at:]}))
        else:
            self._ack(leased, given)
        return True

    def _ack(self, leased: Leased, given: list[tuple[str, int]]) -> None:
        if given:
            self.acked(given, self._stock.ack(leased))


class ByMessages(Consumer):
    """A loop over lists, or handlers for one of a key at a time."""

    one_per_key = True

    def __init__(self, world: PlainWorld, random: Random) -> None:
        super().__init__(world, random)
        self._intake = Intake(
            world,  # type: ignore[arg-type]
            "worker",
            lambda: None,
            print,
            AT_ONCE,
            self.one_per_key,
            None if self.one_per_key else 3 * AT_ONCE,
        )

    def take(self) -> bool:
        messages = self._intake.next_ones(AT_ONCE)
        if messages:
            self._intake.look_ahead()
        messages = [message for message in messages if not self._intake.doubts or self._intake.begin(message)]
        given = [(message.ordering_key or "", int(message.data)) for message in messages]
        self.judge(given)
        at = self._random.randrange(len(given)) if given and self.fails() else len(given)
        self._answer(messages[:at], given[:at])
        for message in messages[at:]:
            message.nack()
        self._intake.finished_together(messages)
        return bool(messages)

    def _answer(self, messages: list[Message], given: list[tuple[str, int]]) -> None:
        if messages:
            self.acked(given, self._intake.ack_together(messages).map(lambda _: None))


class ByLists(ByMessages):
    one_per_key = False


def live_through(seed: int, kind: type[Consumer], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    random = Random(seed)
    world = PlainWorld(random, monkeypatch, KEYS, MESSAGES)
    world.dead_take_back = random.random() < 0.5
    world.refusing = random.choice([0, 0, 0.1])
    consumer = kind(world, random)
    faults: list[Callable[[], object]] = [world.cut, lambda: world.pass_time(random.choice([1, 4, 11]))]
    steps: list[Callable[[], object]] = [world.send, world.read, world.answer, consumer.take]
    try:
        for _ in range(STEPS):
            step = random.choice(steps) if random.random() < 0.95 else random.choice(faults)
            step()
        drain(world, consumer)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {kind.__name__}: {error}") from error
    finally:
        world.close()
    return consumer.happened


def drain(world: PlainWorld, consumer: Consumer) -> None:
    """Nothing fails any more: all is through after two deadlines, or three if nacks were lost, without much ado."""
    patience = DEADLINE_SECONDS * (3 if world.refusing else 2) + 1
    world.cut()
    consumer.failing = world.refusing = 0.0
    waited, rounds = 0, 0
    while not world.done():
        rounds += 1
        assert rounds < 500, f"it goes round and round: {world.unacked}"
        moved = [world.answer(), world.send(), world.read(), consumer.take()]
        if not any(moved):
            waited += 1
            assert waited <= patience, f"it stands still: {world.unacked}"
            world.pass_time(1)


KINDS = [ByColumns, ByLists, ByMessages]


def live_through_all(kind: type[Consumer], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += live_through(seed, kind, monkeypatch)
    return happened


@pytest.mark.parametrize("kind", KINDS)
def test_keys_stay_in_order_and_drain_whatever_is_cut(kind: type[Consumer], monkeypatch: pytest.MonkeyPatch) -> None:
    happened = live_through_all(kind, monkeypatch)
    assert happened["again"] > SEEDS, f"too little came again: {happened}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_believes_what_was_on_its_way_is_found_out(
    kind: type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug by which messages were handled before one of their key that had failed."""
    monkeypatch.setattr(Rewind, "ends_with", lambda *_: True)
    with pytest.raises(AssertionError, match="came before"):
        live_through_all(kind, monkeypatch)


def test_what_comes_again_does_not_go_back_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug by which one nack had a thousand messages come, and go back, again and again."""
    world = PlainWorld(Random(1), monkeypatch, "a", MESSAGES)
    lists = Stock(world, "worker", lambda: None, print, AT_ONCE, 3 * AT_ONCE)  # type: ignore[arg-type]
    while world.send():
        world.read()
    failed = lists.next()
    assert failed is not None
    lists.nack(failed)
    for _ in range(10):  # what comes again is always faster than the answer
        world.hear()
        while world.send():
            world.read()
        world.answer()
    again = lists.next()
    assert again is not None
    assert again.data == failed.data
    world.close()
