"""One task of an audit, in a worker of Spark: rows by key and position in; totals, counts by key, or violations out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from inorder.spark.findings import Kind
from inorder.spark.judging import Judge, Judged
from inorder.spark.tallying import TOLD, KeyTally
from inorder.spark.tasks import ROWS_AT_ONCE, in_utc
from inorder.spark.totals import Totals, merged, totals_of
from inorder.spark.violations import first_of, schema, violations

TOTALS: Final = "totals"


@dataclass(frozen=True, slots=True)
class Examination:
    """What the tasks of an audit are told."""

    positions: list[str]
    by_time: bool
    allowed: tuple[Kind, ...]
    top: int
    partitions: int
    piece: int = 250_000  # so many rows, or a batch more, are judged at once

    def totals(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: the first violations, and behind them a row with the totals."""
        tally, found, first = KeyTally(), Totals(), None
        for judged in self._judged(batches):
            new = totals_of(judged, tally.add(judged), self.allowed, self.top, self.partitions)
            found = merged([found, new], self.top)
            if first is None:
                first = schema(judged.rows.select(self.positions).schema).empty_table()
            first = first_of([first, *violations(judged, self.allowed)], self.positions, self.top)
        if first is not None:
            rows = first.append_column(TOTALS, pa.nulls(len(first), pa.string()))
            yield from rows.to_batches()
            yield from pa.Table.from_pylist([{TOTALS: found.as_json()}], schema=rows.schema).to_batches()

    def keys(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: a row for each key."""
        tally = KeyTally()
        for judged in self._judged(batches):
            yield from tally.add(judged).select(TOLD).to_batches(max_chunksize=ROWS_AT_ONCE)

    def violations(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: a row for each violation."""
        for judged in self._judged(batches):
            for table in violations(judged, self.allowed):
                yield from table.to_batches(max_chunksize=ROWS_AT_ONCE)

    def _judged(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Judged]:
        judge, piece, count = Judge(self.positions, by_time=self.by_time), list[pa.RecordBatch](), 0
        for batch in batches:
            piece.append(batch)
            count += len(batch)
            if count >= self.piece:
                yield judge.judged(_rows(piece))
                piece, count = [batch.slice(0, 0)], 0
        if piece:
            yield judge.judged(_rows(piece), is_end=True)


def _rows(piece: list[pa.RecordBatch]) -> pa.Table:
    return in_utc(pa.Table.from_batches(piece))
