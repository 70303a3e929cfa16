"""A broker on disk that is closed while everybody works: what was answered is there, and nothing hangs."""

import threading
from pathlib import Path

import pytest

from inorder import Message, PubSub, Subscription
from inorder.broker import MessageQueue
from inorder.errors import Closed, InorderError

PATIENCE_SECONDS = 60


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_what_was_answered_before_a_broker_closed_is_there(tmp_path: Path, kind: str) -> None:
    queue = MessageQueue.open(tmp_path, journal=kind)  # type: ignore[arg-type]
    queue.register_topic("t")
    queue.register_subscription("s", "t", {"enable_message_ordering": True})
    answered: list[str] = []
    acked: list[str] = []
    enough = threading.Event()

    def publish(key: str) -> None:
        for number in range(1_000_000):
            try:
                ids = queue.publish("t", [Message(b"%d" % number, ordering_key=key)])
            except Closed:
                return
            answered.extend(ids)
            if len(answered) > 200:
                enough.set()

    def consume() -> None:
        while True:
            try:
                messages = queue.pull("s", 10)
                queue.ack(messages)
            except (Closed, InorderError):
                return
            acked.extend(message.id for message in messages)

    threads = [threading.Thread(target=publish, args=(key,)) for key in "abcd"]
    threads += [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert enough.wait(PATIENCE_SECONDS)
    queue.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()

    again = MessageQueue.open(tmp_path, journal=kind)  # type: ignore[arg-type]
    left: list[str] = []
    while messages := again.pull("s", 1_000):
        left += [message.id for message in messages]
        again.ack(messages)
    again.close()
    assert set(answered) <= {*acked, *left}  # nothing is lost
    assert not {*acked} & {*left}  # what was acked does not come again
    assert len(left) == len(set(left))


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_a_client_that_closes_while_it_publishes_and_handles_loses_nothing(tmp_path: Path, kind: str) -> None:
    handled: list[bytes] = []
    enough = threading.Event()

    def handle(message: Message) -> None:
        handled.append(message.data)
        message.ack()
        if len(handled) > 200:
            enough.set()

    answered: list[bytes] = []
    url = f"file:{tmp_path}?journal={kind}"
    with PubSub(url) as pubsub:
        topic = pubsub.topic("t").create().result()
        subscription: Subscription = topic.subscription("s").create(enable_message_ordering=True).result()
        subscription.on("message", handle).open()

        def publish() -> None:
            for number in range(1_000_000):
                data = b"%d" % number
                try:
                    topic.publish_message(data, ordering_key=str(number % 7)).result(PATIENCE_SECONDS)
                except InorderError:
                    return
                answered.append(data)

        publisher = threading.Thread(target=publish)
        publisher.start()
        assert enough.wait(PATIENCE_SECONDS)
    publisher.join(PATIENCE_SECONDS)
    assert not publisher.is_alive()

    with PubSub(url) as pubsub:
        left = []
        while messages := pubsub.subscription("s").pull(1_000).result():
            left += [message.data for message in messages]
            for message in messages:
                message.ack().result()
    assert {*answered} <= {*handled, *left}
    assert not {*handled} & {*left}


def test_a_subscription_deleted_and_made_anew_before_anything_is_written_starts_anew(tmp_path: Path) -> None:
    queue = MessageQueue.open(tmp_path)
    queue.register_topic("t")
    queue.register_subscription("s", "t")
    go = threading.Barrier(3)

    def publish() -> None:
        go.wait()
        for _ in range(50):
            queue.publish("t", [Message(b"x")])

    def replace() -> None:
        go.wait()
        for _ in range(50):
            queue.unregister_subscription("s")
            queue.register_subscription("s", "t")

    threads = [threading.Thread(target=publish), threading.Thread(target=replace)]
    for thread in threads:
        thread.start()
    go.wait()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    before = queue.metrics("s").backlog_messages
    queue.close()
    queue = MessageQueue.open(tmp_path)
    assert queue.metrics("s").backlog_messages == before
    assert len(queue.pull("s", 1_000)) == before
    queue.close()
