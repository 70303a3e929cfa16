"""How far the journal is durable, in a small file beside it that costs no system call to keep up to date.

It is never ahead of the truth, so a reader in another process may believe it while the owner writes. After
the machine crashed it may be behind, which is harmless: it is one proof among others, and its absence
proves nothing. Two slots take turns, so that one of them is whole whenever somebody looks.
"""

from struct import Struct
from zlib import crc32

from inorder.journal import Location
from inorder.journal.files import File, Files

HEAD_NAME = "head"

_SLOT = Struct("<QI4x")
_SIZE = 2 * _SLOT.size


class Head:
    """The owner's side. Not thread-safe."""

    def __init__(self, files: Files, durable: Location) -> None:
        self._mapped = files.map(HEAD_NAME, _SIZE)
        self._slot = 0
        self.publish(durable)
        self.publish(durable)  # both slots: an older one could be ahead of what a repair has left
        self._mapped.flush()

    def publish(self, durable: Location) -> None:
        self._mapped.store(self._slot, _SLOT.pack(durable, _checksum(durable)))
        self._slot ^= _SLOT.size

    def flush(self) -> None:
        self._mapped.flush()


def durable_location(file: File) -> Location:
    """How far the journal is durable by the word of an open head file; 0 if it does not say."""
    data = file.read(0, _SIZE)
    slots = _SLOT.iter_unpack(data) if len(data) == _SIZE else ()
    return max((location for location, checksum in slots if checksum == _checksum(location)), default=0)


def _checksum(location: Location) -> int:
    return crc32(location.to_bytes(8, "little"))
