"""Deduplication against a list of everything that ever came: exactly what the bounds say is recognised."""

from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import ForeignState, InvalidArgument, InvalidEvent
from inorder.patterns.deduplication import MAX_WINDOW, DeduplicateIds, DeduplicateSequences
from inorder.patterns.encoding import dump
from inorder.patterns.step import DUPLICATE, LATE, RELEASED, STALE, Event, fold, fold_timed

SECOND = 1_000_000


def fates(emit: list[tuple[int, str, Any]]) -> list[str]:
    return [fate for _, fate, _ in emit]


def by_the_words(arrivals: list[tuple[int, Event]], max_ids: int, max_age_us: int) -> list[str]:
    """The docstring, applied to the list of all first sights."""
    firsts: list[tuple[int, str]] = []
    told = []
    for now_us, (_, name) in arrivals:
        places = [place for place, (_, one) in enumerate(firsts) if one == name]
        recognised = places and now_us - firsts[places[-1]][0] < max_age_us and len(firsts) - 1 - places[-1] < max_ids
        told.append(DUPLICATE if recognised else RELEASED)
        if not recognised:
            firsts.append((now_us, name))
    return told


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdef")), max_size=40),
)
def test_a_repeated_id_is_recognised_within_the_bounds_and_not_beyond(
    max_ids: int, age: int, history: list[tuple[int, str]]
) -> None:
    now_us, arrivals = 0, []
    for pause, name in history:
        now_us += pause * SECOND
        arrivals.append((now_us, ("k", name)))
    pattern = DeduplicateIds(max_ids=max_ids, max_age_seconds=age)
    assert fates(fold_timed(pattern, arrivals).emit) == by_the_words(arrivals, max_ids, age * SECOND)


def test_an_id_that_is_new_again_is_the_newest() -> None:
    pattern = DeduplicateIds(max_ids=2, max_age_seconds=5)
    history = [(0, "a"), (4, "b"), (6, "a"), (7, "c"), (8, "a")]  # at 6 the first "a" is too old, at 7 "b" has to go
    folded = fold_timed(pattern, [(second * SECOND, ("k", name)) for second, name in history])
    assert fates(folded.emit) == [RELEASED, RELEASED, RELEASED, RELEASED, DUPLICATE]


def test_every_order_of_repeated_ids_lets_each_through_once() -> None:
    """ordering-guarantees Pattern 1: a duplicate is acked and not processed, whenever it comes."""
    for order in permutations("aabbc"):
        folded = fold(DeduplicateIds(), [("k", name) for name in order])
        assert [event[1] for event in folded.applied()] == list(dict.fromkeys(order))


def test_a_key_is_forgotten_when_nothing_of_it_is_recognised_any_more() -> None:
    pattern = DeduplicateIds(max_age_seconds=10)
    arrivals = [(0, ("k", "a")), (4 * SECOND, ("k", "b"))]
    assert list(fold_timed(pattern, arrivals, until_us=14 * SECOND - 1).states) == ["k"]
    assert fold_timed(pattern, arrivals, until_us=14 * SECOND).states == {}


def sequences_by_the_words(numbers: tuple[int, ...], window: int) -> list[str]:
    seen: set[int] = set()
    told: list[str] = []
    for number in numbers:
        if seen and number <= max(seen) - window:
            told.append(STALE)
        else:
            told.append(DUPLICATE if number in seen else RELEASED)
            seen.add(number)
    return told


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_every_order_of_numbers_is_told_apart_within_the_window(window: int) -> None:
    for numbers in product(range(5), repeat=5):
        folded = fold(DeduplicateSequences(window=window), [("k", "p", number) for number in numbers])
        assert fates(folded.emit) == sequences_by_the_words(numbers, window)


@given(st.integers(1, 300), st.lists(st.integers(0, 1000), max_size=60))
def test_larger_sequences_are_told_apart_within_the_window(window: int, numbers: list[int]) -> None:
    folded = fold(DeduplicateSequences(window=window), [("k", "p", number) for number in numbers])
    assert fates(folded.emit) == sequences_by_the_words(tuple(numbers), window)


def test_what_a_smaller_window_has_left_behind_is_not_taken_for_new_by_a_larger_one() -> None:
    small, large = DeduplicateSequences(window=4), DeduplicateSequences(window=100)
    states = fold(small, [("k", "p", number) for number in (1, 2, 3, 8, 10)]).states
    stored = {key: large.load(small.dump(state)) for key, state in states.items()}
    later = [("k", "p", number) for number in (1, 6, 7, 8, 9, 90, 5, 50)]
    wanted = [STALE, STALE, RELEASED, DUPLICATE, RELEASED, RELEASED, STALE, RELEASED]
    assert fates(fold(large, later, states=stored).emit) == wanted


def test_what_is_too_old_to_be_told_apart_can_be_let_through() -> None:
    events = [("k", "p", 9), ("k", "p", 1)]
    assert fates(fold(DeduplicateSequences(window=4, too_old="emit"), events).emit) == [RELEASED, LATE]


def test_producers_and_keys_count_for_themselves() -> None:
    events = [("k", "p", 1), ("k", "q", 1), ("l", "p", 1), ("k", "p", 1)]
    assert fates(fold(DeduplicateSequences(), events).emit) == [RELEASED, RELEASED, RELEASED, DUPLICATE]


