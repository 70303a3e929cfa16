"""The server is killed while clients publish and stream: nothing answered is lost, no key is out of order."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub

KILLS = min(int(os.environ.get("KILLS", "3")), 50)
KEYS = [f"key-{number}" for number in range(20)]
TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"

PublishRequest = pubsub.PublishRequest.pb()
StreamingPullRequest = pubsub.StreamingPullRequest.pb()
StreamingPullResponse = pubsub.StreamingPullResponse.pb()


class Clients:
    """A publisher that repeats what was not answered, and a subscriber that opens its stream again."""

    def __init__(self, port: int) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._stopped = threading.Event()
        self.answered = 0  # numbers of each key that were published for sure
        self.seen: dict[str, list[int]] = {key: [] for key in KEYS}
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._subscribe)]

    def call(self, service: str, method: str, request: Any) -> None:
        """Repeat it until it is answered."""
        call = self._channel.unary_unary(f"/google.pubsub.v1.{service}/{method}")
        while not self._stopped.is_set():
            with suppress(grpc.RpcError):
                call(request.SerializeToString(), timeout=5, wait_for_ready=True)
                return

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop_publishing(self) -> None:
        self._publishing = False
        self._threads[0].join()

    _publishing = True

    def _publish(self) -> None:
        while self._publishing:
            number = self.answered
            batch = [{"data": b"%d" % number, "ordering_key": key} for key in KEYS]
            self.call("Publisher", "Publish", PublishRequest(topic=TOPIC, messages=batch))
            self.answered += 1

    def _subscribe(self) -> None:
        while not self._stopped.is_set():
            with suppress(grpc.RpcError):
                self._stream()

    def _stream(self) -> None:
        requests = [StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10)]
        ready = threading.Condition()

        def outgoing() -> Any:
            while True:
                with ready:
                    ready.wait_for(lambda: requests)
                    request = requests.pop(0)
                if request is None:
                    return
                yield request.SerializeToString()

        stream = self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
            outgoing(), wait_for_ready=True, timeout=60
        )
        try:
            for raw in stream:
                received = StreamingPullResponse.FromString(raw).received_messages
                for one in received:
                    self.seen[one.message.ordering_key].append(int(one.message.data))
                with ready:
                    requests.append(StreamingPullRequest(ack_ids=[one.ack_id for one in received]))
                    ready.notify()
                if self._stopped.is_set():
                    return
        finally:
            stream.cancel()
            with ready:
                requests.append(None)
                ready.notify()

    def stop(self) -> None:
        self._stopped.set()
        self._channel.close()
        for thread in self._threads:
            thread.join()


def started(folder: Path, port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "inorder", "serve", "--data", str(folder), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert f":{port}" in server.stdout.readline()
    return server


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_server_killed_under_load_loses_nothing_and_reorders_nothing(tmp_path: Path) -> None:
    port = free_port()
    server = started(tmp_path / "data", port)
    clients = Clients(port)
    try:
        clients.call("Publisher", "CreateTopic", pubsub.Topic.pb()(name=TOPIC))
        wanted = pubsub.Subscription.pb()(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
        clients.call("Subscriber", "CreateSubscription", wanted)
        clients.start()
        for _ in range(KILLS):
            before = clients.answered
            deadline = time.monotonic() + 30
            while clients.answered < before + 20 and time.monotonic() < deadline:
                time.sleep(random.uniform(0, 0.02))
            server.kill()
            server.communicate()
            server = started(tmp_path / "data", port)
        clients.stop_publishing()
        expected = set(range(clients.answered))
        deadline = time.monotonic() + 30
        while not all(expected <= {*seen} for seen in clients.seen.values()) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        clients.stop()
        server.kill()
        server.communicate()
    assert clients.answered >= 20 * KILLS
    for key, seen in clients.seen.items():
        assert {*seen} >= expected, f"{key} lost {sorted(expected - {*seen})[:10]}"
        first_seen = list(dict.fromkeys(seen))
        assert first_seen == sorted(first_seen), f"{key} is out of order"
