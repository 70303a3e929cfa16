"""`kill -9` of a forwarder between two brokers on disk, again and again: each message arrives once, in order."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

from inorder import Message, PubSub
from inorder.consumers import forwarding_subscription, origin_of

VICTIM = Path(__file__).parent / "forwarding_victim.py"
KILLS = min(int(os.environ.get("KILLS", "8")), 100)
MESSAGES = 3_000
KEYS = 7


def test_a_forwarder_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with PubSub(tmp_path / "source") as source, PubSub(tmp_path / "target") as target:
        topic = source.topic("orders").create().result()
        forwarding_subscription(topic, "mover").result()
        target.topic("orders").create().result().subscription("reader").create().result()
        for first in range(0, MESSAGES, 1_000):
            numbers = range(first, first + 1_000)
            topic.publish_many([Message(b"%d" % one, ordering_key=f"order-{one % KEYS}") for one in numbers]).result()

    chance, killed = Random(1), 0
    for _ in range(KILLS):
        killed += live(tmp_path, chance.uniform(0, 0.05))
    assert not live(tmp_path, 60), "a forwarder that nobody kills does not end"

    with PubSub(tmp_path / "source") as source, PubSub(tmp_path / "target") as target:
        assert source.subscription("mover").metrics().result().backlog_messages == 0
        messages = target.subscription("reader").pull(2 * MESSAGES).result()
    numbers = [int(message.data) for message in sorted(messages, key=lambda message: message.position)]
    assert sorted(numbers) == [*range(MESSAGES)]
    for key in range(KEYS):
        assert [one for one in numbers if one % KEYS == key] == [*range(key, MESSAGES, KEYS)]
    assert {origin.position for message in messages if (origin := origin_of(message))} == {*range(MESSAGES)}
    assert killed, "nobody was killed while it was at work"


def live(folder: Path, seconds: float) -> bool:
    """One life, of so many seconds from when it is at work; whether it was killed."""
    command = [sys.executable, str(VICTIM), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forwarding\n"
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        rest = process.stdout.read()
        timer.cancel()
    return "done" not in rest
