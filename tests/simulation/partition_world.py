"""Publishers, members and a resizer of a partitioned topic, on one thread, in an order that a seed decides.

Whoever calls the store or the broker may be interrupted there: by others, who take some of their steps, or by its own
end. A publisher's requests are on their way for a while, before and after they are stored, and outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from random import Random
from typing import Any

from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.consumers.partitions.gate import Gate
from inorder.consumers.partitions.membership import Membership
from inorder.consumers.partitions.resizing import Resizer, group_subscription
from inorder.consumers.partitions.router import ENTITY, Router
from inorder.consumers.partitions.table import Table
from inorder.consumers.sqlite_store import SqliteStore
from inorder.consumers.store import Connection as Transaction
from inorder.consumers.store import Trouble
from inorder.errors import InvalidAckId, KeyPaused, Unavailable
from inorder.message import Batch, Message
from inorder.metadata import TopicMetadata, Unacked
from inorder.options import SubscriptionOptions
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.history import History
from inorder.transport.embedded import EmbeddedTransport

NAME = "orders"
GROUPS = ("billing", "audit")
KEYS_EACH = 4
SESSION_SECONDS = 10
LEASE_SECONDS = 10
MAX_PARTITIONS = 6
OPTIONS = SubscriptionOptions(
    enable_message_ordering=True,
    ack_deadline_seconds=LEASE_SECONDS,
    on_poison="park_key",
    dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5},  # type: ignore[arg-type]
)


class Crash(KeyboardInterrupt):  # which nobody takes for an error of his own
    """The one who is at work is no more."""


class World:
    """What there is, and what may happen next. `bugs` replaces parts by others that are wrong."""

    def __init__(self, seed: int, *, strict: bool = False, **bugs: Any) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.broker = MessageQueue(clock=self.clock)
        self.store = SqliteStore(":memory:")
        self.bugs = bugs
        self.histories = {group: History(self.clock.now_us) for group in GROUPS}
        self.busy: set[Actor] = set()
        self.calm = True  # nothing fails, nobody is interrupted
        self.network: list[Callable[[], None]] = []
        self.happened: dict[str, int] = {}
        setup = Operator(self, "setup")
        setup.resizer.provide(setup.table.create(self.random.randint(1, 4), strict))
        for group in GROUPS:
            setup.resizer.provide(setup.table.change(lambda r, g=group: r.with_group(g, asdict(OPTIONS))))  # type: ignore[misc]
        self.publishers = [Publisher(self, f"publisher-{number}", number) for number in range(3)]
        self.members = [Member(self, f"{group}-{number}", group) for group in GROUPS for number in range(3)]
        self.operators = [Operator(self, f"operator-{number}") for number in range(2)]
        self.actors: list[Actor] = [*self.publishers, *self.members, *self.operators]
        self.calm = False

    def close(self) -> None:
        self.broker.close()
        self.store.close()

    # -- what happens ------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def chance(self, probability: float) -> bool:
        return not self.calm and self.random.random() < probability

    def between(self, actor: Actor) -> None:
        """Between two calls of somebody: others may do something, or he may be no more."""
        if self.chance(0.3) and len(self.busy) < 4:
            for _ in range(self.random.randint(1, 3)):
                self.step()
        if self.chance(
            0.02 if isinstance(actor, Operator) else 0.004
        ):  # whoever resizes has the most to leave half done
            self.note(f"crash of {type(actor).__name__.lower()}")
            raise Crash

    def step(self) -> None:
        """Something happens, to somebody who is not in the middle of something else."""
        what = self.random.random()
        if what < 0.3 and self.network:
            self.network.pop(self.random.randrange(len(self.network)))()
        elif what < 0.33:
            self.pass_time(self.random.choice([0.1, 0.5, 1, 2]))
        else:
            free = [actor for actor in self.actors if actor not in self.busy]
            if free:
                self.random.choice(free).act()

    def pass_time(self, seconds: float) -> None:
        for member in self.members:
            member.extend_leases()
        self.clock.advance(seconds)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.settle()

    def settle(self) -> None:
        """From now on nothing fails, until all that was published is done."""
        self.calm = True
        for _ in range(100):
            while self.network:
                self.network.pop(0)()
            for publisher in self.publishers:
                publisher.recover()
            self.pass_time(1)
            for member in self.members:
                member.work_off()
            if self.operators[0].advance() and not any(self.backlogs()) and not self.unanswered():
                return
        raise AssertionError(f"not settled: {self.operators[0].resizer.waits()}, {self.unanswered()}")

    def unanswered(self) -> list[str]:
        return [key for publisher in self.publishers for key in publisher.router.unanswered()]

    def backlogs(self) -> Iterator[int]:
        """What waits in partitions that have slots; in the others is nothing that counts."""
        for group in GROUPS:
            for partition in self.operators[0].table.load().live:
                yield self.broker.metrics(f"{NAME}-{partition}.{group}").backlog_messages


class Store:
    """The store, as one actor reaches it."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._world.between(self._actor)
        with self._world.store.transaction() as connection:
            yield connection
        self._world.between(self._actor)

    def trouble(self, error: BaseException) -> Trouble | None:
        return self._world.store.trouble(error)

    def close(self) -> None: ...


