"""What others want to publish: files beside the journal, which its owner takes in, each once.

Many processes stage parts, each in a file of its own that nobody else knows. One of them commits an epoch: a small
file that names its parts, in their order. From then on the epoch will be published, whatever happens to those who
wrote it; until then nothing of it is. The owner publishes committed epochs in their order, part by part, and
remembers in the journal how far it came.

    incoming/WRITER/EPOCH-NAME.part     frames of columns, as in the journal
    incoming/WRITER/EPOCH.commit        JSON: the topic, and the names of the parts
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import uuid4

from inorder.errors import InvalidArgument, JournalDamaged
from inorder.journal import Location
from inorder.journal.codec import batch, columns_entry, entries
from inorder.journal.files import File, Folder
from inorder.journal.frames import NO_FRAME, BadFrame, frame_header, frames_in
from inorder.message import Batch
from inorder.options import MAX_WRITER_LENGTH

INCOMING = "incoming"
_READABLE = 150  # letters of a writer's name that are still there in that of its folder
_NUMBER = re.compile(r"\d{20}")
_PART = re.compile(r"\d{20}-[0-9a-f]{32}\.part")
_WRITER = re.compile(f"[A-Za-z0-9._~-]{{1,{MAX_WRITER_LENGTH}}}")


class Commit(NamedTuple):
    """That there is a commit; what it says is still to be read."""

    writer: str
    epoch: int


class Epoch(NamedTuple):
    """What was committed together, and is published together."""

    commit: Commit
    topic: str
    parts: tuple[str, ...]


class Incoming:
    """The folder `incoming` of a journal's folder. Whoever may write there may publish."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = Path(folder, INCOMING)

    # -- for those who write -----------------------------------------------------------------------

    def stage(self, writer: str, epoch: int, batches: Iterable[Batch]) -> str:
        """Write a part, durably; returns its name, for `commit`. Nobody sees it until then."""
        name = f"{epoch:020d}-{uuid4().hex}.part"
        try:
            with self._new_file(writer, name) as file:
                at = 0
                for columns in batches:
                    body = columns_entry(columns)
                    at += file.write(frame_header(at, 0, body)) + file.write(body)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # nobody knows its name
            self.discard(writer, [name])
            raise
        self._sync(writer)
        return name

    def commit(self, writer: str, epoch: int, topic: str, parts: Sequence[str]) -> bool:
        """Have an epoch published, with these parts in this order; False if it was committed before, perhaps so."""
        folder = self._of(writer)
        final = folder / f"{epoch:020d}.commit"
        if final.exists():
            return False
        draft = folder / f"{epoch:020d}-{uuid4().hex}.draft"
        try:
            with self._new_file(writer, draft.name) as file:
                file.write(json.dumps({"topic": topic, "parts": list(parts)}).encode())
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, final)  # which, unlike a rename, fails if somebody was faster
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        self._sync(writer)
        return True

    def is_committed(self, writer: str, epoch: int) -> bool:
        """Whether an epoch is, and was not taken in yet."""
        return (self._of(writer) / f"{epoch:020d}.commit").exists()

    def missing(self, writer: str, parts: Iterable[str]) -> list[str]:
        """Those of these parts that are not there, or no longer."""
        return [part for part in parts if not (self._of(writer) / part).exists()]

    def discard(self, writer: str, parts: Iterable[str]) -> None:
        """Remove parts that will not be committed."""
        for part in parts:
            (self._of(writer) / part).unlink(missing_ok=True)

    def _new_file(self, writer: str, name: str) -> BinaryIO:
        """A file in the folder of a writer, which the owner removes when it is empty, perhaps at this moment."""
        folder = self._of(writer)
        while True:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                for parent in (self._path.parent, self._path):
                    Folder(parent, create=False).sync()
            with suppress(FileNotFoundError):
                return open(folder / name, "xb")

    def _sync(self, writer: str) -> None:
        with suppress(FileNotFoundError):  # then the epoch was taken in meanwhile, which is as durable as it gets
            Folder(self._of(writer), create=False).sync()

    # -- for the owner -----------------------------------------------------------------------------

    def commits(self) -> list[Commit]:
        """What is committed and not taken in yet, each writer's in order. Files of other names are none of ours."""
        files = sorted(self._path.glob("*/*.commit"))
        return [Commit(file.parent.name, int(file.stem)) for file in files if _NUMBER.fullmatch(file.stem)]

    def open(self, commit: Commit) -> Epoch:
        """What a commit says."""
        file = self._of(commit.writer) / f"{commit.epoch:020d}.commit"
        try:
            plain = json.loads(file.read_bytes())
            return Epoch(commit, str(plain["topic"]), tuple(map(str, plain["parts"])))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise JournalDamaged(str(file), 0, f"the commit cannot be read: {error!r}") from None

    def read(self, epoch: Epoch) -> Iterator[Batch]:
        """The messages of an epoch, as they were staged."""
        folder = Folder(self._of(epoch.commit.writer), create=False)
        for name in epoch.parts:
            try:
                file = folder.open(name)
                for _, body in _whole(file):
                    for _, entry in entries(body):
                        yield batch(entry).columns_back()
            except BadFrame as bad:
                raise bad.as_damage(str(folder.path / name)) from None
            except (OSError, ValueError, TypeError, LookupError, struct.error) as error:
                raise JournalDamaged(str(folder.path / name), 0, f"the part cannot be read: {error!r}") from None

    def forget(self, epoch: Epoch) -> None:
        """An epoch was taken in: its files are not needed any more."""
        writer, number = epoch.commit
        self.discard(writer, epoch.parts)
        (self._of(writer) / f"{number:020d}.commit").unlink(missing_ok=True)
        # What was staged for it, but not committed, are the parts of attempts that lost.
        for lost in self._of(writer).glob(f"{number:020d}-*.part"):
            lost.unlink(missing_ok=True)
        # Most who write a table write one: who looks for commits would have more and more folders to go over.
        with suppress(OSError):  # it is not empty
            self._of(writer).rmdir()

    def _of(self, writer: str) -> Path:
        check_writer(writer)
        return self._path / writer


def _whole(file: File) -> Iterator[tuple[Location, bytes]]:
    """The frames of a part, which has no room for more behind them: zeros there are damage."""
    size = file.size()
    ended = yield from frames_in(file, 0, size)
    if ended < size:
        raise BadFrame(ended, NO_FRAME)


def writer_of(topic: str, writer: str) -> str:
    """The name of a writer to this topic: under its own, it or others may write the same epochs to other topics."""
    digest = sha256(f"{topic} {writer}".encode()).hexdigest()
    return f"{writer[:_READABLE]}~{digest[:32]}"


def check_parts(epoch: int, parts: Iterable[str]) -> None:
    """Refuse a name that no part of the epoch has: it would be that of some other file."""
    for part in parts:
        if not _PART.fullmatch(part) or int(part[:20]) != epoch:
            raise InvalidArgument(f"parts: names that staging in epoch {epoch} has given, not {part[:100]!r}")


def check_writer(writer: object) -> None:
    """Refuse a name that could not be that of a folder."""
    if not isinstance(writer, str) or not _WRITER.fullmatch(writer) or writer.startswith("."):
        raise InvalidArgument(
            f"writer: 1 to {MAX_WRITER_LENGTH} letters, digits and -._~, no dot first, not {writer!r}"
        )
