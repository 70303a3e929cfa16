"""Which messages have failed, how often, and what is to become of them.

Knows the retry and poison rules and nothing of lanes, leases or topics.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from inorder.clock import MICROSECONDS
from inorder.core.events import Failure
from inorder.message import ATTRIBUTES, DATA, KEY, POSITION, PUBLISH_US, Gap, Record
from inorder.options import SubscriptionOptions


class Failures:
    """What is known of messages that were out and came back; those that never did cost nothing."""

    def __init__(self) -> None:
        self.known: dict[int, Failure] = {}  # by position

    def count(self, position: int) -> int:
        """How often the message has failed."""
        return self.known[position][0] if position in self.known else 0

    def first_out_us(self, position: int, otherwise_us: int) -> int:
        """When the message was first delivered."""
        return self.known[position][1] if position in self.known else otherwise_us

    def forget(self, positions: Iterable[int]) -> None:
        for position in positions:
            self.known.pop(position, None)

    def clear(self) -> None:
        self.known.clear()

    def attempts(self, records: Sequence[Record]) -> Sequence[int]:
        """Which attempt the next delivery of each message is."""
        known = self.known
        if not known:
            return (1,) * len(records)
        return [known[record[0]][0] + 1 if record[0] in known else 1 for record in records]

    def were_out(self, records: Iterable[Record]) -> int:
        """How many of these have been out before."""
        return sum(record[POSITION] in self.known for record in records)


class Verdict(NamedTuple):
    """What becomes of deliveries of one key (or of one message without a key) that came back."""

    records: list[Record]  # to be delivered again, in order; a gap record stands for poison
    failures: list[tuple[int, int]]  # (position, how often it has failed by now)
    poison: list[Record]  # to be dead-lettered
    until_us: int | None  # 0: free at once; None: the key is parked
    waits_for: int  # the position of the message for which the key waits, if it does


def judge(
    options: SubscriptionOptions,
    failures: Failures,
    back: Iterable[tuple[Record, bool]],
    now_us: int,
    dead_letters: bool,
) -> Verdict:
    """Sort what came back into what is retried, parked or poison. The flag says: it failed itself.

    With `dead_letters` off, poison that should be dead-lettered is retried instead.
    """
    records: list[Record] = []
    counts: list[tuple[int, int]] = []
    poison: list[Record] = []
    until_us: int | None = 0
    waits_for = -1
    keyed = options.enable_message_ordering
    for record, failed in back:
        if isinstance(record[DATA], Gap):
            records.append(record)
            continue
        count = failures.count(record[POSITION]) + failed
        too_often = failed and options.max_failures is not None and count >= options.max_failures
        parks = too_often and options.on_poison == "park_key" and record[KEY] != ""
        if too_often and not parks and dead_letters and options.dead_letter_policy is not None:
            poison.append(record)
            if keyed and record[KEY]:
                records.append(gap_for(record, "dead_lettered"))
            continue
        records.append(record)
        counts.append((record[POSITION], count))
        if not failed:  # taken back with another one, and not to blame
            continue
        if until_us == 0 or (parks and until_us is not None):
            waits_for = record[POSITION]
        if parks:
            until_us = None
        elif options.retry_policy is not None and until_us is not None:
            until_us = max(until_us, now_us + round(options.retry_policy.backoff(count) * MICROSECONDS))
    return Verdict(records, counts, poison, until_us, waits_for)


def gap_for(record: Record, reason: str) -> Record:
    """What stands in the place of a message that will not come."""
    position, key, _, _, publish_us, _, stored_us = record
    return (position, key, Gap(key, position, position, 1, reason), None, publish_us, 0, stored_us)


def wider_gap(before: Record, gap: Record) -> Record | None:
    """Two holes of a key, side by side, as one; None if they are not two of one reason."""
    first, last = before[DATA], gap[DATA]
    if not isinstance(first, Gap) or not isinstance(last, Gap) or first.reason != last.reason:
        return None
    if first.count > len(before[ATTRIBUTES] or (0,)) or last.count > len(gap[ATTRIBUTES] or (0,)):
        return None  # of one that the journal has forgotten nobody knows all positions
    joined = Gap(first.ordering_key, first.first_position, last.last_position, first.count + last.count, first.reason)
    # The list goes with the hole, and is longer now: to copy it for each message would make a full subscription, or
    # one that nobody reads, slow for everybody.
    positions: Any = array("q", [before[POSITION]]) if before[ATTRIBUTES] is None else before[ATTRIBUTES]
    positions.extend(gap[ATTRIBUTES] or (gap[POSITION],))
    return (*before[:DATA], joined, positions, *before[PUBLISH_US:])
