"""Leases against a plain dict: the list of recent ones and the dict of old ones are one to whoever asks."""

from __future__ import annotations

from random import Random

import pytest

from inorder.core.leases import TIDY, Leases
from inorder.message import Record


def record(position: int) -> Record:
    return (position, "k", b"", None, 0, 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_leases_are_what_a_dict_of_them_would_be(seed: int) -> None:
    random = Random(seed)
    leases, model = Leases(first=7), dict[int, Record]()
    position = 0
    stays_out = random.choice([0.0, 0.001, 0.5])  # the chance that one is not ended with the others
    for _ in range(200):
        batch = [record(position + index) for index in range(random.choice([1, 3, 100]))]
        position += len(batch)
        granted = leases.grant(batch, now_us=0)
        model.update(zip(granted, batch, strict=True))
        over = [lease for lease in model if random.random() >= stays_out]
        random.shuffle(over)
        for part in (over[:2], over[2:3], over[3:]):
            if part:
                assert leases.records(part) == [model[lease] for lease in part]
                leases.end(part)
                for lease in part:
                    del model[lease]
        assert list(leases.out()) == sorted(model.items())
        assert leases.count == len(model)
        assert leases.next == 7 + position
    some = [*model][:50]
    assert leases.split([*some, 3, leases.next]) == (some, [3, leases.next])


def test_one_that_stays_out_does_not_keep_the_places_of_the_others() -> None:
    leases = Leases()
    [straggler] = leases.grant([record(0)], 0)
    for position in range(1, 20 * TIDY):
        leases.end(leases.grant([record(position)], 0))
    assert leases.of(straggler) == record(0)
    assert len(leases._recent) <= 2 * TIDY


def test_a_number_that_is_not_out_is_found_by_nobody() -> None:
    leases = Leases(first=5)
    first, *_ = leases.grant([record(0), record(1), record(2)], 0)
    leases.end([first + 1])
    for missing in ([first + 1], [first, first + 1, first + 2], [first + 3], [first - 1], [-1], [first + 2, 99]):
        with pytest.raises(LookupError):
            leases.records(missing)
    assert leases.records([]) == []
    assert leases.records([first + 2, first]) == [record(2), record(0)]


def test_a_range_of_leases_is_as_good_as_a_list() -> None:
    leases = Leases()
    first, *_ = leases.grant([record(0), record(1), record(2)], 0)
    assert leases.records(range(first, first + 3)) == leases.records(list(range(first, first + 3)))
    leases.end(range(first, first + 3))
    assert leases.count == 0


def test_leases_of_one_millisecond_share_a_deadline_and_others_do_not() -> None:
    leases = Leases()
    leases.last(5_000)
    for now_us in (1_001, 1_500, 2_000, 2_001, 1_900):  # and the clock was set back
        leases.grant([record(now_us)], now_us)
    assert leases.expired(6_999) == []
    assert leases.expired(7_000) == [1, 2, 3, 5]
    leases.end([1, 2, 3, 5])
    assert leases.next_deadline_us() == 8_000
    assert leases.expired(8_000) == [4]


def test_what_is_granted_after_a_change_lasts_as_long_as_it_says() -> None:
    leases = Leases()
    leases.last(5_000)
    leases.grant([record(0)], 1_000)
    leases.last(2_000)
    leases.grant([record(1)], 1_000)
    assert leases.expired(3_000) == [2]
    assert leases.expired(6_000) == [1]


def test_spans_of_leases_that_have_ended_are_forgotten() -> None:
    leases = Leases()
    leases.last(10_000_000)
    for position in range(1_000):
        now_us = 1_000 * position
        granted = leases.grant([record(position)], now_us)
        leases.extend(granted, now_us + 20_000_000)
        assert leases.granted_us(granted[0]) == now_us
        leases.end(granted)
    assert len(leases._spans) <= 2
    assert len(leases._granted) == 1
    assert not leases._own_deadline
    assert leases.next_deadline_us() is None


def test_deadlines_of_leases_that_have_ended_are_forgotten_though_another_is_always_out() -> None:
    leases = Leases()
    leases.last(10_000_000)
    out: list[int] = []
    for position in range(100):
        now_us = 1_000 * position
        leases.end([*out, *leases.grant([record(position)], now_us)])
        out = [*leases.grant([record(position)], now_us)]
        leases.extend(out, now_us + 20_000_000)
    assert [*leases._own_deadline] == out


def test_leases_that_stay_out_while_thousands_come_and_go_are_still_those_of_their_records() -> None:
    leases = Leases()
    old = leases.grant([record(0), record(1)], 0)
    others = leases.grant([record(position) for position in range(2, 2 * TIDY)], 0)
    leases.end(others)
    leases.grant([record(position) for position in range(2 * TIDY, 5 * TIDY)], 0)
    assert leases.records(old) == leases.records([*old]) == [record(0), record(1)]
    leases.end(old)
    assert leases.split(old) == ([], [*old])
    assert leases.count == 3 * TIDY


def test_deadlines_of_leases_that_have_ended_are_forgotten_also_while_another_one_stays_out() -> None:
    leases = Leases()
    leases.last(10_000_000)
    leases.grant([record(0)], 1_000)
    for position in range(1, 1_000):
        granted = leases.grant([record(position)], 1_000 * position)
        leases.extend(granted, 1_000 * position + 20_000_000)
        leases.end(granted)
    assert len(leases._own_deadline) == 0


def test_a_lease_is_over_once_whatever_deadlines_it_had() -> None:
    leases = Leases()
    leases.last(5_000)
    leases.grant([record(0), record(1)], 1_000)
    leases.extend([1], 8_000)
    leases.extend([1], 7_000)
    assert leases.expired(9_000) == [1, 2]


def test_deadlines_that_were_moved_again_are_forgotten() -> None:
    leases = Leases()
    leases.last(10_000_000)
    granted = leases.grant([record(0), record(1)], 1_000)
    for now_us in range(2_000, 10_000_000, 1_000):
        leases.extend(granted[:1], now_us + 600_000_000)
    assert len(leases._spans) <= 2_048
    assert leases.expired(10_001_000) == [granted[1]]
    leases.end([granted[1]])
    assert leases.expired(609_998_000) == []
    assert leases.expired(609_999_000) == [granted[0]]


def test_one_that_stays_out_does_not_keep_what_is_known_of_the_others() -> None:
    leases = Leases()
    leases.last(600_000_000)
    [straggler] = leases.grant([record(0)], 1_000)
    for position in range(1, 10_000):
        now_us = 1_000 + 1_000 * position
        granted = leases.grant([record(position)], now_us)
        assert leases.granted_us(granted[0]) == now_us
        if position == 5_000:
            second = granted[0]
        else:
            leases.end(granted)
    assert len(leases._granted) <= 100
    assert len(leases._spans) <= 2_048
    assert (leases.granted_us(straggler), leases.granted_us(second)) == (1_000, 5_001_000)
    assert leases.expired(600_001_000) == [straggler]
    leases.end([straggler])
    assert leases.expired(605_001_000) == [second]


def test_after_an_alarm_a_grant_asks_for_another() -> None:
    leases = Leases()
    leases.last(5_000)
    leases.end(leases.grant([record(0)], 1_000))
    assert leases.new_deadline
    leases.new_deadline = False
    leases.end(leases.grant([record(1)], 1_000))
    assert not leases.new_deadline
    assert leases.expired(1_000) == []
    leases.grant([record(2)], 1_000)
    assert leases.new_deadline
    assert leases.next_deadline_us() == 6_000
