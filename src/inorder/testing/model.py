"""A broker as the specifications describe it, in lists and dicts, with no care for speed.

The model makes no choices. Which ready key goes first, and when messages past their retention are cleared
away, is the real broker's freedom; so the model is told what the broker did, says whether that was allowed
and all that was due, and follows. What is wrong raises an AssertionError with a sentence.

It knows nothing of how the broker works inside, and of threads. Times are microseconds; let them be whole
milliseconds, which is as finely as a broker measures leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inorder.errors import (
    FailedPrecondition,
    InorderError,
    InvalidArgument,
    NotRetained,
    QueueFull,
    SnapshotAlreadyExists,
    SnapshotNotFound,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.message import Message
from inorder.options import MIN_SNAPSHOT_SECONDS, SNAPSHOT_SECONDS, SubscriptionOptions
from inorder.pending import Pending
from inorder.testing.subscription_model import Item, Matches, Stored, SubscriptionModel, as_us


@dataclass(eq=False, slots=True)
class TopicModel:
    name: str
    retention_us: int
    next_position: int = 0
    log: list[Stored] = field(default_factory=list)  # what can be replayed whoever has acked it


@dataclass(eq=False, slots=True)
class Waiting:
    """A batch that a publisher waits to see stored, and the answer that it will get."""

    messages: Sequence[Message]
    answer: Pending[list[str]]


class Problem(NamedTuple):
    """What keeps a batch from being stored: an error, or that there is no room yet; or nothing."""

    error: type[InorderError] | type[None] = type(None)
    waits: bool = False


@dataclass(eq=False, slots=True)
class SnapshotModel:
    """What a subscription had not acked when it was made, and what came after."""

    topic: str
    kept: list[Stored]
    expires_us: int


class BrokerModel:
    """Topics, subscriptions and time. Refuses what the broker has to refuse, with the same kind of error."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.topics: dict[str, TopicModel] = {}
        self.subscriptions: dict[str, SubscriptionModel] = {}
        self.snapshots: dict[str, SnapshotModel] = {}
        self.waiting: dict[str, list[Waiting]] = {}  # publishers that wait for room, by topic
        self._ack_ids: set[str] = set()
        self._ids: set[str] = set()

    def topic(self, name: str) -> TopicModel:
        if name not in self.topics:
            raise TopicNotFound(name)
        return self.topics[name]

    def subscription(self, name: str) -> SubscriptionModel:
        if name not in self.subscriptions:
            raise SubscriptionNotFound(name)
        return self.subscriptions[name]

    def subscriptions_of(self, topic: str) -> list[SubscriptionModel]:
        return [one for one in self.subscriptions.values() if one.topic == topic and not one.detached]

    def register_topic(self, name: str, retention_seconds: float = 0) -> None:
        if name in self.topics:
            raise TopicAlreadyExists(name)
        self.topics[name] = TopicModel(name, as_us(retention_seconds))
        self.let_in()

    def unregister_topic(self, name: str) -> None:
        self.topic(name)
        for subscription in self.subscriptions_of(name):
            subscription.start_over((), self.now_us)
            subscription.detached = True
        self.snapshots = {key: one for key, one in self.snapshots.items() if one.topic != name}
        del self.topics[name]
        self.let_in()

    def register_subscription(
        self, name: str, topic: str, options: SubscriptionOptions, matches: Matches, sees_gaps: bool = False
    ) -> None:
        if name in self.subscriptions:
            raise SubscriptionAlreadyExists(name)
        self.topic(topic)
        self.subscriptions[name] = SubscriptionModel(name, topic, options, matches, sees_gaps)
        self.let_in()

    def update_subscription(self, name: str, options: SubscriptionOptions) -> None:
        self.subscription(name).update(options, self.now_us)
        self._forget_what_nobody_retains()
        self.let_in()

    def restart(self) -> None:
        """The broker stopped, however, and was opened anew: who waited was not answered, what was out is not."""
        self.waiting.clear()
        for subscription in self.subscriptions.values():
            subscription.restart(self.now_us)

    def unregister_subscription(self, name: str) -> None:
        self.subscription(name)
        del self.subscriptions[name]
        self._forget_what_nobody_retains()
        self.let_in()

    # -- messages in -------------------------------------------------------------------------------

    def publish(self, topic: str, messages: Sequence[Message], answer: Pending[list[str]]) -> None:
        """A batch is published: stored at once, or when there is room for it, as the answer must show."""
        self.waiting.setdefault(topic, []).append(Waiting(messages, answer))
        self.let_in()

    def let_in(self) -> None:
        """Answer all who wait and need not any more, in the order in which they came."""
        for topic, batches in list(self.waiting.items()):
            while batches and not (problem := self._problem(topic, batches[0].messages)).waits:
                waiting = batches.pop(0)
                assert waiting.answer.done(), f"a batch for {topic!r} waits, but it need not: {problem}"
                said = waiting.answer.exception()
                assert type(said) is problem.error, f"a publish to {topic!r} had to end in {problem}, not in {said!r}"
                if said is None:
                    self._store(topic, waiting)
            if not batches:
                del self.waiting[topic]

    def check_waiting(self) -> None:
        """Nobody who waits for room has been answered."""
        for topic, batches in self.waiting.items():
            for waiting in batches:
                assert not waiting.answer.done(), f"there is no room in {topic!r}, but a batch was answered"

    def _problem(self, topic: str, messages: Sequence[Message]) -> Problem:
        """Why a batch cannot be stored now, if there is a reason."""
        if topic not in self.topics:
            return Problem(TopicNotFound)
        batch = self._as_stored(self.topics[topic], messages)
        full = [subscription for subscription in self.subscriptions_of(topic) if subscription.refused(batch)]
        if any(subscription.limits.when_full == "error" for subscription in full):
            return Problem(QueueFull)
        # A batch larger than the whole queue is let in when that is empty.
        return Problem(waits=any(one.limits.when_full == "block" and one.messages() for one in full))

    def _store(self, topic: str, waiting: Waiting) -> None:
        batch, ids = self._as_stored(self.topic(topic), waiting.messages), waiting.answer.result()
        assert len(ids) == len(batch), f"{len(ids)} ids for {len(batch)} messages"
        for stored, message_id in zip(batch, ids, strict=True):
            self._name(stored, message_id)
        self._append(topic, batch)

    def _as_stored(self, topic: TopicModel, messages: Sequence[Message]) -> list[Stored]:
        return [
            Stored(position, message.ordering_key or "", message.data, message.attributes, self.now_us, self.now_us)
            for position, message in enumerate(messages, topic.next_position)
        ]

    def _name(self, stored: Stored, message_id: str) -> None:
        if not stored.id:
            assert message_id not in {*self._ids, ""}, f"no id, or one that was used before: {message_id!r}"
            self._ids.add(message_id)
            stored.id = message_id
        assert stored.id == message_id, f"{stored.id!r} was delivered as {message_id!r}"

    def _append(self, topic: str, batch: list[Stored]) -> None:
        self.topics[topic].next_position += len(batch)
        if self._retention_us(topic):
            self.topics[topic].log += batch
        for snapshot in self.snapshots.values():
            if snapshot.topic == topic:
                snapshot.kept += batch
        for subscription in self.subscriptions_of(topic):
            subscription.accept(batch, self.now_us)

    def _retention_us(self, topic: str) -> int:
        return max(
            self.topics[topic].retention_us,
            *(
                as_us(one.options.message_retention_duration)
                for one in self.subscriptions_of(topic)
                if one.options.retain_acked_messages
            ),
            0,
        )

    def _forget_what_nobody_retains(self) -> None:
        for topic in self.topics.values():
            if not self._retention_us(topic.name):
                topic.log.clear()

    # -- messages out ------------------------------------------------------------------------------

    def check_pull(self, name: str, pulled: Sequence[Message], max_messages: int, consumer: object = None) -> None:
        """What the broker returned is what it may and must return. The messages are out from now on."""
        items = self.subscription(name).check_pull(pulled, max_messages, self.now_us, consumer)
        for item, message in zip(items, pulled, strict=True):
            assert message.ack_id not in self._ack_ids, f"an ack id was used twice: {message.ack_id!r}"
            self._ack_ids.add(message.ack_id)
            if not item.gap:
                self._name(item.stored, message.id)
        self.let_in()

    def ack(self, *ack_ids: str) -> list[str]:
        """Returns the ack ids that are not valid, or no longer."""
        leased, invalid = self._leased(ack_ids)
        for subscription, items in leased:
            for item in items:
                subscription.ack(item)
            self.let_in()
        return invalid

    def nack(self, *ack_ids: str) -> list[str]:
        """Returns the ack ids that are not valid, or no longer."""
        leased, invalid = self._leased(ack_ids)
        for subscription, items in leased:
            subscription.counters.nacked += len(items)
            self._fail(subscription, items)
        return invalid

    def modify_ack_deadline(self, seconds: float, *ack_ids: str) -> list[str]:
        """Returns the ack ids that are not valid, or no longer."""
        if seconds == 0:
            return self.nack(*ack_ids)
        leased, invalid = self._leased(ack_ids)
        for _, items in leased:
            for item in items:
                assert item.lease
                item.lease.deadline_us = self.now_us + as_us(seconds)
        return invalid

    def release(self, *ack_ids: str) -> None:
        """Leases that a consumer gives back without having begun."""
        for subscription, items in self._leased(ack_ids)[0]:
            subscription.release(items, self.now_us)
        self.let_in()

    def _leased(self, ack_ids: Sequence[str]) -> tuple[list[tuple[SubscriptionModel, list[Item]]], list[str]]:
        """What the ack ids stand for, by subscription, and those that stand for nothing."""
        found: dict[str, list[Item]] = {}
        invalid: list[str] = []
        for ack_id in ack_ids:
            holders = [one for one in self.subscriptions.values() if one.leased(ack_id)]
            for subscription in holders:
                found.setdefault(subscription.name, []).append(subscription.leased(ack_id))  # type: ignore[arg-type]
            invalid += [] if holders else [ack_id]
        return [(self.subscriptions[name], items) for name, items in found.items()], invalid

    def _fail(self, subscription: SubscriptionModel, failed: Sequence[Item]) -> None:
        """Deliveries that ended in a nack or in silence, all at once."""
        subscription.take_back(failed, self.now_us)
        too_often = [item for item in failed if subscription.fails_too_often(item)]
        poison = [item for item in too_often if subscription.parks(item)]
        letters = [item for item in too_often if item not in poison and subscription.options.dead_letter_policy]
        if letters and self._dead_letter(subscription, letters):
            subscription.counters.dead_lettered += len(letters)
        else:
            subscription.counters.dead_letter_failures += len(letters)
            letters = []
        subscription.park(poison)
        subscription.retry_later([item for item in failed if item not in poison and item not in letters], self.now_us)
        self.let_in()

    def _dead_letter(self, subscription: SubscriptionModel, letters: list[Item]) -> bool:
        """Publish to the dead-letter topic and remove, in one step; False if the topic does not take them."""
        policy = subscription.options.dead_letter_policy
        assert policy is not None
        topic = self.topics.get(policy.dead_letter_topic)
        if topic is None:
            return False
        in_order = sorted(letters, key=lambda item: item.position)
        batch = [
            Stored(position, old.key, old.data, old.attributes, old.publish_us, self.now_us)
            for position, old in enumerate((item.stored for item in in_order), topic.next_position)
        ]
        for audience in self.subscriptions_of(topic.name):
            waits_for_ever = audience.limits.when_full == "block" and not audience.messages()
            if audience.refused(batch) and not waits_for_ever:
                return False
        for item in letters:
            subscription.give_up(item, "dead_lettered")
        self._append(topic.name, batch)
        return True

    # -- keys and replay ---------------------------------------------------------------------------

    def resume_key(self, name: str, key: str) -> None:
        self.subscription(name).resume(key, self.now_us)
        self.let_in()

    def skip(self, name: str, key: str) -> Stored:
        """Returns the message that is given up."""
        item = self.subscription(name).skip(key, self.now_us)
        self.let_in()
        return item.stored

    def seek(self, name: str, *, position: int | None = None, time_us: int = 0) -> None:
        if position is not None and position < 0:
            raise InvalidArgument(f"position {position}")
        subscription = self.subscription(name)
        if subscription.detached:
            raise FailedPrecondition(f"{name} is detached")
        if position is not None:
            self._check_position(subscription, position)
        replayed = {
            one.position: one for one in self._retained(subscription.topic) if subscription.matches(one.attributes)
        }
        replayed |= {item.position: item.stored for item in subscription.messages()}
        subscription.start_over(
            [
                one
                for one in replayed.values()
                if (one.position >= position if position is not None else one.stored_us >= time_us)
            ],
            self.now_us,
        )
        self.let_in()

    def create_snapshot(self, name: str, subscription_name: str) -> None:
        if self.has_snapshot(name):
            raise SnapshotAlreadyExists(name)
        subscription = self.subscription(subscription_name)
        if subscription.detached:
            raise FailedPrecondition(f"{subscription_name} is detached")
        kept = [item.stored for item in subscription.messages()]
        expires_us = min([self.now_us, *(one.stored_us for one in kept)]) + as_us(SNAPSHOT_SECONDS)
        if expires_us - self.now_us < as_us(MIN_SNAPSHOT_SECONDS):
            raise FailedPrecondition(f"{name} would not live long")
        self.snapshots[name] = SnapshotModel(subscription.topic, kept, expires_us)

    def delete_snapshot(self, name: str) -> None:
        if not self.has_snapshot(name):
            raise SnapshotNotFound(name)
        del self.snapshots[name]

    def has_snapshot(self, name: str) -> bool:
        return name in self.snapshots and self.snapshots[name].expires_us > self.now_us

    def seek_snapshot(self, name: str, snapshot_name: str) -> None:
        subscription = self.subscription(name)
        if not self.has_snapshot(snapshot_name):
            raise SnapshotNotFound(snapshot_name)
        snapshot = self.snapshots[snapshot_name]
        if subscription.detached:
            raise FailedPrecondition(f"{name} is detached")
        if snapshot.topic != subscription.topic:
            raise FailedPrecondition(f"{snapshot_name} is of {snapshot.topic}")
        subscription.start_over([one for one in snapshot.kept if subscription.matches(one.attributes)], self.now_us)
        self.let_in()

    def _check_position(self, subscription: SubscriptionModel, position: int) -> None:
        end = self.topics[subscription.topic].next_position
        if position > end:
            raise InvalidArgument(f"position {position}")
        known = [one.position for one in self._retained(subscription.topic)]
        known += [item.position for item in subscription.items]
        if position < min(known, default=end):
            raise NotRetained(position, min(known, default=end))

    def _retained(self, topic: str) -> list[Stored]:
        oldest_us = self.now_us - self._retention_us(topic)
        return [stored for stored in self.topics[topic].log if stored.stored_us >= oldest_us]

    # -- time --------------------------------------------------------------------------------------

    def deadlines_us(self) -> list[int]:
        """When leases will be over, the next first."""
        return sorted(item.lease.deadline_us for one in self.subscriptions.values() for item in one.items if item.lease)

    def advance(self, until_us: int) -> None:
        """Time passes: each lease ends at its time."""
        while (due := self.deadlines_us()) and due[0] <= until_us:
            self.now_us = due[0]
            for subscription in self.subscriptions.values():
                over = [item for item in subscription.out() if item.lease and item.lease.deadline_us <= self.now_us]
                if over:
                    subscription.counters.expired += len(over)
                    self._fail(subscription, over)
        self.now_us = until_us
