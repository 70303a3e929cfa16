"""How frames and files look as bytes, and how frames are read and judged. Opens nothing, changes nothing.

    file    magic 8, format 4, number 4, end of the segment before 8, reserved 4, checksum 4
    frame   magic 4, length of the body 4, durable 8, checksum of the body 4, checksum of the header 4, body

`durable` is the location up to which the journal was known to be durable when the frame was written. A
header that can be trusted therefore proves that everything before that location had reached the disk: so a
frame that was damaged later is told from one that never got there whole. The header's checksum covers the
frame's location as well, which makes a header that is found by searching worth believing, even if messages
carry copies of journals. All numbers are little-endian. The file header keeps its shape in every format.
"""

from collections.abc import Generator, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from inorder.errors import InvalidArgument, JournalDamaged, JournalTooNew
from inorder.journal import Location
from inorder.journal.files import File

FORMAT = 1
LOG_MAGIC = b"inordlog"
SNAPSHOT_MAGIC = b"inordsnp"
FRAME_MAGIC = b"\xabfr\n"
NO_FRAME = "no frame begins here"

_ALL_BITS = (1 << 64) - 1  # of a location: the name of a stray file may have a number with more
SEGMENT_SHIFT = 40  # a location is the segment's number and, in its low bits, the byte within the file
OFFSET_MASK = (1 << SEGMENT_SHIFT) - 1
LONGEST_BODY = (1 << 32) - 1

_FILE = Struct("<8sIIQ4xI")
_FRAME = Struct("<4sIQII")
_LOCATION = Struct("<Q")
FILE_HEADER = _FILE.size
FRAME_HEADER = _FRAME.size
_CHECKED = FRAME_HEADER - 4  # the bytes of a frame's header that its checksum covers

_FIRST_READ = 1 << 16  # who reads a single frame should not pay for more
_LARGEST_READ = 1 << 22


def segment_of(location: Location) -> int:
    return location >> SEGMENT_SHIFT


def first_location(number: int) -> Location:
    """Where the first frame of a segment begins."""
    return number << SEGMENT_SHIFT | FILE_HEADER


def file_header(magic: bytes, number: int, previous_end: Location) -> bytes:
    header = _FILE.pack(magic, FORMAT, number, previous_end, 0)
    return header[:-4] + crc32(header[:-4]).to_bytes(4, "little")


def frame_header(location: Location, durable: Location, body: bytes) -> bytes:
    if len(body) > LONGEST_BODY:
        raise InvalidArgument(f"a frame has at most {LONGEST_BODY} bytes, not {len(body)}")
    header = _FRAME.pack(FRAME_MAGIC, len(body), durable, crc32(body), 0)[:_CHECKED]
    return header + crc32(_LOCATION.pack(location), crc32(header)).to_bytes(4, "little")


class BadHeader(Exception):
    """A file does not begin as it should; whether that is a loss, the caller judges."""


class BadFrame(Exception):
    """No whole frame begins here; whether that is a loss, the caller judges."""

    def __init__(self, location: Location, problem: str) -> None:
        super().__init__(problem)
        self.location = location
        self.problem = problem

    def as_damage(self, file_name: str) -> JournalDamaged:
        return JournalDamaged(file_name, self.location & OFFSET_MASK, self.problem)


def previous_end(file: File, magic: bytes, number: int, name: str) -> Location:
    """Check a file's header and return where, by its word, the segment before ended."""
    header = file.read(0, FILE_HEADER)
    if len(header) < FILE_HEADER:
        raise BadHeader("the file header is incomplete")
    found, version, said_number, end, checksum = _FILE.unpack(header)
    if found != magic or checksum != crc32(header[:-4]):
        raise BadHeader("the file header is damaged")
    if version != FORMAT:
        raise JournalTooNew(name, version, FORMAT)
    if said_number != number:
        raise BadHeader(f"the file says that it is number {said_number}")
    return Location(end)


def frames_in(file: File, start: Location, end: Location) -> Generator[tuple[Location, bytes], None, Location]:
    """The frames of one segment from `start` to `end`, checked. Raises BadFrame where the chain breaks.

    Reads in large pieces, and a frame that a piece does not hold whole begins the next piece. Returns where
    the frames end: before `end`, if nothing but zeros follows, which is room for more of them.
    """
    location, read_size = start, _FIRST_READ
    unpack, header_size = _FRAME.unpack_from, FRAME_HEADER
    while location < end:
        asked = min(read_size, end - location)
        data = file.read(location & OFFSET_MASK, asked)
        at, whole = 0, len(data)
        wanted = header_size
        while at + header_size <= whole:
            magic, length, _, checksum, header_checksum = unpack(data, at)
            if magic != FRAME_MAGIC:
                if only_zeros(file, location, end):
                    return location
                raise BadFrame(location, NO_FRAME)
            if header_checksum != crc32(_LOCATION.pack(location & _ALL_BITS), crc32(data[at : at + _CHECKED])):
                raise BadFrame(location, "the frame's header does not match its checksum")
            wanted = header_size + length
            if at + wanted > whole:
                break
            body = data[at + header_size : at + wanted]
            if crc32(body) != checksum:
                raise BadFrame(location, "the frame does not match its checksum")
            yield location, body
            at += wanted
            location += wanted
            wanted = header_size
        if location + wanted > end:
            if only_zeros(file, location, end):
                return location
            raise BadFrame(location, "the frame is incomplete")
        if whole < asked:  # and the next piece would have no more
            raise BadFrame(location, "the file ends before its frames do")
        read_size = max(min(read_size * 4, _LARGEST_READ), wanted)
    return location


def only_zeros(file: File, start: Location, end: Location) -> bool:
    """Whether there is nothing from `start` to `end`."""
    while start < end:
        data = file.read(start & OFFSET_MASK, min(_LARGEST_READ, end - start))
        if not data or data.strip(b"\0"):
            return not data
        start += len(data)
    return True


class FrameHeader(NamedTuple):
    """A header that was found by searching and matches its own checksum."""

    location: Location
    durable: Location
    length: int


def headers_behind(file: File, start: Location, end: Location) -> Iterator[FrameHeader]:
    """Every frame header behind `start` that can be believed, whatever lies between them."""
    data = file.read(start & OFFSET_MASK, end - start)
    at = data.find(FRAME_MAGIC, 1)
    while 0 < at <= len(data) - FRAME_HEADER:
        _, length, durable, _, checksum = _FRAME.unpack_from(data, at)
        if checksum == crc32(_LOCATION.pack(start + at & _ALL_BITS), crc32(data[at : at + _CHECKED])):
            yield FrameHeader(start + at, durable, length)
        at = data.find(FRAME_MAGIC, at + 1)
