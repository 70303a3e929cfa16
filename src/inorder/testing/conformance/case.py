"""What the tests of a broker share: a broker, a clock in the test's hands, and short words for both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from inorder.broker import MessageQueue
from inorder.errors import InorderError, InvalidAckId
from inorder.message import Gap, Message
from inorder.testing.clock import ManualClock

T = TypeVar("T")
E = TypeVar("E", bound=InorderError)

# Long enough that only a thread that hangs reaches it.
PATIENCE_SECONDS = 30


class InBackground:
    """For tests that have somebody wait."""

    def in_background(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` on a thread of its own, which does not outlive the process if it hangs."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


class QueueCase(InBackground):
    """One broker per test. A subclass says how it is made; it must take its time from `clock`."""

    clock: ManualClock
    queue: MessageQueue

    def make_queue(self, clock: ManualClock) -> MessageQueue:
        """A broker without topics."""
        raise NotImplementedError(f"{type(self).__name__} must say how its broker is made")

    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.queue = self.make_queue(self.clock)

    def teardown_method(self) -> None:
        self.queue.close()

    def subscribe(self, name: str = "worker", topic: str = "orders", **options: Any) -> None:
        """A subscription, and its topic if that is missing."""
        if not self.queue.topic_exists(topic):
            self.queue.register_topic(topic)
        self.queue.register_subscription(name, topic, options)

    def publish(self, *texts: str, key: str | None = None, topic: str = "orders") -> list[str]:
        """One batch of messages of one key, or of none."""
        return self.queue.publish(topic, [Message(text.encode(), ordering_key=key) for text in texts])

    def publish_by_letter(self, *texts: str, topic: str = "orders") -> list[str]:
        """One batch in which the letter that a text begins with is its ordering key."""
        return self.queue.publish(topic, [Message(text.encode(), ordering_key=text[0]) for text in texts])

    def pull(self, max_messages: int = 100, subscription: str = "worker") -> list[Message]:
        return self.queue.pull(subscription, max_messages)

    def pull_texts(self, max_messages: int = 100, subscription: str = "worker") -> list[str]:
        return texts(self.pull(max_messages, subscription))

    def consume(self, subscription: str = "worker") -> list[str]:
        """Pull and ack one by one until nothing comes any more."""
        consumed: list[str] = []
        while messages := self.pull(1, subscription):
            self.ack(*messages)
            consumed += texts(messages)
        return consumed

    def consume_with_gaps(self, subscription: str = "worker") -> list[str | Gap]:
        """As `consume`, with each gap record in its place."""
        consumed: list[str | Gap] = []
        while taken := self.queue.take(subscription, 1):
            self.ack(*taken)
            data: Any = taken[0].data
            consumed.append(data if isinstance(data, Gap) else data.decode())
        return consumed

    def ack(self, *messages: Message) -> None:
        self.queue.ack([message.ack_id for message in messages])

    def nack(self, *messages: Message) -> None:
        self.queue.nack([message.ack_id for message in messages])

    def fail(self, times: int, subscription: str = "worker") -> list[str]:
        """Pull one message and nack it, so many times; the texts as they came."""
        failed: list[str] = []
        for _ in range(times):
            [message] = self.pull(1, subscription)
            self.nack(message)
            failed += texts([message])
        return failed

    def snapshot(self) -> object:
        """All that a broker tells about itself."""
        subscriptions = self.queue.get_all_subscriptions()
        return (
            self.queue.get_all_topics(),
            subscriptions,
            [self.queue.metrics(subscription.name) for subscription in subscriptions],
        )

    @contextmanager
    def refused(self, kind: type[E], *words: str) -> Iterator[pytest.ExceptionInfo[E]]:
        """The call raises this kind of error, its message has these words, and nothing has changed."""
        before = self.snapshot()
        with pytest.raises(kind) as caught:
            yield caught
        assert caught.value.code == kind.code
        for word in words:
            assert word in str(caught.value)
        assert self.snapshot() == before

    def assert_over(self, *messages: Message) -> None:
        """The leases of these are over: their ack ids are error 3 whatever they are used for."""
        for message in messages:
            with self.refused(InvalidAckId, message.ack_id):
                self.queue.ack(message.ack_id)
            with self.refused(InvalidAckId, message.ack_id):
                self.queue.nack(message.ack_id)
            with self.refused(InvalidAckId, message.ack_id):
                self.queue.modify_ack_deadline(message.ack_id, 10)


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def gaps(consumed: Iterable[str | Gap]) -> list[Gap]:
    return [each for each in consumed if isinstance(each, Gap)]


def waits(future: Future[Any]) -> bool:
    """Whether a background call has not returned. It can only be seen by giving it some time to."""
    try:
        future.result(timeout=0.05)
    except TimeoutError:
        return not future.done()
    return False
