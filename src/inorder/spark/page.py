"""What an audit found, as one page for people: no script, no network, light or dark as the reader likes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from inorder.clock import MICROSECONDS
from inorder.spark.charts import Line, bars
from inorder.spark.findings import PLACES, Bar, Findings, KeyFindings, Kind, counted
from inorder.spark.wording import duration, sentence, share

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5b6470; --paper: #fff; --panel: #f4f6f8; --rule: #d5dae0;
  --bar: #4a7fb5; --strong: #c2502f; --good: #1f7a4d; --bad: #b3361b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa4af; --paper: #15191e; --panel: #1e242b;
  --rule: #38414b; --bar: #6ea3d8; --strong: #e8805f; --good: #5cc98f; --bad: #ff8a6b; } }
body { margin: 0 auto; max-width: 52rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0 .8rem; } .soft { color: var(--soft); } code { font: .9em ui-monospace, monospace; }
.verdict { border-left: .4rem solid var(--bad); background: var(--panel); padding: .8rem 1rem; }
.verdict.good { border-color: var(--good); } .verdict strong { font-size: 1.5rem; color: var(--bad); display: block; }
.verdict.good strong { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.tile { background: var(--panel); padding: .6rem .8rem; } .tile b { font-size: 1.4rem; display: block; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.long { overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .label { text-anchor: end; } svg .figure { fill: var(--soft); } svg .bar { fill: var(--bar); }
svg .strong { fill: var(--strong); } svg .mark { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .marked { fill: var(--soft); text-anchor: middle; }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; }
"""

_MEANING: dict[Kind, tuple[str, str]] = {
    "reordered": ("reordered", "Arrived after an event of its key that belongs behind it (an inversion)."),
    "gap": ("gaps", "Numbers that never arrived, although lower and higher ones of their key did."),
    "duplicate": ("duplicates", "Events whose key and number had arrived before."),
    "overlapping": ("overlapping", "A handler that started while another of its key was still running."),
    "unplaced": ("unplaced", "Events with a key, but without a usable number, time or position."),
}


def page(findings: Findings) -> str:
    """The whole document."""
    parts = [_head(findings), _verdict(findings), _tiles(findings)]
    if findings.violations:
        parts.append(_violations(findings))
    parts.append(_repair(findings))
    if findings.reordered:
        parts.append(_lateness(findings))
    parts += [_keys(findings), _partitions(findings), _words(findings), "</body>\n</html>\n"]
    return "\n".join(parts)


def _head(found: Findings) -> str:
    title = f"Order audit: {escape(found.source)}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    )


def _verdict(found: Findings) -> str:
    keyed = found.events - found.unkeyed
    subject = f"{counted(keyed, 'event')} of {counted(found.keys, 'key')}"
    if not keyed:
        headline = "Nothing to judge"
        text = "No event has a key, so no order was promised." if found.events else "There are no events."
    elif found.in_order:
        headline = "In order"
        text = f"Proven for all {subject}: in each key, every event arrived after all that belong before it."
    else:
        headline = "Order is broken"
        text = f"{counted(found.broken_keys, 'key')} of {found.keys:,} violate it, among {subject}."
    if found.allowed:
        text += f" Allowed, and only counted: {', '.join(_MEANING[kind][0] for kind in found.allowed)}."
    columns = found.columns
    how = (
        f"Key: <code>{escape(columns.key)}</code>. Right order: <code>{escape(columns.ordered_by)}</code>. "
        f"Order of arrival: <code>{escape(columns.arrival_order)}</code>."
    )
    good = " good" if found.in_order else ""
    return f'<div class="verdict{good}"><strong>{headline}</strong>{escape(text)}</div>\n<p class="soft">{how}</p>'


def _tiles(found: Findings) -> str:
    figures = [
        ("events", f"{found.events:,}"),
        ("reordered", f"{found.reordered:,}"),
        ("gaps", f"{found.gaps:,}"),
        ("numbers missing", f"{found.missing:,}"),
        ("duplicates", f"{found.duplicates:,}"),
        ("overlapping runs", "not measured" if found.overlapping is None else f"{found.overlapping:,}"),
        ("unplaced", f"{found.unplaced:,}"),
        ("without a key", f"{found.unkeyed:,}"),
    ]
    if found.columns.sequence is None:
        figures = [figure for figure in figures if figure[0] not in ("gaps", "numbers missing", "duplicates")]
    tiles = "".join(f'<div class="tile"><b>{figure}</b>{name}</div>' for name, figure in figures)
    return f'<div class="tiles">{tiles}</div>'


def _violations(found: Findings) -> str:
    rows = [
        [escape(one.kind), f"<code>{escape(one.key)}</code>", escape(one.position), escape(sentence(one, found))]
        for one in found.violations
    ]
    return (
        f"<h2>The first {counted(len(rows), 'violation')}</h2>\n<p>In the order of arrival.</p>\n"
        f"{_table(['what', 'key', 'position', 'what happened'], rows)}"
    )


