"""Lanes: whose turn it is, and that what is done leaves nothing behind.

The last part looks inside, because what a key costs once it is empty can be seen nowhere else.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.core.lanes import FreeLanes, Lanes, WindowedLanes, _Lane
from inorder.message import Record


def record(text: str) -> Record:
    """The first letter is the key, "-" stands for none; the number behind it is the position."""
    key = "" if text[0] == "-" else text[0]
    return (int(text[1:]), key, text.encode(), {}, 0, 1, 0)


def records(*texts: str) -> list[Record]:
    return [record(text) for text in texts]


def names(taken: Iterable[Record]) -> list[str]:
    return [one[2].decode() for one in taken]


def take(lanes: Lanes, count: int = 100, consumer: object = None) -> list[str]:
    return names(lanes.take(count, consumer))


def done(lanes: Lanes, *texts: str) -> None:
    lanes.done(records(*texts))


def drain(lanes: Lanes) -> list[str]:
    """Take and finish one by one until nothing is ready."""
    drained: list[str] = []
    while taken := lanes.take(1):
        lanes.done(taken)
        drained += names(taken)
    return drained


def stands(lane: _Lane[Any]) -> tuple[Any, ...]:
    """All that a lane knows."""
    return (*lane, *(getattr(lane, name) for name in _Lane.__slots__))


def remains(lanes: Lanes) -> dict[str, Any]:
    """Whatever a lane still keeps of the records and keys it has seen."""
    kept = {name: value for name, value in vars(lanes).items() if isinstance(value, dict | set | list | deque)}
    new = stands(_Lane())
    assert all(stands(lane) == new for lane in kept.pop("_spare", ())), "what is used again is as if it were new"
    kept["_reserved"] = {owner: tokens for owner, tokens in kept.get("_reserved", {}).items() if tokens}
    return {name: value for name, value in kept.items() if value and value != {"": None}}


ORDERED = [
    pytest.param(Lanes, id="strict"),
    pytest.param(lambda: WindowedLanes(1), id="window of 1"),
    pytest.param(lambda: WindowedLanes(3), id="window of 3"),
]
ALL = [*ORDERED, pytest.param(FreeLanes, id="free")]


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_an_empty_lane_has_nothing_ready(make: Any) -> None:
    lanes = make()
    assert not lanes.any_ready()
    assert take(lanes) == []
    assert list(lanes.records()) == []


@pytest.mark.parametrize("make", ALL)
def test_records_without_a_key_are_free_and_come_oldest_first(make: Any) -> None:
    lanes = make()
    lanes.put(records("-0", "-1", "-2"))
    assert lanes.any_ready()
    assert take(lanes, 2) == ["-0", "-1"]
    assert take(lanes) == ["-2"]
    assert not lanes.any_ready()


@pytest.mark.parametrize("make", ALL)
def test_what_was_given_back_goes_first_and_oldest_first(make: Any) -> None:
    lanes = make()
    lanes.put(records("-0", "-1", "-2", "-3"))
    lanes.take(3)
    for text in ("-2", "-0", "-1"):
        lanes.give_back(record(text))
    assert lanes.any_ready()
    assert take(lanes) == ["-0", "-1", "-2", "-3"]


@pytest.mark.parametrize("make", ALL)
def test_what_was_untaken_goes_first_in_its_order(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "-1", "b2", "c3"))
    taken = lanes.take(3)
    lanes.untake(taken[1:])
    assert sorted(take(lanes)) == sorted([*names(taken[1:]), "c3"])


@pytest.mark.parametrize("make", ALL)
def test_records_are_all_that_is_not_out(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1", "-2", "b3"))
    taken = lanes.take(1)
    assert sorted(names(lanes.records())) == sorted({"a0", "a1", "-2", "b3"} - set(names(taken)))


@pytest.mark.parametrize("make", ALL)
def test_a_rewrite_reaches_all_that_is_not_out(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1", "-2", "-3", "b4"))
    first, *_ = lanes.take(3)
    if not first[1]:
        lanes.give_back(first)
    before = sorted(names(lanes.records()))
    lanes.rewrite(lambda one: (*one[:2], one[2] + b"!", *one[3:]))  # type: ignore[return-value]
    assert sorted(names(lanes.records())) == [f"{name}!" for name in before]


@pytest.mark.parametrize("make", ALL)
def test_a_rewrite_may_remove_what_has_no_key(make: Any) -> None:
    lanes = make()
    lanes.put(records("-0", "-1", "-2", "-3"))
    taken = lanes.take(2)
    for one in taken:
        lanes.give_back(one)
    lanes.rewrite(lambda one: None if one[0] % 2 else one)
    assert take(lanes) == ["-0", "-2"]


def test_what_came_back_goes_oldest_first_also_if_others_that_came_back_are_gone() -> None:
    lanes: Lanes[Record] = Lanes()
    for one in records("-3", "-4", "-1"):
        lanes.give_back(one)
    lanes.rewrite(lambda one: None if one[0] == 1 else one)
    assert take(lanes) == ["-3", "-4"]


# -- ordered ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ORDERED)
def test_a_key_is_never_overtaken_by_itself(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "b1", "a2"))
    lanes.put(records("b3", "a4"))
    drained = drain(lanes)
    assert [name for name in drained if name[0] == "a"] == ["a0", "a2", "a4"]
    assert [name for name in drained if name[0] == "b"] == ["b1", "b3"]


@pytest.mark.parametrize("make", ORDERED)
def test_keys_and_records_without_one_do_not_wait_for_each_other(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "-1", "b2", "-3"))
    assert sorted(take(lanes)) == ["-1", "-3", "a0", "b2"]


@pytest.mark.parametrize("make", ORDERED)
def test_a_held_key_waits_for_its_release_and_keeps_its_order(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1", "b2"))
    [first] = lanes.take(1)
    assert names([first]) == ["a0"]
    lanes.hold("a", [first])
    lanes.put(records("a3"))
    assert drain(lanes) == ["b2"]
    assert names(lanes.waiting("a")) == ["a0", "a1", "a3"]
    lanes.release("a")
    assert drain(lanes) == ["a0", "a1", "a3"]


@pytest.mark.parametrize("make", ORDERED)
def test_the_only_record_of_a_key_can_be_held(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0"))
    lanes.hold("a", lanes.take(1))
    assert take(lanes) == []
    lanes.release("a")
    assert take(lanes) == ["a0"]


@pytest.mark.parametrize("make", ORDERED)
def test_the_head_of_a_held_key_can_be_replaced(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1"))
    lanes.hold("a", lanes.take(1))
    lanes.replace("a", 0, record("a9"))
    lanes.release("a")
    assert drain(lanes) == ["a9", "a1"]


@pytest.mark.parametrize("make", ORDERED)
def test_the_youngest_that_waits_can_be_replaced(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1", "a2"))
    lanes.replace("a", -1, record("a9"))
    assert drain(lanes) == ["a0", "a1", "a9"]


@pytest.mark.parametrize("make", ORDERED)
def test_ready_keys_take_turns(make: Any) -> None:
    lanes = make()
    lanes.put([record(f"{key}{number}") for key in "abc" for number in range(5)])
    turns = [name[0] for name in drain(lanes)]
    assert [Counter(turns[start : start + 3]) for start in range(0, 15, 3)] == [Counter("abc")] * 5


@pytest.mark.parametrize("make", ORDERED)
def test_an_untaken_key_keeps_its_place_before_those_that_wait_longer(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1", "b2", "b3", "c4"))
    lanes.untake(lanes.take(1))
    assert take(lanes, 1) == ["a0"]


@pytest.mark.parametrize("make", ORDERED)
def test_a_key_without_records_has_nothing_waiting(make: Any) -> None:
    lanes = make()
    assert list(lanes.waiting("nobody")) == []
    assert list(lanes.crowded()) == []


# -- strict ----------------------------------------------------------------------------------------


def test_one_record_of_a_key_is_out_at_a_time() -> None:
    lanes = Lanes()
    lanes.put(records("a0", "a1", "b2"))
    assert take(lanes) == ["a0", "b2"]
    assert take(lanes) == []
    assert list(lanes.crowded()) == ["a"]
    done(lanes, "a0")
    assert take(lanes) == ["a1"]
    assert list(lanes.crowded()) == []


def test_turns_are_in_the_order_in_which_keys_became_ready() -> None:
    lanes = Lanes()
    lanes.put(records("a0", "a1", "b2", "b3"))
    lanes.take(2)
    done(lanes, "b2")
    lanes.put(records("c4"))
    done(lanes, "a0")
    assert take(lanes) == ["b3", "c4", "a1"]


# -- free ------------------------------------------------------------------------------------------


def test_when_all_that_was_out_is_done_whatever_waited_for_it_is_ready() -> None:
    lanes: Lanes[Record] = Lanes()
    lanes.put(records("a0", "b1", "-2", "a3", "a4", "c5", "c6", "-7", "b8", "d9"))
    out = lanes.take(3)
    assert names(out) == ["a0", "b1", "-2"]
    lanes.done_all(out)
    lanes.put(records("d10", "a11"))
    assert take(lanes) == ["c5", "-7", "d9", "a3", "b8"]
    done(lanes, "c5", "d9", "a3", "b8")
    assert drain(lanes) == ["c6", "d10", "a4", "a11"]
    assert remains(lanes) == {}


def test_all_that_was_out_is_done_at_the_cost_of_what_that_was() -> None:
    lanes: Lanes[Record] = Lanes()
    lanes.put([record(f"{chr(0x4E00 + number)}{number}") for number in range(1_000)])
    out, kept = lanes.take(2), lanes._behind
    lanes.done_all(out)
    assert lanes._behind is kept  # was not made anew of all that is ready
    assert len(kept) == 998


def test_without_order_no_key_waits() -> None:
    lanes = FreeLanes()
    lanes.put(records("a0", "a1", "b2", "-3"))
    assert take(lanes) == ["a0", "a1", "b2", "-3"]
    lanes.give_back(record("a1"))
    done(lanes, "a0", "b2", "-3")
    assert take(lanes) == ["a1"]


# -- windowed --------------------------------------------------------------------------------------


def test_so_many_records_of_a_key_are_out_in_order() -> None:
    lanes = WindowedLanes(3)
    lanes.put(records("a0", "a1", "a2", "a3", "a4"))
    assert take(lanes) == ["a0", "a1", "a2"]
    assert take(lanes) == []
    done(lanes, "a1")
    assert take(lanes) == ["a3"]
    done(lanes, "a0", "a2")
    assert take(lanes) == ["a4"]


def test_keys_take_turns_within_their_windows() -> None:
    lanes = WindowedLanes(5)
    lanes.put([record(f"{key}{number}") for key in "abc" for number in range(5)])
    taken = take(lanes, 9)
    assert Counter(name[0] for name in taken[:3]) == Counter("abc")
    assert Counter(name[0] for name in taken) == Counter("abc" * 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_neither_keys_nor_records_without_one_wait_for_all_of_the_other(count: int) -> None:
    lanes = WindowedLanes(50)
    lanes.put([record(f"a{number}") for number in range(50)] + [record(f"-{number}") for number in range(50)])
    taken = [name for _ in range(6) for name in take(lanes, count)]
    assert {name[0] for name in taken} == {"a", "-"}


def test_a_key_that_is_out_belongs_to_its_consumer() -> None:
    lanes = WindowedLanes(2)
    lanes.put(records("a0", "a1", "a2", "b3"))
    assert take(lanes, 1, "one") == ["a0"]
    assert take(lanes, 9, "two") == ["b3"]
    assert take(lanes, 9, "one") == ["a1"]
    done(lanes, "a0", "a1")
    assert take(lanes, 9, "two") == ["a2"]


def test_what_comes_back_of_a_key_goes_before_what_waits() -> None:
    lanes = WindowedLanes(3)
    lanes.put(records("a0", "a1", "a2", "a3"))
    taken = lanes.take(3)
    lanes.hold("a", taken[1:])
    assert take(lanes) == []
    lanes.release("a")
    assert take(lanes) == ["a1", "a2"]
    done(lanes, "a0")
    assert take(lanes) == ["a3"]


def test_a_held_key_stays_held_while_earlier_records_of_it_are_done() -> None:
    lanes = WindowedLanes(2)
    lanes.put(records("a0", "a1", "a2"))
    _, second = lanes.take(2)
    lanes.hold("a", [second])
    done(lanes, "a0")
    assert take(lanes) == []
    lanes.release("a")
    assert take(lanes) == ["a1", "a2"]


def test_keys_of_a_consumer_that_has_gone_are_free() -> None:
    lanes = WindowedLanes(2)
    lanes.put(records("a0", "a1", "a2"))
    taken = lanes.take(1, "one")
    lanes.hold("a", taken)
    lanes.release("a")
    lanes.forsake("one")
    assert take(lanes, 9, "two") == ["a0", "a1"]


def test_a_key_that_was_nacked_goes_to_its_consumer_again_if_that_stays() -> None:
    lanes = WindowedLanes(2, {"one"})
    lanes.put(records("a0", "a1"))
    taken = lanes.take(2, "one")
    lanes.put(records("b2", "b3"))
    lanes.hold("a", taken, nacked=True)
    assert take(lanes, 9, "two") == ["b2", "b3"]
    lanes.release("a")
    assert take(lanes, 9, "two") == []
    lanes.hold("a", lanes.take(2, "one"))  # it was late: perhaps it does not do anything any more
    lanes.release("a")
    lanes.hold("a", lanes.take(2, "two"), nacked=True)  # by one that does not stay
    lanes.release("a")
    lanes.hold("a", lanes.take(1, "one"), nacked=True)  # by one that has nothing else of the key
    lanes.release("a")
    assert take(lanes, 9, "two") == ["a0", "a1"]


def test_a_key_is_kept_until_something_of_it_that_came_again_is_done() -> None:
    lanes = WindowedLanes(3, {"one"})
    lanes.put(records("a0", "a1", "a2"))
    first, *later = lanes.take(3, "one")
    lanes.hold("a", later, nacked=True)
    lanes.release("a")
    lanes.done([first])
    assert take(lanes, 9, "two") == []
    lanes.untake(lanes.take(9, "one"))  # it had no room for it after all
    assert take(lanes, 9, "two") == []
    assert take(lanes, 1, "one") == ["a1"]
    done(lanes, "a1")
    assert take(lanes, 9, "two") == ["a2"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_kept_key_is_free_when_what_came_again_is_nacked_alone(number: int) -> None:
    lanes = WindowedLanes(3, {"one"})
    lanes.put(records("a0", "a1", "a2"))
    first, *later = lanes.take(3, "one")
    lanes.hold("a", later, nacked=True)
    if number:  # what was given before is no sign that its consumer has got through the later ones
        lanes.done_one(first)
        lanes.release("a")
        first = lanes.take(1, "one")[0]
    lanes.hold("a", [first], nacked=True)
    lanes.release("a")
    assert take(lanes, 9, "two") == (["a1", "a2"] if number else [])


@pytest.mark.parametrize("released", [False, True])
def test_a_key_that_was_nacked_is_free_when_its_consumer_has_gone(released: bool) -> None:
    staying = {"one"}
    lanes = WindowedLanes(2, staying)
    lanes.put(records("a0", "a1"))
    lanes.hold("a", lanes.take(2, "one"), nacked=True)
    if released:
        lanes.release("a")
        assert take(lanes, 9, "two") == []
    staying.clear()
    lanes.forsake("one")
    if not released:
        assert take(lanes, 9, "two") == []
        lanes.release("a")
    assert take(lanes, 9, "two") == ["a0", "a1"]


def test_records_of_one_key_that_were_untaken_stay_in_order() -> None:
    lanes = WindowedLanes(3)
    lanes.put(records("a0", "b1", "a2", "b3", "a4"))
    lanes.untake(lanes.take(5))
    taken = take(lanes)
    assert [name for name in taken if name[0] == "a"] == ["a0", "a2", "a4"]
    assert [name for name in taken if name[0] == "b"] == ["b1", "b3"]


# -- what a key costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL)
def test_when_all_is_done_nothing_is_left(make: Any) -> None:
    lanes = make()
    for turn in range(50):
        lanes.put([record(f"{key}{turn}") for key in "abc-"])
        drain(lanes)
    take(lanes)
    assert remains(lanes) == {}


@pytest.mark.parametrize("make", ORDERED)
def test_a_key_that_was_held_leaves_nothing(make: Any) -> None:
    lanes = make()
    lanes.put(records("a0", "a1"))
    lanes.hold("a", lanes.take(1))
    lanes.release("a")
    drain(lanes)
    assert remains(lanes) == {}


@pytest.mark.parametrize("make", ORDERED)
def test_a_busy_key_costs_the_same_however_long_it_is_busy(make: Any) -> None:
    lanes = make()
    lanes.put([record(f"a{number}") for number in range(1000)])
    sizes = set()
    for _ in range(500):
        lanes.done(lanes.take(1))
        sizes.add(sum(len(value) for name, value in remains(lanes).items() if name != "_behind"))
    assert max(sizes) < 10


def test_consumers_that_have_gone_leave_nothing() -> None:
    lanes = WindowedLanes(3)
    for number in range(50):
        lanes.put(records(f"a{number}", f"b{number}"))
        lanes.done(lanes.take(9, f"consumer-{number}"))
        lanes.forsake(f"consumer-{number}")
    lanes.take(9)
    assert remains(lanes) == {}
    assert len(lanes._aside) <= 1


# -- whatever happens ------------------------------------------------------------------------------


CONSUMERS = (None, "one", "two")


@given(
    window=st.integers(0, 4),
    script=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.sampled_from("ab-"), min_size=1, max_size=4)),
            st.tuples(st.just("take"), st.tuples(st.integers(1, 4), st.sampled_from(CONSUMERS))),
            st.tuples(st.just("untake"), st.tuples(st.integers(1, 4), st.sampled_from(CONSUMERS))),
            st.tuples(st.just("done"), st.integers(0, 9)),
            st.tuples(st.just("done all"), st.none()),
            st.tuples(st.just("fail"), st.tuples(st.integers(0, 9), st.booleans())),
            st.tuples(st.just("release"), st.sampled_from("ab")),
            st.tuples(st.just("forsake"), st.sampled_from(CONSUMERS)),
        ),
        max_size=60,
    ),
)
def test_every_record_comes_in_its_order_and_none_gets_lost(window: int, script: list[tuple[str, Any]]) -> None:
    check(window, script)


@pytest.mark.parametrize("window", range(5))
@pytest.mark.parametrize("seed", range(10))
def test_the_same_over_long_histories(window: int, seed: int) -> None:
    chance = random.Random(seed)

    def step() -> tuple[str, Any]:
        verbs = ["put", "put", "take", "take", "take", "untake", "done", "done", "done all", "fail", "release"]
        verb = chance.choice(verbs)
        if verb == "put":
            return verb, chance.choices("ab-", k=chance.randrange(1, 5))
        if verb in ("take", "untake"):
            return verb, (chance.randrange(1, 5), chance.choice(CONSUMERS))
        if verb == "fail":
            return verb, (chance.randrange(10), chance.random() < 0.7)
        if verb == "release":
            return verb, chance.choice("ab")
        return verb, chance.randrange(10)

    gone = ("forsake", chance.choice(CONSUMERS))
    check(window, [gone if chance.random() < 0.02 else step() for _ in range(400)])


def check(window: int, script: list[tuple[str, Any]]) -> None:
    """A window of 0 stands for strict lanes. A failure takes back the key from there on, as subscriptions do."""
    staying = {"one", "two"}
    lanes = WindowedLanes(window, staying) if window else Lanes()
    limit = window or 1
    position = 0
    waiting: dict[str, list[Record]] = {"a": [], "b": [], "": []}  # in the order in which they must come
    out: list[Record] = []
    held: set[str] = set()
    owner: dict[str, object] = {}  # of the keys that are out
    kept: dict[str, tuple[object, int]] = {}  # keys that were nacked, for whom they wait, and from where on

    def came(taken: Sequence[Record], consumer: object) -> None:
        for one in taken:
            key = one[1]
            assert key not in held
            if key:
                assert one == waiting[key].pop(0)
                if any(other[1] == key for other in out):
                    assert owner[key] == consumer
                assert kept.get(key, (consumer,))[0] == consumer
                owner[key] = consumer
            else:
                waiting[""].remove(one)
            out.append(one)
        for key in "ab":
            assert sum(one[1] == key for one in out) <= limit

    def unless_kept(one: Record) -> None:
        """It has come again, so its consumer has got through what it had before."""
        if one[1] in kept and one[0] >= kept[one[1]][1]:
            del kept[one[1]]

    def drained() -> None:
        while taken := lanes.take(3):
            came(taken, None)
            lanes.done(taken)
            for one in taken:
                out.remove(one)

    for verb, argument in script:
        if verb == "put":
            new = [record(f"{key}{position + index}") for index, key in enumerate(argument)]
            position += len(new)
            for one in new:
                waiting[one[1]].append(one)
            if len(new) == 1:
                lanes.put_one(new[0])
            else:
                lanes.put(new)
        elif verb == "take":
            came(lanes.take(*argument), argument[1])
        elif verb == "untake":
            lanes.untake(lanes.take(*argument))
        elif verb == "done" and out:
            one = out.pop(argument % len(out))
            lanes.done_one(one)
            unless_kept(one)
        elif verb == "done all" and not held:
            lanes.done_all(out)
            for one in out:
                unless_kept(one)
            out = []
        elif verb == "fail" and out:
            number, nacked = argument
            one = out[number % len(out)]
            key = one[1]
            if key:
                back = [other for other in out if other[1] == key and other[0] >= one[0]]
                lanes.hold(key, back, nacked=nacked)
                held.add(key)
                if window and nacked and len(back) > 1 and owner[key] in staying:
                    kept[key] = owner[key], one[0]
                elif nacked:
                    unless_kept(one)
                else:
                    kept.pop(key, None)
            else:
                back = [one]
                lanes.give_back(one)
            waiting[key][:0] = back
            out = [other for other in out if other not in back]
        elif verb == "release" and argument in held:
            held.remove(argument)
            lanes.release(argument)
        elif verb == "forsake":
            lanes.forsake(argument)  # and comes again
            for key in [key for key, (consumer, _) in kept.items() if consumer == argument]:
                del kept[key]

    for key in held.copy():
        held.remove(key)
        lanes.release(key)
    lanes.done(out)
    out.clear()
    for consumer in CONSUMERS:
        lanes.forsake(consumer)
    kept.clear()
    staying.clear()
    drained()
    assert waiting == {"a": [], "b": [], "": []}
    assert remains(lanes) == {}


def test_when_a_consumer_has_got_what_waited_for_it_nothing_is_ready() -> None:
    lanes: WindowedLanes[Record] = WindowedLanes(3)
    lanes.put(records("a0", "a1"))
    assert take(lanes, 1, "one") == ["a0"]
    assert take(lanes, 1, "two") == []
    assert lanes.any_ready()
    assert take(lanes, 1, "one") == ["a1"]
    assert not lanes.any_ready()
