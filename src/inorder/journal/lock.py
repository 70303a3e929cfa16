"""One owner per folder: a lock that the kernel lets go when its process ends, however it ends."""

import errno
import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.errors import JournalInUse
from inorder.forks import stays_here

LOCK_NAME = "lock"
_GLANCES, _GLANCE_SECONDS = 10, 0.005  # somebody may just be looking who owns it
_LONGEST_OWNER = 1000  # bytes; a lock file has less, and whatever else the file is, it is not read as a whole


class FolderLock:
    """An exclusive `flock` on a file that names its owner.

    The text is for people: a stale one is no obstacle, as only the kernel's lock counts. The file is never
    removed, or two processes could each lock a file of that name. A forked child shares the lock with its
    parent and would keep it beyond the parent's life, so it closes its copy at once and has `held` False.
    """

    def __init__(self, folder: Path) -> None:
        self.held = False
        self._path = folder / LOCK_NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for _ in range(_GLANCES):
                if _locked(self._descriptor, fcntl.LOCK_EX):
                    break
                sleep(_GLANCE_SECONDS)
            else:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._say_who_owns_it()
        except BlockingIOError:
            owner = _named_in(self._descriptor)
            os.close(self._descriptor)
            raise JournalInUse(str(folder), owner) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        self.held = True
        stays_here(self)

    def _say_who_owns_it(self) -> None:
        since = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() // MICROSECONDS, UTC)
        text = f"process {os.getpid()} on {socket.gethostname()} since {since:%Y-%m-%d %H:%M:%S} UTC\n"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def check(self) -> None:
        """Raise OSError unless the file of that name is the one that is locked: another process may own the other."""
        held, named = os.fstat(self._descriptor), os.stat(self._path)
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
            problem = "the folder or its lock was replaced, and may be another process's now"
            raise OSError(errno.ESTALE, problem, str(self._path))

    def folder_is_gone(self) -> bool:
        return not self._path.parent.is_dir()

    def release(self) -> None:
        # Closing is enough, and never unlocks what another process holds through the same open file.
        if self.held:
            self.held = False
            os.close(self._descriptor)

    def _leave_to_parent(self) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def owner_of(folder: Path) -> str | None:
    """Who owns a folder at the moment; None if nobody does. Changes nothing."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _locked(descriptor, fcntl.LOCK_SH) else _named_in(descriptor)
    finally:
        os.close(descriptor)  # which unlocks it, if it was locked


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named_in(descriptor: int) -> str:
    owner = os.pread(descriptor, _LONGEST_OWNER, 0).decode(errors="replace").strip()
    return owner or "a process that is just starting"
