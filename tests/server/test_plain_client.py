"""Our client and a server that knows google.pubsub.v1 only."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from inorder import Columns, Message, PubSub, Subscription, SubscriptionOptions
from inorder.errors import (
    FailedPrecondition,
    InvalidArgument,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from tests.integration.tcp_proxy import TcpProxy
from tests.server.conftest import Serve
from tests.server.plain_server import PlainServer

PATIENCE_SECONDS = 30


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"this did not happen within {PATIENCE_SECONDS} s"
        time.sleep(0.002)


@pytest.fixture
def pubsub(serve: Serve) -> Iterator[PubSub]:
    plain = PlainServer(serve().address)
    with PubSub(f"grpc://127.0.0.1:{plain.port}?project=shop") as pubsub:
        yield pubsub
    plain.stop()


def test_a_connection_that_breaks_leaves_no_thread_behind(serve: Serve) -> None:
    plain = PlainServer(serve().address)
    proxy = TcpProxy(plain.port)
    received: list[bytes] = []

    def streams() -> int:
        """Threads of gRPC's that wait for the next request of a stream."""
        return sum("_requests" in str(frame.f_code.co_name) for frame in frames())

    def frames() -> Iterator[FrameType]:
        for frame in sys._current_frames().values():
            at: FrameType | None = frame
            while at is not None:
                yield at
                at = at.f_back

    with PubSub(f"grpc://127.0.0.1:{proxy.port}?project=shop") as pubsub:
        topic = pubsub.topic("orders").create().result()
        worker = topic.subscription("worker").create().result()
        worker.on("message", lambda message: received.append(message.data) or message.ack()).open()
        for number in range(5):
            topic.publish_message(b"%d" % number).result()
            wait_until(lambda: b"%d" % number in received)  # noqa: B023  # called before the next
            proxy.cut()
        topic.publish_message(b"last").result()
        wait_until(lambda: b"last" in received)
        wait_until(lambda: streams() == 1)
    proxy.close()
    plain.stop()


def taken_by_columns(subscription: Subscription) -> Iterator[int]:
    columns = subscription.columns(100, ahead=1)
    for leased in columns:
        yield from map(int, leased.data)
        columns.ack(leased)


def taken_by_lists(subscription: Subscription) -> Iterator[int]:
    batches = subscription.batches(100)
    for messages in batches:
        yield from [int(message.data) for message in messages]
        batches.ack(messages)


def taken_one_by_one(subscription: Subscription) -> Iterator[int]:
    for message in subscription:
        yield int(message.data)
        message.ack()


@pytest.mark.parametrize("take", [taken_by_columns, taken_by_lists, taken_one_by_one])
def test_a_key_comes_through_in_order_whatever_is_cut(
    serve: Serve, take: Callable[[Subscription], Iterator[int]]
) -> None:
    """What is out when a connection ends comes again after its deadline, which is ten seconds at least."""
    server, count = serve(), 5_000
    plain = PlainServer(server.address)
    proxy = TcpProxy(plain.port)
    with PubSub(f"grpc://{server.address}?project=shop") as direct:
        topic = direct.topic("orders").create().result()
        worker = topic.subscription("worker")
        worker.create(enable_message_ordering=True, max_outstanding_per_key=1_000).result()
        topic.publish_many([Message(b"%d" % number, ordering_key="k") for number in range(count)]).result()
        with PubSub(f"grpc://127.0.0.1:{proxy.port}?project=shop") as pubsub:
            due = 0
            for taken, number in enumerate(take(pubsub.subscription("worker"))):
                assert number <= due, "those in between have not come"
                due = max(due, number + 1)
                if taken in (700, 2_500):
                    proxy.cut()
                if due == count:
                    break
    proxy.close()
    plain.stop()


