"""Topics and subscriptions as they are, without taking anything from anybody.

What a folder holds is read from its journal, beside the broker that owns it. Any other broker is asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Protocol, TypeVar

from inorder.cli.targets import connected, folder_of, target_of
from inorder.client.pubsub import PubSub
from inorder.clock import SYSTEM_CLOCK
from inorder.core.ledger import Ledger
from inorder.errors import NotFound, SubscriptionNotFound
from inorder.journal.info import subscription_info
from inorder.journal.reading import JournalReader, TopicView
from inorder.metadata import Counters, SubscriptionMetadata, TopicMetadata
from inorder.pending import Pending

Found = TypeVar("Found", TopicMetadata, SubscriptionMetadata)

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a subscription stands. What is None is not in a journal: only a broker that runs knows it."""

    backlog_messages: int
    parked_keys: int
    outstanding_messages: int | None = None
    oldest_unacked_seconds: float | None = None
    blocked_keys: int | None = None
    head_of_line_seconds: float | None = None
    counters: Counters | None = None


class Look(Protocol):
    """What a command may want to see."""

    def topics(self) -> list[TopicMetadata]: ...

    def topic(self, name: str) -> TopicMetadata: ...

    def subscriptions(self, topic: str | None = None) -> list[SubscriptionMetadata]: ...

    def subscription(self, name: str) -> SubscriptionMetadata: ...

    def standing(self, subscription: str) -> Standing: ...


@contextmanager
def looking(given: argparse.Namespace) -> Iterator[Look]:
    """A look at the target."""
    if (folder := folder_of(target_of(given))) is not None:
        yield JournalLook(JournalReader(folder))
    else:
        with connected(given) as pubsub:
            yield BrokerLook(pubsub)


class JournalLook:
    """Read from the journal, whoever owns it."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader

    def topics(self) -> list[TopicMetadata]:
        return sorted((_topic(view) for view in self._reader.topics()), key=attrgetter("name"))

    def topic(self, name: str) -> TopicMetadata:
        return _topic(self._reader.topic(name))

    def subscriptions(self, topic: str | None = None) -> list[SubscriptionMetadata]:
        ledgers = self._reader.book.subscriptions
        found = [_subscription(ledgers[name]) for name in sorted(ledgers)]
        return [one for one in found if topic is None or (one.topic == topic and not one.detached)]

    def subscription(self, name: str) -> SubscriptionMetadata:
        return _subscription(self._ledger(name))

    def standing(self, subscription: str) -> Standing:
        found = subscription_info(self._ledger(subscription), self._reader, SYSTEM_CLOCK.now_us())
        return Standing(backlog_messages=found.backlog, parked_keys=len(found.parked))

    def _ledger(self, name: str) -> Ledger:
        if name not in self._reader.book.subscriptions:
            raise SubscriptionNotFound(name)
        return self._reader.book.subscriptions[name]


class BrokerLook:
    """Asked of a broker."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def topics(self) -> list[TopicMetadata]:
        return [*_still_there(topic.metadata() for topic in self._pubsub.topics().result())]

    def topic(self, name: str) -> TopicMetadata:
        return self._pubsub.topic(name).metadata().result()

    def subscriptions(self, topic: str | None = None) -> list[SubscriptionMetadata]:
        asked = self._pubsub.subscriptions() if topic is None else self._pubsub.topic(topic).subscriptions()
        return [*_still_there(subscription.metadata() for subscription in asked.result())]

    def subscription(self, name: str) -> SubscriptionMetadata:
        return self._pubsub.subscription(name).metadata().result()

    def standing(self, subscription: str) -> Standing:
        found = self._pubsub.subscription(subscription).metrics().result()
        return Standing(
            backlog_messages=found.backlog_messages,
            parked_keys=found.parked_keys,
            outstanding_messages=found.outstanding_messages,
            oldest_unacked_seconds=found.oldest_unacked_seconds,
            blocked_keys=found.blocked_keys,
            head_of_line_seconds=found.head_of_line_seconds,
            counters=found.counters,
        )


def _still_there(asked: Iterable[Pending[Found]]) -> Iterator[Found]:
    """Without what was deleted since it was listed, as `inorder tail` does with its own when it ends."""
    for one in asked:
        with suppress(NotFound):
            yield one.result()


def _topic(view: TopicView) -> TopicMetadata:
    return TopicMetadata(view.name, _time(view.created_us), view.options, view.end)


def _subscription(ledger: Ledger) -> SubscriptionMetadata:
    return SubscriptionMetadata(
        name=ledger.name,
        topic=ledger.topic,
        created=_time(ledger.created_us),
        options=ledger.options,
        detached=ledger.detached,
        topic_deleted=ledger.detached and not ledger.on_request,
    )


def _time(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)
