"""Ticks beside a stream, without Spark around them."""

from __future__ import annotations

import time

from pyspark.sql.streaming.datasource import ReadAllAvailable

from inorder.spark.ticking import TickReader

HOUR_SECONDS = 3_600.0


def test_a_query_whose_ticks_have_become_rarer_goes_on_to_tick() -> None:
    often, rarely = TickReader(1), TickReader(HOUR_SECONDS)
    last = often.latestOffset(often.initialOffset(), ReadAllAvailable())
    assert rarely.latestOffset(last, ReadAllAvailable()) != last


def test_a_clock_that_was_set_back_stops_no_ticks() -> None:
    reader = TickReader(HOUR_SECONDS)
    tomorrow = {"tick": int((time.time() + 86_400) / HOUR_SECONDS)}
    assert reader.latestOffset(tomorrow, ReadAllAvailable()) != tomorrow


def test_with_the_trigger_available_now_time_stands_still() -> None:
    reader = TickReader(HOUR_SECONDS)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"tick": 5}, ReadAllAvailable()) == {"tick": 5}
