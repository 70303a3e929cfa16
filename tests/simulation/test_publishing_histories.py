"""What a client publishes over a connection that loses requests and answers: stored once, in order, or told to fail.

The server numbers attempts by the rules of the broker itself. One thread does everything, in an order that is
generated; a failure prints its seed, and `live_through(seed)` replays it. `PUBLISHING_SEEDS=20000` searches longer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from google.pubsub_v1.types import pubsub

from inorder.core import producers
from inorder.errors import InorderError, KeyPaused, QueueFull, Unauthenticated, Unavailable
from inorder.message import Message, batch_of
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.grpc import publishing
from inorder.transport.grpc.calls import Busy
from inorder.transport.grpc.publishing import Outlet

SEEDS = int(os.environ.get("PUBLISHING_SEEDS", "200"))
STEPS = 150
KEYS = "abc"
NOW_US = 10**15


class Flying(NamedTuple):
    """A request that the server has not answered."""

    texts: list[str]
    attempt: producers.Attempt
    answer: Pending[bytes]


class Server:
    """Stands for `Calls` and what is behind them. `log` is what was stored."""

    timeout_seconds = 60.0

    def __init__(self, random: Random) -> None:
        self._random = random
        self._producers: producers.Producers = {}
        self.flying: list[Flying] = []
        self.log: list[str] = []
        self.fine = False  # from now on everything arrives

    def worth_repeating(self, error: BaseException | None) -> bool:
        return type(error) in (Unavailable, Busy)

    def lives(self) -> Pending[bool]:
        return Pending.of(True)

    def repeated(self, method: str, request: bytes) -> Pending[bytes]:
        asked = v1.OpenProducerRequest.FromString(request)
        held = asked.held_epoch if asked.HasField("held_epoch") else None
        epoch = producers.epoch_after(self._producers, asked.producer, held, NOW_US)
        producers.opened(self._producers, asked.producer, epoch, NOW_US)
        return Pending.of(v1.OpenProducerResponse(epoch=epoch).SerializeToString())

    def begin(self, method: str, request: bytes, timeout: object, metadata: Any) -> tuple[Pending[bytes], Any]:
        texts = [message.data.decode() for message in pubsub.PublishRequest.deserialize(request).messages]
        said = v1.Attempt.FromString(metadata[0][1])
        flying = Flying(texts, producers.Attempt(said.producer, said.epoch, said.number), Pending())
        self.flying.append(flying)
        return flying.answer, lambda: self._cancel(flying)

    def _cancel(self, flying: Flying) -> None:
        if flying in self.flying:
            self.flying.remove(flying)
            self._lose(flying)

    def answer(self) -> str:
        """Something becomes of one that is flying, mostly of the first; returns what."""
        place = 0 if self.fine or self._random.random() < 0.7 else self._random.randrange(len(self.flying))
        flying = self.flying.pop(place)
        fate = "fine" if self.fine else self._random.choices(
            ("fine", "lost", "busy", "refused", "full"), (80, 12, 4, 1, 3)
        )[0]  # fmt: skip
        if fate == "lost":
            self._lose(flying)
        elif fate == "busy":
            flying.answer.set_exception(Busy("come later", 0.0))
        elif fate == "refused":
            flying.answer.set_exception(Unauthenticated("the token was revoked"))
        else:
            self._settle(flying, full=fate == "full")
        return fate

    def _lose(self, flying: Flying) -> None:
        """The request, or its answer."""
        if self._random.random() < 0.5:
            with suppress(InorderError):  # refused, and nobody is told
                self._store(flying)
        flying.answer.set_exception(Unavailable("the connection was cut"))

    def _settle(self, flying: Flying, *, full: bool) -> None:
        try:
            ids = self._store(flying, full=full)
        except InorderError as error:
            flying.answer.set_exception(error)
        else:
            response = pubsub.PublishResponse(message_ids=ids)
            flying.answer.set_result(pubsub.PublishResponse.serialize(response))

    def _store(self, flying: Flying, *, full: bool = False) -> list[str]:
        count = len(flying.texts)
        position = producers.position_of(self._producers, flying.attempt, count)
        if position is None:
            if full:
                raise QueueFull("worker", "1 message")
            position = len(self.log)
            self.log += flying.texts
            producers.attempted(self._producers, flying.attempt, position, count, NOW_US)
        return [str(number) for number in range(position, position + count)]


class Client:
    """Publishes, and knows what it was told."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._next = Counter[str]()
        self.told: list[tuple[list[str], Pending[list[str]]]] = []

    def publish(self, keys: list[str]) -> None:
        messages = []
        for key in keys:
            messages.append(Message(f"{key}{self._next[key]}".encode(), ordering_key=key))
            self._next[key] += 1
        texts = [message.data.decode() for message in messages]
        self.told.append((texts, self._outlet.publish(batch_of(messages))))

    def problems(self, log: list[str]) -> Iterator[str]:
        for key in KEYS:
            numbers = [int(text[1:]) for text in log if text[0] == key]
            if numbers != sorted(set(numbers)):
                yield f"key {key} is stored as {numbers}"
        for texts, told in self.told:
            if not told.done():
                yield f"{texts} were never answered"
            elif (error := told.exception()) is None:
                stored = [log[int(number)] for number in told.result()]
                if stored != texts:
                    yield f"{texts} have the ids of {stored}"
            elif isinstance(error, KeyPaused) and not {*texts}.isdisjoint(log):
                yield f"{texts} are stored behind one that failed"


def live_through(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """One history; returns what happened in it."""
    random = Random(seed)
    put_off: list[Callable[[], object]] = []
    monkeypatch.setattr(publishing, "later", lambda _, call: put_off.append(call))
    monkeypatch.setattr(publishing, "look_later", lambda *_: None)
    server = Server(random)
    outlet = Outlet(server, "t", "projects/p/topics/t", once=True, producer="me" if seed % 2 else None)  # type: ignore[arg-type]
    client = Client(outlet)
    happened = Counter[str]()
    for _ in range(STEPS):
        choices = ["publish"] + ["answer"] * 2 * bool(server.flying) + ["go on"] * bool(put_off)
        match random.choice(choices):
            case "publish":
                client.publish(random.choices(KEYS, k=random.choice((1, 1, 2))))
            case "answer":
                happened[server.answer()] += 1
            case "go on":
                put_off.pop(0)()
    server.fine = True
    while server.flying or put_off:
        if put_off:
            put_off.pop(0)()
        else:
            server.answer()
    happened["failed"] += sum(told.done() and told.exception() is not None for _, told in client.told)
    assert not [*client.problems(server.log)], f"seed {seed}: {[*client.problems(server.log)][:3]}"
    return happened


def live_through_all(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    happened = Counter[str]()
    for seed in range(SEEDS):
        happened += live_through(seed, monkeypatch)
    return happened


def test_what_is_answered_is_stored_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = live_through_all(monkeypatch)
    for what in ("fine", "lost", "busy", "refused", "full", "failed"):
        assert happened[what] > SEEDS // 10, f"{what} happened too seldom: {happened}"


def test_a_client_that_numbers_its_requests_anew_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug of which others were lost, or stored twice, behind one that was answered."""
    recover = Outlet._recover

    def numbered_anew(self: Outlet) -> None:
        with self._lock:
            numbers = [request.number for request in self._under_way if request.number is not None]
            if numbers:
                self._next = min(numbers)
                for request in self._under_way:
                    request.number = None
        recover(self)

    monkeypatch.setattr(Outlet, "_recover", numbered_anew)
    with pytest.raises(AssertionError, match="seed"):
        live_through_all(monkeypatch)
