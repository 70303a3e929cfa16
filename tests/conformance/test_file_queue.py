"""A broker on disk keeps every promise of the one in memory, whatever its journal is made of."""

import shutil
import tempfile

from inorder.broker import MessageQueue
from inorder.journal.opener import JournalKind
from inorder.testing.clock import ManualClock
from inorder.testing.conformance import QueueConformance


class FileQueue(QueueConformance):
    __test__ = False
    kind: JournalKind

    def make_queue(self, clock: ManualClock) -> MessageQueue:
        self.folder = tempfile.mkdtemp(prefix="inorder-")
        return MessageQueue.open(self.folder, journal=self.kind, clock=clock)

    def teardown_method(self) -> None:
        super().teardown_method()
        shutil.rmtree(self.folder)


class TestSegmentQueue(FileQueue):
    __test__ = True
    kind = "segments"


class TestSqliteQueue(FileQueue):
    __test__ = True
    kind = "sqlite"
