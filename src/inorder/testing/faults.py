"""A disk in memory that fails the way disks do: for tests of whatever must survive that.

It stands where a `Folder` stands. What a process reads is what it wrote, but what a power cut leaves is
another matter: each file has its cached bytes and those that reached the platter, each name as well. All
chance comes from one seed, so a run that found something is found again.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from inorder.errors import JournalInUse
from inorder.journal.files import File, Mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often a call fails, from 0 to 1, and what ends the disk's patience."""

    short_write: float = 0  # fewer bytes are taken than were given, as when a signal comes
    write_error: float = 0  # EIO, after some of the bytes
    sync_error: float = 0  # EIO; afterwards the system believes that the lost bytes are written
    capacity: int | None = None  # bytes in all files before ENOSPC
    power_cut_at: int | None = None  # the change of the disk, counted from 1, in the middle of which power goes


class PowerCut(Exception):
    """The machine is off. Go on with `FaultyDisk.restart`."""


class FaultyDisk:
    """One folder on an unreliable disk. Not thread-safe."""

    def __init__(self, seed: int, faults: Faults | None = None, *, sector_bytes: int = 512) -> None:
        self.faults = faults or Faults()
        self.changes = 0  # writes, syncs, and new, moved or removed names
        self._random = Random(seed)
        self._sector_bytes = sector_bytes
        self._files: dict[str, _Bytes] = {}
        self._files_on_platter: dict[str, _Bytes] = {}
        self._renames: list[tuple[str | None, str | None, _Bytes]] = []  # since the last sync: from, to, which
        self._lock = _DiskLock()
        self._off = False

    def __str__(self) -> str:
        return "a faulty disk"

    # What the protocol asks for

    def lock(self) -> "_DiskLock":
        if self._lock.held:
            raise JournalInUse(str(self), "this process")
        self._lock = _DiskLock()
        self._lock.held = True
        return self._lock

    def names(self) -> list[str]:
        return self._random.sample(sorted(self._files), len(self._files))

    def create(self, name: str) -> File:
        if name in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._change()
        self._files[name] = _Bytes(self._sector_bytes)
        self._renames.append((None, name, self._files[name]))
        return _DiskFile(self, self._files[name])

    def open(self, name: str, *, write: bool = False) -> File:
        return _DiskFile(self, self._existing(name))

    def map(self, name: str, size: int) -> Mapped:
        file = _DiskFile(self, self._existing(name)) if name in self._files else self.create(name)
        if (missing := size - file.size()) > 0:
            file.write(size - missing, [bytes(missing)])
        return _DiskMap(self, self._existing(name))

    def rename(self, name: str, new: str) -> None:
        file = self._existing(name)
        self._change()
        del self._files[name]
        self._files[new] = file
        self._renames.append((name, new, file))

    def unlink(self, name: str) -> None:
        file = self._existing(name)
        self._change()
        del self._files[name]
        self._renames.append((name, None, file))

    def sync(self) -> None:
        self._change()
        if self._happens(self.faults.sync_error):
            raise _os_error(errno.EIO)
        self._move_on_platter(1)

    # What tests do to it

    def read(self, name: str) -> bytes:
        """What a process would read."""
        return bytes(self._existing(name).cached)

    def overwrite(self, name: str, data: bytes) -> None:
        """Put other bytes there, for good: rot, or somebody's mistake."""
        file = self._existing(name)
        file.cached[:] = data
        file.on_platter[:] = data
        file.dirty.clear()

    def remove(self, name: str) -> None:
        """Lose a file for good."""
        self._files.pop(name)
        self._files_on_platter.pop(name, None)

    def flip_bit(self, name: str, position: int | None = None) -> int:
        """Turn one bit around in the cache and on the platter, and say in which byte."""
        file = self._existing(name)
        position = self._random.randrange(len(file.cached)) if position is None else position
        bit = 1 << self._random.randrange(8)
        for data in (file.cached, file.on_platter):
            if position < len(data):
                data[position] ^= bit
        return position

    def restart(self, faults: Faults | None = None) -> None:
        """Power is back. What was not synced is gone, torn, or there in part; what was synced is there."""
        self._move_on_platter(self._random.choice((0, 0.5, 1)))
        self._files = dict(self._files_on_platter)
        for file in self._files.values():
            file.lose_power(self._random)
        self._start_again(faults)

    def restart_without_the_unsynced(self, faults: Faults | None = None) -> None:
        """Power is back, and nothing survived but what was synced."""
        self._renames.clear()
        self._files = dict(self._files_on_platter)
        for file in self._files.values():
            file.cached[:] = file.on_platter
            file.dirty.clear()
        self._start_again(faults)

    def kill(self, faults: Faults | None = None) -> None:
        """The process is gone and the machine is well: the system still writes back all that it was given."""
        self._start_again(faults)

    def _start_again(self, faults: Faults | None) -> None:
        self.faults = faults or Faults()
        self.changes = 0
        self._off = False
        self._lock.held = False

    # How it fails

    def _existing(self, name: str) -> "_Bytes":
        if name not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._files[name]

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _change(self) -> None:
        """Count a change before it is made. If the power goes, it is not made; a write may be made in part."""
        if self._loses_power_now():
            raise PowerCut
        self.changes += 1

    def _loses_power_now(self) -> bool:
        self._off = self._off or self.changes + 1 == self.faults.power_cut_at
        return self._off

    def _move_on_platter(self, probability: float) -> None:
        for old, new, file in self._renames:
            if self._random.random() >= probability:
                continue
            if old is not None:
                self._files_on_platter.pop(old, None)
            if new is not None:
                self._files_on_platter[new] = file
        self._renames.clear()

    def _write(self, file: "_Bytes", position: int, data: bytes) -> int:
        if self._loses_power_now():
            file.put(position, data[: self._random.randint(0, len(data))])
            raise PowerCut
        self.changes += 1
        if self._happens(self.faults.write_error):
            file.put(position, data[: self._random.randint(0, len(data))])
            raise _os_error(errno.EIO)
        if self._happens(self.faults.short_write) and len(data) > 1:
            data = data[: self._random.randrange(1, len(data))]
        if self.faults.capacity is not None:
            free = self.faults.capacity - sum(len(other.cached) for other in self._files.values())
            data = data[: max(free, len(file.cached) - position, 0)]
            if not data:
                raise _os_error(errno.ENOSPC)
        file.put(position, data)
        return len(data)

    def _sync(self, file: "_Bytes") -> None:
        self._change()
        if self._happens(self.faults.sync_error):
            file.fail_to_write_back(self._random)
            raise _os_error(errno.EIO)
        file.write_back()


