"""Looking over the segment files of a journal, and cutting them back to what can be read."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.errors import JournalDamaged
from inorder.journal import SEGMENT_BLOCK, Location, Part
from inorder.journal.files import File, Files, Folder, write_all
from inorder.journal.findings import Finding, Meaning, Meter, Progress, Repaired, Verified
from inorder.journal.frames import (
    FILE_HEADER,
    FRAME_HEADER,
    LOG_MAGIC,
    NO_FRAME,
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    BadHeader,
    file_header,
    first_location,
    frames_in,
    headers_behind,
    previous_end,
    segment_of,
)
from inorder.journal.head import HEAD_NAME, Head
from inorder.journal.index import lost_parts, plain_snapshot
from inorder.journal.layout import (
    DATABASE,
    MISSING,
    TEMPORARY,
    Layout,
    layout,
    log_name,
    missing,
    read_head,
    read_snapshot,
    snapshot_name,
    write_snapshot,
)
from inorder.journal.mending import mended, segment_and_runs
from inorder.journal.opening import had_been_durable, was_complete


def verify_segments(files: Files, progress: Progress | None = None, meaning: Meaning | None = None) -> Verified:
    """Read all segments and the snapshot, those before the snapshot included."""
    looking = _Looking(files, progress, meaning)
    findings = list(looking.findings())
    return Verified(looking.frames, looking.size, findings)


class _Looking:
    def __init__(self, files: Files, progress: Progress | None, meaning: Meaning | None) -> None:
        self._files = files
        self._meaning = meaning
        self._durable = read_head(files)  # before the files, which only grow
        self._found = layout(files)
        self._sizes = dict(self._looked_at())  # of the segments that are there
        self.size = sum(self._sizes.values())
        self.frames = 0
        self._meter = Meter(progress, self.size)
        self._end: Location = 0  # behind the last frame that can be read

    def _looked_at(self) -> Iterator[tuple[int, int]]:
        for number in self._found.logs:
            with suppress(FileNotFoundError):  # an owner has dropped it since
                yield number, self._files.open(log_name(number)).size()

    def _opened(self) -> Iterator[tuple[int, File]]:
        """One after the other: there may be more than a process may have open."""
        for number in [*self._sizes]:
            try:
                yield number, self._files.open(log_name(number))
            except FileNotFoundError:
                del self._sizes[number]  # as above

    def findings(self) -> Iterator[Finding]:
        yield from self._in_snapshot()
        for gap in missing(self._found):
            yield Finding(log_name(gap.first), 0, gap.problem, True, 0, 0)
        for number, file in self._opened():
            yield from self._in_header(number, file)
            yield from self._in_frames(number, file)
        yield from self._behind_the_end()
        self._meter.finish()

    def _in_snapshot(self) -> Iterator[Finding]:
        if number := self._found.snapshot:
            try:
                body = read_snapshot(self._files, number)
                if self._meaning is not None and (problem := self._meaning.snapshot(body)):
                    yield Finding(snapshot_name(number), FILE_HEADER, problem, True, 0, 0, meaningless=True)
                yield from self._lost_parts(number, body)
            except JournalDamaged as damage:
                size = self._files.open(damage.file).size()
                yield Finding(damage.file, damage.position, damage.problem, True, size - damage.position, 0)
            except FileNotFoundError:
                pass  # an owner has replaced it since

    def _lost_parts(self, snapshot: int, body: bytes) -> Iterator[Finding]:
        """The segments that the snapshot names and that are gone or too short."""
        parts = [
            Part(first_location(number), number << SEGMENT_SHIFT | size, size) for number, size in self._sizes.items()
        ]
        lost = lost_parts(plain_snapshot(body), parts)
        if lost and layout(self._files).snapshot != snapshot:
            return  # an owner has replaced it since, and may have dropped some of them
        for location, problem in lost:
            yield Finding(log_name(segment_of(location)), location & OFFSET_MASK, problem, True, 0, 0)

    def _in_header(self, number: int, file: File) -> Iterator[Finding]:
        lost = False
        while True:
            try:
                before = previous_end(file, LOG_MAGIC, number, log_name(number))
                break
            except BadHeader as bad:
                doubted, lost = lost, was_complete(number, file, self._found, self._durable)
                if lost and not doubted:  # an owner may have been writing it, and is done by now
                    continue
                yield Finding(log_name(number), 0, str(bad), lost, min(FILE_HEADER, file.size()), 0)
                return
        size = self._sizes.get(number - 1)
        if size is not None and size != before & OFFSET_MASK and before != self._end:
            problem = f"the file ends here, and the next one says that it ended at byte {before & OFFSET_MASK}"
            yield Finding(log_name(number - 1), size, problem, True, max((before & OFFSET_MASK) - size, 0), 0)

    def _in_frames(self, number: int, file: File) -> Iterator[Finding]:
        end = number << SEGMENT_SHIFT | file.size()
        start, frames = first_location(number), 0
        behind: list[Location] | None = None
        doubted: Location = 0
        while start < end:
            try:
                for location, body in frames_in(file, start, end):
                    if self._meaning is not None and (problem := self._meaning.frame(body)):
                        position = location & OFFSET_MASK
                        yield Finding(log_name(number), position, problem, True, 0, frames, meaningless=True)
                    frames += 1
                    self.frames += 1
                    self._end = location + FRAME_HEADER + len(body)
                    self._meter.add(FRAME_HEADER + len(body))
                    start = self._end
                if start < end and number != self._found.logs[-1] and not self._is_said_to_end(number, start):
                    yield Finding(log_name(number), start & OFFSET_MASK, NO_FRAME, True, end - start, frames)
                return
            except BadFrame as bad:
                lost = had_been_durable(bad.location, file, self._found, self._durable)
                if lost and bad.location != doubted:  # an owner may have been writing it, and is done by now
                    doubted = start = bad.location
                    end = number << SEGMENT_SHIFT | file.size()
                    continue
                if behind is None:  # looked for once: a file may have many holes
                    behind = [header.location for header in headers_behind(file, bad.location, end)]
                start = next((location for location in behind if location > bad.location), end)
                position = bad.location & OFFSET_MASK
                yield Finding(log_name(number), position, bad.problem, lost, start - bad.location, frames)

    def _is_said_to_end(self, number: int, location: Location) -> bool:
        """Whether the next segment says so. Zeros behind that are room for frames which the segment did not need."""
        with suppress(FileNotFoundError, BadHeader):
            file = self._files.open(log_name(number + 1))
            return previous_end(file, LOG_MAGIC, number + 1, log_name(number + 1)) == location
        return False

    def _behind_the_end(self) -> Iterator[Finding]:
        last = max(self._found.logs, default=0)
        if last and last not in self._sizes:
            return  # an owner has dropped it since, and so has gone on behind it
        end = max(self._end, first_location(last)) if last else 0
        if not last and 0 < self._durable < first_location(1):  # which is where no segment has a frame
            yield Finding(DATABASE, 0, MISSING, True, 0, 0)
        elif self._durable > end:
            name = log_name(last or segment_of(self._durable))
            yield Finding(name, end & OFFSET_MASK, "frames behind this byte are missing", True, 0, 0)


def repair_segments(folder: Folder) -> Repaired:
    """Keep what can be read from the snapshot up to the first loss, and a copy of everything that is changed.

    Cutting comes last to first, so that a repair which is interrupted leaves a journal that still says that
    it is damaged, and can be repaired again.
    """
    lock = folder.lock()
    try:
        repairing = _Repairing(folder)
        while repairing.one_step():
            pass
        return Repaired(repairing.actions, repairing.copies)
    finally:
        lock.release()


class _Repairing:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.actions: list[str] = []
        self.copies: Path | None = None

    def one_step(self) -> bool:
        """Mend the first loss; whether there was one, and so may be another."""
        found, lost = layout(self._folder), verify_segments(self._folder).lost
        if any(finding.file == DATABASE for finding in lost):
            raise JournalDamaged(DATABASE, 0, MISSING)
        if any(finding.file.endswith(".snapshot") for finding in lost):
            self._do_without_snapshot(found)
            return True
        places = sorted((int(finding.file.removesuffix(".log")), finding.position, finding) for finding in lost)
        for number, _, finding in places:
            if self._wrote_header(finding, number, found):
                return True
            if number >= found.snapshot:
                self._cut(finding, number, found)
                return True
            self._note(
                f"left {finding.file} as it is: the snapshot stands for it, "
                f"but what was at byte {finding.position} cannot be read again"
            )
        self._mend_snapshot(found, {number for number, *_ in places})
        return False

    def _wrote_header(self, finding: Finding, number: int, found: Layout) -> bool:
        """Write the header of a file anew if its frames can be read: each proves by itself where it belongs."""
        if finding.position >= FILE_HEADER or number not in found.logs:
            return False
        file = self._folder.open(finding.file, write=True)
        try:
            if next(frames_in(file, first_location(number), number << SEGMENT_SHIFT | file.size()), None) is None:
                return False
        except BadFrame:
            return False
        self._copy(finding.file)
        write_all(file, 0, file_header(LOG_MAGIC, number, self._end_before(number, found)))
        file.sync()
        self.actions.append(f"wrote the header of {finding.file} anew: {finding.problem}")
        return True

    def _end_before(self, number: int, found: Layout) -> Location:
        """Where the segment before this one ends; 0 if there is none."""
        if number - 1 not in found.logs:
            return 0
        return (number - 1) << SEGMENT_SHIFT | self._folder.open(log_name(number - 1)).size()

    def _mend_snapshot(self, found: Layout, damaged: set[int]) -> None:
        if not damaged:
            return
        number = found.snapshot
        name, body = snapshot_name(number), read_snapshot(self._folder, number)
        parts = (segment_and_runs(self._folder, other) for other in sorted(damaged))
        sizes = {other: self._folder.open(log_name(other)).size() for other in found.logs if other < number}
        left = [
            Part(first_location(other), other << SEGMENT_SHIFT | size, size)
            for other, size in sizes.items()
            if size >= FILE_HEADER  # or readers take it for gone
        ]
        new = mended(body, parts, left, SEGMENT_BLOCK)
        if new != body:
            self._copy(name)
            if TEMPORARY in self._folder.names():  # of an owner or a repair that was interrupted: it stands for nothing
                self._folder.unlink(TEMPORARY)
            write_snapshot(self._folder, number, new)
            self.actions.append(f"wrote {name} anew, without the messages that cannot be read again")

    def _note(self, action: str) -> None:
        if action not in self.actions:
            self.actions.append(action)

    def _do_without_snapshot(self, found: Layout) -> None:
        """Set the snapshot aside if all that it stands for is still there to be replayed."""
        older = found.snapshots[-2] if len(found.snapshots) > 1 else 1
        name = snapshot_name(found.snapshot)
        if len([number for number in found.logs if older <= number < found.snapshot]) < found.snapshot - older:
            raise JournalDamaged(name, 0, "it cannot be repaired, as segments that it stands for have been dropped")
        self._copy(name)
        self._folder.unlink(name)
        self._folder.sync()
        self.actions.append(f"set {name} aside: the segments it stood for are replayed instead")

    def _cut(self, finding: Finding, number: int, found: Layout) -> None:
        changed = [log_name(other) for other in found.logs if other >= number]
        for name in [*changed, HEAD_NAME]:
            if name in self._folder.names():
                self._copy(name)
        for name in reversed(changed):
            if name != finding.file:
                self._folder.unlink(name)
                self.actions.append(f"set {name} aside, as it comes behind the damage")
        end = self._cut_file(finding, number, found)
        self._folder.sync()
        Head(self._folder, end)

    def _cut_file(self, finding: Finding, number: int, found: Layout) -> Location:
        """Cut the damaged file; returns where the journal now ends."""
        name, first = finding.file, found.snapshot or 1
        if finding.position >= FILE_HEADER:
            file = self._folder.open(name, write=True)
            cut = file.size() - finding.position
            file.truncate(finding.position)
            file.sync()
            self.actions.append(f"cut {cut} bytes at the end of {name}: {finding.problem}")
            return number << SEGMENT_SHIFT | finding.position
        if number in found.logs:
            self._folder.unlink(name)
            self.actions.append(f"set {name} aside: {finding.problem}")
        end_of_previous = self._end_before(number, found)
        if not found.logs and number > first:
            self.actions.append(f"began anew: of the segments up to {name} none is there")
        if number > first:
            return end_of_previous
        file = self._folder.create(name)  # a snapshot needs the segment that follows it, if only an empty one
        write_all(file, 0, file_header(LOG_MAGIC, number, end_of_previous))
        file.sync()
        self.actions.append(f"began an empty {name}")
        return first_location(number)

    def _copy(self, name: str) -> None:
        if self.copies is None:
            self.copies = copies_folder(self._folder)
        if not (self.copies / name).exists():  # the first copy is the one from before the repair
            shutil.copy2(self._folder.path / name, self.copies / name)
            Folder(self.copies).open(name).sync()
            Folder(self.copies).sync()


def copies_folder(folder: Folder) -> Path:
    """A new folder in the journal's, named by the time."""
    time = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() // MICROSECONDS, UTC)
    while (path := folder.path / f"damaged-{time:%Y%m%dT%H%M%SZ}").exists():
        time += timedelta(seconds=1)
    path.mkdir()
    folder.sync()
    return path
