"""Moves slots from partition to partition, one step after the other; anybody can take the next step.

What is to be done is in the routes, so whoever finds a resize half-way goes on with it, and two who do it at once are
of one mind: each writes on top of what he has read, and one of them is faster.

    plan     the routes say where slots are to go: those that must move are leaving (their publishers hold them back)
    seal     announced; then the next position of the old partition is read; then that is made durable, and written
    drain    all below the seal is acked, by every group; other slots, and other keys of the broker, do not matter
    open     the acks are made durable; then the slot begins a term in its new partition
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.consumers.partitions.router import topic_name
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.partitions.table import Table
from inorder.consumers.store import Conflict
from inorder.errors import AlreadyExists, NotFound
from inorder.metadata import Unacked, UnackedKey
from inorder.patterns.partitioning import slot_of


@dataclass(frozen=True, slots=True)
class SlotWait:
    """Why a slot has not moved yet: what a group has still to ack of it, or of its partition."""

    slot: int | None  # None: of all slots that leave the partition
    source: int
    group: str
    ordering_key: str  # the key that waits longest; "" where the backlog has not been read so far
    messages: int
    reason: str  # "parked", "backoff" or "out" as of a blocked key, or "waiting" for its turn


def subscription_name(name: str, group: str, partition: int) -> str:
    return f"{topic_name(name, partition)}.{group}"


def group_subscription(pubsub: PubSub, name: str, group: str, partition: int) -> Subscription:
    return pubsub.topic(topic_name(name, partition)).subscription(subscription_name(name, group, partition))


class Resizer:
    """Takes a partitioned topic from one number of partitions to another. Has no thread and no state of its own."""

    def __init__(self, pubsub: PubSub, table: Table) -> None:
        self._pubsub = pubsub
        self._table = table

    def plan(self, count: int) -> Routes:
        """Write down where slots are to go, whatever was planned before."""
        return self._table.change(lambda routes: routes.resized(count))

    def cancel(self) -> Routes:
        """Leave every slot where it is that has not moved yet."""
        return self._table.change(Routes.cancelled)

    def advance(self) -> bool:
        """Take the steps that can be taken now; whether nothing is left to do."""
        routes = self._table.load()
        if not routes.moving:
            return True
        with suppress(Conflict):  # somebody else was faster: next time
            self.provide(routes)
            routes = self._open(self._seal(routes))
        return not routes.moving

    def provide(self, routes: Routes) -> None:
        """Make sure that every partition is there, and the subscription of every group on it."""
        for partition in routes.live:
            topic = self._pubsub.topic(topic_name(self._table.name, partition))
            if not topic.exists().result():
                with suppress(AlreadyExists):
                    topic.create().result()
            for group, options in routes.groups.items():
                subscription = self._subscription(group, partition)
                if not subscription.exists().result():
                    with suppress(AlreadyExists):
                        subscription.create(**options).result()
                    # Who deletes a group does so in the store first: what he has not found here he will not delete.
                    if group not in self._table.load().groups:
                        with suppress(NotFound):
                            subscription.delete().result()

    def waits(self) -> list[SlotWait]:
        """What keeps slots from moving."""
        routes = self._table.load()
        return [
            wait
            for source, slots in routes.draining().items()
            for group in routes.groups
            for wait in self._waits(routes, source, slots, group)
        ]

    def seal(self) -> Routes:
        """Have it decided which messages of leaving slots count."""
        with suppress(Conflict):
            return self._seal(self._table.load())
        return self._table.load()

    def _seal(self, routes: Routes) -> Routes:
        leaving = routes.leaving()
        if not leaving:
            return routes
        # Who checks a message from now on knows that its slot is leaving. So what was found to count without knowing
        # it was stored before this, and is below the position that is read next.
        self._table.announce_version(routes)
        positions = {partition: self._next_position(partition) for partition in leaving}
        self._table.flush()  # what is below these positions is durable, and no crash frees them for others
        return self._table.save(routes.sealed(positions))

    def _next_position(self, partition: int) -> int:
        return self._pubsub.topic(topic_name(self._table.name, partition)).metadata().result().next_position

    def _open(self, routes: Routes) -> Routes:
        drained = [*chain.from_iterable(routes.staying().values()), *self._drained(routes)]
        if not drained:
            return routes
        self._table.flush()  # the acks that were seen are durable: none of them is undone later
        return self._table.save(routes.opened(drained))

    def _drained(self, routes: Routes) -> Iterator[int]:
        for source, slots in routes.draining().items():
            backlogs = [self._subscription(group, source).unacked().result() for group in routes.groups]
            waiting = {slot for backlog in backlogs for slot in _waiting_slots(routes, source, slots, backlog)}
            yield from (slot for slot in slots if slot not in waiting)

    def _waits(self, routes: Routes, source: int, slots: list[int], group: str) -> Iterator[SlotWait]:
        subscription = self._subscription(group, source)
        backlog = subscription.unacked().result()
        waiting = _waiting_slots(routes, source, slots, backlog)
        if not waiting:
            return
        reasons = {key.ordering_key: key.reason for key in subscription.blocked_keys().result()}
        by_slot = _by_slot(routes, source, backlog)
        if not by_slot:
            yield SlotWait(None, source, group, "", 0, "waiting")
        for slot, keys in sorted(by_slot.items(), key=lambda one: (one[0] is None, one[0])):
            first = min(keys, key=lambda key: (reasons.get(key.ordering_key) != "parked", key.position))
            reason = reasons.get(first.ordering_key, "waiting")
            yield SlotWait(slot, source, group, first.ordering_key, sum(key.messages for key in keys), reason)

    def _subscription(self, group: str, partition: int) -> Subscription:
        return group_subscription(self._pubsub, self._table.name, group, partition)


def _waiting_slots(routes: Routes, source: int, slots: Iterable[int], backlog: Unacked) -> set[int]:
    """The slots of which something below their seal may be unacked."""
    by_slot = _by_slot(routes, source, backlog)
    if None in by_slot:
        return {*slots}
    waiting = {slot for slot in by_slot if slot is not None}
    if backlog.known_to < _last_to_drain(routes, source):
        waiting.update(slot for slot in slots if backlog.known_to < routes.route(slot).to_drain(source))
    return waiting


def _by_slot(routes: Routes, source: int, backlog: Unacked) -> Mapping[int | None, list[UnackedKey]]:
    """What is unacked below the seals of a partition; where that is one sequence, of all slots (None)."""
    found: dict[int | None, list[UnackedKey]] = {}
    for key in backlog.keys:
        if not key.ordering_key:
            continue
        slot = None if routes.strict else slot_of(key.ordering_key)
        until = _last_to_drain(routes, source) if slot is None else routes.route(slot).to_drain(source)
        if key.position < until:
            found.setdefault(slot, []).append(key)
    return found


def _last_to_drain(routes: Routes, source: int) -> int:
    return max(route.to_drain(source) for route in routes.distinct)
