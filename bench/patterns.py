"""The pure steps of the patterns, in batches, against a dict that takes the same events without a question.

The dict is what a consumer does that trusts the order in which events come: one assignment each. Keys come in random
order; "disordered" events are up to some thousand places from where they belong, so that about every second one of a
key waits for another. One thread that never waits is timed by its CPU time, which others on the machine disturb less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from time import process_time
from typing import Any

from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import WrongResult, random_pairs, split
from inorder.patterns import (
    DeduplicateIds,
    DeduplicateSequences,
    Event,
    IndependentFields,
    LastWriteWins,
    Pattern,
    Resequencer,
    VersionGate,
)

KEYS = 10_000
BATCH = 1_000
FAR = 20_000  # places that a disordered event may be from its own, among events of 10,000 keys
NOW_US = 10**15

WANTED = Target(300_000, figure=True)  # events a second: a step should be small beside what it decides about


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(100_000, 30_000)
    rows = []
    for name, (make, shape, target) in SUBJECTS.items():
        events = shape(count)  # one after the other: what lies around in memory costs the garbage collector's time
        rates = interleaved({"ours": partial(_timed, make, events), "dict": partial(_bare_dict, events)}, effort)
        rows.append(Row(name, rates["ours"], rates["dict"], target))
    yield Table(
        f"Patterns: {count:,} events of {KEYS:,} keys, in batches of {BATCH:,}, against a bare dict",
        "events/s of CPU",
        rows,
    )


def _timed(make: Callable[[], Pattern[Any]], events: Sequence[Event]) -> float:
    """Events a second, from a pattern that knows nothing yet to one that has let all of them through."""
    pattern, states, applied = make(), dict[str, Any](), 0
    batches = split(events, BATCH)
    start = process_time()
    for batch in batches:
        taken = pattern.on_messages(states, batch, NOW_US)
        states.update(taken.states)
        applied += len([fate for fate, _ in taken.emit if fate == "released"])
    elapsed = process_time() - start
    if not KEYS / 2 < applied <= len(events):
        raise WrongResult(f"{applied:,} of {len(events):,} events were applied")
    if isinstance(pattern, Resequencer) and applied != len(events):
        raise WrongResult(f"{len(events) - applied:,} events still wait for others that were there")
    return len(events) / elapsed


def _bare_dict(events: Sequence[Event]) -> float:
    states: dict[str, Event] = {}
    batches = split(events, BATCH)
    start = process_time()
    for batch in batches:
        for event in batch:
            states[event[0]] = event
    return len(events) / (process_time() - start)


def _numbered(count: int) -> list[Event]:
    """Events in order: key, number from 1, data."""
    numbers: dict[str, int] = {}
    events: list[Event] = []
    for key, data in random_pairs(count, KEYS):
        numbers[key] = numbers.get(key, 0) + 1
        events.append((key, numbers[key], data))
    return events


def _disordered(count: int) -> list[Event]:
    random = Random(count)
    places = [(place + random.randrange(FAR), place) for place in range(count)]
    events = _numbered(count)
    return [events[place] for _, place in sorted(places)]


def _writes(count: int) -> list[Event]:
    return [(key, number, "producer", data) for key, number, data in _disordered(count)]


def _writes_in_order(count: int) -> list[Event]:
    return [(key, number, "producer", data) for key, number, data in _numbered(count)]


def _fields(count: int) -> list[Event]:
    return [
        (key, ("Placed", "Paid")[number % 2], number, {("placed_at", "paid_at")[number % 2]: number})
        for key, number, _ in _disordered(count)
    ]


def _with_ids(count: int) -> list[Event]:
    return [(key, f"{key}/{number}", data) for key, number, data in _numbered(count)]


def _of_producers(count: int) -> list[Event]:
    return [(key, "producer", number, data) for key, number, data in _disordered(count)]


SUBJECTS: dict[str, tuple[Callable[[], Pattern[Any]], Callable[[int], list[Event]], Target | None]] = {
    "resequencer, in order": (Resequencer, _numbered, WANTED),
    "resequencer, disordered": (partial(Resequencer, gap_timeout_seconds=60), _disordered, WANTED),
    "version gate, in order": (VersionGate, _numbered, WANTED),
    "version gate, disordered": (VersionGate, _disordered, WANTED),
    "version gate, latest only, disordered": (partial(VersionGate, mode="latest_only"), _disordered, WANTED),
    "last write wins, in order": (LastWriteWins, _writes_in_order, WANTED),
    "last write wins, disordered": (LastWriteWins, _writes, WANTED),
    "independent fields": (
        partial(IndependentFields, {"Placed": ["placed_at"], "Paid": ["paid_at"]}),
        _fields,
        None,
    ),
    "deduplication by id": (DeduplicateIds, _with_ids, None),
    "deduplication by sequence": (DeduplicateSequences, _of_producers, None),
}