def test_keys_are_handled_in_order(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create(message_ordering=True).result()
    received: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        received.append((message.data.decode(), message.delivery_attempt))
        if message.data == b"b2" and received.count(("b2", 1)) == 1:
            message.nack()
        else:
            message.ack()

    subscription.on("message", handle).open()
    ids = [topic.publish_message(text.encode(), ordering_key=text[0]) for text in ("a1", "b1", "a2", "b2", "a3", "b3")]
    assert len({one.result() for one in ids}) == 6
    wait_until(lambda: len(received) >= 7)
    assert [text for text, _ in received if text[0] == "a"] == ["a1", "a2", "a3"]
    assert [text for text, _ in received if text[0] == "b"] == ["b1", "b2", "b2", "b3"]
    subscription.close().result()
    wait_until(lambda: not subscription.pull(10).result())


def test_messages_are_pulled_with_their_ids(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create().result()
    ids = topic.publish_many([Message(b"1", {"a": "b"}, "k"), Message(b"2")]).result()
    messages = subscription.pull(10).result()
    assert [message.id for message in messages] == ids
    assert (messages[0].attributes, messages[0].ordering_key, messages[1].ordering_key) == ({"a": "b"}, "k", None)
    messages[0].ack().result()
    messages[1].modify_ack_deadline(60).result()
    messages[1].nack().result()
    [again] = subscription.pull(10).result()
    again.ack().result()
    assert subscription.pull(2**40).result() == []


def test_a_loop_gets_messages(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create(message_ordering=True).result()
    topic.publish_many(Message(b"%d" % number, ordering_key="k") for number in range(5)).result()
    received: list[int] = []
    for message in subscription:
        received.append(int(message.data))
        message.ack().result()
        if len(received) == 5:
            break
    assert received == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_loop_gets_columns(pubsub: PubSub, ahead: int) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create(message_ordering=True).result()
    keys = ["a", "b"] * 5
    topic.publish_many(Columns(keys, [b"%d" % number for number in range(10)])).result()
    received: dict[str, list[int]] = {"a": [], "b": []}
    columns = subscription.columns(3, ahead=ahead)
    failed = 0
    for leased in columns:
        if failed < 2:  # which each key has once in a list, and all of it comes again
            failed += 1
            columns.nack(leased).result()
            continue
        for key, data in zip(leased.keys, leased.data, strict=True):
            received[key].append(int(data))
        columns.ack(leased).result()
        if sum(map(len, received.values())) == 10:
            break
    assert received == {"a": [0, 2, 4, 6, 8], "b": [1, 3, 5, 7, 9]}


def test_what_is_missing_or_there_already_is_told_as_ever(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders")
    for call in (topic.delete, topic.subscription("worker").create, lambda: topic.publish_message(b"x")):
        with pytest.raises(TopicNotFound, match="Topic not found: orders"):
            call().result()
    topic.create().result()
    with pytest.raises(TopicAlreadyExists):
        topic.create().result()
    subscription = topic.subscription("worker")
    for call in (subscription.delete, subscription.metadata, subscription.pull, lambda: subscription.seek(time=0.0)):
        with pytest.raises(SubscriptionNotFound, match="Subscription not found: worker"):
            call().result()
    with pytest.raises(SubscriptionNotFound):
        subscription.on("message", print).open()
    subscription.create().result()
    with pytest.raises(SubscriptionAlreadyExists):
        subscription.create().result()
    assert [one.name for one in pubsub.topics().result()] == ["orders"]
    assert [one.name for one in pubsub.subscriptions().result()] == ["worker"]
    assert [one.name for one in topic.subscriptions().result()] == ["worker"]


def test_options_that_the_protocol_knows_are_kept_and_others_refused(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create(message_retention_duration=3600).result()
    assert topic.metadata().result().options.message_retention_duration == 3600
    pubsub.topic("dead").create().result()
    subscription = topic.subscription("worker")
    subscription.create(
        ack_deadline=20,
        retry_policy={"minimum_backoff": 5, "maximum_backoff": 50},
        dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 7},
        filter='attributes.kind = "x"',
    ).result()
    subscription.set_options(ack_deadline=30).result()
    subscription.set_options(queue_limits=None).result()
    options = subscription.metadata().result().options
    assert (options.ack_deadline_seconds, options.filter) == (30, 'attributes.kind = "x"')
    assert options.retry_policy is not None
    assert options.retry_policy.maximum_backoff == 50
    assert options.dead_letter_policy is not None
    assert options.dead_letter_policy.dead_letter_topic == "dead"
    with pytest.raises(FailedPrecondition, match="queue_limits: this server knows"):
        subscription.set_options(queue_limits={"max_messages": 5}).result()
    in_order = topic.subscription("in-order").create(message_ordering=True).result()
    with pytest.raises(FailedPrecondition, match="max_outstanding_per_key: this server knows"):
        in_order.set_options(max_outstanding_per_key=5).result()
    with pytest.raises(InvalidArgument, match="whole seconds"):
        topic.subscription("other").create(ack_deadline=10.5).result()


def test_options_that_stay_as_they_are_may_be_given_with_those_that_change(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create(message_ordering=True).result()
    subscription.set_options(SubscriptionOptions(message_ordering=True, ack_deadline=20)).result()
    options = subscription.metadata().result().options
    assert (options.ack_deadline_seconds, options.enable_message_ordering) == (20, True)
    subscription.set_options().result()
    subscription.set_options(ack_deadline=20).result()
    assert subscription.metadata().result().options == options
    with pytest.raises(InvalidArgument, match="'enable_message_ordering' field in the Subscription is not mutable"):
        subscription.set_options(message_ordering=False, max_outstanding_per_key=1).result()


def test_what_only_inorder_knows_cannot_be_asked(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create(retain_acked_messages=True).result()
    for call in (
        subscription.metrics,
        subscription.unacked,
        subscription.blocked_keys,
        lambda: subscription.resume_key("k"),
        lambda: subscription.skip("k"),
        lambda: subscription.seek(position=0),
    ):
        with pytest.raises(FailedPrecondition, match="inorder serve can"):
            call().result()
    topic.publish_message(b"x").result()
    subscription.pull().result()[0].ack().result()
    subscription.seek(time=0.0).result()
    [again] = subscription.pull(10).result()
    assert again.data == b"x"


def test_a_subscription_that_is_deleted_ends_its_handlers(pubsub: PubSub) -> None:
    subscription = pubsub.topic("orders").create().result().subscription("worker").create().result()
    told: list[object] = []
    closed = threading.Event()
    subscription.on("message", Message.ack).on("error", told.append).on("close", closed.set).open()
    pubsub.subscription("worker").delete().result()
    assert closed.wait(PATIENCE_SECONDS)
    assert [type(one) for one in told] == [SubscriptionNotFound]


def test_what_nobody_has_taken_when_a_consumer_closes_has_gone_back_then(pubsub: PubSub) -> None:
    topic = pubsub.topic("orders").create().result()
    worker = topic.subscription("worker").create(ack_deadline_seconds=600).result()
    for number in range(20):  # who does not wait for the server is mostly faster than it
        deliveries = pubsub._connection.transport.deliveries("worker", lambda: None, lambda _: None, True)
        topic.publish_message(b"%d" % number).result(PATIENCE_SECONDS)
        wait_until(lambda: deliveries._arrived)  # noqa: B023  # called before the next
        deliveries.close().result(PATIENCE_SECONDS)
        (message,) = worker.pull(10).result(PATIENCE_SECONDS)
        message.ack().result(PATIENCE_SECONDS)
