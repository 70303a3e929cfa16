"""An operator with its options and columns, and what it does with a batch of one bucket. It knows no Spark session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.errors import InvalidEvent, StateDamaged
from inorder.patterns.step import QUARANTINED
from inorder.spark.counts import Counts
from inorder.spark.hashing import buckets_of
from inorder.spark.kernels import Names, Rows
from inorder.spark.lines import one_table
from inorder.spark.outcomes import InvalidRows, unread
from inorder.spark.runs import Runs
from inorder.spark.sorting import Flags
from inorder.spark.steps import Step, step_of


class Place(NamedTuple):
    """A bucket, of so many."""

    bucket: int
    buckets: int


class Ran(NamedTuple):
    """What comes out of a batch, the lines that changed, and what there is to count."""

    outcomes: list[pa.Table]
    lines: pa.Table
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is done to rows: an operator with its options, and the columns it reads."""

    operator: str
    options: dict[str, Any]  # of its pattern
    names: Names
    given: dict[str, str | None] = field(default_factory=dict)  # columns that the user named, if not those
    invalid: InvalidRows = "error"
    keep_dropped: bool = False

    @property
    def columns(self) -> dict[str, str | None]:
        """What stays the same for the life of a state: the columns by which it means something."""
        return self.given or self.names._asdict()

    @property
    def changeable(self) -> dict[str, Any]:
        """What may be another from one start of a query to the next: all that does not change what a state means."""
        return {"options": self.options, "invalid": self.invalid, "keep_dropped": self.keep_dropped}

    @property
    def step(self) -> Step:
        return step_of(self.operator, self.options, self.names, self.keep_dropped)

    def run(self, rows: pa.Table, runs: Runs, place: Place, now_us: int) -> Ran:
        """Take the rows of a batch in, all of them of one bucket."""
        step = self.step
        good: Flags = step.readable(rows)
        bad = [] if good.all() else self._unread(rows.filter(pa.array(~good)), step.needs)
        new = Rows.of(rows if good.all() else rows.filter(pa.array(good)).combine_chunks(), self.names)
        check_bucket(new, place)
        outcome, lines, counts = step.take(new, _lines(runs, new, step.due_us(now_us)), now_us)
        if bad:
            counts += Counts({QUARANTINED: sum(map(len, bad))}, 0)
        return Ran([*bad, outcome], lines, counts)

    def _unread(self, rows: pa.Table, needs: str) -> list[pa.Table]:
        if self.invalid == "error":
            key, number = rows.column(self.names.key)[0].as_py(), rows.column(self.names.number)[0].as_py()
            raise InvalidEvent(
                f"{len(rows)} rows cannot be read, the first with {self.names.key}={key!r} and {self.names.number}="
                f"{number!r}: {needs} are needed; "
                "invalid='quarantine' hands such rows on, and invalid='drop' leaves them out",
                (key, number),
            )
        return [unread(rows, QUARANTINED)] if self.invalid == "quarantine" else []


def check_bucket(rows: Rows, place: Place) -> None:
    """Each key must be where its hash says, or it would be split in two."""
    wrong = np.flatnonzero(buckets_of(rows.hashes, place.buckets) != place.bucket)
    if len(wrong):
        key = rows.keys[int(wrong[0])].as_py()
        raise StateDamaged("a task", f"key {key!r} came to bucket {place.bucket} of {place.buckets}, not to its own")


def _lines(runs: Runs, rows: Rows, due_us: int | None) -> pa.Table:
    """Those of the keys, and others whose time has come."""
    found = runs.find(rows.keys, rows.hashes)
    if due_us is None:
        return found
    due = runs.waiting(due_us)
    others = due.filter(pc.invert(pc.is_in(due.column("key"), value_set=rows.keys)))
    return one_table([found, others]) if len(others) else found
