"""The pure state machine against the queues of the standard library and against one made by hand.

Keys come in random order. "In step" publishes a batch, pulls and acks, then the next batch; "from a
backlog" publishes everything first, so nearly all messages wait behind another one of their key.
One thread that never waits is timed by its CPU time, which others on the machine disturb less.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import ORDERED, Pair, WrongResult, random_pairs, split
from inorder.core.state import State
from inorder.message import to_columns
from inorder.options import TopicOptions

KEYS = 1_000
BATCH = 100

Contestant = Callable[[list[Pair], int, bool], float]  # messages, batch, in step?: messages per second


def measure(effort: Effort) -> Iterator[Table]:
    many, few = effort.of(100_000, 20_000), effort.of(30_000, 5_000)
    for in_step in (True, False):
        rates = _race([core, standard_queue, hand_made, bare_deques], many, KEYS, BATCH, in_step, effort)
        yield Table(
            f"Core: publish, pull and ack, {KEYS:,} keys, batches of {BATCH}, {_shape(in_step)}",
            "messages/s of CPU",
            [
                Row("against queue.Queue, put and get", rates["core"], rates["standard_queue"], Target(4)),
                Row("against the same made by hand", rates["core"], rates["hand_made"], Target(1)),
                Row("against a dict of deques, no acks", rates["core"], rates["bare_deques"]),
            ],
        )
    for keys in (KEYS, 1):
        rows = []
        for in_step in (True, False):
            rates = _race([core, standard_queue], few, keys, 1, in_step, effort)
            rows.append(
                Row(f"against queue.Queue, {_shape(in_step)}", rates["core"], rates["standard_queue"], Target(0.5))
            )
        title = f"{KEYS:,} keys" if keys > 1 else "a single key"
        yield Table(f"Core: publish, pull and ack, {title}, one message at a time", "messages/s of CPU", rows)


def _shape(in_step: bool) -> str:
    return "in step" if in_step else "from a backlog"


def _race(
    contestants: Sequence[Contestant], count: int, keys: int, batch: int, in_step: bool, effort: Effort
) -> dict[str, list[float]]:
    def run(contestant: Contestant) -> float:
        return contestant(random_pairs(count, keys), batch, in_step)

    return interleaved({c.__name__: partial(run, c) for c in contestants}, effort)


def core(pairs: list[Pair], batch: int, in_step: bool) -> float:
    state = State("epoch-")
    state.apply(state.create_topic("t", TopicOptions(), 0)[1])
    state.apply(state.create_subscription("s", "t", ORDERED, 0)[1])
    batches = [
        to_columns([(key, data, None, len(key) + len(data)) for key, data in part]) for part in split(pairs, batch)
    ]
    left = len(pairs)
    start = process_time()
    for now_us, columns in enumerate(batches):
        state.apply(state.publish("t", columns, now_us)[1])
        if in_step:
            leases = state.lease("s", batch, now_us)[1]
            state.apply(state.ack("s", leases)[1])
            left -= len(leases)
    while leases := state.lease("s", batch, len(batches))[1]:
        state.apply(state.ack("s", leases)[1])
        left -= len(leases)
    elapsed = process_time() - start
    if left:
        raise WrongResult(f"{left} messages did not arrive")
    return len(pairs) / elapsed


def standard_queue(pairs: list[Pair], batch: int, in_step: bool) -> float:
    """Knows no batches and no acks: only put and get."""
    messages: queue.Queue[Pair] = queue.Queue()
    start = process_time()
    if in_step:
        for pair in pairs:
            messages.put(pair)
            messages.get()
    else:
        for pair in pairs:
            messages.put(pair)
        for _ in pairs:
            messages.get()
    return len(pairs) / (process_time() - start)


class HandMade:
    """One message out per key, acks by id: what one would write in an afternoon, and nothing more."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[bytes]] = {}
        self._ready: deque[str] = deque()
        self._in_flight: dict[int, Pair] = {}
        self._next_id = 0

    def publish(self, pairs: Sequence[Pair]) -> None:
        for key, data in pairs:
            if key not in self._waiting:
                self._waiting[key] = deque()
                self._ready.append(key)
            self._waiting[key].append(data)

    def pull(self, count: int) -> list[tuple[int, str, bytes]]:
        pulled: list[tuple[int, str, bytes]] = []
        while self._ready and len(pulled) < count:
            key = self._ready.popleft()
            data = self._waiting[key].popleft()
            self._next_id += 1
            self._in_flight[self._next_id] = (key, data)
            pulled.append((self._next_id, key, data))
        return pulled

    def ack(self, ids: Sequence[int]) -> None:
        for one in ids:
            key, _ = self._in_flight.pop(one)
            if self._waiting[key]:
                self._ready.append(key)
            else:
                del self._waiting[key]


def hand_made(pairs: list[Pair], batch: int, in_step: bool) -> float:
    made = HandMade()
    batches = split(pairs, batch)
    start = process_time()
    for part in batches:
        made.publish(part)
        if in_step:
            made.ack([one for one, _, _ in made.pull(batch)])
    while pulled := made.pull(batch):
        made.ack([one for one, _, _ in pulled])
    return len(pairs) / (process_time() - start)


def bare_deques(pairs: list[Pair], batch: int, in_step: bool) -> float:
    """Forgets a message as soon as it is taken, and is told where to take it."""
    deques: dict[str, deque[bytes]] = {f"key-{key}": deque() for key in range(KEYS)}
    batches = split(pairs, batch)
    start = process_time()
    if in_step:
        for part in batches:
            for key, data in part:
                deques[key].append(data)
            for key, _ in part:
                deques[key].popleft()
    else:
        for key, data in pairs:
            deques[key].append(data)
        for key, _ in pairs:
            deques[key].popleft()
    return len(pairs) / (process_time() - start)
