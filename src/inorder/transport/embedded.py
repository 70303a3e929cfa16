"""A broker in this process: calls are answered before they return, unless they wait for room or for the disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from inorder.broker import MessageQueue
from inorder.errors import Closed, InorderError
from inorder.message import Batch, Gap, Message, Recipient, Source
from inorder.metadata import BlockedKey, Metrics, SubscriptionMetadata, TopicMetadata, Unacked
from inorder.options import SubscriptionOptions, TopicOptions
from inorder.pending import Pending
from inorder.transport import Taken, TakenLists

T = TypeVar("T")

_name = attrgetter("name")


class EmbeddedTransport:
    """Calls go straight to a `MessageQueue`."""

    in_order = False  # what waits for room has no place yet

    def __init__(self, broker: MessageQueue, *, owned: bool) -> None:
        self.broker = broker
        self.clock = broker.clock
        self.answers_at_once = not broker.journaled
        self._owned = owned
        self._waiting: set[Pending[list[str]]] = set()  # publishes, for room
        self._may_wait = True
        self._closed = False

    def _run(self, call: Callable[[], T]) -> Pending[T]:
        return Pending.failed(Closed("this PubSub is closed")) if self._closed else Pending.run(call)

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]:
        return self._run(lambda: self.broker.register_topic(name, options))

    def delete_topic(self, name: str) -> Pending[None]:
        return self._run(lambda: self.broker.unregister_topic(name))

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]:
        return self._run(lambda: self.broker.get_topic(name))

    def list_topics(self) -> Pending[list[TopicMetadata]]:
        return self._run(lambda: sorted(self.broker.get_all_topics(), key=_name))

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]:
        return self._run(lambda: self.broker.register_subscription(name, topic, options))

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]:
        return self._run(lambda: self.broker.update_subscription(name, changes))

    def delete_subscription(self, name: str) -> Pending[None]:
        return self._run(lambda: self.broker.unregister_subscription(name))

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]:
        return self._run(lambda: self.broker.get_subscription(name))

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]:
        if topic is None:
            return self._run(lambda: sorted(self.broker.get_all_subscriptions(), key=_name))
        return self._run(lambda: sorted(self.broker.get_subscriptions_for_topic(topic), key=_name))

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        try:
            answer = self.broker.submit(topic, batch)
        except Exception as error:
            return Pending.failed(error)
        if not answer.done():
            self._waiting.add(answer)
            answer.add_done_callback(self._waiting.discard)
            if not self._may_wait:
                self.broker.withdraw([answer])
        return answer

    def stop_waiting(self) -> None:
        self._may_wait = False
        self.broker.withdraw(tuple(self._waiting))

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        return self._run(lambda: self.broker.pull(subscription, max_messages, on_gap))

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> EmbeddedDeliveries:
        if self._closed:
            raise Closed("this PubSub is closed")
        return EmbeddedDeliveries(self.broker, subscription, wake, report)

    def seek(self, subscription: str, position: int | None, time: datetime | float | None) -> Pending[None]:
        return self._run(lambda: self.broker.seek(subscription, position=position, time=time))

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]:
        return self._run(lambda: self.broker.blocked_keys(subscription))

    def resume_key(self, subscription: str, key: str) -> Pending[None]:
        return self._run(lambda: self.broker.resume_key(subscription, key))

    def skip(self, subscription: str, key: str) -> Pending[str]:
        return self._run(lambda: self.broker.skip(subscription, key))

    def unacked(self, subscription: str) -> Pending[Unacked]:
        return self._run(lambda: self.broker.unacked(subscription))

    def metrics(self, subscription: str) -> Pending[Metrics]:
        return self._run(lambda: self.broker.metrics(subscription))

    def close(self) -> None:
        self._closed = True
        if self._owned:
            self.broker.close()


class EmbeddedDeliveries:
    """One consumer of a subscription of a broker in this process."""

    def __init__(
        self, broker: MessageQueue, subscription: str, wake: Callable[[], None], report: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._subscription = subscription
        self.terms = broker.watch(subscription, wake, report)
        self.id_prefix = self.terms.id_prefix
        self.ack_id_prefix = self.terms.ack_id_prefix

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Taken:
        options, now_us = self.terms.options, self._broker.clock.now_us()
        if not max_messages:
            return Taken([], options, now_us)  # nothing is on its way here
        messages = self._broker.take(self._subscription, max_messages, source, max_bytes=max_bytes, alone=alone)
        while options is not self.terms.options:  # perhaps what was taken was then taken back, by new rules
            options = self.terms.options
            over = {*self._broker.over(self._subscription, [message._lease for message in messages])}
            messages = [message for message in messages if message._lease not in over]
        return Taken(messages, options, now_us)

    def lease(self, max_messages: int, max_bytes: int, alone: bool, recipient: Recipient, room: int) -> TakenLists:
        options, now_us = self.terms.options, self._broker.clock.now_us()
        if not max_messages:
            return TakenLists((), options, now_us)
        leased = self._broker.lease(self._subscription, max_messages, recipient, max_bytes=max_bytes, alone=alone)
        while options is not self.terms.options:
            options = self.terms.options
            leased = leased.without({*self._broker.over(self._subscription, leased.leases)})
        return TakenLists((leased,) if leased.leases else (), options, now_us)

    def hold(self) -> None:
        """Nothing comes by itself."""

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        try:
            over = self._broker.settle(self._subscription, acks, nacks)
        except InorderError as error:
            return Pending.failed(error)
        durable = self._broker.durable()
        if durable.done() and durable.exception() is None:
            return Pending.of(over)
        return durable.map(lambda _: over)

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        return Pending.run(lambda: self._broker.extend(self._subscription, leases, seconds))

    def release(self, leases: Sequence[int], recipient: Recipient) -> Pending[None]:
        return Pending.run(lambda: self._broker.release(self._subscription, leases, recipient))

    def close(self) -> Pending[None]:
        return Pending.run(lambda: self._broker.unwatch(self._subscription, self.terms))
