"""`inorder bench`: a quick load on a broker, and whether it kept the order under it."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex
from time import monotonic, perf_counter_ns
from typing import Final

from inorder.cli.colours import Paint
from inorder.cli.exits import DONE, NO
from inorder.cli.progress import Bar
from inorder.cli.showing import print_json, print_pairs
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Verbs, add_verb
from inorder.client.topic import Topic
from inorder.errors import InorderError, InvalidArgument
from inorder.message import Message
from inorder.options import MAX_MESSAGE_BYTES
from inorder.testing.history import Anomalies, History, anomalies

_MAX_SECONDS: Final = 60  # every message is remembered, to be judged at the end
_PAUSE_SECONDS: Final = 1  # after which a publisher without room looks whether it is to end
_PATIENCE_SECONDS: Final = 60  # for what was published and is not handled yet
_FIELDS: Final = {
    "published": "messages",
    "handled": "messages",
    "seconds": "from the first publish to the last handler",
    "messages_per_second": "handled",
    "publish_p50_ms": "of a request, until it is answered",
    "publish_p99_ms": "of a request",
    "delivery_p50_ms": "from before its publish to its handler",
    "delivery_p99_ms": "of a message",
    "in_order": "whether each key was handled in order, one message at a time, and none is lost",
    "verdict": "in words",
}
_MORE: Final = """\
It makes a topic and an ordered subscription of its own, and removes them. Publishers and handlers are threads of this
one process, so it says what the broker does for one client, and no more. Exit code 1 if anything was out of order.

  inorder bench --target file:./bench --seconds 5 --publishers 4 --keys 1000
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "put a quick load on a broker: its rate, its latency, and whether it kept the order"
    verb = add_verb(nouns, "bench", _bench, text, fields=_FIELDS, more=_MORE)
    verb.add_argument("--seconds", type=float, default=3, metavar="N", help="of publishing (%(default)s)")
    verb.add_argument("--publishers", type=int, default=2, metavar="N", help="threads (%(default)s)")
    verb.add_argument("--keys", type=int, default=100, metavar="N", help="ordering keys (%(default)s)")
    verb.add_argument("--size", type=int, default=200, metavar="BYTES", help="of a message's data (%(default)s)")
    verb.add_argument("--batch", type=int, default=100, metavar="N", help="messages in a request (%(default)s)")
    verb.add_argument(
        "--window", type=int, default=10_000, metavar="N", help="messages that may wait to be handled (%(default)s)"
    )
    add_target(verb)


def _bench(given: argparse.Namespace) -> int:
    for name in ("publishers", "keys", "size", "batch", "window"):
        if getattr(given, name) < 1:
            raise InvalidArgument(f"--{name}: at least 1, not {getattr(given, name)}")
    most = MAX_MESSAGE_BYTES - len(_key(given.keys - 1))
    if given.size > most:  # before somebody makes one of them
        raise InvalidArgument(f"--size: up to {most}, as a key belongs to a message as well, not {given.size}")
    if not 0 < given.seconds <= _MAX_SECONDS:
        raise InvalidArgument(f"--seconds: above 0, up to {_MAX_SECONDS}, not {given.seconds:g}")
    if given.keys < given.publishers:
        raise InvalidArgument(f"--keys: at least one for each of {given.publishers} publishers, not {given.keys}")
    with connected(given, create=True) as pubsub:
        name = f"inorder-bench-{token_hex(6)}"
        topic = pubsub.topic(name).create().result()
        subscription = topic.subscription(name)
        load = _Load(topic, given)
        try:
            limits = {"max_messages": None, "max_bytes": None, "when_full": "block"}
            subscription.create(enable_message_ordering=True, ack_deadline_seconds=60, queue_limits=limits).result()
            subscription.on("message", load.history.handler(load.handle)).open()
            load.run()
        finally:
            load.stop()
            for remove in (subscription.close, subscription.delete, topic.delete):
                with suppress(InorderError):  # a broker that is gone was told before
                    remove().result()
    found = anomalies(load.history)
    _tell(given, load, found)
    return NO if found else DONE


def _key(number: int) -> str:
    return f"key-{number}"


