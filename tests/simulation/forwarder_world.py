"""Two brokers, a forwarder that dies, a target that fails, publishers and a consumer, all in one thread and one seed.

The forwarder reaches both brokers by wires on which every call can go wrong: the process dies before the call or
after it, or the answer is an error, before or after the effect. A dead process answers nothing and extends no lease.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inorder import PubSub, RetryPolicy
from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.consumers import Forwarder, MovingTopic, forwarding_subscription
from inorder.errors import InorderError, InvalidMessage, Unavailable
from inorder.message import Batch, Source
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.history import History
from inorder.transport.embedded import EmbeddedTransport

ACK_DEADLINE = 10
REFUSED = b"refused"  # data that the target does not take


class Died(KeyboardInterrupt):  # which nobody takes for an error of his own
    """The process of the forwarder is no more."""


class Process:
    """One life of the forwarder: counts its calls, and dies at the one it is told to."""

    def __init__(self, dies_at: int | None = None, fails: Callable[[], str] = lambda: "") -> None:
        self.calls = 0
        self.dead = False
        self.stalled = False  # not dead, but it extends no lease
        self._dies_at = dies_at  # even: before a call; odd: after it
        self._fails = fails

    def call(self, what: Callable[[], Any], *, fallible: bool = False) -> Any:
        self._maybe_die()
        fault = self._fails() if fallible else ""
        if fault == "before":
            return Pending.failed(Unavailable("the target is away"))
        result = what()
        self._maybe_die()
        if fault == "after":
            return Pending.failed(Unavailable("the answer was lost"))
        return result

    def heal(self) -> None:
        """From now on everything works."""
        self._dies_at = None
        self._fails = lambda: ""

    def _maybe_die(self) -> None:
        if self.dead or self.calls == self._dies_at:
            self.dead = True
            raise Died
        self.calls += 1


class Wire(EmbeddedTransport):
    """A transport of a process."""

    def __init__(self, broker: MessageQueue, process: Process, *, picky: bool = False) -> None:
        super().__init__(broker, owned=False)
        self._process = process
        self._picky = picky

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        if self._picky and REFUSED in batch[1]:
            return Pending.failed(InvalidMessage("the target does not take this"))
        inner = super().publish
        answer: Pending[list[str]] = self._process.call(lambda: inner(topic, batch), fallible=self._picky)
        return answer

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> Any:
        return WiredDeliveries(super().deliveries(subscription, wake, report, eager), self._process)


class WiredDeliveries:
    def __init__(self, inner: Any, process: Process) -> None:
        self._inner = inner
        self._process = process
        self.terms, self.id_prefix, self.ack_id_prefix = inner.terms, inner.id_prefix, inner.ack_id_prefix

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Any:
        return self._process.call(lambda: self._inner.take(max_messages, max_bytes, alone, source, room))

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Any:
        return self._process.call(lambda: self._inner.settle(acks, nacks))

    def extend(self, leases: Sequence[int], seconds: float) -> Any:
        if self._process.dead:
            return Pending.of([*leases])
        # Of one that stands still nobody is told either.
        return Pending.of([]) if self._process.stalled else self._inner.extend(leases, seconds)

    def release(self, leases: Sequence[int], source: Source) -> Any:
        return Pending.of(None) if self._process.dead else self._inner.release(leases, source)

    def close(self) -> Any:
        return Pending.of(None) if self._process.dead else self._inner.close()


class World:
    """What there is, and what the publishers and the consumer saw of it."""

    def __init__(
        self,
        *,
        keys: int = 3,
        forwarder: type[Forwarder] = Forwarder,
        moving: type[MovingTopic] = MovingTopic,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.source, self.target = MessageQueue(clock=self.clock), MessageQueue(clock=self.clock)
        near, far = PubSub(self.source), PubSub(self.target)
        topic, moved = near.topic("orders").create().result(), far.topic("orders").create().result()
        forwarding_subscription(topic, "mover", ack_deadline_seconds=ACK_DEADLINE).result()
        self.reader = moved.subscription("reader").create(enable_message_ordering=True).result()
        self.keys: Sequence[str | None] = [*(f"order-{number}" for number in range(keys)), None]
        self.history = History()
        self.moving = moving(topic, moved)
        self.refused = 0
        self._kind = forwarder
        self._options: Mapping[str, Any] = {"retry": RetryPolicy(0, 4), "batch": 5, **options}
        self._values = 0
        self.process = Process()
        self.forwarder: Forwarder | None = None

    def publish(self, key: str | None, data: bytes = b"") -> None:
        self._values += 1
        value = data or b"%d" % self._values
        self.history.publishing(key, value)
        answer = self.moving.publish_message(value, ordering_key=key)
        answer.add_done_callback(lambda _: self.history.published(key, value))

    def start(self, process: Process) -> None:
        """A new life of the forwarder."""
        self.process = process
        near = Connection(Wire(self.source, process))
        far = Connection(Wire(self.target, process, picky=True))
        self.forwarder = self._kind(Subscription(near, "mover"), Topic(far, "orders"), **self._options)

    def step(self) -> int:
        """One step of the forwarder; -1 if it died."""
        assert self.forwarder is not None
        try:
            return self.forwarder.step()
        except Died:
            self.moving.stay()
            return -1
        except InorderError as error:
            if not isinstance(error, Unavailable):
                raise
            return 0  # the receipts could not be opened

    def consume(self, messages: int = 100) -> int:
        """The consumer at the target."""
        batch = self.reader.pull(messages).result()
        for message in batch:
            run = (message.ordering_key, message.data, "reader")
            self.history.started(*run)
            self.history.acking(*run)
            message.ack().result()
            self.history.acked(*run)
        return len(batch)

    def finish(self) -> None:
        """Everything works again, for as long as there is something to do."""
        if self.process.dead:
            self.clock.advance(ACK_DEADLINE + 1)
        if self.forwarder is None or self.process.dead:
            self.start(Process())
        self.process.heal()
        for _ in range(1_000):
            self.clock.advance(5)
            if self.step() + self.consume() == 0 and self.forwarder is not None and not self.forwarder.progress().lag:
                return
        raise AssertionError(f"the forwarder does not end: {self.forwarder.progress() if self.forwarder else None}")


def play(seed: int, actions: int = 120, **options: Any) -> World:
    """A history by chance: publishes, steps, deaths, a target that is away, a switch at some time."""
    chance = random.Random(seed)
    world = World(keys=chance.randint(1, 4), **options)
    trouble = chance.choice((0.0, 0.1, 0.4))
    deadly = chance.choice((0, 0, 20, 60))
    key_by_key = chance.random() < 0.5

    def life() -> Process:
        dies_at = chance.randrange(deadly) if deadly else None
        return Process(dies_at, lambda: chance.choice(("before", "after")) if chance.random() < trouble else "")

    world.start(life())
    for _ in range(actions):
        match chance.choices(("publish", "step", "time", "consume", "switch"), (5, 6, 2, 4, 0.5))[0]:
            case "publish":
                for _ in range(chance.randint(1, 6)):
                    world.publish(chance.choice(world.keys))
            case "step":
                if world.process.dead:
                    world.start(life())
                else:
                    world.step()
            case "time":
                world.clock.advance(chance.choice((0.5, 3, ACK_DEADLINE + 1)))
            case "consume":
                world.consume(chance.randint(1, 10))
            case "switch":
                if world.forwarder is not None and not world.process.dead:
                    world.moving.switch(world.forwarder, chance.choice(world.keys) if key_by_key else None)
    world.finish()
    return world
