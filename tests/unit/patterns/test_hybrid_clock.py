"""The hybrid logical clock: what was caused later is greater, whatever the clocks of the machines say."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import ClockDrift, InvalidArgument
from inorder.patterns.hybrid_clock import MAX_LOGICAL, MAX_WALL_US, HybridLogicalClock

clocks = st.builds(HybridLogicalClock, st.integers(0, MAX_WALL_US), st.integers(0, MAX_LOGICAL))


@given(clocks, st.lists(st.integers(0, 10**6), min_size=2))
def test_whoever_sends_goes_forward_also_when_the_clock_goes_back(clock: HybridLogicalClock, times: list[int]) -> None:
    sent = [clock := clock.send(now_us) for now_us in times if clock.wall_us < MAX_WALL_US]
    assert all(earlier < later for earlier, later in pairwise(sent))


def test_a_clock_is_the_real_time_when_that_is_ahead() -> None:
    assert HybridLogicalClock(100, 7).send(101) == HybridLogicalClock(101, 0)
    assert HybridLogicalClock(100, 7).send(100) == HybridLogicalClock(100, 8)
    assert HybridLogicalClock(100, 7).send(50) == HybridLogicalClock(100, 8)


@pytest.mark.parametrize(
    ("ours", "theirs", "now_us", "expected"),
    [
        ((100, 3), (90, 9), 95, (100, 4)),  # ours is ahead
        ((90, 9), (100, 3), 95, (100, 4)),  # theirs is ahead
        ((100, 3), (100, 5), 95, (100, 6)),  # they are equal: the greater place counts
        ((100, 3), (90, 9), 101, (101, 0)),  # the real time is ahead of both
    ],
)
def test_the_rules_of_receiving(ours: Any, theirs: Any, now_us: int, expected: Any) -> None:
    received = HybridLogicalClock(*ours).receive(HybridLogicalClock(*theirs), now_us)
    assert received == HybridLogicalClock(*expected)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1000)), max_size=30))
def test_a_message_that_was_caused_by_another_is_greater_on_machines_whose_clocks_differ(
    hops: list[tuple[int, int, int]],
) -> None:
    """ordering-guarantees Gotcha 5: logical timestamps, where the clocks of producers are skewed."""
    skew_us = (0, -500_000, 300_000)
    machines = [HybridLogicalClock()] * 3
    now_us = 1_000_000
    for sender, receiver, passed_us in hops:
        now_us += passed_us
        machines[sender] = sent = machines[sender].send(now_us + skew_us[sender])
        machines[receiver] = received = machines[receiver].receive(sent, now_us + skew_us[receiver])
        assert received > sent
        assert received.wall_us <= now_us + max(skew_us)  # as far ahead as the fastest, and no further


def test_a_clock_that_is_too_far_ahead_is_not_followed() -> None:
    """ordering-guarantees Gotcha 5: one wrong clock does not spread."""
    ahead = HybridLogicalClock(1_500)
    assert HybridLogicalClock().receive(ahead, 1_000, max_drift_us=500) > ahead
    with pytest.raises(ClockDrift, match="a clock is 501 µs ahead, more than the limit of 500 µs"):
        HybridLogicalClock().receive(ahead, 999, max_drift_us=500)


def test_a_microsecond_that_is_full_borrows_from_the_next() -> None:
    assert HybridLogicalClock(100, MAX_LOGICAL).send(100) == HybridLogicalClock(101, 0)


@given(clocks, clocks)
def test_both_encodings_sort_as_the_clocks_do_and_come_back(one: HybridLogicalClock, other: HybridLogicalClock) -> None:
    assert HybridLogicalClock.decode(one.encode()) == one
    assert HybridLogicalClock.parse(str(one)) == one
    assert (one < other) == (one.encode() < other.encode()) == (str(one) < str(other))
    assert one.encode() < 2**63


def test_the_encoding_is_the_documented_one() -> None:
    moment = HybridLogicalClock(1_700_000_000_000_000, 5)
    assert moment.encode() == 1_700_000_000_000_000 * 1024 + 5
    assert str(moment) == "1828906079000005"


@pytest.mark.parametrize(
    "arguments", [(-1,), (True,), (1.0,), (None,), (MAX_WALL_US + 1,), (0, MAX_LOGICAL + 1), (0, -1)]
)
def test_what_is_no_moment_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"wall_us: |logical: "):
        HybridLogicalClock(*arguments)


@pytest.mark.parametrize("text", ["", "182890607900000", "1828A06079000005", "f" * 16, None, 7])
def test_what_is_no_encoded_moment_is_refused(text: Any) -> None:
    with pytest.raises(InvalidArgument):
        HybridLogicalClock.parse(text)
