"""Consumers that share the partitions of a topic, each partition with one of them at a time."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from time import monotonic
from typing import Any

from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.clock import Clock
from inorder.consumers.partitions.gate import Gate, Handler
from inorder.consumers.partitions.membership import Membership
from inorder.consumers.partitions.resizing import Resizer, group_subscription, subscription_name
from inorder.consumers.partitions.router import topic_name
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.partitions.skew import live_skew
from inorder.consumers.partitions.table import Table
from inorder.consumers.store import Store
from inorder.errors import Closed, FailedPrecondition, InorderError, InvalidArgument, NotFound
from inorder.message import Gap
from inorder.options import SubscriptionOptions, build, check_call, check_name, check_number, known
from inorder.patterns.skew import SkewReport
from inorder.pending import Pending

SESSION_SECONDS = 10.0  # of silence, after which a member's partitions go to others
BEATS = 4  # in each session: some may be late
TICK_SECONDS = 0.02  # between two looks at the announcements
OBSERVER = ""  # who only asks, and is no member

OnGap = Callable[[Gap], Any]

_log = logging.getLogger(__name__)


class Group:
    """A handle on a group of consumers: each message of the topic goes to one of them, the same one for its key."""

    def __init__(self, pubsub: PubSub, store: Store, table: Table, resizer: Resizer, name: str, clock: Clock) -> None:
        self.name = check_name("group", name)
        # The longest that there may be: with one that cannot be made, neither members nor a resize would get on.
        check_name("subscription", subscription_name(table.name, name, 9_999))
        self._pubsub = pubsub
        self._store = store
        self._table = table
        self._resizer = resizer
        self._clock = clock

    def create(self, **options: Any) -> Group:
        """Create it, with a subscription on every partition; it gets what is published from now on.

        The options are those of a subscription, which is ordered. A group that is there stays as it is.
        """
        checked = build(SubscriptionOptions, {"enable_message_ordering": True} | known(SubscriptionOptions, options))
        if not checked.enable_message_ordering:
            raise InvalidArgument(f"group {self.name!r}: enable_message_ordering is True in partitions, not False")
        self._resizer.provide(self._table.change(lambda routes: _with_group(routes, self.name, asdict(checked))))
        return self

    def delete(self) -> None:
        """Delete it and all that waits in it. Its members end, and a resize does not wait for it any more."""
        routes = self._table.change(lambda routes: routes.without_group(self.name))
        for partition in self._ever(routes):
            subscription = self.subscription(partition)
            if subscription.exists().result():
                subscription.delete().result()

    def join(
        self,
        handler: Handler,
        *,
        on_gap: OnGap | None = None,
        member: str | None = None,
        session_seconds: float = SESSION_SECONDS,
    ) -> Member:
        """Begin to consume: partitions come and go as members do.

        `handler` and `on_gap` are as for `subscription.on("message")` and `on("gap")`.
        """
        check_call("handler", handler)
        if on_gap is not None:
            check_call("on_gap", on_gap)
        check_number("session_seconds", session_seconds, above=0, up_to=600)
        if not self._exists():
            raise NotFound(f"group {self.name!r} does not exist; create it first")
        name = uuid.uuid4().hex if member is None else check_name("member", member)
        membership = self._membership(name, session_seconds)
        return Member(self, membership, self._table, self._resizer, handler, on_gap, session_seconds)

    def subscription(self, partition: int) -> Subscription:
        """The group's subscription on a partition: for its metrics, and its blocked keys."""
        return group_subscription(self._pubsub, self._table.name, self.name, partition)

    def assignment(self) -> dict[int, str]:
        """The member that has each partition; without those that nobody has."""
        return dict(sorted(self._membership(OBSERVER, SESSION_SECONDS).roster().holders.items()))

    def backlogs(self) -> dict[int, int]:
        """How many messages wait in each partition, those included that are being handled."""
        return {
            partition: self.subscription(partition).metrics().result().backlog_messages
            for partition in self._table.current().live
        }

    def skew(self, *, top: int = 10) -> SkewReport:
        """How unevenly what waits falls on keys, slots and partitions. Needs a key for each message: not `strict`."""
        routes = self._table.current()
        if routes.strict:
            raise FailedPrecondition("a strict partition does not tell the keys of what waits; see `backlogs`")
        loads: dict[str, int] = {}
        for partition in routes.live:
            for key in self.subscription(partition).unacked().result().keys:
                if key.ordering_key:
                    loads[key.ordering_key] = loads.get(key.ordering_key, 0) + key.messages
        return live_skew(loads, routes, top)

    def _exists(self) -> bool:
        return self.name in self._table.load().groups

    def _ever(self, routes: Routes) -> Iterator[int]:
        """All partitions that there ever were: those also that have no slots any more, or never came to have one."""
        yield from range(routes.last + 1)
        for partition in count(routes.last + 1):
            if not self._pubsub.topic(topic_name(self._table.name, partition)).exists().result():
                return
            yield partition

    def _membership(self, member: str, session_seconds: float) -> Membership:
        return Membership(self._store, self._table, self.name, member, self._clock, session_seconds)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, partitions of {self._table.name!r})"


