"""What an audit reads of a log: its columns, checked, under names of their own, and the order in which rows arrived.

The order of arrival is given or known, and never guessed: the order in which Spark happens to read rows is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidArgument
from inorder.spark.reasons import reason
from inorder.spark.sinks.files import BATCH

TOPIC_COLUMNS = {"position", "ordering_key", "publish_time"}  # a table with these is a topic of ours
FILE_POSITION = ("_metadata.file_path", "_metadata.row_index")
LINE_POSITION = ("_inorder_block", "_inorder_line")  # of one file of text, where a line is a row

_IN_WORDS = {
    **dict(zip(FILE_POSITION, ("path of the file", "the row within it"), strict=True)),
    **dict(zip(LINE_POSITION, ("block of the file", "the line within it"), strict=True)),
}
CORRUPT = "_corrupt_record"  # where Spark's readers of text keep a line that they could not read
_UNREAD = (
    "the log has a line that Spark could not read, or a row with no key, number or position: read it with option "
    "mode=FAILFAST, which names such a line, or leave them out, as mode=DROPMALFORMED does"
)

_NESTED = (T.ArrayType, T.MapType, T.StructType, T.VariantType)
_ORDERED = (T.NumericType, T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The columns of a log: each by its name, or as an SQL expression."""

    key: str
    sequence: str | None
    time: str | None
    position: tuple[str, ...]
    arrival_time: str | None
    start: str | None
    end: str | None
    partition: str | None

    @property
    def by_time(self) -> bool:
        return self.sequence is None

    @property
    def position_columns(self) -> list[str]:
        """Their names in `rows`."""
        return [f"position_{index}" for index in range(len(self.position))]

    @property
    def arrival_order(self) -> str:
        """In words."""
        return ", then ".join(_IN_WORDS.get(name, name) for name in self.position)


def named(
    log: DataFrame,
    *,
    key: str | None,
    sequence: str | None,
    time: str | None,
    position: str | Sequence[str] | None,
    arrival_time: str | None,
    start: str | None,
    end: str | None,
    partition: str | None,
) -> Named:
    """The columns to read, where some may be known by the kind of the log."""
    if log.isStreaming:
        raise InvalidArgument(
            "the audit is of a table, and this is a stream: read it as a table, or audit what it writes"
        )
    is_topic = set(log.columns) >= TOPIC_COLUMNS
    key = key or ("ordering_key" if is_topic else None)
    if key is None:
        raise InvalidArgument("key: name the column that says which events belong together")
    if sequence is None and time is None:
        raise InvalidArgument("sequence or time: name the column that says how the events of a key follow each other")
    if (start is None) != (end is None):
        raise InvalidArgument("start and end: give both, or neither")
    if position is None and is_topic:
        position = "position"
    return Named(
        key=key,
        sequence=sequence,
        time=time,
        position=_given(position) or _of_files(log),
        arrival_time=arrival_time or ("publish_time" if is_topic else None),
        start=start,
        end=end,
        partition=partition,
    )


def _given(position: str | Sequence[str] | None) -> tuple[str, ...]:
    several = position if isinstance(position, list | tuple) else () if position is None else (position,)
    return tuple(several)  # anything, whatever the annotation says: it is looked at one by one


def _of_files(log: DataFrame) -> tuple[str, ...]:
    """Parquet files know the place of each row, wherever Spark takes it."""
    try:
        log.select(*FILE_POSITION)
        if BATCH in log.columns and all(f"/{BATCH}=" in file for file in log.inputFiles()):
            return (BATCH, *FILE_POSITION)
    except PySparkException:
        raise InvalidArgument(
            "position: name the column, or columns, that say in which order the events arrived, such as the offset in "
            "Kafka; this log has none that is known, and the order in which Spark reads rows is not their order"
        ) from None
    return FILE_POSITION


