"""The few things a journal asks of a folder, and how the operating system does them.

Everything that can fail raises OSError. The protocol is the seam where tests put a disk that lies, fills
up or loses power; so it stays this thin and knows nothing of frames.
"""

import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from inorder.journal.lock import FolderLock


class File(Protocol):
    """One open file. It is closed when nobody holds it any more: a reader may outlive the file's name."""

    def size(self) -> int:
        """How many bytes it has."""

    def read(self, position: int, size: int) -> bytes:
        """The bytes there; fewer only at the end of the file."""

    def write(self, position: int, data: Sequence[bytes]) -> int:
        """Write the pieces in a row and say how many bytes were taken, which may be fewer."""

    def truncate(self, size: int) -> None:
        """Cut it to its first `size` bytes."""

    def sync(self) -> None:
        """Make all that was written durable."""


class Mapped(Protocol):
    """A small file in memory that the system writes back when it likes. Storing costs no system call."""

    def store(self, position: int, data: bytes) -> None:
        """Replace the bytes there."""

    def flush(self) -> None:
        """Write it back now."""


class Lock(Protocol):
    """That this process owns the folder."""

    held: bool  # False once it was released, and in a process that was forked

    def check(self) -> None:
        """Raise OSError if the folder is no longer the one that is owned: somebody has removed or replaced it."""

    def folder_is_gone(self) -> bool:
        """Whether there is no folder of that name any more: then nobody else's can be hurt, and nothing be kept."""

    def release(self) -> None:
        """Let others own it."""


class Files(Protocol):
    """The files of one folder, by name."""

    def lock(self) -> Lock:
        """Own the folder, or raise JournalInUse."""

    def names(self) -> list[str]:
        """All there are, in no order."""

    def create(self, name: str) -> File:
        """A new file to write; one of that name must not exist."""

    def open(self, name: str, *, write: bool = False) -> File:
        """A file that exists."""

    def map(self, name: str, size: int) -> Mapped:
        """A file of `size` bytes in memory; made of zeros if it does not exist."""

    def rename(self, name: str, new: str) -> None:
        """Replace `new`, if there is one, in one step."""

    def unlink(self, name: str) -> None:
        """Remove the name; who has the file open may read on."""

    def sync(self) -> None:
        """Make it durable which names exist."""


def write_all(file: File, position: int, data: bytes) -> None:
    """A write may take less than it was given, and says why only when it is asked again."""
    while data:
        written = file.write(position, (data,))
        position, data = position + written, data[written:]


class Folder:
    """A real folder."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = Path(path).absolute()
        if create and not self.path.is_dir():
            made = [self.path, *(parent for parent in self.path.parents if not parent.exists())]
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in made:
                _sync_folder(folder.parent)

    def __str__(self) -> str:
        return str(self.path)

    def lock(self) -> FolderLock:
        return FolderLock(self.path)

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def create(self, name: str) -> File:
        return _OpenFile(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, name: str, *, write: bool = False) -> File:
        return _OpenFile(self.path / name, os.O_RDWR if write else os.O_RDONLY)

    def map(self, name: str, size: int) -> Mapped:
        return _MappedFile(self.path / name, size)

    def rename(self, name: str, new: str) -> None:
        os.rename(self.path / name, self.path / new)

    def unlink(self, name: str) -> None:
        os.unlink(self.path / name)

    def sync(self) -> None:
        _sync_folder(self.path)


class _OpenFile:
    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, size: int) -> bytes:
        data = self._read(position, size)
        if len(data) == size or not data:
            return data
        pieces = [data]  # Linux reads at most 2 GiB at once, and a signal may cut a read short
        position, size = position + len(data), size - len(data)
        while size and (data := self._read(position, size)):
            pieces.append(data)
            position, size = position + len(data), size - len(data)
        return b"".join(pieces)

    def _read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, position)
        except OSError as error:
            error.filename = str(self._path)  # which the system does not say of a file that is open
            raise

    def write(self, position: int, data: Sequence[bytes]) -> int:
        return os.pwritev(self._descriptor, data, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _sync_descriptor(self._descriptor)


class _MappedFile:
    def __init__(self, path: Path, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            missing = size - os.fstat(descriptor).st_size
            if missing > 0:
                # Really written: storing into a hole needs space later, and on a full disk that is a SIGBUS.
                os.pwrite(descriptor, bytes(missing), size - missing)
                os.fsync(descriptor)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def store(self, position: int, data: bytes) -> None:
        self._memory[position : position + len(data)] = data

    def flush(self) -> None:
        self._memory.flush()


# macOS has it, where fsync leaves the bytes in the drive's own cache.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _sync_descriptor(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
