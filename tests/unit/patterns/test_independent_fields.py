"""Independent fields: every order of events gives one read model, and no field has two owners."""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import FieldOwnedTwice, ForeignState, InvalidArgument, InvalidEvent
from inorder.patterns.encoding import digest, dump
from inorder.patterns.independent_fields import FieldsWritten, IndependentFields, latest_of
from inorder.patterns.step import DUPLICATE, RELEASED, STALE, Event, fold

STATUS = latest_of({"placed_at": "placed", "paid_at": "paid", "shipped_at": "shipped", "refunded_at": "refunded"})
ORDER = IndependentFields(
    {
        "OrderPlaced": ("placed_at", "customer"),
        "OrderPaid": ("paid_at",),
        "OrderShipped": ("shipped_at",),
        "OrderRefunded": ("refunded_at",),
    },
    derived={"status": STATUS},
)


def read(events: Any) -> dict[str, dict[str, Any]]:
    return {key: ORDER.read(state) for key, state in fold(ORDER, events).states.items()}


def test_every_order_of_events_gives_the_same_read_model() -> None:
    """ordering-in-event-driven-systems Independent updates: shipped before paid corrupts nothing."""
    events = [
        ("o", "OrderPlaced", 1, {"placed_at": 1, "customer": "ann"}),
        ("o", "OrderPaid", 2, {"paid_at": 2}),
        ("o", "OrderShipped", 3, {"shipped_at": 3}),
        ("o", "OrderPaid", 2, {"paid_at": 2}),
        ("o", "OrderPlaced", 4, {"customer": "bob"}),
    ]
    expected = {"placed_at": 1, "customer": "bob", "paid_at": 2, "shipped_at": 3, "status": "shipped"}
    for order in permutations(events):
        assert read(order) == {"o": expected}


def test_who_writes_what_is_released_has_the_same_row_for_every_order_of_events() -> None:
    """So an event that won by one field and lost by another is released with the first only."""
    events = [
        ("o", "OrderPlaced", 1, {"placed_at": 1, "customer": "ann"}),
        ("o", "OrderPlaced", 2, {"customer": "bob"}),
        ("o", "OrderPlaced", 3, {"placed_at": 3}),
    ]
    for order in permutations(events):
        row: dict[str, Any] = {}
        for *_, fields in fold(ORDER, order).applied():
            row.update(fields)
        assert row == {"placed_at": 3, "customer": "bob"}


def test_an_event_that_lost_some_fields_is_the_same_otherwise() -> None:
    later = fold(ORDER, [("o", "OrderPlaced", 2, {"customer": "bob"})]).states
    plain = ("o", "OrderPlaced", 1, {"placed_at": 1, "customer": "ann"}, "carried along")
    assert fold(ORDER, [plain], states=later).applied() == [("o", "OrderPlaced", 1, {"placed_at": 1}, "carried along")]
    named = fold(ORDER, [FieldsWritten(*plain[:4])], states=later).applied()[0]
    assert (type(named), named.fields) == (FieldsWritten, {"placed_at": 1})
    assert plain[3] == {"placed_at": 1, "customer": "ann"}


def test_the_status_is_derived_on_read_by_comparing_timestamps() -> None:
    """ordering-in-event-driven-systems Independent updates: no status is stored, all timestamps are kept."""
    paid = ("o", "OrderPaid", 2, {"paid_at": 2})
    refunded = ("o", "OrderRefunded", 9, {"refunded_at": 9})
    assert read([paid])["o"]["status"] == "paid"
    assert read([refunded, paid])["o"] == {"paid_at": 2, "refunded_at": 9, "status": "refunded"}
    assert "status" not in fold(ORDER, [paid]).states["o"]
    assert ORDER.read(None) == {"status": None}


def test_of_equal_timestamps_the_status_that_is_named_last_counts_and_none_counts_nothing() -> None:
    assert STATUS({"placed_at": 5, "paid_at": 5}) == "paid"
    assert STATUS({"placed_at": 5, "paid_at": None}) == "placed"
    assert latest_of({"x": "y"}, otherwise="new")({}) == "new"


def test_a_field_that_two_event_types_own_is_refused_with_both_names() -> None:
    """ordering-in-event-driven-systems Independent updates: the design principle, checked at construction."""
    with pytest.raises(
        FieldOwnedTwice, match="field 'status' is owned by both 'OrderPaid' and 'OrderShipped'"
    ) as caught:
        IndependentFields({"OrderPaid": ["status"], "OrderShipped": ["shipped_at", "status"]})
    assert (caught.value.field, caught.value.owners) == ("status", ("OrderPaid", "OrderShipped"))


