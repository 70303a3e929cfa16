"""`mapInArrow` for rows whose columns have any name: Spark's own takes a dot in one for a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """What a task makes of the rows of each partition."""
    if not any({*name} & {".", "`"} for name in rows.columns):
        return rows.mapInArrow(task, schema)
    numbered = rows.toDF(*(f"column_{number}" for number in range(len(rows.columns))))
    return numbered.mapInArrow(_Named(rows.columns, task), schema)


@dataclass(frozen=True, slots=True)
class _Named:
    names: list[str]
    task: Task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(self.names) for batch in batches)
