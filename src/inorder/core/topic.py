"""A topic: its log, and who reads it."""

from __future__ import annotations

from inorder.core.log import History, Log
from inorder.core.producers import Producers
from inorder.core.snapshot import Snapshot
from inorder.core.subscription import Subscription
from inorder.options import TopicOptions


class Topic(Log):
    """One topic. Messages that nobody wants to replay are kept by the subscriptions alone."""

    def __init__(
        self, name: str, serial: int, id_prefix: str, options: TopicOptions, created_us: int, history: History
    ) -> None:
        super().__init__(history)
        self.name = name
        self.serial = serial
        self.id_prefix = id_prefix
        self.options = options
        self.created_us = created_us
        self.subscriptions: list[Subscription] = []
        self.snapshots: list[Snapshot] = []
        self.writers: dict[str, tuple[int, int]] = {}  # who writes in epochs → the last one, and the part of it
        self.producers: Producers = {}
        self.limited: list[Subscription] = []  # those of them that can be full
