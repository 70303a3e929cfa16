"""Batches into Delta and Iceberg: a table of the current state by MERGE, and its history.

Tables are named as in SQL, `lake.shop.orders`; one of Delta may be a folder, delta.`/data/orders`. Which jars and
settings a session needs is said where they are missing.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.spark.sinks.current import EXACT_TIMES, CurrentState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a JVM throws that has been given classes made for others.
_MISFITS = re.compile(
    r"java\.lang\.(NoSuch(?:Method|Field)|IncompatibleClassChange|NoClassDefFound|AbstractMethod)Error"
)
_QUALIFIED = re.compile(r"(`(?:[^`]|``)+`|[\w-]+)(\.(`(?:[^`]|``)+`|[\w-]+))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable(CurrentState, ABC):
    """What both formats have in common. A history gets each batch of a `writer` once."""

    writer: str | None = None  # None: the query, by its checkpoint

    format: ClassVar[str]
    needs: ClassVar[str]  # to be known to a session
    known_by: ClassVar[str]  # in the settings of a session that knows it

    def __post_init__(self) -> None:
        CurrentState.__post_init__(self)
        for name, table in (("table", self.table), ("history", self.history)):
            if table is not None and not _QUALIFIED.fullmatch(table):
                raise InvalidArgument(f"{name}: as in SQL, 'lake.shop.orders' or 'delta.`/data/orders`', not {table!r}")
        writer: object = self.writer  # anything, whatever the annotation says
        if writer is not None and (not isinstance(writer, str) or not writer):
            raise InvalidArgument(f"writer: a name, not {self.writer!r}")

    @property
    def guarantee(self) -> str:
        return f"exactly once: a row replaces that of its key only if it is newer by {', '.join(self.newest_by)}"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.check(rows.schema)
        applied = self.applied(rows).persist()  # a MERGE may read more than once
        try:
            with self._in_words(rows.sparkSession):
                if self.history is not None:
                    self._prepare(applied, self.history, applied.columns)
                    self._append(applied, self.history, batch_id)
                self._prepare(applied, self.table, self.held(applied.columns))
                self._merge(applied)
        finally:
            applied.unpersist()

    def _prepare(self, rows: DataFrame, table: str, columns: Sequence[str]) -> None:
        """Make the table if it is not there, and find out whether it takes such rows."""
        spark, kinds = rows.sparkSession, {one.name: one.dataType.simpleString() for one in rows.schema.fields}
        if self.create:
            declared = ", ".join(f"{_quoted(name)} {kinds[name]}" for name in columns)
            spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({declared}) USING {self.format}")
        there = spark.table(table).columns
        if missing := [name for name in columns if name not in there]:
            added = ", ".join(f"{_quoted(name)} {kinds[name]}" for name in missing)
            raise FailedPrecondition(
                f"table {table!r} lacks columns of the rows: ALTER TABLE {table} ADD COLUMNS ({added}),"
                " or leave them out of the rows"
            )

    def _merge(self, applied: DataFrame) -> None:
        held = self.held(applied.columns)
        same = " AND ".join(f"held.{_quoted(one)} = newest.{_quoted(one)}" for one in self.key)
        ours, theirs = (
            f"struct({', '.join(f'{of}.{_quoted(one)}' for one in self.newest_by)})" for of in ("held", "newest")
        )
        newer = f"({theirs} > {ours} OR held.{_quoted(self.newest_by[0])} IS NULL)"
        gone = f"coalesce(newest.{_quoted(self.deleted)}, false)" if self.deleted is not None else None
        clauses = [
            f"AS newest ON {same}",
            f"WHEN MATCHED AND {gone} AND {newer} THEN DELETE" if gone is not None else "",
            f"WHEN MATCHED AND {newer} THEN UPDATE SET",
            ", ".join(f"held.{_quoted(one)} = newest.{_quoted(one)}" for one in held if one not in self.key),
            f"WHEN NOT MATCHED AND NOT {gone} THEN INSERT" if gone is not None else "WHEN NOT MATCHED THEN INSERT",
            f"({', '.join(map(_quoted, held))}) VALUES ({', '.join(f'newest.{_quoted(one)}' for one in held)})",
        ]
        merge, how = _verbatim(f"MERGE INTO {self.table} AS held USING "), _verbatim(" ".join(clauses))
        applied.sparkSession.sql(f"{merge} {{newest}} {how}", newest=self._newest(applied))

    def _newest(self, applied: DataFrame) -> DataFrame:
        """One row for each key, or MERGE would not know which one to take."""
        from pyspark.sql import functions as F  # noqa: N812

        from inorder.spark.tables import column

        row = F.struct(*map(column, applied.columns))
        # Of two rows of one place the content decides, so that it does not matter which came first.
        rank = F.struct(*map(column, self.newest_by), F.to_json(row, EXACT_TIMES).alias("_content"))
        return applied.groupBy(*map(column, self.key)).agg(F.max_by(row, rank).alias("_newest")).select("_newest.*")

    @abstractmethod
    def _append(self, applied: DataFrame, history: str, batch_id: int) -> None:
        """Add the rows to the history, unless the batch is in it."""

    def _appended(self, applied: DataFrame, history: str, options: Mapping[str, str]) -> None:
        writer = applied.writeTo(history)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.append()

    def _writer(self, spark: SparkSession) -> str:
        """Whose batches they are."""
        from inorder.spark.sink import QUERY_ID

        if self.writer is not None:
            return self.writer
        try:
            query = spark.sparkContext.getLocalProperty(QUERY_ID)
        except Exception:  # Spark Connect has no context
            query = None
        if query is None:
            raise FailedPrecondition("writer: here nobody knows the query; say under which name its batches count")
        return str(query)

    @contextmanager
    def _in_words(self, spark: SparkSession) -> Iterator[None]:
        """Say what is wrong with the session, if it is that."""
        try:
            yield
        except (FailedPrecondition, InvalidArgument):
            raise
        except Exception as error:
            if misfit := _MISFITS.search(str(error)):
                raise FailedPrecondition(
                    f"the jars of {self.format} in this session are made for another Spark than {spark.version}"
                    f" ({misfit[0]}): take those of this version"
                ) from error
            if not self._is_known(spark):
                raise FailedPrecondition(
                    f"the table format {self.format} is not known to this session: start Spark with {self.needs}"
                ) from error
            raise

    def _is_known(self, spark: SparkSession) -> bool:
        rows: list[Any] = spark.sql("SET").collect()
        return any(self.known_by in row.value for row in rows if row.key.startswith("spark.sql."))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable(LakeTable):
    """A table of Delta with the newest row of each key; `history` is one with all rows, each batch once."""

    format: ClassVar[str] = "delta"
    known_by: ClassVar[str] = "io.delta."
    needs: ClassVar[str] = (
        "--packages io.delta:delta-spark_<version of Spark>_2.13:<version>"
        " --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
        " --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )

    def _append(self, applied: DataFrame, history: str, batch_id: int) -> None:
        # Delta remembers the last version of each application, and skips what is not above it.
        writer = self._writer(applied.sparkSession)
        self._appended(applied, history, {"txnAppId": writer, "txnVersion": str(batch_id)})


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable(LakeTable):
    """A table of Iceberg with the newest row of each key; `history` is one with all rows, each batch once.

    The snapshot of a batch in the history bears its number: it may expire once a later batch is there.
    """

    format: ClassVar[str] = "iceberg"
    known_by: ClassVar[str] = "org.apache.iceberg."
    needs: ClassVar[str] = (
        "--packages org.apache.iceberg:iceberg-spark-runtime-<version of Spark>_2.13:<version>"
        " --conf spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        " --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog, and what that catalog needs"
    )

    def _append(self, applied: DataFrame, history: str, batch_id: int) -> None:
        mark = f"{self._writer(applied.sparkSession)} {batch_id}"
        snapshots = applied.sparkSession.table(f"{history}.snapshots")
        if snapshots.where(snapshots["summary"]["inorder-batch"] == mark).isEmpty():
            self._appended(applied, history, {"snapshot-property.inorder-batch": mark})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _verbatim(text: str) -> str:
    """As it must stand in a statement that Python formats."""
    return text.replace("{", "{{").replace("}", "}}")
