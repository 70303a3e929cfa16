"""Lines of messages against lanes, which do the same with tuples and are proven elsewhere."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from inorder import Message
from inorder.client.lines import KeyedLine, Line, WindowLine
from inorder.core.lanes import FreeLanes, Lanes

KEYS = ["", "a", "b", "c", "d"]
Steps = list[list[str] | int]
steps = st.lists(st.one_of(st.lists(st.sampled_from(KEYS), max_size=6), st.integers(1, 4)))


def message(item: tuple[int, str]) -> Message:
    made = Message(ordering_key=item[1])
    made._record = (*item, b"", None, 0, 0, 0)
    return made


def items(messages: Any) -> list[tuple[int, str]]:
    return [one._record[:2] for one in messages]


def same(steps: Steps, lanes: Lanes[tuple[int, str]], line: Line) -> None:
    """Lists are put in, odd numbers taken out, and even ones of those are done."""
    position = 0
    out: list[Message] = []
    for step in steps:
        if isinstance(step, list):
            new = [*enumerate(step, position)]
            position += len(new)
            lanes.put(new)
            line.put([message(item) for item in new])
        elif step % 2:
            taken = line.take(step)
            assert items(taken) == lanes.take(step)
            out += taken
        else:
            lanes.done(items(out[:step]))
            line.done(out[:step])
            del out[:step]
        assert sorted(items(line.messages())) == sorted(lanes.records())
        assert line.any_ready() == lanes.any_ready()
        for key in KEYS[1:]:
            assert items(line.waiting(key)) == list(lanes.waiting(key))


@given(steps)
@example([["a", "a"], 1, 2])
def test_a_keyed_line_gives_out_what_lanes_do(steps: Steps) -> None:
    same(steps, Lanes(), KeyedLine())


@given(steps)
def test_a_line_gives_out_what_free_lanes_do(steps: Steps) -> None:
    same(steps, FreeLanes(), Line())


def test_a_key_that_is_out_stays_so_when_as_many_of_others_are_done() -> None:
    line = KeyedLine()
    line.put([message((0, "a")), message((1, ""))])
    _, keyless = line.take(2)
    line.done([keyless])
    line.put([message((2, "a"))])
    assert line.take(1) == []


@given(st.permutations(["", "a", "a", "b"]))
def test_a_key_that_is_held_waits_for_its_release(keys: list[str]) -> None:
    line = KeyedLine()
    line.hold("a")
    line.put([message(item) for item in enumerate(keys)])
    assert sorted(key for _, key in items(line.take(10))) == ["", "b"]
    line.release("a")
    first = line.take(10)
    assert [key for _, key in items(first)] == ["a"]
    assert first[0]._record[0] == keys.index("a")
    line.done(first)
    assert [key for _, key in items(line.take(10))] == ["a"]


def test_a_held_key_of_which_nothing_came_costs_nothing_afterwards() -> None:
    line = KeyedLine()
    line.hold("a")
    line.release("a")
    line.put([message((0, "a"))])
    assert items(line.take(1)) == [(0, "a")]


@given(steps)
def test_a_line_of_windows_gives_out_all_in_order_while_nothing_fails(steps: Steps) -> None:
    same(steps, FreeLanes(), WindowLine())


@given(st.permutations(["", "a", "a", "b"]), st.permutations(["a", "b", "c", ""]))
def test_nothing_of_a_key_that_failed_goes_before_it_goes_on(before: list[str], after: list[str]) -> None:
    line = WindowLine()
    line.put([message(item) for item in enumerate(before)])
    line.fail("a")
    line.fail("a")
    line.put([message(item) for item in enumerate(after, len(before))])
    numbered = [*enumerate([*before, *after])]
    of_a = [item for item in numbered if item[1] == "a"]
    assert items(line.waiting("a")) == of_a
    assert sorted(items(line.messages())) == numbered
    assert items(line.take(2)) == [item for item in numbered if item[1] != "a"][:2]
    line.go_on("a")
    assert items(line.take(10)) == of_a + [item for item in numbered if item[1] != "a"][2:]
    line.go_on("b")  # of which nothing has failed
    assert not line.any_ready()


def test_messages_without_a_key_do_not_wait_for_one_that_failed() -> None:
    line = WindowLine()
    line.put([message((0, "")), message((1, ""))])
    line.fail("")
    assert items(line.take(10)) == [(0, ""), (1, "")]
