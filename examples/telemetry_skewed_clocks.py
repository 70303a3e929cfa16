"""Devices whose clocks differ: the newest time is not the newest event, and a clock from 2038 wins for ever.

A wall thermostat is 40 s ahead, a phone 40 s behind, and a gateway woke up in 2038. Each sets the temperature of a room
because of what it saw before. Hybrid logical clocks never run behind a message that was received, and what is ahead of
all reason is quarantined.
"""

from contextlib import suppress

from inorder.errors import ClockDrift
from inorder.patterns import HybridLogicalClock, LastWriteWins, fold

SECOND = 1_000_000
NOW = 1_750_000_000 * SECOND
AHEAD = {"thermostat": 40 * SECOND, "phone": -40 * SECOND, "gateway": 400_000_000 * SECOND}

# What happened, in this order: (device, seconds from now, degrees)
HAPPENED = [("thermostat", 0, 17), ("gateway", 1, 5), ("phone", 5, 21)]  # the gateway's 5 degrees are a fault
TRUSTED = [event for event in HAPPENED if event[0] != "gateway"]


def clock_of(device, seconds):
    """What the device thinks that the time is."""
    return NOW + seconds * SECOND + AHEAD[device]


def without_pattern(events=HAPPENED):
    """The greatest time of all wins."""
    _, degrees = max((clock_of(device, seconds), degrees) for device, seconds, degrees in events)
    return degrees


def with_pattern():
    """Each device stamps its event after the one that it has seen; the consumer bounds the drift."""
    events, stamps = [], []
    for device, seconds, degrees in HAPPENED:
        now_us, clock = clock_of(device, seconds), HybridLogicalClock()
        for stamp in stamps:  # of the events that the device has seen
            with suppress(ClockDrift):  # years ahead: not followed
                clock = clock.receive(stamp, now_us, max_drift_us=300 * SECOND)
        clock = clock.send(now_us)
        stamps.append(clock)
        events.append(("room", clock.encode(), device, degrees))
    folded = fold(LastWriteWins(stamps="hybrid", max_drift_seconds=60), events, now_us=NOW)
    return folded.applied()[-1][3]


def expected():
    """The last event of a device in its right mind."""
    return TRUSTED[-1][2]


if __name__ == "__main__":
    print("happened:       ", ", ".join(f"{device} sets {degrees}" for device, _, degrees in HAPPENED))
    print("without pattern:", without_pattern(), "degrees")
    print("  and without the gateway:", without_pattern(TRUSTED), "degrees")
    print("with pattern:   ", with_pattern(), "degrees")
