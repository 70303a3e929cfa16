"""How one knows where a server has gone back to."""

from inorder.transport.grpc.plain_rewinds import Rewind

OUT = {"1": 1, "2": 2, "3": 3}


def those_passed_over(rewind: Rewind, *messages: str) -> list[str]:
    passed_over = []
    for message in messages:
        if rewind.ends_with(message):
            break
        passed_over.append(message)
    return passed_over


def test_it_is_the_message_that_failed() -> None:
    assert those_passed_over(Rewind(2, OUT, 3, None, 0), "4", "5", "2", "3") == ["4", "5"]


def test_or_one_before_it_which_was_over() -> None:
    assert those_passed_over(Rewind(2, OUT, 3, None, 0), "4", "1") == ["4"]


def test_or_the_next_if_that_does_not_come_any_more() -> None:
    assert those_passed_over(Rewind(2, OUT, 3, None, 0), "4", "5", "3") == ["4", "5"]


def test_or_the_first_that_has_come_since_if_nothing_else_was_out() -> None:
    assert those_passed_over(Rewind(3, OUT, 3, None, 0), "4", "5", "4", "5") == ["4", "5"]


def test_what_had_come_again_is_told_from_what_was_behind_it() -> None:
    """1 and 2 have come again, with 3 on its way, when 2 fails."""
    assert those_passed_over(Rewind(2, OUT, 2, None, 0), "3", "4", "2") == ["3", "4"]


def test_if_one_fails_before_it_has_come_the_server_goes_back_twice() -> None:
    first = Rewind(3, {**OUT, "4": 4}, 4, None, 0)
    assert not first.ends_with("5")
    second = Rewind(2, {"1": 1, "2": 2}, 2, first, 0)
    assert those_passed_over(second, "6", "3", "4", "5", "6", "2") == ["6", "3", "4", "5", "6"]
