"""What the tools say about a journal: values only."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Progress = Callable[[int, int], None]
"""Told from time to time how many bytes are done, and how many there are in all."""

Judge = Callable[[bytes], str]
"""Says what is wrong with a body that came back as it was written; nothing if it has a meaning."""


class Meaning(NamedTuple):
    """Who knows what the bodies of frames and snapshots mean."""

    frame: Judge
    snapshot: Judge


class Finding(NamedTuple):
    """A place where something is wrong."""

    file: str
    position: int  # the byte of the file; in a database, the location of the frame
    problem: str
    lost: bool  # False: it never was durable, and the next recovery cuts it
    unreadable: int  # bytes from there to the next frame that can be read, or to the file's end
    frames_before: int  # those of this file that can be read before the place
    meaningless: bool = False  # it is as it was written, but cannot be decoded, which no repair can mend


class Verified(NamedTuple):
    """What a journal holds, and what is wrong with it."""

    frames: int  # that can be read
    size: int  # bytes in all files with frames
    findings: list[Finding]

    @property
    def lost(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.lost]


class Repaired(NamedTuple):
    """What a repair did; nothing if nothing was lost."""

    actions: list[str]
    copies: Path | None  # the folder with everything that was changed, as it was


class Meter:
    """Counts bytes and tells somebody, but not too often."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = self._told = 0

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None and self._done - self._told >= 1 << 20:
            self._told = self._done
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)
