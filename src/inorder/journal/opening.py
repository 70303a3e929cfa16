"""What a folder of segments holds when its owner opens it, and what of it may be cut.

Everything is read and judged before anything is changed. The rule: bytes that do not make a whole frame are
cut only if nothing proves that they had been durable, as then no caller was ever told that they are there.
"""

from collections.abc import Iterator

from inorder.errors import JournalDamaged
from inorder.journal import Location
from inorder.journal.files import File, Files
from inorder.journal.frames import (
    LOG_MAGIC,
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    BadHeader,
    first_location,
    frames_in,
    headers_behind,
    previous_end,
    segment_of,
)
from inorder.journal.layout import Layout, check_complete, layout, log_name, read_head, read_snapshot


class Opening:
    """One look at a folder. `frames` must be exhausted before `end`, `cut` and `stillborn` are true."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.found = layout(files)
        self.durable: Location = read_head(files)
        check_complete(self.found)
        self.snapshot = read_snapshot(files, self.found.snapshot) if self.found.snapshot else None
        self.end: Location = 0  # behind the last whole frame; 0 if there is no segment
        self.cut = 0  # bytes behind it that never were durable
        self.stillborn = 0  # the number of a last segment that was being created

    def frames(self) -> Iterator[tuple[Location, bytes]]:
        for number in self.found.live:
            file = self._files.open(log_name(number))
            if not self._begins_well(file, number):
                break
            self.end = first_location(number)
            file_end = number << SEGMENT_SHIFT | file.size()
            try:
                self.end = yield from frames_in(file, self.end, file_end)
            except BadFrame as bad:
                self._judge(bad, file)
        if self.durable > self.end:
            name = log_name(segment_of(self.durable))
            raise JournalDamaged(name, self.durable & OFFSET_MASK, "the frames before this byte are missing")

    def _begins_well(self, file: File, number: int) -> bool:
        """Whether the segment has a header that goes with the segment before; False if it has none yet."""
        name = log_name(number)
        try:
            before = previous_end(file, LOG_MAGIC, number, name)
        except BadHeader as error:
            if was_complete(number, file, self.found, self.durable):
                raise JournalDamaged(name, 0, str(error)) from None
            self.stillborn = number
            return False
        if self.end and before != self.end:
            problem = f"the frames end here, and the next segment says they ended at byte {before & OFFSET_MASK}"
            raise JournalDamaged(log_name(number - 1), self.end & OFFSET_MASK, problem)
        return True

    def _judge(self, bad: BadFrame, file: File) -> None:
        if had_been_durable(bad.location, file, self.found, self.durable):
            raise bad.as_damage(log_name(segment_of(bad.location)))
        self.end = bad.location
        rest = file.read(bad.location & OFFSET_MASK, file.size())
        self.cut = len(rest.rstrip(b"\0"))

    def uncertain(self) -> int:
        """The byte of the last segment from which on it is not known to be durable."""
        number = segment_of(self.end)
        return min(max(self.durable - (number << SEGMENT_SHIFT), 0), self.end & OFFSET_MASK)


def had_been_durable(location: Location, file: File, found: Layout, durable: Location) -> bool:
    """Whether anything proves that the bytes at a location, in its open file, had reached the disk."""
    number = segment_of(location)
    if number != found.logs[-1] or durable > location:  # a segment is synced before the next one is created
        return True
    behind = headers_behind(file, location, number << SEGMENT_SHIFT | file.size())
    return any(header.durable > location for header in behind)


def was_complete(number: int, file: File, found: Layout, durable: Location) -> bool:
    """Whether anything proves that a segment, whose header cannot be read, had been created and made durable."""
    if number != found.logs[-1] or number == found.snapshot:  # a snapshot is written when its segment is durable
        return True
    start = number << SEGMENT_SHIFT
    return durable > start or any(headers_behind(file, start, start | file.size()))
