"""`resequence` and `apply_versions` over a table, with Spark's own windows: one shuffle, one sort.

All rows come at one time, in the order of their numbers, and then no more: so a gap timeout, if there is one, is over
for every hole. It tells what the kernel of a stream tells of all rows in one batch, and then of the timeout.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    SpatialType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VariantType,
)

from inorder.errors import InvalidArgument
from inorder.options import MAX_ORDERING_KEY_BYTES, MAX_WHOLE
from inorder.patterns.sequencing import Resequencer
from inorder.patterns.step import DUPLICATE, LATE, PARKED, QUARANTINED, RELEASED, STALE
from inorder.patterns.step import GAP as GAP_FATE
from inorder.patterns.versioning import VersionGate
from inorder.spark.kernels import Names, Sequencing
from inorder.spark.outcomes import FATE, GAP, InvalidRows, with_outcome

# Columns that live only here.
SAME = "_inorder_same"  # the row before has the same number
FIRST = "_inorder_first"  # the number that its key begins with
RANK = "_inorder_rank"  # how many numbers of the key have come before
BEFORE = "_inorder_before"  # the greatest of them
IS_GAP = "_inorder_is_gap"


def in_table(rows: DataFrame, pattern: Sequencing, names: Names, invalid: InvalidRows, keep_dropped: bool) -> DataFrame:
    """The rows in order for each key, within partitions; rows that stand for gaps are in their places."""
    return _Windows(rows, pattern, names, invalid).outcome(keep_dropped)


class _Windows:
    """The expressions. Rows that cannot be read have the lowest numbers of their key, or none, and count for none."""

    def __init__(self, rows: DataFrame, pattern: Sequencing, names: Names, invalid: InvalidRows) -> None:
        self.rows = rows
        self.pattern = pattern
        self.names = names
        self.invalid = invalid
        self.key = column(names.key).cast("string")
        self.number = column(names.number).cast("long")
        # By its text alone: where a column has a collation, texts that differ may be equal, and are two keys.
        is_text = isinstance(rows.schema[names.key].dataType, StringType)
        self.line = Window.partitionBy(self.key if is_text else column(names.key)).orderBy(*self._order())
        size = F.octet_length(self.key)
        self.good = F.coalesce(
            (size > 0) & (size <= MAX_ORDERING_KEY_BYTES) & (self.number >= 0) & (self.number < MAX_WHOLE), F.lit(False)
        )
        # The first row of each number whose turn has not been before the key began.
        self.turn = self.good & ~F.col(SAME) & (self.number >= F.col(FIRST))
        self.has_no_hole = self.number - F.col(FIRST) == F.col(RANK)

    def outcome(self, keep_dropped: bool) -> DataFrame:
        rows = self.rows.where(self.good) if self.invalid == "drop" else self.rows
        rows = rows.withColumns(
            {SAME: F.coalesce(self.number == F.lag(self.number).over(self.line), F.lit(False)), FIRST: self._first()}
        )
        counted = {RANK: F.sum(self.turn.cast("long")).over(self.line) - 1}
        if self._times_out:
            earlier = self.line.rowsBetween(Window.unboundedPreceding, -1)
            greatest = F.max(F.when(self.turn, self.number)).over(earlier)
            counted[BEFORE] = F.coalesce(greatest, F.col(FIRST) - 1)
        told = rows.withColumns(counted).withColumn(FATE, self._fate())
        if not keep_dropped:
            told = told.where(~F.col(FATE).isin(DUPLICATE, STALE))
        return self._with_gaps(told)

    @property
    def _times_out(self) -> bool:
        return self.pattern.gap_timeout_seconds is not None

    def _order(self) -> list[Column]:
        """As a stream sorts them: by number, and where that is the same by position, and then by content."""
        types = {field.name: field.dataType for field in self.rows.schema.fields}
        names = [self.names.position] if self.names.position is not None else []
        names += [name for name in types if name not in (*names, self.names.key, self.names.number)]
        ties = [orderable(name, types[name]) for name in names]
        return [self.number.asc(), *(tie.asc_nulls_last() for tie in ties)]

    def _first(self) -> Column:
        if isinstance(self.pattern, VersionGate):
            return F.lit(self.pattern.first_version).cast("long")
        if self.pattern.initial == "stored":
            raise InvalidArgument("initial: 'stored' needs a stream, which has a state; a table has none")
        if self.pattern.initial == "first_seen":
            return F.first(F.when(self.good, self.number), ignorenulls=True).over(self.line)
        return F.lit(self.pattern.initial).cast("long")

    def _fate(self) -> Column:
        bad = F.lit(QUARANTINED) if self.invalid == "quarantine" else self._error("cannot be read; see invalid=")
        if isinstance(self.pattern, VersionGate):
            behind = F.lit(STALE)  # it was never applied
            repeated = F.lit(DUPLICATE)
        else:
            again = self._repeated(self.pattern)
            behind = self._late(self.pattern, again)
            repeated = F.when(self.has_no_hole, again).otherwise(DUPLICATE)
        at_once = self._times_out or (isinstance(self.pattern, VersionGate) and self.pattern.mode == "latest_only")
        ahead = F.lit(RELEASED) if at_once else F.when(self.has_no_hole, RELEASED).otherwise(PARKED)
        fate = F.when(self.turn, ahead)
        return fate.when(~self.good, bad).when(self.number < F.col(FIRST), behind).otherwise(repeated)

    def _repeated(self, pattern: Resequencer) -> Column:
        if pattern.duplicates == "error":
            return self._error("came twice; see duplicates=")
        return F.lit(DUPLICATE if pattern.duplicates == "drop" else QUARANTINED)

    def _late(self, pattern: Resequencer, again: Column) -> Column:
        if pattern.late == "drop":
            return F.lit(STALE)
        if pattern.late == "error":
            return self._error("is before the beginning; see late=")
        return F.when(F.col(SAME), again).otherwise(LATE if pattern.late == "emit" else QUARANTINED)

    def _error(self, problem: str) -> Column:
        row = F.concat(
            F.lit("key "), F.coalesce(self.key, F.lit("NULL")), F.lit(", number "),
            F.coalesce(self.number.cast("string"), F.lit("NULL")), F.lit(f": it {problem}"),
        )  # fmt: skip
        return F.raise_error(row).cast("string")

    def _with_gaps(self, told: DataFrame) -> DataFrame:
        wanted = with_outcome(self.rows.schema)
        if not self._times_out:
            return told.select(*map(column, self.rows.columns), FATE, F.lit(None).cast(wanted[GAP].dataType).alias(GAP))
        hole = self.turn & (self.number > F.col(BEFORE) + 1)
        flags = F.when(hole, F.array(F.lit(True), F.lit(False))).otherwise(F.array(F.lit(False)))
        told = told.select("*", F.explode(flags).alias(IS_GAP))
        is_gap = F.col(IS_GAP)
        gap = F.struct(
            (F.col(BEFORE) + 1).alias("first"), (self.number - 1).alias("last"), F.lit("timeout").alias("reason")
        )
        return told.select(
            *(self._or_gap(name, is_gap) for name in self.rows.columns),
            F.when(is_gap, GAP_FATE).otherwise(F.col(FATE)).alias(FATE),
            F.when(is_gap, gap).cast(wanted[GAP].dataType).alias(GAP),
        )

    def _or_gap(self, name: str, is_gap: Column) -> Column:
        if name == self.names.key:
            return column(name)
        kind = self.rows.schema[name].dataType
        in_gap = (F.col(BEFORE) + 1).cast(kind) if name == self.names.number else F.lit(None).cast(kind)
        return F.when(is_gap, in_gap).otherwise(column(name)).alias(name)


def column(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col(f"`{name.replace('`', '``')}`")


def orderable(name: str, kind: DataType) -> Column:
    """A column as Spark can sort by it, and as a stream sorts it: part by part, and texts as bytes."""
    return _orderable(column(name), kind)


def _orderable(value: Column, kind: DataType) -> Column:
    if has_order(kind):
        return value
    if isinstance(kind, MapType):
        entry = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        return _orderable(F.map_entries(value), ArrayType(entry))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: _orderable(one, kind.elementType))
    if isinstance(kind, StructType):
        parts = [_orderable(value.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    return value.cast("string")


def has_order(kind: DataType) -> bool:
    """Whether Spark compares values of this type as a stream does, which knows of no collation."""
    if isinstance(kind, StringType):
        return kind.isUTF8BinaryCollation()
    if isinstance(kind, StructType):
        return all(has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_order(kind.elementType)
    return not isinstance(kind, (MapType, VariantType, CalendarIntervalType, SpatialType, UserDefinedType))
