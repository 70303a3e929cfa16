"""One trace for a message, from who publishes it to who handles it: embedded, over the wire, with Google's client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inorder import Message, PubSub
from inorder.broker import MessageQueue
from inorder.client import tracing as module
from inorder.errors import FailedPrecondition, InvalidMessage, TopicNotFound

from .clients import TOPIC, messages
from .conftest import PROJECT, Serve
from .test_streaming import wait_until

SPANS = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """A process has one provider, and keeps it."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(made)


@pytest.fixture(autouse=True)
def no_spans() -> None:
    SPANS.clear()


@pytest.fixture(params=["embedded", "grpc"])
def pubsub(request: pytest.FixtureRequest, serve: Serve) -> Iterator[PubSub]:
    broker = MessageQueue()
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders", {"enable_message_ordering": True})
    target: Any = broker
    if request.param == "grpc":
        target = f"grpc://{serve(broker, project=PROJECT).address}?project={PROJECT}"
    with PubSub(target, tracing=True) as found:
        yield found


def spans(name: str, count: int = 1) -> list[ReadableSpan]:
    wait_until(lambda: len([span for span in SPANS.get_finished_spans() if span.name == name]) >= count)
    return [span for span in SPANS.get_finished_spans() if span.name == name]


def continues(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def test_a_handler_is_in_the_trace_of_who_published(pubsub: PubSub) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        assert message.attributes["colour"] == "red"
        message.ack()

    subscription = pubsub.subscription("worker")
    subscription.on("message", handle)
    subscription.open()
    with trace.get_tracer("program").start_as_current_span("request") as request:
        identity = pubsub.topic("orders").publish_message(b"a", {"colour": "red"}, "key").result(20)
    (created,), (processed,) = spans("orders create"), spans("worker process")
    subscription.close()
    assert created.parent is not None
    assert created.parent.span_id == request.get_span_context().span_id
    assert continues(processed, created)
    assert seen == [request.get_span_context().trace_id]
    assert created.attributes is not None
    assert processed.attributes is not None
    assert created.attributes["messaging.message.id"] == processed.attributes["messaging.message.id"] == identity
    assert processed.attributes["messaging.gcp_pubsub.message.ordering_key"] == "key"


def test_a_handler_that_fails_has_a_span_that_says_so_and_then_another_one(pubsub: PubSub) -> None:
    failures = [ValueError("once")]

    def handle(message: Message) -> None:
        if failures:
            raise failures.pop()
        message.ack()

    subscription = pubsub.subscription("worker")
    subscription.on("message", handle)
    subscription.on("error", lambda error: None)
    subscription.open()
    pubsub.topic("orders").publish_json({"n": 1}).result(20)
    (created,) = spans("orders create")
    failed, succeeded = spans("worker process", 2)
    subscription.close()
    assert not failed.status.is_ok
    assert failed.events[0].name == "exception"
    assert succeeded.status.is_unset
    assert continues(failed, created)
    assert continues(succeeded, created)


def test_an_async_handler_is_in_the_trace_and_many_messages_share_a_span(pubsub: PubSub) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        message.ack()

    subscription = pubsub.subscription("worker")
    subscription.on("message", handle)
    subscription.open()
    pubsub.topic("orders").publish_many([Message(b"a"), Message(b"b")]).result(20)
    (created,) = spans("orders create")
    processed = spans("worker process", 2)
    subscription.close()
    assert all(continues(one, created) for one in processed)
    assert created.attributes is not None
    assert created.attributes["messaging.batch.message_count"] == 2


def test_what_a_def_handler_leaves_to_await_is_in_its_span(pubsub: PubSub) -> None:
    seen: list[trace.SpanContext] = []

    async def work(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context())
        message.ack()
        raise ValueError("afterwards")

    subscription = pubsub.subscription("worker")
    subscription.on("message", lambda message: work(message))
    subscription.on("error", lambda error: None)
    subscription.open()
    pubsub.topic("orders").publish_message(b"a").result(20)
    (processed,) = spans("worker process")
    subscription.close()
    assert [one.span_id for one in seen] == [processed.context.span_id]
    assert processed.events[0].name == "exception"


def test_a_publish_that_fails_ends_its_span_with_the_error(pubsub: PubSub) -> None:
    with pytest.raises(TopicNotFound):
        pubsub.topic("nowhere").publish_message(b"a").result(20)
    with pytest.raises(InvalidMessage, match="reserved prefix"):
        pubsub.topic("orders").publish_message(b"a", {"googclient_traceparent": "mine"}).result(20)
    (missing,), (refused,) = spans("nowhere create"), spans("orders create")
    assert missing.attributes is not None
    assert missing.attributes["error.type"] == "TopicNotFound"
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "InvalidMessage"


def test_a_message_without_room_for_the_context_is_published_without(pubsub: PubSub) -> None:
    attributes = {str(number): "x" for number in range(100)}
    assert pubsub.topic("orders").publish_message(b"a", attributes).result(20)
    (message,) = pubsub.subscription("worker").pull(1).result(20)
    assert message.attributes == attributes


def test_a_trace_of_googles_publisher_goes_on_here(serve: Serve) -> None:
    server = serve(project=PROJECT)
    server.broker.register_topic("orders")
    server.broker.register_subscription("worker", "orders")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    server.raw_publisher().publish(topic=TOPIC, messages=messages("a", googclient_traceparent=parent))
    with PubSub(server.broker, tracing=True) as pubsub:
        subscription = pubsub.subscription("worker")
        subscription.on("message", lambda message: message.ack())
        subscription.open()
        (processed,) = spans("worker process")
        subscription.close()
    assert f"{processed.context.trace_id:032x}" == parent.split("-")[1]
    assert processed.parent is not None
    assert f"{processed.parent.span_id:016x}" == parent.split("-")[2]


def test_without_tracing_nothing_is_added() -> None:
    broker = MessageQueue()
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    with PubSub(broker) as pubsub:
        pubsub.topic("orders").publish_message(b"a").result(20)
    assert broker.pull("worker", 1)[0].attributes == {}
    assert not SPANS.get_finished_spans()


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'inorder\[tracing\]'"):
        module.Tracing()
