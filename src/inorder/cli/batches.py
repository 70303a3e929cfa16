"""The batches of a run as lines: one for each that did something, or on a terminal one that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TextIO

from inorder.cli.wording import counted
from inorder.patterns.step import DUPLICATE, GAP, LATE, QUARANTINED, STALE

if TYPE_CHECKING:
    from inorder.spark.pipelines.running import Progress

TOLD_FATES: Final = (GAP, LATE, DUPLICATE, STALE, QUARANTINED)  # the rest went well
BATCH_FIELDS: Final = {
    "batch": "its number",
    "rows": "that came",
    "seconds": "it took",
    "waiting": "rows that are parked behind it, for earlier ones; null without an operator that keeps state",
    "fates": "how many rows met which fate; null without such an operator",
}
_CLEAR: Final = "\r\x1b[K"


class Lines:
    """Call it with each batch, and `end` it when there are no more."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, as_json: TextIO | None = None) -> None:
        """`as_json` gets an object for each batch, of `BATCH_FIELDS`."""
        self._stream = stream
        self._quiet = quiet
        self._as_json = as_json
        self._live = stream.isatty()
        self._drawn = False
        self._batches = self._rows = 0
        self._seconds = 0.0
        self._waiting = 0

    def __call__(self, progress: Progress) -> None:
        self._batches += 1
        self._rows += progress.rows
        self._seconds += progress.seconds
        if progress.counts is not None:
            self._waiting = progress.counts.waiting
        if self._as_json is not None:
            self._as_json.write(json.dumps(_plain(progress)) + "\n")
            self._as_json.flush()
        if self._quiet or not (self._live or _did_something(progress)):
            return
        line = ", ".join(told(progress))
        self._stream.write(f"{_CLEAR}{line}" if self._live else f"{line}\n")
        self._stream.flush()
        self._drawn = True

    def end(self) -> None:
        """What is written next begins a line."""
        if self._live and self._drawn:
            self._stream.write("\n")

    def summary(self, *, stopped: bool) -> str:
        rate = f", {self._rows / self._seconds:,.0f} rows/s" if self._rows else ""
        rest = f"; {counted(self._waiting, 'row')} waiting for earlier ones" if self._waiting else ""
        batches = f"{self._batches:,} batch{'' if self._batches == 1 else 'es'}"
        return f"{'stopped' if stopped else 'all done'}: {counted(self._rows, 'row')} in {batches}{rate}{rest}"


def told(progress: Progress) -> Iterator[str]:
    """What there is to say about a batch."""
    yield f"batch {progress.batch}: {counted(progress.rows, 'row')} in {progress.seconds:.1f} s"
    yield f"{progress.rows_per_second:,.0f} rows/s"
    if progress.counts is not None:
        yield f"{progress.counts.waiting:,} waiting"
        for fate in TOLD_FATES:
            if count := progress.counts.fates.get(fate):
                yield counted(count, fate) if fate == GAP else f"{count:,} {fate}"


def _plain(progress: Progress) -> dict[str, Any]:
    counts = progress.counts
    return {
        "batch": progress.batch,
        "rows": progress.rows,
        "seconds": progress.seconds,
        "waiting": None if counts is None else counts.waiting,
        "fates": None if counts is None else counts.fates,
    }


def _did_something(progress: Progress) -> bool:
    """Not so a batch that only looked at the clock."""
    return progress.rows > 0 or (progress.counts is not None and any(progress.counts.fates.values()))
