"""The order of rows that tie, which must be that of Spark: a table is sorted by Spark, and a stream here."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from inorder.spark.kernels import Names, Rows
from inorder.spark.sorting import sortable
from inorder.spark.steps import step_of

NAN = float("nan")
PAIR = pa.struct([("partition", pa.int32()), ("offset", pa.int64())])
DAY = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (pa.float64(), [-1.0, 0.0, 9.0, 10.0, float("inf"), NAN]),
        (pa.list_(pa.int32()), [[], [None], [9], [9, 1], [10], [10, 0]]),
        (pa.list_(pa.float64()), [[], [None], [-2.0], [1.0], [NAN]]),
        (PAIR, [{"partition": None, "offset": 1}, *({"partition": 0, "offset": at} for at in (None, 9, 10, 100))]),
        (pa.list_(pa.decimal128(5, 2)), [[Decimal("-1.00")], [Decimal("9.50")], [Decimal("10.00")]]),
        (pa.struct([("at", pa.timestamp("us", "UTC"))]), [{"at": None}, {"at": DAY}, {"at": DAY.replace(year=2027)}]),
        (pa.map_(pa.string(), pa.int32()), [[], [("a", None)], [("a", 9)], [("a", 10)], [("b", 1)]]),
        (pa.month_day_nano_interval(), [(0, 9, 0), (0, 10, 0), (1, 0, 0)]),
        (pa.null(), []),
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_values_are_sorted_as_spark_sorts_them_and_nulls_are_last(
    kind: pa.DataType, ascending: list[Any], direction: str
) -> None:
    shuffled = [*ascending[1::2], None, *ascending[::2], None]
    wanted = [*(ascending if direction == "ascending" else ascending[::-1]), None, None]
    values = pa.array(shuffled, kind)
    order = pc.sort_indices(pa.table({"it": sortable(values)}), [("it", direction)])
    assert repr(values.take(order).to_pylist()) == repr(pa.array(wanted, kind).to_pylist())


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (pa.struct([("us", pa.timestamp("us", "UTC"))]), [{"us": us} for us in (-(2**62), 0, 253_402_318_799_000_000)]),
        (pa.list_(pa.struct([("day", pa.date32())])), [[{"day": day}] for day in (-(2**30), 0, 2**30)]),
        (pa.map_(pa.string(), pa.timestamp("us")), [[("a", 0)], [("a", 2**62)], [("b", -(2**62))]]),
    ],
    ids=str,
)
def test_times_that_python_does_not_know_are_sorted_as_well(kind: pa.DataType, ascending: list[Any]) -> None:
    values = pa.array(ascending[::-1], kind)
    order = pc.sort_indices(pa.table({"it": sortable(values)}), [("it", "ascending")])
    assert values.take(order).equals(pa.array(ascending, kind))


def test_a_position_may_have_parts() -> None:
    table = pa.table(
        {"key": ["a", "a"], "id": ["x", "x"], "place": pa.array([(0, 10), (0, 9)], PAIR), "event": ["second", "first"]}
    )
    names = Names("key", "id", "place")
    step = step_of("deduplicate", {"max_age_seconds": 60}, names, keep_dropped=False)
    taken = step.take(Rows.of(table, names), step.lines(table.schema), 0)
    assert taken.outcome.column("event").to_pylist() == ["first"]
