"""MessageQueue: the broker of the specifications, synchronous and thread-safe.

The rules live in `core`, and what a call is made of in `turns`; here are the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from inorder.clock import MICROSECONDS, SYSTEM_CLOCK, Clock
from inorder.commits import Sync
from inorder.core.events import Decision
from inorder.core.ledger import SnapshotLedger
from inorder.core.producers import Attempt, position_of
from inorder.core.state import State
from inorder.core.subscription import Subscription
from inorder.core.topic import Topic
from inorder.errors import InorderError, InvalidAckId, InvalidArgument, SnapshotNotFound, SubscriptionNotFound
from inorder.forks import after_fork
from inorder.ingest import Ingest
from inorder.journal.incoming import Incoming
from inorder.journal.journal import Journal
from inorder.journal.opener import JournalKind, open_journal
from inorder.message import (
    DATA,
    Batch,
    Columns,
    Gap,
    Ids,
    Leased,
    Message,
    Recipient,
    Source,
    batch_of,
    before_their_place,
    check_ordering_key,
    delivered,
    leases_of,
    numbered,
)
from inorder.metadata import (
    BlockedKey,
    CommitCounters,
    Metrics,
    SnapshotMetadata,
    SubscriptionMetadata,
    TopicMetadata,
    Unacked,
)
from inorder.options import (
    LAST_PART,
    SubscriptionOptions,
    TopicOptions,
    build,
    check_choice,
    check_number,
    check_whole,
    merge,
)
from inorder.pending import Pending
from inorder.turns import SYNC_SECONDS, Turns, Wake, WriteIds

T = TypeVar("T")
AckId: TypeAlias = str | Message

# From the year 1 to the end of 9999, as far as a datetime goes.
MIN_TIME_SECONDS = -62_135_596_800
MAX_TIME_SECONDS = 253_402_300_800
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class MessageQueue(Turns):
    """Topics, subscriptions, leases and ordering keys, in this process.

    `MessageQueue.get_instance()` is the one that the whole process shares; `MessageQueue()` is one
    of its own, and `MessageQueue(clock=ManualClock())` one whose time a test moves.
    """

    _instance: MessageQueue | None = None
    _instance_lock = threading.Lock()

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        journal: Journal | None = None,
        *,
        sync: Sync = "commit",
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        self.folder: Path | None = None  # where `open` has opened it
        self._sources: dict[str, _Source] = {}  # by the prefix of their ack ids
        self._ingest: Ingest | None = None  # if there is a folder where others leave something to publish
        super().__init__(clock, journal, sync=sync, sync_seconds=sync_seconds)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        journal: JournalKind = "segments",
        sync: Sync = "commit",
        sync_seconds: float = SYNC_SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> MessageQueue:
        """A broker whose memory is a folder: it goes on where the last one stopped, however that stopped.

        One process owns the folder at a time. `sync` says when an answer is given: "commit" when it is
        on disk, "interval" when it is written, and synced every `sync_seconds`, "none" when it is
        written, and the operating system may take its time.
        """
        check_choice("sync", sync, Sync)
        check_number("sync_seconds", sync_seconds, above=0, up_to=3600)
        broker = cls(clock, open_journal(folder, journal), sync=sync, sync_seconds=sync_seconds)
        broker.folder = Path(folder)
        broker._ingest = Ingest(Incoming(folder), broker)
        return broker

    def take_in(self) -> int:
        """Publish now what others have committed to the folder, which otherwise happens a moment later.

        Returns how many epochs that were.
        """
        return 0 if self._ingest is None else self._ingest.take_in()

    @classmethod
    def get_instance(cls) -> MessageQueue:
        """The broker that the whole process shares, made by the first who asks."""
        with MessageQueue._instance_lock:
            if MessageQueue._instance is None:
                MessageQueue._instance = MessageQueue()
            return MessageQueue._instance

    # -- topics ------------------------------------------------------------------------------------

    def register_topic(self, name: str, options: TopicOptions | Mapping[str, Any] | None = None) -> None:
        """Create a topic. `AlreadyExists` if it is there."""
        checked = build(TopicOptions, options)
        self._turn(lambda state, now_us: state.create_topic(name, checked, now_us))

    def update_topic(self, name: str, changes: TopicOptions | Mapping[str, Any]) -> None:
        """Change options."""

        def update(state: State, _: int) -> Decision[None]:
            checked = changes if isinstance(changes, TopicOptions) else merge(state.topic(name).options, changes)
            return state.update_topic(name, checked)

        self._turn(update)

    def unregister_topic(self, name: str) -> None:
        """Delete a topic and its messages. Its subscriptions stay, detached."""

        def delete(state: State, _: int) -> Decision[None]:
            decision = state.delete_topic(name)
            self._full.difference_update(subscription.name for subscription in state.topic(name).subscriptions)
            return decision

        self._turn(delete)

    def topic_exists(self, name: str) -> bool:
        return self.get_topic(name) is not None

    def get_topic(self, name: str) -> TopicMetadata | None:
        # Without the lock: partitions ask for each message, and would wait for whoever publishes. A topic is found, and
        # each part of it read, in one step, which is before or after any other.
        topic = self._known().topics.get(str(name))
        return None if topic is None else _topic_metadata(topic)

    def get_all_topics(self) -> list[TopicMetadata]:
        with self._lock:
            return [_topic_metadata(topic) for topic in self._known().topics.values()]

    def topic_names(self) -> list[str]:
        """Those of all topics, without their metadata, which cost far more."""
        with self._lock:
            return [*self._known().topics]

    # -- subscriptions -----------------------------------------------------------------------------

    def register_subscription(
        self, name: str, topic: str, options: SubscriptionOptions | Mapping[str, Any] | None = None
    ) -> None:
        """Create a subscription; it gets what is published from now on."""
        checked = build(SubscriptionOptions, options)
        self._turn(lambda state, now_us: state.create_subscription(name, topic, checked, now_us))

    def update_subscription(self, name: str, changes: SubscriptionOptions | Mapping[str, Any]) -> None:
        """Change options. When the rules of order change, what is out comes again."""

        def update(state: State, _: int) -> Decision[None]:
            current = state.subscription(name).options
            checked = changes if isinstance(changes, SubscriptionOptions) else merge(current, changes)
            decision = state.update_subscription(name, checked)
            self._tell(self._watchers.get(name, ()), checked)
            return decision

        self._turn(update, name)

    def detach_subscription(self, name: str) -> None:
        """It gets nothing of its topic any more, and what waits in it is gone."""

        def detach(state: State, _: int) -> Decision[None]:
            decision = state.detach_subscription(name)
            self._full.discard(name)
            self._tell(self._watchers.get(name, ()), state.subscription(name).options)
            return decision

        self._turn(detach)

    def unregister_subscription(self, name: str) -> None:
        """Delete a subscription and all that waits in it. Those who watch it watch nothing any more."""

        def delete(state: State, _: int) -> Decision[None]:
            decision = state.delete_subscription(name)
            self._sources.pop(state.subscription(name).ack_id_prefix, None)
            self._full.discard(name)
            self._tell(self._watchers.pop(name, ()), None)
            return decision

        self._turn(delete)

    def subscription_exists(self, name: str) -> bool:
        return self.get_subscription(name) is not None

    def get_subscription(self, name: str) -> SubscriptionMetadata | None:
        with self._lock:
            subscription = self._known().subscriptions.get(str(name))
            return None if subscription is None else _subscription_metadata(subscription)

    def get_subscriptions_for_topic(self, topic: str) -> list[SubscriptionMetadata]:
        with self._lock:
            return [_subscription_metadata(subscription) for subscription in self._known().subscriptions_of(topic)]

    def get_all_subscriptions(self) -> list[SubscriptionMetadata]:
        with self._lock:
            return [_subscription_metadata(subscription) for subscription in self._known().subscriptions.values()]

    def subscription_names(self) -> list[str]:
        """Those of all subscriptions, as `topic_names`."""
        with self._lock:
            return [*self._known().subscriptions]

    # -- messages in -------------------------------------------------------------------------------

    @overload
    def publish(self, topic: str, messages: Iterable[Message]) -> list[str]: ...

    @overload
    def publish(self, topic: str, messages: Columns) -> Sequence[str]: ...

    def publish(self, topic: str, messages: Iterable[Message] | Columns) -> Sequence[str]:
        """Publish a batch and return the ids. One invalid message refuses it whole.

        With a full subscription that says `when_full="block"`, waits until there is room. Of `Columns` nothing is made
        for each message, not even its id, before somebody asks for it.
        """
        answer = self._submit(topic, batch_of(messages), ids=Ids if isinstance(messages, Columns) else numbered)
        self._lead(answer)
        return answer.result()  # type: ignore[no-any-return]

    def submit(
        self, topic: str, batch: Batch, attempt: Attempt | None = None, ids: WriteIds = numbered
    ) -> Pending[Any]:
        """Publish checked messages, as columns; an attempt once, however often it comes.

        The answer, their ids, waits until they are durable, and before that while a subscription that blocks is full.
        """
        answer = self._submit(topic, batch, attempt, ids)
        if self._commits is not None:
            self._commits.soon()
        return answer

    def has_stored(self, topic: str, attempt: Attempt, count: int) -> bool:
        """Whether an attempt, of so many messages, was stored before; raises what keeps it from being stored at all."""
        with self._lock:
            return position_of(self._known().topic(topic).producers, attempt, count) is not None

    def open_producer(self, topic: str, producer: str, held_epoch: int | None = None) -> int:
        """Begin an epoch of a producer that has a name: attempts of its earlier ones are refused from now on.

        Whoever has had one says which: it goes on, or is fenced if somebody else has opened the producer since.
        """
        return self._turn(lambda state, now_us: state.open_producer(topic, producer, held_epoch, now_us))

    def write(self, topic: str, batch: Batch, *, writer: str, epoch: int, part: int) -> bool:
        """Publish checked messages, as columns, once: whether they were new.

        A writer counts its epochs, and the parts of each: what is not later than the last it wrote was written before.
        """
        return self._turn(lambda state, now_us: state.write(topic, batch, writer, epoch, part, now_us))

    def has_written(self, topic: str, writer: str, epoch: int) -> bool:
        """Whether an epoch of a writer is published to its end."""
        with self._lock:
            return self._known().topic(topic).writers.get(writer, (-1, 0)) >= (epoch, LAST_PART)

    # -- messages out ------------------------------------------------------------------------------

    def pull(
        self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object] | None = None
    ) -> list[Message]:
        """Up to `max_messages` messages, leased for the subscription's ack deadline. Does not wait.

        A gap record on the way is told to `on_gap`, and then acked; it is no message. One behind a message of its key
        ends the pull, and is told by the next. What `on_gap` raises is raised here, and what was taken comes again.
        """
        check_whole("max_messages", max_messages)
        if self._commits is not None and (self._due is not None or self._state.due_us <= self.clock.now_us()):
            self._write_what_is_due()
        messages: list[Message] = []
        while len(messages) < max_messages:
            taken, may_have_gaps = self._take(subscription, max_messages - len(messages), None, inf, True)
            gaps = [one for one in taken if isinstance(one._record[DATA], Gap)] if may_have_gaps else ()
            if not gaps:
                return messages + taken if messages else taken
            together = messages + taken if on_gap is not None else []  # else nobody is told too early
            early = {together[index]._lease for index in before_their_place(one._record for one in together)}
            messages += [one for one in taken if one._lease not in early and not isinstance(one._record[DATA], Gap)]
            gaps = [gap for gap in gaps if gap._lease not in early]
            try:
                for gap in gaps:
                    if on_gap is not None:
                        on_gap(gap._record[DATA])
            except BaseException:  # nobody gets what was taken, and some may not have been told: all of it comes again
                with suppress(InorderError):  # the first error says more
                    self.release(subscription, [one._lease for one in together])
                raise
            self.settle(subscription, [gap._lease for gap in gaps], ())
            if early:
                self.release(subscription, sorted(early))
                break
        return messages

    def take(
        self,
        subscription: str,
        max_messages: int,
        source: Source | None = None,
        *,
        max_bytes: float = inf,
        alone: bool = True,
    ) -> list[Message]:
        """As `pull`, with a gap record (data is a `Gap`) in its place, for one of several consumers.

        A consumer gives itself as the `source` that its messages answer to, and may limit their
        bytes; while it holds nothing else, one larger message may come `alone`. What it consumes is
        the subscription that its ack ids are of, and no later one of the same name.
        """
        return self._take(subscription, max_messages, source, max_bytes, alone)[0]

    def _take(
        self, subscription: str, max_messages: int, source: Source | None, max_bytes: float, alone: bool
    ) -> tuple[list[Message], bool]:
        """The messages, and whether some of them may be gap records; a moment later nobody could tell."""
        calls: Sequence[Wake] = ()
        try:
            with self._lock:
                now_us = self._begin_turn()
                try:
                    if source is not None:
                        self._check_consumer(source, subscription)
                    subscribed, leases, records = self._state.lease(
                        subscription, max_messages, now_us, source, max_bytes, alone
                    )
                    attempts = subscribed.failures.attempts(records) if records else ()
                    may_have_gaps = subscribed.any_gaps()
                    source = source or self._source(subscribed)
                finally:
                    calls = self._end_turn()
        finally:
            for call in calls:
                call()
        return delivered(records, attempts, leases, source), may_have_gaps

    def lease(
        self,
        subscription: str,
        max_messages: int,
        source: Recipient | None = None,
        *,
        max_bytes: float = inf,
        alone: bool = True,
    ) -> Leased:
        """As `take`, for whoever needs no object of each message, or passes them on."""
        check_whole("max_messages", max_messages)

        def lease(state: State, now_us: int) -> Decision[Leased]:
            if source is not None:
                self._check_consumer(source, subscription)
            subscribed, leases, records = state.lease(subscription, max_messages, now_us, source, max_bytes, alone)
            attempts = subscribed.failures.attempts(records)
            return Leased(leases, attempts, records, subscribed.ack_id_prefix), (), ()

        return self._turn(lease)

    def consumer(self, subscription: str, *, stays: bool = False) -> Source:
        """One more consumer of a subscription, to take as: of a key it keeps what it has, beside others.

        One that `stays`, until its `release`, also gets again what it nacked of a key, and nobody else does. It is for
        those whom nobody tells that the later ones of the key, which they have, were taken back.
        """
        with self._lock:
            found = self._known().subscription(subscription)
            source = _Source(self, found.name, found.id_prefix, found.ack_id_prefix)
            if stays:
                found.expect(source)
            return source

    def _check_consumer(self, source: Recipient, subscription: str) -> None:
        if self._state.subscription(subscription).ack_id_prefix != source.ack_id_prefix:
            raise SubscriptionNotFound(subscription)

    def _source(self, subscription: Subscription) -> Source:
        source = self._sources.get(subscription.ack_id_prefix)
        if source is None:
            source = _Source(self, subscription.name, subscription.id_prefix, subscription.ack_id_prefix)
            self._sources[subscription.ack_id_prefix] = source
        return source

    def prefixes(self, subscription: str) -> tuple[str, str]:
        """What the message ids and the ack ids of a subscription begin with."""
        with self._lock:
            subscribed = self._known().subscription(subscription)
            return subscribed.id_prefix, subscribed.ack_id_prefix

    def ack(self, ack_id: AckId | Iterable[AckId] | Leased) -> None:
        """The message is done. `InvalidAckId` names those that are not, or no longer, leased.

        Here and below an ack id may also be given as the message that has it, and several as what `lease` has returned.
        """
        try:
            self._by_ack_id(ack_id, lambda name, leases: self.settle(name, leases, ()))
        finally:  # the others are acked, if some are not valid
            self._wait_until_written()

    def nack(self, ack_id: AckId | Iterable[AckId] | Leased) -> None:
        """The message failed and comes again, in its place, after the backoff of the retry policy."""
        try:
            self._by_ack_id(ack_id, lambda name, leases: self.settle(name, (), leases))
        finally:
            self._wait_until_written()

    def modify_ack_deadline(self, ack_id: AckId | Iterable[AckId] | Leased, seconds: float) -> None:
        """The lease ends `seconds` from now; 0 is a nack. Any number of times."""
        try:
            self._by_ack_id(ack_id, lambda name, leases: self.extend(name, leases, seconds))
        finally:
            if seconds == 0:
                self._wait_until_written()

    def settle(self, subscription: str, acks: Sequence[int], nacks: Sequence[int]) -> list[int]:
        """Ack and nack leases by number, each at most once; returns those that were over already.

        `durable` tells when the others are not only done but written down.
        """
        calls: Sequence[Wake] = ()
        try:
            with self._lock:
                now_us = self._begin_turn()
                try:
                    if subscription not in self._state.subscriptions:
                        return [*acks, *nacks]  # its leases went with it
                    over: list[int] = []
                    if acks:
                        over += self._decided(self._state.ack(subscription, acks), subscription)
                    if nacks:
                        over += self._decided(self._state.nack(subscription, nacks, now_us), subscription)
                    return over
                finally:
                    calls = self._end_turn()
        finally:
            for call in calls:
                call()

    def extend(self, subscription: str, leases: Sequence[int], seconds: float) -> list[int]:
        """Move the deadline of leases by number; returns those that were over already."""
        if seconds == 0 and not isinstance(seconds, bool):
            return self.settle(subscription, (), leases)

        def extend(state: State, now_us: int) -> Decision[list[int]]:
            if subscription not in state.subscriptions:
                return list(leases), (), ()  # they went with it
            return state.extend(subscription, leases, seconds, now_us)

        return self._turn(extend)

    def over(self, subscription: str, leases: Iterable[int]) -> list[int]:
        """Those of these leases that are not out, or no longer."""
        with self._lock:
            subscribed = self._state.subscriptions.get(subscription)
            return list(leases) if subscribed is None else subscribed.leases.split(leases)[1]

    def release(self, subscription: str, leases: Sequence[int], consumer: Recipient | None = None) -> None:
        """Take back what a consumer holds but did not begin, without counting it as failed."""
        self._turn(lambda state, _: state.release(subscription, leases, consumer), subscription)

    def _by_ack_id(
        self, ack_id: AckId | Iterable[AckId] | Leased, answer: Callable[[str, Sequence[int]], list[int]]
    ) -> None:
        if isinstance(ack_id, str | Message):
            one = _text(ack_id)
            found = self._state.find_lease(one)
            if found is None or answer(found[0].name, (found[1],)):
                raise InvalidAckId(one)
            return
        ack_ids = ack_id if isinstance(ack_id, list | Leased) else _several(ack_id)
        invalid: list[str] = []
        if pulled := self._pulled_together(ack_ids):
            subscription, together = pulled
            invalid += [f"{subscription.ack_id_prefix}{lease}" for lease in answer(subscription.name, together)]
        else:
            leases: dict[tuple[str, str], list[int]] = {}  # by subscription and prefix
            for one in dict.fromkeys(ack_ids.ack_ids() if isinstance(ack_ids, Leased) else map(_text, ack_ids)):
                if found := self._state.find_lease(one):
                    leases.setdefault((found[0].name, found[0].ack_id_prefix), []).append(found[1])
                else:
                    invalid.append(one)
            for (name, prefix), of_name in leases.items():
                invalid += [f"{prefix}{lease}" for lease in answer(name, of_name)]
        if invalid:
            raise InvalidAckId(*invalid)

    def _pulled_together(self, ack_ids: Sequence[AckId] | Leased) -> tuple[Subscription, Sequence[int]] | None:
        """The subscription and its leases, if these are the messages, or the ack ids, of a pull: much cheaper."""
        if isinstance(ack_ids, Leased):
            prefix, leases = ack_ids.ack_id_prefix, ack_ids.leases
            if not isinstance(leases, range):  # perhaps put together by hand
                leases = [*dict.fromkeys(leases)]
        elif (leased := leases_of(ack_ids)) is not None:
            prefix, leases = leased
        else:
            return self._state.find_run(ack_ids)
        subscription = self._state.of_ack_ids(prefix)
        return None if subscription is None else (subscription, leases)

    # -- keys, replay and what is going on ---------------------------------------------------------

    def blocked_keys(self, subscription: str) -> list[BlockedKey]:
        """The keys that wait for their first message, and why."""
        return self._turn(lambda state, now_us: (state.subscription(subscription).blocked_keys(now_us), (), ()))

    def resume_key(self, subscription: str, key: str) -> None:
        """Try a parked (or waiting) key again, as if its first message had never failed."""
        check_ordering_key(key)
        self._turn(lambda state, _: state.resume_key(subscription, key), subscription)

    def skip(self, subscription: str, key: str) -> str:
        """Give up the first message of a parked (or waiting) key; returns the message's id."""
        check_ordering_key(key)

        def skip(state: State, _: int) -> Decision[str]:
            position, events, problems = state.skip(subscription, key)
            return f"{state.subscription(subscription).id_prefix}{position}", events, problems

        return self._turn(skip, subscription)

    def seek(
        self,
        subscription: str,
        *,
        position: int | None = None,
        time: datetime | float | None = None,
        snapshot: str | None = None,
    ) -> None:
        """Deliver again from a position on, or what the topic has stored since a time, or what a snapshot has kept.

        The time is a datetime with a time zone, or seconds since 1970. It is compared with the time at
        which a message was stored in this topic: its publish time, or, of a dead letter, when it died.
        """
        if snapshot is not None:
            if position is not None or time is not None:
                raise InvalidArgument("seek: give one of a position, a time and a snapshot")
            self._turn(lambda state, now_us: state.seek_snapshot(subscription, snapshot, now_us), subscription)
            return
        time_us = None if time is None else microseconds(time)
        self._turn(
            lambda state, now_us: state.seek(subscription, now_us, position=position, time_us=time_us), subscription
        )

    def unacked(self, subscription: str) -> Unacked:
        """What is still to be acked, by key. Costs what is in the backlog."""
        return self._turn(lambda state, _: (state.subscription(subscription).unacked(), (), ()))

    def metrics(self, subscription: str) -> Metrics:
        """Counters and gauges of one subscription. Costs what is in its backlog."""
        return self._turn(lambda state, now_us: (state.subscription(subscription).metrics(now_us), (), ()))

    def commit_counters(self) -> CommitCounters:
        """What was written down since the broker was opened: nothing, where it is in memory only."""
        return CommitCounters() if self._commits is None else replace(self._commits.counters)

    @property
    def failure(self) -> InorderError | None:
        """Why the broker has stopped by itself, if it has: its journal could not be written."""
        return self._failure

    # -- snapshots ---------------------------------------------------------------------------------

    def create_snapshot(self, name: str, subscription: str, annotations: str = "") -> None:
        """Remember what a subscription has acked: what it has not, and what comes, is kept for `seek(snapshot=…)`.

        It expires seven days after the oldest message was stored that it keeps. Its topic takes it along.
        """
        self._turn(lambda state, now_us: state.create_snapshot(name, subscription, annotations, now_us))

    def update_snapshot(
        self, name: str, *, annotations: str | None = None, expires: datetime | float | None = None
    ) -> None:
        """Change how long it lives, up to seven days from when it was made, or its annotations."""
        expires_us = None if expires is None else microseconds(expires)

        def update(state: State, now_us: int) -> Decision[None]:
            found = state.snapshot(name, now_us)
            kept = found.annotations if annotations is None else annotations
            return state.update_snapshot(name, kept, found.expires_us if expires_us is None else expires_us, now_us)

        self._turn(update)

    def delete_snapshot(self, name: str) -> None:
        """What only this snapshot has kept is gone."""
        self._turn(lambda state, now_us: state.delete_snapshot(name, now_us))

    def delete_old_snapshots(self) -> list[str]:
        """Forget those whose time is over, which nobody sees any more; returns their names."""
        return self._turn(lambda state, now_us: state.delete_old_snapshots(now_us))

    def get_snapshot(self, name: str) -> SnapshotMetadata | None:
        with self._lock, suppress(SnapshotNotFound):
            return _snapshot_metadata(self._known().snapshot(name, self.clock.now_us()))
        return None

    def get_all_snapshots(self) -> list[SnapshotMetadata]:
        """Those that have not expired."""
        with self._lock:
            return [_snapshot_metadata(found) for found in self._known().living_snapshots(self.clock.now_us())]

    def close(self) -> None:
        """Take no more calls. Publishers that wait for room get `Closed`.

        Raises `JournalFailed` if what was answered could not be synced now.
        """
        if self._ingest is not None:
            self._ingest.stop()
        super().close()


