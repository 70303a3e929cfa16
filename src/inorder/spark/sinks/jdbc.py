"""Batches into PostgreSQL: a table of the current state, and its history.

Each task copies its rows into a temporary table and lets PostgreSQL do the rest, in one transaction. So a task that
fails leaves nothing, and one that runs again changes nothing. The connections are psycopg's: no jar has to be there
when Spark starts.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from inorder.errors import FailedPrecondition, InvalidArgument, Unavailable
from inorder.options import check_whole
from inorder.spark.sinks.current import EXACT_TIMES, CurrentState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

URLS: Final = ("postgresql://", "postgres://", "jdbc:postgresql://", "postgresql+psycopg://")
BATCH: Final = "pg_temp.inorder_batch"

_TYPES: Final = {
    "string": "text",
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "binary": "bytea",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcTable(CurrentState):
    """A table of PostgreSQL with the newest row of each key; `history` is one with all rows, each once.

    A batch is one transaction for each of `connections`, to which the keys are dealt out. Tables are made if they are
    not there; those of your own need a unique index on the columns of the key, and a history one on those of the key
    and `newest_by`, or PostgreSQL cannot tell what is there already.
    """

    url: str = field(repr=False)  # it may have a password
    connections: int = 2

    def __post_init__(self) -> None:
        CurrentState.__post_init__(self)
        given: object = self.url
        if not isinstance(given, str) or not given.startswith(URLS):
            scheme = given.partition("://")[0] if isinstance(given, str) else repr(given)
            raise InvalidArgument(f"url: it begins with {' or '.join(URLS)}, and this one with {scheme!r}")
        for name, table in (("table", self.table), ("history", self.history)):
            if table is not None and not all(table.split(".")):
                raise InvalidArgument(f"{name}: as in 'orders' or 'shop.orders', not {table!r}")
        check_whole("connections", self.connections)
        if self.connections > 100:
            raise InvalidArgument(f"connections: up to 100, which is what PostgreSQL has, not {self.connections}")

    @property
    def guarantee(self) -> str:
        return f"exactly once: a row replaces that of its key only if it is newer by {', '.join(self.newest_by)}"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        from inorder.spark.mapping import map_in_arrow
        from inorder.spark.tables import column

        self.check(rows.schema)
        applied = self.applied(rows)
        self._prepare(applied.schema)
        task = _Upsert(self._address, self._temporary(applied.columns), tuple(self._statements(applied.columns)))
        written = applied.select(*(_as_text(one) for one in applied.schema.fields))
        of_keys = written.repartition(self.connections, *map(column, self.key))
        map_in_arrow(of_keys, task, "rows BIGINT").collect()  # a number for each connection

    @property
    def _address(self) -> str:
        """As libpq knows it."""
        return f"postgresql://{self.url.partition('://')[2]}"

    def _prepare(self, rows: StructType) -> None:
        """Make what is not there, and find out before any task does whether the tables take such rows."""
        psycopg = _psycopg()
        wanted = [(self.table, self.held(rows.names), self.key)]
        if self.history is not None:
            wanted.append((self.history, rows.names, [*self.key, *self.newest_by]))
        try:
            with psycopg.connect(self._address) as connection:
                for table, columns, unique in wanted:
                    if self.create:
                        connection.execute("SELECT pg_advisory_xact_lock(hashtext('inorder'))")  # one creates at a time
                        connection.execute(_created(table, [rows[name] for name in columns], unique))
                    self._try(connection, table, columns, unique)
        except psycopg.OperationalError as error:
            raise Unavailable(f"table {self.table!r}: {str(error).strip()}") from error

    def _try(self, connection: Any, table: str, columns: Sequence[str], unique: Sequence[str]) -> None:
        errors = _psycopg().errors
        names, of = _list(columns), _list(unique)
        try:
            connection.execute(
                f"EXPLAIN INSERT INTO {_table(table)} ({names}) SELECT {names} FROM {_table(table)}"
                f" ON CONFLICT ({of}) DO NOTHING"
            )
        except errors.UndefinedTable:
            raise FailedPrecondition(f"table {table!r} does not exist, and create is False") from None
        except errors.UndefinedColumn as error:
            raise FailedPrecondition(
                f"table {table!r} lacks a column of the rows ({', '.join(columns)}): {error.diag.message_primary};"
                " add it to the table, or leave it out of the rows"
            ) from None
        except errors.InvalidColumnReference:
            raise FailedPrecondition(
                f"table {table!r} cannot tell what it has already: CREATE UNIQUE INDEX ON {_table(table)} ({of})"
            ) from None

    def _temporary(self, columns: Sequence[str]) -> str:
        """With the types of the table, whoever made it."""
        taken = (_quoted(one) if one != self.deleted else f"NULL::boolean AS {_quoted(one)}" for one in columns)
        return (
            f"CREATE TEMPORARY TABLE {BATCH.partition('.')[2]} ON COMMIT DROP AS"
            f" SELECT {', '.join(taken)} FROM {_table(self.table)} WITH NO DATA"
        )

    def _statements(self, columns: Sequence[str]) -> Iterator[str]:
        """What is done with the rows of a task, which has all those of its keys."""
        key, places, held = _list(self.key), _list(self.newest_by), self.held(columns)
        # Of two rows of one place the content decides, so that it does not matter which came first.
        content = '(batch.*)::text COLLATE "C"'  # of the whole row, also if it has a column of that name
        descending = ", ".join(f"{_quoted(name)} DESC" for name in self.newest_by)
        newest = f"SELECT DISTINCT ON ({key}) * FROM {BATCH} AS batch ORDER BY {key}, {descending}, {content} DESC"
        stays = f"WHERE {_quoted(self.deleted)} IS NOT TRUE" if self.deleted is not None else ""
        yield (
            f"INSERT INTO {_table(self.table)} AS held ({_list(held)})"
            f" SELECT {_list(held)} FROM ({newest}) AS newest {stays} ORDER BY {key}"  # so no two lock each other out
            f" ON CONFLICT ({key}) DO UPDATE SET"
            f" {', '.join(f'{_quoted(one)} = excluded.{_quoted(one)}' for one in held if one not in self.key)}"
            f" WHERE {self._newer('excluded')}"
        )
        if self.deleted is not None:
            same = " AND ".join(f"held.{_quoted(one)} = newest.{_quoted(one)}" for one in self.key)
            yield (
                f"DELETE FROM {_table(self.table)} AS held USING ({newest}) AS newest"
                f" WHERE newest.{_quoted(self.deleted)} AND {same} AND {self._newer('newest')}"
            )
        if self.history is not None:
            yield (
                f"INSERT INTO {_table(self.history)} ({_list(columns)}) SELECT DISTINCT ON ({key}, {places})"
                f" {_list(columns)} FROM {BATCH} AS batch ORDER BY {key}, {places}, {content} DESC"
                f" ON CONFLICT ({key}, {places}) DO NOTHING"
            )

    def _newer(self, than: str) -> str:
        theirs, ours = (", ".join(f"{of}.{_quoted(one)}" for one in self.newest_by) for of in (than, "held"))
        return f"(({theirs}) > ({ours}) OR held.{_quoted(self.newest_by[0])} IS NULL)"


@dataclass(frozen=True, slots=True)
class _Upsert:
    """What a task does, for `mapInArrow`."""

    url: str = field(repr=False)
    temporary: str
    statements: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        with _psycopg().connect(self.url) as connection, connection.cursor() as cursor:  # one transaction
            cursor.execute(self.temporary)
            with cursor.copy(f"COPY {BATCH} FROM STDIN (FORMAT csv)") as copy:
                for text in _csv(chain([first], batches)):
                    copy.write(text)
            written = cursor.rowcount
            for statement in self.statements:
                cursor.execute(statement)
        yield pa.RecordBatch.from_pydict({"rows": [written]})


def _csv(batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A null is nothing at all, and an empty text is in quotes: PostgreSQL reads them as they are meant."""
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False)
    for batch in batches:
        text = io.BytesIO()
        csv.write_csv(batch, text, options)
        yield text.getvalue()


