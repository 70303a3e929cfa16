"""The parts of `inorder.spark` over Spark Connect, where there is no `sparkContext`, with a server of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inorder import Message
from inorder.broker import MessageQueue

CLIENT = Path(__file__).parent / "connect_client.py"
ARRIVED = [1, 3, 2, 3, 4]

pytestmark = pytest.mark.timeout(650)  # the first of them waits for all that the client does


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a client found, which did everything once: to start a server takes longer than all the rest."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine, and Spark needs 17 or later")
    folder = tmp_path_factory.mktemp("connect")
    with closing(MessageQueue.open(folder / "data")) as queue:
        queue.register_topic("in", {"message_retention_duration": 86_400})
        queue.register_topic("out")
        queue.register_subscription("s", "out", {"enable_message_ordering": True})
        messages = [Message(b"%d" % n, ordering_key="a", attributes={"sequence": str(n)}) for n in ARRIVED]
        queue.publish("in", messages)
    command = [sys.executable, CLIENT, folder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as client:
        try:
            _, told = client.communicate(timeout=600)
        finally:
            if client.poll() is None:
                os.killpg(client.pid, signal.SIGKILL)  # with its server
    assert client.returncode == 0, told
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    with closing(MessageQueue.open(folder / "data")) as queue:
        queue.take_in()
        found["sink"] = []
        while messages := queue.pull("s", 100):
            found["sink"] += [int(message.data) for message in messages]
            queue.ack(messages)
    return found


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("source", ARRIVED),
        ("sink", ARRIVED * 2),  # once as a stream, once as a table
        ("start", [1, 2, 3, 4]),
        ("dataframe", [1, 2, 3, 4]),
        ("table", [1, 2, 3, 4]),
        ("winners", [[4], ["4"]]),
        ("winners_of_a_stream", [4]),
        ("deduplicate", [1, 3, 2, 4]),
        ("no_buckets", "buckets: over Spark Connect, say how many; about as many as the cores"),
    ],
)
def test_a_part_works_over_connect_or_says_what_it_needs(found: dict[str, Any], part: str, expected: Any) -> None:
    assert found[part] == expected


def test_an_audit_works_over_connect(found: dict[str, Any]) -> None:
    verdict, violations, has_page = found["audit"]
    assert "1 reordered, 1 duplicate among 5 events" in verdict
    assert violations == 2
    assert has_page
