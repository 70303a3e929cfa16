"""`PubSub` over the wire where there are several: names of producers, and what one leaves to the others."""

import threading
from dataclasses import asdict
from itertools import islice

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.client.intake import Intake
from inorder.errors import InvalidArgument, KeyPaused, NotFound, ProducerFenced
from inorder.message import Message
from inorder.options import MAX_MESSAGE_BYTES
from inorder.protocol.options import changes_of, to_json
from inorder.server.extensions import delivery, keys, resources
from inorder.testing import ManualClock
from inorder.transport.address import parse
from inorder.transport.grpc.transport import GrpcTransport

from ..integration.tcp_proxy import TcpProxy
from .conftest import Running, Serve
from .test_streaming import wait_until

PATIENCE_SECONDS = 30


def client(server: Running, producer: str | None = None) -> PubSub:
    return PubSub(f"grpc://{server.address}?project=shop" + (f"&producer={producer}" if producer else ""))


def texts(pubsub: PubSub) -> list[str]:
    found = pubsub.subscription("all").pull(100).result(PATIENCE_SECONDS)
    return [message.data.decode() for message in found]


def publish(pubsub: PubSub, text: str, key: str | None = None) -> str:
    return pubsub.topic("orders").publish_message(text.encode(), ordering_key=key).result(PATIENCE_SECONDS)


@pytest.fixture
def plain(server: Running) -> PubSub:
    pubsub = client(server)
    topic = pubsub.topic("orders").create().result()
    topic.subscription("all").create(enable_message_ordering=True, max_outstanding_per_key=100).result()
    return pubsub


def test_whoever_takes_a_name_fences_whoever_had_it(server: Running, plain: PubSub) -> None:
    with client(server, "till-1") as first, client(server, "till-1") as second, client(server, "till-2") as other:
        publish(first, "a", "k")
        publish(second, "b", "k")
        with pytest.raises(ProducerFenced, match="producer 'till-1' was opened again"):
            publish(first, "late", "k")
        with pytest.raises((ProducerFenced, KeyPaused)):  # and stays so
            publish(first, "later", "k")
        with pytest.raises(ProducerFenced):
            publish(first, "later")
        publish(second, "c", "k")
        publish(other, "d", "k")
    assert texts(plain) == ["a", "b", "c", "d"]
    plain.close().result()


def test_a_producer_goes_on_after_a_refused_message(server: Running, plain: PubSub) -> None:
    with client(server, "till-1") as pubsub:
        publish(pubsub, "a")
        topic = pubsub.topic("orders")
        plain.topic("orders").delete().result()
        with pytest.raises(Exception, match="not found"):
            publish(pubsub, "nowhere")
        plain.topic("orders").create().result()
        plain.topic("orders").subscription("again").create().result()
        topic.publish_many([Message(text.encode(), ordering_key="k") for text in "bc"]).result(PATIENCE_SECONDS)
        publish(pubsub, "d", "k")
        found = [message.data for message in pubsub.subscription("again").pull(10).result()]
    assert found[0] == b"b"
    plain.close().result()


def test_a_producer_that_must_open_its_name_again_does_not_take_it_from_its_successor(
    server: Running, plain: PubSub
) -> None:
    with client(server, "till-1") as first, client(server, "till-1") as second:
        publish(first, "a")
        plain.topic("orders").delete().result()
        with pytest.raises(NotFound):
            publish(first, "nowhere")
        plain.topic("orders").create().result()
        publish(second, "b")
        for _ in range(2):
            with pytest.raises(ProducerFenced, match="producer 'till-1' was opened again"):
                publish(first, "late")
        publish(second, "c")
        assert plain.topic("orders").metadata().result().published == 2
    plain.close().result()


def test_what_a_loop_gives_back_is_there_for_others_once_its_client_is_closed(server: Running, plain: PubSub) -> None:
    publish(plain, "a", "k")
    for _ in range(5):
        with client(server) as pubsub:
            batches = pubsub.subscription("all").batches(100)
            for batch in batches:
                batches.give_back(batch)
                break
        assert plain.subscription("all").metrics().result().outstanding_messages == 0
    plain.close().result()


def test_the_largest_message_is_as_large_as_in_one_process(server: Running, plain: PubSub) -> None:
    attributes = {str(number): "x" for number in range(100)}
    left = MAX_MESSAGE_BYTES - sum(len(name) + 1 for name in attributes) - 1
    plain.topic("orders").publish_message(bytes(left), attributes, "k").result(PATIENCE_SECONDS)
    with pytest.raises(InvalidArgument, match="exceeds the maximum"):
        plain.topic("orders").publish_message(bytes(left + 1), attributes, "other").result(PATIENCE_SECONDS)
    (batch,) = islice(plain.subscription("all").batches(1), 1)
    assert [len(message.data) for message in batch] == [left]
    plain.close().result()


def test_a_name_is_checked(server: Running) -> None:
    for name in ("", "n" * 201):
        with pytest.raises(InvalidArgument, match="producer: a string of 1 to 200 characters"):
            PubSub(f"grpc://{server.address}?producer={name}")


def test_a_client_goes_by_what_it_knows_of_options_and_counters_of_a_later_server(
    server: Running, plain: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(options: object) -> str:
        return to_json({**changes_of(to_json(options)), "of_a_later_version": True})  # type: ignore[arg-type]

    monkeypatch.setattr(resources, "to_json", later)
    monkeypatch.setattr(delivery, "to_json", later)
    monkeypatch.setattr(
        keys, "asdict", lambda found: {**asdict(found), "counters": {**asdict(found)["counters"], "of_a_later_one": 1}}
    )
    publish(plain, "a", "k")
    with client(server) as pubsub:
        assert pubsub.topic("orders").metadata().result().published == 1
        assert pubsub.subscription("all").metadata().result().options.max_outstanding_per_key == 100
        assert pubsub.subscription("all").metrics().result().counters.delivered == 0
        (batch,) = islice(pubsub.subscription("all").batches(1), 1)
        assert [message.data for message in batch] == [b"a"]
    plain.close().result()


def test_what_was_held_up_on_its_way_for_longer_than_its_lease_is_not_begun(serve: Serve) -> None:
    """Whoever gets it next may have handled it by then, and what comes behind it."""
    there, here = ManualClock(), ManualClock(1_600_000_000)
    server = serve(MessageQueue(clock=there), project="shop")
    broker = server.broker
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders", {"message_ordering": True})
    proxy, woken = TcpProxy(server.port), threading.Event()
    transport = GrpcTransport(parse(f"grpc://127.0.0.1:{proxy.port}?project=shop"), here)
    try:
        intake = Intake(transport, "worker", woken.set, print)

        def next_one() -> Message:
            while (message := intake.next()) is None:
                assert woken.wait(PATIENCE_SECONDS)
                woken.clear()
            return message

        broker.publish("orders", [Message(b"1", ordering_key="k")])
        first = next_one()
        intake.finished(first)
        acked = first.ack()
        intake.flush()
        acked.result(PATIENCE_SECONDS)

        proxy.open.clear()
        broker.publish("orders", [Message(b"2", ordering_key="k")])
        wait_until(lambda: broker.metrics("worker").outstanding_messages == 1)
        there.advance(11)
        wait_until(lambda: broker.metrics("worker").counters.redelivered == 1)
        here.advance(11)
        proxy.open.set()
        second = next_one()
        assert (second.data, second.delivery_attempt) == (b"2", 2)
        intake.stop()
        intake.close().result(PATIENCE_SECONDS)
    finally:
        transport.close()
        proxy.close()
