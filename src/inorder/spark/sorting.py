"""Rows of a bucket in one total order: key, number, what is parked before what is new, and then what decides ties.

Shuffles keep no order, so whatever must come out the same when a batch is run again is sorted first.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.hashing import Numbers
from inorder.spark.nested import retyped

Flags = npt.NDArray[np.bool_]

MOST = 2**63 - 1  # that an array of numbers can hold


def joined(codes: Numbers, numbers: Numbers) -> Numbers:
    """One number for each pair, which sorts as the pair does. Codes are small and not negative."""
    if not len(codes):
        return np.empty(0, np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if (int(codes.max()) + 1) * (high - low + 1) > MOST:
        _, numbers = np.unique(numbers, return_inverse=True)  # their ranks sort alike, and are small
        low, high = 0, len(numbers)
    pairs: Numbers = codes * (high - low + 1) + (numbers - low)
    return pairs


def in_order(
    rows: pa.Table, indices: Numbers, codes: Numbers, numbers: Numbers, parked: int, position: str | None
) -> tuple[Numbers, Flags]:
    """How to sort the rows with these indices, and which of them then have the key and number of the one before.

    The first `parked` rows of the table were there already, so they go first among equals. Then the least `position`
    does, if the rows have one, and then the content decides, because the order of arrival is not known.
    """
    pairs = joined(codes, numbers)
    order = np.argsort(pairs)
    arranged = pairs[order]
    same: Flags = np.zeros(len(order), np.bool_)
    np.equal(arranged[1:], arranged[:-1], out=same[1:])
    if same.any():
        tied = same.copy()
        tied[:-1] |= same[1:]
        where = np.flatnonzero(tied)
        among = order[where]
        order[where] = among[_settled_ties(rows, arranged[where], indices[among], parked, position)]
    return order, same


def _settled_ties(rows: pa.Table, groups: Numbers, indices: Numbers, parked: int, position: str | None) -> Numbers:
    tied = rows.take(pa.array(indices))
    names = [position] if position is not None else []
    names += [name for name in rows.column_names if name != position]
    columns = {"group": pa.array(groups), "new": pa.array((indices >= parked).astype(np.int8))}
    columns |= {f"column {place}": sortable(tied.column(name)) for place, name in enumerate(names)}
    by = [(name, "ascending") for name in columns]
    found: Numbers = pc.sort_indices(pa.table(columns), sort_keys=by).to_numpy().astype(np.int64)
    return found


def sortable(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """A column that Arrow sorts as Spark sorts this one, up or down: of what Arrow does not, the ranks."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.int8())
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        # Arrow puts what is not a number behind all others, which way ever it sorts. To Spark it is the greatest.
        return pc.if_else(pc.is_valid(column), pc.rank(column, "ascending", tiebreaker="dense"), None)
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        ranks = [_rank(value) for value in column.cast(retyped(kind, _as_number)).to_pylist()]
        places = {rank: place for place, rank in enumerate(sorted(set(ranks)))}
        return pa.array([None if rank == _NULL else places[rank] for rank in ranks], pa.int64())
    return column


def _as_number(kind: pa.DataType) -> pa.DataType:
    """Times and days sort as the numbers they are: Python knows none after 9999, or before the year 1."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


_NULL: Final = (0,)


def _rank(value: Any) -> tuple[Any, ...]:
    """Sorts as the value does in Spark: part by part; null is the least, and what is not a number the greatest."""
    if value is None:
        return _NULL
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return (2,) if value != value else (1, value)
    return (1, tuple(map(_rank, value)))
