"""A `PubSub` over the wire keeps every promise, whatever broker is behind the server."""

import asyncio
import shutil
import tempfile
import threading
from typing import Any

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.server import Server
from inorder.testing.conformance.pubsub import PubSubConformance
from inorder.testing.conformance.pubsub_case import HandlersInTasks, HandlersInThreads


class ServerThread:
    """A server on a loop and a thread of its own, as another process would be."""

    def __init__(self, broker: MessageQueue) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = Server(broker)
        self.port: int = self._run(self._server.start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._broker.close()


class OverTheWire(PubSubConformance):
    __test__ = False
    short_deadline = 2.0  # a busy machine may stand still for a second, and what came over the wire with it
    kept_deadline = 3.0

    def make_broker(self) -> MessageQueue:
        raise NotImplementedError

    def make_target(self) -> PubSub:
        self.server = ServerThread(self.make_broker())
        return PubSub(f"grpc://127.0.0.1:{self.server.port}")

    def teardown_method(self) -> None:
        super().teardown_method()
        self.server.stop()


class TestGrpcPubSubInMemory(HandlersInTasks, OverTheWire):
    __test__ = True

    def make_broker(self) -> MessageQueue:
        return MessageQueue()


class TestGrpcPubSubOnDisk(HandlersInThreads, OverTheWire):
    __test__ = True

    def make_broker(self) -> MessageQueue:
        self.folder = tempfile.mkdtemp(prefix="inorder-")
        return MessageQueue.open(self.folder)

    def teardown_method(self) -> None:
        super().teardown_method()
        shutil.rmtree(self.folder)
