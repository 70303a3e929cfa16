"""Looking over a journal on SQLite, and cutting it back to what can be read."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from zlib import crc32

from inorder.errors import JournalDamaged, JournalFailed
from inorder.journal import SQLITE_BLOCK, Location, Part
from inorder.journal.files import Folder
from inorder.journal.findings import Finding, Meaning, Meter, Progress, Repaired, Verified
from inorder.journal.head import HEAD_NAME, Head
from inorder.journal.index import lost_parts, plain_snapshot
from inorder.journal.layout import DATABASE, read_head
from inorder.journal.mending import Runs, mended
from inorder.journal.segment_tools import copies_folder
from inorder.journal.sqlite import (
    BEHIND,
    check_format,
    damage_is_named,
    is_blank,
    is_whole,
    last_part,
    read_snapshot,
    sealed_parts,
)

_WHOLE_FILE = 0  # the position of what SQLite itself finds; frames are counted from 1


def verify_database(folder: Folder, progress: Progress | None = None, meaning: Meaning | None = None) -> Verified:
    """Let SQLite check its file, then check every frame and the snapshot."""
    size = 0
    for name in (DATABASE, f"{DATABASE}-wal"):
        with suppress(FileNotFoundError):  # an owner that is closed removes its log
            size += (folder.path / name).stat().st_size
    frames, findings = 0, []
    said = read_head(folder)  # before the database, which only grows
    address = f"{(folder.path / DATABASE).as_uri()}?mode=ro"
    try:
        with damage_is_named(), closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")  # one moment of the journal, whatever an owner writes meanwhile
            if is_blank(connection) and not said:
                return Verified(0, size, [])
            check_format(connection)
            findings += [_finding(_WHOLE_FILE, problem) for problem in _broken_pages(connection)]
            findings += _in_snapshot(connection, meaning)
            meter = Meter(progress, size)
            for location, body, problem in _checked(connection):
                meter.add(len(body))
                if problem:
                    findings.append(_finding(location, problem, len(body), frames))
                    continue
                if meaning is not None and (problem := meaning.frame(body)):
                    findings.append(_finding(location, problem, 0, frames, meaningless=True))
                frames += 1
            if said > (end := last_part(connection).end):
                findings.append(_finding(end, BEHIND, 0, frames))
            meter.finish()
    except JournalDamaged as damage:
        findings.append(_finding(_WHOLE_FILE, damage.problem))
    except sqlite3.Error as error:
        raise JournalFailed("read", DATABASE, error) from error
    return Verified(frames, size, findings)


def _finding(
    position: int, problem: str, unreadable: int = 0, frames_before: int = 0, *, meaningless: bool = False
) -> Finding:
    return Finding(DATABASE, position, problem, True, unreadable, frames_before, meaningless)


def _broken_pages(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]


def _in_snapshot(connection: sqlite3.Connection, meaning: Meaning | None) -> list[Finding]:
    try:
        found = read_snapshot(connection)
    except JournalDamaged as damage:
        return [_finding(damage.position, damage.problem)]
    if found is None:
        return []
    before, body = found
    parts = [*sealed_parts(connection), last_part(connection)]
    findings = [_finding(location, problem) for location, problem in lost_parts(plain_snapshot(body), parts)]
    if meaning is not None and (problem := meaning.snapshot(body)):
        findings.append(_finding(before, problem, meaningless=True))
    return findings


def _checked(connection: sqlite3.Connection) -> Iterator[tuple[Location, bytes, str]]:
    """Each frame that should be there: its location, its body, and what is wrong with it. Of a hole, the first."""
    for part in [*sealed_parts(connection), last_part(connection)]:
        yield from _checked_in(connection, part)


def _checked_in(connection: sqlite3.Connection, part: Part) -> Iterator[tuple[Location, bytes, str]]:
    expected = part.first
    select = "SELECT location, checksum, body FROM frames WHERE location >= ? AND location < ? ORDER BY location"
    for location, checksum, body in connection.execute(select, (part.first, part.end)):
        yield from _hole(expected, location)
        if is_whole(body, checksum):
            yield location, body, ""
        else:
            found = body if isinstance(body, bytes) else b""
            yield location, found, "the frame does not match its checksum"
        expected = location + 1
    yield from _hole(expected, part.end)


def _hole(first: Location, end: Location) -> Iterator[tuple[Location, bytes, str]]:
    """Frames that are missing, as one: a damaged row of a part may say that there are billions."""
    if first < end:
        upto = f", and so are all up to {end - 1}" if first < end - 1 else ""
        yield first, b"", f"the frame is missing{upto}"


def repair_database(folder: Folder) -> Repaired:
    """Keep the frames up to the first loss behind the snapshot, and a copy of the file as it was.

    Of what is lost before the snapshot, that says nothing any more, so that the rest is delivered.
    """
    lock = folder.lock()
    try:
        lost = verify_database(folder).lost
        if not lost:
            return Repaired([], None)
        if lost[0].position == _WHOLE_FILE:
            problem = f"{lost[0].problem}; SQLite's own tools may save more: sqlite3 {DATABASE} .recover"
            raise JournalDamaged(DATABASE, 0, problem)
        with damage_is_named(), closing(sqlite3.connect(folder.path / DATABASE, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            before, snapshot = read_snapshot(connection) or (0, b"")  # a damaged one is raised: nothing else says it
            places = [finding.position for finding in lost]
            behind = [place for place in places if place >= before]
            passed = [place for place in places if place < before]
            new = _mended(connection, before, snapshot, passed) if passed else snapshot
            actions = [f"left frame {place}: the snapshot stands for it" for place in passed]
            if not behind and new == snapshot:
                return Repaired(actions, None)
            copies = _copied(folder)
            if new != snapshot:
                connection.execute("UPDATE snapshot SET checksum = ?, body = ?", (crc32(new), new))
                actions.append("wrote the snapshot anew, without the messages that cannot be read again")
            if behind:
                count = _cut(connection, behind[0])
                Head(folder, last_part(connection).end)
                actions.append(f"cut {count} frames from {behind[0]} on")
            return Repaired(actions, copies)
    finally:
        lock.release()


def _copied(folder: Folder) -> Path:
    copies = copies_folder(folder)
    for path in [*folder.path.glob(f"{DATABASE}*"), *folder.path.glob(HEAD_NAME)]:
        shutil.copy2(path, copies / path.name)
        Folder(copies).open(path.name).sync()
    Folder(copies).sync()
    return copies


def _mended(connection: sqlite3.Connection, before: Location, snapshot: bytes, places: list[Location]) -> bytes:
    """The snapshot without what is lost at these places, each of which is in a part or where one should be."""
    sealed = [part for part in sealed_parts(connection) if part.first < before]
    damaged = {part for part in sealed if any(part.first <= place < part.end for place in places)}
    for place in places:
        if not any(part.first <= place < part.end for part in sealed):
            damaged.add(Part(place, min((part.first for part in sealed if part.first > place), default=before), 0))
    return mended(snapshot, [(part, _runs(connection, part)) for part in sorted(damaged)], sealed, SQLITE_BLOCK)


def _runs(connection: sqlite3.Connection, part: Part) -> Runs:
    run = expected = 0
    for location, body, problem in _checked_in(connection, part):
        if not problem:
            run = run if location == expected else location
            yield run, location, body
            expected = location + 1


def _cut(connection: sqlite3.Connection, place: Location) -> int:
    connection.execute("BEGIN")
    count = connection.execute("DELETE FROM frames WHERE location >= ?", (place,)).rowcount
    connection.execute("DELETE FROM parts WHERE first > ?", (place,))
    connection.execute('UPDATE parts SET "end" = NULL, size = NULL WHERE first = (SELECT max(first) FROM parts)')
    connection.execute("COMMIT")
    return count