def test_a_producer_may_be_forgotten_within_the_microsecond() -> None:
    brief = DeduplicateSequences(max_age_seconds=1e-7)
    assert fates(fold(brief, [("k", "p", 1)] * 2).emit) == [RELEASED, RELEASED]


def test_a_producer_is_forgotten_by_count_and_by_time() -> None:
    few = DeduplicateSequences(max_producers=2)
    events = [("k", producer, 1) for producer in ("p", "q", "p", "r", "p", "q")]
    assert fates(fold(few, events).emit) == [RELEASED, RELEASED, DUPLICATE, RELEASED, DUPLICATE, RELEASED]
    brief = DeduplicateSequences(max_age_seconds=5)
    arrivals = [(0, ("k", "p", 1)), (4 * SECOND, ("k", "p", 1)), (9 * SECOND - 1, ("k", "p", 1))]
    assert fates(fold_timed(brief, arrivals).emit) == [RELEASED, DUPLICATE, DUPLICATE]
    late = (14 * SECOND - 1, ("k", "p", 1))
    assert fates(fold_timed(brief, [*arrivals, late]).emit)[-1] == RELEASED
    assert fold_timed(brief, arrivals, until_us=15 * SECOND).states == {}


def test_a_producer_that_was_silent_for_long_is_forgotten_also_beside_others() -> None:
    brief = DeduplicateSequences(max_age_seconds=5)
    arrivals = [
        (0, ("k", "p", 1)),
        (3 * SECOND, ("k", "q", 1)),
        (6 * SECOND, ("k", "q", 2)),
        (6 * SECOND, ("k", "p", 1)),
    ]
    assert fates(fold_timed(brief, arrivals).emit)[-1] == RELEASED


PATTERNS: list[Any] = [
    (DeduplicateIds(max_ids=2, max_age_seconds=3), lambda key, number: (key, f"id {number}")),
    (DeduplicateSequences(window=3, max_producers=1), lambda key, number: (key, f"p{number % 2}", number)),
]


@pytest.mark.parametrize(("pattern", "make"), PATTERNS, ids=["ids", "sequences"])
@given(history=st.lists(st.tuples(st.sampled_from("kl"), st.integers(0, 6)), max_size=30), size=st.integers(1, 9))
def test_batches_do_what_single_steps_do(pattern: Any, make: Any, history: list[tuple[str, int]], size: int) -> None:
    events = [make(*one) for one in history]
    single: dict[str, Any] = {}
    states: dict[str, Any] = {}
    for start in range(0, len(events), size):
        part, now_us = events[start : start + size], start * SECOND
        before = {key: dict(state) for key, state in states.items()}
        batch = pattern.on_messages(states, part, now_us)
        assert states == before  # what was handed in is as it was
        states |= batch.states
        one_by_one = []
        for event in part:
            step = pattern.on_message(single.get(event[0]), event, now_us)
            single[event[0]] = step.state
            one_by_one += step.emit
        assert batch.emit == one_by_one
    assert states == single
    for state in states.values():
        assert list(pattern.load(pattern.dump(state)).items()) == list(state.items())


@pytest.mark.parametrize(
    ("pattern", "event", "sentence"),
    [
        (DeduplicateIds(), ("k", ""), "id: a string that is not empty, not ''"),
        (DeduplicateIds(), ("k", None), "id: a string that is not empty, not None"),
        (DeduplicateIds(), ("k", 7), "id: a string that is not empty, not 7"),
        (DeduplicateIds(), ("", "a"), "key: Ordering key cannot be empty"),
        (DeduplicateSequences(), ("k", "", 1), "producer: a string that is not empty"),
        (DeduplicateSequences(), ("k", "p", -1), "sequence: a whole number from 0"),
        (DeduplicateSequences(), ("k", "p", True), "sequence: a whole number from 0"),
        (DeduplicateSequences(), ("k", "p", 1.0), "sequence: a whole number from 0"),
        (DeduplicateSequences(), ("k", "p"), "event: a tuple of at least 3 fields"),
    ],
)
def test_an_event_without_an_identity_is_refused(pattern: Any, event: Any, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=sentence):
        pattern.on_message(None, event, 0)
    with pytest.raises(InvalidEvent, match=sentence):
        pattern.on_messages({}, [event], 0)


def test_damaged_bytes_are_refused() -> None:
    with pytest.raises(ForeignState):
        DeduplicateIds().load(dump(DeduplicateIds.STATE, (1,)))


@pytest.mark.parametrize(
    ("pattern", "options", "sentence"),
    [
        (DeduplicateIds, {"max_ids": 0}, "max_ids: a whole number of at least 1, not 0"),
        (DeduplicateIds, {"max_age_seconds": 0}, "max_age_seconds: above 0, up to 2678400, not 0"),
        (DeduplicateSequences, {"window": MAX_WINDOW + 1}, "window: up to 10000, not 10001"),
        (DeduplicateSequences, {"window": True}, "window: a whole number of at least 1, not True"),
        (DeduplicateSequences, {"max_producers": 0}, "max_producers: a whole number of at least 1, not 0"),
        (DeduplicateSequences, {"too_old": "keep"}, "too_old: one of 'drop', 'emit', not 'keep'"),
    ],
)
def test_a_wrong_option_is_named_with_its_limit(pattern: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        pattern(**options)
