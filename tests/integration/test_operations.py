"""`inorder serve` as it is operated: signals, TLS and tokens from the command line, logs and metrics."""

import json
import os
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1.types import pubsub
from grpc_health.v1 import health_pb2

from ..server.certificates import Authority
from ..server.clients import SUBSCRIPTION, TOPIC, Stream, call
from ..server.test_security import ask, bearer, secure
from ..server.test_streaming import wait_until
from .test_serve import INORDER, serving

STARTUP = """
[[topics]]
name = "orders"
[[subscriptions]]
name = "worker"
topic = "orders"
enable_message_ordering = true
"""
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def startup(tmp_path: Path) -> Path:
    path = tmp_path / "start.toml"
    path.write_text(STARTUP)
    return path


def publish(channel: grpc.Channel, data: str) -> None:
    batch = [{"data": letter.encode(), "ordering_key": "key"} for letter in data]
    call(channel, "Publisher", "Publish", pubsub.PublishRequest.pb()(topic=TOPIC, messages=batch).SerializeToString())


def pull(channel: grpc.Channel) -> bytes:
    request = pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=10).SerializeToString()
    answer = pubsub.PullResponse.pb().FromString(call(channel, "Subscriber", "Pull", request, timeout=30))
    return b"".join(one.message.data for one in answer.received_messages)


def wait_until_it_stops_serving(channel: grpc.Channel) -> None:
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for raw in watch(health_pb2.HealthCheckRequest().SerializeToString(), timeout=60):
        if health_pb2.HealthCheckResponse.FromString(raw).status == NOT_SERVING:
            return


def test_sigterm_waits_for_acks_ends_streams_and_keeps_the_rest(tmp_path: Path, startup: Path) -> None:
    data = ("--data", tmp_path / "data", "--startup", startup, "--project", "shop")
    with serving(*data, "--drain-seconds", 60, "--log-format", "json", "--log-level", "info") as (process, address):
        with grpc.insecure_channel(address) as channel, grpc.insecure_channel(address) as second:
            publish(channel, "abc")
            stream = Stream(channel, protocol_version=1)
            received = stream.received(3)
            process.send_signal(signal.SIGTERM)
            wait_until_it_stops_serving(second)
            stream.send(ack_ids=[one.ack_id for one in received[:2]])
            stream.send(modify_deadline_ack_ids=[received[2].ack_id], modify_deadline_seconds=[0])
            assert stream.code() is grpc.StatusCode.UNAVAILABLE
        assert process.wait(60) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]
        assert [line["message"].split()[0] for line in lines] == ["serves", "stops", "stopped"]
    with serving(*data) as (process, address), grpc.insecure_channel(address) as channel:
        assert pull(channel) == b"c"


def test_a_second_signal_ends_it_at_once_and_nothing_answered_is_lost(tmp_path: Path, startup: Path) -> None:
    data = ("--data", tmp_path / "data", "--startup", startup, "--project", "shop")
    with (
        serving(*data, "--drain-seconds", 3600) as (process, address),
        grpc.insecure_channel(address) as channel,
        grpc.insecure_channel(address) as second,
    ):
        publish(channel, "abc")
        stream = Stream(channel, stream_ack_deadline_seconds=600)
        stream.received(3)
        process.send_signal(signal.SIGTERM)
        wait_until_it_stops_serving(second)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        stream.code()
    with serving(*data) as (process, address), grpc.insecure_channel(address) as channel:
        assert pull(channel) == b"abc"


def test_tls_and_tokens_from_the_command_line_and_a_token_revoked_under_load(tmp_path: Path, startup: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    made = {
        name: subprocess.run(
            [*INORDER, "token", "new", name, "--publish", "orders"], capture_output=True, text=True, check=True
        )
        for name in ("kept", "gone")
    }
    secrets = {
        name: next(word for word in run.stderr.split() if word.startswith(f"{name}.")) for name, run in made.items()
    }
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(run.stdout for run in made.values()))
    flags = ("--tls-certificate", pair.certificate, "--tls-key", pair.key, "--tokens", tokens)
    answered = dict.fromkeys(secrets, 0)
    ended: dict[str, grpc.StatusCode] = {}
    stop = threading.Event()

    def load(name: str, channel: grpc.Channel) -> None:
        request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": name.encode()}])
        try:
            while not stop.is_set():
                ask(channel, secrets[name], "google.pubsub.v1.Publisher", "Publish", request)
                answered[name] += 1
        except grpc.RpcError as error:
            ended[name] = error.code()

    with serving(
        "--memory", "--startup", startup, "--project", "shop", "--log-level", "debug", "--metrics-port", 0, *flags
    ) as (process, address):
        log: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=log.extend, args=(process.stderr,))  # or the server would wait for one
        reader.start()
        channels = [secure(address, authority) for _ in secrets]
        threads = [threading.Thread(target=load, args=one) for one in zip(secrets, channels, strict=True)]
        for thread in threads:
            thread.start()
        new = tmp_path / "new.toml"
        new.write_text(made["kept"].stdout)
        os.replace(new, tokens)
        threads[1].join(60)
        assert ended == {"gone": grpc.StatusCode.UNAUTHENTICATED}
        before = answered["kept"]
        wait_until(lambda: answered["kept"] > before)
        stop.set()
        threads[0].join(60)
        for channel in channels:
            channel.close()
        with grpc.insecure_channel(address) as plain, pytest.raises(grpc.RpcError):
            plain.unary_unary("/google.pubsub.v1.Publisher/Publish")(b"", metadata=bearer("x"), timeout=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        reader.join(60)
    assert not ended.get("kept")
    logged = "".join(log)
    assert "ended with UNAUTHENTICATED" in logged
    for secret in secrets.values():
        assert secret.partition(".")[2] not in logged


def test_metrics_are_at_a_port_of_their_own(startup: Path) -> None:
    command = [*INORDER, "serve", "--memory", "--port", "0", "--metrics-port", "0", "--startup", str(startup)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = [process.stdout.readline() for _ in range(2)][1].split()[-1]
            with urllib.request.urlopen(url, timeout=30) as response:
                text = response.read().decode()
        finally:
            process.kill()
    assert 'inorder_backlog_messages{subscription="projects/inorder/subscriptions/worker"} 0' in text
