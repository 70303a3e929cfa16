"""What the commands do where nobody can read what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inorder.broker import MessageQueue
from inorder.message import Message


def test_what_nobody_can_see_is_not_acked(tmp_path: Path) -> None:
    queue = MessageQueue.open(tmp_path)
    queue.register_topic("t")
    queue.register_subscription("s", "t")
    queue.publish("t", [Message(b"x")])
    queue.close()
    program = f'exec "{sys.executable}" -m inorder pull s --ack --target "file:{tmp_path}" >&-'
    ran = subprocess.run(["sh", "-c", program], stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, "standard output is closed" in ran.stderr) == (2, True)
    queue = MessageQueue.open(tmp_path)
    assert [message.data for message in queue.pull("s", 1)] == [b"x"]
    queue.close()


def test_an_error_that_nobody_can_read_is_told_by_the_exit_code(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "inorder", "topic", "list", "--target", f"file:{tmp_path}/nowhere"]
    assert subprocess.run(command, stderr=writer).returncode == 2  # 1 would be an answer
    os.close(writer)
