"""How one knows where a server has gone back to."""

import pytest

from inorder.transport.grpc.plain_rewinds import LONG_WAY_US, Rewind

LEASE_US = 10


def rewind(failed: int, out: dict[str, int] | None = None, last: int = 3) -> Rewind:
    begun = Rewind(LEASE_US, out or {"1": 1, "2": 2, "3": 3}, last)
    begun.fail(str(failed), failed)
    return begun


def those_passed_over(begun: Rewind, *messages: str, now_us: int = 0) -> list[str]:
    passed_over = []
    for message in messages:
        if begun.ends_with(message, now_us):
            break
        passed_over.append(message)
    return passed_over


def test_it_is_the_message_that_failed() -> None:
    assert those_passed_over(rewind(2), "4", "5", "2", "3") == ["4", "5"]


def test_or_one_before_it_which_was_over() -> None:
    assert those_passed_over(rewind(2), "4", "1") == ["4"]


def test_or_the_next_if_that_does_not_come_any_more() -> None:
    assert those_passed_over(rewind(2), "4", "5", "3") == ["4", "5"]


def test_or_the_first_that_has_come_since_if_nothing_else_was_out() -> None:
    assert those_passed_over(rewind(3), "4", "5", "4", "5") == ["4", "5"]


def test_what_had_come_again_is_told_from_what_was_behind_it() -> None:
    """1 and 2 have come again, with 3 on its way, when 2 fails."""
    assert those_passed_over(rewind(2, last=2), "3", "4", "2") == ["3", "4"]


def test_if_one_fails_before_it_has_come_the_server_goes_back_twice() -> None:
    begun = rewind(3, {"1": 1, "2": 2, "3": 3, "4": 4}, 4)
    assert not begun.ends_with("5", 0)
    begun.fail("2", 2)
    assert those_passed_over(begun, "6", "3", "4", "5", "6", "2") == ["6", "3", "4", "5", "6"]


def test_if_it_goes_back_less_often_a_lease_passes() -> None:
    begun = rewind(3)
    begun.fail("2", 2)
    begun.went_back(0)
    assert those_passed_over(begun, "3", "4") == ["3", "4"]
    begun.went_back(5)
    assert those_passed_over(begun, "5", "6", now_us=5 + LEASE_US) == ["5", "6"]
    assert begun.ends_with("3", 5 + LEASE_US)


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_goes_back_because_a_lease_is_over_is_not_it_if_the_nack_was_lost(confirmed: bool) -> None:
    begun = rewind(1)
    if confirmed:
        begun.went_back(0)
    else:
        begun.lost(until_us=7)
    assert begun.ends_with("2", 6) is confirmed
    if not confirmed:
        assert those_passed_over(begun, "3", "4", "2", now_us=7) == ["3", "4", "2"]
        assert begun.ends_with("2", 7 + LEASE_US)


def test_it_is_over_when_nothing_can_be_on_its_way_any_more() -> None:
    begun = rewind(1)
    assert not begun.is_over(2 * LONG_WAY_US), "nobody knows yet when the server goes back"
    begun.went_back(3)
    assert not begun.ends_with("4", 2 + LONG_WAY_US)
    assert not begun.ends_with("5", 1 + LONG_WAY_US + LEASE_US), "4 is still to come again"
    assert begun.ends_with("6", 1 + LONG_WAY_US + 2 * LEASE_US)
