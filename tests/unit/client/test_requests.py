"""How much of each key is collected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.client.requests import Tally

ARRIVAL = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 50)), min_size=1, max_size=8)


@given(
    arrivals=st.lists(ARRIVAL, min_size=1, max_size=6),
    limit=st.integers(-5, 200),
    count=st.integers(1, 20),
    looks=st.booleans(),
    foreseen=st.integers(0, 8),
)
def test_a_tally_says_what_counting_anew_would_say(
    arrivals: list[list[tuple[str, int]]], limit: int, count: int, looks: bool, foreseen: int
) -> None:
    keys: list[str] = []
    all_sizes: list[int] = []
    tally = Tally(keys, all_sizes)
    for arrival in arrivals:
        if coming := arrival[:foreseen]:
            bound, size = tally.foresee([key for key, _ in coming], [size for _, size in coming])
            assert tally.ahead == len(coming)
            will_be = keys + [key for key, _ in coming]
            assert bound >= max(map(will_be.count, will_be))
            assert size == sum(all_sizes) + sum(size for _, size in coming)
        keys += [key for key, _ in arrival]
        all_sizes += [size for _, size in arrival]
        rows = [*zip(keys, all_sizes, strict=True)]
        sizes = {key: [size for other, size in rows if other == key] for key in ("", "a", "b", "c")}
        for key, of_key in sizes.items():
            if looks:
                assert tally.reaches(key, count) == (len(of_key) >= count)
            assert tally.exceeds(key, limit) == (bool(of_key) and sum(of_key) > limit)
        most, most_bytes = tally.most(count, max(limit, 1))
        counted = max(map(len, sizes.values()))
        assert most == counted or counted < most <= 3 * count / 4
        largest, everything = max(map(sum, sizes.values())), sum(map(sum, sizes.values()))
        assert most_bytes == (everything if 2 * everything < max(limit, 1) else largest)


def test_a_tally_of_many_keys_counts_none_of_them() -> None:
    keys: list[str] = []
    sizes: list[int] = []
    tally = Tally(keys, sizes)
    for start in range(0, 200, 50):
        keys += [f"key-{number}" for number in range(start, start + 50)]
        sizes += [100] * 50
        assert not tally.reaches(keys[-1], 100)
    assert tally.most(100, 1_000_000) == (4, 20_000)  # one each time, as if always the same key came again
    assert tally.most(5, 1_000_000) == (1, 20_000)