def _after_fork_in_child() -> None:
    MessageQueue._instance_lock = threading.Lock()
    MessageQueue._instance = None  # that one is the parent's


after_fork(_after_fork_in_child)


class _Source:
    """Where messages of one subscription send their answers, each at once."""

    def __init__(self, broker: MessageQueue, subscription: str, id_prefix: str, ack_id_prefix: str) -> None:
        self.id_prefix = id_prefix
        self.ack_id_prefix = ack_id_prefix
        self._broker = broker
        self._subscription = subscription

    def ack(self, message: Message, answer: Pending[None]) -> None:
        self._answer(message._lease, answer, lambda: self._broker.settle(self._subscription, (message._lease,), ()))

    def nack(self, message: Message, answer: Pending[None]) -> None:
        self._answer(message._lease, answer, lambda: self._broker.settle(self._subscription, (), (message._lease,)))

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        answer: Pending[None] = Pending()
        self._answer(lease, answer, lambda: self._broker.extend(self._subscription, (lease,), seconds))
        return answer

    def _answer(self, lease: int, answer: Pending[None], call: Callable[[], list[int]]) -> None:
        try:
            if call():
                raise InvalidAckId(f"{self.ack_id_prefix}{lease}")
        except InorderError as error:
            answer.set_exception(error)
        else:
            self._broker.durable().hand_to(answer)


