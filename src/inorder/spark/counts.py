"""What the batches of a streaming operator did, in figures, for those who watch.

The figures of a bucket lie in the run that a batch writes of it: so they are as exactly once as the state is.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from inorder.errors import StateDamaged
from inorder.spark.buckets import newest_runs
from inorder.spark.folders import Folder
from inorder.spark.kernels import FATES, Settled

_FIGURES: Final = b"inorder.counts"
_WAITING: Final = "waiting"


class Counts(NamedTuple):
    """Of a batch: how many rows met which fate, and how many are parked after it."""

    fates: dict[str, int]
    waiting: int

    def __add__(self, other: object) -> Counts:
        assert isinstance(other, Counts)
        return Counts(dict(Counter(self.fates) + Counter(other.fates)), self.waiting + other.waiting)


NOTHING: Final = Counts({}, 0)


def counts_of(settled: Settled, rows: int) -> Counts:
    """What a batch changed: a row that came and has no fate yet is parked; one that was parked and has one is not."""
    found = np.bincount(settled.fates, minlength=len(FATES)).tolist()
    fates = {fate: count for fate, count in zip(FATES, found, strict=True) if count}
    return Counts(fates, rows - (len(settled.order) - len(settled.gaps)))


def noted(run: pa.Table, before: pa.Table | None, change: Counts) -> pa.Table:
    """A run with its figures; `before` is the newest run of its bucket until now."""
    waiting = 0 if before is None else _read(before.schema).waiting
    figures = {**change.fates, _WAITING: waiting + change.waiting}
    return run.replace_schema_metadata({_FIGURES: json.dumps(figures, sort_keys=True).encode()})


def last_counts(folder: Folder, after: int = -1) -> dict[int, Counts]:
    """The figures of the batches after this one, over all buckets, as far as the state still has them."""
    try:
        return {
            batch: sum((_read(folder.read_schema(name)) for name in names), NOTHING)
            for batch, names in newest_runs(folder, after).items()
        }
    except StateDamaged:  # the query has gone on meanwhile, and its state with it
        return {}


def _read(schema: pa.Schema) -> Counts:
    figures = json.loads((schema.metadata or {}).get(_FIGURES, b"{}"))
    waiting = figures.pop(_WAITING, 0)
    return Counts(figures, waiting)
