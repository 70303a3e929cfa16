"""A `PubSub` on a broker on disk keeps every promise: in real time, and in time that a test moves."""

import shutil
import tempfile

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.testing.clock import ManualClock
from inorder.testing.conformance.pubsub import PubSubConformance
from inorder.testing.conformance.pubsub_case import HandlersInTasks, HandlersInThreads


class OnDisk(PubSubConformance):
    __test__ = False
    short_deadline = 1.0  # what an answer may take, on a busy disk

    def make_folder(self) -> str:
        self.folder = tempfile.mkdtemp(prefix="inorder-")
        return self.folder

    def teardown_method(self) -> None:
        super().teardown_method()
        shutil.rmtree(self.folder)


class TestFilePubSub(OnDisk):
    __test__ = True

    def make_target(self) -> PubSub:
        return PubSub(f"file:{self.make_folder()}")


class TestSqlitePubSub(HandlersInTasks, OnDisk):
    __test__ = True

    def make_target(self) -> PubSub:
        return PubSub(f"file:{self.make_folder()}?journal=sqlite")


class TestPubSubOfAFileQueue(HandlersInThreads, OnDisk):
    __test__ = True

    def make_target(self) -> PubSub:
        self.clock = ManualClock()
        self.queue = MessageQueue.open(self.make_folder(), clock=self.clock)
        return PubSub(self.queue)

    def teardown_method(self) -> None:
        super().teardown_method()
        self.queue.close()
