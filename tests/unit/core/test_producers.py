"""Which producers are remembered."""

from inorder.clock import MICROSECONDS
from inorder.core.producers import REMEMBERED_SECONDS, Attempt, Producers, attempted, opened


def test_one_that_goes_on_does_not_keep_those_in_memory_that_came_after_it_and_are_silent() -> None:
    producers: Producers = {}
    for name in ("busy", "silent"):
        opened(producers, name, 1, 0)
    attempted(producers, Attempt("busy", 1, 0), 0, 1, REMEMBERED_SECONDS * MICROSECONDS)
    assert [*producers] == ["silent", "busy"]
    attempted(producers, Attempt("busy", 1, 1), 1, 1, REMEMBERED_SECONDS * MICROSECONDS + 1)
    assert [*producers] == ["busy"]
