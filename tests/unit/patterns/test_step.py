"""The seam: fold with and without time, what an event must be, and states that survive as bytes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import ForeignState, InvalidArgument, InvalidEvent
from inorder.options import MAX_WHOLE
from inorder.patterns.encoding import MAX_LEVELS, digest, dump, load
from inorder.patterns.last_write_wins import LastWriteWins
from inorder.patterns.sequencing import Resequencer
from inorder.patterns.step import (
    APPLIED,
    GAP,
    PARKED,
    RELEASED,
    RETRY,
    SETTLED,
    Batch,
    Event,
    Step,
    check_event,
    check_event_number,
    checked,
    fold,
    fold_timed,
)
from inorder.patterns.versioning import VersionGate


class Alarm:
    """Emits an event 10 µs after it came, unless another one of its key came meanwhile."""

    def on_message(self, state: tuple[Event, int] | None, event: Event, now_us: int) -> Step[tuple[Event, int]]:
        return Step((event, now_us + 10), wake_at_us=now_us + 10)

    def on_messages(
        self, states: Mapping[str, tuple[Event, int]], events: Iterable[Event], now_us: int
    ) -> Batch[tuple[Event, int]]:
        return Batch({event[0]: (event, now_us + 10) for event in events})

    def on_timer(self, state: tuple[Event, int], now_us: int) -> Step[tuple[Event, int]]:
        event, due_us = state
        return Step(None, ((RELEASED, event),)) if now_us >= due_us else Step(state, wake_at_us=due_us)


def test_a_wake_up_comes_at_its_time_and_before_an_event_of_the_same_time() -> None:
    folded = fold_timed(Alarm(), [(0, ("a", 1)), (5, ("b", 2)), (10, ("a", 3))])
    assert folded.emit == [(10, RELEASED, ("a", 1))]
    assert folded.states == {"b": (("b", 2), 15), "a": (("a", 3), 20)}


def test_a_later_wake_up_takes_the_place_of_an_earlier_one() -> None:
    folded = fold_timed(Alarm(), [(0, ("a", 1)), (9, ("a", 2))], until_us=100)
    assert folded.emit == [(19, RELEASED, ("a", 2))]
    assert folded.states == {}


def test_a_fold_goes_on_from_stored_states_and_their_wake_ups() -> None:
    first = fold_timed(Alarm(), [(0, ("a", 1)), (3, ("b", 2))])
    second = fold_timed(Alarm(), [(11, ("c", 3))], states=first.states, until_us=13)
    assert second.emit == [(10, RELEASED, ("a", 1)), (13, RELEASED, ("b", 2))]
    assert list(second.states) == ["c"]


def test_a_timeout_that_is_new_holds_for_what_waits_in_a_stored_state_whatever_comes_meanwhile() -> None:
    states = fold(Resequencer(), [("a", 1), ("a", 3)]).states
    again = [(1, ("a", 1)), (1, ("a", 3))]  # neither changes where the key stands
    folded = fold_timed(Resequencer(gap_timeout_seconds=1), again, states=states, until_us=1_000_000)
    assert [event[1:3] for event in folded.of(GAP)] == [(2, 2)]


def test_without_a_last_time_nothing_wakes_after_the_last_event() -> None:
    assert fold_timed(Alarm(), [(0, ("a", 1))]).emit == []


def test_a_fold_leaves_the_states_it_was_given_as_they_were() -> None:
    states = {"a": Resequencer().start(5)}
    folded = fold(Resequencer(), [("a", 5), ("b", 1)], states=states)
    assert states == {"a": Resequencer().start(5)}
    assert folded.states["a"].expected == 6
    assert folded.applied() == [("a", 5), ("b", 1)]


def test_what_is_parked_or_not_taken_is_not_settled_and_a_gap_is_nobodys() -> None:
    assert {PARKED, RETRY, GAP}.isdisjoint(SETTLED)
    assert APPLIED < SETTLED


BAD_EVENTS = ["ab", ["a", 1], ("a",), (), None, 7, ("", 1), (None, 1), (7, 1), (b"a", 1), (["a"], 1), ("k" * 1025, 1)]


@pytest.mark.parametrize("event", BAD_EVENTS, ids=repr)
def test_what_is_no_event_is_refused_one_by_one_and_in_a_batch(event: Any) -> None:
    for pattern in (Resequencer(), VersionGate()):
        with pytest.raises(InvalidEvent) as caught:
            pattern.on_message(None, event, 0)
        assert caught.value.event is event
        with pytest.raises(InvalidEvent):
            pattern.on_messages({}, [("a", 1), event], 0)
        with pytest.raises(InvalidEvent):
            check_event(event, 2)
        with pytest.raises(InvalidEvent):
            fold_timed(pattern, [(0, event)])


def test_a_key_may_be_of_a_class_beneath_str() -> None:
    class Name(str):
        __slots__ = ()

    assert checked([(Name("a"), 1)], 2) == [("a", 1)]
    assert checked([], 2) == []


@pytest.mark.parametrize("number", [-1, True, False, 1.0, None, "1", MAX_WHOLE + 1, float("nan")], ids=repr)
@pytest.mark.parametrize("pattern", [Resequencer(initial=0), VersionGate(first_version=0)], ids=["sequence", "version"])
def test_a_number_that_is_none_is_refused_also_where_it_equals_the_expected_one(
    pattern: Resequencer | VersionGate, number: Any
) -> None:
    with pytest.raises(InvalidEvent, match="a whole number from 0 to 9223372036854775807, not"):
        check_event_number("sequence", number, ("a", number))
    for expected in (0, 1):
        state = Resequencer().start(expected)
        with pytest.raises(InvalidEvent):
            pattern.on_message(state, ("a", number), 0)
        with pytest.raises(InvalidEvent):
            pattern.on_messages({"a": state}, [("a", number)], 0)


def test_a_batch_with_a_bad_event_changes_nothing() -> None:
    states = {"a": Resequencer().start(1)}
    with pytest.raises(InvalidEvent):
        Resequencer().on_messages(states, [("a", 1), ("a", -2)], 0)
    assert states == {"a": Resequencer().start(1)}


def made(*fields: Any) -> tuple[Any, ...]:
    return fields


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(plain_values).map(tuple))
def test_plain_values_survive_as_bytes(state: tuple[Any, ...]) -> None:
    assert load("test/1", dump("test/1", state), made) == state


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, {1, 2}, float("nan"), float("inf"), 10**5_000, 1j, "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="not a plain value"):
        dump("test/1", (value,))


@pytest.mark.parametrize(
    "wrap", [lambda one: [one], lambda one: (one,), lambda one: {"a": one}], ids=["list", "tuple", "dict"]
)
def test_levels_have_a_limit_that_is_the_same_everywhere(wrap: Callable[[Any], Any]) -> None:
    """Some versions of Python write what they, or others, cannot read."""
    value: Any = 1
    for _ in range(MAX_LEVELS - 1):  # a state is one itself
        value = wrap(value)
    assert load("some", dump("some", (value,)), lambda *fields: fields) == (value,)
    with pytest.raises(InvalidArgument, match="nested in more than 100 levels"):
        dump("some", (wrap(value),))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b"7", b"\xff", b'["other/1"]', b'["test/1",{"x":1}]', b'["test/1",{"b":"?"}]'),
        b'["test/1",' + 100_000 * b"[" + 100_000 * b"]" + b"]",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_bytes_of_another_pattern_or_damaged_ones_are_refused(data: bytes) -> None:
    with pytest.raises(ForeignState, match="not a state of test/1"):
        load("test/1", data, made)


@pytest.mark.parametrize("pattern", [Resequencer(), VersionGate(), LastWriteWins()], ids=lambda one: type(one).__name__)
def test_a_state_with_another_number_of_fields_is_refused(pattern: Any) -> None:
    with pytest.raises(ForeignState, match="damaged"):
        pattern.load(dump(pattern.STATE, (1, 2, 3, 4, 5, 6, 7)))


def test_no_pattern_takes_the_state_of_another_for_its_own() -> None:
    data = Resequencer().dump(Resequencer().start(1))
    with pytest.raises(ForeignState, match=r"not a state of versioning/1: it is one of 'sequencing/1'"):
        VersionGate().load(data)


def test_a_digest_depends_on_content_alone_and_begins_with_its_crc_32() -> None:
    """Of b"123456789" all catalogues of checksums have CRC-32; of b"" and b"abc" FIPS 180-2 publishes SHA-256."""
    assert digest(b"123456789")[:8] == "cbf43926"
    assert digest(b"") == "00000000e3b0c442"
    assert digest(b"abc") == "352441c2ba7816bf"
    assert digest(b"plumless")[:8] == digest(b"buckeroo")[:8]
    assert digest(b"plumless") != digest(b"buckeroo")
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": (2,)})
