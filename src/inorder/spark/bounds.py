"""What of a topic can be read."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """From the oldest message that is there to behind the last."""

    serial: int  # of the topic: a later one of the same name has another
    begin: int
    end: int
    created_us: int  # of another folder, a topic may have the same serial; 0: a server does not say it
