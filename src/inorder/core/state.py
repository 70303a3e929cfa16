"""All the broker knows, and the rules by which it changes.

A verb decides: it may refuse, and changes nothing. `apply` makes a decision true, and may not refuse.
Leasing is the exception: leases are not kept by any journal, so `lease`, `extend` and `release`
change memory at once. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import repeat
from math import inf
from operator import itemgetter
from typing import Any

from inorder.clock import MICROSECONDS
from inorder.core import producers
from inorder.core.events import (
    ACKED,
    PUBLISHED,
    Attempted,
    DeadLettered,
    Decision,
    Elapsed,
    Event,
    Failed,
    HeadSkipped,
    KeyResumed,
    ProducerOpened,
    Published,
    SnapshotCreated,
    SnapshotDeleted,
    SnapshotUpdated,
    Sought,
    SoughtSnapshot,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionDetached,
    SubscriptionUpdated,
    TopicCreated,
    TopicDeleted,
    TopicUpdated,
    Written,
)
from inorder.core.ledger import Book, Ledger, SnapshotLedger, TopicLedger
from inorder.core.log import History, MemoryHistory
from inorder.core.producers import Attempt
from inorder.core.ranges import Ranges
from inorder.core.snapshot import Snapshot
from inorder.core.subscription import Subscription
from inorder.core.topic import Topic
from inorder.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotRetained,
    QueueFull,
    ResourceExhausted,
    SnapshotAlreadyExists,
    SnapshotNotFound,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.message import POSITION, SIZE, STORED_US, Batch, Record, numbered, with_source
from inorder.options import (
    MAX_ACK_DEADLINE_SECONDS,
    MAX_WRITER_LENGTH,
    MIN_SNAPSHOT_SECONDS,
    SNAPSHOT_SECONDS,
    SubscriptionOptions,
    TopicOptions,
    check_annotations,
    check_name,
    check_number,
    check_short_text,
    check_whole,
)

MIN_ALARMS = 64  # that wait before anybody looks which of them still matter

_position = itemgetter(POSITION)
_size = itemgetter(SIZE)

NOBODY: Mapping[str, Any] = {}


class NoRoom(ResourceExhausted):
    """A subscription with `when_full="block"` is full: publish again when it has room."""


class State:
    """The whole broker. `epoch` makes ids unique: give every start of a broker another one."""

    def __init__(self, epoch: str, book: Book | None = None, history: Callable[[int], History] | None = None) -> None:
        self._epoch = epoch
        self._history = history or (lambda _: MemoryHistory())  # of the topic with a serial number
        self._durable = history is not None  # what is published is written down before anybody may see it
        self._serial = 0
        self._first_lease = 1  # of new subscriptions: beyond those of a deleted one of the same name
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self._by_ack_prefix: dict[str, Subscription] = {}
        # Published, but not to be delivered before it is durable: topic, records, size, who misses what, and who of
        # them is told: the books are written by now, whatever somebody changes meanwhile.
        self._hidden: list[tuple[Topic, list[Record], int, Mapping[str, frozenset[int]], Collection[str]]] = []
        self._alarms: list[tuple[int, str]] = []
        self._alarms_limit = MIN_ALARMS
        self.due_us = inf  # when `due` should be asked next
        if book is not None:
            self._restore(book)

    # -- topics and subscriptions ------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        try:
            return self.topics[name]
        except (KeyError, TypeError):
            raise TopicNotFound(name) from None

    def subscription(self, name: str) -> Subscription:
        try:
            return self.subscriptions[name]
        except (KeyError, TypeError):
            raise SubscriptionNotFound(name) from None

    def subscriptions_of(self, topic: str) -> list[Subscription]:
        return self.topic(topic).subscriptions.copy()

    def create_topic(self, name: str, options: TopicOptions, now_us: int) -> Decision[None]:
        check_name("topic", name)
        if name in self.topics:
            raise TopicAlreadyExists(name)
        return None, [TopicCreated(name, self._serial, f"{self._epoch}{self._serial}-", options, now_us)], ()

    def update_topic(self, name: str, options: TopicOptions) -> Decision[None]:
        self.topic(name)
        return None, [TopicUpdated(name, options)], ()

    def delete_topic(self, name: str) -> Decision[None]:
        self.topic(name)
        return None, [TopicDeleted(name)], ()

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions, now_us: int) -> Decision[None]:
        check_name("subscription", name)
        if name in self.subscriptions:  # told before a missing topic is, as Pub/Sub does: the name is taken anyway
            raise SubscriptionAlreadyExists(name)
        log = self.topic(topic)
        _check_dead_letters(topic, options)
        # The subscription is built once on trial, so that a bad filter is refused before anything is stored.
        Subscription(name, self._serial, topic, "", "", log, options, now_us)
        return None, [SubscriptionCreated(name, topic, self._serial, options, now_us)], ()

    def update_subscription(self, name: str, options: SubscriptionOptions) -> Decision[None]:
        subscription = self.subscription(name)
        _check_dead_letters(subscription.topic, options)
        if options.filter != subscription.options.filter:
            raise InvalidArgument(
                f"filter: cannot be changed after creation (it is {subscription.options.filter!r}); "
                "create another subscription"
            )
        return None, [SubscriptionUpdated(name, options)], ()

    def detach_subscription(self, name: str) -> Decision[None]:
        """Once more is no error, and changes nothing."""
        return None, () if self.subscription(name).detached else [SubscriptionDetached(name)], ()

    def delete_subscription(self, name: str) -> Decision[None]:
        self.subscription(name)
        return None, [SubscriptionDeleted(name)], ()

    # -- messages in -------------------------------------------------------------------------------

    def publish(self, topic_name: str, batch: Batch, now_us: int) -> Decision[int]:
        """The reply is the position of the first message; the others follow it."""
        try:
            topic = self.topics[topic_name]
        except (KeyError, TypeError):
            raise TopicNotFound(topic_name) from None
        first = topic.next_position
        stored_us = topic.stored_us
        if stored_us < now_us:  # as always, unless a clock was set back
            stored_us = now_us
        count = len(batch[0])
        if count == 1:
            [key], [data], [attributes], [size] = batch
            records = [(first, key, data, attributes, now_us, size, stored_us)]
        elif not count:
            return first, (), ()
        else:  # columns become rows in C, without a step of the interpreter per message
            keys, datas, all_attributes, sizes = batch
            size = sum(sizes)
            positions = range(first, first + count)
            datas = [*datas]  # touched one right after the other, they come into the processor's cache together
            records = list(zip(positions, keys, datas, all_attributes, repeat(now_us), sizes, repeat(stored_us)))
        refused = NOBODY
        for subscription in topic.limited:
            if (
                subscription.backlog_messages + count > subscription.max_messages
                or subscription.backlog_bytes + size > subscription.max_bytes
                or self._hidden
            ):
                refused = self._decide_refused(topic, records)
                break
        return first, ((PUBLISHED, topic_name, records, size, refused, batch),), ()

    def write(self, topic_name: str, batch: Batch, writer: str, epoch: int, part: int, now_us: int) -> Decision[bool]:
        """As `publish`, once: a part that is not later than the writer's last is left alone, and the reply is False."""
        check_short_text("writer", writer, MAX_WRITER_LENGTH)
        check_whole("epoch", epoch, at_least=0)
        check_whole("part", part, at_least=0)
        if (epoch, part) <= self.topic(topic_name).writers.get(writer, (-1, 0)):
            return False, (), ()
        _, events, problems = self.publish(topic_name, batch, now_us)
        return True, (*events, Written(topic_name, writer, epoch, part)), problems

    def publish_once(self, topic_name: str, batch: Batch, attempt: Attempt, now_us: int) -> Decision[int]:
        """As `publish`, once: an attempt that was stored before is answered as it was then."""
        topic, count = self.topic(topic_name), len(batch[0])
        if not count:
            raise InvalidArgument("an attempt has one message at least, not 0")
        if (before := producers.position_of(topic.producers, attempt, count)) is not None:
            return before, (), ()
        first, events, problems = self.publish(topic_name, batch, now_us)
        return first, (*events, Attempted(topic_name, attempt, first, count, now_us)), problems

    def open_producer(self, topic_name: str, producer: str, held: int | None, now_us: int) -> Decision[int]:
        """The reply is the epoch in which the producer may begin to count its attempts."""
        producers.check_producer(producer)
        known = self.topic(topic_name).producers
        epoch = producers.epoch_after(known, producer, held, now_us)
        if producer in known and known[producer].epoch == epoch:  # it was asked for before
            return epoch, (), ()
        return epoch, [ProducerOpened(topic_name, producer, epoch, now_us)], ()

    def _decide_refused(self, topic: Topic, records: list[Record]) -> Mapping[str, frozenset[int]]:
        """Who misses which of these messages because it is full; or an error, if it must not miss any."""
        refused: dict[str, frozenset[int]] = {}
        full: list[tuple[Subscription, bool]] = []
        for subscription in topic.subscriptions:
            coming = [
                record
                for hidden_topic, hidden, _, missed, _ in self._hidden
                for record in hidden
                if hidden_topic is topic and record[POSITION] not in missed.get(subscription.name, ())
            ]
            positions = subscription.decide_room(records, coming)
            if positions and subscription.limits.when_full == "drop":
                refused[subscription.name] = positions
            elif positions:
                full.append((subscription, bool(coming)))
        # First those that refuse: whoever waited for another one would be refused all the same, and too late.
        for subscription, more_is_coming in sorted(full, key=lambda one: one[0].limits.when_full != "error"):
            _refuse(subscription, more_is_coming)
        return refused

    # -- messages out ------------------------------------------------------------------------------

    def lease(
        self, name: str, count: int, now_us: int, consumer: object = None, max_bytes: float = inf, alone: bool = True
    ) -> tuple[Subscription, Sequence[int], list[Record]]:
        """Up to `count` messages for a consumer, and their lease numbers, which follow one another."""
        try:
            subscription = self.subscriptions[name]
        except (KeyError, TypeError):
            raise SubscriptionNotFound(name) from None
        leased = subscription.lease(count, now_us, consumer, max_bytes, alone)
        if subscription.leases.new_deadline:
            self._set_alarm(subscription)
        return leased

    def extend(self, name: str, leases: Sequence[int], seconds: float, now_us: int) -> Decision[list[int]]:
        """Move the deadline to `seconds` from now; the reply lists the leases that are over already."""
        subscription = self.subscription(name)
        check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS)
        out, over = subscription.leases.split(leases)
        subscription.leases.extend(out, now_us + round(seconds * MICROSECONDS))
        self._set_alarm(subscription)
        return over, (), ()

    def release(self, name: str, leases: Sequence[int], consumer: object = None) -> Decision[None]:
        """Take back what a consumer holds but has not begun, without blaming it."""
        if subscription := self.subscriptions.get(name):
            subscription.release(leases)
            subscription.forsake(consumer)
        return None, (), ()

    def of_ack_ids(self, prefix: str) -> Subscription | None:
        """The subscription whose ack ids begin so."""
        return self._by_ack_prefix.get(prefix)

    def find_lease(self, ack_id: object) -> tuple[Subscription, int] | None:
        """The subscription and lease number that an ack id names, if it can be one."""
        prefix, dash, number = str(ack_id).rpartition("-")
        subscription = self._by_ack_prefix.get(prefix + dash)
        if subscription is None or not number.isdecimal() or str(int(number[:18])) != number:
            return None
        return subscription, int(number)

    def find_run(self, ack_ids: Sequence[object]) -> tuple[Subscription, range] | None:
        """The same for many that were granted one after another, as those of a pull were: much cheaper."""
        found = self.find_lease(ack_ids[0]) if ack_ids else None
        if found is None:
            return None
        subscription, first = found
        expected = numbered(subscription.ack_id_prefix, first, len(ack_ids))
        return (subscription, range(first, first + len(ack_ids))) if ack_ids == expected else None

    def ack(self, name: str, leases: Sequence[int]) -> Decision[list[int]]:
        """Each lease named once. The reply lists those that are over; the others are acked all the same."""
        try:
            held = self.subscriptions[name].leases
        except (KeyError, TypeError):
            raise SubscriptionNotFound(name) from None
        try:
            return [], ((ACKED, name, leases, held.records(leases)),), ()
        except LookupError:
            out, over = held.split(leases)
            return over, ((ACKED, name, out, held.records(out)),) if out else (), ()

    def nack(self, name: str, leases: Sequence[int], now_us: int) -> Decision[list[int]]:
        """Each lease named once. The reply lists those that are over already; the others come again all the same."""
        subscription = self.subscription(name)
        out, over = subscription.leases.split(leases)
        events, problems = self._decide_failed(subscription, out, now_us, expired=False)
        return over, events, problems

    def _decide_failed(
        self, subscription: Subscription, leases: Sequence[int], now_us: int, *, expired: bool
    ) -> tuple[list[Event], list[str]]:
        if not leases:
            return [], []
        returns, poison = subscription.decide_failure(leases, now_us)
        if not poison:
            return [Failed(subscription.name, returns, len(leases), 0, expired, now_us)], []
        try:
            published = self._decide_dead_letters(subscription, poison, now_us)
        except (TopicNotFound, ResourceExhausted) as error:
            spared = len(poison)
            returns, _ = subscription.decide_failure(leases, now_us, dead_letters=False)
            problem = (
                f"subscription {subscription.name!r}: {spared} message(s) failed too often but cannot be "
                f"dead-lettered: {error}; they stay and are retried"
            )
            return [Failed(subscription.name, returns, len(leases), spared, expired, now_us)], [problem]
        return [
            Failed(subscription.name, returns, len(leases), 0, expired, now_us),
            published,
            DeadLettered(subscription.name, poison, subscription.ordered),
        ], self._without_audience(published)

    def _decide_dead_letters(self, subscription: Subscription, poison: list[Record], now_us: int) -> Published:
        """The same messages in the dead-letter topic, or an error if it is missing or has no room."""
        policy = subscription.options.dead_letter_policy
        assert policy is not None
        topic = self.topic(policy.dead_letter_topic)
        if policy.source:
            counts = [subscription.failures.count(record[POSITION]) + 1 for record in poison]
            poison = [with_source(record, policy.source, count) for record, count in zip(poison, counts, strict=True)]
        records: list[Record] = [
            (position, key, data, attributes, publish_us, size, max(now_us, topic.stored_us))
            for position, (_, key, data, attributes, publish_us, size, _) in enumerate(
                sorted(poison, key=_position), topic.next_position
            )
        ]
        if refused := self._decide_refused(topic, records):
            raise QueueFull(", ".join(refused), "a dead letter is never dropped")
        return PUBLISHED, topic.name, records, sum(map(_size, poison)), NOBODY, None

    def _without_audience(self, published: Published) -> list[str]:
        _, name, records, *_ = published
        topic = self.topics[name]
        if topic.retention_us or topic.snapshots:
            return []
        unwanted = [record for record in records if not any(one.wants(record) for one in topic.subscriptions)]
        if not unwanted:
            return []
        audience = "subscription whose filter they match" if topic.subscriptions else "subscription"
        return [f"dead-letter topic {name!r} has no {audience}: nobody keeps {len(unwanted)} message(s)"]

    # -- keys and replay ---------------------------------------------------------------------------

    def resume_key(self, name: str, key: str) -> Decision[None]:
        return None, [self.subscription(name).decide_resume(key)], ()

    def skip(self, name: str, key: str) -> Decision[int]:
        """The reply is the position of the message that is given up."""
        event, position = self.subscription(name).decide_skip(key)
        return position, [event], ()

    def seek(
        self, name: str, now_us: int, *, position: int | None = None, time_us: int | None = None
    ) -> Decision[None]:
        if (position is None) == (time_us is None):
            raise InvalidArgument("seek: give either a position or a time")
        if position is not None:
            check_whole("position", position, at_least=0)
        subscription = self.subscription(name)
        if subscription.detached:
            raise FailedPrecondition(f"subscription {name!r} is detached: nothing will come any more")
        if position is not None:
            self._check_position(subscription, position, now_us)
        else:
            position = self._position_at(subscription, time_us or 0)
        topic = self.topics[subscription.topic]
        replay_from = max(position, topic.retained_from(now_us))
        return None, [Sought(name, position, replay_from, topic.visible)], ()

    def seek_snapshot(self, name: str, snapshot: str, now_us: int) -> Decision[None]:
        subscription, found = self.subscription(name), self.snapshot(snapshot, now_us)
        if subscription.detached:
            raise FailedPrecondition(f"subscription {name!r} is detached: nothing will come any more")
        if found.topic != subscription.topic:
            raise FailedPrecondition(
                f"snapshot {snapshot!r} is of topic {found.topic!r}, subscription {name!r} of {subscription.topic!r}"
            )
        return None, [SoughtSnapshot(name, snapshot, self.topics[found.topic].visible)], ()

    def _position_at(self, subscription: Subscription, time_us: int) -> int:
        """The first message that was stored at a time or later, of those that can be delivered again."""
        topic = self.topics[subscription.topic]
        first = topic.history.first_since(time_us)
        unacked = subscription.first_unacked_since(time_us)
        hidden = next((r[0][POSITION] for t, r, *_ in self._hidden if t is topic and r[0][STORED_US] >= time_us), None)
        found = (position for position in (first, unacked, hidden) if position is not None)
        return min(found, default=topic.next_position)

    def _check_position(self, subscription: Subscription, position: int, now_us: int) -> None:
        topic = self.topics[subscription.topic]
        end = topic.next_position
        if position > end:
            raise InvalidArgument(f"position: up to {end}, the next one to come, not {position}")
        unacked = subscription.oldest_unacked()
        coming = max(topic.visible, subscription.cursor)  # it is not visible yet, but it is there
        oldest = min(topic.retained_from(now_us), coming if unacked is None else unacked)
        if position < oldest:
            raise NotRetained(position, oldest)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self, name: str, now_us: int) -> SnapshotLedger:
        found = self.snapshots.get(str(name))
        if found is None or self._is_over(found.ledger, now_us):
            raise SnapshotNotFound(name)
        return found.ledger

    def living_snapshots(self, now_us: int) -> list[SnapshotLedger]:
        return [one.ledger for one in self.snapshots.values() if not self._is_over(one.ledger, now_us)]

    def _is_over(self, snapshot: SnapshotLedger, now_us: int) -> bool:
        """Whether its time has come; also if the clock was set back since."""
        return snapshot.expires_us <= max(now_us, self.topics[snapshot.topic].stored_us)

    def create_snapshot(self, name: str, subscription_name: str, annotations: str, now_us: int) -> Decision[None]:
        check_name("snapshot", name)
        check_annotations(annotations)
        over = self.snapshots.get(name)
        if over is not None and not self._is_over(over.ledger, now_us):
            raise SnapshotAlreadyExists(name)
        subscription = self.subscription(subscription_name)
        if subscription.detached:
            raise FailedPrecondition(f"subscription {subscription_name!r} is detached: nothing will come any more")
        expires_us = subscription.oldest_stored_us(now_us) + SNAPSHOT_SECONDS * MICROSECONDS
        if expires_us - now_us < MIN_SNAPSHOT_SECONDS * MICROSECONDS:
            raise FailedPrecondition(
                f"the oldest unacked message of subscription {subscription_name!r} is so old that the snapshot would "
                f"live for less than {MIN_SNAPSHOT_SECONDS} seconds"
            )
        done = [*subscription.done()]
        created = SnapshotCreated(name, subscription_name, subscription.topic, done, expires_us, annotations, now_us)
        return None, [created] if over is None else [SnapshotDeleted(name), created], ()

    def update_snapshot(self, name: str, annotations: str, expires_us: int, now_us: int) -> Decision[None]:
        """It may live until seven days after it was made, and not end in the past."""
        snapshot = self.snapshot(name, now_us)
        check_annotations(annotations)
        latest_us = snapshot.created_us + SNAPSHOT_SECONDS * MICROSECONDS
        if not now_us < expires_us <= latest_us:
            raise InvalidArgument(
                f"expires: after now ({now_us} microseconds since 1970), up to {latest_us}, not {expires_us}"
            )
        return None, [SnapshotUpdated(name, expires_us, annotations)], ()

    def delete_snapshot(self, name: str, now_us: int) -> Decision[None]:
        self.snapshot(name, now_us)
        return None, [SnapshotDeleted(name)], ()

    def delete_old_snapshots(self, now_us: int) -> Decision[list[str]]:
        """Forget those whose time is over; the reply names them."""
        names = [name for name, found in self.snapshots.items() if self._is_over(found.ledger, now_us)]
        return names, [SnapshotDeleted(name) for name in names], ()

    # -- time --------------------------------------------------------------------------------------

    def due(self, now_us: int) -> tuple[Subscription, Decision[None]] | None:
        """What time has brought about for one subscription; ask until there is no more."""
        while self._alarms and self._alarms[0][0] <= now_us:
            due_us, name = heappop(self._alarms)
            subscription = self.subscriptions.get(name)
            if subscription is not None and subscription.wake_us == due_us:
                subscription.wake_us = inf
                return subscription, self._due_of(subscription, now_us)
        self.due_us = self._alarms[0][0] if self._alarms else inf
        return None

    def _due_of(self, subscription: Subscription, now_us: int) -> Decision[None]:
        events, problems = self._decide_failed(subscription, subscription.leases.expired(now_us), now_us, expired=True)
        return None, [*events, Elapsed(subscription.name, now_us)], problems

    def _set_alarm(self, subscription: Subscription) -> None:
        """Ask again when this subscription's time comes, unless that is arranged already."""
        subscription.leases.new_deadline = False
        due_us = subscription.due_us()
        if due_us is not None and due_us < subscription.wake_us:
            if len(self._alarms) >= self._alarms_limit:
                self._forget_old_alarms()
            subscription.wake_us = due_us
            heappush(self._alarms, (due_us, subscription.name))
            self.due_us = self._alarms[0][0]

    def _forget_old_alarms(self) -> None:
        """An earlier one has taken their place, or their subscription is gone; some would stay for a week."""
        known = self.subscriptions
        self._alarms = [one for one in {*self._alarms} if one[1] in known and known[one[1]].wake_us == one[0]]
        heapify(self._alarms)
        self._alarms_limit = 2 * len(self._alarms) + MIN_ALARMS  # so that looking costs little per alarm

    # -- what survives -----------------------------------------------------------------------------

    def book(self) -> Book:
        """What must be remembered of all this."""
        book = Book(self._serial)
        for t in self.topics.values():
            book.topics[t.name] = TopicLedger(
                t.name,
                t.serial,
                t.id_prefix,
                t.options,
                t.created_us,
                t.next_position,
                t.stored_us,
                dict(t.writers),
                {name: producer.copy() for name, producer in t.producers.items()},
            )
        for subscription in self.subscriptions.values():
            book.subscriptions[subscription.name] = subscription.ledger()
        book.snapshots = {name: replace(snapshot.ledger) for name, snapshot in self.snapshots.items()}
        return book

    def lose(self, ends: Mapping[int, int], now_us: int) -> list[Subscription]:
        """The logs of topics, by serial, are about to forget what is too old before these positions.

        Returns who may be told of that.
        """
        losing = [
            (subscription, ends[topic.serial])
            for topic in self.topics.values()
            if topic.serial in ends
            for subscription in topic.subscriptions
            if subscription.ordered
        ]
        for subscription, end in losing:
            subscription.lose(end, now_us)
        return [subscription for subscription, _ in losing]

    def _restore(self, book: Book) -> None:
        self._serial = book.serial
        for t in book.topics.values():
            topic = Topic(t.name, t.serial, t.id_prefix, t.options, t.created_us, self._history(t.serial))
            topic.next_position = topic.visible = t.next_position
            topic.stored_us = t.stored_us
            topic.writers = dict(t.writers)
            topic.producers = {name: producer.copy() for name, producer in t.producers.items()}
            self.topics[t.name] = topic
        for ledger in book.subscriptions.values():
            self._restore_subscription(ledger)
        for name in self.topics:
            self._subscribed_otherwise(name)
        for kept in book.snapshots.values():
            self._add_snapshot(replace(kept), ())

    def _restore_subscription(self, ledger: Ledger) -> None:
        # A detached one keeps the name of its topic, which may be that of another topic by now.
        topic = Topic(ledger.topic, -1, "", TopicOptions(), 0, MemoryHistory()) if ledger.detached else None
        subscription = self._add_subscription(
            ledger.name, ledger.serial, topic or self.topics[ledger.topic], ledger.options, ledger.created_us
        )
        subscription.restore(ledger)
        self._set_alarm(subscription)

    # -- apply -------------------------------------------------------------------------------------

    def apply(self, events: Iterable[Event]) -> None:
        """Make true what was decided."""
        for event in events:
            if event[0] == PUBLISHED:  # nearly all events are of these two kinds
                self._published(event)
            elif event[0] == ACKED:
                _, name, leases, records = event
                self.subscriptions[name].acked(leases, records)
            else:
                _APPLY[type(event)](self, event)

    def reveal(self, count: int | None = None) -> list[Subscription]:
        """Let subscribers see what was published, or the first so many batches of it; tells who they are.

        Call it when that is as durable as it will get. In memory it is so from the beginning.
        """
        touched: list[Subscription] = []
        for topic, records, size, refused, told in self._hidden if count is None else self._hidden[:count]:
            for subscription in topic.subscriptions:
                if missed := refused.get(subscription.name) if refused else None:
                    time_matters = subscription.absorb_some(records, missed, told=subscription.name in told)
                else:
                    time_matters = subscription.absorb(records, size)
                if time_matters:
                    self._set_alarm(subscription)
                touched.append(subscription)
            topic.visible = records[-1][0] + 1
        del self._hidden[:count]
        return touched

    def _topic_created(self, event: TopicCreated) -> None:
        name, serial, id_prefix, options, now_us = event
        self._serial = serial + 1
        self.topics[name] = Topic(name, serial, id_prefix, options, now_us, self._history(serial))
        self._subscribed_otherwise(name)

    def _topic_updated(self, event: TopicUpdated) -> None:
        self.topics[event.topic].options = event.options
        self._subscribed_otherwise(event.topic)

    def _topic_deleted(self, event: TopicDeleted) -> None:
        topic = self.topics.pop(event.topic)
        for subscription in topic.subscriptions:
            subscription.detach()
        topic.subscriptions.clear()
        for snapshot in topic.snapshots:
            del self.snapshots[snapshot.ledger.name]

    def _subscription_created(self, event: SubscriptionCreated) -> None:
        name, topic, serial, options, now_us = event
        self._serial = serial + 1
        self._add_subscription(name, serial, self.topics[topic], options, now_us)
        self._subscribed_otherwise(topic)

    def _add_subscription(
        self, name: str, serial: int, topic: Topic, options: SubscriptionOptions, created_us: int
    ) -> Subscription:
        prefix = f"{self._epoch}{serial}-"
        subscription = Subscription(
            name, serial, topic.name, prefix, topic.id_prefix, topic, options, created_us, self._first_lease
        )
        self.subscriptions[name] = self._by_ack_prefix[prefix] = subscription
        topic.subscriptions.append(subscription)
        return subscription

    def _subscription_updated(self, event: SubscriptionUpdated) -> None:
        subscription = self.subscriptions[event.subscription]
        subscription.update(event.options)
        self._set_alarm(subscription)
        self._subscribed_otherwise(subscription.topic)

    def _subscription_detached(self, event: SubscriptionDetached) -> None:
        subscription = self.subscriptions[event.subscription]
        self.topics[subscription.topic].subscriptions.remove(subscription)
        subscription.detach()
        subscription.on_request = True
        self._subscribed_otherwise(subscription.topic)

    def _subscription_deleted(self, event: SubscriptionDeleted) -> None:
        subscription = self.subscriptions.pop(event.subscription)
        self._first_lease = max(self._first_lease, subscription.leases.next)
        del self._by_ack_prefix[subscription.ack_id_prefix]
        if not subscription.detached:
            self.topics[subscription.topic].subscriptions.remove(subscription)
            self._subscribed_otherwise(subscription.topic)

    def _subscribed_otherwise(self, name: str) -> None:
        """A topic keeps messages for as long as it or a subscription asks for, and knows which can be full."""
        if topic := self.topics.get(name):
            subscribed = topic.subscriptions
            topic.limited = [subscription for subscription in subscribed if subscription.limited]
            kept = [s.options.message_retention_duration for s in subscribed if s.options.retain_acked_messages]
            topic.retain(max([topic.options.message_retention_duration or 0, *kept]))

    def _published(self, event: Published) -> None:
        _, name, records, size, refused, _ = event
        topic = self.topics[name]
        last = records[-1]
        topic.next_position = last[0] + 1
        topic.stored_us = last[6]
        if topic.retention_us:
            topic.keep(records)
        if topic.snapshots and not topic.history.complete:
            for snapshot in topic.snapshots:
                snapshot.keep(records, topic.stored_us)
        if self._durable:
            told = [one.name for one in topic.subscriptions if one.ordered and one.name in refused] if refused else ()
            self._hidden.append((topic, records, size, refused, told))
            return
        for subscription in topic.subscriptions:
            if missed := refused.get(subscription.name) if refused else None:
                time_matters = subscription.absorb_some(records, missed, told=subscription.ordered)
            else:
                time_matters = subscription.absorb(records, size)
            if time_matters:
                self._set_alarm(subscription)
        topic.visible = topic.next_position

    def _written(self, event: Written) -> None:
        self.topics[event.topic].writers[event.writer] = (event.epoch, event.part)

    def _producer_opened(self, event: ProducerOpened) -> None:
        producers.opened(self.topics[event.topic].producers, event.producer, event.epoch, event.now_us)

    def _attempted(self, event: Attempted) -> None:
        topic, attempt, first, count, now_us = event
        producers.attempted(self.topics[topic].producers, attempt, first, count, now_us)

    def _failed(self, event: Failed) -> None:
        subscription = self.subscriptions[event.subscription]
        subscription.failed(event)
        self._set_alarm(subscription)

    def _dead_lettered(self, event: DeadLettered) -> None:
        self.subscriptions[event.subscription].dead_lettered(event.records)

    def _key_resumed(self, event: KeyResumed) -> None:
        self.subscriptions[event.subscription].resume(event.key)

    def _head_skipped(self, event: HeadSkipped) -> None:
        self.subscriptions[event.subscription].skip(event.key)

    def _sought(self, event: Sought) -> None:
        subscription = self.subscriptions[event.subscription]
        subscription.seek(event.position, event.replay_from)
        self._set_alarm(subscription)

    def _snapshot_created(self, event: SnapshotCreated) -> None:
        name, subscription, topic, done, expires_us, annotations, now_us = event
        ledger = SnapshotLedger(name, topic, Ranges(done), now_us, expires_us, annotations)
        self._add_snapshot(ledger, self.subscriptions[subscription].unacked_messages())

    def _add_snapshot(self, ledger: SnapshotLedger, records: Sequence[Record]) -> None:
        topic = self.topics[ledger.topic]
        snapshot = Snapshot(ledger, () if topic.history.complete else records)
        self.snapshots[ledger.name] = snapshot
        topic.snapshots.append(snapshot)

    def _snapshot_updated(self, event: SnapshotUpdated) -> None:
        ledger = self.snapshots[event.snapshot].ledger
        ledger.expires_us, ledger.annotations = event.expires_us, event.annotations

    def _snapshot_deleted(self, event: SnapshotDeleted) -> None:
        snapshot = self.snapshots.pop(event.snapshot)
        self.topics[snapshot.ledger.topic].snapshots.remove(snapshot)

    def _sought_snapshot(self, event: SoughtSnapshot) -> None:
        subscription = self.subscriptions[event.subscription]
        subscription.seek_snapshot(self.snapshots[event.snapshot])
        self._set_alarm(subscription)

    def _elapsed(self, event: Elapsed) -> None:
        subscription = self.subscriptions[event.subscription]
        subscription.elapse(event.now_us)
        self._set_alarm(subscription)


