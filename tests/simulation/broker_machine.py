"""A broker and its model, driven side by side through orders of events that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from inorder.broker import MessageQueue
from inorder.clock import MICROSECONDS
from inorder.core.producers import Attempt
from inorder.errors import InorderError, InvalidAckId, InvalidArgument, OutOfSequence, ProducerFenced
from inorder.message import Message, batch_of
from inorder.options import (
    DAY_SECONDS,
    DeadLetterPolicy,
    FlowControl,
    QueueLimits,
    RetryPolicy,
    SubscriptionOptions,
    TopicOptions,
    merge,
)
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.model import BrokerModel
from inorder.testing.subscription_model import Matches

TOPIC = "orders"
# Each subscription has a dead-letter topic of its own: then it is certain in which order letters arrive there.
TOPIC_OF = {"one": TOPIC, "two": TOPIC, "three": TOPIC, "letters": "dead-one"}
DEAD_TOPICS = ("dead-one", "dead-two", "dead-three")
KEYS = ("a", "b", "c")
SNAPSHOTS = ("before", "after")
RETENTION_SECONDS = 40
FILTERS: Mapping[str, Matches] = {
    "": lambda attributes: True,
    'attributes.kind = "x"': lambda attributes: attributes.get("kind") == "x",
    "NOT attributes:kind": lambda attributes: "kind" not in attributes,
}
Batches = MultipleResults[list[Message]]
INVALID = (
    Message(b"", ordering_key=""),
    Message(b"", ordering_key="k" * 1025),
    Message(b"", attributes={"": "x"}),
    Message(b"", attributes={"googclient_x": "x"}),
    Message(b"", attributes={"kind": "x" * 1025}),
)

keys = st.sampled_from([None, *KEYS, "a"])
drafts = st.tuples(keys, st.sampled_from([0, 10, 30, 90]), st.sampled_from(["", "", "x", "y"]))
parts = st.sets(st.integers(0, 5), max_size=3)
which = st.integers(0, 11)  # one of those there are
seldom = st.sampled_from([False] * 3 + [True])


def often_none(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.none(), strategy)


choices: dict[str, st.SearchStrategy[Any]] = {
    "enable_message_ordering": st.sampled_from([True, True, True, False]),
    "max_outstanding_per_key": st.sampled_from([1, 1, 2, 3]),
    "ack_deadline_seconds": st.sampled_from([10, 10.5, 1, 60]),
    "retry_policy": st.sampled_from([None, None, (1, 4), (5, 20), (0, 2)]),
    "dead_letter_policy": st.sampled_from([None, 1, 2, 3]),  # attempts
    "flow_control": often_none(st.tuples(st.integers(1, 4), st.sampled_from([40, 100, 1_000_000]))),
    "on_poison": st.sampled_from(["dead_letter", "park_key", "park_key", "block"]),
}
options = st.fixed_dictionaries(
    choices
    | {
        "queue_limits": often_none(
            st.tuples(st.integers(2, 6), st.sampled_from([1_000_000, 100]), st.sampled_from(["drop", "drop", "full"]))
        ),
        "message_retention_duration": st.sampled_from([None, None, None, RETENTION_SECONDS]),
        "retain_acked_messages": seldom,
        "filter": st.sampled_from(["", "", "", *FILTERS]),
    }
)
changes = st.one_of(*(st.fixed_dictionaries({name: choice}) for name, choice in choices.items()))
# Rules that undo much have their turn only now and then, so that there is something to undo.
now_and_then = precondition(lambda machine: machine.steps % 4 == 3)
STEPS = (
    "instant",
    "second",
    "minute",
    "before deadline",
    "to deadline",
    "past deadline",
    "to retry",
    "to retry",
    "week",
)
ENDINGS = ("all is acked", "all is acked", "leases run out", "topics are deleted")


class Consumer:
    """One of several consumers of a subscription, to whom its messages answer."""

    def __init__(self, broker: MessageQueue, subscription: str) -> None:
        self.id_prefix, self.ack_id_prefix = broker.prefixes(subscription)
        self._broker = broker

    def ack(self, message: Message, answer: Pending[None]) -> None:
        answer._settle_by(lambda: self._broker.ack(f"{self.ack_id_prefix}{message._lease}"))

    def nack(self, message: Message, answer: Pending[None]) -> None:
        answer._settle_by(lambda: self._broker.nack(f"{self.ack_id_prefix}{message._lease}"))

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        return Pending.run(lambda: self._broker.modify_ack_deadline(f"{self.ack_id_prefix}{lease}", seconds))


class BrokerMachine(RuleBasedStateMachine):
    """Every rule does the same to the broker and to the model, which says whether the broker did right."""

    deliveries = Bundle("deliveries")  # batches as they were pulled, without what was answered since

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.broker = self.make_broker()
        self.model = BrokerModel(self.clock.now_us())
        self.consumers: dict[str, tuple[Consumer | None, ...]] = {}
        self.idle: set[tuple[str, Consumer | None]] = set()  # who found nothing more, and waits to be woken
        self.steps = 0
        self.published = 0
        self.named: list[str] = []  # ack ids that were used before; few of them are still valid
        self.when_full = "error"
        self.sound = True  # nothing went wrong so far, so the end is worth looking at
        self.ending = ENDINGS[0]
        self.epoch = 0  # of a producer that numbers its attempts
        self.attempts: list[tuple[list[Message], list[str]]] = []  # those that were stored

    def make_broker(self) -> MessageQueue:
        return MessageQueue(clock=self.clock)

    def both(self, ask: Callable[[], Any], tell: Callable[[], Any]) -> Any:
        """Do one thing on both sides: either both accept it, or both refuse it with the same error."""
        self.sound = False
        reply, said = outcome(ask)
        _, true = outcome(tell)
        assert type(said) is type(true), f"refused with {said!r}, should be {true!r}"
        return reply

    def name(self, which: int) -> str:
        """One of the subscriptions, if there are any."""
        names = sorted(self.model.subscriptions) or ["one"]
        return names[which % len(names)]

    # -- topics and subscriptions ------------------------------------------------------------------

    @initialize(
        when_full=st.sampled_from(["error", "block"]),
        retained=seldom,
        dead_topics=st.sets(st.sampled_from(DEAD_TOPICS)),
        given=st.lists(st.tuples(options, st.booleans()), min_size=1, max_size=3),
        letters=st.tuples(options, st.booleans()),
        batch=st.lists(drafts, max_size=5),
        ending=st.sampled_from(ENDINGS),
    )
    def begin(
        self,
        when_full: str,
        retained: bool,
        dead_topics: set[str],
        given: list[tuple[dict[str, Any], bool]],
        letters: tuple[dict[str, Any], bool],
        batch: list[tuple[str | None, int, str]],
        ending: str,
    ) -> None:
        self.when_full = when_full
        self.ending = ending
        self.register_subscription("one", {}, False)  # refused: there is no topic
        self.register_topic(TOPIC, retained)
        for topic in sorted(dead_topics):
            self.register_topic(topic, False)
        for name, (chosen, sees_gaps) in zip(["one", "two", "three"], given, strict=False):
            self.register_subscription(name, chosen, sees_gaps)
        self.register_subscription("letters", *letters)
        self.publish(batch, TOPIC)

    def register_topic(self, name: str, retained: bool) -> None:
        seconds = 7 * DAY_SECONDS if retained else None
        self.both(
            lambda: self.broker.register_topic(name, TopicOptions(message_retention_duration=seconds)),
            lambda: self.model.register_topic(name, seconds or 0),
        )

    def register_subscription(self, name: str, chosen: Mapping[str, Any], sees_gaps: bool) -> None:
        asked = SubscriptionOptions(**self.legal(name, chosen))
        new = name not in self.model.subscriptions
        self.both(
            lambda: self.broker.register_subscription(name, TOPIC_OF[name], asked),
            lambda: self.model.register_subscription(name, TOPIC_OF[name], asked, FILTERS[asked.filter], sees_gaps),
        )
        if new and name in self.model.subscriptions:
            self.consume(name)

    def consume(self, name: str) -> None:
        """Several consumers come, and somebody wakes them."""
        self.consumers[name] = (None, Consumer(self.broker, name), Consumer(self.broker, name))
        self.broker.watch(name, lambda: self.wake(name), lambda problem: None)

    def wake(self, name: str) -> None:
        """Nobody is idle any more who waits for this subscription."""
        self.idle = {(idle, consumer) for idle, consumer in self.idle if idle != name}

    def legal(self, name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Options as chosen, where they go together and leave the model no doubt."""
        legal = {option: value for option, value in chosen.items() if value is not None or option in choices}
        if legal.get("retry_policy"):
            legal["retry_policy"] = RetryPolicy(*legal["retry_policy"])
        if legal.get("dead_letter_policy"):
            policy = DeadLetterPolicy(f"dead-{name}", legal["dead_letter_policy"])
            legal["dead_letter_policy"] = policy if name != "letters" else None
        if legal.get("flow_control"):
            legal["flow_control"] = FlowControl(*legal["flow_control"])
        if "queue_limits" in legal:
            legal.pop("message_retention_duration", None)  # when outdated messages make room is not known
            messages, size, when_full = legal["queue_limits"]
            full: Any = self.when_full if when_full == "full" else "drop"
            legal["queue_limits"] = QueueLimits(messages, size, full)
        if "message_retention_duration" in legal:
            legal.pop("retain_acked_messages", None)  # so that a topic keeps messages for a week or not at all
        if legal.get("on_poison") == "park_key":
            legal["enable_message_ordering"] = True
        if legal.get("enable_message_ordering") is False:
            legal["max_outstanding_per_key"] = 1
        return legal

    @now_and_then
    @rule(name=st.sampled_from([TOPIC, *DEAD_TOPICS]), retained=st.booleans(), sure=seldom)
    def make_or_delete_topic(self, name: str, retained: bool, sure: bool) -> None:
        if sure or name != TOPIC or name not in self.model.topics:
            if name in self.model.topics:
                self.delete_topic(name)
            else:
                self.register_topic(name, retained)

    def delete_topic(self, name: str) -> None:
        self.both(lambda: self.broker.unregister_topic(name), lambda: self.model.unregister_topic(name))
        if name == TOPIC:
            self.epoch, self.attempts = 0, []

    @now_and_then
    @rule(name=st.sampled_from(sorted(TOPIC_OF)), chosen=options, sees_gaps=st.booleans(), sure=seldom)
    def make_subscription(self, name: str, chosen: dict[str, Any], sees_gaps: bool, sure: bool) -> None:
        if sure or (name in self.model.subscriptions and self.model.subscriptions[name].detached):
            self.both(
                lambda: self.broker.unregister_subscription(name), lambda: self.model.unregister_subscription(name)
            )
            self.wake(name)  # whoever waited there has nothing to wait for
        self.register_subscription(name, chosen, sees_gaps)

    @rule(which=which, chosen=changes)
    def update_subscription(self, which: int, chosen: dict[str, Any]) -> None:
        name = self.name(which)
        changed = self.legal(name, chosen)
        if "enable_message_ordering" in changed and self.some_are_outdated(name):
            return  # those that the broker has cleared away left holes or not, and it cannot be known which
        self.both(
            lambda: self.broker.update_subscription(name, changed),
            lambda: self.model.update_subscription(name, merge(self.model.subscription(name).options, changed)),
        )

    # -- messages ----------------------------------------------------------------------------------

    def draft(self, key: str | None, padding: int, kind: str) -> Message:
        self.published += 1
        data = f"{self.published}".encode().ljust(padding, b".")
        return Message(data, {"kind": kind} if kind else None, key)

    @rule(batch=st.lists(drafts, min_size=1, max_size=5), topic=st.sampled_from([TOPIC] * 4 + ["dead-one"]))
    def publish(self, batch: list[tuple[str | None, int, str]], topic: str) -> None:
        self.sound = False
        messages = [self.draft(*draft) for draft in batch]
        answer, error = outcome(lambda: self.broker.submit(topic, batch_of(messages)))
        self.model.publish(topic, messages, Pending.failed(error) if error else answer)

    @now_and_then
    @precondition(lambda self: self.when_full != "block")  # else an attempt may wait, and what it comes to is not known
    @rule(batch=st.lists(drafts, min_size=1, max_size=3))
    def attempt(self, batch: list[tuple[str | None, int, str]]) -> None:
        self.sound = False
        messages = [self.draft(*draft) for draft in batch]
        attempt = Attempt("producer", self.epoch, len(self.attempts))
        answer, error = outcome(lambda: self.broker.submit(TOPIC, batch_of(messages), attempt))
        self.model.publish(TOPIC, messages, Pending.failed(error) if error else answer)
        if error is None and answer.exception() is None:
            self.attempts.append((messages, answer.result()))

    @now_and_then
    @precondition(lambda self: self.attempts)
    @rule(back=st.integers(1, 5))
    def repeat_an_attempt(self, back: int) -> None:
        number = max(len(self.attempts) - back, 0)
        messages, ids = self.attempts[number]
        attempt = Attempt("producer", self.epoch, number)
        assert self.broker.submit(TOPIC, batch_of(messages), attempt).result() == ids

    @now_and_then
    @precondition(lambda self: self.attempts)
    @rule(ahead=st.integers(0, 1), before=st.booleans())
    def attempt_what_is_not_next(self, ahead: int, before: bool) -> None:
        before = before and self.epoch > 0
        attempt = Attempt("producer", self.epoch - before, len(self.attempts) + ahead + (not before))
        batch = batch_of([Message(b"refused")])
        _, error = outcome(lambda: self.broker.submit(TOPIC, batch, attempt).result())
        assert isinstance(error, ProducerFenced if before else OutOfSequence), f"an attempt was accepted: {error!r}"

    @now_and_then
    @precondition(lambda self: TOPIC in self.model.topics)
    @rule()
    def open_producer(self) -> None:
        epoch = self.broker.open_producer(TOPIC, "producer")
        assert epoch > self.epoch
        self.epoch, self.attempts = epoch, []

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def publish_to_one_key(self, key: str, count: int) -> None:
        self.publish([(key, 10, "")] * count, TOPIC)

    @now_and_then
    @precondition(lambda self: self.when_full != "block")  # if it were accepted, it might wait for ever
    @rule(draft=drafts, invalid=st.sampled_from(INVALID), first=st.booleans())
    def publish_with_an_invalid_message(
        self, draft: tuple[str | None, int, str], invalid: Message, first: bool
    ) -> None:
        self.sound = False
        messages = [invalid, self.draft(*draft)] if first else [self.draft(*draft), invalid]
        _, error = outcome(lambda: self.broker.publish(TOPIC, messages))
        assert isinstance(error, InvalidArgument), f"a batch with an invalid message was accepted: {error!r}"

    @rule(target=deliveries, which=which, count=st.integers(1, 6), consumer=st.integers(0, 2))
    def pull(self, which: int, count: int, consumer: int) -> Batches:
        pulled = self.pull_from(self.name(which), count, consumer)
        return multiple(pulled) if pulled else multiple()

    @rule(target=deliveries, count=st.integers(1, 6), consumer=st.integers(0, 2))
    def pull_from_all(self, count: int, consumer: int) -> Batches:
        return multiple(*filter(None, [self.pull_from(name, count, consumer) for name in self.model.subscriptions]))

    @rule(which=which, times=st.integers(1, 3), count=st.integers(1, 3))
    def fail_repeatedly(self, which: int, times: int, count: int) -> None:
        for _ in range(times):
            self.nack_all([message.ack_id for message in self.pull_from(self.name(which), count)])

    @rule(
        target=deliveries,
        which=which,
        count=st.integers(1, 6),
        consumer=st.integers(0, 2),
        good=st.integers(0, 3),
        bad=st.integers(0, 2),
    )
    def work(self, which: int, count: int, consumer: int, good: int, bad: int) -> Batches:
        """Pull, ack some, nack some, and keep the rest."""
        pulled = self.pull_from(self.name(which), count, consumer)
        ack_ids = [message.ack_id for message in pulled]
        self.ack_all(ack_ids[:good])
        self.nack_all(ack_ids[good : good + bad])
        rest = pulled[good + bad :]
        return multiple(rest) if rest else multiple()

    def pull_from(self, name: str, count: int, consumer: int = 0) -> list[Message]:
        if name in self.model.subscriptions and self.model.subscriptions[name].sees_gaps:
            self.sound = False
            source = self.consumers[name][consumer]
            pulled = self.broker.take(name, count, source)
        else:
            source = None
            pulled = self.both(lambda: self.broker.pull(name, count), lambda: self.model.subscription(name))
        if pulled is not None:
            self.model.check_pull(name, pulled, count, source)
            if len(pulled) < count:
                self.idle.add((name, source))
        return pulled or []

    @rule(target=deliveries, batch=consumes(deliveries), some=parts)
    def ack(self, batch: list[Message], some: set[int]) -> Batches:
        ack_ids, rest = self.part(batch, some)
        self.ack_all(ack_ids)
        return rest

    @rule(target=deliveries, batch=consumes(deliveries), some=parts)
    def nack(self, batch: list[Message], some: set[int]) -> Batches:
        ack_ids, rest = self.part(batch, some)
        self.nack_all(ack_ids)
        return rest

    @rule(batch=deliveries, some=parts, seconds=st.sampled_from([0, 1, 5, 30]))
    def modify_ack_deadline(self, batch: list[Message], some: set[int], seconds: float) -> None:
        ack_ids, _ = self.part(batch, some)
        self.answer(
            lambda: self.broker.modify_ack_deadline(ack_ids, seconds),
            lambda: self.model.modify_ack_deadline(seconds, *ack_ids),
        )

    @now_and_then
    @rule(which=which, consumer=st.integers(0, 2))
    def consumer_leaves(self, which: int, consumer: int) -> None:
        """All that one consumer holds is given back without blame."""
        name = self.name(which)
        if name in self.model.subscriptions:
            self.sound = False
            source = self.consumers[name][consumer]
            held = [item.lease for item in self.model.subscriptions[name].out() if item.lease]
            ack_ids = [lease.ack_id for lease in held if lease.consumer is source]
            self.broker.release(name, [int(ack_id.rpartition("-")[2]) for ack_id in ack_ids], source)
            self.model.release(*ack_ids)

    @rule(target=deliveries, batch=consumes(deliveries), verb=st.sampled_from(["ack", "nack"]))
    def message_answers_itself(self, batch: list[Message], verb: str) -> Batches:
        self.sound = False
        message, *rest = batch
        error = getattr(message, verb)().exception()
        invalid = getattr(self.model, verb)(message.ack_id)
        assert (error is not None) == bool(invalid), f"{verb} of {message} ended in {error!r}, invalid: {invalid}"
        self.named.append(message.ack_id)
        return multiple(rest) if rest else multiple()

    @precondition(lambda self: self.named and self.steps % 3 == 2)
    @rule(which=st.integers(0, 100), verb=st.sampled_from(["ack", "nack"]))
    def answer_again(self, which: int, verb: str) -> None:
        ack_id = self.named[which % len(self.named)]
        self.answer(lambda: getattr(self.broker, verb)(ack_id), lambda: getattr(self.model, verb)(ack_id))

    def part(self, batch: list[Message], some: set[int]) -> tuple[list[str], Batches]:
        """The ack ids of some of a batch, or of all, and a batch of the others."""
        chosen = [message for index, message in enumerate(batch) if index in some] or batch
        rest = [message for message in batch if message not in chosen]
        self.named += [message.ack_id for message in chosen]
        return [message.ack_id for message in chosen], multiple(rest) if rest else multiple()

    def ack_all(self, ack_ids: list[str]) -> None:
        self.answer(lambda: self.broker.ack(ack_ids), lambda: self.model.ack(*ack_ids))

    def nack_all(self, ack_ids: list[str]) -> None:
        self.answer(lambda: self.broker.nack(ack_ids), lambda: self.model.nack(*ack_ids))

    def answer(self, ask: Callable[[], None], tell: Callable[[], list[str]]) -> None:
        self.sound = False
        _, error = outcome(ask)
        invalid = tell()
        refused = list(error.ack_ids) if isinstance(error, InvalidAckId) else []
        assert sorted(refused) == sorted(invalid), f"{error!r}, but invalid is {invalid}"

    # -- keys, replay and time ---------------------------------------------------------------------

    @precondition(lambda self: self.held() or self.steps % 4 == 3)
    @rule(which=which, verb=st.sampled_from(["resume_key", "skip"]), of=st.integers(0, 5))
    def resume_or_skip(self, which: int, verb: str, of: int) -> None:
        held, now_us = self.held(), self.model.now_us
        name, key = held[of % len(held)] if held else (self.name(which), KEYS[of % len(KEYS)])
        if held and self.model.subscriptions[name].waits_for[key] in self.model.subscriptions[name].outdated(now_us):
            return  # it cannot be known whether the broker has cleared it away
        given_up: list[Any] = []
        reply = self.both(
            lambda: getattr(self.broker, verb)(name, key),
            lambda: given_up.append(getattr(self.model, verb)(name, key)),
        )
        if verb == "skip" and given_up:
            assert given_up[0].id in ("", reply), f"{reply} was skipped, should be {given_up[0].id}"

    def held(self) -> list[tuple[str, str]]:
        """Subscriptions and their keys that are parked or wait for a retry."""
        return [
            (name, key)
            for name, subscription in self.model.subscriptions.items()
            for key in subscription.held_keys(self.model.now_us)
        ]

    @now_and_then
    @rule(which=which, back=st.integers(-1, 8))
    def seek_position(self, which: int, back: int) -> None:
        name = self.name(which)
        subscription = self.model.subscriptions.get(name)
        end = 0 if subscription is None or subscription.detached else self.model.topics[TOPIC_OF[name]].next_position
        position = end - back
        if self.replay_is_certain(name, position):
            self.both(
                lambda: self.broker.seek(name, position=position), lambda: self.model.seek(name, position=position)
            )

    @now_and_then
    @rule(which=which, seconds=st.sampled_from([0, 1, 10, 50, -1]))
    def seek_time(self, which: int, seconds: int) -> None:
        name = self.name(which)
        if TOPIC_OF[name] == TOPIC and self.replay_is_certain(name, -1):
            time = self.clock.now_us() // MICROSECONDS - seconds
            self.both(
                lambda: self.broker.seek(name, time=time),
                lambda: self.model.seek(name, time_us=time * MICROSECONDS),
            )

    @now_and_then
    @rule(which=which, snapshot=st.sampled_from(SNAPSHOTS))
    def make_snapshot(self, which: int, snapshot: str) -> None:
        name = self.name(which)
        if not self.some_are_outdated(name):
            self.both(
                lambda: self.broker.create_snapshot(snapshot, name),
                lambda: self.model.create_snapshot(snapshot, name),
            )

    @now_and_then
    @rule(snapshot=st.sampled_from(SNAPSHOTS))
    def delete_snapshot(self, snapshot: str) -> None:
        self.both(lambda: self.broker.delete_snapshot(snapshot), lambda: self.model.delete_snapshot(snapshot))

    @rule(which=which, snapshot=st.sampled_from(SNAPSHOTS))
    def seek_snapshot(self, which: int, snapshot: str) -> None:
        name = self.name(which)
        if not self.some_are_outdated(name):
            self.both(
                lambda: self.broker.seek(name, snapshot=snapshot), lambda: self.model.seek_snapshot(name, snapshot)
            )

    def some_are_outdated(self, name: str) -> bool:
        return name in self.model.subscriptions and bool(self.model.subscriptions[name].outdated(self.model.now_us))

    def replay_is_certain(self, name: str, position: int) -> bool:
        """Not while it cannot be known which holes and outdated messages the broker has cleared away.

        A broker that lags may also go back to messages that it has not read and would not want."""
        subscription = self.model.subscriptions.get(name)
        if subscription is None or subscription.detached:
            return True
        unread = subscription.lags and subscription.options.filter and position >= 0
        if unread and not any(item.position <= position for item in subscription.items):
            return False
        if self.some_are_outdated(name):
            return False
        return not any(item.gap and item.position <= position for item in subscription.items)

    @rule(step=st.sampled_from(STEPS), which=which)
    def advance(self, step: str, which: int) -> None:
        self.sound = False
        now_us = self.model.now_us
        deadlines = self.model.deadlines_us() or [now_us + 1000]
        retries = self.retries_us() or [now_us + 1000]
        deadline_us = deadlines[which % len(deadlines)]
        until_us = {
            "instant": now_us + 1000,
            "second": now_us + MICROSECONDS,
            "minute": now_us + 61 * MICROSECONDS,
            "before deadline": deadline_us - 1000,
            "to deadline": deadline_us,
            "past deadline": deadline_us + 1000,
            "to retry": sorted(retries)[which % len(retries)],
            # Publishers that wait would come in while outdated messages are cleared away, when is not known.
            "week": now_us + (8 * DAY_SECONDS if not self.model.waiting and which % 4 == 0 else 1) * MICROSECONDS,
        }[step]
        self.wait(until_us - now_us)

    def retries_us(self) -> list[int]:
        """When the backoffs are over that are not yet."""
        return [
            item.not_before_us
            for subscription in self.model.subscriptions.values()
            for item in subscription.items
            if item.not_before_us > self.model.now_us
        ]

    def wait(self, wait_us: int) -> None:
        self.clock.advance(wait_us / MICROSECONDS)
        self.model.advance(self.model.now_us + wait_us)
        assert self.clock.now_us() == self.model.now_us

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def broker_and_model_agree(self) -> None:
        for name, subscription in self.model.subscriptions.items():
            metrics, blocked = self.broker.metrics(name), self.broker.blocked_keys(name)
            subscription.check_metrics(metrics, blocked, self.model.now_us)
            subscription.check_unacked(self.broker.unacked(name), self.model.now_us)
            metadata = self.broker.get_subscription(name)
            assert metadata is not None
            assert (metadata.topic, metadata.detached) == (subscription.topic, subscription.detached)
        for name, topic in self.model.topics.items():
            told = self.broker.get_topic(name)
            assert told is not None
            assert told.published == topic.next_position
        assert {told.name for told in self.broker.get_all_topics()} == set(self.model.topics)
        assert {told.name for told in self.broker.get_all_subscriptions()} == set(self.model.subscriptions)
        for name, consumer in self.idle:
            missed = self.model.subscriptions[name].must_give(self.model.now_us, consumer)
            assert missed is None, f"{name}: nobody was woken for {missed}"
        self.model.check_waiting()
        self.steps += 1
        self.sound = True

    def teardown(self) -> None:
        if self.sound:
            self.end()
            self.drain()

    def end(self) -> None:
        """What undoes much: here there is much to undo, and no history that it would cut short."""
        if self.ending == "leases run out":
            for deadline_us in sorted(self.model.deadlines_us()):
                self.wait(max(deadline_us - self.model.now_us, 0))
                self.broker_and_model_agree()
        elif self.ending == "topics are deleted":
            for name in sorted(self.model.topics):
                self.delete_topic(name)
                self.broker_and_model_agree()

    def drain(self) -> None:
        """Answer everything until nothing is left: all that was accepted came, or went in one of the ways there are."""
        for _ in range(100):
            if not any(subscription.messages() for subscription in self.model.subscriptions.values()):
                break
            for name in self.model.subscriptions:
                self.drain_now(name)
            self.wait(min([10 * MICROSECONDS, *(until_us - self.model.now_us for until_us in self.retries_us())]))
            self.broker_and_model_agree()
        assert not self.model.waiting, "publishers wait, and every queue is empty"
        for name, subscription in self.model.subscriptions.items():
            subscription.check_drained(self.broker.metrics(name).counters)

    def drain_now(self, name: str) -> None:
        subscription = self.model.subscriptions[name]
        for key in sorted(subscription.parked):  # those that wait for a retry go on by themselves, and in time
            self.resume(name, key)
        self.ack_all([item.lease.ack_id for item in subscription.out() if item.lease])
        while pulled := self.pull_from(name, 100):
            self.ack_all([message.ack_id for message in pulled])

    def resume(self, name: str, key: str) -> None:
        self.both(lambda: self.broker.resume_key(name, key), lambda: self.model.resume_key(name, key))


def outcome(call: Callable[[], Any]) -> tuple[Any, InorderError | None]:
    """What a call returned, or what it was refused with."""
    try:
        return call(), None
    except InorderError as error:
        return None, error
