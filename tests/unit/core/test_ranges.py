"""Positions as ranges."""

from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inorder.core.ranges import SPARSE, Ranges, runs, runs_of

positions = st.integers(0, 60)
chunks = st.lists(
    st.one_of(
        st.lists(positions),
        st.lists(positions).map(lambda chosen: array("Q", chosen)),
        st.builds(range, positions, positions),
    )
)


def test_ranges_that_touch_or_overlap_are_one() -> None:
    assert [*Ranges([(0, 10), (2, 3), (10, 12), (14, 15), (16, 16)])] == [(0, 12), (14, 15)]


def test_the_union_has_what_is_in_either() -> None:
    assert [*Ranges([(5, 9)]).union([(0, 2), (4, 6), (8, 20)])] == [(0, 2), (4, 20)]


def test_a_position_is_within_up_to_the_end_of_its_range() -> None:
    ranges = Ranges([(1, 3), (5, 6)])
    assert [position for position in range(8) if position in ranges] == [1, 2, 5]
    assert [ranges.end_at(position) for position in range(8)] == [0, 3, 3, 3, 4, 6, 6, 7]
    assert ranges.count() == 3
    assert [*ranges.within(2, 6)] == [(2, 3), (5, 6)]


def test_positions_in_a_row_are_a_range() -> None:
    assert [*runs([1, 2, 3, 5, 7, 8])] == [(1, 4), (5, 6), (7, 9)]
    assert [*runs([])] == []


@given(chunks, st.sampled_from([1, SPARSE]))
def test_positions_in_any_order_are_the_same_ranges_as_when_sorted(given: list[Sequence[int]], spread: int) -> None:
    spread_out = [chunk if spread == 1 else [position * spread for position in chunk] for chunk in given]
    assert [*runs_of(spread_out)] == [*runs(sorted({position for chunk in spread_out for position in chunk}))]


@given(st.sets(positions), positions, positions)
def test_marks_are_where_positions_are(chosen: set[int], start: int, end: int) -> None:
    ranges = Ranges(runs(sorted(chosen)))
    start, end = min(start, end), max(start, end)
    assert [*ranges.marks(start, end)] == [position in chosen for position in range(start, end)]
    assert {*ranges.within(start, end)} == {*runs(position for position in range(start, end) if position in chosen)}
