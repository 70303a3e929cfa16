"""Bytes on disk: frames that are appended, made durable, and found again after a crash.

A store keeps opaque bodies and knows nothing of what they mean. It promises that every frame for which
`sync` returned is there after a crash, in order and unchanged, and that damage is said, never skipped.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from inorder.errors import JournalDamaged

SEGMENT_BYTES = 64 * 1024 * 1024  # of a part: small enough to be dropped soon, large enough that files are few
SEGMENT_BLOCK = 64 * 1024  # bytes
SQLITE_BLOCK = 64  # frames, which are large when there is much to write

Location = int
"""Where a frame begins. It grows with every frame; beyond that it means something to its store only."""


class Part(NamedTuple):
    """A piece of the journal that can be dropped as a whole."""

    first: Location  # of its first frame
    end: Location  # behind its last frame
    size: int  # bytes on disk


class Recovered(NamedTuple):
    """What a store held when it was opened."""

    snapshot: bytes | None
    frames: Iterator[tuple[Location, bytes]]  # those after the snapshot, oldest first
    parts: list[Part]  # those before the snapshot, as they are on disk


class Store(Protocol):
    """Frames in a folder that one owner writes.

    `recover` comes first, and its frames are read to their end before the first `append`. One thread may
    append while another syncs and others read. After a failed write or sync the store has stopped: every
    call but `close` raises `JournalFailed`, as nobody can say what the disk holds until it is read anew.
    """

    report: list[str]
    """What recovery found and did, in sentences."""

    block: int
    """How far apart, as locations, frames may be that are found and read together."""

    outlives_its_process: bool
    """Whether what was appended survives the end of the process also before it is synced."""

    def recover(self) -> Recovered:
        """What is there. Raises DataLoss, at once or from the frames, and then has changed nothing on disk."""

    def append(self, body: Sequence[bytes]) -> Location:
        """Write one frame, whose body is the pieces in a row. It is durable once a later `sync` returns."""

    def sync(self) -> None:
        """Make every frame durable that was appended before the call."""

    def read(self, start: Location, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        """Frames again, from one that begins at `start` up to `end`, also those that are not durable yet.

        Raises JournalDamaged where a frame is not what was written, FrameDropped where a part is gone.
        """

    def begin_part(self) -> Location:
        """Sync, and let the next frame begin a new part; returns a location before it and behind all others."""

    def save_snapshot(self, body: Sequence[bytes], before: Location | None = None) -> None:
        """Replace the snapshot by one that stands for all frames before a location that `begin_part` returned.

        Without a location: for all frames until now. With one, frames may be appended while this runs.
        """

    def parts(self) -> list[Part]:
        """The parts in order; the last one is still written to."""

    def part_of(self, location: Location) -> Location:
        """Where the part begins that a frame lies in. May be asked while the frames are recovered."""

    def drop(self, part: Part) -> None:
        """Delete a part whose frames the snapshot stands for, for good."""

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        """The error that names the file of a location and the place in it."""

    def end(self) -> Location:
        """Behind the last frame."""

    def close(self) -> None:
        """Sync what can be synced and let others own the folder. Closing twice is fine."""
