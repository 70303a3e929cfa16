"""Bytes that are written by hand are those that protobuf reads, and columns come back as they went."""

from google.pubsub_v1.types import pubsub
from hypothesis import given
from hypothesis import strategies as st

from inorder.broker import MessageQueue
from inorder.message import DATA, Gap, Message, batch_of
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.extensions.delivery import add_columns
from inorder.server.wire import published_columns
from inorder.testing.clock import ManualClock
from inorder.transport.grpc.columns import arrived, ids_of_columns, publish_columns, publish_request, published_ids

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
attributes = st.dictionaries(texts.filter(lambda text: not text.startswith("goog")), st.text(max_size=300), max_size=4)
messages = st.builds(
    lambda data, own, key: Message(data, own, key),
    st.binary(max_size=300) | st.integers(16_000, 20_000).map(bytes),
    st.none() | attributes,
    st.none() | texts,
)


@given(st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=3))
def test_google_reads_what_is_published(batches: list[list[Message]]) -> None:
    raw = publish_request("projects/p/topics/ключ", [batch_of(batch) for batch in batches])
    request = pubsub.PublishRequest.deserialize(raw)
    assert request.topic == "projects/p/topics/ключ"
    published = [message for batch in batches for message in batch]
    assert len(request.messages) == len(published)
    for read, message in zip(request.messages, published, strict=True):
        assert (read.data, dict(read.attributes)) == (message.data, message.attributes)
        assert read.ordering_key == (message.ordering_key or "")


@given(st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=3))
def test_columns_come_as_they_were_handed_over(batches: list[list[Message]]) -> None:
    together = [batch_of(batch) for batch in batches]
    topic, (keys, data, own, sizes) = published_columns(publish_columns("projects/p/topics/ключ", together))
    assert topic == "projects/p/topics/ключ"
    assert (keys, data, sizes) == tuple([one for batch in together for one in batch[column]] for column in (0, 1, 3))
    assert [one or None for one in own] == [one or None for batch in together for one in batch[2]]


def test_the_ids_of_columns_are_counted() -> None:
    response = v1.PublishedColumns(id_prefix="e-0-", first_position=9).SerializeToString()
    assert ids_of_columns(response, 3) == ["e-0-9", "e-0-10", "e-0-11"]


def test_the_ids_are_read_that_google_writes() -> None:
    response = pubsub.PublishResponse(message_ids=["1", "22", "x-3"])
    assert published_ids(pubsub.PublishResponse.serialize(response)) == ["1", "22", "x-3"]


@given(st.lists(messages, min_size=1, max_size=8))
def test_what_is_delivered_comes_as_it_was_stored(published: list[Message]) -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.publish("orders", published)
    leased, columns = queue.lease("worker", 100), v1.Columns()
    add_columns(columns, leased)
    read = arrived(v1.Columns.FromString(columns.SerializeToString()), offset=1_000)
    assert read.leases == [lease + 1_000 for lease in leased.leases]
    assert read.attempts == [*leased.attempts]
    assert read.records == [(*record[:6], record[4]) for record in leased.records]


def test_a_gap_comes_in_its_place() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    limits = {"max_messages": 2}
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True, "queue_limits": limits})
    for text in "123":
        queue.publish("orders", [Message(text.encode(), {"text": text}, ordering_key="k")])
    queue.ack(queue.take("worker", 1))
    queue.ack(queue.take("worker", 1))
    columns = v1.Columns()
    add_columns(columns, queue.lease("worker", 1))
    read = arrived(v1.Columns.FromString(columns.SerializeToString()))
    assert read.records[0][DATA] == Gap("k", 2, 2, 1, "dropped")
