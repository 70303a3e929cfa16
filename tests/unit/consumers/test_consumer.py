"""A consumer: effect and state together or not at all, whatever fails, races, restarts or is closed in between."""

import contextlib
import json
import logging
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inorder import DeadLetterPolicy, Message, RetryPolicy
from inorder.consumers import Applied, Consumer, SqliteStore
from inorder.errors import FailedPrecondition, InvalidArgument, SubscriptionNotFound
from inorder.patterns import (
    DeduplicateIds,
    DeduplicateSequences,
    IndependentFields,
    LastWriteWins,
    Resequencer,
    VersionGate,
)
from inorder.patterns.step import RELEASED, Batch, Event
from inorder.testing.clock import ManualClock

from .desk import SOON, Database, Desk, desk, read, run, wait_until, write_down

PARKING = Resequencer(when_full="gap")


def quarantine(database: Database) -> list[Any]:
    return sorted(database.read("SELECT entity, reason FROM inorder_quarantine"))


def numbers(database: Database, key: str = "a") -> list[int]:
    return [event[1] for event in database.effects(key)]


# -- effect and state ------------------------------------------------------------------------------------


def test_a_handler_that_raises_leaves_neither_effect_nor_state_and_is_asked_again(database: Database) -> None:
    calls: list[int] = []
    seen: list[Any] = []

    def apply(event: Applied, raw: Any) -> None:
        seen.append((run(raw, "SELECT event FROM effects"), run(raw, "SELECT entity FROM inorder_states")))
        write_down(event, raw)
        calls.append(event.fields[1])
        if len(calls) < 3:
            raise ZeroDivisionError("not yet")

    with desk(database) as here:
        here.publish([("a", 1)])
        here.consume(PARKING, apply=apply)
    assert calls == [1, 1, 1]
    assert seen == [([], [])] * 3
    assert numbers(database) == [1]
    assert [str(error) for error in here.errors] == ["not yet"] * 2
    assert "while message" in here.errors[0].__notes__[0]


def test_an_event_has_what_was_read_and_its_message(database: Database) -> None:
    got: list[Applied] = []
    with desk(database) as here:
        here.publish([("a", 2, {"x": [1]}), ("a", 1, "first")])  # the first is parked, and comes out of the database
        here.consume(PARKING, apply=lambda event, _: got.append(event), batch=1)
    first, second = got
    assert (first.key, first.fields, first.fate) == ("a", ("a", 1, "first"), "released")
    assert second.fields == ("a", 2, {"x": [1]})
    assert second.json() == ["a", 2, {"x": [1]}]
    assert second.attributes == {"n": "1"}
    assert first.message_id
    assert first.message_id != second.message_id


def test_an_event_that_was_parked_is_asked_again_as_it_was_whatever_its_handler_did_to_it(database: Database) -> None:
    got: list[Any] = []

    def apply(event: Applied, _: Any) -> None:
        attributes: Any = event.attributes
        got.append((event.fields[2].pop("x", None), attributes.pop("n", None)))
        if len(got) == 2:
            raise ZeroDivisionError("not yet")

    with desk(database) as here:
        here.publish([("a", 2, {"x": "second"}), ("a", 1, {"x": "first"})])
        here.consume(PARKING, apply=apply, batch=1)
    assert got == [("first", "1"), ("second", "1")] * 2


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "two stores"])
def test_consumers_that_take_turns_see_what_the_other_has_written(database: Database, shared: bool) -> None:
    """However little each of them reads again."""
    store = database.store()
    with desk(database) as one, desk(database) as other:
        consumers = (
            one.consumer(PARKING, store=store),
            other.consumer(PARKING, store=store if shared else database.store()),
        )
        with consumers[0], consumers[1]:
            for number in (1, 3, 2, 4, 7, 6, 5, 8):  # so some are parked by one, and released by the other
                here = (one, other)[number % 2]
                here.publish([("a", number), ("b", number)])
                here.drained()
    assert numbers(database, "a") == [*range(1, 9)]
    assert numbers(database, "b") == [*range(1, 9)]
    assert one.errors == other.errors == []


def test_all_that_goes_through_may_be_applied_in_one_call(database: Database) -> None:
    calls: list[Any] = []

    def apply_all(events: Sequence[Applied], raw: Any) -> None:
        calls.append([event.fields[1] for event in events])
        for event in events:
            write_down(event, raw)

    with desk(database) as here:
        here.publish([("a", number) for number in (2, 1, 3, 5, 9)])  # 9 has no room beside 5, so 4 is given up
        pattern = Resequencer(when_full="gap", capacity=1)
        here.consume(pattern, apply=None, apply_all=apply_all, on_gap=lambda *_: calls.append("gap"))
    assert calls == [[1, 2, 3], "gap", [5]]
    assert numbers(database) == [1, 2, 3, 5]


