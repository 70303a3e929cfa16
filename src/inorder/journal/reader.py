"""A journal that somebody else writes, read without owning it: for Spark and for tools.

Believes the head file, so it never shows what a crash of the owner could take back. It takes no lock, so the
owner may drop a part at any time; that is a named error, and whatever cannot be explained so is damage.
"""

from collections.abc import Iterator
from typing import Protocol

from inorder.errors import FrameDropped, JournalDamaged, JournalFailed
from inorder.journal import Location, Part
from inorder.journal.files import File, Files
from inorder.journal.frames import (
    FILE_HEADER,
    LOG_MAGIC,
    NO_FRAME,
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    BadHeader,
    first_location,
    frames_in,
    previous_end,
    segment_of,
)
from inorder.journal.head import HEAD_NAME
from inorder.journal.layout import MISSING, layout, log_name, read_head, read_snapshot

_NO_HEAD = "it does not say how far the journal is durable: open the broker once, which finds out and writes it anew"


class Reader(Protocol):
    """What can be read beside an owner. To follow it: read up to `end()`, later from there on."""

    def end(self) -> Location:
        """Behind the last durable frame, at the moment."""

    def snapshot(self) -> tuple[Location, bytes] | None:
        """The snapshot, and the location before which it stands for all frames."""

    def parts(self) -> list[Part]:
        """The parts that have durable frames, in order."""

    def read(self, start: Location | None = None, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        """The durable frames from `start` (or the oldest there is) to `end` (or `end()`)."""

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        """The error that names the file of a location and the place in it."""


class SegmentReader:
    """A `Reader` of segment files. It holds no file open between calls."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def end(self) -> Location:
        if durable := read_head(self._files):
            return durable
        if self._has_frames() and not (durable := read_head(self._files)):  # or an owner has come in between
            raise JournalDamaged(HEAD_NAME, 0, _NO_HEAD)
        return durable

    def _has_frames(self) -> bool:
        """Whether there is more than what an owner creates before it writes the head."""
        logs, snapshots = layout(self._files)
        return bool(snapshots) or logs > [1] or any(self._files.open(log_name(n)).size() > FILE_HEADER for n in logs)

    def snapshot(self) -> tuple[Location, bytes] | None:
        while number := layout(self._files).snapshot:
            try:
                return first_location(number), read_snapshot(self._files, number)
            except FileNotFoundError:
                continue  # replaced by a newer one between the two looks
        return None

    def parts(self) -> list[Part]:
        end = self.end()
        found = []
        for number in layout(self._files).logs:
            try:
                size = self._files.open(log_name(number)).size()
            except FileNotFoundError:
                continue  # dropped between the two looks
            part_end = min(number << SEGMENT_SHIFT | size, end)
            if part_end >= first_location(number):
                found.append(Part(first_location(number), part_end, part_end & OFFSET_MASK))
        return found

    def read(self, start: Location | None = None, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        durable = self.end()
        end = durable if end is None else min(end, durable)
        if not start:  # also what `end` says before there is a journal
            start = next((part.first for part in self.parts()), end)
        ended: Location = 0  # where the frames of the segment before do
        for number in range(segment_of(start), segment_of(end) + 1):
            begin = max(start, first_location(number))
            if begin >= end and not ended:
                return
            try:
                file, before = self._opened(number, begin)
                if ended and ended != before:
                    problem = f"the file ends here, and the next one says that it ended at byte {before & OFFSET_MASK}"
                    raise JournalDamaged(log_name(number - 1), ended & OFFSET_MASK, problem)
                if begin >= end:
                    return
                segment_end = number << SEGMENT_SHIFT | file.size()
                # Only the last durable segment is still growing; of all others the owner has written everything.
                stop = end if number == segment_of(end) else segment_end
                ended = yield from frames_in(file, begin, stop)
                if ended < stop == end:  # of a segment that is done, the next one says where its frames end
                    raise BadFrame(ended, NO_FRAME)
            except BadFrame as bad:
                raise bad.as_damage(log_name(number)) from None
            except OSError as error:
                raise JournalFailed("read", log_name(number), error) from error

    def _opened(self, number: int, begin: Location) -> tuple[File, Location]:
        """A segment, and where the one before ended by its word."""
        name = log_name(number)
        try:
            file = self._files.open(name)
            return file, previous_end(file, LOG_MAGIC, number, name)
        except BadHeader as error:
            raise JournalDamaged(name, 0, str(error)) from None
        except FileNotFoundError:
            found = layout(self._files)
            if number >= found.snapshot:
                raise JournalDamaged(name, 0, MISSING) from None
            oldest = next(other for other in [*found.logs, found.snapshot] if other > number)
            raise FrameDropped(begin, first_location(oldest)) from None

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        return JournalDamaged(log_name(segment_of(location)), location & OFFSET_MASK, problem)
