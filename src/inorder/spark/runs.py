"""The state of one bucket: runs of lines, each sorted by hash and key, the newest last.

A line replaces those of its key in older runs. A batch adds one run, so it writes what it changed and no more. Older
runs that are not more than twice as long are merged into it, so that there are few (each is more than twice as long
as the next), and a line is rewritten about as often as its state doubles. It knows no pattern: a line has a hash, a
key, a time since when something waits, if it does, and whatever else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.hashing import Hashes, Numbers
from inorder.spark.lines import by_hash, one_chunk, one_table
from inorder.spark.sorting import Flags

GROWTH = 2


class Runs:
    """All runs of a bucket as they are at one version. Nothing here is changed."""

    def __init__(self, runs: Sequence[pa.Table], empty: pa.Table) -> None:
        self._runs = list(runs)
        self._empty = empty

    @property
    def newest(self) -> pa.Table | None:
        """What the last batch wrote."""
        return self._runs[-1] if self._runs else None

    def find(self, keys: pa.StringArray, hashed: Hashes) -> pa.Table:
        """The lines of these keys, of those that have one. It costs what it finds, not what there is."""
        left = np.argsort(hashed)  # in order, a search touches less of a file
        parts = [self._empty]
        for run in reversed(self._runs):
            if not len(left):
                break
            places = _places(run, keys.take(pa.array(left)), hashed[left])
            found = places >= 0
            if found.any():
                parts.append(run.take(pa.array(places[found])))
                left = left[~found]
        return one_table(parts)

    def waiting(self, since_us: int) -> pa.Table:
        """The lines in which something waits since this time, or longer."""
        parts = [self._empty]
        for index, run in enumerate(self._runs):
            due = run.filter(pc.less_equal(run.column("since_us"), since_us))
            for newer in self._runs[index + 1 :]:
                if not len(due):
                    break
                keys = one_chunk(due.column("key"))
                replaced = _places(newer, keys, one_chunk(due.column("hash")).to_numpy()) >= 0
                due = due.filter(pa.array(~replaced))
            parts.append(due)
        return one_table(parts)

    def with_changes(self, changed: pa.Table, now_us: int = 0) -> tuple[int, pa.Table]:
        """How many of the oldest runs stay as they are, and the run that takes the place of all others.

        If it takes the place of all there are, lines that say that they may be forgotten by now are.
        """
        kept, rows = len(self._runs), len(changed)
        while kept and len(self._runs[kept - 1]) <= GROWTH * rows:
            kept -= 1
            rows += len(self._runs[kept])
        return kept, self._merged(kept, changed, now_us)

    def merged_with(self, changed: pa.Table, now_us: int) -> pa.Table:
        """All lines in one run."""
        return self._merged(0, changed, now_us)

    def _merged(self, kept: int, changed: pa.Table, now_us: int) -> pa.Table:
        runs = [*self._runs[kept:], changed]
        run = changed if len(runs) == 1 else _merged(runs)
        if not kept and "forget_us" in run.column_names:
            run = run.filter(pc.greater(run.column("forget_us"), now_us)).combine_chunks()
        return run


def _places(run: pa.Table, keys: pa.StringArray, hashed: Hashes) -> Numbers:
    """The index in a run of the line of each key, or -1."""
    places = np.full(len(keys), -1, np.int64)
    if not len(run):
        return places
    known, names = one_chunk(run.column("hash")).to_numpy(), one_chunk(run.column("key"))
    candidate = np.searchsorted(known, hashed)
    left = np.arange(len(keys))
    while True:
        # Keys of one hash are neighbours, and few.
        left = left[candidate[left] < len(known)]
        left = left[known[candidate[left]] == hashed[left]]
        if not len(left):
            return places
        equal = pc.equal(names.take(pa.array(candidate[left])), keys.take(pa.array(left)))
        is_it: Flags = equal.to_numpy(zero_copy_only=False)
        places[left[is_it]] = candidate[left[is_it]]
        left = left[~is_it]
        candidate[left] += 1


def _merged(runs: Sequence[pa.Table]) -> pa.Table:
    """One run of several, the newest last: of each key its newest line."""
    whole = one_table(reversed(runs))
    keys = one_chunk(whole.column("key"))
    order = by_hash(keys, one_chunk(whole.column("hash")).to_numpy())
    arranged = keys.take(pa.array(order))
    newest = np.ones(len(order), np.bool_)
    newest[1:] = pc.not_equal(arranged[1:], arranged[:-1]).to_numpy(zero_copy_only=False)
    return whole.take(pa.array(order[newest])).combine_chunks()
