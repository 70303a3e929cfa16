"""A hybrid logical clock: time that never runs backwards along a chain of messages, whatever the clocks do.

A value, not a device: `now_us` is handed in. See Kulkarni et al., "Logical Physical Clocks" (2014).
"""

from __future__ import annotations

from dataclasses import dataclass

from inorder.errors import ClockDrift, InvalidArgument
from inorder.options import MAX_WHOLE, check_whole

LOGICAL_BITS = 10  # of 63: microseconds then last until the year 2255, and a microsecond has 1,024 places
MAX_LOGICAL = 2**LOGICAL_BITS - 1
MAX_WALL_US = MAX_WHOLE >> LOGICAL_BITS
TEXT_DIGITS = 16


@dataclass(frozen=True, slots=True, order=True)
class HybridLogicalClock:
    """A moment: microseconds, and a place within the microsecond. Compares as it was caused.

    Whoever sends takes `clock = clock.send(now_us)` and puts the clock on the message; whoever receives takes
    `clock = clock.receive(of_the_message, now_us)`. Then a message that was sent because of another one is
    greater than that one, and no clock is further ahead of the real time than the fastest machine is.
    """

    wall_us: int = 0
    logical: int = 0

    def __post_init__(self) -> None:
        for name, value, most in (("wall_us", self.wall_us, MAX_WALL_US), ("logical", self.logical, MAX_LOGICAL)):
            check_whole(name, value, at_least=0)
            if value > most:
                raise InvalidArgument(f"{name}: up to {most}, not {value}")

    def send(self, now_us: int) -> HybridLogicalClock:
        """The time of the next event here: now, or just after the one before if now is not later."""
        if now_us > self.wall_us:
            return HybridLogicalClock(now_us)
        return self._next()

    def receive(self, other: HybridLogicalClock, now_us: int, *, max_drift_us: int | None = None) -> HybridLogicalClock:
        """The time of having received `other`: later than both, and now if now is later still.

        One that is more than `max_drift_us` ahead of now is a `ClockDrift`, and is not followed.
        """
        if max_drift_us is not None and other.wall_us - now_us > max_drift_us:
            raise ClockDrift(other.wall_us - now_us, max_drift_us)
        latest = max(self, other)
        return HybridLogicalClock(now_us) if now_us > latest.wall_us else latest._next()

    def _next(self) -> HybridLogicalClock:
        """The least moment after this one."""
        if self.logical < MAX_LOGICAL:
            return HybridLogicalClock(self.wall_us, self.logical + 1)
        return HybridLogicalClock(self.wall_us + 1)

    def encode(self) -> int:
        """One number of 63 bits that sorts alike: the microseconds, shifted by 10 bits, and the place."""
        return self.wall_us << LOGICAL_BITS | self.logical

    @classmethod
    def decode(cls, encoded: int) -> HybridLogicalClock:
        """What `encode` made."""
        check_whole("encoded", encoded, at_least=0)
        return cls(encoded >> LOGICAL_BITS, encoded & MAX_LOGICAL)

    def __str__(self) -> str:
        """The number in 16 hexadecimal digits, for an attribute; it sorts alike as text."""
        return f"{self.encode():0{TEXT_DIGITS}x}"

    @classmethod
    def parse(cls, text: str) -> HybridLogicalClock:
        """What `str` made."""
        if not isinstance(text, str):
            raise InvalidArgument(f"hybrid logical clock: a string, not {text!r}")
        if len(text) != TEXT_DIGITS or not set(text) <= set("0123456789abcdef"):
            raise InvalidArgument(f"hybrid logical clock: {TEXT_DIGITS} hexadecimal digits, not {text!r}")
        return cls.decode(int(text, 16))
