"""What sinks into tables of the current state agree on: which rows count, and which row of a key is the newest.

It knows no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.errors import InvalidArgument
from inorder.options import check_flag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Of times in JSON: by itself Spark leaves out what is below a millisecond, and the seconds of an offset.
EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentState:
    """A table with one row for each key, the newest, and perhaps another with all rows there ever were.

    A row replaces that of its key only if it is newer by the columns `newest_by`, compared one after the other. So a
    batch that comes again changes nothing, and neither does a late row. Of an operator's outcome, only rows that are
    to be applied count: no gaps, and nothing that was dropped or put aside.

    Where the column `deleted` is true, the row of the key is removed; the history keeps it. Without that option such a
    row is one like others and stays, which is safer where rows do not come in order: what is older cannot bring a key
    back.
    """

    table: str
    key: str | Sequence[str]
    newest_by: str | Sequence[str]
    history: str | None = None
    deleted: str | None = None
    create: bool = True  # tables that do not exist

    def __post_init__(self) -> None:
        for field in ("key", "newest_by"):
            object.__setattr__(self, field, _columns(field, getattr(self, field)))
        for field in ("table", "history"):
            name = getattr(self, field)
            if (name is not None or field == "table") and (not isinstance(name, str) or not name.strip()):
                raise InvalidArgument(f"{field}: the name of a table, not {name!r}")
        check_flag("create", self.create)
        if self.history == self.table:
            raise InvalidArgument(f"history: another table than {self.table!r}, which has one row for each key")
        deleted: object = self.deleted  # anything, whatever the annotation says
        if deleted is not None and (not isinstance(deleted, str) or not deleted):
            raise InvalidArgument(f"deleted: the name of a column, not {self.deleted!r}")
        named = [*self.key, *self.newest_by, *([self.deleted] if self.deleted is not None else [])]
        for name in named:
            if named.count(name) > 1:
                raise InvalidArgument(f"key, newest_by and deleted: {name!r} is named twice")

    def check(self, rows: StructType) -> None:
        """Refuse rows without the columns that were named."""
        from pyspark.sql.types import ArrayType, BooleanType, MapType, StructType, VariantType

        types = {field.name: field.dataType for field in rows.fields}
        for field, names in (("key", self.key), ("newest_by", self.newest_by), ("deleted", [self.deleted])):
            for name in names:
                if name is None:
                    continue
                if name not in types:
                    raise InvalidArgument(f"{field}: there is no column {name!r}, only {', '.join(types)}")
                kind = types[name]
                if field == "deleted" and not isinstance(kind, BooleanType):
                    raise InvalidArgument(f"deleted: {name!r} is {kind.simpleString()}, and must be boolean")
                if isinstance(kind, ArrayType | MapType | StructType | VariantType):
                    raise InvalidArgument(f"{field}: {name!r} is {kind.simpleString()}, which has no order")

    def applied(self, rows: DataFrame) -> DataFrame:
        """The rows that count, without what an operator says of them. One without a key or its place is an error."""
        from pyspark.sql import functions as F  # noqa: N812

        from inorder.patterns.step import APPLIED
        from inorder.spark.outcomes import FATE, GAP
        from inorder.spark.tables import column

        if FATE in rows.columns:
            rows = rows.where(F.col(FATE).isin(*sorted(APPLIED))).drop(FATE, GAP)
        needed = [*self.key, *self.newest_by]
        shown = F.to_json(F.struct(*map(column, needed)), {"ignoreNullFields": "false"})
        complaint = F.concat(F.lit(f"{', '.join(needed)}: none may be null, and there is a row with "), shown)
        whole = F.lit(True)
        for name in needed:
            whole = whole & column(name).isNotNull()
        return rows.where(F.when(whole, F.lit(True)).otherwise(F.raise_error(complaint).cast("boolean")))

    def held(self, columns: Sequence[str]) -> list[str]:
        """Those that the table has: the history also has the mark of deletion."""
        return [name for name in columns if name != self.deleted]


def _columns(field: str, given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(f"{field}: a column, or a list of columns, not {given!r}")
    return names
