"""Positions as ranges."""

from inorder.core.ranges import Ranges, runs


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
