"""Subscriptions that nobody has used for as long as their expiration policy says are deleted, and old snapshots.

Use is a pull, an open stream, an answer, an update or a seek. It is remembered in memory: a server that starts
begins to count anew.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from inorder.broker import MessageQueue
from inorder.clock import MICROSECONDS
from inorder.errors import InorderError
from inorder.metadata import SubscriptionMetadata
from inorder.server.admin import Admin
from inorder.server.chores import now_and_then
from inorder.server.desks import Desks
from inorder.server.names import Names
from inorder.server.resources import expiration_seconds

CHECK_SECONDS = 600.0  # the shortest policy is a day

_log = logging.getLogger(__name__)


class Expiry:
    """Looks now and then."""

    def __init__(
        self, broker: MessageQueue, names: Names, admin: Admin, desks: Desks, forget: Callable[[str], Awaitable[None]]
    ) -> None:
        self._names = names
        self._forget = forget  # is told of each that is about to be deleted
        self._broker = broker
        self._admin = admin
        self._desks = desks
        self._started_us = broker.clock.now_us()

    async def run(self) -> None:
        await now_and_then(CHECK_SECONDS, "deleting what has expired", self.delete_overdue)

    async def delete_overdue(self) -> None:
        subscriptions = self._broker.get_all_subscriptions()
        self._desks.forget_all_but({subscription.name for subscription in subscriptions})
        for name in [subscription.name for subscription in subscriptions if self._is_overdue(subscription)]:
            found = self._broker.get_subscription(name)
            if found is None or not self._is_overdue(found):  # it was used, or made anew, while others were deleted
                continue
            _log.warning("subscription %r was not used for as long as its expiration policy says: it is deleted", name)
            try:
                await self._forget(self._names.subscription_resource(name))
                await self._admin.run(lambda name=name: self._broker.unregister_subscription(name))  # type: ignore[misc]
            except InorderError as error:
                _log.warning("subscription %r could not be deleted: %s", name, error)

        try:
            for name in await self._admin.run(self._broker.delete_old_snapshots):
                await self._forget(self._names.snapshot_resource(name))
        except InorderError as error:
            _log.warning("old snapshots could not be deleted: %s", error)

    def _is_overdue(self, subscription: SubscriptionMetadata) -> bool:
        seconds = expiration_seconds(subscription.options)
        created_us = round(subscription.created.timestamp() * MICROSECONDS)
        used_us = max(self._desks.used_us(subscription.name), self._started_us, created_us)
        return seconds is not None and self._broker.clock.now_us() - used_us > seconds * MICROSECONDS
