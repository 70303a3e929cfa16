"""The kernels against the pure patterns, over generated histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import DuplicateEvent, FailedPrecondition, InorderError, LateEvent, ParkingFull, ProgressMissing
from inorder.patterns import Resequencer, VersionGate, slot_of
from inorder.spark import lines as lines_of
from inorder.spark.hashing import buckets_of, hashes
from inorder.spark.kernels import Rows, Sequencing, settle

from .histories import NAMES, SCHEMA, History, expected, found, table

SECOND = 1_000_000

PATTERNS: list[Sequencing] = [
    Resequencer(),
    Resequencer(initial=0),
    Resequencer(initial=3, late="emit", duplicates="quarantine"),
    Resequencer(initial="first_seen", late="emit"),
    Resequencer(initial="first_seen", gap_timeout_seconds=3, late="quarantine"),
    Resequencer(gap_timeout_seconds=2, late="emit"),
    Resequencer(gap_timeout_seconds=2),
    Resequencer(capacity=2, when_full="gap", late="emit"),
    Resequencer(capacity=1, when_full="gap", gap_timeout_seconds=4, late="quarantine"),
    Resequencer(capacity=2, when_full="error", gap_timeout_seconds=4),
    Resequencer(late="error"),
    Resequencer(duplicates="error", gap_timeout_seconds=1),
    VersionGate(),
    VersionGate(first_version=0, gap_timeout_seconds=2),
    VersionGate(mode="latest_only"),
    VersionGate(capacity=2, when_full="gap", first_version=2),
    VersionGate(capacity=2, when_full="error"),
]


@st.composite
def histories(draw: st.DrawFn) -> History:
    rows = st.tuples(st.sampled_from("abc"), st.integers(0, 12))
    batches = draw(st.lists(st.tuples(st.integers(0, 3), st.lists(rows, max_size=12)), min_size=1, max_size=6))
    now_us, position, history = 0, 0, []
    for later, batch in batches:
        now_us += later * SECOND
        history.append((now_us, [(*row, position + index) for index, row in enumerate(batch)]))
        position += len(batch)
    return history


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@given(history=histories(), only_needed=st.booleans())
def test_a_kernel_tells_what_its_pattern_tells(pattern: Sequencing, history: History, only_needed: bool) -> None:
    try:
        wanted = expected(pattern, history)
    except InorderError as error:
        with pytest.raises(type(error)):
            found(pattern, history, only_needed)
        return
    told, lines = found(pattern, history, only_needed)
    assert told == wanted[0]
    assert lines == wanted[1]


def test_gaps_beyond_the_newest_hundred_are_forgotten() -> None:
    history = [(number * 10 * SECOND, [("a", number * 2, number)]) for number in range(1, 130)]
    history.append((10_000 * SECOND, [("a", number, 1_000 + number) for number in range(200)]))
    for pattern in (Resequencer(gap_timeout_seconds=1), Resequencer(gap_timeout_seconds=1, late="emit")):
        assert found(pattern, history) == expected(pattern, history)


def test_numbers_up_to_the_greatest_have_their_turn() -> None:
    most = 2**63 - 1
    history = [(0, [("a", most - 1, 0), ("b", 0, 1), ("a", most - 2, 2), ("b", most - 5, 3)])]
    pattern = Resequencer(initial="first_seen")
    assert found(pattern, history) == expected(pattern, history)


@pytest.mark.parametrize(
    ("pattern", "numbers", "error"),
    [
        (Resequencer(initial="stored"), [1], ProgressMissing),
        (Resequencer(late="error"), [0], LateEvent),
        (Resequencer(duplicates="error"), [1, 1], DuplicateEvent),
        (Resequencer(capacity=1, when_full="error"), [1, 2, 4, 5], ParkingFull),
    ],
)
def test_an_error_says_which_key_and_number(pattern: Sequencing, numbers: list[int], error: type[InorderError]) -> None:
    rows = Rows.of(table([("a", number, index) for index, number in enumerate(numbers)]), NAMES)
    with pytest.raises(error) as raised:
        settle(pattern, rows, lines_of.empty(SCHEMA), 0)
    assert "'a'" in str(raised.value)


def test_what_another_mode_has_parked_is_refused_as_the_pattern_refuses_it() -> None:
    first, second = Rows.of(table([("a", 2, 0)]), NAMES), Rows.of(table([("a", 5, 1)]), NAMES)
    lines = settle(VersionGate(), first, lines_of.empty(SCHEMA), 0).lines
    with pytest.raises(FailedPrecondition, match="1 events are parked, which mode='latest_only' would never release"):
        settle(VersionGate(mode="latest_only"), second, lines, 0)


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1))
def test_hashes_are_those_of_the_slots(keys: list[str]) -> None:
    encodable = [key for key in keys if key.isprintable()] or ["größe"]
    column = table([(key, 0, 0) for key in ["x", *encodable]]).column("key").combine_chunks()
    assert (hashes(column[1:]) >> 20).tolist() == [slot_of(key) for key in encodable]
    assert buckets_of(hashes(column[1:]), 7).tolist() == [slot_of(key) * 7 // 4096 for key in encodable]
