"""Ctrl-C in the middle of a publish: whatever became of that message, nobody waits for it, and others go on."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from inorder import Batching, FlowControl, Message, PubSub, Topic
from inorder.broker import MessageQueue
from inorder.client.publisher import Publisher
from inorder.client.requests import WIDTH
from inorder.errors import Aborted, Closed, KeyPaused
from inorder.pending import Pending

from ..interrupts import is_interrupted
from .slow_transport import SlowTransport, make

PUBLISHING = ("inorder.client.publisher", "inorder.transport.embedded")
PUBLISHER = ("inorder.client.publisher", "inorder.client.requests")


def publish_together(topic: Topic) -> None:
    topic.set_publish_options(batching=Batching(max_messages=100, max_milliseconds=60_000))
    topic.publish_message(b"before", ordering_key="a")


def publish_behind_what_came_without_the_lock(topic: Topic) -> None:
    topic.set_publish_options(batching=Batching(max_messages=4, max_milliseconds=60_000))
    for _ in range(3):
        topic.publish_message(b"before", ordering_key="a")
    assert len(topic._publisher._arrived) == 2 * WIDTH


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
        before, count = topic._publisher._messages + len(topic._publisher._arrived) // WIDTH, 0
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
    assert step > 3


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


def nothing(_: Publisher) -> list[Pending[str]]:
    return []


def a_batch(publisher: Publisher) -> list[Pending[str]]:
    publisher.set_options({"batching": Batching(max_messages=100, max_milliseconds=60_000)})
    return [publisher.publish(b"a%d" % number, None, "a") for number in range(3)]


def nearly_a_batch(publisher: Publisher) -> list[Pending[str]]:
    publisher.set_options({"batching": Batching(max_messages=2, max_milliseconds=60_000)})
    return [publisher.publish(b"b0", None, "b")]


def requests_under_way(publisher: Publisher) -> list[Pending[str]]:
    publisher.set_options({"batching": Batching(max_messages=2)})
    return [publisher.publish(b"%s%d" % (key.encode(), number), None, key) for number in range(5) for key in "ab"]


def no_room(publisher: Publisher) -> list[Pending[str]]:
    publisher.set_options({"flow_control": FlowControl(max_messages=3)})

    async def on_a_loop() -> list[Pending[str]]:  # where nobody waits until there is room
        return [publisher.publish(b"%s%d" % (key.encode(), number), None, key) for number in range(4) for key in "ab"]

    return asyncio.run(on_a_loop())


def publish(publisher: Publisher, _: SlowTransport) -> None:
    publisher.set_options({"flow_control": FlowControl()})
    publisher.publish(b"b9", None, "b")


def publish_many(publisher: Publisher, _: SlowTransport) -> None:
    publisher.publish_many([Message(b"b9", None, "b"), Message(b"c9", None, "c")])


def flush(publisher: Publisher, _: SlowTransport) -> None:
    publisher.flush()


def change_options(publisher: Publisher, _: SlowTransport) -> None:
    publisher.set_options({"batching": Batching()})


def pass_time(_: Publisher, transport: SlowTransport) -> None:
    transport.clock.advance(60)


def answer(_: Publisher, transport: SlowTransport) -> None:
    transport.answer()


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(
    ("prepare", "call"),
    [
        *((nothing, call) for call in (publish, publish_many)),
        *((a_batch, call) for call in (publish, publish_many, flush, change_options, pass_time)),
        *((nearly_a_batch, call) for call in (publish, publish_many, flush, change_options, pass_time)),
        *((requests_under_way, call) for call in (publish, publish_many, flush, change_options, answer)),
        *((no_room, call) for call in (publish, publish_many, flush, change_options, answer)),
    ],
)
def test_whatever_is_interrupted_loses_none_of_the_messages_from_before(
    prepare: Callable[[Publisher], list[Pending[str]]],
    call: Callable[[Publisher, SlowTransport], None],
    in_order: bool,
) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        publisher, transport = make()
        transport.in_order = in_order
        before = prepare(publisher)
        if call is publish_many:
            publisher.set_options({"flow_control": FlowControl()})  # or it would wait here for room
        first = 2 if call is answer else 1  # a function that is called back may be interrupted before it can help it
        went_through = not is_interrupted(partial(call, publisher, transport), first + step - 1, *PUBLISHER)
        publisher.set_options({"flow_control": FlowControl(), "batching": Batching()})
        transport.answer_all()
        for key in publisher.paused_keys():
            publisher.resume(key)
        after = [publisher.publish(b"%s10" % key.encode(), None, key) for key in "abc"]
        flushed = publisher.flush()
        transport.answer_all()
        assert flushed.done(), f"step {step}"
        assert all(pending.done() for pending in (*before, *after)), f"step {step}"
        assert (publisher._messages, publisher._bytes, publisher._requests) == (0, 0, 0), f"step {step}"
        assert (publisher._under_way, publisher._behind, publisher._unanswered) == (set(), {}, {}), f"step {step}"
        sent = [data for request in transport.sent() for data in request]
        for key in (b"a", b"b", b"c"):
            of_key = [int(data[1:]) for data in sent if data[:1] == key]
            assert of_key == sorted({*of_key}), f"step {step}"
        assert {pending.result(0).encode() for pending in before if not pending.exception()} <= {*sent}
        told = [pending.exception() for pending in before if pending.exception()]
        assert all(isinstance(error, Aborted | KeyPaused) for error in told), f"step {step}"
        assert all(pending.result(0) for pending in after), f"step {step}"
    assert step > 1


def test_a_program_that_is_interrupted_again_and_again_goes_on() -> None:
    program = [sys.executable, str(Path(__file__).with_name("pressing_ctrl_c.py")), "100"]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "")
