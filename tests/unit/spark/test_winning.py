"""The kernel of `latest` and `merge_fields` against the greatest of all rows there were, in whatever batches."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.spark.hashing import hashes
from inorder.spark.kernels import Names, Rows
from inorder.spark.runs import Runs
from inorder.spark.winning import Winners

NAMES = Names("id", "time")
# Some have the names that lines have for columns of their own.
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("time", pa.int64()),
        ("hash", pa.int64()),
        ("key", pa.string()),
        ("since_us", pa.list_(pa.int8())),
    ]
)
WHOLE_ROW = Winners([["hash", "key", "since_us"]], {"number": "hash", "id": "id", "text": "key", "list": "since_us"})
EACH_FIELD = Winners([["hash"], ["key"], ["since_us"]], {name: name for name in SCHEMA.names if name != "time"})

Row = tuple[int, int, Any, Any, Any]

# Few keys, times and values, so that ties of every kind are among them.
rows = st.tuples(
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, "", "a", "ä"]),
    st.sampled_from([None, [], [9], [10], [10, 0]]),
)


class Bucket:
    """Lines from batch to batch, and what was told of each key last."""

    def __init__(self, winners: Winners) -> None:
        self.winners = winners
        self.tables: list[pa.Table] = []
        self.told: dict[int, dict[str, Any]] = {}

    def take(self, batch: Sequence[Row]) -> set[int]:
        """The keys of which something is told."""
        columns = list(zip(*batch, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        new = Rows.of(pa.Table.from_arrays(arrays, schema=SCHEMA), NAMES)
        runs = Runs(self.tables, self.winners.lines(SCHEMA))
        changed = self.winners.settle(new, runs.find(new.keys, new.hashes))
        hashed = changed["hash"].to_pylist()
        assert hashed == sorted(hashed) == hashes(pa.array(changed["key"].to_pylist(), pa.string())).tolist()
        kept, run = runs.with_changes(changed)
        self.tables = [*self.tables[:kept], run]
        told = {one["id"]: one for one in self.winners.told(changed, new).to_pylist()}
        assert len(told) == len(changed)
        self.told |= told
        return set(told)


def greatest(winners: Winners, seen: Sequence[Row]) -> dict[int, Any]:
    """By key, what it has won of all that it has seen."""
    found: dict[int, Any] = {}
    for contest in winners.contests:
        best: dict[int, Any] = {}
        for row in seen:
            named = dict(zip(SCHEMA.names, row, strict=True))
            if named[contest[0]] is not None:
                rank = (row[1], *(_rank(named[name]) for name in contest))
                if row[0] not in best or rank > best[row[0]][0]:
                    best[row[0]] = rank, {name: named[name] for name in contest}
        for key, (_, won) in best.items():
            found.setdefault(key, {}).update(won)
    return {
        key: {name: key if column == "id" else won.get(column) for name, column in winners.outcome.items()}
        for key, won in found.items()
    }


def _rank(value: Any) -> Any:
    """Null is the least."""
    return (False,) if value is None else (True, value)


@pytest.mark.parametrize("winners", [WHOLE_ROW, EACH_FIELD], ids=["the whole row", "each field"])
@given(batches=st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5))
def test_the_greatest_of_all_rows_has_won(winners: Winners, batches: list[list[Row]]) -> None:
    bucket = Bucket(winners)
    seen: list[Row] = []
    for batch in batches:
        before = greatest(winners, seen)
        seen += batch
        after = greatest(winners, seen)
        told = bucket.take(batch)
        assert bucket.told == after
        # Of a field, a later row may have won with the value that was there.
        assert told >= {key for key in after if after[key] != before.get(key)}
        assert told <= {row[0] for row in batch}


@pytest.mark.parametrize("winners", [WHOLE_ROW, EACH_FIELD], ids=["the whole row", "each field"])
def test_a_row_that_comes_again_changes_nothing(winners: Winners) -> None:
    bucket = Bucket(winners)
    row = (1, 5, 1, None, [1])
    assert bucket.take([row, row]) == {1}
    assert bucket.take([row, row]) == set()
    assert bucket.take([(1, 4, 1, "late", None)]) == ({1} if winners is EACH_FIELD else set())
    assert bucket.take([]) == set()
