"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from inorder.clock import MICROSECONDS

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def size(count: int) -> str:
    """Bytes: `512 bytes`, `1.5 KiB`."""
    power = min((count.bit_length() - 1) // 10, 4) if count else 0
    return f"{count / 1024**power:.1f} {'_KMGT'[power]}iB" if power else counted(count, "byte")


def counted(count: int, noun: str) -> str:
    """`1 frame`, `1,234 frames`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(time_us: int | None) -> str:
    """Seconds are enough for people."""
    return "" if time_us is None else f"{_datetime(time_us):%Y-%m-%d %H:%M:%S}"


@lru_cache(64)  # those of a batch are mostly the same
def timestamp(time_us: int) -> str:
    """As it is written for programs, to the microsecond."""
    return _datetime(time_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _datetime(time_us: int) -> datetime:
    seconds, microseconds = divmod(time_us, MICROSECONDS)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


def duration(seconds: float) -> str:
    """In the largest unit that says it exactly."""
    for length, unit in _UNITS:
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:g} s"


def table(header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> list[str]:
    """Lines of aligned columns; numbers stand right."""
    right = [True] * len(header)
    texts = []
    for row in rows:
        right = [known and isinstance(cell, int) for known, cell in zip(right, row, strict=True)]
        texts.append([f"{cell:,}" if isinstance(cell, int) else cell for cell in row])
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [header, *texts]
    ]