def test_one_that_fails_in_a_call_for_all_holds_no_other_up(database: Database) -> None:
    def apply_all(events: Sequence[Applied], raw: Any) -> None:
        for event in events:
            write_down(event, raw)
            if event.key == "bad":
                raise ZeroDivisionError

    with desk(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish([*((f"k{number}", 1) for number in range(20)), ("bad", 1), ("last", 1)])
        with here.consumer(PARKING, apply=None, apply_all=apply_all):
            wait_until(lambda: here.backlog == 1)
    assert sorted(event[0] for event in database.effects()) == sorted([f"k{number}" for number in range(20)] + ["last"])


def test_a_bad_message_is_alone_and_the_others_of_its_list_are_applied(database: Database) -> None:
    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.key == "bad":
            raise ZeroDivisionError

    with desk(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish([*((f"k{number}", 1) for number in range(20)), ("bad", 1), ("last", 1)])
        with here.consumer(PARKING, apply=apply):
            wait_until(lambda: here.backlog == 1)
    assert sorted(event[0] for event in database.effects()) == sorted([f"k{number}" for number in range(20)] + ["last"])
    assert len(here.errors) == 1


def test_what_always_fails_goes_to_the_dead_letters_of_its_subscription(database: Database) -> None:
    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.fields[1] == 1:
            raise ZeroDivisionError

    with desk(database) as here:
        dead = here.pubsub.topic("dead").create().result()
        lying = dead.subscription("lying").create().result()
        here.subscription.set_options(dead_letter_policy=DeadLetterPolicy("dead", 5)).result()
        here.publish([("a", 1), ("b", 2), ("b", 3)])
        here.consume(Resequencer(initial="first_seen", when_full="gap"), apply=apply)
        assert [read(message) for message in lying.pull(10).result()] == [("a", 1)]
    assert numbers(database, "b") == [2, 3]
    assert len(here.errors) == 5


# -- quarantine ------------------------------------------------------------------------------------------

UNREADABLE = {
    "no JSON": b"{",
    "no tuple": b'"abc"',
    "no key": b'["", 1]',
    "a key that is a number": b"[7, 1]",
    "too short": b'["a"]',
    "a number that is none": b'["a", "one"]',
    "a negative one": b'["a", -1]',
    "a key that databases cannot store": b'["a\\u0000b", 1]',
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_put_into_quarantine_and_holds_nobody_up(database: Database, data: bytes) -> None:
    def read_any(message: Message) -> Any:
        found = json.loads(message.data)
        return tuple(found) if isinstance(found, list) else found

    with desk(database) as here:
        here.topic.publish_message(data, {"why": "test"}, "key").result()
        here.publish([("a", 1)])
        here.consume(PARKING, read=read_any)
    assert numbers(database) == [1]
    ((_, reason),) = quarantine(database)
    assert reason.startswith("cannot be read: ")
    ((stored, attributes),) = database.read("SELECT data, attributes FROM inorder_quarantine")
    assert bytes(stored) == data
    assert json.loads(attributes) == {"why": "test"}


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


FIELDS = IndependentFields({"Priced": ["price"]})
UNSTORABLE: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "NaN as a value": (LastWriteWins(), ("a", 1, "p", float("nan")), ("a", 2, "p", 1)),
    "a date as a value": (LastWriteWins(), ("a", 1, "p", date(2026, 1, 1)), ("a", 2, "p", 1)),
    "half a character as a value": (LastWriteWins(), ("a", 1, "p", "\ud800"), ("a", 2, "p", 1)),
    "too deep a value": (LastWriteWins(), ("a", 1, "p", nested(900)), ("a", 2, "p", 1)),
    "half a character as a producer": (LastWriteWins(), ("a", 1, "\ud800", 1), ("a", 2, "p", 1)),
    "NaN as a field": (FIELDS, ("a", "Priced", 1, {"price": float("nan")}), ("a", "Priced", 2, {"price": 1})),
    "too deep a field": (FIELDS, ("a", "Priced", 1, {"price": nested(900)}), ("a", "Priced", 2, {"price": 1})),
    "a list as an event type": (FIELDS, ("a", ["Priced"], 1, {"price": 1}), ("a", "Priced", 2, {"price": 1})),
    "half a character as an id": (DeduplicateIds(), ("a", "\ud800"), ("a", "x")),
    "half a character as a producer of numbers": (DeduplicateSequences(), ("a", "\ud800", 1), ("a", "p", 1)),
    "a date that is parked": (PARKING, ("a", 2, date(2026, 1, 1)), ("a", 1, 1)),
    "NaN that is parked": (PARKING, ("a", 2, float("nan")), ("a", 1, 1)),
    "too deep to be parked": (PARKING, ("a", 2, nested(900)), ("a", 1, 1)),
    "a version that is parked": (VersionGate(), ("a", 2, object()), ("a", 1, 1)),
}


@pytest.mark.parametrize(("pattern", "bad", "good"), UNSTORABLE.values(), ids=UNSTORABLE.keys())
@pytest.mark.parametrize("batch", [1, 100])
def test_an_event_that_no_state_can_hold_is_put_into_quarantine(
    tmp_path: Path, pattern: Any, bad: tuple[Any, ...], good: tuple[Any, ...], batch: int
) -> None:
    database = Database(str(tmp_path / "store.db"))
    with desk(database, enable_message_ordering=True) as here:
        here.publish([("a", 0), ("a", 1)])
        here.consume(pattern, read=lambda message: (bad, good)[read(message)[1]], batch=batch)
    assert [tuple(event) for event in database.effects()] == [good]
    ((entity, reason),) = quarantine(database)
    database.close()
    assert entity == "a"
    assert reason.startswith("cannot be read: ")
    assert not here.errors


def test_what_is_released_at_once_need_not_be_stored(database: Database) -> None:
    """So an event that is, is not blamed for one that is not."""
    got: list[int] = []
    with desk(database) as here:
        here.publish([("a", 1), ("a", 2), ("a", 4)])
        here.consume(
            PARKING,
            read=lambda message: (*read(message), date(2026, 1, 1)),
            apply=lambda event, _: got.append(event.fields[1]),
        )
    assert got == [1, 2]
    assert len(quarantine(database)) == 1


def test_nothing_but_bad_messages_is_no_problem(database: Database) -> None:
    with desk(database) as here:
        here.topic.publish_many([Message(b"{"), Message(b"}")]).result()
        here.consume(PARKING)
    assert len(quarantine(database)) == 2
    assert not here.errors


def test_a_read_that_forgets_a_field_is_found_out(database: Database) -> None:
    """What is kept of the message stands behind the event, and must not be taken for the value of a write."""
    with desk(database) as here:
        here.publish([("a", 1, "producer")])
        here.consume(LastWriteWins())
    assert database.effects() == []
    assert "at least 4 fields" in quarantine(database)[0][1]


def test_the_pattern_may_put_into_quarantine_too(database: Database) -> None:
    with desk(database, ManualClock()) as here:
        far_us = here.clock.now_us() + 10**9
        here.publish([("a", far_us, "producer", 1), ("a", 5, "producer", 2)])
        here.consume(LastWriteWins())
    assert quarantine(database) == [("a", "quarantined by the pattern")]
    assert [event[1] for event in database.effects()] == [5]


def test_an_error_of_the_pattern_s_policy_is_told_and_the_message_comes_again(database: Database) -> None:
    with desk(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish([("a", 1), ("a", 1), ("b", 1)])
        with here.consumer(Resequencer(when_full="gap", duplicates="error"), batch=1):
            wait_until(lambda: here.backlog == 1 and here.errors)
    assert "released before" in str(here.errors[0])
    assert [event[0] for event in database.effects()] == ["a", "b"]


# -- the log ---------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what a consumer said, without the ids of messages."""
    told = ((record.levelname, record.getMessage()) for record in caplog.records if "consumer" in record.name)
    return [(level, re.sub("message [^ ,]+", "message ID", line)) for level, line in told]


def test_duplicates_are_warned_of_and_what_comes_out_of_order_is_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """ordering-guarantees Pattern 1: a duplicate, and what has come before its turn."""
    with desk(database) as here, caplog.at_level(logging.INFO, "inorder.consumers"):
        here.publish([("a", 1), ("a", 1), ("a", 3), ("a", 4), ("a", 2)])
        here.consume(PARKING)
    assert numbers(database) == [1, 2, 3, 4]
    assert logged(caplog) == [
        ("WARNING", "consumer 'worker': 1 duplicate, the first: message ID, ('a', 1)"),
        ("INFO", "consumer 'worker': 2 parked, the first: message ID, ('a', 3)"),
    ]


def test_a_stale_write_is_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """ordering-guarantees Pattern 3: what is older than what is stored is skipped, and the log says so."""
    with desk(database) as here, caplog.at_level(logging.INFO, "inorder.consumers"):
        here.publish([("a", 200, "web", "new"), ("a", 100, "web", "old")])
        here.consume(LastWriteWins())
    assert [event[3] for event in database.effects()] == ["new"]
    assert logged(caplog) == [("INFO", "consumer 'worker': 1 stale, the first: message ID, ('a', 100, 'web', 'old')")]


@pytest.mark.parametrize("listens", [True, False])
def test_a_gap_that_is_given_up_is_warned_of_unless_somebody_listens(
    database: Database, listens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """ordering-guarantees Gotcha 4: what is missing is waited for with a timeout, or skipped with a warning."""
    clock = ManualClock()
    gaps: list[Any] = []
    on_gap = (lambda missing, _: gaps.append(missing)) if listens else None
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap")
    with desk(database, clock) as here, caplog.at_level(logging.INFO, "inorder.consumers"):
        here.publish([("a", 1), ("a", 4)])
        with here.consumer(pattern, on_gap=on_gap):
            here.drained()
            clock.advance(30)
            wait_until(lambda: numbers(database) == [1, 4])
    told = [line for _, line in logged(caplog) if "gap" in line]
    assert told == ([] if listens else ["consumer 'worker': 1 gap, the first: 'a' goes on without 2 to 3, timeout"])
    assert len(gaps) == listens


def test_what_is_put_into_quarantine_is_warned_of(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with desk(database) as here, caplog.at_level(logging.INFO, "inorder.consumers"):
        here.publish([("a", 1), ("a", -1), ("a", "two")])
        here.consume(PARKING)
    assert len(quarantine(database)) == 2
    [(level, line)] = logged(caplog)
    assert level == "WARNING"
    assert line.startswith("consumer 'worker': 2 quarantined, the first: message ID of 'a', cannot be read: ")


def test_what_comes_in_order_is_not_logged(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with desk(database) as here, caplog.at_level(logging.INFO, "inorder.consumers"):
        here.publish([("a", 1), ("a", 2), ("b", 1)])
        here.consume(PARKING)
    assert logged(caplog) == []


# -- time ------------------------------------------------------------------------------------------------


def test_a_gap_is_given_up_by_the_clock_without_arrivals(database: Database) -> None:
    gaps: list[Any] = []
    clock = ManualClock()
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap")
    with desk(database, clock) as here:
        here.publish([("a", 1), ("a", 3), ("b", 2)])
        with here.consumer(pattern, on_gap=lambda missing, _: gaps.append(missing)):
            here.drained()
            clock.advance(29)
            assert numbers(database) == [1]
            clock.advance(1)
            wait_until(lambda: len(gaps) == 2)
            wait_until(lambda: numbers(database, "b") == [2])
    assert numbers(database) == [1, 3]
    assert sorted(gap[:3] for gap in gaps) == [("a", 2, 2), ("b", 1, 1)]


def test_what_was_parked_before_a_restart_is_given_up_after_it(database: Database) -> None:
    """The broker forgets, the database does not; nothing arrives to wake anybody."""
    clock = ManualClock()
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap")
    with desk(database, clock) as here:
        here.publish([("a", 2), ("a", 3)])
        here.consume(pattern)
    clock.advance(100)
    with desk(database, clock) as again, again.consumer(pattern):
        wait_until(lambda: numbers(database) == [2, 3])
    assert not again.errors


@pytest.mark.parametrize("before", [None, 3_000], ids=["none", "a longer one"])
def test_a_gap_timeout_that_is_new_with_a_restart_holds_for_what_waits_already(
    database: Database, before: float | None
) -> None:
    clock = ManualClock()
    keys = [f"k{number}" for number in range(5)]
    with desk(database, clock) as here:
        here.publish([(key, 2) for key in keys])
        here.publish([("idle", 1)])
        here.consume(Resequencer(gap_timeout_seconds=before, when_full="gap"))
    versions = database.read("SELECT version FROM inorder_states WHERE entity = 'idle'")
    soon_us = clock.now_us() + 30_000_000
    clock.advance(20)
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap")
    with desk(database, clock) as again, again.consumer(pattern, batch=2):  # so that it takes several looks
        again.publish([("new", 1)])
        again.drained()
        waking = "SELECT COUNT(*) FROM inorder_states WHERE wake_at_us = :soon_us"
        wait_until(lambda: database.read(waking, soon_us=soon_us) == [(5,)])
        assert len(database.effects()) == 2
        clock.advance(10)  # from when it was parked, and not from the restart
        wait_until(lambda: len(database.effects()) == 7)
    assert sorted(event[0] for event in database.effects()) == [*("idle", *keys, "new")]
    assert database.read("SELECT version FROM inorder_states WHERE entity = 'idle'") == versions
    assert not again.errors


def test_a_state_of_another_pattern_is_in_the_way_of_its_own_key_only(database: Database) -> None:
    clock = ManualClock()
    with desk(database, clock) as here:
        here.publish([("foreign", 1, "p", 1)])
        here.consume(LastWriteWins())
        here.publish([("parked", 2)])
        with here.consumer(Resequencer(gap_timeout_seconds=30, when_full="gap")):
            here.drained()
            clock.advance(30)
            wait_until(lambda: numbers(database, "parked") == [2])
    assert "last_write_wins" in str(here.errors[0])


def test_parked_events_survive_a_restart_and_a_new_broker(database: Database) -> None:
    """ordering-guarantees Pattern 1: a new broker counts deliveries from the beginning, which makes none an old one."""
    for order in (True, False):
        key = f"ordered-{order}"
        with desk(database, enable_message_ordering=order) as here:
            here.publish([(key, number) for number in (5, 4, 3, 2)])
            here.consume(PARKING)
        with desk(database, enable_message_ordering=order) as again:
            again.publish([(key, 1), (key, 6)])
            again.consume(PARKING)
        assert numbers(database, key) == [1, 2, 3, 4, 5, 6]
        assert not here.errors + again.errors


def test_one_that_fails_when_it_is_due_holds_no_other_up(database: Database) -> None:
    clock = ManualClock()
    failing = True

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.key == "a" and failing:
            raise ZeroDivisionError

    with desk(database, clock) as here:
        here.publish([("a", 2), ("b", 2), ("c", 2)])
        with here.consumer(Resequencer(gap_timeout_seconds=30, when_full="gap"), apply=apply):
            here.drained()
            clock.advance(30)
            wait_until(lambda: numbers(database, "b") == numbers(database, "c") == [2])
            assert numbers(database, "a") == []
            failing = False
            wait_until(lambda: clock.advance(1) or numbers(database, "a") == [2])
    assert here.errors


def test_what_another_process_parked_is_found_though_it_died(database: Database) -> None:
    clock = ManualClock()
    pattern = Resequencer(gap_timeout_seconds=30, when_full="gap")
    with desk(database, clock) as ours, ours.consumer(pattern):
        ours.publish([("ours", 1)])
        ours.drained()
        with desk(database, clock) as theirs:
            theirs.publish([("theirs", 2)])
            theirs.consume(pattern)
        wait_until(lambda: clock.advance(5) or numbers(database, "theirs") == [2])


def test_a_tombstone_is_forgotten_in_its_time(database: Database) -> None:
    clock = ManualClock()
    pattern = LastWriteWins(tombstone_retention_seconds=60)
    with desk(database, clock) as here, here.consumer(pattern):
        here.publish([("a", 5, "p", None), ("b", 5, "p", 1)])
        here.drained()
        wait_until(lambda: clock.advance(30) or database.read("SELECT entity FROM inorder_states") == [("b",)])


class Forgetful:
    """Lets everything through, and keeps the number of a key unless it is 0."""

    def on_messages(self, states: Mapping[str, int], events: Iterable[Event], now_us: int) -> Batch[int]:
        taken = list(events)
        return Batch({event[0]: event[1] or None for event in taken}, [(RELEASED, event) for event in taken])

    def dump(self, state: int) -> bytes:
        return b"%d" % state

    def load(self, data: bytes) -> int:
        return int(data)


def test_what_a_pattern_forgets_may_never_have_been_known(database: Database) -> None:
    with desk(database) as here, here.consumer(Forgetful()):
        for events in ([("a", 0), ("b", 1)], [("a", 2), ("b", 0)], [("a", 3)], [("a", 0)], [("b", 5)]):
            here.publish(events)
            here.drained()
    assert database.read("SELECT entity, version, state FROM inorder_states") == [("b", 1, b"5")]
    assert (numbers(database, "a"), numbers(database, "b")) == ([0, 2, 3, 0], [1, 0, 5])
    assert here.errors == []


# -- races -----------------------------------------------------------------------------------------------


def add_one(event: Applied, raw: Any) -> None:
    """Read, change, write: what others write in between would be lost."""
    rows = run(raw, "SELECT total, seen FROM totals WHERE entity = :entity", entity=event.key)
    total, seen = rows[0] if rows else (0, "")
    run(
        raw,
        """INSERT INTO totals (entity, total, seen) VALUES (:entity, :total, :seen)
        ON CONFLICT (entity) DO UPDATE SET total = :total, seen = :seen""",
        entity=event.key,
        total=total + 1,
        seen=f"{seen} {event.fields[1]}",
    )


def test_consumers_that_race_on_one_entity_lose_no_update(database: Database) -> None:
    """ordering-guarantees Gotcha 1."""
    expected = " " + " ".join(str(number) for number in range(1, 101))
    with desk(database) as here:
        consumers = [here.consumer(PARKING, apply=add_one, batch=3, store=database.store()) for _ in range(4)]
        for consumer in consumers:
            consumer.open()
        here.publish([("a", number) for number in range(1, 101)])
        here.drained()
        for consumer in consumers:
            consumer.close()
    assert database.read("SELECT total, seen FROM totals") == [(100, expected)]
    assert not here.errors


def test_consumers_that_meet_on_many_entities_do_not_block_each_other(database: Database) -> None:
    """Their handlers write rows in whatever order events come: a deadlock is nobody's fault, and is tried again."""
    events = [(f"k{key}", number) for number in range(1, 11) for key in range(20)]
    with desk(database, dead_letter_policy=None) as here:
        here.publish(events[::2] + events[1::2])
        consumers = [here.consumer(PARKING, apply=add_one, batch=30, store=database.store()).open() for _ in range(3)]
        here.drained()
        for consumer in consumers:
            consumer.close()
    assert sorted(set(database.read("SELECT total FROM totals"))) == [(10,)]
    assert not [error for error in here.errors if "nack" in str(error)]


# -- sending back ----------------------------------------------------------------------------------------


def test_what_is_not_taken_is_nacked_and_comes_again(database: Database) -> None:
    """ordering-in-event-driven-systems Not critical."""
    attempts: list[int] = []

    def read_and_count(message: Message) -> tuple[Any, ...]:
        if read(message) == ("a", 2):
            attempts.append(message.delivery_attempt)
        return read(message)

    with desk(database, retry_policy=SOON) as here:
        here.publish([("a", 2)])
        with here.consumer(VersionGate(future="retry", key_ordered=False), read=read_and_count):
            wait_until(lambda: len(attempts) > 2)
            here.publish([("a", 1)])
            here.drained()
    assert numbers(database) == [1, 2]
    assert attempts == sorted(set(attempts))
    assert not here.errors


LIVELOCKS = {
    "resequencer, ordered": (Resequencer(when_full="retry"), {"enable_message_ordering": True, "retry_policy": SOON}),
    "versions, ordered": (VersionGate(future="retry", key_ordered=False), {"enable_message_ordering": True}),
    "resequencer, without a backoff": (Resequencer(when_full="retry"), {}),
    "versions, with a backoff of nothing": (
        VersionGate(future="retry", key_ordered=False),
        {"retry_policy": RetryPolicy(minimum_backoff=0)},
    ),
}


@pytest.mark.parametrize(("pattern", "options"), LIVELOCKS.values(), ids=LIVELOCKS.keys())
def test_what_might_wait_for_ever_is_refused_with_a_reason(tmp_path: Path, pattern: Any, options: Any) -> None:
    database = Database(str(tmp_path / "store.db"))
    with desk(database, **options) as here, pytest.raises(InvalidArgument) as refused:
        here.consumer(pattern)
    database.close()
    assert "may send a message back until another one has come" in str(refused.value)
    assert 'when_full="gap"' in str(refused.value)
    assert ("enable_message_ordering" if "enable_message_ordering" in options else "retry_policy") in str(refused.value)


# -- life ------------------------------------------------------------------------------------------------


def test_closing_in_the_middle_finishes_the_transaction_and_gives_the_rest_back(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        begun.set()
        assert go_on.wait(30)

    with desk(database, ack_deadline_seconds=600) as here:
        consumer = here.consumer(PARKING, apply=apply, batch=2).open()
        here.publish([(f"k{number}", 1) for number in range(10)])
        assert begun.wait(30)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        go_on.set()
        closing.join()
        assert len(database.effects()) == 2
        assert here.backlog == 8
        here.consume(PARKING)  # at once: nobody waits for a lease to run out
    assert sorted(event[0] for event in database.effects()) == [f"k{number}" for number in range(10)]


def test_a_handler_may_close_its_consumer(database: Database) -> None:
    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        consumer.close()

    with desk(database) as here:
        here.publish([("a", 1)])
        consumer = here.consumer(PARKING, apply=apply).open()
        here.drained()
        consumer.close()
    assert numbers(database) == [1]


def test_who_closes_a_consumer_that_its_handler_has_closed_waits_for_the_end(database: Database) -> None:
    closed, go_on = threading.Event(), threading.Event()

    def apply(event: Applied, raw: Any) -> None:
        consumer.close()
        closed.set()
        assert go_on.wait(30)
        write_down(event, raw)

    with desk(database) as here:
        here.publish([("a", 1)])
        consumer = here.consumer(PARKING, apply=apply).open()
        assert closed.wait(30)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        go_on.set()
        closing.join()
        assert numbers(database) == [1]
        assert here.backlog == 0


@pytest.mark.parametrize("what", ["connection", "broker"])
def test_a_broker_that_is_closed_in_the_middle_loses_nothing(database: Database, what: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        begun.set()
        assert go_on.wait(30)

    with desk(database) as here:
        consumer = here.consumer(PARKING, apply=apply).open()
        here.publish([("a", 1)])
        assert begun.wait(30)
        here.pubsub.close().result() if what == "connection" else here.queue.close()
        go_on.set()
        consumer.close()
        if what == "broker":  # who cannot ask whether a message is still his does not write
            assert numbers(database) == []
        else:
            assert numbers(database) == [1]
            assert here.queue.metrics("worker").backlog_messages == 0


def test_a_consumer_is_open_once_and_may_be_opened_again(database: Database) -> None:
    with desk(database) as here, here.consumer(PARKING) as consumer:
        with pytest.raises(FailedPrecondition, match="open already"):
            consumer.open()
        consumer.close()
        consumer.close()
        here.publish([("a", 1)])
        with consumer:
            here.drained()
    assert numbers(database) == [1]


def test_a_subscription_that_is_deleted_ends_the_consumer_and_is_told(database: Database) -> None:
    with desk(database) as here, here.consumer(PARKING):
        here.subscription.delete().result()
        wait_until(lambda: here.errors)
    assert "not found" in str(here.errors[0])


WRONG: tuple[dict[str, Any], ...] = (
    *({"name": name} for name in ("", 7, "a\0b", "\ud800")),
    {"store": "store.db"},
    {"on_gap": 7},
    {"on_error": "x"},
)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_a_consumer_for_good_is_told_and_logged(
    database: Database, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def apply(event: Applied, raw: Any) -> None:
        raise error

    with desk(database) as here:
        here.publish([("a", 1)])
        with here.consumer(PARKING, apply=apply):
            wait_until(lambda: here.errors)
        assert here.backlog == 1
    assert here.errors == [error]
    assert f"consumer 'worker' has ended: {error!r}" in caplog.text


def test_what_a_consumer_is_made_of_is_checked(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "store.db"))
    with desk(database) as here:
        for wrong in ({"read": "x"}, {"apply": None}, {"apply": "x"}, {"apply_all": write_down}, {"batch": 0}, *WRONG):
            with pytest.raises(InvalidArgument, match=next(iter(wrong))):
                here.consumer(PARKING, **wrong)
        for wrong_pattern in (None, "x", Resequencer):
            with pytest.raises(InvalidArgument, match="pattern: "):
                here.consumer(wrong_pattern)
        nobody = here.pubsub.subscription("nobody")
        with pytest.raises(SubscriptionNotFound):
            Consumer(nobody, PARKING, store=database.store(), read=read, apply=write_down)
        no_subscription: Any
        for no_subscription in ("history", here.topic):
            with pytest.raises(InvalidArgument, match="subscription: a Subscription, as "):
                Consumer(no_subscription, PARKING, store=database.store(), read=read, apply=write_down)
    database.close()


async def awaited(*_: Any) -> None: ...


def generated(*_: Any) -> Iterator[None]:
    yield


async def generated_and_awaited(*_: Any) -> AsyncIterator[None]:
    yield


class Awaited:
    async def __call__(self, *_: Any) -> None: ...


@pytest.mark.parametrize("lazy", [awaited, generated, generated_and_awaited, Awaited(), partial(awaited, 1)])
@pytest.mark.parametrize("what", ["read", "apply", "apply_all", "on_gap"])
def test_a_function_that_does_nothing_yet_when_it_is_called_is_refused(tmp_path: Path, what: str, lazy: Any) -> None:
    database = Database(str(tmp_path / "store.db"))
    given = {"apply": None, what: lazy} if what == "apply_all" else {what: lazy}
    with desk(database) as here, pytest.raises(InvalidArgument, match=f"{what}: a def that does its work and returns"):
        here.consumer(PARKING, **given)
    database.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lazy", [awaited, generated, generated_and_awaited])
@pytest.mark.parametrize("what", ["apply", "apply_all", "on_gap"])
def test_an_effect_that_was_not_done_when_the_call_returned_is_not_acked(
    database: Database, what: str, lazy: Any
) -> None:
    """A lambda does not tell what it will return."""
    given = {"apply": None if what == "apply_all" else write_down, what: lambda *given: lazy(*given)}
    with desk(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish([("a", number) for number in ((1,) if what != "on_gap" else (2, 4))])
        with here.consumer(Resequencer(when_full="gap", capacity=1), batch=1, **given):
            wait_until(lambda: here.errors)
        assert here.backlog == 1
    assert f"{what}: it returned a" in str(here.errors[0])
    assert numbers(database) == []


def test_what_runs_by_itself_may_be_returned(database: Database) -> None:
    """As a publish does."""
    with desk(database) as here:
        other = here.pubsub.topic("other").create().result()
        here.publish([("a", 1)])
        here.consume(PARKING, apply=lambda event, _: other.publish_message(event.data))
    assert not here.errors


def test_an_error_handler_that_fails_is_logged_and_the_consumer_goes_on(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[int] = []

    def apply(event: Applied, raw: Any) -> None:
        if not failed:
            failed.append(1)
            raise ZeroDivisionError
        write_down(event, raw)

    def on_error(error: BaseException, messages: object) -> None:
        raise LookupError("no pager")

    with desk(database) as here:
        here.publish([("a", 1)])
        here.consume(PARKING, apply=apply, on_error=on_error)
    assert numbers(database) == [1]
    assert "the error handler of consumer 'worker' failed" in caplog.text


# -- troubles of the database ----------------------------------------------------------------------------


def strict(here: Desk) -> None:
    """Whoever blames a message for the database loses it to the dead letters."""
    here.pubsub.topic("dead").create().result()
    here.subscription.set_options(dead_letter_policy=DeadLetterPolicy("dead", 5)).result()


def test_while_the_store_is_closed_messages_wait_and_are_given_back(database: Database) -> None:
    clock = ManualClock()
    with desk(database, clock) as here:
        strict(here)
        store = database.store()
        consumer = here.consumer(PARKING, store=store).open()
        store.close()
        here.publish([("a", 1), ("a", 2)])
        wait_until(lambda: clock.advance(1) or len(here.errors) > 10)
        consumer.close()
        assert here.backlog == 2
        here.consume(PARKING)
    assert numbers(database) == [1, 2]


def test_a_database_that_is_locked_is_waited_for(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "store.db"))
    clock = ManualClock()
    with desk(database, clock) as here:
        strict(here)
        store = database.store(busy_seconds=0.01)
        blocker = sqlite3.connect(database.place, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with here.consumer(PARKING, store=store):
            here.publish([("a", 1), ("a", 2)])
            wait_until(lambda: clock.advance(1) or len(here.errors) > 6)
            assert {type(error) for error in here.errors} == {sqlite3.OperationalError}
            blocker.execute("ROLLBACK")
            wait_until(lambda: clock.advance(1) or not here.backlog)
        blocker.close()
    assert numbers(database) == [1, 2]
    database.close()


@pytest.mark.parametrize("batch", [100, 10], ids=["at once", "beside"])
def test_a_disk_that_is_full_is_waited_for(small_disk: Path, batch: int) -> None:
    clock = ManualClock()
    database = Database(str(small_disk / "store.db"))
    with desk(database, clock) as here:
        strict(here)
        store = database.store()
        filler = small_disk / "filler"
        with here.consumer(PARKING, store=store, batch=batch), filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            here.publish([(f"k{number}", 1, "x" * 2_000) for number in range(30)])
            wait_until(lambda: clock.advance(1) or len(here.errors) > 6)
            assert here.backlog > 0
            file.truncate(0)
            wait_until(lambda: clock.advance(1) or not here.backlog)
        assert sorted(event[0] for event in database.effects()) == sorted(f"k{number}" for number in range(30))
    database.close()


def test_a_commit_that_fails_leaves_the_store_usable(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "store.db")
    with store.transaction() as connection:
        connection.raw.execute("CREATE TABLE lots (data BLOB)")

    def write_much() -> None:
        with store.transaction() as connection:
            connection.raw.execute("INSERT INTO lots VALUES (zeroblob(1000000))")

    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="full") as raised:
            write_much()
        assert store.trouble(raised.value) == "wait"
    with store.transaction() as connection:
        connection.raw.execute("INSERT INTO lots VALUES (x'00')")
    store.close()


def test_a_postgresql_that_ends_our_connections_is_waited_for(postgres_url: str) -> None:
    from ... import postgres

    with postgres.schema(postgres_url) as url:
        database = Database(url)
        clock = ManualClock()
        ended = threading.Event()

        def apply(event: Applied, raw: Any) -> None:
            if not ended.is_set():
                ended.set()
                (mine,) = run(raw, "SELECT pg_backend_pid()")[0]
                database.read("SELECT pg_terminate_backend(:pid)", pid=mine)
            write_down(event, raw)

        with desk(database, clock) as here:
            strict(here)
            with here.consumer(PARKING, apply=apply):
                here.publish([("a", 1), ("a", 2)])
                wait_until(lambda: clock.advance(1) or not here.backlog)
        assert numbers(database) == [1, 2]
        assert here.errors
        database.close()


def test_a_handler_that_commits_is_told_not_to(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "store.db"))

    def apply(event: Applied, raw: Any) -> None:
        raw.commit()

    with desk(database, retry_policy=RetryPolicy(minimum_backoff=600)) as here:
        here.publish([("a", 1)])
        with here.consumer(PARKING, apply=apply):
            wait_until(lambda: here.errors)
    assert "neither commit nor roll back" in str(here.errors[0])
    database.close()


@pytest.mark.parametrize("together", [False, True])
def test_what_a_handler_undoes_by_mistake_is_not_taken_for_done(database: Database, together: bool) -> None:
    """What comes then is committed by itself: states were written without the effects that were undone."""
    slips = ["once"]
    statement = "INSERT OR ROLLBACK INTO inorder_quarantine (consumer) VALUES (NULL)"
    if database.place.startswith("postgresql"):
        statement = "ROLLBACK"

    def slip(raw: Any) -> None:
        if slips:
            slips.pop()
            with contextlib.suppress(Exception):
                run(raw, statement)

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.key == "b":
            slip(raw)

    def apply_all(events: Sequence[Applied], raw: Any) -> None:
        for event in events:
            write_down(event, raw)
        slip(raw)

    with desk(database, enable_message_ordering=True) as here:
        here.publish([("a", 1), ("b", 1), ("c", 1)])
        here.consume(PARKING, apply=None if together else apply, apply_all=apply_all if together else None)
    assert sorted(database.effects()) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_store_does_not_nest_transactions(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    with store.transaction(), pytest.raises(FailedPrecondition, match="use its connection"), store.transaction():
        pass
    store.close()


def test_ids_that_were_seen_are_remembered_over_restarts(database: Database) -> None:
    for _ in range(2):
        with desk(database) as here:
            here.publish([("a", "id-1"), ("a", "id-2"), ("a", "id-1")])
            here.consume(DeduplicateIds())
    assert [event[1] for event in database.effects()] == ["id-1", "id-2"]
