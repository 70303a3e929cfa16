"""How long deliveries were on their way, by two clocks that need not agree."""

from __future__ import annotations

from collections.abc import Iterable


class Transit:
    """Of one stream. Not thread-safe.

    The fastest delivery tells how far apart the clocks are, and whatever takes longer was late. If a clock is set, or
    runs faster, everything would be late from then on; but what confirms a request was sent after that.
    """

    def __init__(self) -> None:
        self._apart_us: int | None = None
        self._asked_us: dict[int, int] = {}  # requests that are not confirmed

    def asked(self, number: int, now_us: int) -> None:
        """A request of this number is sent."""
        self._asked_us[number] = now_us

    def left_us(self, sent_us: int, now_us: int, confirmed: Iterable[int]) -> int:
        """When a delivery that is here now, and was sent then by the other clock, was sent by this one."""
        apart_us = now_us - sent_us
        if self._apart_us is None or apart_us < self._apart_us:
            self._apart_us = apart_us
        for number in confirmed:
            asked_us = self._asked_us.pop(number, None)
            if asked_us is not None and asked_us - sent_us > self._apart_us:
                self._apart_us = asked_us - sent_us
        return sent_us + self._apart_us
