"""A process that publishes and consumes in one folder until it is killed, and says all that it was answered.

    python victim.py FOLDER JOURNAL LIFE

Every line on its standard output is one event, as JSON, written in one piece before the thread goes on: what
was said before the process was killed is true, and whatever was answered and not said is no promise to anybody.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from inorder.broker import MessageQueue
from inorder.core import subscription
from inorder.errors import AlreadyExists, NotFound
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message, batch_of

TOPIC = "orders"
SUBSCRIPTIONS = ("worker", "slow")
SCRATCH = "scratch"
PUBLISHERS, CONSUMERS, KEYS = 3, 2, 3  # keys of each publisher
MOST_PENDING = 300  # messages, so that no life has to work through what many others have left


def opened(folder: Path | str, kind: str) -> MessageQueue:
    """A broker that begins new parts, saves snapshots and drops parts all the time."""
    place = Folder(folder)
    store = SegmentStore(place, segment_bytes=6_000) if kind == "segments" else SqliteStore(place, segment_bytes=6_000)
    return MessageQueue(journal=Journal(store, snapshot_bytes=15_000))


def say(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


class Life:
    def __init__(self, broker: MessageQueue, life: str) -> None:
        self.broker = broker
        self.life = life

    def publish(self, number: int) -> None:
        """Each key has one publisher, so that the order of its messages is known."""
        random = Random(f"{self.life} publish {number}")
        keys = [f"{number}-{key}" for key in range(KEYS)]
        sent = 0
        while True:
            names = [
                (random.choice(keys), f"{self.life}.{number}.{sent + n}") for n in range(random.choice((1, 1, 3, 8)))
            ]
            sent += len(names)
            for key, value in names:
                say("publishing", key, value)
            messages = [Message(value.encode().ljust(random.choice((0, 200)), b" "), None, key) for key, value in names]
            if random.random() < 0.5:
                ids = self.broker.publish(TOPIC, messages)
            else:  # several on their way at once
                answers = [self.broker.submit(TOPIC, batch_of([message])) for message in messages]
                ids = [answer.result()[0] for answer in answers]
            for (key, value), message_id in zip(names, ids, strict=True):
                say("published", key, value, message_id)
            while self.broker.metrics("worker").backlog_messages > MOST_PENDING:
                threading.Event().wait(0.005)

    def consume(self, number: int, name: str, patience: float) -> None:
        random = Random(f"{self.life} consume {name} {number}")
        while True:
            messages = self.broker.pull(name, random.choice((1, 5, 20)))
            for message in messages:
                what = name, message.ordering_key, message.data.decode().strip(), message.ack_id
                say("started", *what, message.id, message.position, message.delivery_attempt)
                if random.random() < 0.2:
                    say("nacking", *what)
                    self.broker.nack(message.ack_id)
                    say("nacked", *what)
                else:
                    say("acking", *what)
                    self.broker.ack(message.ack_id)
                    say("acked", *what)
            if patience or not messages:
                threading.Event().wait(patience or 0.002)

    def rearrange(self) -> None:
        """Topics and subscriptions come and go, with messages in them."""
        wait = threading.Event().wait
        while True:
            for verb, call in (
                ("topic", lambda: self.broker.register_topic(SCRATCH)),
                ("subscription", lambda: self.broker.register_subscription(SCRATCH, SCRATCH)),
                ("message", lambda: self.broker.publish(SCRATCH, [Message(b"x" * 100)])),
                ("no subscription", lambda: self.broker.unregister_subscription(SCRATCH)),
                ("no topic", lambda: self.broker.unregister_topic(SCRATCH)),
            ):
                say("changing", verb)
                try:
                    call()
                except (AlreadyExists, NotFound):  # as the life before has left it
                    continue
                say("changed", verb)
                wait(0.003)


def main() -> None:
    folder, kind, life = sys.argv[1:]
    subscription.READ_AHEAD = 20  # so that subscriptions fall behind what they hold in memory
    subscription.HOT_BYTES = 0
    broker = opened(folder, kind)
    options = {
        "enable_message_ordering": True,
        "ack_deadline_seconds": 600,
        "retry_policy": {"minimum_backoff": 0.001, "maximum_backoff": 0.02},
    }
    if not broker.topic_exists(TOPIC):
        broker.register_topic(TOPIC)
    for name in SUBSCRIPTIONS:
        if not broker.subscription_exists(name):
            broker.register_subscription(name, TOPIC, options)
    say("open")
    lived = Life(broker, life)
    work: list[Callable[[], None]] = [lived.rearrange, partial(lived.consume, 0, "slow", 0.01)]
    work += [partial(lived.publish, number) for number in range(PUBLISHERS)]
    work += [partial(lived.consume, number, "worker", 0) for number in range(CONSUMERS)]
    for call in work:
        threading.Thread(target=call, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
