"""`inorder serve` as it is started: with Google's client, and killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.cloud import pubsub_v1

INORDER = [sys.executable, "-m", "inorder"]
TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"


@contextmanager
def serving(*arguments: object) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    command = [*INORDER, "serve", "--port", "0", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(?:PUBSUB_EMULATOR_HOST=|grpc://)(127\.0\.0\.1:\d+)", line)
            assert found is not None, line + process.communicate()[1]
            yield process, found[1]
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Any:
    def connect(address: str) -> tuple[pubsub_v1.PublisherClient, pubsub_v1.SubscriberClient]:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        return pubsub_v1.PublisherClient(publisher_options=options), pubsub_v1.SubscriberClient()

    return connect


def data(subscriber: pubsub_v1.SubscriberClient) -> bytes:
    received = subscriber.pull(subscription=SUBSCRIPTION, max_messages=10, timeout=10).received_messages
    return b"".join(one.message.data for one in received)


def test_a_client_needs_nothing_but_the_address_and_a_killed_server_loses_nothing(tmp_path: Path, clients: Any) -> None:
    folder = tmp_path / "data"
    with serving("--data", folder) as (process, address):
        publisher, subscriber = clients(address)
        publisher.create_topic(name=TOPIC)
        subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True})
        futures = [publisher.publish(TOPIC, letter, ordering_key="key") for letter in (b"a", b"b", b"c")]
        assert len({future.result(20) for future in futures}) == 3
        assert data(subscriber) == b"abc"
        process.kill()
        publisher.stop()
        subscriber.close()
    with serving("--data", folder) as (process, address):
        publisher, subscriber = clients(address)
        assert data(subscriber) == b"abc"
        publisher.stop()
        subscriber.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_one_port_for_grpc_and_rest(clients: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving("--memory", "--port", port, "--rest-port", port) as (process, address):
        assert address == f"127.0.0.1:{port}"
        for path, body in ((TOPIC, b"{}"), (SUBSCRIPTION, b'{"topic": "%b"}' % TOPIC.encode())):
            request = urllib.request.Request(f"http://{address}/v1/{path}", body, method="PUT")
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.status == 200
        publisher, subscriber = clients(address)
        publisher.publish(TOPIC, b"a").result(20)
        assert data(subscriber) == b"a"
        publisher.stop()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert f"REST: http://{address}/v1" in process.stdout.read()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        subscriber.close()


def test_in_memory_with_a_start_up_file_and_interrupted(tmp_path: Path, clients: Any) -> None:
    file = tmp_path / "start.toml"
    file.write_text("[[topics]]\nname = 'orders'\n[[subscriptions]]\nname = 'worker'\ntopic = 'orders'\n")
    with serving("--memory", "--startup", file, "--project", "shop") as (process, address):
        publisher, subscriber = clients(address)
        publisher.publish(TOPIC, b"a").result(20)
        assert data(subscriber) == b"a"
        publisher.stop()
        subscriber.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert os.listdir(tmp_path) == ["start.toml"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--memory", "--port", "70000"], "--port: 0 to 65535, not 70000"),
        (["--memory", "--project", "a/b"], "project: letters"),
        (["--memory", "--startup", "nowhere.toml"], "nowhere.toml"),
        (["--memory", "--max-outstanding-per-key", "0"], "max_outstanding_per_key"),
        ([], "one of the arguments --data --memory is required"),
    ],
)
def test_what_cannot_be_started_says_why(arguments: list[str], problem: str) -> None:
    run = subprocess.run([*INORDER, "serve", *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert problem in run.stderr
    assert "Traceback" not in run.stderr