class _Load:
    """Publishers, a handler, and what they measured."""

    def __init__(self, topic: Topic, given: argparse.Namespace) -> None:
        self.history = History()
        self._topic = topic
        self._given = given
        self._changed = threading.Condition()
        self.published = self.handled = 0
        self.publish_ns: list[int] = []
        self.delivery_ns: list[int] = []
        self.seconds = 0.0
        self._end = 0.0
        self._errors: list[BaseException] = []

    def handle(self, message: Message) -> None:
        sent_ns = int(message.data.split(b" ", 2)[1])
        self.delivery_ns.append(perf_counter_ns() - sent_ns)
        message.ack()
        with self._changed:
            self.handled += 1
            self._changed.notify_all()

    def run(self) -> None:
        began = monotonic()
        self._end = began + self._given.seconds
        publishers = [
            threading.Thread(target=self._publisher, args=(number,), daemon=True)
            for number in range(self._given.publishers)
        ]
        for publisher in publishers:
            publisher.start()
        with Bar("loading", sys.stderr) as bar:
            while any(publisher.is_alive() for publisher in publishers):
                publishers[0].join(0.05)
                bar(min(monotonic() - began, self._given.seconds), self._given.seconds)
        for publisher in publishers:
            publisher.join()
        for error in self._errors:
            raise error
        with self._changed:
            self._changed.wait_for(lambda: self.handled >= self.published, _PATIENCE_SECONDS)
        self.seconds = monotonic() - began

    def stop(self) -> None:
        """Publish no more, whatever time is left."""
        self._end = 0.0

    def _publisher(self, number: int) -> None:
        """One publisher writes to a key, so that its order is known."""
        keys = [_key(key) for key in range(number, self._given.keys, self._given.publishers)]
        count = 0
        try:
            while monotonic() < self._end and not self._errors:
                if self._has_room():
                    count = self._publish([(keys[n % len(keys)], n) for n in range(count, count + self._given.batch)])
        except BaseException as error:
            self._errors.append(error)

    def _has_room(self) -> bool:
        """Whether fewer wait to be handled than may; if not, that is waited for, but not for long."""
        window: int = self._given.window
        with self._changed:
            return self._changed.wait_for(lambda: self.published - self.handled < window, _PAUSE_SECONDS)

    def _publish(self, numbered: Sequence[tuple[str, int]]) -> int:
        began_ns = perf_counter_ns()
        messages = [Message(self._data(number, began_ns), None, key) for key, number in numbered]
        for message in messages:
            self.history.publishing(message.ordering_key, message.data)
        self._topic.publish_many(messages).result()
        self.publish_ns.append(perf_counter_ns() - began_ns)
        for message in messages:
            self.history.published(message.ordering_key, message.data)
        with self._changed:
            self.published += len(messages)
        return numbered[-1][1] + 1

    def _data(self, number: int, time_ns: int) -> bytes:
        return (b"%d %d " % (number, time_ns)).ljust(self._given.size, b".")


def _tell(given: argparse.Namespace, load: _Load, found: Anomalies) -> None:
    plain = {
        "published": load.published,
        "handled": load.handled,
        "seconds": round(load.seconds, 3),
        "messages_per_second": round(load.handled / load.seconds),
        "publish_p50_ms": _percentile_ms(load.publish_ns, 0.5),
        "publish_p99_ms": _percentile_ms(load.publish_ns, 0.99),
        "delivery_p50_ms": _percentile_ms(load.delivery_ns, 0.5),
        "delivery_p99_ms": _percentile_ms(load.delivery_ns, 0.99),
        "in_order": not found,
        "verdict": str(found),
    }
    if given.json:
        print_json(plain)
        return
    paint = Paint(sys.stdout)
    print_pairs(
        [
            ("published", f"{load.published:,} messages of {given.size:,} bytes, {given.batch:,} in a request"),
            ("rate", f"{plain['messages_per_second']:,} messages/s, published and handled"),
            ("publish", f"p50 {plain['publish_p50_ms']} ms, p99 {plain['publish_p99_ms']} ms for a request"),
            ("delivery", f"p50 {plain['delivery_p50_ms']} ms, p99 {plain['delivery_p99_ms']} ms to the handler"),
            ("verdict", (paint.red if found else paint.green)(str(found))),
        ]
    )


def _percentile_ms(times_ns: Sequence[int], share: float) -> float | None:
    if not times_ns:
        return None
    ordered = sorted(times_ns)
    return round(ordered[min(round(share * len(ordered)), len(ordered) - 1)] / 1_000_000, 3)
