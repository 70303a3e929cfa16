"""Ctrl-C in the middle of a call over the wire: whatever became of it, nothing waits for it, and others go on."""

from collections.abc import Callable
from functools import partial

import pytest

from inorder import Batching, Message, PubSub, Topic
from tests.server.conftest import Serve
from tests.unit.interrupts import is_interrupted

PATIENCE_SECONDS = 30


def publish(topic: Topic) -> object:
    return topic.publish_message(b"x", ordering_key="b")


def publish_many(topic: Topic) -> object:
    return topic.publish_many([Message(b"x", ordering_key="b"), Message(b"y", ordering_key="c")])


def flush(topic: Topic) -> object:
    topic.set_publish_options(batching=Batching(max_messages=100, max_milliseconds=60_000))
    topic.publish_message(b"x", ordering_key="b")
    return topic.flush()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("call", [publish, publish_many, flush])
def test_a_call_that_is_interrupted_at_any_step_of_the_transport_holds_up_neither_others_nor_the_end(
    serve: Serve, call: Callable[[Topic], object], is_first: bool
) -> None:
    address = f"grpc://{serve().address}"
    step, went_through = 0, False
    with PubSub(address):  # so that there is one connection for all
        while not went_through:
            step += 1
            pubsub = PubSub(address)
            topic = pubsub.topic(f"orders-{step}").create().result(PATIENCE_SECONDS)
            if not is_first:
                topic.publish_message(b"w", ordering_key="a").result(PATIENCE_SECONDS)
            went_through = not is_interrupted(partial(call, topic), step, "inorder.transport")
            for key in ("b", "c"):
                topic.resume_publishing(key)
            after = [topic.publish_message(b"z", ordering_key=key) for key in ("a", "b", "c", "d")]
            topic.flush().result(PATIENCE_SECONDS)
            assert [answer.exception(0) for answer in after] == [None] * 4, f"step {step}"
            pubsub.close().result(PATIENCE_SECONDS)
    assert step > 15


def test_an_ack_of_a_pulled_message_that_is_interrupted_at_any_step_holds_up_no_other(serve: Serve) -> None:
    with PubSub(f"grpc://{serve().address}") as pubsub:
        topic = pubsub.topic("orders").create().result(PATIENCE_SECONDS)
        worker = topic.subscription("worker").create().result(PATIENCE_SECONDS)
        step, went_through = 0, False
        while not went_through:
            step += 1
            topic.publish_many([Message(b"x"), Message(b"y")]).result(PATIENCE_SECONDS)
            *_, first, second = worker.pull(10).result(PATIENCE_SECONDS)
            went_through = not is_interrupted(first.ack, step, "inorder.transport")
            second.ack().result(PATIENCE_SECONDS)
    assert step > 5


def test_a_close_that_is_interrupted_at_any_step_is_done_by_the_next_one(serve: Serve) -> None:
    address = f"grpc://{serve().address}"
    step, went_through = 0, False
    with PubSub(address) as others:
        topic = others.topic("orders").create().result(PATIENCE_SECONDS)
        while not went_through:
            step += 1
            pubsub = PubSub(address)
            of_it = pubsub.topic("orders")
            of_it.set_publish_options(batching=Batching(max_messages=100, max_milliseconds=60_000))
            collected = of_it.publish_message(b"x")
            went_through = not is_interrupted(pubsub.close, step, "inorder.client.connection", "inorder.transport")
            pubsub.close().result(PATIENCE_SECONDS)
            assert collected.done(), f"step {step}"
        topic.publish_message(b"y").result(PATIENCE_SECONDS)
    assert step > 15
