"""Every violation as a row: what, of which key, at which position."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.findings import Kind
from inorder.spark.hashing import Numbers
from inorder.spark.judging import Judged, Spotted
from inorder.spark.lineup import NONE

TEXTS = ("kind", "key")
NUMBERS = ("value", "until", "places", "time_us")
OTHER = "other_"  # and the name of a column of positions
IN_ORDER_BY = ("key", "kind", "value")  # behind their positions; what is not known goes first


def schema(positions: pa.Schema) -> pa.Schema:
    """Of a table of violations; see `Violation`. Each is at a position, which may be several columns."""
    others = [pa.field(OTHER + field.name, field.type) for field in positions]
    texts, numbers = [(name, pa.string()) for name in TEXTS], [(name, pa.int64()) for name in NUMBERS]
    return pa.schema([*texts, *numbers, *positions, *others])


def violations(judged: Judged, allowed: Collection[Kind]) -> list[pa.Table]:
    """One row for each, in some order."""
    return [_table(judged.keys, one) for one in judged.spotted if one.kind not in allowed and len(one.at)]


def first_of(tables: list[pa.Table], positions: list[str], count: int) -> pa.Table:
    """The first so many, in some order."""
    whole = pa.concat_tables(tables)
    by = dict[str, pa.ChunkedArray]()
    for name in (*positions, *IN_ORDER_BY):
        by |= {f"has {name}": pc.is_valid(whole.column(name)).cast(pa.int8()), name: whole.column(name)}
    least = pc.select_k_unstable(pa.table(by), min(count, len(whole)), [(name, "ascending") for name in by])
    return whole.take(least)


def _table(keys: pa.StringArray, spotted: Spotted) -> pa.Table:
    count = len(spotted.at)
    here = spotted.where.take(pa.array(spotted.at))
    there = spotted.where.take(pa.nulls(count, pa.int64()) if spotted.other is None else pa.array(spotted.other))
    columns = [
        pa.repeat(spotted.kind, count),
        keys.take(pa.array(spotted.code)),
        pa.nulls(count, pa.int64()) if spotted.value is None else spotted.value,
        *(_amounts(numbers, count) for numbers in (spotted.until, spotted.places, spotted.time_us)),
        *here.columns,
        *there.columns,
    ]
    return pa.table(columns, schema=schema(spotted.where.schema))


def _amounts(numbers: Numbers | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if numbers is None else pa.array(numbers, mask=numbers == NONE)
