"""How much of each key is collected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.client.requests import Tally

ARRIVAL = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 50)), min_size=1, max_size=8)


@given(arrivals=st.lists(ARRIVAL, min_size=1, max_size=6), limit=st.integers(-5, 200), looks=st.booleans())
def test_a_tally_says_what_counting_anew_would_say(
    arrivals: list[list[tuple[str, int]]], limit: int, looks: bool
) -> None:
    keys: list[str] = []
    all_sizes: list[int] = []
    tally = Tally(keys, all_sizes)
    for arrival in arrivals:
        keys += [key for key, _ in arrival]
        all_sizes += [size for _, size in arrival]
        rows = [*zip(keys, all_sizes, strict=True)]
        sizes = {key: [size for other, size in rows if other == key] for key in ("", "a", "b", "c")}
        if looks:
            assert {key: tally.count_of(key) for key in sizes} == {key: len(of_key) for key, of_key in sizes.items()}
        for key, of_key in sizes.items():
            assert tally.exceeds(key, limit) == (bool(of_key) and sum(of_key) > limit)
        most, most_bytes = tally.most(max(limit, 1))
        assert most == max(map(len, sizes.values()))
        largest, everything = max(map(sum, sizes.values())), sum(map(sum, sizes.values()))
        assert most_bytes == (everything if 2 * everything < max(limit, 1) else largest)
