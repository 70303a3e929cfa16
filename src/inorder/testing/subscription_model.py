"""A subscription as the specifications describe it: what it holds, what it may give, and what it must.

Half of the model of a broker; see `inorder.testing.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf

from inorder.clock import MICROSECONDS
from inorder.errors import KeyNotBlocked
from inorder.message import Gap, Message
from inorder.metadata import BlockedKey, Counters, Metrics, Unacked
from inorder.options import QueueLimits, SubscriptionOptions

CLEARED_WITHIN_US = 60 * MICROSECONDS  # the specification's period of cleaning up

Matches = Callable[[Mapping[str, str]], bool]


@dataclass(eq=False, slots=True)
class Stored:
    """A message in a topic."""

    position: int
    key: str
    data: bytes
    attributes: Mapping[str, str]
    publish_us: int
    stored_us: int  # later than it was published, if it is a dead letter
    id: str = ""  # as the broker says; a dead letter's is known when it is first delivered

    @property
    def size(self) -> int:
        texts = [self.key, *self.attributes.keys(), *self.attributes.values()]
        return len(self.data) + sum(len(text.encode()) for text in texts)


@dataclass(eq=False, slots=True)
class Lease:
    ack_id: str
    deadline_us: int
    consumer: object


@dataclass(eq=False, slots=True)
class Item:
    """A message in a subscription, until it is acked or otherwise gone; or the hole that it left."""

    stored: Stored
    waiting_since_us: int
    failures: int = 0
    not_before_us: int = 0  # its own backoff is over then
    was_out: bool = False
    gap: str = ""  # why only the hole is left
    count: int = 1  # of messages that the hole stands for
    others: list[Item] = field(default_factory=list)  # holes that were told with this one
    lease: Lease | None = None
    passed_over_us: int | None = None  # when it first had to stay because of its size

    @property
    def position(self) -> int:
        return self.stored.position

    @property
    def size(self) -> int:
        return 0 if self.gap else self.stored.size

    def __str__(self) -> str:
        return f"{self.gap and 'the hole of '}{self.position} (key {self.stored.key!r})"


class SubscriptionModel:
    """What one subscription holds, and what it may and must give."""

    def __init__(self, name: str, topic: str, options: SubscriptionOptions, matches: Matches, sees_gaps: bool) -> None:
        self.name = name
        self.topic = topic
        self.options = options
        self.matches = matches
        self.sees_gaps = sees_gaps  # its consumers use `take`, and are told of holes
        self.oldest_first = options.flow_control is None  # else some may go before older and larger ones
        self.detached = False
        self.items: list[Item] = []  # all that is not acked, by position
        self.parked: set[str] = set()
        self.held_until_us: dict[str, int] = {}
        self.waits_for: dict[str, Item] = {}  # the message because of which a key is parked or held
        self.undecided: set[str] = set()  # keys that wait, but the broker says for what, or that they do not
        self.counters = Counters()
        self.redelivered_after_failure = 0
        self.cleared = 0  # of the outdated ones; which, is not seen
        self.accepted = 0
        self.forgotten = 0  # by a seek, or with the topic
        self.lags = False  # the broker reads its messages when they are wanted, and knows their number about

    # -- what there is -----------------------------------------------------------------------------

    @property
    def ordered(self) -> bool:
        return self.options.enable_message_ordering

    @property
    def limits(self) -> QueueLimits:
        return self.options.queue_limits or QueueLimits()

    def key_of(self, item: Item) -> str:
        """The key that puts this item in order; "" if none does."""
        return item.stored.key if self.ordered else ""

    def lane(self, item: Item) -> list[Item]:
        """The items among which this one has its turn. One without a key is alone."""
        key = self.key_of(item)
        return [other for other in self.items if self.key_of(other) == key] if key else [item]

    def lanes(self) -> Iterator[list[Item]]:
        seen: set[str] = set()
        for item in self.items:
            key = self.key_of(item)
            if not key or key not in seen:
                seen.add(key)
                yield self.lane(item)

    def messages(self) -> list[Item]:
        return [item for item in self.items if not item.gap]

    def out(self) -> list[Item]:
        return [item for item in self.items if item.lease]

    def outdated(self, now_us: int) -> list[Item]:
        """Waiting and older than the retention: not to be delivered, and cleared away sooner or later."""
        return [item for item in self.messages() if not item.lease and self._is_outdated(item, now_us)]

    def backlog(self) -> tuple[int, int]:
        """Messages and bytes, by what was last seen of the outdated ones."""
        messages = self.messages()
        return len(messages) - self.cleared, sum(item.size for item in messages)

    def held_keys(self, now_us: int) -> list[str]:
        """The keys that are parked, or wait for a retry."""
        return sorted(self.parked | {key for key, until_us in self.held_until_us.items() if until_us > now_us})

    def _is_outdated(self, item: Item, now_us: int) -> bool:
        return item.stored.stored_us < now_us - as_us(self.options.message_retention_duration)

    def _passed_in_silence(self, item: Item, now_us: int) -> bool:
        """A hole, or what will be one: nobody is told, unless consumers want to know and it was in order."""
        if item.gap:
            return not self.sees_gaps
        return not item.lease and self._is_outdated(item, now_us) and not (self.sees_gaps and self.key_of(item))

    # -- what comes in -----------------------------------------------------------------------------

    def refused(self, batch: Iterable[Stored]) -> list[Stored]:
        """Those that find no room, as if they came one by one."""
        most = inf if self.limits.max_messages is None else self.limits.max_messages
        most_bytes = inf if self.limits.max_bytes is None else self.limits.max_bytes
        count, size = self.backlog()
        refused: list[Stored] = []
        for stored in batch:
            if not self.matches(stored.attributes):
                continue
            if count + 1 > most or size + stored.size > most_bytes:
                refused.append(stored)
            else:
                count, size = count + 1, size + stored.size
        return refused

    def accept(self, batch: Iterable[Stored], now_us: int) -> None:
        batch = list(batch)
        refused = self.refused(batch) if self.limits.when_full == "drop" else []
        for stored in batch:
            if not self.matches(stored.attributes):
                continue
            if stored not in refused:
                self.accepted += 1
                self.items.append(Item(stored, now_us))
                continue
            self.counters.dropped += 1
            hole = Item(stored, now_us, gap="dropped")
            if self.key_of(hole):
                self.items.append(hole)

    # -- what goes out -----------------------------------------------------------------------------

    def check_pull(
        self, pulled: Sequence[Message], max_messages: int, now_us: int, consumer: object = None
    ) -> list[Item]:
        """What a pull gave was allowed, and nothing was kept back; now it is out."""
        assert len(pulled) <= max_messages, f"{self.name}: {len(pulled)} messages, {max_messages} were asked for"
        flow = self.options.flow_control
        if flow is not None and self._out_bytes() >= flow.max_bytes and self.out():
            assert not pulled, f"{self.name}: a delivery although {flow.max_bytes} bytes are out"
        items = [self._check_delivery(message, now_us, consumer) for message in pulled]
        if len(pulled) < max_messages:
            kept_back = self.must_give(now_us, consumer)
            assert kept_back is None, f"{self.name}: {kept_back} was ready, but the pull did not give it"
        self._note_passed_over(now_us, consumer)
        if self.oldest_first:
            self._check_oldest_first(items, now_us)
        return items

    def _check_delivery(self, message: Message, now_us: int, consumer: object) -> Item:
        item = next((item for item in self.items if item.position == message.position), None)
        assert item is not None, f"{self.name}: {message.position} was delivered, which is not in the backlog"
        if isinstance(message.data, Gap):
            self._check_gap(item, message.data, now_us)
        else:
            assert not item.gap, f"{self.name}: {item} was delivered as a message"
            assert not self._is_outdated(item, now_us), f"{self.name}: {item} is past its retention"
            assert message.delivery_attempt == item.failures + 1, (
                f"{self.name}: {item} failed {item.failures} times, this cannot be attempt {message.delivery_attempt}"
            )
            _check_same(item.stored, message)
        self._check_turn(item, now_us, consumer)
        self._check_flow(item)
        if not item.gap:
            self.counters.delivered += 1
            self.counters.redelivered += item.was_out
            self.redelivered_after_failure += item.failures > 0
        item.was_out = True
        item.passed_over_us = None
        item.lease = Lease(message.ack_id, now_us + as_us(self.options.ack_deadline_seconds), consumer)
        return item

    def _check_gap(self, item: Item, gap: Gap, now_us: int) -> None:
        """A hole is told in its place; several side by side may be told as one."""
        assert self.sees_gaps, f"{self.name}: a pull gave the record of a gap: {gap}"
        assert item.stored.key, f"{self.name}: a gap where no order is promised: {gap}"
        of_key = [other for other in self.items if other.stored.key == item.stored.key]
        told = 0
        for other in of_key[of_key.index(item) :]:
            if told < gap.count and not other.lease and self._is_outdated(other, now_us):
                self._clear(other)
            if told >= gap.count or other.lease or not other.gap or other.gap != item.gap:
                break
            told += other.count
            if other is not item:
                self.items.remove(other)
                item.others += [other, *other.others]
        assert item.gap, f"{self.name}: {gap} was told of a message that is there"
        expected = (item.stored.key, item.position, max(told, 1), item.gap)
        assert (gap.ordering_key, gap.first_position, gap.count, gap.reason) == expected, (
            f"{self.name}: {gap} was told where {expected} was due"
        )
        item.count = told

    def _check_turn(self, item: Item, now_us: int, consumer: object) -> None:
        """It is this item's turn: all before it of its key is out, or done, and the key may go on."""
        key, lane = self.key_of(item), self.lane(item)
        before = lane[: lane.index(item)]
        for other in [other for other in before if self._passed_in_silence(other, now_us)]:
            self._clear(other)
            if other in self.items:
                self.items.remove(other)
            before.remove(other)
        assert item.lease is None, f"{self.name}: {item} was delivered, and is out already"
        assert item.not_before_us <= now_us, (
            f"{self.name}: {item} was delivered {item.not_before_us - now_us} µs before its backoff was over"
        )
        assert key not in self.parked, f"{self.name}: {item} was delivered, and its key is parked"
        for other in before:
            assert other.lease, f"{self.name}: {item} overtook {other}"
            assert other.lease.consumer is consumer, f"{self.name}: {item} and {other} went to different consumers"
        window = self.options.max_outstanding_per_key if key else 1
        assert len(before) < window, f"{self.name}: {item} was delivered with {len(before)} of its key out"

    def _check_flow(self, item: Item) -> None:
        flow, out = self.options.flow_control, self.out()
        if flow is None:
            return
        assert len(out) < flow.max_messages, f"{self.name}: {item} was delivered with {len(out)} messages out"
        assert self._fits(item), f"{self.name}: {item} was delivered, {item.size} bytes on top of {self._out_bytes()}"

    def _fits(self, item: Item) -> bool:
        """Within the bytes that may be out; a message larger than all of them goes alone."""
        flow = self.options.flow_control
        return flow is None or not self.out() or self._out_bytes() + item.size <= flow.max_bytes

    def _out_bytes(self) -> int:
        return sum(item.size for item in self.out())

    def must_give(self, now_us: int, consumer: object = None) -> Item | None:
        """One of the items that a consumer has to get if it asks now; None if there is none."""
        flow, due = self.options.flow_control, list(self._due(now_us, consumer))
        if flow is not None:
            if len(self.out()) >= flow.max_messages or (self.out() and self._out_bytes() >= flow.max_bytes):
                return None
            # A message that others have passed for as long as a lease lasts may make them wait for it.
            patience_us = as_us(self.options.ack_deadline_seconds)
            if any(item.passed_over_us is not None and now_us - item.passed_over_us >= patience_us for item in due):
                return None
        return next((item for item in due if self._fits(item)), None)

    def _note_passed_over(self, now_us: int, consumer: object) -> None:
        for item in self._due(now_us, consumer):
            if not self._fits(item) and item.passed_over_us is None:
                item.passed_over_us = now_us

    def _due(self, now_us: int, consumer: object) -> Iterator[Item]:
        """Every item that has to be given to who asks now: the next of each key, and all without a key."""
        for lane in self.lanes():
            key = self.key_of(lane[0])
            out = [item for item in lane if item.lease]
            waiting = [item for item in lane if not item.lease]
            told = [item for item in waiting if not self._passed_in_silence(item, now_us)]
            if (
                told
                and len(out) < (self.options.max_outstanding_per_key if key else 1)
                and all(item.lease and item.lease.consumer is consumer for item in out)
                and all(item.not_before_us <= now_us for item in waiting)
                and key not in self.held_keys(now_us)
            ):
                yield told[0]

    def _check_oldest_first(self, items: list[Item], now_us: int) -> None:
        free = [item.position for item in items if not self.key_of(item)]
        assert free == sorted(free), f"{self.name}: not the oldest first: {free}"
        for item in self._due(now_us, None):
            if free and not self.key_of(item):
                assert item.position > free[-1], f"{self.name}: {free[-1]} was delivered before {item}, which is older"

    # -- how it ends -------------------------------------------------------------------------------

    def leased(self, ack_id: str) -> Item | None:
        return next((item for item in self.items if item.lease and item.lease.ack_id == ack_id), None)

    def ack(self, item: Item) -> None:
        self.items.remove(item)
        self.counters.acked += not item.gap

    def take_back(self, failed: Sequence[Item], now_us: int) -> None:
        """Failed deliveries end, and with each of them all that is out behind it in its key."""
        for item in failed:
            lane = self.lane(item)
            for other in lane[lane.index(item) :]:
                if other.lease:
                    other.lease = None
                    other.waiting_since_us = now_us
            item.failures += not item.gap

    def release(self, items: Sequence[Item], now_us: int) -> None:
        """Consumers give these back, and nobody is to blame."""
        for item in items:
            item.lease = None
            item.waiting_since_us = now_us

    def fails_too_often(self, item: Item) -> bool:
        policy, on_poison = self.options.dead_letter_policy, self.options.on_poison
        if item.gap or on_poison == "block":
            return False
        if policy is not None:
            return item.failures >= policy.max_delivery_attempts
        return on_poison == "park_key" and item.failures >= 5

    def parks(self, item: Item) -> bool:
        """Whether a message that fails too often stops its key."""
        return self.options.on_poison == "park_key" and self.key_of(item) != ""

    def backoff_us(self, item: Item) -> int:
        """How long a message waits that has just failed, and its key with it."""
        if item.gap or self.options.retry_policy is None:
            return 0
        policy = self.options.retry_policy
        return as_us(min(policy.minimum_backoff * 2 ** (item.failures - 1), policy.maximum_backoff))

    def retry_later(self, failed: Sequence[Item], now_us: int) -> None:
        """Messages that failed keep their places; they and their keys wait for the backoff."""
        for item in sorted(failed, key=lambda item: item.position, reverse=True):
            item.not_before_us = now_us + self.backoff_us(item)
            if self.key_of(item) and item.not_before_us > now_us:
                self._hold_for(item)

    def park(self, poison: Sequence[Item]) -> None:
        """The keys of these messages wait for somebody to look at them."""
        for item in sorted(poison, key=lambda item: item.position):
            if item.stored.key not in self.parked:
                self.parked.add(item.stored.key)
                self.waits_for[item.stored.key] = item

    def give_up(self, item: Item, reason: str) -> None:
        """The message will not come (any more); where order is promised, its hole keeps its place."""
        if self.key_of(item):
            item.gap = reason
            item.failures = 0
        else:
            self.items.remove(item)

    def _clear(self, item: Item) -> None:
        """An outdated message goes."""
        if not item.gap:
            self.counters.outdated += 1
            self.give_up(item, "expired")

    def resume(self, key: str, now_us: int) -> None:
        """The key goes on, as if the message that it waits for had never failed."""
        self._go_on(key, now_us).failures = 0

    def skip(self, key: str, now_us: int) -> Item:
        """The key goes on without the message that it waits for. Returns that."""
        item = self._go_on(key, now_us)
        self.counters.skipped += not item.gap  # it may have become too old meanwhile
        self.give_up(item, "skipped")
        return item

    def _go_on(self, key: str, now_us: int) -> Item:
        if key not in self.held_keys(now_us):
            raise KeyNotBlocked(key)
        self.parked.discard(key)
        self.held_until_us.pop(key, None)
        for item in self.lane(self.waits_for[key]):
            item.not_before_us = 0
        return self.waits_for[key]

    # -- replay and change -------------------------------------------------------------------------

    def restart(self, now_us: int) -> None:
        """Leases and counters are forgotten: what was out is there, in its place, and its delivery does not count."""
        for item in self.items[:]:
            self.items += item.others
            for one in (item, *item.others):
                one.count, one.others = 1, []
                one.lease = one.passed_over_us = None
        self.items.sort(key=lambda item: item.position)
        policy = self.options.retry_policy
        latest_us = now_us + (as_us(policy.maximum_backoff) if policy else 0)
        for item in self.items:
            item.not_before_us = min(item.not_before_us, latest_us)
        self.held_until_us = {key: min(until_us, latest_us) for key, until_us in self.held_until_us.items()}
        self.counters = Counters()
        self.accepted = len(self.messages())
        self.redelivered_after_failure = self.forgotten = 0

    def start_over(self, stored: Iterable[Stored], now_us: int) -> None:
        """These are the backlog now, as if they had just been published."""
        self.counters.outdated += self.cleared  # which of them these were, nobody will know
        self.forgotten += len(self.messages()) - self.cleared
        self.cleared = 0
        self.items = [Item(one, now_us) for one in sorted(stored, key=lambda one: one.position)]
        self.accepted += len(self.items)
        self.parked.clear()
        self.held_until_us.clear()

    def update(self, options: SubscriptionOptions, now_us: int) -> None:
        before, self.options = self.options, options
        self.oldest_first &= options.flow_control is None
        window = options.max_outstanding_per_key != before.max_outstanding_per_key
        if self.ordered == before.enable_message_ordering and not (self.ordered and window):
            return
        self.release(self.out(), now_us)
        self.oldest_first = False  # a message of a key may have let others go first, and need not now
        if not self.ordered:
            # Keys are no more: only what its key waited for goes on waiting, if it is not parked.
            for item in self.items:
                if item.stored.key and before.enable_message_ordering:
                    waits = item is self.waits_for.get(item.stored.key) and item.stored.key not in self.parked
                    item.not_before_us = self.held_until_us.get(item.stored.key, 0) if waits else 0
            self.parked.clear()
            self.held_until_us.clear()
            return
        for item in reversed(self.items if not before.enable_message_ordering else []):
            if self.key_of(item) and item.not_before_us > now_us:
                self._hold_for(item)
        # A key may wait for any of several messages now, or no longer for one that is only a hole.
        self.undecided.update(self.held_keys(now_us))

    def _hold_for(self, item: Item) -> None:
        key = self.key_of(item)
        self.held_until_us[key] = max(self.held_until_us.get(key, 0), item.not_before_us)
        if key not in self.parked:
            self.waits_for[key] = item

    # -- what the broker says ----------------------------------------------------------------------

    def check_metrics(self, metrics: Metrics, blocked: Sequence[BlockedKey], now_us: int) -> None:
        """The broker counts as the model does."""
        negative = {name: count for name, count in asdict(metrics.counters).items() if count < 0}
        assert not negative, f"{self.name}: negative counters: {negative}"
        self._see_cleared(metrics.counters.outdated, now_us)
        self._see_decided(blocked, now_us)
        messages, size = self.backlog()
        counted: dict[str, float] = {"outstanding_messages": len(self.out())}
        counted |= {"outstanding_bytes": self._out_bytes(), "parked_keys": len(self.parked)}
        if not self.lags:
            counted["backlog_messages"] = messages
        if not self.cleared and not self.lags:
            publish_us = min((item.stored.publish_us for item in self.messages()), default=now_us)
            counted |= {"backlog_bytes": size, "oldest_unacked_seconds": (now_us - publish_us) / MICROSECONDS}
        worst = max((key.head_of_line_seconds for key in blocked), default=0)
        counted |= {"blocked_keys": len(blocked), "head_of_line_seconds": worst}
        said = {name: getattr(metrics, name) for name in counted}
        for counter in fields(Counters):
            if counter.name not in ("outdated", "redelivered"):
                counted[counter.name] = getattr(self.counters, counter.name)
                said[counter.name] = getattr(metrics.counters, counter.name)
        wrong = {name: (said[name], counted[name]) for name in counted if said[name] != counted[name]}
        assert not wrong, f"{self.name}: (said, true): {wrong}"
        # Whether a message counts that had a lease and did not fail is left open.
        redelivered = range(self.redelivered_after_failure, self.counters.redelivered + 1)
        assert metrics.counters.redelivered in redelivered, (
            f"{self.name}: redelivered {metrics.counters.redelivered}, not {redelivered}"
        )
        self._check_blocked(blocked, now_us)

    def _see_cleared(self, outdated: int, now_us: int) -> None:
        """Follow the broker in clearing away: any of the outdated at any time, but none for too long."""
        there = self.outdated(now_us)
        self.cleared = outdated - self.counters.outdated
        assert 0 <= self.cleared <= len(there), f"{self.name}: {self.cleared} cleared away, {len(there)} outdated"
        retention_us = as_us(self.options.message_retention_duration)
        overdue = [
            item
            for item in there
            if now_us > max(item.waiting_since_us, item.stored.stored_us + retention_us) + CLEARED_WITHIN_US
        ]
        assert self.cleared >= len(overdue), f"{self.name}: still there, long outdated: {overdue[0]}"
        if self.cleared == len(there):
            self.cleared = 0
            for item in there:
                self._clear(item)

    def _check_blocked(self, blocked: Sequence[BlockedKey], now_us: int) -> None:
        said = sorted((key.ordering_key, key.reason) for key in blocked if key.reason != "out")
        true = [(key, "parked" if key in self.parked else "backoff") for key in self.held_keys(now_us)]
        assert said == true, f"{self.name}: blocked keys, said {said}, true {true}"
        for key in blocked:
            if key.reason != "out":
                item = self.waits_for[key.ordering_key]
                failures = key.failures if item in self.outdated(now_us) else item.failures
                assert (key.position, key.failures) == (item.position, failures), (
                    f"{self.name}: {item} blocks, not {key}"
                )
        if not self.lags and not self.outdated(now_us):  # else what there is, only the broker knows
            self._check_waiting(blocked, now_us)

    def _check_waiting(self, blocked: Sequence[BlockedKey], now_us: int) -> None:
        """Keys are blocked also by what is out, if it is as much as may be; and what waits is told of each."""
        held, full = self.held_keys(now_us), {}
        for lane in self.lanes():
            out = [item for item in lane if item.lease]
            if self.key_of(lane[0]) not in ("", *held) and self.options.max_outstanding_per_key <= len(out) < len(lane):
                full[self.key_of(lane[0])] = out[0].position, out[0].failures
        said = {key.ordering_key: (key.position, key.failures) for key in blocked if key.reason == "out"}
        assert said == full, f"{self.name}: keys that wait for what is out, said {said}, true {full}"
        for key in blocked:
            lane = [item for item in self.items if self.key_of(item) == key.ordering_key]
            waiting = sum(not item.lease and not item.gap for item in lane)
            assert key.waiting == waiting, f"{self.name}: {waiting} wait, not {key}"
            [published_us] = [item.stored.publish_us for item in lane if item.position == key.position]
            age = (now_us - published_us) / MICROSECONDS
            assert 0 <= key.head_of_line_seconds <= key.age_seconds == age, f"{self.name}: {age} s old, not {key}"

    def _see_decided(self, blocked: Sequence[BlockedKey], now_us: int) -> None:
        """Follow the broker where a change of order leaves open how keys go on waiting."""
        said = {key.ordering_key: key.position for key in blocked if key.reason != "out"}
        for key in self.undecided.intersection(self.held_keys(now_us)):
            waits_for = self.waits_for[key]
            if key not in said and (waits_for.gap or waits_for in self.outdated(now_us)):
                self._go_on(key, now_us)
            for item in self.lane(waits_for):
                if item.position == said.get(key) and item.not_before_us > now_us:
                    self.waits_for[key] = item
        self.undecided.clear()

    def check_unacked(self, unacked: Unacked, now_us: int) -> None:
        """The broker knows all that is still to be acked; as how many records it tells of holes is up to it."""
        if self.lags or self.outdated(now_us):
            return
        of_key: dict[str, list[Item]] = {}
        for item in self.items:
            of_key.setdefault(item.stored.key, []).append(item)
        said = {key.ordering_key: (key.position, key.messages) for key in unacked.keys}
        true = {key: (items[0].position, len(items)) for key, items in of_key.items()}
        for key, items in of_key.items():
            if any(item.gap for item in items):
                said.pop(key, None)
                true.pop(key)
        assert said == true, f"{self.name}: to be acked, said {said}, true {true}"

    def check_drained(self, counters: Counters) -> None:
        """Nothing is left, and all that ever came went one of the ways there are."""
        left = [str(item) for item in self.messages()]
        assert not left, f"{self.name}: never delivered: {left}"
        gone = counters.acked + counters.dead_lettered + counters.outdated + counters.skipped + self.forgotten
        assert gone == self.accepted, f"{self.name}: {self.accepted} accepted, {gone} gone: {counters}"


def _check_same(stored: Stored, message: Message) -> None:
    """What was delivered is what was published."""
    assert message.publish_time is not None
    since_1970 = round(message.publish_time.timestamp() * MICROSECONDS)
    delivered = (message.ordering_key or "", message.data, dict(message.attributes), message.length, since_1970)
    published = (stored.key, stored.data, dict(stored.attributes), len(stored.data), stored.publish_us)
    assert delivered == published, f"published: {published}, delivered: {delivered}"


def as_us(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
