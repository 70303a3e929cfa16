"""Batches as folders of Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH: Final = "batch_id"  # a folder for each: their names do not sort as their numbers do


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Each batch in a folder `batch_id=…` below `path`, which a batch that comes again replaces.

    The rows of a key are in order by `batch_id`, and within it in the order of the file they are in.
    """

    path: str

    def __post_init__(self) -> None:
        given: object = self.path  # anything, whatever the annotation says
        if not isinstance(given, str) or not given:
            raise InvalidArgument(f"path: a folder, not {self.path!r}")

    @property
    def guarantee(self) -> str:
        return f"exactly once: a batch that comes again replaces its folder {self.path}/batch_id=…"

    def check(self, rows: StructType) -> None:
        """Refuse rows with a column that nobody would see: who reads the folders takes it from their names."""
        for name in rows.names:
            if name.lower() == BATCH:  # Spark does not tell names apart by case, unless it is told to
                raise InvalidArgument(f"the rows have a column {name!r}, as folders of batches do; rename or drop it")

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.check(rows.schema)
        rows.write.mode("overwrite").parquet(f"{self.path}/{BATCH}={batch_id}")
