"""The messages of a journal by topic and position, read beside the owner: for Spark and for tools.

Shows what is durable and nothing else, owns nothing and changes nothing. What was published stays in
columns until somebody asks for records.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from inorder.core.ledger import Book, TopicLedger
from inorder.errors import (
    FrameDropped,
    InvalidArgument,
    JournalDamaged,
    JournalFailed,
    NotFound,
    NotRetained,
    TopicNotFound,
)
from inorder.journal import SEGMENT_BLOCK, SQLITE_BLOCK, Location, Part
from inorder.journal.codec import PUBLISHED, Batch, batch, book_from_json, entries, replay
from inorder.journal.files import Folder
from inorder.journal.head import HEAD_NAME
from inorder.journal.index import PARTS, TopicIndex, index_from_json, lost_parts
from inorder.journal.layout import DATABASE, existing_folder, layout
from inorder.journal.opener import JournalKind
from inorder.journal.reader import Reader, SegmentReader
from inorder.journal.sqlite import SqliteReader
from inorder.message import Record
from inorder.options import TopicOptions

_SORTED_AFTER = 16 * 1024 * 1024  # bytes of frames, after which acked positions are put together
_NEAR = 16  # blocks so close are read in one go, with what lies between them


class Stretch(NamedTuple):
    """Messages in a row that were published together: a batch, or as much of it as was asked for."""

    batch: Batch
    first: int
    end: int

    def records(self) -> list[Record]:
        """The messages one by one."""
        skipped = self.first - self.batch.first
        return self.batch.records()[skipped : skipped + self.end - self.first]


class Slice(NamedTuple):
    """Messages in a row, and where they stand: enough to read them without knowing anything else of the journal."""

    serial: int  # of their topic
    first: int
    end: int
    frames: tuple[tuple[Location, Location], ...]  # the first and the last of each stretch


class TopicView(NamedTuple):
    """A topic as a reader sees it."""

    name: str
    serial: int  # never used again: a later topic of the same name has another
    id_prefix: str  # a message's id is this and its position
    options: TopicOptions
    created_us: int
    begin: int  # the oldest position from which on everything can be read
    end: int  # behind the last message that is durable
    size: int  # bytes of what can be read, about
    oldest_us: int | None  # when the oldest of it was stored, or a little before; None: there is nothing
    newest_us: int | None


class JournalReader:
    """A journal that somebody else may write, as it was at the last `refresh`. Not thread-safe."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = existing_journal(folder)
        self.kind: JournalKind = "sqlite" if DATABASE in self.folder.names() else "segments"
        self.frames: Reader = SegmentReader(self.folder) if self.kind == "segments" else SqliteReader(self.folder)
        self._block = SEGMENT_BLOCK if self.kind == "segments" else SQLITE_BLOCK
        self._start_over()
        self.refresh()

    def _start_over(self) -> None:
        self.book = Book()  # what is remembered of all topics and subscriptions
        self.parts: list[Part] = []
        self._firsts: list[Location] = []  # of the parts
        self.snapshot: tuple[Location, int] | None = None  # the location before which it stands for all, its bytes
        self.at: Location = 0  # all before is known
        self._names: dict[int, str] = {}  # of topics by their serials
        self._indexes: dict[int, TopicIndex] = {}
        self._begins: dict[int, int] = {}

    # -- following the owner -----------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what has become durable since the last time, and forget what was dropped."""
        try:
            self._refresh()
        except OSError as error:
            raise JournalFailed("read", str(self.folder), error) from error

    def _refresh(self) -> None:
        if self.frames.end() < self.at:
            self._start_over()  # the folder was set back, and what is known is of another one
        while True:
            try:
                if not self.at:
                    self._take_snapshot()
                self._follow()
                break
            except FrameDropped:
                self._start_over()  # the owner was faster, and so there is a newer snapshot
            except BaseException:
                self._start_over()  # or what was taken in would be so twice
                raise
        self._forget_dropped()

    def _take_snapshot(self) -> None:
        if found := self.frames.snapshot():
            before, body = found
            try:
                plain = json.loads(body)
                self.book = book_from_json(plain["book"])
                self._indexes = index_from_json(plain["indexes"])
            except (ValueError, KeyError, TypeError) as error:
                problem = f"the snapshot cannot be decoded: {error!r}"
                raise JournalDamaged(str(self.folder), before, problem, unit="location") from error
            self._check_parts(before, plain)
            self._names = {topic.serial: topic.name for topic in self.book.topics.values()}
            self.snapshot, self.at = (before, len(body)), before

    def _check_parts(self, before: Location, plain: dict[str, Any]) -> None:
        """Raise DataLoss if a part is gone or cut that the snapshot names."""
        end = self.frames.end()  # which may be behind the snapshot, after the machine has crashed
        named = [(first, min(last, end)) for first, last in plain.get(PARTS, ()) if first < end]
        for location, problem in lost_parts({PARTS: named}, self.frames.parts()):
            newest = self.frames.snapshot()
            if newest is not None and newest[0] == before:  # else its owner may have dropped it since
                raise self.frames.damage(location, problem)

    def _follow(self) -> None:
        end, unsorted = self.frames.end(), 0
        self._firsts = [part.first for part in self.frames.parts()]
        for location, body in self.frames.read(self.at, end):
            self._take_in(location, body)
            unsorted += len(body)
            if unsorted >= _SORTED_AFTER:
                unsorted = self._sort()
        self._sort()
        self.at = max(self.at, end)

    def _take_in(self, location: Location, body: bytes) -> None:
        try:
            published = replay(body, self.book, self._names)
        except (ValueError, KeyError, TypeError) as error:
            raise self.frames.damage(location, f"the frame cannot be decoded: {error!r}") from error
        part = self._part(location)
        for stored in published:
            self._indexes.setdefault(stored.serial, TopicIndex()).add(location, stored, part, self._block)

    def _part(self, location: Location) -> Location:
        """Where the part begins that a frame is in."""
        return self._firsts[bisect_right(self._firsts, location) - 1] if self._firsts else 0

    def _sort(self) -> int:
        for ledger in self.book.subscriptions.values():
            ledger.sorted_done()
        return 0

    def _forget_dropped(self) -> None:
        self.parts = self.frames.parts()
        serials = {topic.serial for topic in self.book.topics.values()}
        self._indexes = {serial: index for serial, index in self._indexes.items() if serial in serials}
        self._begins.clear()
        end = 0
        for part in self.parts:
            if end < part.first:
                for index in self._indexes.values():
                    index.forget(Part(end, part.first, 0))
            end = part.end

    # -- reading -----------------------------------------------------------------------------------

    def topics(self) -> list[TopicView]:
        """All that exist, as they were at the last refresh."""
        return [self.topic(name) for name in self.book.topics]

    def topic(self, name: str) -> TopicView:
        """One of them; TopicNotFound if it does not exist."""
        known, begin = self._known(name), self.begin(name)
        index = self._index(known)
        block = max(bisect_right(index.firsts, begin) - 1, 0)
        some = begin < known.next_position
        return TopicView(
            name=name,
            serial=known.serial,
            id_prefix=known.id_prefix,
            options=known.options,
            created_us=known.created_us,
            begin=begin,
            end=known.next_position,
            size=sum(index.sizes[block:]) if some else 0,
            oldest_us=index.times[block] if some else None,
            newest_us=known.stored_us if some else None,
        )

    def end(self, topic: str) -> int:
        """The position behind the last message that is durable."""
        return self._known(topic).next_position

    def begin(self, topic: str) -> int:
        """The oldest position from which on everything can be read; `end` if there is nothing.

        Messages from before it may be there as well, but not all of them.
        """
        known = self._known(topic)
        if known.serial not in self._begins:
            index, begin = self._index(known), known.next_position
            for block in range(len(index.firsts) - 1, -1, -1):
                if index.ends[block] < begin:
                    break
                begin = index.firsts[block]
            self._begins[known.serial] = begin
        return self._begins[known.serial]

    def read(self, topic: str, first: int | None = None, end: int | None = None) -> Iterator[Stretch]:
        """The messages from `first` (or the oldest) to `end` (or the last that is durable), in order, none left out.

        Raises NotRetained, at once or on the way, where a message is no longer in the journal.
        """
        known, index = self._known(topic), self._index(self._known(topic))
        first = self.begin(topic) if first is None else first
        end = known.next_position if end is None else min(end, known.next_position)
        if first < 0:
            raise InvalidArgument(f"first: a position, so at least 0, not {first}")
        return self._read(known.serial, index, self._stretches(index, first, end), first, end)

    def slices(self, topic: str, first: int, end: int, count: int) -> list[Slice]:
        """The same messages in up to so many slices of about one size, for readers that share the work."""
        known, index = self._known(topic), self._index(self._known(topic))
        end = min(end, known.next_position)
        if first < end and first < self.begin(topic):
            raise NotRetained(first, self.begin(topic))
        bounds = [first + (end - first) * part // count for part in range(count + 1)]
        return [
            Slice(known.serial, begin, stop, tuple(self._stretches(index, begin, stop)))
            for begin, stop in pairwise(bounds)
            if begin < stop
        ]

    def position_at(self, topic: str, time_us: int) -> int:
        """The first message that was stored at a time or later, of those that can be read; `end` if there is none."""
        known, index = self._known(topic), self._index(self._known(topic))
        begin = self.begin(topic)
        for block in range(max(bisect_left(index.times, time_us) - 1, 0), len(index.times)):
            with suppress(FrameDropped):  # its owner has dropped it since, and what comes behind it is the first
                for found in self._batches(known.serial, [(index.starts[block], index.lasts[block])]):
                    if found.stored_us >= time_us:
                        return max(found.first, begin)
        return known.next_position

    def position_after(self, topic: str, first: int, size: int) -> int:
        """So far one may read from `first` on for about so many bytes: at least a block, at most to the end."""
        index = self._index(self._known(topic))
        for block in range(max(bisect_right(index.firsts, first) - 1, 0), len(index.firsts)):
            size -= index.sizes[block]
            if size <= 0:
                return max(index.ends[block], first)
        return self.end(topic)

    def location(self, topic: str, position: int) -> Location:
        """A frame that is there and before which no message of the topic from `position` on stands."""
        index = self._index(self._known(topic))
        block = max(bisect_right(index.firsts, position) - 1, 0)
        return index.starts[block] if index.starts else self.at

    def _stretches(self, index: TopicIndex, first: int, end: int) -> list[tuple[Location, Location]]:
        """Where to read: the first and the last frame of blocks that lie near each other.

        They lie in one part: what is between two others, its owner may have dropped, or drop before it is read.
        """
        found: list[tuple[Location, Location]] = []
        begin = max(bisect_right(index.firsts, first) - 1, 0)
        for block in range(begin, bisect_left(index.firsts, end)):
            start, last = index.starts[block], index.lasts[block]
            if found and start - found[-1][1] <= _NEAR * self._block and self._part(start) <= found[-1][1]:
                found[-1] = found[-1][0], last
            else:
                found.append((start, last))
        return found

    def _read(
        self, serial: int, index: TopicIndex, stretches: list[tuple[Location, Location]], first: int, end: int
    ) -> Iterator[Stretch]:
        try:
            for stretch in _stretches_in(self._batches(serial, stretches), first, end):
                yield stretch
                first = stretch.end
        except FrameDropped as dropped:
            block = bisect_left(index.starts, dropped.oldest)
            raise NotRetained(first, index.firsts[block] if block < len(index.firsts) else end) from None
        if first < end:
            raise NotRetained(first, next((position for position in index.firsts if position > first), end))

    def _batches(self, serial: int, stretches: Iterable[tuple[Location, Location]]) -> Iterator[Batch]:
        return _batches(self.frames, serial, stretches)

    def _known(self, topic: str) -> TopicLedger:
        if topic not in self.book.topics:
            raise TopicNotFound(topic)
        return self.book.topics[topic]

    def _index(self, known: TopicLedger) -> TopicIndex:
        return self._indexes.get(known.serial) or TopicIndex()


def read_slice(folder: str | os.PathLike[str], wanted: Slice) -> Iterator[Stretch]:
    """The messages of a slice that a `JournalReader` of the folder has made, here or elsewhere.

    Raises NotRetained where a message is no longer in the journal.
    """
    files = existing_journal(folder)
    frames: Reader = SqliteReader(files) if DATABASE in files.names() else SegmentReader(files)
    first = wanted.first
    try:
        for stretch in _stretches_in(_batches(frames, wanted.serial, wanted.frames), first, wanted.end):
            yield stretch
            first = stretch.end
    except FrameDropped:
        raise NotRetained(first, wanted.end) from None
    if first < wanted.end:
        raise NotRetained(first, wanted.end)


def _stretches_in(batches: Iterable[Batch], first: int, end: int) -> Iterator[Stretch]:
    """What there is from `first` to `end`, without a hole."""
    for found in batches:
        if found.end <= first:
            continue
        if first >= end or found.first > first:
            return
        yield Stretch(found, first, min(found.end, end))
        first = min(found.end, end)


def _batches(frames: Reader, serial: int, stretches: Iterable[tuple[Location, Location]]) -> Iterator[Batch]:
    for start, last in stretches:
        for location, body in frames.read(start):
            for kind, entry in entries(body):
                if kind == PUBLISHED and (found := batch(entry)).serial == serial:
                    yield found
            if location >= last:
                break


def existing_journal(folder: str | os.PathLike[str]) -> Folder:
    """A folder that holds a journal; NotFound if it does not."""
    files = existing_folder(folder)
    names = files.names()
    if DATABASE not in names and HEAD_NAME not in names and not any(layout(files)):
        raise NotFound(f"there is no journal in {files}")
    return files
