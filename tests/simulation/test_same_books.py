"""A generated history, crashed after every single append, leaves the same books on both journals: those of the broker.

A failure prints its seed; `history(seed)` makes the same frames again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from inorder.broker import MessageQueue
from inorder.core.ledger import Book
from inorder.core.state import State
from inorder.errors import InorderError
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message
from inorder.testing.clock import ManualClock
from inorder.testing.faults import FaultyDisk

from .durable_machine import write_at_once

SEEDS = int(os.environ.get("DISK_SEEDS", "300")) // 50
STEPS = 60
PLAIN_CHANGES = ("make", "make", "delete", "update", "seek", "resume", "skip", "topic")
WORKER = {
    "enable_message_ordering": True,
    "retry_policy": {"minimum_backoff": 1, "maximum_backoff": 100},
    "dead_letter_policy": {"dead_letter_topic": "dead", "max_delivery_attempts": 2},
    "ack_deadline_seconds": 600,
}
OPTIONS = (
    WORKER,
    {**WORKER, "on_poison": "park_key"},
    {**WORKER, "queue_limits": {"max_messages": 4}},
    {"retain_acked_messages": True, "ack_deadline_seconds": 600},
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="inorder")


class History:
    """What one broker wrote: each frame, and the books of the broker when it was written."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"books {seed}")
        self.clock = ManualClock()
        journal = Journal(SegmentStore(FaultyDisk(seed)))
        self.frames: list[list[bytes]] = []
        self.books: list[Book | None] = []  # None: the call that wrote this frame went on to write another
        append = journal.store.append

        def remember(body: Sequence[bytes]) -> int:
            self.frames.append(list(body))
            return append(body)

        journal.store.append = remember  # type: ignore[method-assign]
        self.queue = write_at_once(MessageQueue(self.clock, journal))
        for topic in ("orders", "dead"):
            self.step(lambda topic=topic: self.queue.register_topic(topic))
        for _ in range(STEPS):
            self.step(lambda: self.random.choice((self.publish, self.work, self.work, self.change))())
        self.now_us = self.clock.now_us()

    def step(self, call: object) -> None:
        with suppress(InorderError):
            call()  # type: ignore[operator]
        new = len(self.frames) - len(self.books)
        self.books += [*[None] * (new - 1), self.queue._state.book()][:new]

    def name(self) -> str:
        return self.random.choice(("one", "two"))

    def publish(self) -> None:
        keys = [self.random.choice(("a", "b", "c", None)) for _ in range(self.random.randint(1, 4))]
        self.queue.publish("orders", [Message(b"x", {"n": "1"}, key) for key in keys])

    def work(self) -> None:
        for message in self.queue.pull(self.name(), self.random.randint(1, 4)):
            verb = self.random.choice((self.queue.ack, self.queue.nack, lambda _: None))
            self.step(lambda verb=verb, message=message: verb(message.ack_id))

    def change(self) -> None:
        name, random = self.name(), self.random
        match random.choice((*PLAIN_CHANGES, "snapshot", "change_snapshot", "delete_snapshot", "seek_snapshot")):
            case "make":
                self.queue.register_subscription(name, "orders", random.choice(OPTIONS))
            case "delete" if random.random() < 0.3:
                self.queue.unregister_subscription(name)
            case "update":
                self.queue.update_subscription(name, {"enable_message_ordering": random.random() < 0.5})
            case "seek":
                self.queue.seek(name, position=random.randint(0, 30))
            case "resume":
                self.queue.resume_key(name, random.choice("abc"))
            case "skip":
                self.queue.skip(name, random.choice("abc"))
            case "snapshot":
                self.queue.create_snapshot(self.name(), name, "kept")
            case "change_snapshot":
                self.queue.update_snapshot(self.name(), annotations=str(random.random()))
            case "delete_snapshot" if random.random() < 0.3:
                self.queue.delete_snapshot(self.name())
            case "seek_snapshot":
                self.queue.seek(name, snapshot=self.name())
            case "topic" if random.random() < 0.2:
                self.step(lambda: self.queue.unregister_topic("orders"))
                self.step(lambda: self.queue.register_topic("orders"))


def on_segments(frames: Sequence[Sequence[bytes]]) -> Iterator[Store]:
    """The store as it is found after each of the frames."""
    disk = FaultyDisk(0)
    for frame in frames:
        store = SegmentStore(disk, segment_bytes=900)
        list(store.recover().frames)
        store.append(frame)
        store.sync()
        disk.restart_without_the_unsynced()
        yield SegmentStore(disk, segment_bytes=900)
        disk.kill()


def on_sqlite(frames: Sequence[Sequence[bytes]], folder: Path) -> Iterator[Store]:
    (folder / "now").mkdir()
    store = SqliteStore(Folder(folder / "now"), segment_bytes=900)
    list(store.recover().frames)
    for number, frame in enumerate(frames):
        store.append(frame)
        store.sync()
        copy = folder / str(number)
        shutil.copytree(folder / "now", copy)
        found = SqliteStore(Folder(copy), segment_bytes=900)
        yield found
        found.close()
        shutil.rmtree(copy)
    store.close()


def book_from(store: Store, now_us: int) -> Book:
    """The books of the broker that goes on from there."""
    journal = Journal(store)
    return State("again-", journal.recover(), journal.history).book().at(now_us)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_journals_bring_back_the_books_after_every_single_append(seed: int, tmp_path: Path) -> None:
    made = History(seed)
    found = zip(made.books, on_segments(made.frames), on_sqlite(made.frames, tmp_path), strict=True)
    for number, (book, segments, sqlite) in enumerate(found):
        ours, theirs = book_from(segments, made.now_us), book_from(sqlite, made.now_us)
        assert ours == theirs, f"seed {seed}, frame {number}: the journals disagree"
        assert book is None or ours == book.at(made.now_us), f"seed {seed}, frame {number}: the broker disagrees"
