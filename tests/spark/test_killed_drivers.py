"""`kill -9` of a whole Spark application, again and again: what it wrote is there once, and in order.

SPARK_KILLS says how often; each life begins with a new Java, which takes seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from inorder import Message
from inorder.broker import MessageQueue

PIPELINE = Path(__file__).parent / "pipeline_process.py"
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
KEYS = 30

pytestmark = [
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java on this machine"
    ),
    pytest.mark.timeout(120 * (KILLS + 5)),
]


def publish(folder: Path, random: Random, count: int) -> dict[str, list[int]]:
    """Numbered messages of some keys, in disorder; how their numbers came, by key."""
    events = [(f"key-{number % KEYS}", number // KEYS + 1) for number in range(count)]
    events.sort(key=lambda event: event[1] + random.uniform(0, 8))
    arrived: dict[str, list[int]] = {}
    with closing(MessageQueue.open(folder / "data")) as queue:
        queue.register_topic("in", {"message_retention_duration": 86_400})
        queue.register_topic("out")
        queue.register_subscription("s", "out", {"enable_message_ordering": True})
        for start in range(0, count, 100):
            messages = [
                Message(b"%d" % number, ordering_key=key, attributes={"sequence": str(number)})
                for key, number in events[start : start + 100]
            ]
            queue.publish("in", messages)
    for key, number in events:
        arrived.setdefault(key, []).append(number)
    return arrived


@contextmanager
def life(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver, with its Java and all workers: it ends when this does, as if the machine had."""
    command = [sys.executable, str(PIPELINE), str(folder)]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def table(folder: Path) -> dict[str, list[int]]:
    """The numbers of each key in the table, as they stand there."""
    found: dict[str, list[int]] = {}
    for batch in range(len([*folder.glob("table/*")])):
        for file in sorted(folder.glob(f"table/batch_id={batch}/*.parquet")):
            for row in pq.read_table(file).to_pylist():
                assert row["_fate"] == "released"
                found.setdefault(row["key"], []).append(row["sequence"])
    return found


def topic(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with closing(MessageQueue.open(folder / "data")) as queue:
        queue.take_in()
        while messages := queue.pull("s", 1_000):
            for message in messages:
                found.setdefault(str(message.ordering_key), []).append(int(message.data))
            queue.ack(messages)
    return found


def test_a_pipeline_that_is_killed_again_and_again_writes_each_row_once_and_in_order(tmp_path: Path) -> None:
    seed = Random().randrange(10**6) if KILLS > 3 else 6
    random = Random(seed)
    arrived = publish(tmp_path, random, 1_000 * max(1, KILLS // 2))
    for _ in range(KILLS):
        with life(tmp_path) as process:
            assert process.stdout is not None
            for _ in range(random.randrange(1, 7)):
                process.stdout.readline()
            time.sleep(random.uniform(0, 0.4))  # the moment itself: anywhere in a batch, or between two
    with life(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readlines()[-1] == "done\n", f"seed {seed}\n{(tmp_path / 'errors').read_text()}"
    assert table(tmp_path) == {key: [*range(1, len(numbers) + 1)] for key, numbers in arrived.items()}, f"seed {seed}"
    assert topic(tmp_path) == arrived, f"seed {seed}"
