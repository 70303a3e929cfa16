"""A broker's memory: events go in, and after a crash the books come out.

Knows what the frames of a store mean; the store knows how to keep them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from inorder.clock import MICROSECONDS
from inorder.core.ledger import Book, Ledger, SnapshotLedger, TopicLedger
from inorder.journal import Location, Part, Store
from inorder.journal.codec import Stored, book_from_json, book_to_json, replay
from inorder.journal.index import INDEXES, PARTS, JournalHistory, TopicIndex, index_from_json, lost_parts

SNAPSHOT_BYTES = 64 * 1024 * 1024  # of frames, after which a snapshot spares the next start from reading them


# Of parts that are too old, how many are dropped at once of which somebody has not heard yet: they are read for that,
# and everybody waits meanwhile. The others follow with the next snapshots.
UNTOLD_PARTS = 4


class _Span(NamedTuple):
    """Messages of a topic in one part of the journal."""

    first: int
    behind: int  # the position after the last one
    stored_us: int  # none of them was stored later


def _is_done(ledger: Ledger, span: _Span) -> bool:
    return ledger.sorted_done().end_at(span.first) >= span.behind


class Journal:
    """Writes events, knows where messages stand, and brings the books back. The caller keeps threads apart."""

    def __init__(self, store: Store, *, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self.store = store
        self._snapshot_bytes = snapshot_bytes
        self._indexes: dict[int, TopicIndex] = {}  # of topics, by serial
        self._unneeded: list[Part] = []  # to be dropped once the snapshot is saved
        self.unsaved = 0  # bytes that the next start would have to read beyond the snapshot

    def recover(self) -> Book:
        """What is known of the broker. Comes before everything else."""
        snapshot, frames, parts = self.store.recover()
        book = self._from_snapshot(json.loads(snapshot), parts) if snapshot else Book()
        names = {topic.serial: topic.name for topic in book.topics.values()}
        for location, body in frames:
            self.written(location, replay(body, book, names))
            self.unsaved += len(body)
        return book

    def _from_snapshot(self, plain: dict[str, Any], parts: list[Part]) -> Book:
        for location, problem in lost_parts(plain, parts):
            raise self.store.damage(location, problem)
        self._indexes = index_from_json(plain[INDEXES])
        if PARTS not in plain:
            for index in self._indexes.values():
                index.keep(parts)
        return book_from_json(plain["book"])

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

    def snapshot(
        self, write_book: Callable[[], Book], lose: Callable[[Mapping[int, int]], object], now_us: int
    ) -> Callable[[], None]:
        """Begin to save the books, which stand for all frames until now; the call that is returned finishes it.

        It is decided now which parts nobody needs any more. The snapshot does not name them, so that after a
        crash it does not matter how many of them `compact` had dropped, while any other that is gone is a loss.
        `lose` is told up to where they have messages of each topic: whoever is still to be told that some of these
        were too old must know them by then, and the books must say so.
        """
        before = self.store.begin_part()
        book = write_book()
        serials = {topic.serial for topic in book.topics.values()}
        self._indexes = {serial: index for serial, index in self._indexes.items() if serial in serials}
        self._unneeded = self._without_readers(book, now_us)
        if self._unneeded:
            lose(self._ends_of(self._unneeded))
            for index in self._indexes.values():
                for part in self._unneeded:
                    index.forget(part)
            book = write_book()
        indexes = {serial: index.columns() for serial, index in self._indexes.items()}
        kept = sorted({*self.store.parts()[:-1]}.difference(self._unneeded))
        parts = [(part.first, part.end) for part in kept]
        self.unsaved = 0

        def finish() -> None:
            plain = {"book": book_to_json(book), INDEXES: indexes, PARTS: parts}
            self.store.save_snapshot([json.dumps(plain, separators=(",", ":")).encode()], before)

        return finish

    def compact(self) -> list[Part]:
        """Drop the parts that nobody needed any more when the last snapshot was begun, which is saved by now."""
        dropped, self._unneeded = self._unneeded, []
        for part in dropped:
            self.store.drop(part)
        return dropped

    def _ends_of(self, parts: Sequence[Part]) -> dict[int, int]:
        """Of each topic that has messages in these parts, the position behind the last of them; by serial."""
        ends: dict[int, int] = {}
        for serial, index in self._indexes.items():
            for part in parts:
                first, end = index.within(part)
                if first < end:
                    ends[serial] = max(ends.get(serial, 0), index.ends[end - 1])
        return ends

    def _without_readers(self, book: Book, now_us: int) -> list[Part]:
        topics = {topic.serial: topic for topic in book.topics.values()}
        readers: dict[int, list[Ledger]] = {serial: [] for serial in topics}
        for ledger in book.subscriptions.values():
            if not ledger.detached:
                readers[book.topics[ledger.topic].serial].append(ledger)
        snapshots: dict[int, list[SnapshotLedger]] = {serial: [] for serial in topics}
        for snapshot in book.snapshots.values():
            snapshots[book.topics[snapshot.topic].serial].append(snapshot)

        def needed(part: Part) -> bool:
            return any(
                self._needed(span, topic, readers[serial], snapshots[serial], now_us)
                for serial, topic in topics.items()
                if (span := self._span(part, topic)) is not None
            )

        def untold(part: Part) -> bool:
            return any(
                ledger.options.enable_message_ordering and not _is_done(ledger, span)
                for serial, topic in topics.items()
                if (span := self._span(part, topic)) is not None
                for ledger in readers[serial]
            )

        unneeded = [part for part in self.store.parts()[:-1] if not needed(part)]  # the last one is written to
        later = [part for part in unneeded if untold(part)][UNTOLD_PARTS:]
        return [part for part in unneeded if part not in later]

    def _span(self, part: Part, topic: TopicLedger) -> _Span | None:
        """The messages of the topic that stand in this part, if there are any."""
        index = self._indexes.get(topic.serial)
        if index is None:
            return None
        block, end = index.within(part)
        if block == end:
            return None
        if end == len(index.firsts):
            return _Span(index.firsts[block], topic.next_position, topic.stored_us)
        return _Span(index.firsts[block], index.firsts[end], index.times[end])

    @staticmethod
    def _needed(
        span: _Span, topic: TopicLedger, readers: list[Ledger], snapshots: list[SnapshotLedger], now_us: int
    ) -> bool:
        """Whether somebody may still ask for these messages of the topic."""
        first, behind, stored_us = span
        kept = topic.options.message_retention_duration
        if kept is not None and stored_us >= now_us - kept * MICROSECONDS:
            return True
        for ledger in readers:
            young = stored_us >= now_us - ledger.options.message_retention_duration * MICROSECONDS
            if young and (not _is_done(ledger, span) or ledger.options.retain_acked_messages):
                return True
        latest_us = max(now_us, topic.stored_us)
        return any(one.expires_us > latest_us and one.done.end_at(first) < behind for one in snapshots)
