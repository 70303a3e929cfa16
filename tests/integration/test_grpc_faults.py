"""Servers that die, stop or are cut off while a client publishes and handles.

Nothing is lost, nothing is stored twice, and no key is out of order.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inorder import Message, PubSub
from inorder.errors import InvalidAckId, SubscriptionNotFound, Unavailable
from inorder.testing.history import History, anomalies
from tests.integration.tcp_proxy import TcpProxy

FAULTS = min(int(os.environ.get("KILLS", "3")), 50)
KEYS = [f"key-{number}" for number in range(20)]
PATIENCE_SECONDS = 60


class ServerProcess:
    """`inorder serve` on a folder, always on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self.start()

    def start(self, folder: Path | None = None) -> None:
        self._folder = folder or self._folder
        command = [sys.executable, "-m", "inorder", "serve", "--data", str(self._folder), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert f":{self.port}" in self._process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    yield server
    server.kill()


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[TcpProxy]:
    proxy = TcpProxy(server.port)
    yield proxy
    proxy.close()


class Program:
    """Publishes to some keys, one message of each after the other, and handles them, until it is told to stop."""

    def __init__(self, port: int, **options: Any) -> None:
        self.pubsub = PubSub(f"grpc://127.0.0.1:{port}")
        self.history = History()
        self.ids: dict[tuple[str | None, bytes], set[str]] = defaultdict(set)  # under which each message was stored
        self.rounds = 0
        self._stopped = threading.Event()
        self._topic = self.pubsub.topic("orders").create().result(PATIENCE_SECONDS)
        subscription = self._topic.subscription("worker")
        subscription.create(enable_message_ordering=True, **options).result(PATIENCE_SECONDS)
        self._handle = self.history.handler(self._seen)
        subscription.on("message", self._handle).on("error", print).open()
        self._publisher = threading.Thread(target=self._publish)
        self._publisher.start()

    def _seen(self, message: Message) -> None:
        self.ids[message.ordering_key, message.data].add(message.id)
        message.ack()

    def _publish(self) -> None:
        while not self._stopped.is_set():
            data = b"%d" % self.rounds
            for key in KEYS:
                self.history.publishing(key, data)
            sent = [self._topic.publish_message(data, ordering_key=key) for key in KEYS]
            for key, answer in zip(KEYS, sent, strict=True):
                answer.result(PATIENCE_SECONDS)
                self.history.published(key, data)
            self.rounds += 1

    def more(self, rounds: int = 10) -> None:
        """Let it go on for so many rounds."""
        wanted = self.rounds + rounds
        wait_until(lambda: self.rounds >= wanted)

    def finish(self) -> None:
        """All is handled and right."""
        self._stopped.set()
        self._publisher.join(PATIENCE_SECONDS)
        worker = self.pubsub.subscription("worker")
        wait_until(lambda: worker.metrics().result(PATIENCE_SECONDS).backlog_messages == 0)
        published = self._topic.metadata().result(PATIENCE_SECONDS).published
        self.pubsub.close().result(PATIENCE_SECONDS)
        found = anomalies(self.history)
        assert not found, str(found)
        assert published == len(KEYS) * self.rounds
        assert {len(ids) for ids in self.ids.values()} == {1}


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"this did not happen within {PATIENCE_SECONDS} s"
        time.sleep(0.005)


@pytest.mark.parametrize("window", [1, 10])
def test_a_server_that_is_killed(server: ServerProcess, window: int) -> None:
    program = Program(server.port, max_outstanding_per_key=window)
    for _ in range(FAULTS):
        program.more()
        server.kill()
        server.start()
    program.more()
    program.finish()


def test_a_handler_that_outlives_its_server_is_told_and_holds_nobody_up(server: ServerProcess) -> None:
    pubsub = PubSub(f"grpc://127.0.0.1:{server.port}")
    topic = pubsub.topic("orders").create().result(PATIENCE_SECONDS)
    worker = topic.subscription("worker").create(enable_message_ordering=True).result(PATIENCE_SECONDS)
    begun, goes_on = threading.Event(), threading.Event()
    late: list[BaseException | None] = []
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.data == b"long" and not begun.is_set():
            begun.set()
            goes_on.wait(PATIENCE_SECONDS)
            late.append(message.ack().exception(PATIENCE_SECONDS))
            return
        handled.append(message.data)
        message.ack()

    worker.on("message", handle).open()
    topic.publish_message(b"long", ordering_key="k").result(PATIENCE_SECONDS)
    assert begun.wait(PATIENCE_SECONDS)
    server.kill()
    server.start()
    topic.publish_message(b"other", ordering_key="o").result(PATIENCE_SECONDS)
    wait_until(lambda: handled == [b"other"])  # on the new server's stream; the next of the key waits for its handler
    goes_on.set()
    wait_until(lambda: late)
    assert isinstance(late[0], InvalidAckId)
    topic.publish_message(b"last", ordering_key="k").result(PATIENCE_SECONDS)
    wait_until(lambda: handled == [b"other", b"long", b"last"])
    pubsub.close().result(PATIENCE_SECONDS)


def test_a_topic_of_another_server_is_another_topic(server: ServerProcess, tmp_path: Path) -> None:
    """One that was started on an empty folder counts from the beginning, as the first one did."""
    pubsub = PubSub(f"grpc://127.0.0.1:{server.port}")
    topic = pubsub.topic("orders").create().result(PATIENCE_SECONDS)
    worker = topic.subscription("worker").create().result(PATIENCE_SECONDS)
    handled: list[str] = []
    errors: list[BaseException] = []

    def handle(message: Message) -> None:
        handled.append(message.id)
        message.ack()

    worker.on("message", handle).on("error", errors.append).open()
    first = topic.publish_message(b"1").result(PATIENCE_SECONDS)
    wait_until(lambda: handled == [first])
    server.kill()
    server.start(tmp_path / "another")
    with PubSub(f"grpc://127.0.0.1:{server.port}") as other:
        made = other.topic("orders").create().result(PATIENCE_SECONDS)
        made.subscription("worker").create().result(PATIENCE_SECONDS)
        made.publish_message(b"2").result(PATIENCE_SECONDS)
    wait_until(lambda: errors)
    assert isinstance(errors[0], SubscriptionNotFound)
    assert handled == [first]
    pubsub.close().result(PATIENCE_SECONDS)


@pytest.mark.parametrize("window", [1, 10])
def test_a_server_that_stands_still(server: ServerProcess, window: int) -> None:
    """For longer than leases last."""
    program = Program(server.port, max_outstanding_per_key=window, ack_deadline_seconds=0.5)
    for _ in range(FAULTS):
        program.more()
        server.signal(signal.SIGSTOP)
        time.sleep(0.7)
        server.signal(signal.SIGCONT)
    program.more()
    program.finish()


def test_a_server_that_does_not_come_back_holds_up_neither_publishing_nor_closing(server: ServerProcess) -> None:
    pubsub = PubSub(f"grpc://127.0.0.1:{server.port}?timeout=1")
    topic = pubsub.topic("orders").create().result(PATIENCE_SECONDS)
    worker = topic.subscription("worker").create().result(PATIENCE_SECONDS)
    handled: list[Message] = []
    worker.on("message", handled.append).open()
    topic.publish_message(b"1", ordering_key="k").result(PATIENCE_SECONDS)
    wait_until(lambda: handled)
    server.signal(signal.SIGSTOP)  # its connections stay, and nothing comes back over them
    began = time.monotonic()
    with pytest.raises(Unavailable):
        topic.publish_message(b"2", ordering_key="k").result(PATIENCE_SECONDS)
    pubsub.close().result(PATIENCE_SECONDS)
    assert time.monotonic() - began < 15  # gRPC notices after forty seconds and more


@pytest.mark.parametrize("window", [1, 10])
def test_connections_that_are_cut(proxy: TcpProxy, window: int) -> None:
    program = Program(proxy.port, max_outstanding_per_key=window, ack_deadline_seconds=0.5)
    for _ in range(3 * FAULTS):
        program.more(5)
        proxy.cut()
    program.more()
    program.finish()


def test_a_pull_whose_answer_is_lost_brings_the_same_and_not_what_is_behind(
    server: ServerProcess, proxy: TcpProxy
) -> None:
    direct, far = PubSub(f"grpc://127.0.0.1:{server.port}"), PubSub(f"grpc://127.0.0.1:{proxy.port}")
    topic = direct.topic("orders").create().result(PATIENCE_SECONDS)
    worker = topic.subscription("worker")
    worker.create(enable_message_ordering=True, max_outstanding_per_key=10, ack_deadline_seconds=600).result(
        PATIENCE_SECONDS
    )
    topic.publish_many([Message(b"%d" % number, ordering_key="k") for number in range(4)]).result(PATIENCE_SECONDS)
    pulled = far.subscription("worker")
    assert pulled.exists().result(PATIENCE_SECONDS)
    proxy.delay_seconds = 1.0
    pulling = pulled.pull(2)
    wait_until(lambda: worker.metrics().result(PATIENCE_SECONDS).outstanding_messages == 2)
    proxy.cut()
    proxy.delay_seconds = 0.0
    first = pulling.result(PATIENCE_SECONDS)
    assert [(message.data, message.delivery_attempt) for message in first] == [(b"0", 1), (b"1", 1)]
    assert [message.data for message in pulled.pull(2).result(PATIENCE_SECONDS)] == [b"2", b"3"]
    far.close().result(PATIENCE_SECONDS)
    direct.close().result(PATIENCE_SECONDS)


def test_a_network_that_is_slow(proxy: TcpProxy) -> None:
    proxy.delay_seconds = 0.03
    program = Program(proxy.port, max_outstanding_per_key=10)
    program.more()
    program.finish()
