"""All subscriptions that are pushed."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from inorder.broker import MessageQueue
from inorder.server.desks import Desks
from inorder.server.names import Names
from inorder.server.push.http import HttpClient
from inorder.server.push.push import Push
from inorder.server.resources import push_target
from inorder.server.status import Refusal

_log = logging.getLogger(__name__)


class Pushes:
    """Begins to push what is to be pushed; each ends by itself. `anywhere`: to other machines too."""

    def __init__(self, broker: MessageQueue, names: Names, desks: Desks, *, anywhere: bool) -> None:
        self._broker = broker
        self._names = names
        self._desks = desks
        self._anywhere = anywhere
        self._http = HttpClient()
        self._running: dict[str, Push] = {}
        self._stopping = False

    def start(self) -> None:
        for subscription in self._broker.get_all_subscriptions():
            self.refresh(subscription.name)

    def refresh(self, name: str) -> None:
        """A subscription was made or changed: push it, if that is what it wants. One that is pushed sees it itself."""
        running = self._running.get(name)
        if running is not None:
            if not running.desk.over():
                running.desk.ask()
                return
            running.stop()  # that was another subscription of the same name
        found = self._broker.get_subscription(name)
        target = None if found is None else push_target(found.options)
        if target is None or self._stopping:
            return
        if not (target.endpoint.loopback or (self._anywhere and target.endpoint.tls)):
            _log.warning(
                "subscription %r is not pushed to %s, which is not on loopback: start the server with --push-anywhere",
                name,
                target.endpoint.authority,
            )
            return
        resource = self._names.subscription_resource(name)
        try:
            desk = self._desks.open(resource, pushes=True)
        except Refusal:  # it is detached
            return
        push = Push(self._broker, name, resource, desk, self._http, partial(self._ended, name))
        self._running[name] = push
        desk.join(push)

    def _ended(self, name: str) -> None:
        del self._running[name]

    def finish(self) -> None:
        """Begin nothing more; what is being sent may still be answered."""
        self._stopping = True
        for push in tuple(self._running.values()):
            push.finish()

    async def stop(self) -> None:
        self._stopping = True
        sending = [task for push in tuple(self._running.values()) for task in push.stop()]
        await asyncio.gather(*sending, return_exceptions=True)
        await self._http.close()
