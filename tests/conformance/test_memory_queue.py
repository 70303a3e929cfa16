"""The in-memory broker keeps every promise, and a few that only it makes."""

import subprocess
import sys
from threading import Barrier, Thread

from inorder.broker import MessageQueue
from inorder.message import Message
from inorder.testing.clock import ManualClock
from inorder.testing.conformance import QueueCase, QueueConformance


class TestMemoryQueue(QueueConformance):
    def make_queue(self, clock: ManualClock) -> MessageQueue:
        return MessageQueue(clock=clock)


def test_there_is_one_instance() -> None:
    """message-queue AC-001"""
    assert MessageQueue.get_instance() is MessageQueue.get_instance()


def test_threads_that_ask_at_the_same_time_get_the_same_instance() -> None:
    """message-queue BR-001"""
    together = Barrier(16)
    found: list[MessageQueue] = []

    def ask() -> None:
        together.wait()
        found.append(MessageQueue.get_instance())

    threads = [Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(each is found[0] for each in found)


def test_the_instance_is_not_the_only_broker() -> None:
    """message-queue BR-001: a test, or anybody else, may have one of its own."""
    mine = MessageQueue()
    assert mine is not MessageQueue.get_instance()
    mine.register_topic("orders")
    assert not MessageQueue.get_instance().topic_exists("orders")


def test_no_test_of_the_suite_hides_another() -> None:
    names = [name for part in QueueConformance.__mro__ for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names)) > 100


def test_pytest_is_needed_for_the_conformance_suite_only() -> None:
    script = "import sys, inorder.testing.clock, inorder.testing.history; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", script]).returncode == 0


class TestOnlyInMemory(QueueCase):
    """Defaults that other brokers do not share: disks hold more, and Pub/Sub's protocol allows less."""

    def make_queue(self, clock: ManualClock) -> MessageQueue:
        return MessageQueue(clock=clock)

    def test_a_subscription_holds_10_000_messages_unless_told(self) -> None:
        """message-queue BR-022"""
        self.subscribe()
        self.queue.publish("orders", [Message(b"x")] * 10_000)
        assert self.queue.metrics("worker").counters.dropped == 0
        self.queue.publish("orders", [Message(b"x")])
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_messages, metrics.counters.dropped) == (10_000, 1)

    def test_a_subscription_holds_100_megabytes_unless_told(self) -> None:
        """message-queue BR-022"""
        self.subscribe()
        data = bytes(10_000_000)
        for _ in range(10):
            self.queue.publish("orders", [Message(data)])
        assert self.queue.metrics("worker").counters.dropped == 0
        self.queue.publish("orders", [Message(b"x")])
        metrics = self.queue.metrics("worker")
        assert (metrics.backlog_bytes, metrics.counters.dropped) == (100_000_000, 1)

    def test_a_message_may_have_exactly_10_megabytes(self) -> None:
        """message-queue BR-017"""
        self.subscribe()
        self.queue.publish("orders", [Message(bytes(9_999_996), {"k": "v"}, "kk")])
        [message] = self.pull()
        assert message.length == 9_999_996

    def test_an_ack_deadline_may_be_shorter_than_pubsub_allows(self) -> None:
        """message-ordering AC-005: the specification itself asks for one second."""
        self.subscribe(enable_message_ordering=True, ack_deadline=1)
        self.publish("first", "second", key="user-123")
        assert self.pull_texts() == ["first"]
        self.clock.advance(0.9)
        assert self.pull() == []
        self.clock.advance(0.1)
        assert self.consume() == ["first", "second"]

    def test_a_message_may_die_at_its_first_failure(self) -> None:
        """message-queue BR-016"""
        self.subscribe("undertaker", "dead")
        self.subscribe(dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 1})
        self.publish("a")
        self.fail(1)
        assert self.pull() == []
        assert self.pull_texts(subscription="undertaker") == ["a"]
