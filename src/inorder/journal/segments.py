"""The journal as append-only segment files: 00000001.log, 00000002.log and so on, and a snapshot.

A segment is synced before the next one is created, and that one is durable before its first frame, so only
the last segment can have a torn end. Snapshot 7 stands for everything before segment 7.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from inorder.errors import Closed, FrameDropped, InvalidArgument, JournalDamaged, JournalFailed
from inorder.journal import SEGMENT_BLOCK, SEGMENT_BYTES, Location, Part, Recovered
from inorder.journal.files import File, Files, write_all
from inorder.journal.frames import (
    FRAME_HEADER,
    LOG_MAGIC,
    NO_FRAME,
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    file_header,
    first_location,
    frame_header,
    frames_in,
    segment_of,
)
from inorder.journal.head import HEAD_NAME, Head
from inorder.journal.layout import TEMPORARY, log_name, snapshot_name, write_snapshot
from inorder.journal.opening import Opening

_OPEN_FILES = 32  # segments kept open for reading
_COPY_BYTES = 1 << 22
_LEAST_ROOM, _MOST_ROOM = 1 << 16, 1 << 20  # bytes of zeros ahead of the frames
_ZEROS = bytes(_LEAST_ROOM)  # written again and again: the system would have to fetch many of them page by page


class _Tail(NamedTuple):
    """Where the next frame goes. Replaced as a whole, so that who syncs or reads needs no lock to see it."""

    file: File
    end: Location


class SegmentStore:
    """A `Store` in the files of one folder, which it owns until it is closed."""

    block = SEGMENT_BLOCK
    outlives_its_process = True

    def __init__(self, files: Files, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.report: list[str] = []
        self._files = files
        self._segment_bytes = segment_bytes
        self._failure: JournalFailed | None = None
        self._closed = False
        # Taken in this order. Syncing has its own lock, so that others append while the disk works.
        self._saving = threading.Lock()
        self._writing = threading.RLock()
        self._syncing = threading.RLock()
        self._tail: _Tail | None = None
        self._filled = 0  # bytes of the tail's file that are there already, frames or room for them
        self._durable: Location = 0
        self._sealed: dict[int, int] = {}  # number: size of each segment before the tail's
        self._snapshot = 0
        self._readable: dict[int, File] = {}
        with self._stops_if_it_fails("lock", str(files)):
            self._lock = files.lock()

    # Opening

    def recover(self) -> Recovered:
        with self._stops_if_it_fails("read", str(self._files)):
            opening = Opening(self._files)
            parts = [self._part_on_disk(number) for number in opening.found.logs if number < opening.found.snapshot]
        return Recovered(opening.snapshot, self._recovered_frames(opening), parts)

    def _part_on_disk(self, number: int) -> Part:
        size = self._files.open(log_name(number)).size()
        return Part(first_location(number), number << SEGMENT_SHIFT | size, size)

    def _recovered_frames(self, opening: Opening) -> Iterator[tuple[Location, bytes]]:
        with self._stops_if_it_fails("read", str(self._files)):
            yield from opening.frames()
        with self._stops_if_it_fails("recover", str(self._files)):
            self._clean_up(opening)
            self._take_over(opening)

    def _clean_up(self, opening: Opening) -> None:
        """Remove what a crash interrupted and what a snapshot has replaced."""
        self._files.sync()  # the new snapshot's name may not be durable yet, and the old one is to go
        if TEMPORARY in self._files.names():
            self._files.unlink(TEMPORARY)
            self.report.append("removed a snapshot that was being written")
        for number in opening.found.snapshots[:-1]:
            self._files.unlink(snapshot_name(number))
        if opening.stillborn:
            self._files.unlink(log_name(opening.stillborn))
            self.report.append(f"removed {log_name(opening.stillborn)}, which was being created")
        self._files.sync()

    def _take_over(self, opening: Opening) -> None:
        self._snapshot = opening.found.snapshot
        last = segment_of(opening.end)
        for number in opening.found.logs:
            if number != last and number != opening.stillborn:
                self._sealed[number] = self._files.open(log_name(number)).size()
        if not last:
            self._tail = self._new_segment(1, 0)
        else:
            self._tail = self._old_segment(last, opening)
        self._durable = self._tail.end
        self._head = Head(self._files, self._durable)

    def _old_segment(self, number: int, opening: Opening) -> _Tail:
        name, end = log_name(number), opening.end & OFFSET_MASK
        file = self._files.open(name, write=True)
        if file.size() > end:
            file.truncate(end)
        if opening.cut:
            self.report.append(f"cut {opening.cut} bytes of an incomplete frame at the end of {name}")
        # After a failed sync the system may hold bytes it believes to be on disk while they are not. Writing
        # them once more makes this sync mean something, and changes nothing if they had been there.
        for position in range(opening.uncertain(), end, _COPY_BYTES):
            write_all(file, position, file.read(position, min(_COPY_BYTES, end - position)))
        file.sync()
        self._filled = end
        return _Tail(file, opening.end)

    # Writing

    def append(self, body: Sequence[bytes]) -> Location:
        data = b"".join(body)
        size = FRAME_HEADER + len(data)
        with self._writing:
            file, location = tail = self._writable()
            at = location & OFFSET_MASK
            if at + size > self._segment_bytes:
                file, location = tail = self._next_segment(tail)
                at = location & OFFSET_MASK
            if at + size > self._filled:
                self._make_room(tail, at + size)
            header = frame_header(location, self._durable, data)
            try:
                written = file.write(at, (header, data))
                if written != size:
                    write_all(file, at + written, (header + data)[written:])
            except OSError as error:
                raise self._stop("write", log_name(segment_of(location)), error) from error
            self._tail = _Tail(file, location + size)
            return location

    def _make_room(self, tail: _Tail, needed: int) -> None:
        """Fill the file with zeros ahead of its frames.

        To sync bytes of a file that does not grow takes half the time, and a fraction of it while others
        use the disk: the file system has nothing to write down about it.
        """
        room = min(max(self._filled, _LEAST_ROOM), _MOST_ROOM)
        wanted = min(max(needed, self._filled + room), self._segment_bytes)
        with suppress(OSError):  # where there is no room, the frame itself will say so
            while self._filled < wanted:
                blocks, rest = divmod(wanted - self._filled, len(_ZEROS))
                written = tail.file.write(self._filled, (*(_ZEROS,) * blocks, _ZEROS[:rest]))
                if not written:
                    break
                self._filled += written
        self._filled = max(self._filled, needed)

    def sync(self) -> None:
        with self._syncing:
            tail = self._writable()
            if tail.end == self._durable:
                return
            try:
                tail.file.sync()
            except OSError as error:
                raise self._stop("sync", log_name(segment_of(tail.end)), error) from error
            self._durable = tail.end
            self._head.publish(tail.end)

    def begin_part(self) -> Location:
        with self._writing:
            tail = self._next_segment(self._writable())
            return tail.end

    def _next_segment(self, tail: _Tail) -> _Tail:
        """The tail of a new segment; the same one if it has no frames yet. Call it with `_writing` held."""
        with self._syncing:
            self.sync()
            number = segment_of(tail.end)
            if tail.end == first_location(number):
                return tail
            with self._stops_if_it_fails("truncate", log_name(number)):
                tail.file.truncate(tail.end & OFFSET_MASK)
                tail.file.sync()
            with self._stops_if_it_fails("create", log_name(number + 1)):
                self._lock.check()
                new = self._new_segment(number + 1, tail.end)
            self._sealed[number] = tail.end & OFFSET_MASK
            self._tail = new
            self._durable = new.end
            self._head.publish(new.end)
            return new

    def _new_segment(self, number: int, end_of_previous: Location) -> _Tail:
        file = self._files.create(log_name(number))
        write_all(file, 0, file_header(LOG_MAGIC, number, end_of_previous))
        file.sync()
        self._files.sync()
        self._filled = file.size()
        return _Tail(file, first_location(number))

    # Snapshots and parts

    def save_snapshot(self, body: Sequence[bytes], before: Location | None = None) -> None:
        with self._saving:
            before = self.begin_part() if before is None else before
            number = segment_of(before)
            if number < self._snapshot or before not in (part.first for part in self.parts()):
                raise InvalidArgument(f"no part that could follow a snapshot begins at location {before}")
            with self._stops_if_it_fails("save", snapshot_name(number)):
                self._lock.check()
                write_snapshot(self._files, number, b"".join(body))
                if 0 < self._snapshot < number:
                    self._files.unlink(snapshot_name(self._snapshot))
            self._snapshot = number

    def parts(self) -> list[Part]:
        with self._writing:
            end = self._writable().end
            sizes = {**self._sealed, segment_of(end): end & OFFSET_MASK}
        return [Part(first_location(n), n << SEGMENT_SHIFT | size, size) for n, size in sorted(sizes.items())]

    def part_of(self, location: Location) -> Location:
        return first_location(segment_of(location))

    def drop(self, part: Part) -> None:
        number = segment_of(part.first)
        with self._writing:
            self._writable()
            if number >= self._snapshot or number not in self._sealed:
                raise InvalidArgument(f"{log_name(number)} is not a part that the snapshot stands for")
            with self._stops_if_it_fails("remove", log_name(number)):
                self._lock.check()
                self._files.unlink(log_name(number))
                self._files.sync()  # one by one: a crash brings back no old part while a younger one is gone
            del self._sealed[number]
            self._readable.pop(number, None)

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        return JournalDamaged(log_name(segment_of(location)), location & OFFSET_MASK, problem)

    # Reading

    def end(self) -> Location:
        return self._writable().end

    def read(self, start: Location, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        number = segment_of(start)
        while True:
            last = segment_of(self._writable().end)  # asked first: a segment that has a successor has all its frames
            file, segment_end = self._segment(number, start)
            start = max(start, first_location(number))
            stop = segment_end if end is None else min(segment_end, end)
            try:
                ended = yield from frames_in(file, start, stop)
                if ended < stop:  # room for frames is never before the end of what was written
                    raise self.damage(ended, NO_FRAME)
            except BadFrame as bad:
                raise bad.as_damage(log_name(number)) from None
            except OSError as error:
                raise self._stop("read", log_name(number), error) from error
            if number < last:
                number += 1
                if end is not None and number << SEGMENT_SHIFT >= end:
                    return
            elif start >= stop:  # or else frames may have come meanwhile
                return
            start = max(start, stop)

    def _segment(self, number: int, start: Location) -> tuple[File, Location]:
        """A segment to read and where its frames end at the moment."""
        with self._writing:
            tail = self._writable()
            last = segment_of(tail.end)
            if number not in self._sealed and number != last:
                oldest = first_location(min(self._sealed, default=last))
                if number < self._snapshot:
                    raise FrameDropped(max(start, first_location(number)), oldest)
                raise JournalDamaged(log_name(number), 0, f"the journal ends in {log_name(last)}")
            if number == last:
                return tail.file, tail.end
            if number not in self._readable:
                if len(self._readable) >= _OPEN_FILES:  # the one opened first; it closes when nobody reads it
                    del self._readable[next(iter(self._readable))]
                with self._stops_if_it_fails("open", log_name(number)):
                    self._readable[number] = self._files.open(log_name(number))
            return self._readable[number], number << SEGMENT_SHIFT | self._sealed[number]

    # Stopping

    def _writable(self) -> _Tail:
        if self._failure is not None:
            raise JournalFailed(self._failure.operation, self._failure.file, self._failure.error)
        if self._closed or not self._lock.held:
            raise Closed("the journal is closed" if self._closed else "a forked process does not own the journal")
        assert self._tail is not None, "a journal is recovered before it is used"
        return self._tail

    def _stop(self, operation: str, file: str, error: OSError) -> JournalFailed:
        if self._failure is None:
            self._failure = JournalFailed(operation, file, error)
        return self._failure

    @contextmanager
    def _stops_if_it_fails(self, operation: str, file: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._stop(operation, file, error) from error

    def close(self) -> None:
        with self._saving, self._writing, self._syncing:
            if self._closed:
                return
            try:
                keeps = self._tail is not None and self._lock.held and not self._lock.folder_is_gone()
                if keeps:  # who does not own the folder has kept nothing
                    with self._stops_if_it_fails("close", str(self._files)):
                        self._lock.check()
                if keeps and self._failure is None and self._tail is not None:
                    self.sync()
                    with self._stops_if_it_fails("sync", HEAD_NAME):
                        self._tail.file.truncate(self._tail.end & OFFSET_MASK)
                        self._tail.file.sync()
                        self._head.flush()
            finally:
                self._closed = True
                self._tail = None
                self._readable.clear()
                with suppress(AttributeError):  # it failed before there was one
                    del self._head  # files are closed when nobody holds them any more
                self._lock.release()
