"""Bars as inline SVG, drawn in the colours of the page around them. Knows nothing of audits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple
from unicodedata import east_asian_width

_ROW = 26
_LABEL = 190
_BARS = 380
_FIGURE = 170  # for one of ten digits and its share, in a font as wide as DejaVu Sans
_LETTERS = 20  # of a label: as many as fit, also if they are capitals


class Line(NamedTuple):
    """One bar: how it is called, how long it is, and what stands at its end."""

    label: str
    value: float
    figure: str
    strong: bool = False


def bars(title: str, lines: Sequence[Line], *, mark: tuple[float, str] | None = None) -> str:
    """Horizontal bars, the longest as long as there is room; `mark` is a line across them, with its name."""
    most = max([*(line.value for line in lines), mark[0] if mark else 0, 0]) or 1
    height = _ROW * len(lines) + (_ROW if mark else 6)
    parts = [
        f'<svg viewBox="0 0 {_LABEL + _BARS + _FIGURE} {height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for index, line in enumerate(lines):
        top = index * _ROW
        length = line.value / most * _BARS
        if line.value:
            length = max(length, 1.5)
        behind = max(length, mark[0] / most * _BARS) if mark else length
        kind = "bar strong" if line.strong else "bar"
        label = f"{escape(_short(line.label))}<title>{escape(line.label)}</title>"
        parts += [
            f'<text class="label" x="{_LABEL - 10}" y="{top + 17}">{label}</text>',
            f'<rect class="{kind}" x="{_LABEL}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2"/>',
            f'<text class="figure" x="{_LABEL + behind + 8:.1f}" y="{top + 17}">{escape(line.figure)}</text>',
        ]
    if mark:
        x, bottom = _LABEL + mark[0] / most * _BARS, _ROW * len(lines)
        parts += [
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>',
            f'<text class="marked" x="{x:.1f}" y="{bottom + 15}">{escape(mark[1])}</text>',
        ]
    return "\n".join([*parts, "</svg>"])


def _short(label: str) -> str:
    widths = [*accumulate(2 if east_asian_width(letter) in ("W", "F") else 1 for letter in label)]
    if not label or widths[-1] <= _LETTERS:
        return label
    return f"{label[: sum(width < _LETTERS for width in widths)]}…"