def rows(log: DataFrame, names: Named) -> DataFrame:
    """The log under the names that the audit uses; times in microseconds, keys as texts.

    What cannot be placed, for lack of a number, a time or a position, has no `value`. What has no key, or an empty
    one, has no `key`.
    """
    found = {"key": _key(log, names.key)}
    positions = {}
    for column, name in zip(names.position_columns, names.position, strict=True):
        positions[column] = _position(log, name)
    placed = F.lit(True)
    for position in positions.values():
        placed = placed & position.isNotNull()
    event_us = None if names.time is None else _time_us(log, "time", names.time)
    value = event_us if names.sequence is None else _sequence(log, names.sequence)
    assert value is not None
    found["key"] = _unless_unread(log, names, found["key"], value, *positions.values())
    found |= {"value": F.when(placed, value), **positions}
    if event_us is not None and not names.by_time:
        found["event_us"] = F.when(placed & value.isNotNull(), event_us)
    if names.arrival_time is not None:
        arrival_us = _time_us(log, "arrival_time", names.arrival_time)
        found["arrival_us"] = F.when(placed & value.isNotNull(), arrival_us)
    if names.start is not None and names.end is not None:
        found |= {"start_us": _time_us(log, "start", names.start), "end_us": _time_us(log, "end", names.end)}
    if names.partition is not None:
        found["partition"] = _column(log, "partition", names.partition).cast("string")
    try:
        return log.select(*(column.alias(name) for name, column in found.items()))
    except PySparkException as error:
        raise InvalidArgument(f"these columns cannot be read together: {reason(error)}") from None


def _unless_unread(log: DataFrame, names: Named, key: Column, *others: Column) -> Column:
    """The key; but a row with nothing in it was a line that Spark could not read, and nobody knows what it said.

    Those of a file of text whose lines are counted have a position, and are none of these: who reads it has chosen.
    """
    unread = reduce(and_, (column.isNull() for column in (key, *others)))
    if CORRUPT in log.columns and names.position != LINE_POSITION:
        unread = unread | F.col(CORRUPT).isNotNull()
    return F.when(unread, F.raise_error(F.lit(_UNREAD))).otherwise(key)


def by_key(rows: DataFrame, names: Named) -> DataFrame:
    """Rows of one key in one partition and one after the other, as they arrived. What has no key is anywhere."""
    anywhere = F.when(F.col("key").isNull(), F.xxhash64(*names.position_columns))
    together = [F.col("key"), anywhere]
    if names.start is not None:
        rows = _with_overlaps(rows, together, names)
    return rows.repartition(*together).sortWithinPartitions("key", *names.position_columns)


def _with_overlaps(rows: DataFrame, together: Sequence[Column], names: Named) -> DataFrame:
    """With each run that began before an earlier one had ended: for how long both went on. Others have null.

    A run that cannot be measured ends where it begins, as nobody knows more.
    """
    is_measured = F.coalesce(F.col("end_us") >= F.col("start_us"), F.lit(False))
    until_us = F.when(is_measured, F.col("end_us")).otherwise(F.col("start_us"))
    before = Window.partitionBy(*together).orderBy("start_us", *names.position_columns)
    busy_until_us = F.max(until_us).over(before.rowsBetween(Window.unboundedPreceding, -1))
    overlap_us = F.when(F.col("start_us") < busy_until_us, F.least(busy_until_us, until_us) - F.col("start_us"))
    added = {"overlap_us": overlap_us, "is_unmeasured": ~is_measured}
    return rows.withColumns(added).drop("start_us", "end_us")


def _column(log: DataFrame, role: str, name: str) -> Column:
    given: object = name  # anything, whatever the annotation says
    if not isinstance(given, str):
        raise InvalidArgument(f"{role}: the name of a column, or an SQL expression, not {given!r}")
    known = [one for one in log.columns if one not in LINE_POSITION]
    try:
        column = F.col(f"`{name.replace('`', '``')}`") if name in log.columns else F.expr(name)
        log.select(column.alias("it"))
    except PySparkException as error:
        if name in log.columns:
            raise InvalidArgument(f"{role}: {name!r} cannot be read: {reason(error)}") from None
        raise InvalidArgument(
            f"{role}: {name!r} is neither a column nor an SQL expression over the columns, which are {', '.join(known)}"
        ) from None
    return column


