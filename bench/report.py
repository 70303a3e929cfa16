"""The machine, the repetitions and the tables. Knows nothing of what is measured."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. A quick run shows that it works; a full one is worth quoting."""

    quick: bool
    repetitions: int

    def of(self, full: T, quick: T) -> T:
        return quick if self.quick else full


def interleaved(contestants: Mapping[str, Callable[[], T]], effort: Effort, *, warm_up: int = 1) -> dict[str, list[T]]:
    """Run everybody in turn, again and again, so that noise hits all of them; results by name.

    The rounds that warm up do not count.
    """
    results: dict[str, list[T]] = {name: [] for name in contestants}
    for repetition in range(-warm_up, effort.repetitions):
        for name, run in contestants.items():
            gc.collect()
            result = run()
            if repetition >= 0:
                results[name].append(result)
    return results


@dataclass(frozen=True, slots=True)
class Target:
    """What the ratio, or the `figure` itself, should be. Missing it is worth a look, and fails nothing."""

    limit: float
    below: bool = False
    figure: bool = False

    def met_by(self, row: Row) -> bool:
        value = median(row.ours if self.figure else row.ratios)
        return value < self.limit if self.below else value >= self.limit

    def __str__(self) -> str:
        return f"{'<' if self.below else '>='} {self.limit:g}{'' if self.figure else ' ×'}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours, and of the peer if it has one, in every repetition."""

    name: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    target: Target | None = None
    missing: str = ""  # what this machine lacks for it

    @property
    def ratios(self) -> list[float]:
        """One ratio per repetition: both sides of it were measured in the same moment."""
        if not self.ours or not self.peer:
            return []
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def verdict(self) -> str:
        if self.missing:
            return f"missing: {self.missing}"
        if self.target is None:
            return ""
        return "met" if self.target.met_by(self) else "NOT MET"


@dataclass(slots=True)
class Table:
    """Figures of one unit that belong together, and what there is to say about them."""

    title: str
    unit: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        measured = any(row.ours for row in self.rows)
        head = ["", f"ours, {self.unit}", "peer" if measured else f"peer, {self.unit}", "ratio", "target", ""]
        body = [
            [row.name, spread(row.ours), spread(row.peer), spread(row.ratios), str(row.target or ""), row.verdict]
            for row in self.rows
        ]
        lines = [self.title, *_aligned([head, *body]), *(f"  {note}" for note in self.notes)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        rows = [
            {
                "name": row.name,
                "ours": list(row.ours),
                "peer": list(row.peer),
                "ratios": row.ratios,
                "target": str(row.target) if row.target else None,
                "verdict": row.verdict or None,
            }
            for row in self.rows
        ]
        return {"title": self.title, "unit": self.unit, "rows": rows, "notes": self.notes}


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the most in brackets."""
    if not values:
        return ""
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def number(value: float) -> str:
    """Three figures that count, or all there are."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """The same as lines, without the columns that are empty below their head."""
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    names, *others = [(column, max(map(len, column))) for column in columns]
    padded = [[f"  {cell:{names[1]}}" for cell in names[0]]]
    padded += [[f"{cell:>{width}}" for cell in column] for column, width in others]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "OS": f"{_os_name()}, {platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "inorder": version("inorder"),
    }


def load() -> str:
    """How busy the machine is, over 1, 5 and 15 minutes."""
    return " ".join(f"{average:.2f}" for average in os.getloadavg())


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.platform()
