"""What a stream has taken and not sent when its client goes."""

import asyncio
from contextlib import suppress

from inorder import Message
from inorder.broker import MessageQueue
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.desk import Desk
from inorder.server.extensions.delivery import MAX_UNHEARD, OwnStream
from inorder.server.names import Names
from inorder.server.status import not_pulled
from inorder.server.streaming import Stream, StreamingPullRequest


class Stuck:
    """A client that reads nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def write(self, response: bytes) -> None:
        self.asked.set()
        await asyncio.Event().wait()


def broker_with_a_worker() -> MessageQueue:
    broker = MessageQueue()
    broker.register_topic("orders")
    broker.register_subscription("worker", "orders")
    return broker


def desk_of(broker: MessageQueue) -> Desk:
    return Desk(broker, "worker", "projects/shop/subscriptions/worker", lambda desk: None)


def test_messages_behind_an_answer_that_its_client_never_read_come_again_at_once() -> None:
    broker = broker_with_a_worker()
    broker.publish("orders", [Message(b"a")])

    async def serve() -> None:
        desk = desk_of(broker)
        stream = Stream(broker, "worker", desk, StreamingPullRequest(stream_ack_deadline_seconds=600))
        desk.join(stream)
        desk.hand_out()
        stream.say(b"")
        client = Stuck()
        writing = asyncio.create_task(stream.write(client))
        await client.asked.wait()
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        stream.give_back()
        desk.leave(stream)

    asyncio.run(serve())
    assert [message.data for message in broker.pull("worker", 10)] == [b"a"]


def test_messages_for_a_client_that_reads_nothing_come_again_as_soon_as_its_stream_is_to_end() -> None:
    broker = broker_with_a_worker()

    async def serve() -> None:
        desk = desk_of(broker)
        stream = Stream(broker, "worker", desk, StreamingPullRequest(stream_ack_deadline_seconds=600))
        desk.join(stream)
        stream.say(b"")
        client = Stuck()
        writing = asyncio.create_task(stream.write(client))
        await client.asked.wait()
        broker.publish("orders", [Message(b"a")])
        desk.hand_out()
        stream.end(not_pulled())
        assert [message.data for message in broker.pull("worker", 10)] == [b"a"]
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        stream.give_back()
        desk.leave(stream)
        assert broker.metrics("worker").outstanding_messages == 1  # of the pull

    asyncio.run(serve())


def test_messages_of_earlier_terms_that_were_never_sent_come_again_at_once() -> None:
    broker = broker_with_a_worker()
    broker.publish("orders", [Message(b"a")])

    async def serve() -> None:
        desk = desk_of(broker)
        stream = OwnStream(broker, Names("shop"), "worker", desk)
        desk.join(stream)
        desk.listen(stream)
        stream.grant(10, 1_000, last=False)
        desk.hand_out()
        stream.confirm(1, [])
        broker.update_subscription("worker", {"ack_deadline_seconds": 20})
        desk.hand_out()
        stream.give_back()
        first = stream._next()
        assert first is not None
        assert [confirmation.number for confirmation in first.confirmations] == [1]
        assert first.messages == v1.Columns()
        desk.ignore(stream)
        desk.leave(stream)

    asyncio.run(serve())
    assert [message.data for message in broker.pull("worker", 10)] == [b"a"]


def test_problems_do_not_fill_the_memory_while_a_client_reads_nothing() -> None:
    broker = broker_with_a_worker()

    async def serve() -> None:
        desk = desk_of(broker)
        stream = OwnStream(broker, Names("shop"), "worker", desk)
        for number in range(MAX_UNHEARD + 1):
            stream.tell(f"problem {number}")
        told = stream._next()
        assert told is not None
        assert len(told.problems) == MAX_UNHEARD
        stream.tell("another one")
        told = stream._next()
        assert told is not None
        assert told.problems == ["another one"]

    asyncio.run(serve())
