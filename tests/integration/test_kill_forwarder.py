"""`kill -9` of a forwarder between two brokers, again and again: each message arrives once, in order."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

from inorder import Message, PubSub
from inorder.consumers import Forwarder, forwarding_subscription, origin_of

from .test_grpc_faults import wait_until
from .test_serve import serving

VICTIM = Path(__file__).parent / "forwarding_victim.py"
KILLS = min(int(os.environ.get("KILLS", "5")), 100)
MESSAGES = 3_000
KEYS = 7


def test_a_forwarder_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    check_killed(tmp_path / "source", f"file:{tmp_path / 'target'}")


def test_nor_does_one_to_a_server(tmp_path: Path) -> None:
    with serving("--data", tmp_path / "target") as (_, address):
        check_killed(tmp_path / "source", f"grpc://{address}")


def test_a_dry_run_looks_at_what_a_server_has(tmp_path: Path) -> None:
    with serving("--data", tmp_path / "source") as (_, address), PubSub(f"grpc://{address}") as source:
        topic = source.topic("orders").create().result()
        mover = forwarding_subscription(topic, "mover").result()
        for _ in range(5):
            topic.publish_many([Message(b"%d" % one, ordering_key=f"k{one}") for one in range(1_000)]).result()
        with PubSub("memory:") as target:
            target.topic("orders").create().result()
            forwarder = Forwarder(mover, target.topic("orders"), dry_run=True).open()
            wait_until(lambda: forwarder.progress().state == "closed")
            assert forwarder.progress().forwarded == 5_000


def check_killed(source_folder: Path, target_address: str) -> None:
    with PubSub(source_folder) as source, PubSub(target_address) as target:
        topic = source.topic("orders").create().result()
        forwarding_subscription(topic, "mover").result()
        target.topic("orders").create().result().subscription("reader").create().result()
        for first in range(0, MESSAGES, 1_000):
            numbers = range(first, first + 1_000)
            topic.publish_many([Message(b"%d" % one, ordering_key=f"order-{one % KEYS}") for one in numbers]).result()

    chance, killed = Random(1), 0
    for _ in range(KILLS):
        killed += live(source_folder, target_address, chance.uniform(0, 0.05))
    assert not live(source_folder, target_address, 60), "a forwarder that nobody kills does not end"

    with PubSub(source_folder) as source, PubSub(target_address) as target:
        assert source.subscription("mover").metrics().result().backlog_messages == 0
        messages: list[Message] = []
        while pulled := target.subscription("reader").pull(1_000).result():
            messages += pulled
    numbers = [int(message.data) for message in sorted(messages, key=lambda message: message.position)]
    assert sorted(numbers) == [*range(MESSAGES)]
    for key in range(KEYS):
        assert [one for one in numbers if one % KEYS == key] == [*range(key, MESSAGES, KEYS)]
    assert {origin.position for message in messages if (origin := origin_of(message))} == {*range(MESSAGES)}
    assert killed, "nobody was killed while it was at work"


def live(folder: Path, target: str, seconds: float) -> bool:
    """One life, of so many seconds from when it is at work; whether it was killed."""
    command = [sys.executable, str(VICTIM), str(folder), target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forwarding\n"
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        rest = process.stdout.read()
        timer.cancel()
    return "done" not in rest
