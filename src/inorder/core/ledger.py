"""What must survive a crash, and nothing else: the books that are kept of topics and subscriptions.

The live state is made for delivering: lanes, leases, alarms. The books are made for remembering. They
know positions, not messages, so that reading a journal costs nothing per message. Two ways lead to
them, and must come to the same: `State.book()` writes down how things are, and the verbs here repeat
what has happened, event by event. `State(book)` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inorder.clock import MICROSECONDS
from inorder.core import producers
from inorder.core.events import (
    ACKED,
    PUBLISHED,
    Attempted,
    DeadLettered,
    Elapsed,
    Event,
    Failed,
    Failure,
    HeadSkipped,
    KeyResumed,
    ProducerOpened,
    Return,
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
from inorder.core.holds import Hold, longer, longest
from inorder.core.producers import Producers
from inorder.core.ranges import Ranges, runs, runs_of
from inorder.message import ATTRIBUTES, DATA, KEY, POSITION, STORED_US, Gap, Record
from inorder.options import SubscriptionOptions, TopicOptions

FEW = 16  # positions that come together are kept so, as they are; fewer than that are put beside others


class Missed(NamedTuple):
    """What a full subscription did not get of a batch."""

    keyed: Sequence[int]
    keyless: Sequence[int]


class Lost(NamedTuple):
    """A hole in a key that is still to be told, of messages that the journal does not have any more."""

    key: str
    last: int  # the position where it ends
    messages: int
    reason: str
    stored_us: int

    @staticmethod
    def part_of(record: Record, positions: Sequence[int], *, all_of_it: bool) -> Lost:
        """What is remembered of a record: of a message, or of as much of a gap as stands at these positions."""
        _, key, gap, _, _, _, stored_us = record
        if not isinstance(gap, Gap):  # it is still out, or nobody has looked how old it is
            return Lost(key, positions[0], 1, "expired", stored_us)
        last, messages = (gap.last_position, gap.count) if all_of_it else (positions[-1], len(positions))
        return Lost(key, last, messages, gap.reason, stored_us)

    def record(self, position: int) -> Record:
        """What stands in the place of the messages."""
        gap = Gap(self.key, position, self.last, self.messages, self.reason)
        return (position, self.key, gap, None, self.stored_us, 0, self.stored_us)


class Wait(NamedTuple):
    """A message without an order to keep that is tried again later."""

    key: str
    until_us: int


@dataclass
class TopicLedger:
    """What is remembered of a topic."""

    name: str
    serial: int
    id_prefix: str
    options: TopicOptions
    created_us: int
    next_position: int = 0
    stored_us: int = 0  # when the latest message was stored
    writers: dict[str, tuple[int, int]] = field(default_factory=dict)  # writer → its last epoch, and the part of that
    producers: Producers = field(default_factory=dict)


@dataclass
class SnapshotLedger:
    """What is remembered of a snapshot: all that its subscription had done. It goes when its topic goes."""

    name: str
    topic: str
    done: Ranges
    created_us: int
    expires_us: int
    annotations: str


@dataclass
class Ledger:
    """What is remembered of a subscription. Leases are not: what was out comes again, in its place."""

    name: str
    topic: str
    serial: int
    options: SubscriptionOptions
    created_us: int
    detached: bool = False
    on_request: bool = False  # it was detached so, and its topic is another matter
    done: Ranges = field(default_factory=Ranges)  # positions that will not be delivered any more
    gaps: dict[int, str] = field(default_factory=dict)  # position → why there is a gap instead of a message
    lost: dict[int, Lost] = field(default_factory=dict)  # by where each begins, which stands for all of it
    failures: dict[int, Failure] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    waits: dict[int, Wait] = field(default_factory=dict)
    _fresh: list[Sequence[int]] = field(default_factory=list)  # done too, but not sorted into `done` yet
    _few: list[int] = field(default_factory=list)  # the same of those that came in small numbers

    def acked(self, positions: Sequence[int]) -> None:
        self._finish(positions)
        if self.gaps or self.failures or self.lost:
            self._forget(positions)

    def _finish(self, positions: Sequence[int]) -> None:
        if len(positions) > FEW:
            self._fresh.append(positions)
        else:
            self._few += positions

    def _forget(self, positions: Iterable[int]) -> None:
        for position in positions:
            self.gaps.pop(position, None)
            self.lost.pop(position, None)
            self.failures.pop(position, None)

    def _leave_gap(self, position: int, reason: str) -> None:
        if position in self.lost:
            self.lost[position] = self.lost[position]._replace(reason=reason)
        else:
            self.gaps[position] = reason

    def missed(self, missed: Missed) -> None:
        """These were dropped: a hole in a key is told, one without a key is not."""
        if self.options.enable_message_ordering:
            self.gaps.update(dict.fromkeys(missed.keyed, "dropped"))
        else:
            self._finish(missed.keyed)
        self._finish(missed.keyless)

    def failed(self, key: str, failures: Mapping[int, Failure], until_us: int | None, waits_for: int, of: str) -> None:
        """`key` is in whose order something came back, if there is one; `of` is the message's own key."""
        self.failures.update(failures)
        if key and until_us != 0:
            self.holds[key] = longer(self.holds.get(key), Hold(waits_for, until_us))
        elif until_us:
            self.waits[waits_for] = Wait(of, until_us)

    def dead_lettered(self, gaps: Iterable[int], gone: Iterable[int]) -> None:
        for position in gaps:
            self.failures.pop(position, None)
            self._leave_gap(position, "dead_lettered")
        gone = list(gone)
        self._forget(gone)
        self._finish(gone)

    def resumed(self, key: str) -> None:
        self.failures.pop(self.holds.pop(key).position, None)

    def skipped(self, key: str) -> None:
        position = self.holds.pop(key).position
        self.failures.pop(position, None)
        self._leave_gap(position, "skipped")

    def sought(self, position: int, replay_from: int, visible: int) -> None:
        """Everything from `replay_from` on is to come again, and what was not done from `position` on.

        What was not visible yet stays as it is.
        """
        in_the_log = [gap for gap in self.gaps if gap < min(replay_from, visible)]
        given_up = runs(sorted(gap for gap in (*in_the_log, *self.lost) if gap >= position))
        done = self.sorted_done()
        still_done = done.within(position, replay_from).union(done.within(max(position, visible), 1 << 62))
        self.done = Ranges([(0, position), *still_done.union(given_up)])
        self.gaps = {gap: reason for gap, reason in self.gaps.items() if gap >= max(position, visible)}
        self.lost.clear()
        self.failures.clear()
        self.holds.clear()
        self.waits.clear()

    def sought_snapshot(self, done: Ranges, visible: int) -> None:
        """What is `done` is done, and nothing else of what was visible."""
        self.done = done.within(0, visible).union(self.sorted_done().within(visible, 1 << 62))
        self.gaps = {gap: reason for gap, reason in self.gaps.items() if gap >= visible}
        self.lost.clear()
        self.failures.clear()
        self.holds.clear()
        self.waits.clear()

    def given_up(self) -> Ranges:
        """All that is done, and the gaps, which nobody can bring back."""
        return self.sorted_done().union(runs(sorted((*self.gaps, *self.lost))))

    def updated(self, options: SubscriptionOptions) -> None:
        before, self.options = self.options, options
        if before.enable_message_ordering == options.enable_message_ordering:
            return
        waiting = [(hold.position, key, hold.until_us) for key, hold in self.holds.items()]
        waiting += [(position, wait.key, wait.until_us) for position, wait in self.waits.items()]
        self.holds.clear()
        self.waits.clear()
        for position, key, until_us in sorted(waiting, key=lambda wait: wait[0]):
            if options.enable_message_ordering and key:
                self.holds[key] = longest(self.holds.get(key), Hold(position, until_us))
            elif until_us is not None:
                self.waits[position] = Wait(key, until_us)

    def detach(self) -> None:
        """The topic is gone, and its messages with it."""
        self.detached = True
        self.done = Ranges()
        self._forget_fresh()
        self.gaps.clear()
        self.lost.clear()
        self.failures.clear()
        self.holds.clear()
        self.waits.clear()

    def until_us(self) -> dict[int, int | None]:
        """All for which somebody waits, by their position."""
        waiting: dict[int, int | None] = {hold.position: hold.until_us for hold in self.holds.values()}
        waiting.update((position, wait.until_us) for position, wait in self.waits.items())
        return waiting

    def sorted_done(self) -> Ranges:
        if self._fresh or self._few:
            self.done = self.done.union(runs_of([*self._fresh, self._few]))
            self._forget_fresh()
        return self.done

    def _forget_fresh(self) -> None:
        self._fresh.clear()
        self._few.clear()

    def calm(self, now_us: int) -> None:
        """Let nobody wait longer than a backoff can last: the clock may have been set back meanwhile."""
        policy = self.options.retry_policy
        latest_us = now_us + round((policy.maximum_backoff if policy else 0) * MICROSECONDS)
        self.holds = {
            key: hold if hold.until_us is None else Hold(hold.position, min(hold.until_us, latest_us))
            for key, hold in self.holds.items()
        }
        self.waits = {position: Wait(w.key, min(w.until_us, latest_us)) for position, w in self.waits.items()}

    def at(self, now_us: int) -> Ledger:
        """The same without what time has made meaningless, for comparing and for writing down."""
        self.sorted_done()
        self.holds = {key: h for key, h in self.holds.items() if h.until_us is None or h.until_us > now_us}
        self.waits = {position: wait for position, wait in self.waits.items() if wait.until_us > now_us}
        return self


