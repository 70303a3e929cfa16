"""A Publish whose messages are columns: what it stores, what it answers, and what of it is refused."""

from typing import Any

import grpc
import pytest

from inorder import Columns, Message, PubSub
from inorder.protocol import PRODUCER_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server import publisher
from inorder.server.extensions.service import Extensions as Service
from inorder.server.limits import MAX_COLUMNS

from .conftest import Running, Serve

TOPIC = "projects/inorder/topics/orders"
PATIENCE_SECONDS = 30


@pytest.fixture
def topic(server: Running) -> Running:
    server.broker.register_topic("orders")
    server.broker.register_subscription(
        "all", "orders", {"enable_message_ordering": True, "max_outstanding_per_key": 10}
    )
    return server


def publish(server: Running, request: v1.PublishColumns, number: int = 0) -> v1.PublishedColumns:
    attempt = v1.Attempt(producer="p", number=number, columns=True).SerializeToString()
    call = server.channel().unary_unary("/google.pubsub.v1.Publisher/Publish")
    answer = call(request.SerializeToString(), metadata=[(PRODUCER_KEY, attempt)], timeout=PATIENCE_SECONDS)
    return v1.PublishedColumns.FromString(answer)


def columns(keys: list[str], data: list[bytes], **more: Any) -> v1.PublishColumns:
    return v1.PublishColumns(topic=TOPIC, messages=v1.Columns(ordering_keys=keys, data=data, **more))


def pulled(server: Running) -> list[Message]:
    return server.broker.pull("all", 100)


def test_columns_are_stored_once_and_answered_with_the_same_ids(topic: Running) -> None:
    request = columns(["a", "", "b"], [b"1", b"", b"3"])
    request.messages.attributes[1].values["lang"] = "de"
    first = publish(topic, request)
    assert publish(topic, request) == first
    messages = sorted(pulled(topic), key=lambda message: message.position)
    assert [(m.ordering_key, m.data, m.attributes) for m in messages] == [
        ("a", b"1", {}),
        (None, b"", {"lang": "de"}),
        ("b", b"3", {}),
    ]
    assert [m.id for m in messages] == [f"{first.id_prefix}{first.first_position + place}" for place in range(3)]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (columns(["a", "b"], [b"1"]), "one ordering key and data for each, not 2 and 1"),
        (columns(["a"], [b"1"], attributes={1: v1.Attributes(values={"lang": "de"})}), "attributes for 2"),
        (columns([], []), "message_count"),
        (columns(["a"] * (MAX_COLUMNS + 1), [b"1"] * (MAX_COLUMNS + 1)), "4001"),
        (columns(["k" * 1025], [b"1"]), "1024"),
        (columns(["a"], [b"1"], attributes={0: v1.Attributes(values={"goog-x": "v"})}), "goog"),
    ],
    ids=["lengths", "attributes of none", "nothing", "too many", "a long key", "a reserved attribute"],
)
def test_what_is_wrong_with_columns_is_told_and_nothing_is_stored(
    topic: Running, request_: v1.PublishColumns, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        publish(topic, request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.details()
    assert pulled(topic) == []


def test_columns_without_an_attempt_are_no_messages(topic: Running) -> None:
    call = topic.channel().unary_unary("/google.pubsub.v1.Publisher/Publish")
    with pytest.raises(grpc.RpcError) as caught:
        call(columns(["a"], [b"1"]).SerializeToString(), timeout=PATIENCE_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_as_many_go_together_as_a_request_may_have(topic: Running) -> None:
    count = MAX_COLUMNS
    answer = publish(topic, columns(["a"] * count, [b"%d" % number for number in range(count)]))
    assert answer.first_position == 0
    metadata = topic.broker.get_topic("orders")
    assert metadata is not None
    assert metadata.published == count


@pytest.mark.parametrize("takes_columns", [True, False])
def test_a_server_is_sent_what_it_takes(serve: Serve, monkeypatch: pytest.MonkeyPatch, takes_columns: bool) -> None:
    """One that does not say that it takes columns, as older ones do not, is sent messages."""
    split: list[str] = []

    async def describe(*_: object) -> v1.Description:
        return v1.Description(protocol=1, project="inorder", columns=takes_columns)

    def noted(name: str) -> Any:
        before = getattr(publisher, name)
        return lambda raw: split.append(name) or before(raw)

    monkeypatch.setattr(Service, "describe", describe)
    for name in ("published", "published_columns"):
        monkeypatch.setattr(publisher, name, noted(name))
    server = serve()
    with PubSub(f"grpc://{server.address}") as pubsub:
        topic = pubsub.topic("orders").create().result(PATIENCE_SECONDS)
        subscription = topic.subscription("all").create(enable_message_ordering=True).result(PATIENCE_SECONDS)
        ids = topic.publish_many(Columns(["a", "b"], [b"1", b"2"])).result(PATIENCE_SECONDS)
        messages = subscription.pull(10).result(PATIENCE_SECONDS)
    assert [message.id for message in messages] == ids
    assert split == ["published_columns" if takes_columns else "published"]
