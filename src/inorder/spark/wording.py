"""Violations and times as people read them, on a page and on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal

from inorder.clock import MICROSECONDS
from inorder.spark.findings import Findings, Violation, counted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sentence(one: Violation, found: Findings) -> str:
    """What happened, in words."""
    value = _value(one.value, found)
    match one.kind:
        case "reordered":
            late = f"{counted(one.places or 0, 'event')} of its key"
            where = f"after it was overtaken, at position {one.other_position}"
            if one.time_us is None:
                return f"{value} came {late} {where}"
            if found.columns.arrival_time is not None:
                return f"{value} came {late} and {duration(one.time_us)} {where}"
            earlier = f"it happened {duration(one.time_us)} earlier than the latest event before it"
            return f"{value} came {late} {where}; {earlier}"
        case "gap" if one.until == one.value:
            return f"{value} is missing; a higher number came here"
        case "gap":
            return f"numbers {one.value} to {one.until} are missing; a higher number came here"
        case "duplicate":
            return f"{value} had arrived before"
        case "overlapping":
            return f"the handler of {value} ran beside an earlier one, for {duration(one.time_us or 0)}"
        case "unplaced":
            return "it has no usable number, time or position"


def _value(value: int | None, found: Findings) -> str:
    if value is None:
        return "an event"
    return f"number {value}" if found.columns.sequence is not None else f"the event of {moment(value)}"


def moment(time_us: int) -> str:
    """In UTC."""
    try:
        return str((_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None))
    except OverflowError:  # before the year 1 or after 9999, as where a unit is wrong
        return f"{time_us:,} µs from 1970 on"


def duration(time_us: int, *, at_least: bool = False) -> str:
    """In the unit that reads best, to six digits; with `at_least` never less, for what must last so long."""
    units = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (MICROSECONDS, "s"), (1_000, "ms"))
    digits = Context(prec=6, rounding=ROUND_CEILING if at_least else ROUND_HALF_EVEN)
    for length, unit in units:
        if time_us >= length:
            return f"{digits.divide(Decimal(time_us), Decimal(length)).normalize():f} {unit}"
    return f"{time_us} µs"


def share(part: float) -> str:
    """In percent; what is there, but hardly, is not called nothing."""
    return "below 0.1%" if 0 < part < 0.001 else f"{part:.1%}"
