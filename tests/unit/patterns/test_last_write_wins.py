"""Last write wins against the plain maximum, over every order of small histories and over generated larger ones."""

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import InvalidArgument, InvalidEvent
from inorder.options import MAX_WHOLE
from inorder.patterns.encoding import digest, dump
from inorder.patterns.hybrid_clock import HybridLogicalClock
from inorder.patterns.last_write_wins import LastWriteWins, Newest, Write
from inorder.patterns.step import DUPLICATE, QUARANTINED, RELEASED, STALE, Event, fold, fold_timed

SECOND = 1_000_000
DAY = 86_400 * SECOND
PATTERN = LastWriteWins(max_drift_seconds=None)


def table(events: Iterable[Event]) -> dict[str, Any]:
    """What a table holds after the writes that won have been written to it, in their order."""
    rows = {key: value for key, _, _, value, *_ in events}
    return {key: value for key, value in rows.items() if value is not None}


def maxima(events: Sequence[Event]) -> dict[str, Any]:
    """The model: of each key, the greatest write by time, producer, being a delete, and content."""
    greatest: dict[str, tuple[Any, Any]] = {}
    for key, time, producer, value, *_ in events:
        rank = (time, producer, value is None, "" if value is None else digest(value))
        greatest[key] = max(greatest.get(key, ((-1,), None)), (rank, value), key=lambda one: one[0])
    return {key: value for key, (_, value) in greatest.items() if value is not None}


HISTORIES: list[list[Event]] = [
    [("a", 1, "p", b"1"), ("a", 2, "p", b"2"), ("a", 3, "p", b"3"), ("a", 3, "p", b"3"), ("a", 4, "p", b"4")],
    [("a", 1, "p", b"x"), ("a", 1, "q", b"y"), ("a", 1, "q", b"z"), ("a", 1, "p", None), ("a", 0, "q", b"w")],
    [("a", 1, "p", b"1"), ("a", 2, "p", None), ("a", 1, "q", b"2"), ("a", 2, "p", b"3"), ("b", 1, "p", b"1")],
    [("a", 5, "", {"n": 1}), ("a", 5, "", {"n": 2}), ("a", 5, "", "text"), ("a", 5, "", 7)],
]


@pytest.mark.parametrize("history", HISTORIES, ids=["updates", "ties", "deletes", "contents"])
def test_every_order_ends_with_the_greatest_write(history: list[Event]) -> None:
    """ordering-guarantees Pattern 3 and How 6: messages in any order converge on the correct state."""
    for order in permutations(history):
        for length in range(1, len(order) + 1):
            assert table(fold(PATTERN, order[:length]).applied()) == maxima(order[:length])


writes = st.tuples(
    st.sampled_from("ab"),
    st.integers(0, 4),
    st.sampled_from("pq"),
    st.none() | st.binary(max_size=1) | st.integers(0, 2),
)


@given(st.lists(writes, max_size=30), st.randoms())
def test_larger_histories_end_with_the_greatest_write_in_whatever_order(history: list[Event], random: Any) -> None:
    """ordering-guarantees How 6: commutative and associative."""
    shuffled = history.copy()
    random.shuffle(shuffled)
    one, other = fold(PATTERN, history), fold(PATTERN, shuffled)
    assert table(one.applied()) == table(other.applied()) == maxima(history)
    assert one.states == other.states


@given(st.lists(writes, max_size=20))
def test_to_see_everything_again_changes_nothing(history: list[Event]) -> None:
    """ordering-guarantees Pattern 3: idempotent."""
    once = fold(PATTERN, history)
    again = fold(PATTERN, history, states=once.states)
    assert again.states == once.states
    assert again.applied() == []


@given(st.lists(writes, max_size=30), st.integers(1, 7))
def test_batches_do_what_single_steps_do(history: list[Event], size: int) -> None:
    single: dict[str, Newest] = {}
    one_by_one: list[Any] = []
    for event in history:
        step = PATTERN.on_message(single.get(event[0]), event, 7)
        assert step.state is not None
        single[event[0]] = step.state
        one_by_one += step.emit
    states: dict[str, Newest] = {}
    together: list[Any] = []
    for start in range(0, len(history), size):
        batch = PATTERN.on_messages(states, history[start : start + size], 7)
        states |= batch.states  # type: ignore[arg-type]
        together += batch.emit
        for key, state in batch.states.items():
            assert state is not None
            if state.deleted:
                assert batch.wakes[key] == PATTERN.on_timer(state, 0).wake_at_us
    assert (together, states) == (one_by_one, single)


def test_a_stale_write_is_skipped_and_the_same_write_is_a_duplicate() -> None:
    """ordering-guarantees Pattern 3: newer than stored updates, older is skipped."""
    events = [("a", 5, "p", b"new"), ("a", 4, "p", b"old"), ("a", 5, "p", b"new")]
    assert [fate for _, fate, _ in fold(PATTERN, events).emit] == [RELEASED, STALE, DUPLICATE]


def test_a_tie_never_depends_on_who_came_first() -> None:
    """ordering-guarantees Gotcha 5: two producers whose clocks show the same time."""
    ties = [("a", 5, "p", b"1"), ("a", 5, "p", b"2"), ("a", 5, "q", b"3"), ("a", 5, "q", b"4")]
    assert len({tuple(table(fold(PATTERN, order).applied()).items()) for order in permutations(ties)}) == 1


def test_of_a_delete_and_an_update_of_one_moment_the_delete_wins() -> None:
    for order in permutations([("a", 5, "p", None), ("a", 5, "p", b"x"), ("a", 5, "p", b"y")]):
        assert table(fold(PATTERN, order).applied()) == {}


