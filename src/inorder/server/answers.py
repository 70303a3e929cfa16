"""Acks, nacks and later deadlines, by ack id, for calls and streams alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inorder.broker import MessageQueue
from inorder.errors import InvalidAckId, NotFound
from inorder.server.names import Names
from inorder.server.resources import ACK_DEADLINE_SECONDS
from inorder.server.status import Refusal, invalid, subscription_missing, within

_ACK_ID = re.compile(r"[0-9a-f]{19}-\d+-\d+")  # one of ours, perhaps of an earlier start or another subscription


class Found(NamedTuple):
    """What ack ids name."""

    leases: list[int]  # each once
    over: list[str]  # ack ids that cannot be of a lease any more
    nonsense: list[str]  # and what never was one


class Outcome(NamedTuple):
    """What became of answers."""

    done: list[str]
    invalid: list[str]


class Answers:
    """The broker by the names and ack ids of the protocol."""

    def __init__(self, broker: MessageQueue, names: Names) -> None:
        self._broker = broker
        self._names = names

    def find(self, resource: str, ack_ids: Sequence[str]) -> Found:
        prefix = self.prefix(resource)
        leases: dict[int, None] = {}
        over: list[str] = []
        nonsense: list[str] = []
        width = len(prefix)
        for ack_id in ack_ids:
            number = ack_id[width:]
            if ack_id.startswith(prefix) and number.isdecimal() and number.isascii() and len(number) < 19:
                leases[int(number)] = None
            elif _ACK_ID.fullmatch(ack_id):
                over.append(ack_id)
            else:
                nonsense.append(ack_id)
        return Found([*leases], over, nonsense)

    def prefix(self, resource: str) -> str:
        try:
            return self._broker.prefixes(self._names.subscription(resource))[1]
        except NotFound:
            raise subscription_missing(resource) from None

    def ack(self, resource: str, leases: Sequence[int]) -> list[int]:
        """Those that were over already; the others are done."""
        return self._broker.settle(self._names.subscription(resource), leases, ()) if leases else []

    def extend(self, resource: str, leases: Sequence[int], seconds: int) -> list[int]:
        """The same for a deadline so many seconds from now; 0 is a nack."""
        return self._broker.extend(self._names.subscription(resource), leases, seconds) if leases else []


def check_deadline(seconds: int) -> None:
    within("ack_deadline_seconds", seconds, 0, ACK_DEADLINE_SECONDS[1])


def no_ack_id(nonsense: Iterable[str]) -> Refusal:
    ack_id = next(iter(nonsense))[:200]
    return invalid(f"You have passed an invalid ack ID to the service (ack_id={ack_id}).", InvalidAckId(ack_id))


def check_ack_ids(invalid: Iterable[str]) -> None:
    """Refuse what never was an ack id among those that had no effect; others may only be late."""
    if nonsense := [ack_id for ack_id in invalid if not _ACK_ID.fullmatch(ack_id)]:
        raise no_ack_id(nonsense)


def outcome(ack_ids: Sequence[str], found: Found, prefix: str, over: Iterable[int]) -> Outcome:
    """Which of the ack ids had an effect, and which had none."""
    bad = {*found.over, *found.nonsense, *(f"{prefix}{lease}" for lease in over)}
    done = [ack_id for ack_id in ack_ids if ack_id not in bad] if bad else list(ack_ids)
    return Outcome(done, [*bad])