class Transport(EmbeddedTransport):
    """The broker, as one actor reaches it. Requests of publishers take their time; others are answered at once."""

    def __init__(self, world: World, actor: Actor) -> None:
        super().__init__(world.broker, owned=False)
        self._world = world
        self._actor = actor

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]:
        self._world.between(self._actor)
        return super().get_topic(name)

    def unacked(self, subscription: str) -> Pending[Unacked]:
        self._world.between(self._actor)
        return super().unacked(subscription)

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        if not isinstance(self._actor, Publisher):
            self._world.between(self._actor)
            return super().publish(topic, batch)
        answer: Pending[list[str]] = Pending()
        self._world.network.append(lambda: self._arrive(topic, batch, answer))
        return answer

    def _arrive(self, topic: str, batch: Batch, answer: Pending[list[str]]) -> None:
        if self._world.chance(0.02):
            self._world.note("request lost")
            self._answer(answer, Unavailable("the request was lost"))
            return
        stored = super().publish(topic, batch)
        if self._world.chance(0.02):
            self._world.note("answer lost")
            self._answer(answer, Unavailable("the answer was lost"))
            return
        self._world.network.append(lambda: self._answer(answer, stored.exception() or stored.result()))

    def _answer(self, answer: Pending[list[str]], outcome: Any) -> None:
        """The answer is worked on by the actor: while he is in the middle of something, it waits."""
        actor = self._actor
        if actor.transport is not self:
            return  # who has sent the request is no more
        if actor in self._world.busy:
            self._world.network.append(lambda: self._answer(answer, outcome))
            return
        failed = isinstance(outcome, Exception)
        actor.do(lambda: answer.set_exception(outcome) if failed else answer.set_result(outcome))


class Actor:
    """Somebody with a connection and a store of his own."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random
        self.start()

    def start(self) -> None:
        """Begin, for the first time or after a crash."""
        self.pubsub = PubSub(self.world.broker)
        self.transport = Transport(self.world, self)
        self.pubsub._connection = Connection(self.transport)
        self.store = Store(self.world, self)
        table = self.world.bugs.get("publisher's table", Table) if isinstance(self, Publisher) else Table
        self.table: Table = table(self.pubsub, self.store, NAME)
        self.resizer: Resizer = self.world.bugs.get("resizer", Resizer)(self.pubsub, self.table)

    def do(self, what: Callable[[], object]) -> None:
        self.world.busy.add(self)
        try:
            what()
        except Crash:
            self.crashed()
        finally:
            self.world.busy.discard(self)

    def crashed(self) -> None:
        calm, self.world.calm = self.world.calm, True
        self.start()
        self.world.calm = calm

    def act(self) -> None:
        raise NotImplementedError


class Operator(Actor):
    """Resizes, changes his mind, and sees to it that it is done."""

    def act(self) -> None:
        what = self.random.random()
        if what < 0.06:
            self.world.note("resize")
            self.do(lambda: self.resizer.plan(self.random.randint(1, MAX_PARTITIONS)))
        elif what < 0.08:
            self.world.note("cancel")
            self.do(self.resizer.cancel)
        else:
            self.do(self.resizer.advance)

    def advance(self) -> bool:
        return self.resizer.advance()


class Publisher(Actor):
    """Has keys of its own, so that their order is known."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.keys = [f"{number}/{key}" for key in range(KEYS_EACH)]
        self.values = 0
        super().__init__(world, name)

    def start(self) -> None:
        super().start()
        self.router = Router(self.pubsub, self.table)
        self.unanswered: dict[str, list[tuple[str, Pending[str]]]] = {}

    def act(self) -> None:
        if self.random.random() < 0.4:
            self.do(self.router.tend)
        else:
            self.do(lambda: self.publish(self.random.randint(1, 3)))

    def publish(self, count: int) -> None:
        batch = [(self.random.choice(self.keys), self._value()) for _ in range(count)]
        for history in self.world.histories.values():
            for key, value in batch:
                history.publishing(key, value)
        messages = [Message(value.encode(), ordering_key=key) for key, value in batch]
        try:
            answers = self.router.publish(messages)
        except KeyPaused:
            for key in self.router.paused_keys():
                self.router.resume(key)
            return
        for (key, value), answer in zip(batch, answers, strict=True):
            self.unanswered.setdefault(key, []).append((value, answer))
            answer.add_done_callback(lambda _, key=key: self._answered(key))  # type: ignore[misc]

    def _value(self) -> str:
        self.values += 1
        return str(self.values)

    def _answered(self, key: str) -> None:
        """Record answers in the order of the calls, which is what is promised: answers may come in another one."""
        unanswered = self.unanswered[key]
        while unanswered and unanswered[0][1].done():
            value, answer = unanswered.pop(0)
            if answer.exception() is None:
                for history in self.world.histories.values():
                    history.published(key, value)

    def recover(self) -> None:
        for key in self.router.paused_keys():
            self.router.resume(key)
        self.router.tend()