def _with_group(routes: Routes, name: str, options: Mapping[str, Any]) -> Routes:
    return routes if name in routes.groups else routes.with_group(name, options)


class Member:
    """One consumer of a group, at work in threads of its own until `close`; or use it as `with group.join(…):`."""

    def __init__(
        self,
        group: Group,
        membership: Membership,
        table: Table,
        resizer: Resizer,
        handler: Handler,
        on_gap: OnGap | None,
        session_seconds: float,
    ) -> None:
        self.name = membership.member
        self._group = group
        self._membership = membership
        self._table = table
        self._resizer = resizer
        self._handler = handler
        self._on_gap = on_gap
        self._pause_seconds = session_seconds / BEATS
        self._open: dict[int, Subscription] = {}
        self._closing: list[Subscription] = []  # whose handlers are waited for
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._gate = Gate(table, resizer, self._stop)
        self._seen = -1  # announcements
        self._joined: Pending[None] = Pending()
        self._left: Pending[None] = Pending()
        # All in one thread, so that `async def` handlers never depend on the loop that happened to be there.
        self._thread = threading.Thread(target=self._run, name=f"inorder-member-{self.name}", daemon=True)
        try:
            self._thread.start()
            self._joined.result()
        except BaseException:  # Ctrl-C, too: nobody gets hold of it who could close it
            self._stop.set()
            raise

    @property
    def partitions(self) -> list[int]:
        """Those that this member has now."""
        return sorted(self._open)

    def step(self) -> None:
        """Say that this member is alive, take partitions and give some back. Done by itself, again and again."""
        with self._lock:
            if self._stop.is_set():
                return
            place = self._membership.beat()
            if not self._group._exists():
                _log.warning("member %r of group %r ends: the group was deleted", self.name, self._group.name)
                self._stop.set()
                return
            # One that the broker has ended, as its subscription was deleted, is opened anew: nobody else would.
            ended = {partition for partition, subscription in self._open.items() if not subscription._is_open()}
            self._close(({*self._open} - place.keeps) | ended)
            if place.to_give:
                self._membership.give(place.to_give)
                self._table.announce()  # so that others take it at once, and not with their next beat
            new = sorted(place.keeps - {*self._open})
            if new:  # whoever planned them may not have come to make them
                self._resizer.provide(self._table.known)
            for partition in new:
                subscription = self._group.subscription(partition).on("message", self._gate.before(self._handler))
                if self._on_gap is not None:
                    subscription.on("gap", self._on_gap)
                self._open[partition] = subscription.open()

    def close(self) -> Pending[None]:
        """Finish what runs, and leave the group; done when it returns. As of a subscription, it can be waited for.

        For a handler that closes it returns at once, or the handler would wait for itself.
        """
        self._stop.set()
        if not any(subscription._is_at_work() for subscription in (*self._open.values(), *self._closing)):
            self._left.result()
        return Pending.of(None)

    def _leave(self) -> None:
        with self._lock, suppress(Closed):
            self._close({*self._open})
            self._membership.leave()
            self._table.announce()

    def _close(self, partitions: set[int]) -> None:
        """Stop with partitions, all at once; done when their handlers are."""
        self._closing = [self._open[partition] for partition in sorted(partitions)]
        for partition in partitions:
            del self._open[partition]
        for closing in [subscription.close() for subscription in self._closing]:
            closing.result()
        self._closing = []

    def _run(self) -> None:
        try:
            self.step()
            self._table.announce()  # others may have to give something
        except Exception as error:
            with self._lock, suppress(Exception):
                self._close({*self._open})
                self._membership.leave()
            self._joined.set_exception(error)
            return
        self._joined.set_result(None)
        self._stay()
        self._left._settle_by(self._leave)

    def _stay(self) -> None:
        beat_seconds = monotonic()
        while not self._stop.wait(min(TICK_SECONDS, self._pause_seconds)):
            try:
                if monotonic() - beat_seconds > self._pause_seconds:
                    beat_seconds = monotonic()
                    self.step()
                    self._resizer.advance()  # whoever began a resize may be gone
                elif self._changed():
                    self.step()
            except Closed:
                return  # the broker, or the store: nothing is left to consume
            except InorderError as error:
                _log.warning("member %r of group %r: %s", self.name, self._group.name, error)
            except Exception:
                _log.exception("member %r of group %r: the store failed", self.name, self._group.name)

    def _changed(self) -> bool:
        seen, self._seen = self._seen, self._table.announced()
        return seen != self._seen

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
