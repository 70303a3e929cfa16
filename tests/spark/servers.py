"""`inorder serve` in a process of its own, which can be killed and started again where it was."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from inorder import Message
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.spark.wire import Server
from inorder.transport.address import parse


class ServerProcess:
    """A server of a folder, always at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _port()
        self.url = f"grpc://127.0.0.1:{self._port}"
        self.calls = Server(parse(self.url))
        self.start()

    def start(self) -> None:
        """Begin to; calls wait until it answers."""
        command = [sys.executable, "-m", "inorder", "serve", "--data", str(self._folder), "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def killed_and_started(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.calls.close()
        with suppress(ProcessLookupError):
            self.kill()

    def wait_for(self, topic: str, count: int) -> None:
        """Until so many messages are published, which a commit is answered before."""
        request = v1.GetTopicRequest(topic=f"projects/inorder/topics/{topic}")
        end = time.monotonic() + 60
        while self.calls.call("GetTopic", request, v1.Topic).published < count:
            assert time.monotonic() < end, f"there are not {count} messages in {topic}"
            time.sleep(0.02)


def message(text: str) -> Message:
    """The first letter is the key, "-" stands for none."""
    return Message(text.encode(), ordering_key=None if text[0] == "-" else text[0])


def _port() -> int:
    """One that is free, and that no connection of others is given while the server is away."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