def _repair(found: Findings) -> str:
    if not found.reordered:
        return "<h2>What would repair it</h2>\n<p>No event had to wait for another: nothing has to be put in order.</p>"
    rows = [["buffer", counted(found.buffer, "event"), "so many events of one key had to wait at once"]]
    if found.longest_wait_us is not None:
        text = "so long an event had to wait for another that came"
        rows.append(["timeout", f"more than {duration(found.longest_wait_us, at_least=True)}", text])
    if found.watermark_us is not None:
        text = "the delay of a watermark that drops no event as too late"
        rows.append(["watermark", duration(found.watermark_us, at_least=True), text])
    note = ""
    if found.columns.sequence is not None:
        settings = [f"capacity={found.buffer}", 'when_full="gap"']
        if found.timeout_us is not None:
            settings.insert(1, f"gap_timeout_seconds={found.timeout_us / MICROSECONDS!r}")
        note = f"<p>As settings of inorder: <code>Resequencer({escape(', '.join(settings))})</code></p>"
    return (
        "<h2>What would repair it</h2>\n<p>The least that puts every event of this log into its place; "
        f"with less, some would come too late.</p>\n{_table(['what', 'how much', 'why'], rows)}\n{note}"
    )


def _lateness(found: Findings) -> str:
    text = "In events of the same key that arrived since the late one was overtaken."
    parts = [
        "<h2>How late the late events are</h2>",
        f"<p>{text} The latest one: {found.farthest:,}.</p>",
        bars("Reordered events by lateness, in events of their key", _bars(found.lateness, found.reordered, _places)),
    ]
    if found.waits:
        if found.columns.arrival_time is not None:
            text = "In time: how much later than its overtaker it arrived."
        else:
            text = "In time: how much earlier it happened than the latest event before it."
        parts += [
            f"<p>{text}</p>",
            bars("Reordered events by lateness, in time", _bars(found.waits, found.reordered, _times)),
        ]
    return "\n".join(parts)


def _bars(found: Sequence[Bar], all_late: int, label: Callable[[int, int | None], str]) -> list[Line]:
    ends = [*(bar.at_least for bar in found[1:]), None]
    return [
        Line(label(bar.at_least, end), bar.count, f"{bar.count:,} ({share(bar.count / all_late)})")
        for bar, end in zip(found, ends, strict=True)
    ]


def _places(first: int, end: int | None) -> str:
    if first == PLACES[-1]:
        return f"{first:,} and more"
    last = (end or 2 * first) - 1
    return f"{first:,}" if last == first else f"{first:,} to {last:,}"


def _times(first: int, end: int | None) -> str:
    if not first:
        return f"below {duration(end or 1_000)}"
    return f"{duration(first)} and more" if end is None else f"{duration(first)} to {duration(end)}"


def _keys(found: Findings) -> str:
    if not found.hot_keys:
        return ""
    mean = (found.events - found.unkeyed) / found.keys
    lines = [
        Line(key.key, key.events, f"{key.events:,} ({share(key.share)})", strong=key.events > 10 * mean)
        for key in found.hot_keys
    ]
    text = (
        f"A key has {mean:,.1f} events on average. One with more than ten times as many stands out; a key is never "
        "divided, so no number of partitions makes it faster."
    )
    parts = [
        "<h2>The hottest keys</h2>",
        f"<p>{text}</p>",
        bars("Events of the hottest keys", lines),
    ]
    if found.worst_keys:
        parts += ["<h2>The keys with most violations</h2>", _worst(found.worst_keys, found)]
    return "\n".join(parts)


def _worst(keys: Iterable[KeyFindings], found: Findings) -> str:
    names = ["events", "reordered", "gaps", "duplicates", "unplaced", "buffer"]
    if found.overlapping is not None:
        names.insert(4, "overlapping")
    rows = [[f"<code>{escape(key.key)}</code>", *(f"{getattr(key, name):,}" for name in names)] for key in keys]
    return _table(["key", *names], rows, numbers=True)


def _partitions(found: Findings) -> str:
    if not found.partitions or found.events == found.unkeyed:
        return ""
    count = found.partition_count
    even = 1 / count
    if found.columns.partition is None:
        text = f"Events of each of {counted(count, 'partition')}, if inorder's hash of the key spread them."
    else:
        text = f"Events of each value of {found.columns.partition}."
    text += f" The hottest has {found.imbalance:.2f} times an equal share."
    if found.split_keys:
        text += (
            f" {counted(found.split_keys, 'key')} lie in more than one partition: only the order of arrival named "
            "above tells how their events follow each other."
        )
    shown = found.partitions[:32]
    lines = [
        Line(load.name, load.share, f"{load.events:,} ({share(load.share)})", load.share > 2 * even) for load in shown
    ]
    chart = bars("Load of the partitions", lines, mark=(even, "equal share"))
    more = f"<p>And {count - len(shown):,} more.</p>" if count > len(shown) else ""
    return f"<h2>Skew of the partitions</h2>\n<p>{escape(text)}</p>\n{chart}{more}"


def _words(found: Findings) -> str:
    kinds = [kind for kind in _MEANING if kind != "overlapping" or found.overlapping is not None]
    terms = "".join(f"<dt>{_MEANING[kind][0]}</dt><dd>{_MEANING[kind][1]}</dd>" for kind in kinds)
    notes = ["What is missing before the lowest number of a key, or behind its highest, no log can tell."]
    if found.unkeyed:
        notes.append(f"{counted(found.unkeyed, 'event')} without a key: no order is promised to them.")
    if found.untimed:
        notes.append(f"{counted(found.untimed, 'event')} without a time of arrival: the waits do not include them.")
    if found.unmeasured_runs:
        notes.append(f"{counted(found.unmeasured_runs, 'run')} without a start, or without an end behind it.")
    return f"<h2>The words</h2>\n<dl>{terms}</dl>\n" + "\n".join(
        f'<p class="soft">{escape(note)}</p>' for note in notes
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Cells are HTML already; with `numbers`, all but the first column stand right."""
    kinds = ["", *[' class="number"' if numbers else ' class="long"'] * (len(header) - 1)]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, header, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
