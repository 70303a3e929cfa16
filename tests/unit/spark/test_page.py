"""What an audit found, in words: on its page and in sentences, without Spark."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from inorder.options import SLOTS
from inorder.spark.charts import Line, bars
from inorder.spark.findings import PLACES, Bar, Columns, Findings, PartitionLoad, Violation
from inorder.spark.page import page
from inorder.spark.wording import duration, sentence

COLUMNS = Columns(
    key="user",
    sequence="number",
    arrival_order="position",
    time=None,
    arrival_time=None,
    runs=None,
    partition=None,
)
NOTHING = Findings(
    source="the log",
    columns=COLUMNS,
    allowed=(),
    events=0,
    unkeyed=0,
    unplaced=0,
    keys=0,
    broken_keys=0,
    reordered=0,
    gaps=0,
    missing=0,
    duplicates=0,
    overlapping=None,
    unmeasured_runs=None,
    untimed=None,
    farthest=0,
    longest_wait_us=None,
    buffer=0,
    timeout_us=None,
    watermark_us=None,
    lateness=(),
    waits=None,
    hot_keys=(),
    worst_keys=(),
    partitions=(),
    imbalance=1.0,
    split_keys=None,
    violations=(),
)


def found(columns: dict[str, Any] | None = None, **figures: Any) -> Findings:
    return replace(NOTHING, columns=replace(COLUMNS, **columns or {}), **figures)


def test_how_late_an_event_came_is_not_how_much_earlier_it_happened() -> None:
    late = Violation("reordered", "a", "7", 2, other_position="4", places=3, time_us=5_000_000)
    overtaken = "after it was overtaken, at position 4"
    assert sentence(late, found({"arrival_time": "at"})) == f"number 2 came 3 events of its key and 5 s {overtaken}"
    assert sentence(late, found({"time": "happened"})) == (
        f"number 2 came 3 events of its key {overtaken}; it happened 5 s earlier than the latest event before it"
    )
    assert sentence(replace(late, time_us=None), found()) == f"number 2 came 3 events of its key {overtaken}"


@pytest.mark.parametrize(
    ("time_us", "nearest", "enough"),
    [
        (0, "0 µs", "0 µs"),
        (999, "999 µs", "999 µs"),
        (240_000, "240 ms", "240 ms"),
        (5_000_000, "5 s", "5 s"),
        (1_234_567_890, "20.5761 min", "20.5762 min"),
        (86_400_000_001, "1 d", "1.00001 d"),
        (10**7 * 86_400_000_000, "10000000 d", "10000000 d"),
    ],
)
def test_a_time_that_must_be_enough_is_not_rounded_down(time_us: int, nearest: str, enough: str) -> None:
    assert (duration(time_us), duration(time_us, at_least=True)) == (nearest, enough)


def test_what_would_repair_a_log_is_enough_as_it_is_shown() -> None:
    least_us = 1_234_567_890
    late = {"reordered": 1, "lateness": (Bar(1, 1),), "longest_wait_us": least_us, "watermark_us": least_us}
    html = page(found({"time": "happened"}, **late))
    assert "more than 20.5762 min<" in html
    assert ">20.5762 min<" in html


def test_the_last_bar_of_a_histogram_has_no_end() -> None:
    late = tuple(Bar(first, 1) for first in PLACES)
    html = page(found(reordered=len(late), lateness=late, farthest=5_000_000))
    assert ">524,288 to 1,048,575<" in html
    assert ">1,048,576 and more<" in html
    html = page(found(reordered=len(late) - 1, lateness=late[:-1], farthest=600_000))
    assert ">524,288 to 1,048,575<" in html


def test_partitions_that_there_is_no_room_for_count_all_the_same() -> None:
    loads = tuple(PartitionLoad(str(number), 2, 1 / 5_000) for number in range(SLOTS))
    even = found({"partition": "shard"}, events=10_000, keys=10_000, partitions=loads, imbalance=1.0)
    assert even.partition_count == 5_000
    html = page(even)
    assert "And 4,968 more." in html
    [mark] = re.findall(r'<line class="mark" x1="([\d.]+)"', html)
    ends = [float(x) + float(width) for x, width in re.findall(r'<rect [^>]*x="(\d+)"[^>]*width="([\d.]+)"', html)]
    assert ends == [float(mark)] * 32  # each bar is an equal share
    assert replace(even, partitions=loads[:3], imbalance=3 / 5_000).partition_count == 3
    assert NOTHING.partition_count == 0


def test_an_empty_log_is_not_one_without_keys() -> None:
    assert "There are no events." in page(NOTHING)
    assert "No event has a key, so no order was promised." in page(found(events=3, unkeyed=3))


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("", ""),
        ("a" * 20, "a" * 20),
        ("3F2504E0-4F89-11D3-9A0C-0305E82C3301", "3F2504E0-4F89-11D3-…"),
        ("\N{CJK UNIFIED IDEOGRAPH-5BA2}" * 11, "\N{CJK UNIFIED IDEOGRAPH-5BA2}" * 9 + "…"),
    ],
)
def test_what_stands_at_a_bar_has_room(label: str, shown: str) -> None:
    """In DejaVu Sans, which is wide: a capital has about 9 pixels, one of a figure 7.3, and an ideograph 13."""
    svg = bars("load", [Line(label, 10**9, "1,000,000,000 (100.0%)")])
    [width] = re.findall(r'viewBox="0 0 (\d+) ', svg)
    [(end, text)] = re.findall(r'<text class="label" x="(\d+)" [^>]*>([^<]*)<', svg)
    [(start, figure)] = re.findall(r'<text class="figure" x="([\d.]+)" [^>]*>([^<]*)<', svg)
    assert text == shown
    assert sum(13 if letter > "\u3000" else 9 for letter in text) <= int(end)
    assert float(start) + 7.3 * len(figure) <= int(width)
