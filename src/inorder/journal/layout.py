"""Which files a journal's folder has, and which of them belong together."""

import os
from itertools import pairwise
from typing import NamedTuple

from inorder.errors import FailedPrecondition, JournalDamaged, NotFound, OtherJournal
from inorder.journal.files import Files, Folder, write_all
from inorder.journal.frames import (
    SEGMENT_SHIFT,
    SNAPSHOT_MAGIC,
    BadFrame,
    BadHeader,
    file_header,
    first_location,
    frame_header,
    frames_in,
    previous_end,
)
from inorder.journal.head import HEAD_NAME, durable_location

MISSING = "the file is missing"
TEMPORARY = "snapshot.new"
DATABASE = "journal.db"  # what the journal on SQLite is in


def existing_folder(path: str | os.PathLike[str]) -> Folder:
    """A folder that is there, for who makes none."""
    folder = Folder(path, create=False)
    if folder.path.is_file():
        raise no_folder(folder.path)
    if not folder.path.is_dir():
        raise NotFound(f"there is no folder {folder}")
    return folder


def no_folder(path: str | os.PathLike[str]) -> FailedPrecondition:
    """What stands where a folder should be is none."""
    return FailedPrecondition(f"{os.path.abspath(path)} is a file, and a journal needs a folder")


def log_name(number: int) -> str:
    return f"{number:08d}.log"


def snapshot_name(number: int) -> str:
    """The snapshot that stands for everything before the segment of that number."""
    return f"{number:08d}.snapshot"


class Layout(NamedTuple):
    """The numbers found in a folder, in order."""

    logs: list[int]
    snapshots: list[int]

    @property
    def snapshot(self) -> int:
        """The snapshot that counts; 0 if there is none."""
        return self.snapshots[-1] if self.snapshots else 0

    @property
    def live(self) -> list[int]:
        """The segments that the snapshot does not stand for."""
        return [number for number in self.logs if number >= self.snapshot]


class Gap(NamedTuple):
    """Segments that should be there and are not."""

    first: int
    last: int
    behind: str  # the file that follows; nothing if none does

    @property
    def problem(self) -> str:
        if not self.behind:
            return MISSING
        upto = f", and so are all up to {log_name(self.last)}" if self.first < self.last else ""
        return f"{MISSING}{upto}; {self.behind} is there, unless that is a stray one"


def layout(files: Files) -> Layout:
    names = files.names()
    if DATABASE in names:
        raise OtherJournal(str(files), DATABASE)
    return Layout(_numbers(names, ".log"), _numbers(names, ".snapshot"))


def _numbers(names: list[str], ending: str) -> list[int]:
    stems = (name.removesuffix(ending) for name in names if name.endswith(ending))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit() and len(stem) >= 8)


def missing(found: Layout) -> list[Gap]:
    """Where segments should be, from the snapshot on, and are not. One gap at most between two that are there."""
    if not found.logs and not found.snapshots:
        return []
    first = found.snapshot or 1
    if not found.live:
        return [Gap(first, first, "")]
    return [
        Gap(before + 1, after - 1, log_name(after))
        for before, after in pairwise([first - 1, *found.live])
        if after - before > 1
    ]


def check_complete(found: Layout) -> None:
    """Raise DataLoss unless the segments from the snapshot on are all there."""
    for gap in missing(found):
        raise JournalDamaged(log_name(gap.first), 0, gap.problem)


def read_snapshot(files: Files, number: int) -> bytes:
    """The body of a snapshot, checked."""
    name = snapshot_name(number)
    file = files.open(name)
    start, size = first_location(number), file.size()
    try:
        previous_end(file, SNAPSHOT_MAGIC, number, name)
        bodies = [body for _, body in frames_in(file, start, number << SEGMENT_SHIFT | size)]
    except BadHeader as error:
        raise JournalDamaged(name, 0, str(error)) from None
    except BadFrame as bad:
        raise bad.as_damage(name) from None
    if len(bodies) != 1:
        raise JournalDamaged(name, size, f"the file has {len(bodies)} frames where a snapshot has one")
    return bodies[0]


def write_snapshot(files: Files, number: int, body: bytes) -> None:
    """A snapshot in place of the one of that number, if there is one. It is durable, or the old one is."""
    header = file_header(SNAPSHOT_MAGIC, number, 0) + frame_header(first_location(number), 0, body)
    file = files.create(TEMPORARY)
    write_all(file, 0, header)
    write_all(file, len(header), body)
    file.sync()
    files.rename(TEMPORARY, snapshot_name(number))
    files.sync()


def read_head(files: Files) -> int:
    """How far the journal is durable by the head file's word; 0 if there is none."""
    try:
        return durable_location(files.open(HEAD_NAME))
    except FileNotFoundError:
        return 0
