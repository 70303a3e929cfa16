"""The journal on SQLite: for those who trust it more than us, and as the oracle of our tests.

One row per frame in one file, in WAL mode with synchronous=FULL: `sync` is a commit. A location is a row's
number, and parts are ranges of rows that are as long as a segment file would be. SQLite does not check the
bytes of a row when it reads them, so each has its own checksum. And it takes a log that is damaged or gone for one
that ends there, so a head beside it bears witness of what was committed, as it does beside segments.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from zlib import crc32

from inorder.errors import (
    Closed,
    FrameDropped,
    InvalidArgument,
    JournalDamaged,
    JournalFailed,
    JournalTooNew,
    NotFound,
    OtherJournal,
)
from inorder.forks import stays_here
from inorder.journal import SEGMENT_BYTES, SQLITE_BLOCK, Location, Part, Recovered
from inorder.journal.files import Folder
from inorder.journal.frames import FILE_HEADER, FRAME_HEADER
from inorder.journal.head import Head
from inorder.journal.layout import DATABASE, MISSING, read_head

FORMAT = 1
BEHIND = "the frames from here on are missing, although they had been committed"
_LOG = f"{DATABASE}-wal"
_LARGEST_BATCH = 64  # frames read at once: few statements, little memory
# The last one: our statements are right, so the tables are not those that they were.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

_SCHEMA = f"""
BEGIN;
CREATE TABLE frames (location INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE parts (first INTEGER PRIMARY KEY, "end" INTEGER, size INTEGER);  -- no end: it is written to
CREATE TABLE snapshot (before INTEGER NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL);
INSERT INTO parts VALUES (1, NULL, NULL);
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_LAST_PART = f"""
SELECT first, coalesce(max(location) + 1, first), {FILE_HEADER} + coalesce(sum({FRAME_HEADER} + length(body)), 0)
FROM (SELECT max(first) AS first FROM parts) LEFT JOIN frames ON location >= first
"""

_SNAPSHOT = "SELECT before, checksum, body, EXISTS (SELECT * FROM parts WHERE first = before) FROM snapshot"


class SqliteStore:
    """A `Store` in one SQLite file. One lock for everything: who appends waits for who syncs."""

    block = SQLITE_BLOCK
    outlives_its_process = False  # it rolls back what was not committed

    def __init__(self, folder: Folder, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.report: list[str] = []
        self._folder = folder
        self._head: Head | None = None
        self._segment_bytes = segment_bytes
        self._busy = threading.RLock()
        self._failure: JournalFailed | None = None
        self._closed = self._recovered = False
        self._sealed: dict[Location, Part] = {}
        self._last = Part(0, 0, 0)
        self._before: Location = 0  # the snapshot stands for the frames before it
        try:
            self._lock = folder.lock()
        except OSError as error:
            raise JournalFailed("lock", str(folder), error) from error
        try:
            with self._stops_if_it_fails("open"):
                check_witness(folder)
                self._connection = _opened(folder)
        except BaseException:
            self._lock.release()
            raise
        stays_here(self)

    # Opening

    def recover(self) -> Recovered:
        with self._busy, self._stops_if_it_fails("read"):
            self._sealed = {part.first: part for part in sealed_parts(self._connection)}
            self._last = last_part(self._connection)
            found = read_snapshot(self._connection)
            self._before = found[0] if found else 0
            parts = [part for part in self._sealed.values() if part.first < self._before]
        return Recovered(found[1] if found else None, self._recovered_frames(), parts)

    def _recovered_frames(self) -> Iterator[tuple[Location, bytes]]:
        self._recovered = True  # before the frames are read, as reading them is what `read` does
        try:
            yield from self.read(self._before or 1)
            with self._busy, self._stops_if_it_fails("read"):
                self._head = self._witness()
        except BaseException:
            self._recovered = False
            raise

    def _witness(self) -> Head:
        # What was being committed when a process ended may be read from its log without being on disk yet.
        if _LOG in self._folder.names():
            self._folder.open(_LOG).sync()
        return Head(self._folder, self._last.end)

    # Writing

    def append(self, body: Sequence[bytes]) -> Location:
        data = b"".join(body)
        size = FRAME_HEADER + len(data)
        with self._busy:
            self._check()
            if self._last.size + size > self._segment_bytes:
                self.begin_part()
            first, location, part_size = self._last
            with self._stops_if_it_fails("write"):
                self._begin()
                self._connection.execute("INSERT INTO frames VALUES (?, ?, ?)", (location, crc32(data), data))
            self._last = Part(first, location + 1, part_size + size)
            return location

    def sync(self) -> None:
        with self._busy:
            self._check()
            self._commit()

    def begin_part(self) -> Location:
        with self._busy:
            self._check()
            first, end, size = self._last
            if first != end:
                with self._stops_if_it_fails("write"):
                    self._lock.check()
                    self._begin()
                    self._connection.execute('UPDATE parts SET "end" = ?, size = ? WHERE first = ?', (end, size, first))
                    self._connection.execute("INSERT INTO parts VALUES (?, NULL, NULL)", (end,))
            self._commit()
            if first != end:
                self._sealed[first] = self._last
                self._last = Part(end, end, FILE_HEADER)
            return end

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def _commit(self) -> None:
        if self._connection.in_transaction:
            with self._stops_if_it_fails("sync"):
                self._connection.execute("COMMIT")
            if self._head is not None:
                self._head.publish(self._last.end)

    # Snapshots and parts

    def save_snapshot(self, body: Sequence[bytes], before: Location | None = None) -> None:
        data = b"".join(body)
        with self._busy:
            self._check()
            before = self.begin_part() if before is None else before
            if before < self._before or before not in {*self._sealed, self._last.first}:
                raise InvalidArgument(f"no part that could follow a snapshot begins at location {before}")
            with self._stops_if_it_fails("save the snapshot in"):
                self._lock.check()
                self._begin()
                self._connection.execute("DELETE FROM snapshot")
                self._connection.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (before, crc32(data), data))
            self._commit()
            self._before = before

    def parts(self) -> list[Part]:
        with self._busy:
            self._check()
            return [*self._sealed.values(), self._last]

    def part_of(self, location: Location) -> Location:
        with self._busy:
            if location >= self._last.first:
                return self._last.first
            return max(first for first in self._sealed if first <= location)

    def drop(self, part: Part) -> None:
        with self._busy:
            self._check()
            known = self._sealed.get(part.first)
            if known is None or known.end > self._before:
                raise InvalidArgument(f"the part at {part.first} is not one that the snapshot stands for")
            with self._stops_if_it_fails("drop a part of"):
                self._lock.check()
                self._begin()
                self._connection.execute(
                    "DELETE FROM frames WHERE location >= ? AND location < ?", (known.first, known.end)
                )
                self._connection.execute("DELETE FROM parts WHERE first = ?", (known.first,))
            self._commit()
            del self._sealed[part.first]

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        return JournalDamaged(DATABASE, location, problem, unit="frame")

    # Reading

    def end(self) -> Location:
        with self._busy:
            self._check()
            return self._last.end

    def read(self, start: Location, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        size = 1  # who reads a single frame should not pay for more
        while True:
            with self._busy, self._stops_if_it_fails("read"):
                self._check()
                stop = self._last.end if end is None else min(end, self._last.end)
                batch = _batch(self._connection, start, stop, size, self._before)
            if not batch:
                return
            yield from batch
            start, size = batch[-1][0] + 1, min(size * 4, _LARGEST_BATCH)

    # Stopping

    def _check(self) -> None:
        if self._failure is not None:
            raise JournalFailed(self._failure.operation, self._failure.file, self._failure.error)
        if self._closed or not self._lock.held:
            raise Closed("the journal is closed" if self._closed else "a forked process does not own the journal")
        assert self._recovered, "a journal is recovered before it is used"

    @contextmanager
    def _stops_if_it_fails(self, operation: str) -> Iterator[None]:
        try:
            with damage_is_named():
                yield
        except (sqlite3.Error, OSError) as error:
            self._failure = self._failure or JournalFailed(operation, DATABASE, error)
            raise self._failure from error

    def close(self) -> None:
        with self._busy:
            if self._closed:
                return
            try:
                keeps = self._lock.held and not self._lock.folder_is_gone()
                if keeps:  # who does not own the folder has kept nothing
                    with self._stops_if_it_fails("close"):
                        self._lock.check()
                if keeps and self._failure is None:
                    self._commit()
                    if self._head is not None:
                        with self._stops_if_it_fails("close"):
                            self._head.flush()
            finally:
                self._closed = True
                self._head = None
                if self._lock.held:  # SQLite must not be touched in a forked process
                    self._connection.close()
                self._lock.release()

    def _leave_to_parent(self) -> None:
        # Nor may a forked process let go of it: that would roll back, in memory that both share, what the parent has
        # written and not committed yet. So it stays, also when the process ends.
        from ctypes import py_object, pythonapi  # here, as hardly a process needs it

        pythonapi.Py_IncRef(py_object(self._connection))


class SqliteReader:
    """A `Reader` of a journal on SQLite: what is committed, through connections that can only read."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._address = f"{(folder.path / DATABASE).as_uri()}?mode=ro"

    def end(self) -> Location:
        said = read_head(self._folder)  # before the database, which only grows
        with self._connection() as connection:
            end = last_part(connection).end
        if said > end:
            raise behind_the_witness(end)
        return end

    def snapshot(self) -> tuple[Location, bytes] | None:
        with self._connection() as connection:
            return read_snapshot(connection)

    def parts(self) -> list[Part]:
        with self._connection() as connection:
            connection.execute("BEGIN")
            parts = [*sealed_parts(connection), last_part(connection)]
        return [part for part in parts if part.first < part.end or part is parts[-1]]

    def read(self, start: Location | None = None, end: Location | None = None) -> Iterator[tuple[Location, bytes]]:
        start = start or self.parts()[0].first
        durable = self.end()
        end = durable if end is None else min(end, durable)
        size = 1
        while True:
            with self._connection() as connection:
                connection.execute("BEGIN")  # one look: a snapshot explains only what was dropped before it
                found = snapshot_location(connection)
                batch = _batch(connection, start, end, size, found)
            if not batch:
                return
            yield from batch
            start, size = batch[-1][0] + 1, min(size * 4, _LARGEST_BATCH)

    def damage(self, location: Location, problem: str) -> JournalDamaged:
        return JournalDamaged(DATABASE, location, problem, unit="frame")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with (
                damage_is_named(),
                closing(sqlite3.connect(self._address, uri=True, isolation_level=None)) as connection,
            ):
                if is_blank(connection) and not read_head(self._folder):
                    raise NotFound(f"there is no journal in {self._folder}")
                check_format(connection)
                yield connection
        except sqlite3.Error as error:
            raise JournalFailed("read", DATABASE, error) from error


def check_witness(folder: Folder) -> None:
    """Raise DataLoss if the head says that more was committed than there is. Changes nothing.

    Only a folder without a head has never had a database, or one of the first journals.
    """
    said = read_head(folder)
    if not said or any(name.endswith((".log", ".snapshot")) for name in folder.names()):
        return
    path = folder.path / DATABASE
    if not path.exists():
        raise JournalDamaged(DATABASE, 0, MISSING)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        check_format(connection)
        end = last_part(connection).end
    if said > end:
        raise behind_the_witness(end)


def behind_the_witness(end: Location) -> JournalDamaged:
    return JournalDamaged(DATABASE, end, BEHIND, unit="frame")


def _opened(folder: Folder) -> sqlite3.Connection:
    for name in folder.names():
        if name.endswith((".log", ".snapshot")):
            raise OtherJournal(str(folder), name)
    connection = sqlite3.connect(folder.path / DATABASE, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if is_blank(connection):
            connection.executescript(_SCHEMA)
            folder.sync()
        check_format(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def is_blank(connection: sqlite3.Connection) -> bool:
    """Whether it has no tables. Without a head it never had: so an owner leaves it that is killed when it begins."""
    return not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]


def check_format(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not version:
        raise JournalDamaged(DATABASE, 0, "there is no journal in it")
    if version != FORMAT:
        raise JournalTooNew(DATABASE, version, FORMAT)


@contextmanager
def damage_is_named() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
            raise JournalDamaged(DATABASE, 0, str(error)) from error
        raise
    except UnicodeDecodeError as error:  # SQLite quotes what it stumbles over
        raise JournalDamaged(DATABASE, 0, error.object.decode(errors="replace")) from error


def sealed_parts(connection: sqlite3.Connection) -> list[Part]:
    return [_part(row) for row in connection.execute("SELECT * FROM parts WHERE size IS NOT NULL ORDER BY first")]


def last_part(connection: sqlite3.Connection) -> Part:
    return _part(connection.execute(_LAST_PART).fetchone())


def _part(row: tuple[Any, Any, Any]) -> Part:
    if not all(isinstance(number, int) for number in row):
        raise JournalDamaged(DATABASE, 0, f"the part {row} cannot be read", unit="frame")
    return Part(*row)


def is_whole(body: Any, checksum: Any) -> bool:
    """Whether a body is what was written. SQLite does not see to it that it is one at all."""
    return isinstance(body, bytes) and crc32(body) == checksum


def read_snapshot(connection: sqlite3.Connection) -> tuple[Location, bytes] | None:
    row: Any = connection.execute(_SNAPSHOT).fetchone()
    if row is None:
        return None
    before, checksum, body, follows = row
    if not is_whole(body, checksum):
        problem = "the snapshot does not match its checksum"
    elif not follows:
        problem = "no part follows the snapshot"
    else:
        return before, body
    raise JournalDamaged(DATABASE, before, problem, unit="snapshot before frame")


def snapshot_location(connection: sqlite3.Connection) -> Location:
    row: Any = connection.execute("SELECT before FROM snapshot").fetchone()
    return row[0] if row else 0


def _batch(
    connection: sqlite3.Connection, start: Location, end: Location, size: int, snapshot: Location
) -> list[tuple[Location, bytes]]:
    """Up to `size` frames from `start` on, checked; none if there are none before `end`."""
    rows = connection.execute(
        "SELECT location, checksum, body FROM frames WHERE location >= ? AND location < ? ORDER BY location LIMIT ?",
        (start, end, size),
    ).fetchall()
    expected = start
    for location, checksum, body in rows:
        if location != expected:
            break
        if not is_whole(body, checksum):
            if location > start:
                break  # whoever wants those before it need not hear of it
            raise JournalDamaged(DATABASE, location, "the frame does not match its checksum", unit="frame")
        expected += 1
    if expected == start and start < end:
        # Asked for a frame that is not there: a snapshot explains that, as whole parts before it may be dropped.
        if start < snapshot and not _in_a_part(connection, start):
            raise FrameDropped(start, rows[0][0] if rows else snapshot)
        raise JournalDamaged(DATABASE, start, "the frame is missing", unit="frame")
    return [(location, body) for location, _, body in rows[: expected - start]]


def _in_a_part(connection: sqlite3.Connection, location: Location) -> bool:
    select = 'SELECT count(*) FROM parts WHERE first <= ? AND ("end" IS NULL OR "end" > ?)'
    return bool(connection.execute(select, (location, location)).fetchone()[0])
