"""From judged events to counts of each key."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from inorder.spark.findings import KINDS
from inorder.spark.hashing import Numbers
from inorder.spark.judging import Judged
from inorder.spark.lines import as_numbers, one_chunk

COUNTS: Final = dict(zip(KINDS, ("reordered", "gaps", "duplicates", "overlapping", "unplaced"), strict=True))
SUMS: Final = ("events", *COUNTS.values(), "missing", "unmeasured", "untimed", "tied")
MAXIMA: Final = ("buffer", "farthest", "wait_us", "delay_us")
TOLD: Final = ("key", *(name for name in (*SUMS, *MAXIMA) if name != "tied"), "is_split")  # ties are refused

_LOWEST = -(2**62)  # than all of which the highest is looked for; two of them can still be added


class KeyTally:
    """Counts by key, piece by piece."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}  # the counts of a key of which there may be more
        self._partitions: dict[str | None, int] = {}

    def add(self, judged: Judged) -> pa.Table:
        """A row for each key of which there can be no more."""
        sums, maxima = _sums(judged), _maxima(judged) | self._ends(judged)
        for name, count in self._open.items():
            if name in sums:
                sums[name][0] += count
            else:
                maxima[name][0] = max(maxima[name][0], count)
        is_open = not judged.is_end and len(judged.keys) > 0
        self._open = {name: int(counts[-1]) for name, counts in (sums | maxima).items()} if is_open else {}
        whole = len(judged.keys) - is_open
        columns = {name: pa.array(sums[name][:whole]) for name in SUMS}
        columns |= {name: pa.array(maxima[name][:whole], mask=maxima[name][:whole] < 0) for name in MAXIMA}
        is_split = maxima["partition"] + maxima["partition_down"] > 0
        return pa.table({"key": judged.keys.slice(0, whole), **columns, "is_split": is_split[:whole]})

    def _ends(self, judged: Judged) -> dict[str, Numbers]:
        """The highest partition of each key, and the lowest with its sign turned, so that a maximum tells both."""
        if "partition" not in judged.rows.column_names:
            return {name: np.full(len(judged.keys), _LOWEST) for name in ("partition", "partition_down")}
        encoded = one_chunk(judged.rows.column("partition")).dictionary_encode()
        known = [self._partitions.setdefault(name, len(self._partitions)) for name in encoded.dictionary.to_pylist()]
        named = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
        code, number = judged.code[named], np.array(known, np.int64)[as_numbers(encoded.indices.drop_null())]
        count = len(judged.keys)
        return {"partition": _most(code, number, count), "partition_down": _most(code, -number, count)}


def _sums(judged: Judged) -> dict[str, Numbers]:
    rows, count = judged.rows, len(judged.keys)

    def counted(codes: Numbers) -> Numbers:
        return np.bincount(codes, minlength=count)

    sums = {"events": counted(judged.code), "tied": counted(judged.tied)}
    sums |= {name: np.zeros(count, np.int64) for name in SUMS if name not in sums}
    for spotted in judged.spotted:
        sums[COUNTS[spotted.kind]] += counted(spotted.code)
        if spotted.until is not None:
            np.add.at(sums["missing"], spotted.code, spotted.until - as_numbers(spotted.value) + 1)
    if "is_unmeasured" in rows.column_names:
        unmeasured = one_chunk(rows.column("is_unmeasured")).to_numpy(zero_copy_only=False)
        sums["unmeasured"] = counted(judged.code[unmeasured])
    if "arrival_us" in rows.column_names:
        timed = one_chunk(rows.column("arrival_us")).is_valid().to_numpy(zero_copy_only=False)
        sums["untimed"] = counted(judged.placed) - counted(judged.code[timed])
    return sums


def _maxima(judged: Judged) -> dict[str, Numbers]:
    count = len(judged.keys)
    late = judged.late
    return {
        "buffer": np.maximum(0, _most(judged.placed, judged.parked, count)),
        "farthest": _most(late.code, late.places, count),
        "wait_us": _most(late.code, late.time_us if "arrival_us" in judged.rows.column_names else None, count),
        "delay_us": _most(judged.placed, judged.delay_us, count),
    }


def _most(codes: Numbers, numbers: Numbers | None, count: int) -> Numbers:
    """Of each code its highest number."""
    most = np.full(count, _LOWEST)
    if numbers is not None:
        np.maximum.at(most, codes, numbers)
    return most