def test_a_late_update_does_not_bring_back_what_was_deleted() -> None:
    folded = fold_timed(PATTERN, [(0, ("a", 5, "p", None)), (6 * DAY, ("a", 4, "p", b"old"))])
    assert folded.of(STALE) == [("a", 4, "p", b"old")]
    assert folded.states["a"].deleted


def test_a_newer_update_brings_back_what_was_deleted() -> None:
    folded = fold_timed(PATTERN, [(0, ("a", 5, "p", None)), (1, ("a", 6, "p", b"new"))], until_us=30 * DAY)
    assert table(folded.applied()) == {"a": b"new"}
    assert not folded.states["a"].deleted


def test_a_tombstone_is_kept_for_its_time_and_then_forgotten() -> None:
    pattern = LastWriteWins(tombstone_retention_seconds=10)
    deleted = ("a", 5, "p", None)
    kept = fold_timed(pattern, [(0, deleted)], until_us=10 * SECOND - 1)
    assert kept.states
    assert fold_timed(pattern, [(0, deleted)], until_us=10 * SECOND).states == {}
    revived = fold_timed(pattern, [(0, deleted), (11 * SECOND, ("a", 4, "p", b"old"))])
    assert table(revived.applied()) == {"a": b"old"}  # what the bound means


def test_a_tombstone_can_be_kept_for_ever() -> None:
    pattern = LastWriteWins(tombstone_retention_seconds=None)
    assert fold_timed(pattern, [(0, ("a", 5, "p", None))], until_us=10**17).states


def test_a_write_from_the_future_is_quarantined_and_changes_nothing() -> None:
    """ordering-guarantees Gotcha 5: a clock that is wrong by an hour does not win for an hour."""
    pattern = LastWriteWins(max_drift_seconds=60)
    now_us = 10**15
    folded = fold(pattern, [("a", now_us + 61 * SECOND, "p", b"wrong"), ("a", now_us, "p", b"right")], now_us=now_us)
    assert folded.of(QUARANTINED) == [("a", now_us + 61 * SECOND, "p", b"wrong")]
    assert table(folded.applied()) == {"a": b"right"}
    within = fold(pattern, [("a", now_us + 60 * SECOND, "p", b"ahead")], now_us=now_us)
    assert table(within.applied()) == {"a": b"ahead"}


def test_hybrid_clocks_are_ordered_as_they_were_caused_and_bounded_by_their_wall_time() -> None:
    """ordering-guarantees Gotcha 5: a correction on a slow machine wins over what it corrects on a fast one."""
    pattern = LastWriteWins(stamps="hybrid", max_drift_seconds=1)
    now_us = 10**15
    fast = HybridLogicalClock().send(now_us + 900_000)
    slow = HybridLogicalClock().receive(fast, now_us).send(now_us)
    wrong = HybridLogicalClock().send(now_us + 2 * SECOND)
    events = [("a", slow.encode(), "slow", b"corrected"), ("a", fast.encode(), "fast", b"typo")]
    for order in permutations(events):
        assert table(fold(pattern, order, now_us=now_us).applied()) == {"a": b"corrected"}
    assert fold(pattern, [("a", wrong.encode(), "p", b"x")], now_us=now_us).of(QUARANTINED)


@pytest.mark.parametrize(
    "event",
    [
        ("a", -1, "p", b""),
        ("a", True, "p", b""),
        ("a", 1.5, "p", b""),
        ("a", None, "p", b""),
        ("a", 2**63, "p", b""),
        ("a", 1, None, b""),
        ("a", 1, 7, b""),
        ("a", 1, "p"),
        ("", 1, "p", b""),
    ],
    ids=repr,
)
def test_a_write_that_cannot_be_ranked_is_refused(event: Any) -> None:
    for state in ({}, {"a": Newest(0, "p", False, "", 0)}):
        with pytest.raises(InvalidEvent):
            PATTERN.on_message(state.get("a"), event, 0)
        with pytest.raises(InvalidEvent):
            PATTERN.on_messages(state, [event], 0)


def test_a_state_survives_as_bytes() -> None:
    state = fold(PATTERN, [Write("a", 5, "p", b"x")], now_us=3).states["a"]
    assert PATTERN.load(PATTERN.dump(state)) == state


@pytest.mark.parametrize("producer", ["p", "", 'say "x"', "\\", "a\nb\x00", "größe", "\u2028", "😀"])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_state_is_written_as_that_of_every_pattern(producer: str, deleted: bool) -> None:
    state = Newest(MAX_WHOLE, producer, deleted, "" if deleted else digest(b"x"), 7)
    assert PATTERN.dump(state) == dump(PATTERN.STATE, state)
    assert PATTERN.load(PATTERN.dump(state)) == state


def test_a_producer_that_no_store_can_take_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not a plain value"):
        PATTERN.dump(Newest(1, "\ud800", False, "", 0))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stamps": "lamport"}, "stamps: one of 'microseconds', 'hybrid', not 'lamport'"),
        ({"max_drift_seconds": -1}, "max_drift_seconds: at least 0, up to 31536000, not -1"),
        ({"tombstone_retention_seconds": 0}, "tombstone_retention_seconds: above 0, up to 315360000, not 0"),
    ],
)
def test_a_wrong_option_is_named_with_its_limit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        LastWriteWins(**options)


def test_the_winner_of_parts_is_the_winner_of_all() -> None:
    """Associative: replicas may fold any parts of a history, one after the other."""
    history = HISTORIES[2]
    for cut in range(len(history) + 1):
        first = fold(PATTERN, history[:cut])
        assert fold(PATTERN, history[cut:], states=first.states).states == fold(PATTERN, history).states
