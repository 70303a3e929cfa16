"""The version gate: an entity goes forward only, whatever the order, and never waits for what waits behind it."""

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import FailedPrecondition, InvalidArgument, ParkingFull
from inorder.patterns.parking import Line
from inorder.patterns.step import (
    DUPLICATE,
    GAP,
    PARKED,
    RELEASED,
    RETRY,
    SETTLED,
    STALE,
    Event,
    Missing,
    fold,
    fold_timed,
)
from inorder.patterns.versioning import Versioned, VersionGate

SECOND = 1_000_000

EVERY = VersionGate()
RETRYING = VersionGate(future="retry", key_ordered=False)
LATEST = VersionGate(mode="latest_only")


def updates(versions: Iterable[int]) -> list[Event]:
    return [("p", version, f"state {version}") for version in versions]


def versions(events: Iterable[Event]) -> list[int]:
    return [event[1] for event in events]


def test_the_next_version_is_applied_the_stale_one_ignored_and_the_future_one_parked() -> None:
    """ordering-in-event-driven-systems Entity versioning: the three branches of the check."""
    at_five = EVERY.start(5)
    assert EVERY.on_message(at_five, ("p", 6), 0).emit == ((RELEASED, ("p", 6)),)
    assert EVERY.on_message(at_five, ("p", 5), 0).emit == ((DUPLICATE, ("p", 5)),)
    assert EVERY.on_message(at_five, ("p", 4), 0).emit == ((STALE, ("p", 4)),)
    assert EVERY.on_message(at_five, ("p", 7), 0).emit == ((PARKED, ("p", 7)),)


@pytest.mark.parametrize("order", [(3, 0), (0, 3, 0), (0, 1, 0)])
def test_a_version_below_the_first_was_never_applied_so_it_is_no_duplicate(order: tuple[int, ...]) -> None:
    """Also if the entity is known, because a future version of it is parked."""
    told = [fate for _, fate, event in fold(EVERY, updates(order)).emit if event[1] == 0]
    assert told == [STALE] * order.count(0)


def test_versions_are_applied_one_by_one_in_whatever_order_they_come() -> None:
    """ordering-in-event-driven-systems Entity versioning: on the brute-force model, each version once, in order."""
    for history in ((1, 2, 3, 4, 5), (1, 2, 2, 3), (2, 3, 4), (1, 3, 4), (1, 1, 1)):
        in_a_row = [version for version in range(1, 9) if set(range(1, version + 1)) <= set(history)]
        for order in set(permutations(history)):
            folded = fold(EVERY, updates(order))
            assert versions(folded.applied()) == in_a_row
            assert folded.states["p"].expected == len(in_a_row) + 1


def test_an_older_state_never_overwrites_a_newer_one() -> None:
    """ordering-in-event-driven-systems Critical: after every prefix of every order, the newest seen is applied."""
    for order in permutations((1, 2, 3, 4, 5)):
        for length in range(1, 6):
            folded = fold(LATEST, updates(order[:length]))
            applied = versions(folded.applied())
            assert applied == sorted(applied)
            assert applied[-1] == max(order[:length])
            assert len(folded.of(*SETTLED)) == length  # latest-only never makes an event wait


def test_a_future_version_that_is_retried_is_applied_when_the_one_before_has_come() -> None:
    """ordering-in-event-driven-systems Not critical: error, retry, and then it succeeds."""
    for order in permutations(updates((1, 2, 3))):
        queue, states, applied = list(order), {}, []
        for _ in range(20):
            if not queue:
                break
            event = queue.pop(0)
            folded = fold(RETRYING, [event], states=states)
            states = folded.states
            applied += folded.applied()
            queue += folded.of(RETRY)  # it comes again, behind what is there: the queue keeps no order
        assert versions(applied) == [1, 2, 3]


def test_a_retry_on_a_key_ordered_subscription_is_refused_as_it_would_never_end() -> None:
    """ordering-in-event-driven-systems Entity versioning: nack and retry, where that cannot work."""
    with pytest.raises(InvalidArgument, match="future: 'retry' needs key_ordered=False"):
        VersionGate(future="retry")
    for order in permutations(updates((1, 2, 3))):  # parked, the same history ends on such a subscription
        assert versions(fold(EVERY, order).applied()) == [1, 2, 3]


def test_a_full_parking_retries_on_a_key_ordered_subscription_only_if_a_timeout_makes_room() -> None:
    with pytest.raises(InvalidArgument, match="when_full: 'retry' needs key_ordered=False or gap_timeout_seconds"):
        VersionGate(when_full="retry")
    gate = VersionGate(when_full="retry", capacity=1, gap_timeout_seconds=1)
    folded = fold_timed(gate, [(0, ("p", 3)), (0, ("p", 4)), (2 * SECOND, ("p", 4))])
    assert folded.of(RETRY) == [("p", 4)]
    assert versions(folded.applied()) == [3, 4]


