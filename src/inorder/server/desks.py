"""The desks of all subscriptions that somebody wants something of."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.server.desk import Desk, Taker
from inorder.server.names import Names
from inorder.server.status import detached, not_pulled, shutting_down, subscription_missing

DRAIN_SECONDS = 0.02  # between two looks whether all is answered


class Desks:
    """One for each subscription, as long as it is needed."""

    def __init__(self, broker: MessageQueue, names: Names) -> None:
        self._broker = broker
        self._names = names
        self._open: dict[str, Desk] = {}
        self._used_us: dict[str, int] = {}  # when a subscription was used last
        self._stopping = False

    def open(self, resource: str, *, pushes: bool = False) -> Desk:
        """The desk of a subscription; whoever opens it joins it, and leaves it.

        One that is pushed is for who `pushes`, and one that is not for all others.
        """
        if self._stopping:
            raise shutting_down()
        name = self._names.subscription(resource)
        found = self._broker.get_subscription(name)
        if found is None:
            raise subscription_missing(resource)
        if found.detached and not found.topic_deleted:
            raise detached(resource)
        desk = self._open.get(name)
        self.used(name)
        if desk is None or desk.over():
            try:
                desk = Desk(self._broker, name, resource, lambda ended: self._closed(name, ended))
            except NotFound:
                raise subscription_missing(resource) from None
            self._open[name] = desk
        desk.look()
        if desk.pushed != pushes:
            desk.close_if_idle()
            raise not_pulled()
        return desk

    def use(self, name: str) -> None:
        """Somebody takes from a subscription without a desk. As from those, nothing is taken once the server stops."""
        if self._stopping:
            raise shutting_down()
        self.used(name)

    def used(self, name: str) -> None:
        """Somebody takes from a subscription, answers or changes something of it: it does not expire soon."""
        self._used_us[name] = self._broker.clock.now_us()

    def settled(self, resource: str, leases: Iterable[int], *, failed: bool) -> None:
        """Leases of a subscription were answered."""
        name = self._names.subscription(resource)
        self.used(name)
        if desk := self._open.get(name):
            desk.settled(leases, failed=failed)

    def told_of(self, resource: str, leases: Iterable[int]) -> None:
        """A client has said something of leases of a subscription: so it has read them."""
        name = self._names.subscription(resource)
        self.used(name)
        if desk := self._open.get(name):
            desk.told_of(leases)

    def used_us(self, name: str) -> int:
        """When the subscription was used last, as far as is known: 0 if it was not."""
        return self._broker.clock.now_us() if name in self._open else self._used_us.get(name, 0)

    def forget_all_but(self, names: Container[str]) -> None:
        """These are the subscriptions that there are."""
        self._used_us = {name: used_us for name, used_us in self._used_us.items() if name in names}

    def _closed(self, name: str, desk: Desk) -> None:
        if self._open.get(name) is desk:
            del self._open[name]
            self.used(name)
        if desk.over():
            self._used_us.pop(name, None)

    def takers(self) -> Iterator[tuple[str, Taker]]:
        """All who take something, each with the subscription."""
        for name, desk in self._open.items():
            for taker in desk.takers():
                yield self._names.subscription_resource(name), taker

    async def drain(self, seconds: float) -> None:
        """Give nothing out any more, and wait until what is out is answered, or for so long."""
        self._stopping = True
        desks = tuple(self._open.values())
        for desk in desks:
            desk.give_no_more(shutting_down())
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and any(desk.out() for desk in desks):  # noqa: ASYNC110  leases end by time, too
            await asyncio.sleep(DRAIN_SECONDS)

    def stop(self) -> None:
        """End every stream and every pull that waits: their clients try again, and what they have is not theirs."""
        self._stopping = True
        for desk in tuple(self._open.values()):
            desk.stop(shutting_down())
