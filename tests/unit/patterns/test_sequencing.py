"""The resequencer against a plain model, over every order of small histories and over generated larger ones."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import DuplicateEvent, InvalidArgument, LateEvent, ParkingFull, ProgressMissing
from inorder.options import REMEMBERED_GAPS
from inorder.patterns.encoding import dump
from inorder.patterns.parking import Line
from inorder.patterns.sequencing import Resequencer, Sequenced
from inorder.patterns.step import (
    DUPLICATE,
    GAP,
    LATE,
    PARKED,
    QUARANTINED,
    RELEASED,
    RETRY,
    SETTLED,
    STALE,
    Event,
    Folded,
    Missing,
    fold,
    fold_timed,
)

SECOND = 1_000_000


class Model:
    """One key as one would explain it: a dict of what waits, a set of what never came, no care for speed."""

    def __init__(self, options: Resequencer) -> None:
        self.options = options
        self.expected: int | None = None if options.initial == "first_seen" else int(options.initial)
        self.waiting: dict[int, tuple[int, Event]] = {}
        self.gone: list[int] = list(range(self.expected or 0))
        self.told: list[tuple[int, str, Any]] = []

    def take(self, event: Event, now_us: int) -> None:
        number = event[1]
        if self.expected is None:
            self.expected, self.gone = number, list(range(number))
        if number < self.expected:
            self._behind(event, now_us)
        elif number == self.expected:
            self.told.append((now_us, RELEASED, event))
            self.expected += 1
            self._go_on(now_us)
        elif number in self.waiting:
            self.told.append((now_us, PARKED, event))
        elif len(self.waiting) < self.options.capacity:
            self.waiting[number] = now_us, event
            self.told.append((now_us, PARKED, event))
        elif self.options.when_full == "retry":
            self.told.append((now_us, RETRY, event))
        else:
            self.waiting[number] = now_us, event
            self.told.append((now_us, PARKED, event))
            self._go_to(min(self.waiting), "full", now_us)

    def tick(self, now_us: int) -> None:
        if self.options.gap_timeout_seconds is not None:
            since_us = now_us - self.options.gap_timeout_seconds * SECOND
            if overdue := [number for number, (arrived_us, _) in self.waiting.items() if arrived_us <= since_us]:
                self._go_to(max(overdue), "timeout", now_us)

    def _behind(self, event: Event, now_us: int) -> None:
        number = event[1]
        if number not in self.gone:
            fate = QUARANTINED if self.options.duplicates == "quarantine" else DUPLICATE
        else:
            fate = {"drop": STALE, "emit": LATE, "quarantine": QUARANTINED}[self.options.late]
            if self.options.late != "drop":
                self.gone.remove(number)
        self.told.append((now_us, fate, event))

    def _go_to(self, last: int, reason: str, now_us: int) -> None:
        hole: list[int] = []
        assert self.expected is not None
        for number in range(self.expected, last + 1):
            if number not in self.waiting:
                hole.append(number)
                continue
            _, event = self.waiting.pop(number)
            if hole:
                self.told.append((now_us, GAP, (event[0], hole[0], hole[-1], reason)))
                self.gone += hole
                hole = []
            self.told.append((now_us, RELEASED, event))
        self.expected = last + 1
        self._go_on(now_us)

    def _go_on(self, now_us: int) -> None:
        while self.expected in self.waiting:
            self.told.append((now_us, RELEASED, self.waiting.pop(self.expected)[1]))
            self.expected += 1


def modelled(options: Resequencer, arrivals: Sequence[tuple[int, Event]], until_us: int, tick_us: int) -> list[Any]:
    """What a model of each key tells, if time goes on in ticks."""
    models: dict[str, Model] = {}
    told: list[Any] = []
    for now_us in range(0, until_us + 1, tick_us):
        for model in models.values():
            model.tick(now_us)
        for at_us, event in arrivals:
            if at_us == now_us:
                models.setdefault(event[0], Model(options)).take(event, now_us)
    for model in models.values():
        told += model.told
    return told


def by_key(emitted: Iterable[tuple[int, str, Any]]) -> list[Any]:
    """What was emitted, key after key, each in its order."""
    keys = dict.fromkeys(event[0] for _, _, event in emitted)
    return [told for key in keys for told in emitted if told[2][0] == key]


def arrivals_of(numbers: Iterable[int], every_us: int = SECOND) -> list[tuple[int, Event]]:
    """One event of key "a" after the other; the third field tells apart those of one number."""
    return [(index * every_us, ("a", number, index)) for index, number in enumerate(numbers)]


def numbers(events: Iterable[Event]) -> list[int]:
    return [event[1] for event in events]


OPTIONS = [
    Resequencer(),
    Resequencer(initial=0, late="emit", duplicates="quarantine"),
    Resequencer(initial="first_seen", late="emit"),
    Resequencer(gap_timeout_seconds=2, late="emit"),
    Resequencer(gap_timeout_seconds=3, late="quarantine", initial="first_seen"),
    Resequencer(gap_timeout_seconds=1, late="drop"),
    Resequencer(capacity=1, when_full="gap", late="emit"),
    Resequencer(capacity=2, when_full="gap", gap_timeout_seconds=2, late="emit"),
    Resequencer(capacity=1, when_full="retry", gap_timeout_seconds=4),
]
HISTORIES = [(1, 2, 3, 4, 5), (1, 2, 2, 3, 4), (1, 3, 4, 6, 6), (2, 3, 5), (0, 1, 2, 4)]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_every_order_of_a_small_history_gives_what_the_model_gives(options: Resequencer) -> None:
    """ordering-guarantees Pattern 1, Gotcha 2, How 5 and How 7: whatever comes late, twice or never."""
    for history in HISTORIES:
        for order in set(permutations(history)):
            arrivals = arrivals_of(order)
            folded = fold_timed(options, arrivals, until_us=12 * SECOND)
            assert folded.emit == modelled(options, arrivals, 12 * SECOND, SECOND), order


@given(
    st.sampled_from(OPTIONS),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(0, 3)), max_size=40),
)
def test_larger_histories_of_several_keys_give_what_the_model_gives(
    options: Resequencer, history: list[tuple[str, int, int]]
) -> None:
    now_us, arrivals = 0, []
    for index, (key, number, pause) in enumerate(history):
        now_us += pause * SECOND
        arrivals.append((now_us, (key, number, index)))
    until_us = now_us + 10 * SECOND
    folded = fold_timed(options, arrivals, until_us=until_us)
    assert by_key(folded.emit) == by_key(modelled(options, arrivals, until_us, SECOND))


@given(
    st.sampled_from(OPTIONS),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=60),
    st.integers(1, 20),
)
def test_batches_do_what_single_steps_do(options: Resequencer, events: list[Event], size: int) -> None:
    states: dict[str, Line] = {}
    together: list[Any] = []
    for start in range(0, len(events), size):
        batch = options.on_messages(states, events[start : start + size], start)
        states.update(batch.states)  # type: ignore[arg-type]
        together += batch.emit
        for key, state in batch.states.items():
            assert state is not None
            if state.wake_at_us is not None:
                assert batch.wakes[key] == state.wake_at_us
    single: dict[str, Line] = {}
    one_by_one: list[Any] = []
    for index, event in enumerate(events):
        step = options.on_message(single.get(event[0]), event, index // size * size)
        assert step.state is not None
        assert step.wake_at_us == step.state.wake_at_us
        single[event[0]] = step.state
        one_by_one += step.emit
    assert (together, states) == (one_by_one, single)


def in_all_orders(history: Sequence[int], options: Resequencer) -> Iterator[Folded[Line]]:
    for order in set(permutations(history)):
        yield fold(options, [event for _, event in arrivals_of(order)])


def test_in_whatever_order_they_come_events_leave_in_the_order_of_their_numbers() -> None:
    """ordering-guarantees Pattern 1: a redelivery changes nothing."""
    for folded in in_all_orders((1, 2, 3, 4, 5, 5), Resequencer()):
        assert numbers(folded.applied()) == [1, 2, 3, 4, 5]
        assert folded.states["a"] == Line(6, missed=((0, 0),))


def test_a_number_is_released_at_most_once() -> None:
    """ordering-guarantees Pattern 1: a duplicate is settled, and not processed."""
    for folded in in_all_orders((1, 1, 2, 2, 3, 3), Resequencer()):
        assert numbers(folded.applied()) == [1, 2, 3]


def test_what_is_parked_is_settled_when_it_is_released_and_not_before() -> None:
    """ordering-guarantees Pattern 1 and Gotcha 2: buffered, not nacked, and acked only after release."""
    resequencer = Resequencer()
    two = resequencer.on_message(None, ("a", 2), 0)
    assert two.emit == ((PARKED, ("a", 2)),)
    three = resequencer.on_message(two.state, ("a", 3), 0)
    assert not [fate for fate, _ in three.emit if fate in SETTLED]
    one = resequencer.on_message(three.state, ("a", 1), 0)
    assert one.emit == ((RELEASED, ("a", 1)), (RELEASED, ("a", 2)), (RELEASED, ("a", 3)))


def test_a_message_that_failed_and_comes_after_the_others_is_put_back_in_its_place() -> None:
    """ordering-guarantees Gotcha 2 and How 7: 1-2-3-4-6-7-8-9-10-5 leaves as 1 to 10."""
    folded = fold(Resequencer(), [("a", number) for number in (1, 2, 3, 4, 6, 7, 8, 9, 10, 5)])
    assert numbers(folded.applied()) == list(range(1, 11))


def test_a_redelivery_of_what_is_parked_is_parked_too() -> None:
    folded = fold(Resequencer(duplicates="error"), [("a", 2, "first"), ("a", 2, "again"), ("a", 1)])
    assert folded.of(PARKED) == [("a", 2, "first"), ("a", 2, "again")]
    assert folded.applied() == [("a", 1), ("a", 2, "first")]


def test_keys_are_sequences_of_their_own() -> None:
    """ordering-guarantees How 1: order is per entity, and a hole of one stops no other."""
    for order in permutations([("a", 2), ("b", 1), ("b", 2)]):
        folded = fold(Resequencer(), order)
        assert folded.applied() == [("b", 1), ("b", 2)]
        assert folded.states["a"].parked


def test_a_hole_is_given_up_after_the_timeout_and_told_in_its_place() -> None:
    """ordering-guarantees Gotcha 4: after a dead letter, wait with a timeout, then go on and say so."""
    resequencer = Resequencer(gap_timeout_seconds=5)
    folded = fold_timed(
        resequencer, [(0, ("a", 1)), (1 * SECOND, ("a", 3)), (2 * SECOND, ("a", 4))], until_us=SECOND * 60
    )
    assert folded.emit[-3:] == [
        (6 * SECOND, GAP, Missing("a", 2, 2, "timeout")),
        (6 * SECOND, RELEASED, ("a", 3)),
        (6 * SECOND, RELEASED, ("a", 4)),
    ]


def test_without_a_timeout_a_hole_is_waited_for() -> None:
    """ordering-guarantees Gotcha 4: or wait."""
    folded = fold_timed(Resequencer(), [(0, ("a", 2))], until_us=10**15)
    assert folded.of(PARKED) == [("a", 2)]
    assert not folded.applied()


def test_no_event_waits_longer_than_the_timeout_and_no_hole_is_given_up_sooner() -> None:
    resequencer = Resequencer(gap_timeout_seconds=5)
    arrivals = [(0, ("a", 6)), (4 * SECOND, ("a", 9)), (SECOND * 4, ("a", 3))]
    folded = fold_timed(resequencer, arrivals, until_us=60 * SECOND)
    assert [told for told in folded.emit if told[1] != PARKED] == [
        (5 * SECOND, GAP, Missing("a", 1, 2, "timeout")),
        (5 * SECOND, RELEASED, ("a", 3)),
        (5 * SECOND, GAP, Missing("a", 4, 5, "timeout")),
        (5 * SECOND, RELEASED, ("a", 6)),
        (9 * SECOND, GAP, Missing("a", 7, 8, "timeout")),
        (9 * SECOND, RELEASED, ("a", 9)),
    ]


def test_a_wake_up_before_its_time_does_nothing() -> None:
    resequencer = Resequencer(gap_timeout_seconds=5)
    step = resequencer.on_message(None, ("a", 2), 100)
    assert step.state is not None
    assert step.wake_at_us == 100 + 5 * SECOND
    early = resequencer.on_timer(step.state, step.wake_at_us - 1)
    assert (early.state, early.emit, early.wake_at_us) == (step.state, (), step.wake_at_us)
    idle = resequencer.on_timer(resequencer.start(3), 10**15)
    assert (idle.state, idle.emit, idle.wake_at_us) == (resequencer.start(3), (), None)


def test_a_stored_key_follows_the_timeout_that_there_is_now() -> None:
    """The state was stored under another timeout: longer, shorter, or none at all."""
    state = Resequencer(gap_timeout_seconds=5).on_message(None, ("a", 2), 0).state
    assert state is not None
    for seconds in (1, 5, 9):
        changed = Resequencer(gap_timeout_seconds=seconds)
        assert changed.on_timer(state, 0).wake_at_us == seconds * SECOND
        assert not changed.on_timer(state, seconds * SECOND - 1).emit
        assert changed.on_timer(state, seconds * SECOND).emit[-1] == (RELEASED, ("a", 2))
    without = Resequencer().on_timer(state, 60 * SECOND)
    assert (without.emit, without.wake_at_us) == ((), None)
    late = Resequencer(gap_timeout_seconds=5).on_timer(Resequencer().on_message(None, ("a", 2), 0).state, 0)  # type: ignore[arg-type]
    assert late.wake_at_us == 5 * SECOND


def after_a_gap(**options: Any) -> tuple[Resequencer, Line]:
    """Number 2 was given up; 1 and 3 were released."""
    resequencer = Resequencer(gap_timeout_seconds=1, **options)
    folded = fold_timed(resequencer, [(0, ("a", 1)), (0, ("a", 3))], until_us=SECOND)
    return resequencer, folded.states["a"]


@pytest.mark.parametrize(("late", "fate"), [("drop", STALE), ("emit", LATE), ("quarantine", QUARANTINED)])
def test_a_late_event_is_dropped_let_through_or_put_aside(late: Any, fate: str) -> None:
    resequencer, state = after_a_gap(late=late)
    step = resequencer.on_message(state, ("a", 2), 0)
    assert step.emit == ((fate, ("a", 2)),)
    assert step.state is not None
    assert step.state.expected == 4


@pytest.mark.parametrize("late", ["emit", "quarantine"])
def test_a_late_event_is_late_once_and_then_a_duplicate(late: Any) -> None:
    resequencer, state = after_a_gap(late=late)
    again = resequencer.on_message(resequencer.on_message(state, ("a", 2), 0).state, ("a", 2), 0)
    assert again.emit == ((DUPLICATE, ("a", 2)),)


def test_a_late_event_or_a_duplicate_can_be_an_error_that_names_it() -> None:
    resequencer, state = after_a_gap(late="error", duplicates="error")
    with pytest.raises(LateEvent, match="key 'a': 2 comes too late, 4 is expected next") as late:
        resequencer.on_message(state, ("a", 2), 0)
    assert late.value.event == ("a", 2)
    with pytest.raises(DuplicateEvent, match="key 'a': 3 was released before, 4 is expected next") as duplicate:
        resequencer.on_message(state, ("a", 3), 0)
    assert duplicate.value.event == ("a", 3)


@pytest.mark.parametrize(("duplicates", "fate"), [("drop", DUPLICATE), ("quarantine", QUARANTINED)])
def test_a_duplicate_is_dropped_or_put_aside(duplicates: Any, fate: str) -> None:
    """ordering-guarantees Pattern 1: what was processed before is acked, and nothing else."""
    resequencer = Resequencer(duplicates=duplicates)
    assert resequencer.on_message(resequencer.start(5), ("a", 4), 0).emit == ((fate, ("a", 4)),)


def test_a_full_parking_does_not_take_what_is_not_due_but_takes_what_is() -> None:
    resequencer = Resequencer(capacity=2, when_full="retry")
    folded = fold(resequencer, [("a", 3), ("a", 4), ("a", 5), ("a", 2), ("a", 1)])
    assert folded.of(RETRY) == [("a", 5), ("a", 2)]
    assert folded.applied() == [("a", 1)]
    after = fold(resequencer, [("a", 2), ("a", 5)], states=folded.states)
    assert numbers(after.applied()) == [2, 3, 4, 5]


def test_a_full_parking_can_give_up_the_first_hole() -> None:
    folded = fold(Resequencer(capacity=2, when_full="gap"), [("a", 3), ("a", 4), ("a", 8), ("a", 6)])
    assert folded.emit[3:] == [
        (0, GAP, Missing("a", 1, 2, "full")),
        (0, RELEASED, ("a", 3)),
        (0, RELEASED, ("a", 4)),
        (0, PARKED, ("a", 6)),
    ]


def test_a_full_parking_can_be_an_error() -> None:
    resequencer = Resequencer(capacity=1, when_full="error")
    state = resequencer.on_message(None, ("a", 3), 0).state
    with pytest.raises(ParkingFull, match="key 'a': 1 events are parked, as many as may be, and 1 is missing"):
        resequencer.on_message(state, ("a", 4), 0)


def test_whatever_comes_the_parking_stays_within_its_capacity() -> None:
    """ordering-guarantees Gotcha 2: a buffer with a bound."""
    for when_full, order in product(("retry", "gap"), permutations((2, 3, 5, 6, 8))):
        resequencer = Resequencer(capacity=2, when_full=when_full)  # type: ignore[arg-type]
        state = None
        for number in order:
            state = resequencer.on_message(state, ("a", number), 0).state
            assert state is not None
            assert len(state.parked) <= 2


def test_a_key_begins_with_a_fixed_number_with_the_first_it_sees_or_with_what_is_stored() -> None:
    assert fold(Resequencer(initial=7), [("a", 8), ("a", 7), ("a", 6)]).applied() == [("a", 7), ("a", 8)]
    seen = fold(Resequencer(initial="first_seen"), [("a", 8), ("a", 7), ("a", 9)])
    assert (seen.applied(), seen.of(STALE)) == ([("a", 8), ("a", 9)], [("a", 7)])
    stored = Resequencer(initial="stored")
    assert fold(stored, [("a", 5)], states={"a": stored.start(5)}).applied() == [("a", 5)]
    with pytest.raises(ProgressMissing, match="key 'b': no progress is stored"):
        stored.on_message(None, ("b", 5), 0)


def test_the_newest_gaps_are_remembered_and_older_numbers_count_as_duplicates() -> None:
    resequencer = Resequencer(capacity=1, when_full="gap", late="emit")
    state: Line | None = resequencer.start(0)
    last = 4 * REMEMBERED_GAPS
    for number in range(1, last, 2):  # every even number is missing
        state = resequencer.on_message(state, ("a", number), 0).state
    assert state is not None
    assert len(state.missed) == REMEMBERED_GAPS
    assert resequencer.on_message(state, ("a", 0), 0).emit == ((DUPLICATE, ("a", 0)),)
    assert resequencer.on_message(state, ("a", last - 10), 0).emit == ((LATE, ("a", last - 10)),)


@given(st.lists(st.integers(0, 9), max_size=20), st.sampled_from(OPTIONS))
def test_a_state_survives_as_bytes(history: list[int], options: Resequencer) -> None:
    folded = fold(options, [("a", number, b"\x00data", {"x": "y"}) for number in history])
    for state in folded.states.values():
        assert options.load(options.dump(state)) == state


def test_an_event_may_have_names_and_more_fields() -> None:
    folded = fold(Resequencer(), [("a", 2, b"data", "ack-7"), Sequenced("a", 1, b"first")])
    assert folded.applied() == [("a", 1, b"first"), ("a", 2, b"data", "ack-7")]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"capacity": 0}, "capacity: a whole number of at least 1, not 0"),
        ({"capacity": True}, "capacity: a whole number of at least 1, not True"),
        ({"gap_timeout_seconds": 0}, "gap_timeout_seconds: above 0, up to 2678400, not 0"),
        ({"gap_timeout_seconds": float("nan")}, "gap_timeout_seconds: above 0, up to 2678400, not nan"),
        ({"initial": -1}, "initial: a whole number of at least 0, not -1"),
        ({"initial": True}, "initial: a whole number of at least 0, not True"),
        ({"initial": "last"}, "initial: one of 'first_seen', 'stored', not 'last'"),
        ({"late": "keep"}, "late: one of 'drop', 'emit', 'error', 'quarantine', not 'keep'"),
        ({"duplicates": "emit"}, "duplicates: one of 'drop', 'error', 'quarantine', not 'emit'"),
        ({"when_full": "drop"}, "when_full: one of 'retry', 'gap', 'error', not 'drop'"),
    ],
)
def test_a_wrong_option_is_named_with_its_limit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        Resequencer(**options)


@pytest.mark.parametrize("expected", [-1, True, 1.0, None])
def test_a_key_starts_at_a_whole_number(expected: Any) -> None:
    with pytest.raises(InvalidArgument, match="expected: a whole number of at least 0"):
        Resequencer().start(expected)


@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=3),
    st.booleans(),
    st.none() | st.integers(0, 2**60),
)
def test_a_line_is_written_the_same_way_on_both_ways(
    expected: int, missed: list[tuple[int, int]], waits: bool, wake_at_us: int | None
) -> None:
    parked = ((expected + 2, 5, ("a", expected + 2, b"\x00", {"x": [1]})),) if waits else ()
    line = Line(expected, parked, wake_at_us, tuple(missed))
    assert Resequencer().dump(line) == dump("sequencing/1", line)
    assert Resequencer().load(Resequencer().dump(line)) == line


def test_a_timeout_counts_from_what_is_parked_longest_also_if_that_was_parked_without_one() -> None:
    parked = Resequencer().on_message(None, ("a", 3), 1_000).state
    step = Resequencer(gap_timeout_seconds=30).on_message(parked, ("a", 5), 20_000_000)
    assert step.wake_at_us == 30_001_000
