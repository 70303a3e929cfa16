"""The ordering patterns as operators on DataFrames, streaming and batch, from any source.

Of a stream an operator makes an `OrderedStream`, which ends in a query; of a table it makes a DataFrame. The columns
are those of the rows, `_fate` (what became of the row) and `_gap` (of a row that stands for numbers that never came).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType, StringType

from inorder.errors import InvalidArgument
from inorder.options import DEFAULT_PARKED, check_choice, check_flag
from inorder.patterns.sequencing import DuplicatePolicy, Initial, LatePolicy, Resequencer
from inorder.patterns.versioning import VersionGate, VersionMode
from inorder.spark.durations import Duration, seconds
from inorder.spark.kernels import Names, Sequencing
from inorder.spark.outcomes import FATE, GAP, InvalidRows
from inorder.spark.streams import Operation, OrderedStream, check_buckets
from inorder.spark.tables import in_table
from inorder.spark.tasks import BUCKET

WhenFull = Literal["error", "gap"]

_WHOLE = (ByteType, ShortType, IntegerType, LongType)


def resequence(
    rows: DataFrame,
    *,
    key: str,
    sequence: str,
    position: str | None = None,
    initial: int | Initial = 1,
    gap_timeout: Duration | None = None,
    capacity: int = DEFAULT_PARKED,
    when_full: WhenFull = "error",
    late: LatePolicy = "drop",
    duplicates: DuplicatePolicy = "drop",
    invalid: InvalidRows = "error",
    keep_dropped: bool = False,
    buckets: int | None = None,
) -> OrderedStream | DataFrame:
    """Rows of a key in the order of their sequence numbers, each number once: `inorder.patterns.Resequencer`.

    The rows of a micro-batch come at one time, in the order of their numbers; of two with one number the one with
    the lower `position` comes first, if there is such a column, and else their content decides. With `"first_seen"`
    a key begins with the lowest number of its first batch.

    A stream parks what is ahead of its turn. In a table all has come that ever will: what is behind a hole is
    `parked`, or, with a gap timeout, released behind a gap. A table has no parking that could be full.
    """
    pattern = Resequencer(
        initial=initial,
        capacity=capacity,
        when_full=_when_full(when_full),
        gap_timeout_seconds=seconds("gap_timeout", gap_timeout),
        late=late,
        duplicates=duplicates,
    )
    names = Names(key, sequence, position)
    return _applied("resequence", rows, pattern, names, invalid, keep_dropped, buckets)


def apply_versions(
    rows: DataFrame,
    *,
    key: str,
    version: str,
    position: str | None = None,
    mode: VersionMode = "every",
    first_version: int = 1,
    gap_timeout: Duration | None = None,
    capacity: int = DEFAULT_PARKED,
    when_full: WhenFull = "error",
    invalid: InvalidRows = "error",
    keep_dropped: bool = False,
    buckets: int | None = None,
) -> OrderedStream | DataFrame:
    """Each entity only goes forward, version by version, or to whatever is newer: `inorder.patterns.VersionGate`.

    The rest is as with `resequence`.
    """
    pattern = VersionGate(
        mode=mode,
        first_version=first_version,
        capacity=capacity,
        when_full=_when_full(when_full),
        gap_timeout_seconds=seconds("gap_timeout", gap_timeout),
    )
    return _applied("apply_versions", rows, pattern, Names(key, version, position), invalid, keep_dropped, buckets)


def _applied(
    operator: str,
    rows: DataFrame,
    pattern: Sequencing,
    names: Names,
    invalid: InvalidRows,
    keep_dropped: bool,
    buckets: int | None,
) -> OrderedStream | DataFrame:
    check_choice("invalid", invalid, InvalidRows)
    check_flag("keep_dropped", keep_dropped)
    check_buckets(buckets)
    check_columns(rows, names)
    if not rows.isStreaming:
        return in_table(rows, pattern, names, invalid, keep_dropped)
    options = {one.name: getattr(pattern, one.name) for one in fields(pattern) if one.init}
    operation = Operation(operator=operator, options=options, names=names, invalid=invalid, keep_dropped=keep_dropped)
    return OrderedStream(rows, operation, buckets)


def check_columns(rows: DataFrame, names: Names) -> None:
    """Refuse columns that are not there, are there twice, or have a type that no pattern reads."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    if len(types) < len(rows.columns):
        raise InvalidArgument(f"the rows have two columns of one name: {', '.join(rows.columns)}")
    for reserved in (FATE, GAP, BUCKET):
        if reserved in types:
            raise InvalidArgument(f"the rows have a column {reserved!r} already; rename it, or drop it")
    for role, name, kinds, wanted in (
        ("key", names.key, (StringType, *_WHOLE), "text or whole numbers"),
        ("number", names.number, _WHOLE, "whole numbers"),
        ("position", names.position, None, ""),
    ):
        if name is None:
            continue
        if name not in types:
            raise InvalidArgument(f"{role}: there is no column {name!r}, only {', '.join(types)}")
        if kinds is not None and not isinstance(types[name], kinds):
            raise InvalidArgument(f"{role}: {name!r} is {types[name].simpleString()}, and must be {wanted}; cast it")


def _when_full(given: str) -> WhenFull:
    """A broker can be told to send a message again; a stream cannot."""
    if given == "retry":
        raise InvalidArgument("when_full: 'error' or 'gap'; there is nobody who would send a row again for 'retry'")
    check_choice("when_full", given, WhenFull)
    return given  # type: ignore[return-value]
