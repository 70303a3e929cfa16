"""The ordering patterns as operators on DataFrames, streaming and batch, from any source.

Of a stream an operator makes an `OrderedStream`, which ends in a query; of a table it makes a DataFrame. The columns
are those of the rows, `_fate` (what became of the row) and `_gap` (of a row that stands for numbers that never came).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType, StringType

from inorder.errors import InvalidArgument
from inorder.options import DEFAULT_PARKED, check_choice, check_flag
from inorder.patterns.deduplication import DeduplicateIds, DeduplicateSequences, TooOld
from inorder.patterns.sequencing import DuplicatePolicy, Initial, LatePolicy, Resequencer
from inorder.patterns.versioning import VersionGate, VersionMode
from inorder.spark.durations import Duration, seconds
from inorder.spark.kernels import Names, Sequencing
from inorder.spark.operations import Operation
from inorder.spark.outcomes import FATE, GAP, RESERVED, InvalidRows
from inorder.spark.steps import Deduplicating
from inorder.spark.streams import OrderedStream, check_buckets
from inorder.spark.tables import in_table

WhenFull = Literal["error", "gap"]

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_NUMBER_IS = {"apply_versions": "version", "deduplicate": "id"}  # what its argument is called; else sequence


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


def deduplicate(
    rows: DataFrame,
    *,
    key: str,
    id: str | None = None,
    producer: str | None = None,
    sequence: str | None = None,
    position: str | None = None,
    max_age: Duration = "1 day",
    max_ids: int | None = None,
    window: int | None = None,
    max_producers: int | None = None,
    too_old: TooOld | None = None,
    invalid: InvalidRows = "error",
    keep_dropped: bool = False,
    buckets: int | None = None,
) -> OrderedStream:
    """Each id of a key once, or each number of each producer of a key, within bounds that are exact.

    By `id` it is `inorder.patterns.DeduplicateIds` (`max_ids`), by `producer` and `sequence` it is
    `inorder.patterns.DeduplicateSequences` (`window`, `max_producers`, `too_old`). The rows of a micro-batch come by
    `position`, or else by id or number. It is for streams: a table has `dropDuplicates`, which forgets nothing.
    """
    if not rows.isStreaming:
        raise InvalidArgument("deduplicate is for streams; for a table, dropDuplicates says it all")
    age = {"max_age_seconds": seconds("max_age", max_age)}
    if id is not None and producer is None and sequence is None:
        by_id = {**age, **_given(max_ids=max_ids)}
        _refuse("id", window=window, max_producers=max_producers, too_old=too_old)
        names = Names(key, id, position)
        return _stream("deduplicate", rows, DeduplicateIds(**by_id), names, invalid, keep_dropped, buckets)
    if id is None and producer is not None and sequence is not None:
        by_number: dict[str, Any] = {**age, **_given(window=window, max_producers=max_producers, too_old=too_old)}
        _refuse("producer and sequence", max_ids=max_ids)
        pattern = DeduplicateSequences(**by_number)
        names = Names(key, sequence, position, producer)
        return _stream("deduplicate by sequence", rows, pattern, names, invalid, keep_dropped, buckets)
    raise InvalidArgument("deduplicate: give id, or producer and sequence")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(by: str, **options: Any) -> None:
    for name in _given(**options):
        raise InvalidArgument(f"{name}: it means nothing to deduplication by {by}")


def _applied(
    operator: str,
    rows: DataFrame,
    pattern: Sequencing,
    names: Names,
    invalid: InvalidRows,
    keep_dropped: bool,
    buckets: int | None,
) -> OrderedStream | DataFrame:
    if rows.isStreaming:
        return _stream(operator, rows, pattern, names, invalid, keep_dropped, buckets)
    _check(operator, rows, names, invalid, keep_dropped, buckets)
    return in_table(rows, pattern, names, invalid, keep_dropped)


def _stream(
    operator: str,
    rows: DataFrame,
    pattern: Sequencing | Deduplicating,
    names: Names,
    invalid: InvalidRows,
    keep_dropped: bool,
    buckets: int | None,
) -> OrderedStream:
    _check(operator, rows, names, invalid, keep_dropped, buckets)
    options = {one.name: getattr(pattern, one.name) for one in fields(pattern) if one.init}
    operation = Operation(operator=operator, options=options, names=names, invalid=invalid, keep_dropped=keep_dropped)
    return OrderedStream(rows, operation, buckets)


def _check(
    operator: str, rows: DataFrame, names: Names, invalid: InvalidRows, keep_dropped: bool, buckets: int | None
) -> None:
    check_choice("invalid", invalid, InvalidRows)
    check_flag("keep_dropped", keep_dropped)
    check_buckets(buckets)
    _check_columns(rows, names, _NUMBER_IS.get(operator, "sequence"))


def _check_columns(rows: DataFrame, names: Names, number: str) -> None:
    """Refuse columns that are not there, are there twice, or have a type that no pattern reads."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    if len(types) < len(rows.columns):
        raise InvalidArgument(f"the rows have two columns of one name: {', '.join(rows.columns)}")
    for taken in types:  # Spark does not tell names apart by case, unless it is told to
        if taken.lower() in (FATE, GAP) or taken.lower().startswith(RESERVED):
            raise InvalidArgument(f"the rows have a column {taken!r} already; rename it, or drop it")
    for role, name, kinds, wanted in (
        ("key", names.key, (StringType, *_WHOLE), "text or whole numbers"),
        ("id", names.number, (StringType, *_WHOLE), "text or whole numbers")
        if number == "id"
        else (number, names.number, _WHOLE, "whole numbers"),
        ("producer", names.producer, (StringType,), "text"),
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