@dataclass
class Book:
    """What is remembered of a whole broker."""

    serial: int = 0  # of the next topic or subscription
    topics: dict[str, TopicLedger] = field(default_factory=dict)
    subscriptions: dict[str, Ledger] = field(default_factory=dict)
    snapshots: dict[str, SnapshotLedger] = field(default_factory=dict)

    def topic_created(self, event: TopicCreated) -> None:
        self.serial = event.serial + 1
        self.topics[event.topic] = TopicLedger(event.topic, event.serial, event.id_prefix, event.options, event.now_us)

    def topic_updated(self, event: TopicUpdated) -> None:
        self.topics[event.topic].options = event.options

    def topic_deleted(self, event: TopicDeleted) -> None:
        del self.topics[event.topic]
        for ledger in self.subscriptions.values():
            if ledger.topic == event.topic and not ledger.detached:
                ledger.detach()
        self.snapshots = {name: one for name, one in self.snapshots.items() if one.topic != event.topic}

    def subscription_created(self, event: SubscriptionCreated) -> None:
        self.serial = event.serial + 1
        done = Ranges([(0, self.topics[event.topic].next_position)])
        self.subscriptions[event.subscription] = Ledger(
            event.subscription, event.topic, event.serial, event.options, event.now_us, done=done
        )

    def subscription_updated(self, event: SubscriptionUpdated) -> None:
        self.subscriptions[event.subscription].updated(event.options)

    def subscription_detached(self, event: SubscriptionDetached) -> None:
        ledger = self.subscriptions[event.subscription]
        ledger.detach()
        ledger.on_request = True

    def subscription_deleted(self, event: SubscriptionDeleted) -> None:
        del self.subscriptions[event.subscription]

    def published(self, topic: str, first: int, count: int, stored_us: int, missed: Mapping[str, Missed]) -> None:
        ledger = self.topics[topic]
        ledger.next_position = first + count
        ledger.stored_us = stored_us
        for name, positions in missed.items():
            self.subscriptions[name].missed(positions)

    def written(self, topic: str, writer: str, epoch: int, part: int) -> None:
        self.topics[topic].writers[writer] = (epoch, part)

    def producer_opened(self, event: ProducerOpened) -> None:
        producers.opened(self.topics[event.topic].producers, event.producer, event.epoch, event.now_us)

    def attempted(self, event: Attempted) -> None:
        topic, attempt, first, count, now_us = event
        producers.attempted(self.topics[topic].producers, attempt, first, count, now_us)

    def snapshot_created(self, event: SnapshotCreated) -> None:
        self.snapshots[event.snapshot] = SnapshotLedger(
            event.snapshot, event.topic, Ranges(event.done), event.now_us, event.expires_us, event.annotations
        )

    def snapshot_updated(self, event: SnapshotUpdated) -> None:
        ledger = self.snapshots[event.snapshot]
        ledger.expires_us, ledger.annotations = event.expires_us, event.annotations

    def snapshot_deleted(self, event: SnapshotDeleted) -> None:
        del self.snapshots[event.snapshot]

    def sought_snapshot(self, event: SoughtSnapshot) -> None:
        self.subscriptions[event.subscription].sought_snapshot(self.snapshots[event.snapshot].done, event.visible)

    def apply(self, events: Iterable[Event]) -> None:
        """Repeat what has happened."""
        for event in events:
            if event[0] == PUBLISHED:
                _, topic, records, _, refused, _ = event
                missed = {name: missed_of(records, positions) for name, positions in refused.items()}
                self.published(topic, records[0][POSITION], len(records), records[0][STORED_US], missed)
                continue
            if event[0] == ACKED:
                _, name, _, done = event
                self.subscriptions[name].acked(positions_of(done))
                continue
            match event:
                case TopicCreated():
                    self.topic_created(event)
                case TopicUpdated():
                    self.topic_updated(event)
                case TopicDeleted():
                    self.topic_deleted(event)
                case SubscriptionCreated():
                    self.subscription_created(event)
                case SubscriptionUpdated():
                    self.subscription_updated(event)
                case SubscriptionDetached():
                    self.subscription_detached(event)
                case SubscriptionDeleted():
                    self.subscription_deleted(event)
                case Written(topic, writer, epoch, part):
                    self.written(topic, writer, epoch, part)
                case ProducerOpened():
                    self.producer_opened(event)
                case Attempted():
                    self.attempted(event)
                case Failed():
                    for back in event.returns:
                        self.subscriptions[event.subscription].failed(
                            back.key, back.failures, back.until_us, back.waits_for, key_of(back)
                        )
                case DeadLettered(name):
                    self.subscriptions[name].dead_lettered(*gaps_and_gone(event))
                case KeyResumed(name, key):
                    self.subscriptions[name].resumed(key)
                case HeadSkipped(name, key):
                    self.subscriptions[name].skipped(key)
                case Sought():
                    self.subscriptions[event.subscription].sought(event.position, event.replay_from, event.visible)
                case SnapshotCreated():
                    self.snapshot_created(event)
                case SnapshotUpdated():
                    self.snapshot_updated(event)
                case SnapshotDeleted():
                    self.snapshot_deleted(event)
                case SoughtSnapshot():
                    self.sought_snapshot(event)
                case Elapsed():
                    pass  # time passes without being written down

    def at(self, now_us: int) -> Book:
        """The same without what time has made meaningless."""
        for ledger in self.subscriptions.values():
            ledger.at(now_us)
        return self


def positions_of(records: Iterable[Record]) -> list[int]:
    """The positions that records stand for: a gap may stand for several."""
    positions: list[int] = []
    for record in records:
        if isinstance(record[DATA], Gap) and record[ATTRIBUTES]:
            positions += record[ATTRIBUTES]  # type: ignore[arg-type]
        else:
            positions.append(record[POSITION])
    return positions


def key_of(back: Return) -> str:
    """The key of what came back, also where it has no order to keep."""
    return back.records[0][KEY] if back.records else back.key


def missed_of(records: Iterable[Record], refused: frozenset[int]) -> Missed:
    """Which of the refused messages have a key, and which have none."""
    missed = Missed([], [])
    for record in records:
        if record[POSITION] in refused:
            (missed.keyed if record[KEY] else missed.keyless).append(record[POSITION])  # type: ignore[attr-defined]
    return missed


def gaps_and_gone(event: DeadLettered) -> tuple[list[int], list[int]]:
    """The positions of messages that leave a gap in their key, and of those that leave nothing."""
    gaps = [record[POSITION] for record in event.records if event.ordered and record[KEY]]
    gone = [record[POSITION] for record in event.records if not (event.ordered and record[KEY])]
    return gaps, gone
