"""A `PubSub` on a broker on disk keeps every promise: in real time, and in time that a test moves."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.testing.clock import ManualClock
from inorder.testing.conformance.pubsub import PubSubConformance
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, Tasks, Way


class OnDisk(PubSubConformance):
    __test__ = False

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


class TestSqlitePubSub(OnDisk):
    """Handlers in tasks only: how they run has nothing to do with how the broker writes."""

    __test__ = True

    @pytest.fixture
    def way(self) -> Iterator[Way]:
        way = Tasks()
        yield way
        self.pubsub.close().result(PATIENCE_SECONDS)
        way.end()

    def make_target(self) -> PubSub:
        return PubSub(f"file:{self.make_folder()}?journal=sqlite")


class TestPubSubOfAFileQueue(OnDisk):
    __test__ = True

    def make_target(self) -> PubSub:
        self.clock = ManualClock()
        self.queue = MessageQueue.open(self.make_folder(), clock=self.clock)
        return PubSub(self.queue)

    def teardown_method(self) -> None:
        super().teardown_method()
        self.queue.close()
