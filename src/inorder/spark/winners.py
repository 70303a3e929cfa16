"""`latest` and `merge_fields`: the greatest write of each key, or of each field of it.

The order is that of the pure patterns, and total, so the order of rows does not matter, and neither does whether they
come as a stream or as a table. A table is aggregated by Spark. A stream could be too, but with many keys Spark sorts
and copies rows several times; so it goes through a kernel of ours, which has what ranks rows as columns of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidArgument
from inorder.options import DEFAULT_DRIFT_SECONDS, MAX_ORDERING_KEY_BYTES, check_choice, check_number
from inorder.patterns.hybrid_clock import LOGICAL_BITS
from inorder.patterns.independent_fields import IndependentFields
from inorder.patterns.last_write_wins import Stamps
from inorder.spark.durations import Duration, seconds
from inorder.spark.kernels import Names
from inorder.spark.operations import Operation
from inorder.spark.outcomes import RESERVED, InvalidRows
from inorder.spark.streams import OrderedStream, check_buckets
from inorder.spark.tables import column, has_order, orderable
from inorder.spark.winning import Winners

DELETED: Final = "_deleted"

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_ROW = "_inorder_row"
_HASH = "_inorder_hash"
_TIME = "_inorder_time"
_PRODUCER = "_inorder_producer"
_DELETED = "_inorder_deleted"
_CHECKSUM = "_inorder_checksum"
_DELETE = 2**32  # what a delete has for it
_WRITTEN = {"timeZone": "UTC", "ignoreNullFields": "true"}  # whatever the session has: others are to come to the same


def latest(
    rows: DataFrame,
    *,
    key: str,
    time: str,
    value: str,
    producer: str | None = None,
    stamps: Stamps = "microseconds",
    max_drift: Duration | None = DEFAULT_DRIFT_SECONDS,
    invalid: InvalidRows = "error",
    buckets: int | None = None,
) -> OrderedStream | DataFrame:
    """Of each key the row of the greatest write: `inorder.patterns.LastWriteWins`. A stream tells keys as they change.

    A write is greater by its time, then by its producer, then by being a delete (`value` is null), then by CRC-32 of
    its value, and then by the value itself and the other columns. (The pure pattern has no value to compare, so between
    two of one CRC-32 it takes the greater SHA-256.) A deleted key stays for ever, with `_deleted`, so that no late
    update brings it back. A time that is further ahead than `max_drift` is left out; `ahead_of_time` finds such rows.
    `time` is a timestamp, or a number as `stamps` says.
    """
    given = {"key": key, "time": time, "value": value, "producer": producer}
    types = _checked(rows, given, key, time)
    for taken in types:
        if taken.lower() == DELETED:
            raise InvalidArgument(_taken(taken))
    check_choice("stamps", stamps, Stamps)
    check_choice("invalid", invalid, InvalidRows)
    check_buckets(buckets)
    moment = _moment(types[time], time)
    rows = _readable(rows, key, moment, invalid)
    if (ahead := _ahead(moment, stamps, max_drift)) is not None:
        rows = rows.where(~ahead)
    deleted = column(value).isNull()
    rank = {_TIME: moment, _DELETED: deleted, _CHECKSUM: checksum(column(value), types[value])}
    if producer is not None:
        by = F.coalesce(column(producer).cast("string"), F.lit(""))
        rank = {_TIME: moment, _PRODUCER: by, **rank}
    others = {value: column(value), **{name: column(name) for name in rows.columns if name != key}}
    greatest = _grouped(rows, key).agg(_greatest(rank, others, rows.schema).alias(_ROW))
    row = F.col(_ROW)
    columns = [column(key) if name == key else row.getField(name).alias(name) for name in rows.columns]
    table = greatest.select(*columns).withColumn(DELETED, deleted)
    if not rows.isStreaming:
        return table
    # Fewer columns, as each has its price on the way: the time is one of the rows, and a delete has the greatest sum.
    won = {_CHECKSUM: F.coalesce(rank[_CHECKSUM], F.lit(_DELETE)), **others}
    if producer is not None:
        won = {_PRODUCER: rank[_PRODUCER], **won}
    won.pop(time)
    ranked = rows.select(column(key), column(time), *(part.alias(name) for name, part in won.items()))
    winners = Winners([[*won]], {name: name for name in rows.columns}, {DELETED: value})
    return _stream("latest", ranked, Names(key, time), given, winners, buckets, table)


def ahead_of_time(
    rows: DataFrame,
    *,
    time: str,
    stamps: Stamps = "microseconds",
    max_drift: Duration = DEFAULT_DRIFT_SECONDS,
) -> DataFrame:
    """The rows that `latest` leaves out because their time is too far ahead of ours."""
    types = _checked(rows, {"time": time}, None, time)
    check_choice("stamps", stamps, Stamps)
    ahead = _ahead(_moment(types[time], time), stamps, max_drift)
    assert ahead is not None
    return rows.where(ahead)


def merge_fields(
    rows: DataFrame,
    *,
    key: str,
    event_type: str,
    time: str,
    owns: Mapping[str, Collection[str]],
    invalid: InvalidRows = "error",
    buckets: int | None = None,
) -> OrderedStream | DataFrame:
    """Of each key a row with the newest value of each field: `inorder.patterns.IndependentFields`.

    `owns` says which fields, columns of the rows, each event type writes; a field with two owners is refused. A row
    writes the fields of its type that are not null. Within a field the greatest time wins, and of two values of one
    time the one with the greater CRC-32, and then the greater one. Rows of a type that owns nothing go by `invalid`.
    A stream tells keys as they change.
    """
    IndependentFields(owns)  # which knows what is wrong with them
    owner_of = {name: owner for owner, fields in owns.items() for name in fields}
    if key in owner_of:
        raise InvalidArgument(f"owns: {key!r} is the key, which no event writes")
    columns = {"key": key, "event_type": event_type, "time": time}
    types = _checked(rows, {**columns, **{name: name for name in owner_of}}, key, time)
    check_choice("invalid", invalid, InvalidRows)
    check_buckets(buckets)
    moment = _moment(types[time], time)
    known = F.coalesce(column(event_type).isin(*owns), F.lit(False))
    rows = _readable(rows, key, moment, invalid, known)
    written = {name: (column(event_type) == owner) & column(name).isNotNull() for name, owner in owner_of.items()}
    sums = {name: checksum(column(name), types[name]) for name in owner_of}
    merged = []
    for name in owner_of:
        rank = {_TIME: moment, _CHECKSUM: sums[name]}
        greatest = _greatest(rank, {name: column(name)}, rows.schema, written[name])
        merged.append(greatest.getField(name).alias(name))
    table = _grouped(rows, key).agg(*merged).drop(_HASH)
    if not rows.isStreaming:
        return table
    ranked = [column(key), moment.alias(_TIME)]
    contests = []
    for name in sorted(owner_of):
        sum_of_it = f"{_CHECKSUM}_{name}"  # which only rows have that write the field
        ranked += [F.when(written[name], sums[name]).alias(sum_of_it), column(name)]
        contests.append([sum_of_it, name])
    winners = Winners(contests, {name: name for name in (key, *owner_of)})
    return _stream("merge_fields", rows.select(*ranked), Names(key, _TIME), columns, winners, buckets, table)


def _stream(
    operator: str,
    ranked: DataFrame,
    names: Names,
    given: Mapping[str, str | None],
    winners: Winners,
    buckets: int | None,
    aggregated: DataFrame,
) -> OrderedStream:
    operation = Operation(operator=operator, options=asdict(winners), names=names, given=dict(given))
    return OrderedStream(ranked, operation, buckets, aggregated=aggregated)


def checksum(value: Column, kind: DataType) -> Column:
    """What decides between values of one time, before they do so themselves: CRC-32, with which `digest` begins.

    Of bytes, text, whole numbers and booleans it is that of the pure patterns. Others are written as Spark does.
    """
    if isinstance(kind, BinaryType):
        content = value
    elif isinstance(kind, (*_WHOLE, BooleanType)):
        content = value.cast("string").cast("binary")
    else:
        written = F.to_json(F.struct(value.alias("v")), _WRITTEN)  # {"v":…}
        content = F.when(value.isNotNull(), written.substr(F.lit(6), F.length(written) - 6)).cast("binary")
        if isinstance(kind, StringType):  # Spark writes \u001F, and others \u001f
            content = F.when(F.contains(written, F.lit("\\u00")), _as_json(value).cast("binary")).otherwise(content)
    return F.crc32(content)


def _as_json(text: Column) -> Column:
    """As the pure patterns write it; slow."""
    escaped = text.cast("string")
    for character in ("\\", '"', *map(chr, range(32))):
        escaped = F.replace(escaped, F.lit(character), F.lit(json.dumps(character)[1:-1]))
    return F.concat(F.lit('"'), escaped, F.lit('"'))


def _greatest(
    rank: Mapping[str, Column], others: Mapping[str, Column], schema: StructType, written: Column | None = None
) -> Column:
    """Of the rows that are `written` the greatest by `rank`, with `others`, which decide if the rank does not.

    Spark keeps it as its state, and copies it several times on the way there: so what is not needed is not in it.
    """
    whole = F.struct(*(part.alias(name) for name, part in {**rank, **others}.items()))
    types = {name: schema[name].dataType for name in others}
    if all(map(has_order, types.values())):
        return F.max(whole if written is None else F.when(written, whole))
    by = F.struct(*rank.values(), *(orderable(name, kind) for name, kind in types.items()))
    return F.max_by(whole, by if written is None else F.when(written, by))


def _grouped(rows: DataFrame, key: str) -> GroupedData:
    """By key. Spark sorts the rows for that, which is much faster by a number than by texts that begin alike."""
    return rows.groupBy(F.xxhash64(column(key)).alias(_HASH), column(key))


def _moment(kind: DataType, time: str) -> Column:
    return F.unix_micros(column(time)) if isinstance(kind, TimestampType) else column(time).cast("long")


def _ahead(moment: Column, stamps: Stamps, max_drift: Duration | None) -> Column | None:
    """Whether a time is too far ahead of now, which in a stream is the time of its micro-batch."""
    drift = seconds("max_drift", max_drift)
    if drift is None:
        return None
    check_number("max_drift", drift, up_to=365 * 86_400)
    wall_us = F.shiftright(moment, LOGICAL_BITS) if stamps == "hybrid" else moment
    drift_us = round(drift * MICROSECONDS)
    # The time of a micro-batch would be written into the code that Spark generates: each batch would have code of its
    # own, to be compiled, and slow at first. `zip_with` is one of the few functions for which none is generated. It is
    # slow too, so first comes the beginning of the day, which nearly all batches have in common.
    day_us = F.unix_micros(F.current_date().cast("timestamp"))
    now_us = F.unix_micros(F.current_timestamp())
    exactly = F.zip_with(F.array(wall_us), F.array(now_us), lambda time_us, now_us: time_us > now_us + drift_us)
    ahead = (wall_us > day_us + drift_us) & F.get(exactly, F.lit(0))
    # A row without a time is not ahead: it is one that cannot be read, whichever is looked at first.
    return F.coalesce(ahead, F.lit(False))


def _readable(rows: DataFrame, key: str, moment: Column, invalid: InvalidRows, also: Column | None = None) -> DataFrame:
    size = F.octet_length(column(key).cast("string"))
    good = F.coalesce((size > 0) & (size <= MAX_ORDERING_KEY_BYTES) & (moment >= 0), F.lit(False))
    good = good if also is None else good & also
    if invalid == "quarantine":
        raise InvalidArgument("invalid: 'error' or 'drop'; an aggregation has no place to put a row aside")
    if invalid == "drop":
        return rows.where(good)
    what = F.concat(
        F.lit("key "), F.coalesce(column(key).cast("string"), F.lit("NULL")), F.lit(", time "),
        F.coalesce(moment.cast("string"), F.lit("NULL")), F.lit(": it cannot be read; see invalid="),
    )  # fmt: skip
    return rows.where(F.when(good, F.lit(True)).otherwise(F.raise_error(what).cast("boolean")))


def _checked(rows: DataFrame, columns: Mapping[str, str | None], key: str | None, time: str) -> dict[str, DataType]:
    """The types of the rows, which have these columns."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    if len(types) < len(rows.columns):
        raise InvalidArgument(f"the rows have two columns of one name: {', '.join(rows.columns)}")
    for taken in types:
        if taken.lower().startswith(RESERVED):
            raise InvalidArgument(_taken(taken))
    for role, name in columns.items():
        if name is not None and name not in types:
            raise InvalidArgument(f"{role}: there is no column {name!r}, only {', '.join(types)}")
        if name == key and role != "key":
            raise InvalidArgument(f"{role}: {name!r} is the key already")
    if key is not None and not isinstance(types[key], (StringType, *_WHOLE)):
        kind = types[key].simpleString()
        raise InvalidArgument(f"key: {key!r} is {kind}, and must be text or whole numbers; cast it")
    if not isinstance(types[time], (TimestampType, *_WHOLE)):
        raise InvalidArgument(
            f"time: {time!r} is {types[time].simpleString()}, and must be a timestamp or whole numbers; cast it"
        )
    return types


def _taken(name: str) -> str:
    return f"the rows have a column {name!r} already; rename it, or drop it"
