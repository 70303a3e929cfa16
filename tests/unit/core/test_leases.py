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
        first = leases.grant(batch, now_us=0, deadline_us=10)
        model.update(enumerate(batch, first))
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
    straggler = leases.grant([record(0)], 0, 10)
    for position in range(1, 20 * TIDY):
        leases.end([leases.grant([record(position)], 0, 10)])
    assert leases.of(straggler) == record(0)
    assert len(leases._recent) <= 2 * TIDY


def test_a_number_that_is_not_out_is_found_by_nobody() -> None:
    leases = Leases(first=5)
    first = leases.grant([record(0), record(1), record(2)], 0, 10)
    leases.end([first + 1])
    for missing in ([first + 1], [first, first + 1, first + 2], [first + 3], [first - 1], [-1], [first + 2, 99]):
        with pytest.raises(LookupError):
            leases.records(missing)
    assert leases.records([]) == []
    assert leases.records([first + 2, first]) == [record(2), record(0)]


def test_a_range_of_leases_is_as_good_as_a_list() -> None:
    leases = Leases()
    first = leases.grant([record(0), record(1), record(2)], 0, 10)
    assert leases.records(range(first, first + 3)) == leases.records(list(range(first, first + 3)))
    leases.end(range(first, first + 3))
    assert leases.count == 0
