"""`inorder serve`, under load from another process that speaks plain google.pubsub.v1.

Against the same server that parses every message, and against Google's emulator where a `google-cloud-sdk` folder has
it. The emulator keeps nothing; ours is durable where both deliver.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter, sleep

import grpc
import grpc.aio
from google.pubsub_v1.types import pubsub

from bench.peers import Missing, servers
from bench.pubsub_load import BATCH, KEYS
from bench.report import Effort, Row, Table, Target, interleaved
from bench.workload import WrongResult

OURS = "inorder"
PARSING = "parsing"
EMULATOR = "Google's emulator"
SDK_FOLDERS = (
    "~/google-cloud-sdk",
    "/usr/lib/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
)
START_SECONDS = 60
IDLE_SUBSCRIPTIONS = 1_000
IDLE_STREAMS = 100


@dataclass(frozen=True, slots=True)
class Started:
    """A server in a process of its own."""

    pid: int
    address: str
    seconds: float  # from its start to its first answer

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(effort: Effort) -> Iterator[Table]:
    if not Path("/proc/self/statm").exists():
        yield Table("Server", "", [Row("everything", (), missing="/proc, to read what a process uses")])
        return
    yield from _publishing(effort)
    yield from _delivering(effort)
    yield _starting(effort)
    yield _idling(effort)


# -- publish ---------------------------------------------------------------------------------------


def _publishing(effort: Effort) -> Iterator[Table]:
    count = effort.of(200_000, 20_000)
    works = {"without attributes": "publish", "with three attributes": "publish-attributes"}
    rates, cpu = [], []
    with serving(ours("--memory")) as server, serving(_parsing("--memory")) as peer:
        for name, work in works.items():
            found = interleaved(
                {OURS: partial(_load, server, work, count), PARSING: partial(_load, peer, work, count)}, effort
            )
            per_second = {one: [count / figures["seconds"] for figures in runs] for one, runs in found.items()}
            micros = {one: [1e6 * figures["cpu"] / count for figures in runs] for one, runs in found.items()}
            rates.append(Row(name, per_second[OURS], per_second[PARSING], Target(1.5)))
            cpu.append(Row(f"publish {name}", micros[OURS], micros[PARSING]))
    peer_is = "The peer is the same server, but protobuf parses each message and an object is made of it."
    title = f"Server in memory: publish, batches of {BATCH:,}, {KEYS:,} keys, one ordered subscription"
    yield Table(title, "messages/s", rates, [peer_is])
    yield Table(f"{title}: processor of the server", "µs/message", cpu, [peer_is])


# -- deliver ---------------------------------------------------------------------------------------


def _delivering(effort: Effort) -> Iterator[Table]:
    count, of_emulator = effort.of(100_000, 10_000), effort.of(3_000, 1_000)
    title = f"Server: ordered streaming pull with acks on the stream, {KEYS:,} keys"
    with servers.folder() as folder, serving(ours("--data", str(folder / "data"))) as server:
        contestants = {OURS: partial(_load, server, "deliver", count)}
        missing = ""
        try:
            with serving(_emulator()) as peer:
                contestants[EMULATOR] = partial(_load, peer, "deliver", of_emulator)
                found = interleaved(contestants, effort)
        except Missing as reason:
            missing = str(reason)
            found = interleaved({OURS: contestants[OURS]}, effort)
    ours_per_second = [count / figures["seconds"] for figures in found[OURS]]
    peer_per_second = [of_emulator / figures["seconds"] for figures in found.get(EMULATOR, ())]
    notes = [f"Ours is durable, {count:,} messages; the emulator keeps nothing, {of_emulator:,} messages."]
    row = Row(f"against {EMULATOR}", ours_per_second, peer_per_second, Target(20), missing)
    yield Table(title, "messages/s", [row], notes)
    micros = Row(
        "deliver and ack",
        [1e6 * figures["cpu"] / count for figures in found[OURS]],
        [1e6 * figures["cpu"] / of_emulator for figures in found.get(EMULATOR, ())],
        missing=missing,
    )
    yield Table(f"{title}: processor of the server", "µs/message", [micros])


# -- idle ------------------------------------------------------------------------------------------


def _starting(effort: Effort) -> Table:
    def started(command: Sequence[str]) -> tuple[float, float]:
        with serving(command) as server:
            return server.seconds, server.megabytes()

    with servers.folder() as folder:
        contestants = {OURS: partial(started, ours("--data", str(folder / "data")))}
        missing = ""
        try:
            contestants[EMULATOR] = partial(started, _emulator())
        except Missing as reason:
            missing = str(reason)
        found = interleaved(contestants, effort)
    rows = [
        Row(
            name,
            [figures[place] for figures in found[OURS]],
            [figures[place] for figures in found.get(EMULATOR, ())],
            Target(1, below=True),
            missing,
        )
        for place, name in enumerate(("seconds to the first answer", "resident memory then, MB"))
    ]
    return Table(f"Server: start, against {EMULATOR}", "see each", rows)


def _idling(effort: Effort) -> Table:
    grown: dict[str, list[float]] = {"subscriptions": [], "streams": [], "both": []}
    for _ in range(effort.repetitions):
        with servers.folder() as folder, serving(ours("--data", str(folder / "data"))) as server:
            subscriptions, streams = asyncio.run(_idle(server))
        grown["subscriptions"].append(subscriptions)
        grown["streams"].append(streams)
        grown["both"].append(subscriptions + streams)
    rows = [
        Row(f"{IDLE_SUBSCRIPTIONS:,} subscriptions", grown["subscriptions"]),
        Row(f"{IDLE_STREAMS:,} streams, each on one of them", grown["streams"]),
        Row("both", grown["both"], target=Target(100, below=True, figure=True)),
    ]
    return Table("Server: memory of what is idle", "MB", rows)


async def _idle(server: Started) -> tuple[float, float]:
    """What the server grows by, for subscriptions and then for streams."""
    topic = "projects/bench/topics/idle"
    names = [f"projects/bench/subscriptions/idle-{number}" for number in range(IDLE_SUBSCRIPTIONS)]
    async with grpc.aio.insecure_channel(server.address) as channel:
        create = channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription")
        before = server.megabytes()
        make_topic = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        await make_topic(pubsub.Topic.pb()(name=topic).SerializeToString())
        for name in names:
            wanted = pubsub.Subscription.pb()(name=name, topic=topic, enable_message_ordering=True)
            await create(wanted.SerializeToString())
        with_subscriptions = server.megabytes()
        streams = [channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")() for _ in range(IDLE_STREAMS)]
        for stream, name in zip(streams, names, strict=False):
            first = pubsub.StreamingPullRequest.pb()(subscription=name, stream_ack_deadline_seconds=10)
            await stream.write(first.SerializeToString())
        await asyncio.gather(*(stream.initial_metadata() for stream in streams))
        with_streams = server.megabytes()
        for stream in streams:
            stream.cancel()
    return with_subscriptions - before, with_streams - with_subscriptions


# -- processes -------------------------------------------------------------------------------------


def _load(server: Started, work: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.pubsub_load", work, server.address, str(server.pid), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongResult((done.stderr.strip().splitlines() or ["the load said nothing"])[-1])
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def ours(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inorder", "serve", *arguments]


def _parsing(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.peers.parsing_server", "serve", *arguments]


def _emulator() -> list[str]:
    if shutil.which("java") is None:
        raise Missing("java, for Google's emulator")
    for folder in (*filter(None, [os.environ.get("CLOUDSDK_ROOT_DIR")]), *SDK_FOLDERS):
        program = Path(folder).expanduser() / "platform/pubsub-emulator/bin/cloud-pubsub-emulator"
        if program.exists():
            return [str(program), f"--host={servers.HOST}"]
    raise Missing("google-cloud-sdk with pubsub-emulator")


@contextmanager
def serving(command: Sequence[str], ca: Path | None = None) -> Iterator[Started]:
    """A server from its first answer on, by TLS if there is a `ca` to trust; it has ended when this ends."""
    port = servers.free_port()
    address = f"{servers.HOST}:{port}"
    option = [f"--port={port}"] if command[0] != sys.executable else ["--port", str(port)]
    start = perf_counter()
    process = subprocess.Popen(
        [*command, *option], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = monotonic() + START_SECONDS
        while not servers.listens(port):
            if process.poll() is not None or monotonic() > deadline:
                raise Missing(f"{Path(command[0]).name} did not start")
            sleep(0.005)
        with _channel(address, ca) as channel:
            request = pubsub.ListTopicsRequest.pb()(project="projects/bench").SerializeToString()
            channel.unary_unary("/google.pubsub.v1.Publisher/ListTopics")(request, timeout=START_SECONDS)
        yield Started(process.pid, address, perf_counter() - start)
    finally:
        process.terminate()
        try:
            process.wait(servers.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _channel(address: str, ca: Path | None) -> grpc.Channel:
    if ca is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes()))