def _as_text(one: Any) -> Any:
    """A column as CSV can tell it."""
    from pyspark.sql import functions as F  # noqa: N812

    from inorder.spark.tables import column

    value, kind = column(one.name), one.dataType.typeName()
    if kind == "binary":
        value = F.concat(F.lit("\\x"), F.hex(value))
    elif kind == "timestamp":
        # With the seconds of its offset, which Arrow leaves out: there were some before there were time zones. A year
        # behind 9999 has a sign, which PostgreSQL does not know.
        value = F.ltrim(F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSSXXXXX"), F.lit("+"))
    elif kind in ("array", "map", "struct", "variant"):
        value = F.to_json(value, EXACT_TIMES)
    elif _type(one.dataType) == "text":
        value = value.cast("string")  # of an interval Arrow has the number of its microseconds, or nothing
    return value.alias(one.name)


def _created(table: str, columns: Sequence[Any], unique: Sequence[str]) -> str:
    kinds = ", ".join(f"{_quoted(one.name)} {_type(one.dataType)}" for one in columns)
    return f"CREATE TABLE IF NOT EXISTS {_table(table)} ({kinds}, PRIMARY KEY ({_list(unique)}))"


def _type(kind: DataType) -> str:
    """What PostgreSQL calls it. What has parts is JSON."""
    name = kind.simpleString()
    if name.startswith("decimal"):
        return name.replace("decimal", "numeric")
    if kind.typeName() in ("array", "map", "struct", "variant"):
        return "jsonb"
    return _TYPES.get(name, "text")


def _table(name: str) -> str:
    return ".".join(map(_quoted, name.split(".")))


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str | None) -> str:
    assert name is not None
    return '"' + name.replace('"', '""') + '"'


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise FailedPrecondition("JdbcTable needs psycopg: pip install 'inorder[postgresql]'") from None
    return psycopg