def _check_dead_letters(topic: str, options: SubscriptionOptions) -> None:
    if options.dead_letter_policy is not None and options.dead_letter_policy.dead_letter_topic == topic:
        raise InvalidArgument(f"dead_letter_topic: another topic than the subscription's own, not {topic!r}")


def _refuse(subscription: Subscription, more_is_coming: bool) -> None:
    """A full queue that may not drop: the publisher waits or is refused."""
    limits = subscription.limits
    if limits.when_full == "error":
        both = ((limits.max_messages, "messages"), (limits.max_bytes, "bytes"))
        most = " and ".join(f"{limit} {unit}" for limit, unit in both if limit is not None)
        held = f"{subscription.backlog_messages} messages and {subscription.backlog_bytes} bytes"
        if subscription.backlog_messages or more_is_coming:
            raise QueueFull(subscription.name, f"it holds {held}, its limits are {most}")
        raise QueueFull(subscription.name, f"this request alone is beyond its limits of {most}")
    # A batch larger than the whole queue would wait for ever: it is let in when the queue is empty.
    if subscription.backlog_messages or more_is_coming:
        raise NoRoom(f"subscription {subscription.name!r} is full")


_APPLY: Mapping[type, Callable[[State, Any], None]] = {
    TopicCreated: State._topic_created,
    TopicUpdated: State._topic_updated,
    TopicDeleted: State._topic_deleted,
    SubscriptionCreated: State._subscription_created,
    SubscriptionUpdated: State._subscription_updated,
    SubscriptionDetached: State._subscription_detached,
    SubscriptionDeleted: State._subscription_deleted,
    Written: State._written,
    ProducerOpened: State._producer_opened,
    Attempted: State._attempted,
    Failed: State._failed,
    DeadLettered: State._dead_lettered,
    KeyResumed: State._key_resumed,
    HeadSkipped: State._head_skipped,
    Sought: State._sought,
    SnapshotCreated: State._snapshot_created,
    SnapshotUpdated: State._snapshot_updated,
    SnapshotDeleted: State._snapshot_deleted,
    SoughtSnapshot: State._sought_snapshot,
    Elapsed: State._elapsed,
}