def test_a_retried_version_leaves_nothing_behind() -> None:
    step = RETRYING.on_message(RETRYING.start(1), ("p", 3), 0)
    assert step.emit == ((RETRY, ("p", 3)),)
    assert step.state == RETRYING.start(1)
    assert step.wake_at_us is None


def test_missing_versions_are_given_up_after_the_timeout_and_told() -> None:
    """ordering-guarantees Gotcha 4: a version that became a dead letter stops its entity for so long, and no longer."""
    gate = VersionGate(gap_timeout_seconds=5)
    folded = fold_timed(gate, [(0, ("p", 1)), (SECOND, ("p", 4)), (7 * SECOND, ("p", 3))], until_us=60 * SECOND)
    assert folded.emit[2:] == [
        (6 * SECOND, GAP, Missing("p", 2, 3, "timeout")),
        (6 * SECOND, RELEASED, ("p", 4)),
        (7 * SECOND, STALE, ("p", 3)),
    ]


def test_an_unknown_entity_is_at_the_version_before_the_first() -> None:
    assert fold(EVERY, [("p", 0)]).of(STALE) == [("p", 0)]  # which nobody has applied before
    assert fold(VersionGate(first_version=0), [("p", 1), ("p", 0)]).applied() == [("p", 0), ("p", 1)]
    assert fold(VersionGate(first_version=5), [("p", 4), ("p", 5)]).applied() == [("p", 5)]
    assert fold(VersionGate(mode="latest_only"), [("p", 7)]).applied() == [("p", 7)]


def test_entities_wait_for_themselves_only() -> None:
    folded = fold(EVERY, [("p", 2), ("q", 1), ("q", 2)])
    assert folded.applied() == [("q", 1), ("q", 2)]


def test_parking_is_bounded() -> None:
    retrying = VersionGate(capacity=1, when_full="retry", key_ordered=False)
    assert fold(retrying, updates((3, 4))).of(RETRY) == updates((4,))
    with pytest.raises(ParkingFull):
        fold(VersionGate(capacity=1), updates((3, 4)))
    assert versions(fold(VersionGate(capacity=1, when_full="gap"), updates((3, 4))).applied()) == [3, 4]


@given(
    st.sampled_from([EVERY, RETRYING, LATEST, VersionGate(capacity=2, when_full="gap", gap_timeout_seconds=1)]),
    st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 9)), max_size=40),
)
def test_batches_do_what_single_steps_do_and_nothing_goes_back(gate: VersionGate, events: list[Event]) -> None:
    single: dict[str, Line] = {}
    one_by_one: list[Any] = []
    for event in events:
        step = gate.on_message(single.get(event[0]), event, 0)
        assert step.state is not None
        single[event[0]] = step.state
        one_by_one += step.emit
    batch = gate.on_messages({}, events, 0)
    assert (batch.emit, batch.states) == (one_by_one, single)
    for key in "pq":
        applied = [event[1] for fate, event in one_by_one if fate == RELEASED and event[0] == key]
        assert applied == sorted(set(applied))


def test_a_state_survives_as_bytes() -> None:
    state = fold(VersionGate(gap_timeout_seconds=1), [("p", 1), Versioned("p", 3, {"name": "x"})]).states["p"]
    assert VersionGate().load(VersionGate().dump(state)) == state


def test_what_is_parked_is_not_forgotten_by_a_change_of_mode() -> None:
    parked = EVERY.dump(fold(EVERY, updates((3,))).states["p"])
    with pytest.raises(FailedPrecondition, match="1 events are parked, which mode='latest_only' would never release"):
        LATEST.load(parked)
    assert LATEST.load(EVERY.dump(EVERY.start(5))) == EVERY.start(5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "latest"}, "mode: one of 'every', 'latest_only', not 'latest'"),
        ({"future": "nack"}, "future: one of 'park', 'retry', not 'nack'"),
        ({"key_ordered": 1}, "key_ordered: True or False, not 1"),
        ({"first_version": -1}, "first_version: a whole number of at least 0, not -1"),
        ({"capacity": 1.5}, "capacity: a whole number of at least 1, not 1.5"),
        ({"mode": "latest_only", "gap_timeout_seconds": 1}, "gap_timeout_seconds: 1 needs mode='every'"),
        ({"future": "retry", "key_ordered": False, "gap_timeout_seconds": 1}, "needs mode='every' and future='park'"),
    ],
)
def test_a_wrong_option_is_named_with_its_limit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        VersionGate(**options)


@pytest.mark.parametrize("version", [-1, False, 2.0, None])
def test_an_entity_starts_at_a_whole_number(version: Any) -> None:
    with pytest.raises(InvalidArgument, match="version: a whole number of at least 0"):
        EVERY.start(version)