class _DiskLock:
    def __init__(self) -> None:
        self.held = False

    def folder_is_gone(self) -> bool:
        return False

    def check(self) -> None:
        """Nobody replaces this folder."""

    def release(self) -> None:
        self.held = False


class _DiskFile:
    def __init__(self, disk: FaultyDisk, file: "_Bytes") -> None:
        self._disk, self._file = disk, file

    def size(self) -> int:
        return len(self._file.cached)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._file.cached[position : position + size])

    def write(self, position: int, data: Sequence[bytes]) -> int:
        return self._disk._write(self._file, position, b"".join(data))

    def truncate(self, size: int) -> None:
        self._disk._change()
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk._sync(self._file)


class _DiskMap:
    def __init__(self, disk: FaultyDisk, file: "_Bytes") -> None:
        self._disk, self._file = disk, file

    def store(self, position: int, data: bytes) -> None:
        self._file.put(position, data)

    def flush(self) -> None:
        self._disk._sync(self._file)


class _Bytes:
    """A file's bytes as processes see them, and as the platter has them."""

    def __init__(self, sector_bytes: int) -> None:
        self.cached = bytearray()
        self.on_platter = bytearray()
        self.dirty: set[int] = set()  # sectors of the cache that the platter does not have
        self._sector_bytes = sector_bytes

    def put(self, position: int, data: bytes) -> None:
        if len(self.cached) < position:
            self.cached.extend(bytes(position - len(self.cached)))
        self.cached[position : position + len(data)] = data
        self.dirty.update(range(position // self._sector_bytes, -(-(position + len(data)) // self._sector_bytes)))

    def truncate(self, size: int) -> None:
        before = max(len(self.cached), len(self.on_platter))
        del self.cached[size:]
        # All behind it, too: if the file grows again, zeros are there, and the platter must not keep what was.
        self.dirty.update(range(size // self._sector_bytes, before // self._sector_bytes + 1))

    def write_back(self) -> None:
        self._write_back_sectors(self.dirty)
        self.dirty.clear()

    def fail_to_write_back(self, random: Random) -> None:
        self._write_back_sectors({sector for sector in self.dirty if random.random() < 0.5})
        self.dirty.clear()

    def lose_power(self, random: Random) -> None:
        """What was dirty is lost, or torn at some byte, or written for some sectors and not for others."""
        match random.choice(("lost", "torn", "out of order")) if self.dirty else "lost":
            case "torn":
                start = min(self.dirty) * self._sector_bytes
                kept = random.randint(min(start, len(self.cached)), len(self.cached))
                self._fill_up_to(start)
                self.on_platter[start:] = self.cached[start:kept] + self.on_platter[kept:]
            case "out of order":
                self._write_back_sectors({sector for sector in self.dirty if random.random() < 0.5})
        self.cached[:] = self.on_platter
        self.dirty.clear()

    def _write_back_sectors(self, sectors: set[int]) -> None:
        size = self._sector_bytes
        for sector in sorted(sectors):
            start = sector * size
            self._fill_up_to(start)
            self.on_platter[start : start + size] = self.cached[start : start + size]
            if start + size > len(self.cached):
                del self.on_platter[len(self.cached) :]

    def _fill_up_to(self, size: int) -> None:
        # A sector in between that did not make it reads as zeros.
        self.on_platter.extend(bytes(max(size - len(self.on_platter), 0)))


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