def _type(log: DataFrame, column: Column) -> T.DataType:
    return log.select(column.alias("it")).schema["it"].dataType


def _key(log: DataFrame, name: str) -> Column:
    column = _column(log, "key", name)
    kind = _type(log, column)
    if isinstance(kind, _NESTED):
        raise InvalidArgument(f"key: {name!r} is {kind.simpleString()}; make a text of it, as in to_json({name})")
    _check_collation("key", name, kind)
    text = column.cast("string")
    if isinstance(kind, T.BinaryType | T.StringType):  # either may hold bytes that are no text
        text = F.coalesce(F.try_validate_utf8(text), F.hex(column))
    return F.nullif(text, F.lit(""))


def _position(log: DataFrame, name: str) -> Column:
    column = _column(log, "position", name)
    kind = _type(log, column)
    if isinstance(kind, _NESTED):
        raise InvalidArgument(f"position: {name!r} is {kind.simpleString()}; name what is in it, each by itself")
    if not isinstance(kind, _ORDERED):
        raise InvalidArgument(f"position: a number, a text or a time, but {name!r} is {kind.simpleString()}")
    _check_collation("position", name, kind)
    if isinstance(kind, T.FractionalType) and not isinstance(kind, T.DecimalType):
        return F.when(~F.isnan(column), column)  # what is not a number is no position
    return column


def _check_collation(role: str, name: str, kind: T.DataType) -> None:
    if isinstance(kind, T.StringType) and not kind.isUTF8BinaryCollation():
        raise InvalidArgument(
            f"{role}: {name!r} is {kind.simpleString()}, where texts that differ may be equal; say that none are: "
            f"collate({name}, 'UTF8_BINARY')"
        )


def _sequence(log: DataFrame, name: str) -> Column:
    """A whole number from 0, as sequence numbers are; null where it is none."""
    column = _column(log, "sequence", name)
    kind = _type(log, column)
    if not isinstance(kind, T.IntegralType | T.StringType) and not (
        isinstance(kind, T.DecimalType) and kind.scale == 0
    ):
        raise InvalidArgument(f"sequence: whole numbers, or texts of them, but {name!r} is {kind.simpleString()}")
    number = column.try_cast("bigint")
    return F.when(number >= 0, number)


def _moment(text: Column) -> Column:
    """The time in a text. Without a zone it is that of a clock on the wall: a session may have one that skips hours."""
    suffixes = ("Z", "T00:00:00Z", "")  # of a time, of a day, and of what names its zone, which takes no other
    return F.coalesce(*(F.concat(F.trim(text), F.lit(suffix)).try_cast("timestamp") for suffix in suffixes))


def _wall_us(column: Column) -> Column:
    """Microseconds by a clock on the wall, whatever the time zone of the session, which may turn its clocks back."""
    of_day = (F.hour(column) * 60 + F.minute(column)) * 60 + F.date_part(F.lit("SECOND"), column)
    return F.unix_date(column.cast("date")) * F.lit(86_400 * MICROSECONDS) + (of_day * MICROSECONDS).cast("long")


def _time_us(log: DataFrame, role: str, name: str) -> Column:
    column = _column(log, role, name)
    kind = _type(log, column)
    if isinstance(kind, T.StringType):
        return F.unix_micros(_moment(column))
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.TimestampNTZType):
        return _wall_us(column)
    if isinstance(kind, T.NumericType):
        raise InvalidArgument(
            f"{role}: {name!r} is a number, and its unit is unknown; say it by an expression, as in "
            f"timestamp_millis({name}), timestamp_micros({name}) or timestamp_seconds({name})"
        )
    raise InvalidArgument(f"{role}: a time, but {name!r} is {kind.simpleString()}")
