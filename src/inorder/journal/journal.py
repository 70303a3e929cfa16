"""A broker's memory: events go in, and after a crash the books come out.

Knows what the frames of a store mean; the store knows how to keep them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from inorder.clock import MICROSECONDS
from inorder.core.ledger import Book, Ledger, SnapshotLedger, TopicLedger
from inorder.journal import Location, Part, Store
from inorder.journal.codec import Stored, book_from_json, book_to_json, replay
from inorder.journal.index import JournalHistory, TopicIndex, index_from_json

SNAPSHOT_BYTES = 64 * 1024 * 1024  # of frames, after which a snapshot spares the next start from reading them


class Journal:
    """Writes events, knows where messages stand, and brings the books back. The caller keeps threads apart."""

    def __init__(self, store: Store, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self.store = store
        self._snapshot_bytes = snapshot_bytes
        self._indexes: dict[int, TopicIndex] = {}  # of topics, by serial
        self._saved: Location = 0  # the latest snapshot stands for all before
        self.unsaved = 0  # bytes that the next start would have to read beyond the snapshot

    def recover(self) -> Book:
        """What is known of the broker. Comes before everything else."""
        snapshot, frames = self.store.recover()
        book = self._from_snapshot(json.loads(snapshot)) if snapshot else Book()
        names = {topic.serial: topic.name for topic in book.topics.values()}
        for location, body in frames:
            self.written(location, replay(body, book, names))
            self.unsaved += len(body)
        parts = self.store.parts()
        for index in self._indexes.values():
            index.keep(parts)  # some may have been dropped after the snapshot was saved
        return book

    def history(self, serial: int) -> JournalHistory:
        """Where the messages of a topic are read again."""
        return JournalHistory(self.store, serial, self._indexes.setdefault(serial, TopicIndex()))

    def write(self, body: bytes) -> Location:
        """Append a frame."""
        location = self.store.append((body,))
        self.unsaved += len(body)
        return location

    def sync(self) -> None:
        """Make durable what was written."""
        self.store.sync()

    def close(self) -> None:
        self.store.close()

    def written(self, location: Location, published: Iterable[Stored]) -> None:
        """Remember where messages stand that were published in the frame at this location."""
        for stored in published:
            index = self._indexes.get(stored.serial)
            if index is None:
                index = self._indexes[stored.serial] = TopicIndex()
            index.add(location, stored, self.store.part_of(location), self.store.block)

    def wants_snapshot(self) -> bool:
        """Whether the next start would have to read more than it should."""
        return self.unsaved >= self._snapshot_bytes

    def snapshot(self, book: Book) -> Callable[[], None]:
        """Begin to save the books, which stand for all frames until now; the call that is returned finishes it."""
        before = self.store.begin_part()
        indexes = {topic.serial: self._indexes[topic.serial].columns() for topic in book.topics.values()}
        self._indexes = {serial: index for serial, index in self._indexes.items() if serial in indexes}
        self.unsaved = 0

        def finish() -> None:
            body = json.dumps({"book": book_to_json(book), "indexes": indexes}, separators=(",", ":")).encode()
            self.store.save_snapshot([body], before)
            self._saved = before

        return finish

    def _from_snapshot(self, plain: dict[str, Any]) -> Book:
        self._indexes = index_from_json(plain["indexes"])
        return book_from_json(plain["book"])

    def compact(self, book: Book, now_us: int) -> list[Part]:
        """Drop the parts that nobody needs any more, of those that the last snapshot stands for."""
        topics = {topic.serial: topic for topic in book.topics.values()}
        readers: dict[int, list[Ledger]] = {serial: [] for serial in topics}
        for ledger in book.subscriptions.values():
            if not ledger.detached:
                readers[book.topics[ledger.topic].serial].append(ledger)
        snapshots: dict[int, list[SnapshotLedger]] = {serial: [] for serial in topics}
        for snapshot in book.snapshots.values():
            snapshots[book.topics[snapshot.topic].serial].append(snapshot)
        dropped = []
        for part in self.store.parts()[:-1]:  # the last one is written to
            needed = (
                self._needed(part, topic, readers[serial], snapshots[serial], now_us)
                for serial, topic in topics.items()
            )
            if part.first >= self._saved or any(needed):
                continue
            self.store.drop(part)
            for index in self._indexes.values():
                index.forget(part)
            dropped.append(part)
        return dropped

    def _needed(
        self, part: Part, topic: TopicLedger, readers: list[Ledger], snapshots: list[SnapshotLedger], now_us: int
    ) -> bool:
        """Whether somebody may still ask for messages of the topic that stand in this part."""
        index = self._indexes.get(topic.serial)
        if index is None:
            return False
        block, end = index.within(part)
        if block == end:
            return False
        first = index.firsts[block]
        last = end == len(index.firsts)
        behind = topic.next_position if last else index.firsts[end]
        stored_us = now_us if last else index.times[end]  # none of them was stored later
        kept = topic.options.message_retention_duration
        if kept is not None and stored_us >= now_us - kept * MICROSECONDS:
            return True
        for ledger in readers:
            young = stored_us >= now_us - ledger.options.message_retention_duration * MICROSECONDS
            done = ledger.sorted_done().end_at(first) >= behind
            if young and (not done or ledger.options.retain_acked_messages):
                return True
        latest_us = max(now_us, topic.stored_us)
        return any(one.expires_us > latest_us and one.done.end_at(first) < behind for one in snapshots)
