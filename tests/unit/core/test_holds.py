"""Who waits, and for how long."""

from inorder.core.holds import Hold, Holds, longer, longest
from inorder.message import POSITION, Record


def record(position: int) -> Record:
    return position, "", b"", None, 0, 0, 0


def test_whoever_waits_comes_in_time_also_if_others_that_waited_are_gone() -> None:
    holds = Holds()
    for seconds in (3, 4, 1):
        holds.delay(record(seconds), seconds)
    holds.rewrite(lambda waiting: None if waiting[POSITION] == 1 else waiting)
    assert holds.next_us() == 3
    assert [*holds.due(3)] == [("", record(3))]


def test_a_key_waits_for_the_later_failure_and_for_the_longer_time_unless_it_is_parked() -> None:
    assert longer(None, Hold(1, 50)) == Hold(1, 50)
    assert longer(Hold(2, 40), Hold(1, 50)) == Hold(1, 50)
    assert longer(Hold(2, 60), Hold(1, 50)) == Hold(1, 60)
    assert longer(Hold(2, 60), Hold(1, None)) == Hold(1, None)
    assert longer(Hold(2, None), Hold(1, 50)) == Hold(2, None)


def test_of_messages_that_waited_each_for_itself_their_key_waits_for_the_one_that_waits_longest() -> None:
    assert longest(None, Hold(1, 50)) == Hold(1, 50)
    assert longest(Hold(1, 50), Hold(2, 50)) == Hold(1, 50)
    assert longest(Hold(1, 50), Hold(2, 60)) == Hold(2, 60)
    assert longest(Hold(1, 50), Hold(2, None)) == Hold(2, None)
    assert longest(Hold(1, None), Hold(2, 60)) == Hold(1, None)
