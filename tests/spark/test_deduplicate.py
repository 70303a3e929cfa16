"""`deduplicate` against its pure patterns."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from inorder.errors import InvalidArgument, StateRefused
from inorder.patterns import DeduplicateIds, DeduplicateSequences, fold_timed
from inorder.spark.operators import deduplicate

from .streams import SECOND, Stream

IDS = "key STRING, id STRING, position BIGINT"
NUMBERS = "key STRING, producer STRING, number BIGINT, position BIGINT"


def batches(seed: int, events: Any) -> list[Any]:
    random = Random(seed)
    rows = [(*events(random), position) for position in range(300)]
    return [rows[start : start + 60] for start in range(0, 300, 60)]


def run(stream: Stream, history: list[Any], operator: Any) -> list[tuple[str, Any]]:
    for rows in history:
        shuffled = list(rows)
        Random(1).shuffle(shuffled)
        stream.put(*shuffled)
    stream.run(operator, [(batch + 1) * SECOND for batch in range(len(history))])
    return stream.told()


def wanted(pattern: Any, history: list[Any]) -> Counter[Any]:
    arrivals = [((batch + 1) * SECOND, row) for batch, rows in enumerate(history) for row in rows]
    return Counter((fate, event) for _, fate, event in fold_timed(pattern, arrivals).emit)


def test_ids_are_told_apart_as_their_pattern_does(spark: SparkSession, tmp_path: Path) -> None:
    history = batches(1, lambda random: (random.choice("abc"), f"id-{random.randrange(40)}"))
    stream = Stream(spark, tmp_path, IDS)
    options: Any = {"max_age": "2 seconds", "max_ids": 15, "keep_dropped": True}
    found = run(stream, history, deduplicate(stream.rows(), key="key", id="id", position="position", **options))
    assert Counter(found) == wanted(DeduplicateIds(max_ids=15, max_age_seconds=2), history)


def test_numbers_are_told_apart_as_their_pattern_does(spark: SparkSession, tmp_path: Path) -> None:
    history = batches(2, lambda random: (random.choice("ab"), random.choice(["p", "q", "r"]), random.randrange(60)))
    stream = Stream(spark, tmp_path, NUMBERS)
    operator = deduplicate(
        stream.rows(),
        key="key",
        producer="producer",
        sequence="number",
        position="position",
        window=20,
        max_producers=2,
        too_old="emit",
        max_age="3 seconds",
        keep_dropped=True,
    )
    pattern = DeduplicateSequences(window=20, max_producers=2, too_old="emit", max_age_seconds=3)
    assert Counter(run(stream, history, operator)) == wanted(pattern, history)


def test_an_id_that_came_before_a_restart_is_known(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, IDS)
    operator = deduplicate(stream.rows(), key="key", id="id", keep_dropped=True)
    stream.put(("a", "x", 0), ("a", "x", 1))
    stream.run(operator)
    stream.put(("a", "x", 2), ("a", "y", 3))
    stream.run(operator)
    assert Counter(fate for fate, _ in stream.told()) == {"released": 2, "duplicate": 2}
    with pytest.raises(StateRefused, match="it is of deduplicate, not of deduplicate by sequence"):
        stream.run(deduplicate(stream.rows(), key="key", producer="id", sequence="position"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "give id, or producer and sequence"),
        ({"id": "id", "sequence": "position"}, "give id, or producer and sequence"),
        ({"id": "id", "window": 5}, "window: it means nothing to deduplication by id"),
    ],
)
def test_what_makes_no_sense_is_refused(spark: SparkSession, tmp_path: Path, options: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        deduplicate(Stream(spark, tmp_path, IDS).rows(), key="key", **options)
