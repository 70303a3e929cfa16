"""Publishes while a signal interrupts it again and again, and prints what is wrong then.

    python pressing_ctrl_c.py INTERRUPTS

A program of its own, as signals come to the main thread, wherever that is.
"""

import signal
import sys
import threading
from random import Random
from types import FrameType

from inorder import Batching, FlowControl, Message, PubSub, QueueLimits, Topic
from inorder.broker import MessageQueue
from inorder.errors import DeadlineExceeded, InorderError
from inorder.pending import Pending

PATIENCE_SECONDS = 30
Published = list[tuple[str, int, Pending[str]]]  # key, number, answer


class Interrupts:
    """One for each time that they are allowed."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self.allowed = False
        self._ended = False
        self._random = Random(seed)
        signal.signal(signal.SIGALRM, self._come)
        self._next()

    def _next(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.000_01, 0.002))

    def _come(self, _: int, __: FrameType | None) -> None:
        if self._ended:
            return
        self._next()
        if self.allowed:
            self.allowed = False
            self.count += 1
            raise KeyboardInterrupt

    def end(self) -> None:
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)


def publish_undisturbed(topic: Topic, key: str, done: threading.Event, published: Published) -> None:
    number = 0
    while not done.wait(0.000_01):
        published.append((key, number, topic.publish_message(b"%d" % number, ordering_key=key)))
        number += 1


def publish_interrupted(topic: Topic, interrupts: Interrupts, wanted: int, published: Published) -> None:
    random, number = Random(wanted), 0
    while interrupts.count < wanted:
        number += 1
        key, data = f"k{number % 3}", b"%d" % number
        for paused in topic.paused_keys():
            topic.resume_publishing(paused)
        call = random.randrange(20)
        try:
            interrupts.allowed = True
            if call:
                published.append((key, number, topic.publish_message(data, ordering_key=key)))
            elif random.randrange(2):
                topic.publish_many([Message(data, ordering_key=key)])
            else:
                topic.flush()
        except (KeyboardInterrupt, InorderError):
            pass
        interrupts.allowed = False


def problems(wanted: int, batching: Batching) -> list[str]:
    found: list[str] = []
    with PubSub(MessageQueue()) as pubsub:
        topic = pubsub.topic("orders").create().result()
        unlimited = QueueLimits(max_messages=None, max_bytes=None)
        worker = topic.subscription("worker").create(enable_message_ordering=True, queue_limits=unlimited).result()
        topic.set_publish_options(batching=batching, flow_control=FlowControl(max_messages=100))
        mine, others, done = Published(), Published(), threading.Event()
        other = threading.Thread(target=publish_undisturbed, args=(topic, "other", done, others), daemon=True)
        interrupts = Interrupts(wanted)
        other.start()
        publish_interrupted(topic, interrupts, wanted, mine)
        interrupts.end()
        done.set()
        other.join(PATIENCE_SECONDS)
        if other.is_alive():
            found.append("another thread waits for ever")
        try:
            topic.flush().result(PATIENCE_SECONDS)
        except DeadlineExceeded:
            found.append("a flush never ends")
        published = [*mine, *others]
        if left := [(key, number) for key, number, answer in published if not answer.done()]:
            found.append(f"not answered: {left[:3]}")
        arrived: dict[str, list[int]] = {}
        while messages := worker.pull(1_000).result():
            for message in messages:
                arrived.setdefault(message.ordering_key or "", []).append(int(message.data))
                message.ack()
        for key, numbers in arrived.items():
            if numbers != sorted({*numbers}):
                found.append(f"out of order, or twice: {key}")
        stored = {(key, number) for key, numbers in arrived.items() for number in numbers}
        told = [(key, number) for key, number, answer in published if answer.done() and answer.exception() is None]
        if lost := [one for one in told if one not in stored]:
            found.append(f"lost: {lost[:3]}")
    return found


if __name__ == "__main__":
    for milliseconds in (0, 5):
        wrong = problems(int(sys.argv[1]), Batching(max_messages=20, max_milliseconds=milliseconds))
        print(*wrong, sep="\n", end="\n" if wrong else "")
