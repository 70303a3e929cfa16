"""Batches on the terminal, for a first look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inorder.options import check_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Console:
    """The first rows of each batch. A batch that comes again is shown again."""

    rows: int = 20
    width: int = 40  # of a column

    def __post_init__(self) -> None:
        check_whole("rows", self.rows)
        check_whole("width", self.width, at_least=4)

    @property
    def guarantee(self) -> str:
        return "for looking at: a batch that comes again is shown again"

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        print(f"batch {batch_id}")
        rows.show(self.rows, truncate=self.width)
