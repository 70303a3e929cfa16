"""Every pattern, behind a real subscription, comes to what `fold` says of the same events in their own order."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from inorder.patterns import (
    DeduplicateIds,
    DeduplicateSequences,
    IndependentFields,
    LastWriteWins,
    Resequencer,
    VersionGate,
    fold,
)

from .desk import SOON, Database, desk

KEYS = [f"order-{number}" for number in range(7)]
NUMBERS = range(1, 13)

Events = list[tuple[Any, ...]]


def numbered() -> Events:
    return [(key, number, f"{key}/{number}") for number in NUMBERS for key in KEYS]


def writes() -> Events:
    """With ties in time, which the producer or the content decides, and with deletes."""
    return [
        (key, number // 2, f"producer-{number % 3}", None if number % 7 == 0 else {"value": number})
        for number in NUMBERS
        for key in KEYS
    ]


def fields() -> Events:
    names = {"Placed": "placed_at", "Paid": "paid_at", "Shipped": "shipped_at"}
    return [(key, kind, number, {name: number}) for number in NUMBERS for key in KEYS for kind, name in names.items()]


def by_id() -> Events:
    return [(key, f"id-{number}", number) for number in NUMBERS for key in KEYS]


def by_sequence() -> Events:
    return [(key, f"producer-{number % 2}", number) for number in NUMBERS for key in KEYS]


def shuffled(events: Events, seed: int) -> Events:
    """Each event once or more often, in an order that nobody planned."""
    random = Random(seed)
    mixed = events + random.choices(events, k=len(events) // 2)
    random.shuffle(mixed)
    return mixed


ALL_IN_ORDER = {
    "resequencer": (Resequencer(when_full="gap"), numbered),
    "resequencer that sends back": (Resequencer(capacity=3, when_full="retry"), numbered),
    "versions, every one": (VersionGate(when_full="gap"), numbered),
    "versions that send back": (VersionGate(future="retry", key_ordered=False), numbered),
}


@pytest.mark.parametrize(("pattern", "made"), ALL_IN_ORDER.values(), ids=ALL_IN_ORDER.keys())
def test_each_event_is_applied_once_and_in_order(database: Database, pattern: Any, made: Callable[[], Events]) -> None:
    """ordering-guarantees Pattern 1, How 5, ordering-in-event-driven-systems Entity versioning."""
    events = made()
    with desk(database, retry_policy=SOON) as here:
        here.publish(shuffled(events, 1))
        here.consume(pattern, batch=60)
    for key in KEYS:
        assert database.effects(key) == fold(pattern, [event for event in events if event[0] == key]).applied()
    assert not here.errors


LAST_STATE = {
    "versions, the latest": (VersionGate(mode="latest_only"), numbered),
    "last write wins": (LastWriteWins(max_drift_seconds=None), writes),
    "independent fields": (
        IndependentFields({"Placed": ["placed_at"], "Paid": ["paid_at"], "Shipped": ["shipped_at"]}),
        fields,
    ),
}


@pytest.mark.parametrize(("pattern", "made"), LAST_STATE.values(), ids=LAST_STATE.keys())
def test_whatever_the_order_the_state_is_the_same_in_the_end(
    database: Database, pattern: Any, made: Callable[[], Events]
) -> None:
    """ordering-guarantees Pattern 3, How 6, ordering-in-event-driven-systems Critical."""
    events = made()
    with desk(database) as here:
        here.publish(shuffled(events, 2))
        here.consume(pattern, batch=11)
    expected = fold(pattern, events).states
    stored = database.read("SELECT entity, state FROM inorder_states")
    found = {key: pattern.load(bytes(state)) for key, state in stored}
    if isinstance(pattern, LastWriteWins):  # when a write came is no part of what it says
        found = {key: state[:4] for key, state in found.items()}
        expected = {key: state[:4] for key, state in expected.items()}
        last = {key: database.effects(key)[-1] for key in KEYS}
        assert all(tuple(event[1:3]) == found[key][:2] for key, event in last.items())
    assert found == expected


EACH_ONCE = {
    "ids": (DeduplicateIds(), by_id),
    "sequences": (DeduplicateSequences(), by_sequence),
}


@pytest.mark.parametrize(("pattern", "made"), EACH_ONCE.values(), ids=EACH_ONCE.keys())
def test_each_event_is_applied_once(database: Database, pattern: Any, made: Callable[[], Events]) -> None:
    events = made()
    with desk(database) as here:
        here.publish(shuffled(events, 3))
        here.consume(pattern, batch=11)
    assert sorted(database.effects()) == sorted(fold(pattern, events).applied())


def test_an_ordered_subscription_gives_the_same(database: Database) -> None:
    events = numbered()
    pattern = Resequencer(when_full="gap")
    with desk(database, enable_message_ordering=True) as here:
        here.publish(shuffled(events, 4))
        here.consume(pattern)
    for key in KEYS:
        assert database.effects(key) == [event for event in events if event[0] == key]
