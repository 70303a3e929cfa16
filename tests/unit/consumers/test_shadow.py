"""Two consumers of the same messages, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.client.subscription import Subscription
from inorder.consumers import Difference, Forwarder, MovingTopic, Shadow, forwarding_subscription
from inorder.errors import InvalidArgument
from inorder.message import Message


class Both:
    """A source and a target with a consumer each."""

    def __init__(self) -> None:
        self.near, self.far = PubSub(MessageQueue()), PubSub(MessageQueue())
        self.topic, self.moved = (pubsub.topic("orders").create().result() for pubsub in (self.near, self.far))
        self.old = self.topic.subscription("old").create(enable_message_ordering=True).result()
        self.new = self.moved.subscription("new").create(enable_message_ordering=True).result()
        self.forwarder = Forwarder(forwarding_subscription(self.topic, "mover").result(), self.moved)
        self.found: list[Difference] = []

    def publish(self, *texts: bytes, key: str | None = "order-7") -> None:
        for text in texts:
            self.topic.publish_message(text, ordering_key=key).result()
        while self.forwarder.step():
            pass


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both()
    yield both
    both.forwarder.close()
    both.near.close().result()
    both.far.close().result()


def run(subscription: Subscription, handler: Callable[[Message], None]) -> None:
    while messages := subscription.pull(1).result():
        handler(messages[0])


def data(message: Message) -> bytes:
    return message.data


def test_equal_results_are_counted(both: Both) -> None:
    """ordering-in-event-driven-systems Message broker migration: as an experiment first."""
    both.publish(b"placed", b"paid")
    both.publish(b"seen", key=None)
    shadow = Shadow(both.found.append)
    run(both.old, shadow.source(data))
    run(both.new, shadow.target(data))
    assert (shadow.finish(), both.found) == ({"same": 3}, [])
    assert both.new.metrics().result().backlog_messages == 0


def test_other_results_are_reported_with_both(both: Both) -> None:
    both.publish(b"placed")
    shadow = Shadow(both.found.append)
    run(both.new, shadow.target(lambda message: len(message.data)))
    run(both.old, shadow.source(data))
    [difference] = both.found
    assert (difference.kind, difference.ordering_key) == ("different", "order-7")
    assert (difference.source, difference.target) == (b"placed", 6)


def test_what_one_side_has_not_had_is_reported_at_the_end(both: Both) -> None:
    both.publish(b"placed", b"paid")
    shadow = Shadow(both.found.append)
    run(both.old, shadow.source(data))
    both.new.seek(position=1).result()
    run(both.new, shadow.target(data))
    assert shadow.finish() == {"same": 1, "missing": 1}
    assert [(difference.source, difference.target) for difference in both.found] == [(b"placed", None)]


def copies(both: Both, *positions: int) -> None:
    """What a worse forwarder would have sent, by position at the source."""
    messages = {message.position: message for message in both.new.pull(1).result()}
    for message in messages.values():
        message.ack().result()
    while more := both.new.pull(1).result():
        messages[more[0].position] = more[0]
        more[0].ack().result()
    for position in positions:
        message = messages[position]
        both.moved.publish_message(message.data, message.attributes, message.ordering_key).result()


@pytest.mark.parametrize(
    ("sent", "counts"),
    [
        ((0, 1, 2), {"same": 3}),
        ((0, 1, 0, 1, 2), {"same": 3}),
        ((0, 2, 1), {"same": 3, "reordered": 1}),
        ((0, 2), {"same": 2, "missing": 1}),
    ],
    ids=["all in order", "repeated", "reordered", "lost"],
)
def test_order_and_repetitions_at_the_target(both: Both, sent: tuple[int, ...], counts: dict[str, int]) -> None:
    both.publish(b"placed", b"paid", b"shipped")
    copies(both, *sent)
    shadow = Shadow(both.found.append)
    run(both.old, shadow.source(data))
    run(both.new, shadow.target(data))
    assert shadow.finish() == counts


@pytest.mark.parametrize("key", [None, "order-7"])
def test_what_was_compared_and_comes_again_is_not_missing_at_the_other_side(both: Both, key: str | None) -> None:
    both.publish(b"placed", key=key)
    copies(both, 0, 0)
    shadow = Shadow(both.found.append)
    [message] = both.old.pull(1).result()
    shadow.source(data)(message)
    run(both.new, shadow.target(data))
    shadow.source(data)(message)  # as if its ack had been lost
    assert (shadow.finish(), both.found) == ({"same": 1}, [])


def test_a_target_that_is_ahead_is_not_fooled_by_a_repetition(both: Both) -> None:
    both.publish(b"placed", b"paid")
    copies(both, 0, 0, 1)
    shadow = Shadow(both.found.append)
    run(both.new, shadow.target(data))
    run(both.old, shadow.source(data))
    assert shadow.finish() == {"same": 2}


def test_what_nobody_forwarded_is_unknown_and_a_barrier_is_nothing(both: Both) -> None:
    shadow = Shadow(both.found.append)
    moving = MovingTopic(both.topic, both.moved)
    moving.switch(both.forwarder, "order-7")
    both.publish()
    moving.publish_message(b"direct", ordering_key="order-7")
    run(both.old, shadow.source(data))
    run(both.new, shadow.target(data))
    assert shadow.finish() == {"same": 0, "unknown": 1}
    assert both.found == [Difference("unknown", "order-7", "", None, b"direct")]


def test_only_so_many_results_wait_for_the_other_side(both: Both) -> None:
    both.publish(b"placed", b"paid", b"shipped")
    shadow = Shadow(both.found.append, max_open=2)
    run(both.old, shadow.source(data))
    assert [(difference.kind, difference.source) for difference in both.found] == [("missing", b"placed")]
    with pytest.raises(InvalidArgument, match="max_open: a whole number of at least 1, not 0"):
        Shadow(print, max_open=0)


def test_a_handler_that_fails_acks_nothing(both: Both) -> None:
    def fail(message: Message) -> Any:
        raise RuntimeError("not my day")

    both.publish(b"placed")
    shadow = Shadow(both.found.append)
    for subscription, wrap in ((both.old, shadow.source), (both.new, shadow.target)):
        [message] = subscription.pull().result()
        with pytest.raises(RuntimeError):
            wrap(fail)(message)
        message.nack().result()
        run(subscription, wrap(data))
    assert shadow.finish() == {"same": 1}
