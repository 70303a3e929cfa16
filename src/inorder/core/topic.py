"""A topic: the next position, and the messages that are kept for replay whoever has acked them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

from inorder.clock import MICROSECONDS
from inorder.core.subscription import Subscription
from inorder.message import POSITION, STORED_US, Record
from inorder.options import TopicOptions


class Topic:
    """One topic. Records that nobody wants to replay are kept by the subscriptions alone."""

    def __init__(self, name: str, id_prefix: str, options: TopicOptions, created_us: int) -> None:
        self.name = name
        self.id_prefix = id_prefix
        self.options = options
        self.created_us = created_us
        self.next_position = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.retention_us = 0  # 0: nothing is kept; the longest that the topic or a subscription asks for
        self._log: list[Record] = []

    def keep(self, records: Sequence[Record]) -> None:
        """Retain new messages, for as long as anybody asks for."""
        self._log += records
        self._forget_before(records[-1][STORED_US] - self.retention_us)

    def retain(self, seconds: float) -> None:
        """Keep what comes from now on for so long; 0 keeps nothing."""
        self.retention_us = round(seconds * MICROSECONDS)
        if not self.retention_us:
            self._log.clear()

    def retained(self, now_us: int) -> Sequence[Record]:
        """What can be replayed now."""
        self._forget_before(now_us - self.retention_us)
        return self._log

    def oldest_position(self, now_us: int) -> int:
        """The first position that is retained, or the next one to come."""
        retained = self.retained(now_us)
        return retained[0][POSITION] if retained else self.next_position

    def _forget_before(self, oldest_us: int) -> None:
        if self._log and self._log[0][STORED_US] < oldest_us:
            del self._log[: bisect_left(self._log, oldest_us, key=itemgetter(STORED_US))]
