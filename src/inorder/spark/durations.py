"""How long, as people write it: 30, "30 seconds", "5 minutes", timedelta(hours=1)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from inorder.errors import InvalidArgument

Duration: TypeAlias = float | str | timedelta

_UNITS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0, "week": 604_800.0}
_TEXT = re.compile(rf"\s*(\d+(?:\.\d+)?)\s+({'|'.join(_UNITS)})s?\s*", re.IGNORECASE)


def seconds(name: str, value: Duration | None) -> float | None:
    """The seconds of a duration; a number is of seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    found = _TEXT.fullmatch(value)
    if found is None:
        raise InvalidArgument(f"{name}: seconds, a timedelta, or text such as '30 seconds', not {value!r}")
    return float(found[1]) * _UNITS[found[2].lower()]