def _several(ack_ids: object) -> list[AckId]:
    # Bytes are several numbers, which is not what anybody means by them.
    if not isinstance(ack_ids, Iterable) or isinstance(ack_ids, bytes | bytearray):
        raise InvalidArgument(f"ack_id: expected a string, or several, not {type(ack_ids).__name__}")
    return list(ack_ids)


def _text(ack_id: AckId) -> str:
    return ack_id.ack_id if isinstance(ack_id, Message) else str(ack_id)


def microseconds(time: datetime | float) -> int:
    """A time as users give it, since 1970."""
    if isinstance(time, datetime) and time.utcoffset() is not None:
        time_us = (time - _EPOCH) // _MICROSECOND
    elif isinstance(time, int | float):
        check_number("time", time, at_least=MIN_TIME_SECONDS, up_to=MAX_TIME_SECONDS)
        time_us = round(time * MICROSECONDS)
    else:
        raise InvalidArgument(f"time: a datetime with a time zone, or seconds since 1970, not {time!r}")
    # The first and the last hours of other zones have no time in UTC, and the last float there is is beyond the last.
    return max(MIN_TIME_SECONDS * MICROSECONDS, min(time_us, MAX_TIME_SECONDS * MICROSECONDS - 1))


def _datetime(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / MICROSECONDS, UTC)


def _topic_metadata(topic: Topic) -> TopicMetadata:
    return TopicMetadata(topic.name, _datetime(topic.created_us), topic.options, topic.next_position)


def _snapshot_metadata(snapshot: SnapshotLedger) -> SnapshotMetadata:
    created, expires = _datetime(snapshot.created_us), _datetime(snapshot.expires_us)
    return SnapshotMetadata(snapshot.name, snapshot.topic, created, expires, snapshot.annotations)


def _subscription_metadata(subscription: Subscription) -> SubscriptionMetadata:
    return SubscriptionMetadata(
        subscription.name,
        subscription.topic,
        _datetime(subscription.created_us),
        subscription.options,
        subscription.detached,
        subscription.detached and not subscription.on_request,
    )
