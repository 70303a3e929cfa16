"""The machine of `broker_machine`, on a broker that is closed or crashes now and then and goes on from its journal."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from inorder.broker import MessageQueue
from inorder.clock import MICROSECONDS
from inorder.errors import Closed
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.testing.faults import FaultyDisk

from .broker_machine import BrokerMachine, now_and_then

LONGEST_WAIT_US = 100 * MICROSECONDS  # so that nothing is ever too old: when that is noticed, is not written down


def write_at_once(broker: MessageQueue) -> MessageQueue:
    """Let nobody else write what a call leaves to be written: then a run has one thread, and can be repeated."""
    commits = broker._commits
    assert commits is not None
    write = commits._write

    def write_all() -> None:
        write()
        while commits.waiting():  # publishers who waited for room
            write()

    commits._write = write_all  # type: ignore[method-assign]
    commits._ask = lambda: None if commits._writing.locked() else write_all()  # type: ignore[method-assign]
    return broker


def abandon(broker: MessageQueue) -> None:
    """Its process is gone: it does nothing any more, also not when its time comes."""
    broker._closed = "the process is gone"
    if broker._timer is not None:
        broker._timer.cancel()


class DurableMachine(BrokerMachine):
    """On a disk in memory, with parts and snapshots of a few messages."""

    lags = False

    def make_broker(self) -> MessageQueue:
        journal = Journal(self.make_store(), snapshot_bytes=600)
        return write_at_once(MessageQueue(self.clock, journal))

    def make_store(self) -> Store:
        if not hasattr(self, "disk"):
            self.disk = FaultyDisk(0)
        return SegmentStore(self.disk, segment_bytes=400)

    def lose_power(self, kind: str) -> None:
        {
            "kill": self.disk.kill,
            "power cut": self.disk.restart,
            "lost": self.disk.restart_without_the_unsynced,
        }[kind]()

    def legal(self, name: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
        legal = super().legal(name, chosen)
        legal.pop("message_retention_duration", None)
        legal.pop("retain_acked_messages", None)  # a journal may also have what was published before that was asked for
        return legal

    def consume(self, name: str) -> None:
        super().consume(name)
        self.model.subscriptions[name].lags = self.lags

    def wait(self, wait_us: int) -> None:
        super().wait(min(wait_us, LONGEST_WAIT_US))

    @now_and_then
    @rule(kind=st.sampled_from(["kill", "power cut", "lost"]))
    def crash_and_reopen(self, kind: str) -> None:
        self.broker.durable()  # holes that a pull has passed are not answered for
        abandon(self.broker)
        self.lose_power(kind)
        self.go_on()

    @now_and_then
    @rule()
    def close_and_reopen(self) -> None:
        self.broker.close()
        for waiting in self.model.waiting.values():
            assert all(isinstance(one.answer.exception(), Closed) for one in waiting)
        self.go_on()

    def go_on(self) -> None:
        self.sound = False
        self.broker = self.make_broker()
        self.model.restart()
        self.idle.clear()
        for name in self.model.subscriptions:
            self.consume(name)


class SqliteMachine(DurableMachine):
    """On files. A copy of them, made while they are open, is what a crash leaves."""

    def __init__(self) -> None:
        self.folders = [Path(tempfile.mkdtemp(prefix="inorder-"))]
        self.left: list[MessageQueue] = []
        super().__init__()

    def make_store(self) -> Store:
        return SqliteStore(Folder(self.folders[-1]), segment_bytes=400)

    def lose_power(self, kind: str) -> None:
        copy = Path(tempfile.mkdtemp(prefix="inorder-"))
        shutil.copytree(self.folders[-1], copy, dirs_exist_ok=True)
        self.folders.append(copy)
        self.left.append(self.broker)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for broker in (*self.left, self.broker):
                broker.close()
            for folder in self.folders:
                shutil.rmtree(folder)
