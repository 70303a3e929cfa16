"""The wish that a run ends: asked for by a signal or a thread, and seen between two batches."""

from __future__ import annotations


class Stop:
    """Asked for once, it ends a run after its batch; asked for again, at once."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1

    @property
    def wanted(self) -> bool:
        return self.asked > 0

    @property
    def at_once(self) -> bool:
        return self.asked > 1
