"""Ctrl-C in the middle of a publish: whatever became of that message, nobody waits for it, and others go on."""

from collections.abc import Callable
from functools import partial

import pytest

from inorder import Batching, FlowControl, Message, PubSub, Topic
from inorder.broker import MessageQueue
from inorder.errors import Closed

from ..interrupts import is_interrupted

PUBLISHING = ("inorder.client.publisher", "inorder.transport.embedded")


def publish_together(topic: Topic) -> None:
    topic.set_publish_options(batching=Batching(max_messages=100, max_milliseconds=60_000))
    topic.publish_message(b"before", ordering_key="a")


def publish_behind_what_came_without_the_lock(topic: Topic) -> None:
    topic.set_publish_options(batching=Batching(max_messages=4, max_milliseconds=60_000))
    for _ in range(3):
        topic.publish_message(b"before", ordering_key="a")
    assert len(topic._publisher._arrived) == 2


def publish_at_once(_: Topic) -> None: ...


@pytest.mark.parametrize("prepare", [publish_at_once, publish_together, publish_behind_what_came_without_the_lock])
def test_a_publish_that_is_interrupted_at_any_step_holds_up_neither_others_nor_the_end(
    prepare: Callable[[Topic], None],
) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        queue = MessageQueue()
        pubsub = PubSub(queue)
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create(enable_message_ordering=True).result()
        prepare(topic)
        before, count = topic._publisher._messages + len(topic._publisher._arrived), 0
        went_through = not is_interrupted(partial(topic.publish_message, b"x", None, "b"), step, *PUBLISHING)
        topic.set_publish_options(flow_control=FlowControl(max_messages=1, max_bytes=10), batching=Batching())
        after = [topic.publish_message(b"y", ordering_key=key) for key in ("a", "b", "a")]
        flushed = topic.flush()
        assert flushed.done(), f"step {step}"
        assert after[0].done(), f"step {step}"
        assert after[2].done(), f"step {step}"
        publisher = topic._publisher
        assert (publisher._messages, publisher._bytes, publisher._requests) == (0, 0, 0), f"step {step}"
        for message in (message for _ in range(6) for message in subscription.pull(10).result()):
            assert (message.ordering_key, message.data) in {("a", b"before"), ("b", b"x"), ("a", b"y"), ("b", b"y")}
            message.ack()
            count += message.data == b"before"
        assert count == before, f"step {step}"
        closing = pubsub.close()
        assert closing.done(), f"step {step}"
    assert step > 4


def test_many_that_are_interrupted_in_the_broker_fail_and_others_go_on() -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        pubsub = PubSub(MessageQueue())
        topic = pubsub.topic("orders").create().result()
        messages = [Message(b"0", ordering_key="a"), Message(b"1", ordering_key="b")]
        broker = ("inorder.broker", "inorder.turns")
        went_through = not is_interrupted(partial(topic.publish_many, messages), step, *broker)
        assert topic.flush().done(), f"step {step}"
        assert topic.paused_keys() == ([] if went_through else ["a", "b"]), f"step {step}"
        topic.publish_message(b"2", ordering_key="c").result(0)
        assert pubsub.close().done(), f"step {step}"
    assert step > 5


@pytest.mark.parametrize("prepare", [publish_at_once, publish_together])
def test_a_close_that_is_interrupted_at_any_step_is_done_by_the_next_one(prepare: Callable[[Topic], None]) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        queue = MessageQueue()
        pubsub = PubSub(queue)
        topic = pubsub.topic("orders").create().result()
        prepare(topic)
        went_through = not is_interrupted(pubsub.close, step, "inorder.client.connection", "inorder.transport")
        assert pubsub.close().done(), f"step {step}"
        with pytest.raises(Closed):
            topic.metadata().result(0)
    assert step > 5
