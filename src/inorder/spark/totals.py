"""What a task has seen of a log: plain values, which go to the driver and are added up there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from heapq import nsmallest
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.findings import PLACES, TIMES_US, Kind
from inorder.spark.hashing import Numbers, buckets_of, hashes
from inorder.spark.judging import Judged
from inorder.spark.lines import as_numbers, one_chunk
from inorder.spark.tallying import COUNTS, MAXIMA, SUMS

Key: TypeAlias = dict[str, Any]  # the counts of one that is shown
SHOWN: Final = ("key", "events", *COUNTS.values(), "buffer")
BROKEN: Final = "broken"  # how much of a key is not as it should be, and not allowed


@dataclass(slots=True)
class Totals:
    """Sums, maxima, and the few keys that are worth a look."""

    sums: Counter[str] = field(default_factory=Counter)  # `SUMS`, and unkeyed, keys, broken_keys, split_keys
    maxima: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MAXIMA, 0))
    lateness: list[int] = field(default_factory=lambda: [0] * len(PLACES))
    waits: list[int] = field(default_factory=lambda: [0] * len(TIMES_US))
    loads: Counter[str] = field(default_factory=Counter)
    hot_keys: list[Key] = field(default_factory=list)
    worst_keys: list[Key] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Totals:
        plain = json.loads(text)
        return cls(**plain | {"sums": Counter(plain["sums"]), "loads": Counter(plain["loads"])})


def totals_of(judged: Judged, keys: pa.Table, allowed: Sequence[Kind], top: int, partitions: int) -> Totals:
    """Of a piece, and of the keys that ended in it. In a log without partitions, load is that of so many of ours."""
    broken = np.zeros(len(keys), np.int64)
    for kind, name in COUNTS.items():
        if kind not in allowed:
            broken += as_numbers(keys.column(name))
    sums = {name: pc.sum(keys.column(name)).as_py() or 0 for name in SUMS if name != "missing"}
    missing = as_numbers(keys.column("missing"))
    sums["missing"] = sum(missing[missing > 0].tolist())  # of one key it may be as much as a number can say
    sums["unkeyed"] = judged.unkeyed
    sums["keys"], sums["broken_keys"] = len(keys), int(np.count_nonzero(broken))
    sums["split_keys"] = pc.sum(keys.column("is_split")).as_py() or 0
    shown = keys.select(SHOWN).append_column(BROKEN, pa.array(broken))
    return Totals(
        sums=Counter(sums),
        maxima={name: pc.max(keys.column(name)).as_py() or 0 for name in MAXIMA},
        lateness=_bars(judged.late.places, PLACES),
        waits=_bars(judged.late.time_us, TIMES_US),
        loads=_loads(judged, keys, partitions),
        hot_keys=_most(shown, "events", top),
        worst_keys=_most(shown.filter(pa.array(broken > 0)), BROKEN, top),
    )


def merged(totals: Iterable[Totals], top: int) -> Totals:
    """Those of several pieces or tasks as one."""
    whole = Totals()
    for one in totals:
        whole.sums.update(one.sums)
        whole.loads.update(one.loads)
        whole.maxima = {name: max(most, one.maxima[name]) for name, most in whole.maxima.items()}
        whole.lateness = [sum(pair) for pair in zip(whole.lateness, one.lateness, strict=True)]
        whole.waits = [sum(pair) for pair in zip(whole.waits, one.waits, strict=True)]
        whole.hot_keys = _first([*whole.hot_keys, *one.hot_keys], "events", top)
        whole.worst_keys = _first([*whole.worst_keys, *one.worst_keys], BROKEN, top)
    return whole


def _bars(amounts: Numbers | None, starts: Sequence[int]) -> list[int]:
    """How many are in each bar: of those that begin at or below an amount, the last."""
    if amounts is None:
        return [0] * len(starts)
    bars = np.searchsorted(starts, amounts[amounts >= starts[0]], "right") - 1
    counts: list[int] = np.bincount(bars, minlength=len(starts)).tolist()
    return counts


def _loads(judged: Judged, keys: pa.Table, partitions: int) -> Counter[str]:
    if "partition" in judged.rows.column_names:
        named = Counter[str]()
        for one in one_chunk(judged.rows.column("partition")).value_counts().to_pylist():
            named[str(one["values"])] += one["counts"]
        return named
    numbers = buckets_of(hashes(one_chunk(keys.column("key"))), partitions)
    loads = np.zeros(partitions, np.int64)
    np.add.at(loads, numbers, as_numbers(keys.column("events")))
    return Counter({str(number): load for number, load in enumerate(loads.tolist())})


def _most(keys: pa.Table, by: str, top: int) -> list[Key]:
    """The keys with most of something; of equals the first."""
    found = pc.select_k_unstable(keys, min(top, len(keys)), [(by, "descending"), ("key", "ascending")])
    rows: list[Key] = keys.take(found).to_pylist()
    return rows


def _first(keys: list[Key], by: str, top: int) -> list[Key]:
    return nsmallest(top, keys, key=lambda key: (-key[by], key["key"]))