class Member(Actor):
    """Has partitions while it is alive, and handles what it pulls from them."""

    def __init__(self, world: World, name: str, group: str) -> None:
        self.group = group
        self.history = world.histories[group]
        self.lives = 0
        super().__init__(world, name)

    def start(self) -> None:
        super().start()
        self.lives += 1
        self.name = f"{self.name.partition('.')[0]}.{self.lives}"
        self.membership = Membership(self.store, self.table, self.group, self.name, self.world.clock, SESSION_SECONDS)
        self.gate: Gate = self.world.bugs.get("gate", Gate)(self.table, self.resizer)
        self.keeps: frozenset[int] = frozenset()
        self.running: list[tuple[Message, tuple[str, str, str]]] = []

    def act(self) -> None:
        what = self.random.random()
        if what < 0.15:
            self.do(self.beat)
        elif what < 0.2:
            self.do(self.resizer.advance)
        elif what < 0.6 and self.keeps:
            self.do(self.pull)
        elif self.running:
            self.do(self.finish)

    def beat(self) -> None:
        place = self.membership.beat()
        lost = self.keeps - place.keeps
        self.keeps = frozenset()  # nothing new while it stops
        if lost or place.to_give:
            while self.running:
                self.finish()
            self.membership.give(place.to_give)
            self.world.note("partition given")
        self.keeps = place.keeps

    def pull(self) -> None:
        partition = self.random.choice(sorted(self.keeps))
        subscription = self.subscription(partition)
        if subscription is None:
            return
        for message in subscription.pull(self.random.randint(1, 3)).result():
            self.take(message)

    def subscription(self, partition: int) -> Subscription | None:
        """What to pull from; None if the partition was planned, and is not any more."""
        subscription = group_subscription(self.pubsub, NAME, self.group, partition)
        if not subscription.exists().result():
            self.resizer.provide(self.table.load())
        return subscription if subscription.exists().result() else None

    def take(self, message: Message) -> None:
        if not self.gate.counts(message):
            self.world.note("void")
            self._quietly(lambda: message.ack().result())
            return
        # Between delivery and now the lease may have ended: only who still has it may begin.
        if not self._quietly(lambda: message.modify_ack_deadline(LEASE_SECONDS).result()):
            return
        run = (message.attributes.get(ENTITY) or message.ordering_key or "", message.data.decode(), self.name)
        self.history.started(*run)
        self.running.append((message, run))

    def finish(self) -> None:
        message, run = self.running.pop(self.random.randrange(len(self.running)))
        if self.world.chance(0.15):
            self.history.failed(*run)
            self._quietly(lambda: message.nack().result())
            return
        self.history.acking(*run)
        if self._quietly(lambda: message.ack().result()):
            self.history.acked(*run)

    def extend_leases(self) -> None:
        for message, _ in self.running:
            self._quietly(lambda message=message: message.modify_ack_deadline(LEASE_SECONDS).result())  # type: ignore[misc]

    def work_off(self) -> None:
        """In peace: beat, and handle all there is."""
        self.beat()
        while self.running:
            self.finish()
        for blocked in self.world.broker.get_all_subscriptions():
            for key in self.world.broker.blocked_keys(blocked.name):
                if key.reason == "parked":
                    self.world.broker.resume_key(blocked.name, key.ordering_key)
        for partition in sorted(self.keeps):
            subscription = self.subscription(partition)
            while subscription is not None and (messages := subscription.pull(10).result()):
                for message in messages:
                    self.take(message)
                while self.running:
                    self.finish()

    def _quietly(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except InvalidAckId:  # the lease is over
            return False
        return True
