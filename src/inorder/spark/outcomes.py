"""What comes out of an operator: the rows as they went in, what became of each, and rows for gaps."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from inorder.patterns.step import DUPLICATE, STALE
from inorder.spark.kernels import FATES, Names, Settled

FATE: Final = "_fate"
GAP: Final = "_gap"
RESERVED: Final = "_inorder_"  # with which the names of columns of ours begin

InvalidRows = Literal["error", "quarantine", "drop"]

_GAP_TYPE: Final = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("reason", pa.string())])
_FATES: Final = pa.array(FATES, pa.string())
_DROPPED: Final = np.array([fate in (DUPLICATE, STALE) for fate in FATES])


def with_outcome(rows: StructType) -> StructType:
    """The schema of what comes out, for rows of this one. A gap has only a key and its first number."""
    gap = StructType([StructField("first", LongType()), StructField("last", LongType())])
    added = [StructField(FATE, StringType()), StructField(GAP, gap.add("reason", StringType()))]
    return StructType([*(StructField(field.name, field.dataType, True) for field in rows.fields), *added])


def told(settled: Settled, names: Names, keep_dropped: bool) -> pa.Table:
    """What a kernel settled, as rows. What the policies drop is left out, unless it is to be seen."""
    order, fates = settled.order, settled.fates
    if not keep_dropped:
        kept = ~_DROPPED[fates]
        if not kept.all():
            order, fates = order[kept], fates[kept]
    rows = settled.rows
    gaps = pa.nulls(len(order), _GAP_TYPE)
    if settled.gaps:
        gaps = pa.array(
            [{"first": gap.first, "last": gap.last, "reason": gap.reason} for gap in settled.gaps], _GAP_TYPE
        ).take(pa.array(order - len(rows), mask=order < len(rows)))
        rows = pa.concat_tables([rows, _as_rows(settled, names)]).combine_chunks()
    fate = pa.DictionaryArray.from_arrays(pa.array(fates, pa.int8()), _FATES).cast(pa.string())
    return rows.take(pa.array(order)).append_column(FATE, fate).append_column(GAP, gaps)


def unread(rows: pa.Table, fate: str) -> pa.Table:
    """Rows that no kernel could read."""
    return rows.append_column(FATE, pa.repeat(pa.scalar(fate), len(rows))).append_column(
        GAP, pa.nulls(len(rows), _GAP_TYPE)
    )


def _as_rows(settled: Settled, names: Names) -> pa.Table:
    """A row for each gap: its key, its first number, and nothing else."""
    known = {
        names.key: pa.array([gap.key for gap in settled.gaps], pa.string()),
        names.number: pa.array([gap.first for gap in settled.gaps], pa.int64()),
    }
    columns = [
        known[field.name].cast(field.type) if field.name in known else pa.nulls(len(settled.gaps), field.type)
        for field in settled.rows.schema
    ]
    return pa.Table.from_arrays(columns, schema=settled.rows.schema)