@pytest.mark.parametrize(
    ("owns", "derived", "sentence"),
    [
        ({}, {}, "owns: a mapping from event types to their fields, not {}"),
        (None, {}, "owns: a mapping from event types to their fields, not None"),
        ({"": ["x"]}, {}, "owns: event types are names, not ''"),
        ({"A": "field"}, {}, "owns: 'A' needs a collection of fields, not 'field'"),
        ({"A": []}, {}, r"owns: 'A' needs a collection of fields, not \[\]"),
        ({"A": 7}, {}, "owns: 'A' needs a collection of fields, not 7"),
        ({"A": [""]}, {}, "owns: 'A' has a field without a name: ''"),
        ({"A": ["x"]}, {"x": len}, "derived: 'x' is a field of 'A', and cannot be derived as well"),
        ({"A": ["x"]}, {"y": 1}, "derived: 'y' needs a function, not 1"),
    ],
)
def test_a_wrong_declaration_is_named(owns: Any, derived: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        IndependentFields(owns, derived)


def test_the_owners_do_not_change_after_they_were_checked() -> None:
    owns = {"A": ["x"]}
    model = IndependentFields(owns)
    owns["A"].append("y")
    with pytest.raises(InvalidEvent, match="field 'y': not one of 'A', but of nobody"):
        model.on_message(None, ("k", "A", 1, {"y": 1}), 0)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (("o", "OrderLost", 1, {}), "event type: one of 'OrderPlaced', .*, not 'OrderLost'"),
        (("o", "OrderPaid", 1, {"placed_at": 1}), "field 'placed_at': not one of 'OrderPaid', but of 'OrderPlaced'"),
        (("o", "OrderPaid", -1, {"paid_at": 1}), "time: a whole number from 0"),
        (("o", "OrderPaid", True, {"paid_at": 1}), "time: a whole number from 0"),
        (("o", "OrderPaid", 1, [("paid_at", 1)]), "fields: a mapping"),
        (("", "OrderPaid", 1, {}), "key: Ordering key cannot be empty"),
        (("o", "OrderPaid", 1), "event: a tuple of at least 4 fields"),
    ],
)
def test_an_event_that_cannot_be_merged_is_refused(event: Any, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=sentence):
        ORDER.on_message(None, event, 0)
    with pytest.raises(InvalidEvent, match=sentence):
        ORDER.on_messages({}, [event], 0)


def test_a_value_that_no_state_can_hold_is_refused_also_if_it_ties_with_another() -> None:
    deep: Any = ()
    for _ in range(98):
        deep = (deep,)
    for before in ({}, ORDER.on_message(None, ("o", "OrderPlaced", 1, {"customer": "ann"}), 0).state):
        with pytest.raises(InvalidEvent, match="field 'customer': not a plain value: it is nested in more than 100"):
            ORDER.on_message(before, ("o", "OrderPlaced", 1, {"customer": deep}), 0)


def merged(events: list[Event]) -> dict[str, dict[str, Any]]:
    """The model: of each field the greatest by time and digest."""
    found: dict[tuple[str, str], tuple[int, str, Any]] = {}
    for key, _, time, fields in events:
        for name, value in fields.items():
            candidate = (time, digest(value), value)
            found[key, name] = max(found.get((key, name), (-1, "", None)), candidate, key=lambda one: one[:2])
    rows: dict[str, dict[str, Any]] = {}
    for (key, name), (_, _, value) in found.items():
        rows.setdefault(key, {})[name] = value
    return rows


def fields_of(event_type: str) -> st.SearchStrategy[Mapping[str, Any]]:
    values = st.none() | st.integers(0, 3) | st.text(max_size=1)
    return st.dictionaries(st.sampled_from(ORDER.owns[event_type]), values, max_size=2)  # type: ignore[arg-type]


@st.composite
def events(draw: st.DrawFn) -> Event:
    event_type = draw(st.sampled_from([*ORDER.owns]))
    return draw(st.sampled_from("op")), event_type, draw(st.integers(0, 3)), draw(fields_of(event_type))


@given(st.lists(events(), max_size=25), st.randoms())
def test_the_read_model_is_that_of_the_model_in_whatever_order(history: list[Event], random: Any) -> None:
    """ordering-in-event-driven-systems Independent updates: commutative, and ties do not depend on arrival."""
    shuffled = history.copy()
    random.shuffle(shuffled)
    one, other = fold(ORDER, history).states, fold(ORDER, shuffled).states
    values = {key: {name: value for name, (_, value) in state.items()} for key, state in one.items()}
    assert values == merged(history)
    assert one == other
    assert fold(ORDER, history, states=one).states == one  # idempotent


@given(st.lists(events(), max_size=25))
def test_batches_do_what_single_steps_do(history: list[Event]) -> None:
    single: dict[str, Any] = {}
    one_by_one: list[Any] = []
    for event in history:
        step = ORDER.on_message(single.get(event[0]), event, 0)
        single[event[0]] = step.state
        one_by_one += step.emit
    batch = ORDER.on_messages({}, history, 0)
    assert batch.emit == one_by_one
    assert batch.states == {key: state for key, state in single.items() if state is not None}


def test_an_event_is_released_if_it_changes_a_field_and_else_stale_or_a_duplicate() -> None:
    placed = FieldsWritten("o", "OrderPlaced", 5, {"placed_at": 5, "customer": "ann"})
    older = FieldsWritten("o", "OrderPlaced", 4, {"customer": "bob"})
    half = FieldsWritten("o", "OrderPlaced", 6, {"customer": "cid"})
    fates = [fate for _, fate, _ in fold(ORDER, [placed, placed, older, half]).emit]
    assert fates == [RELEASED, DUPLICATE, STALE, RELEASED]


def test_a_state_survives_as_bytes_and_fields_that_nobody_owns_any_more_are_not_read() -> None:
    state = fold(ORDER, [("o", "OrderPlaced", 1, {"placed_at": 1, "customer": "ann"})]).states["o"]
    assert ORDER.load(ORDER.dump(state)) == state
    smaller = IndependentFields({"OrderPlaced": ["placed_at"]})
    assert smaller.read(smaller.load(ORDER.dump(state))) == {"placed_at": 1}
    for damaged in ((1,), (), ({}, {})):
        with pytest.raises(ForeignState):
            ORDER.load(dump(ORDER.STATE, damaged))


def test_nothing_depends_on_time() -> None:
    state = {"paid_at": (1, 2)}
    assert ORDER.on_timer(state, 10**15).state is state
