"""Documents in one SQLite file, beside the journal: there are few, they change seldom, and each change is a sync."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from inorder.errors import Closed, JournalDamaged, JournalFailed, JournalTooNew
from inorder.pending import Pending

FILE = "documents.db"
FORMAT = 1

_SCHEMA = f"""
BEGIN;
CREATE TABLE documents (kind TEXT, name TEXT, checksum INTEGER NOT NULL, document BLOB NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
COMMIT;
"""
# The last one: our statements are right, so the table is not what it was.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class SqliteDocuments:
    """Documents that survive. The folder must be this process's own, as that of an open journal is.

    After a write that failed it takes no more: what the disk has is then not known until it is opened anew.
    """

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / FILE)
        self._failure: JournalFailed | None = None
        self._closed = False
        with self._named("open"):
            self._connection = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        try:
            with self._named("open"):
                self._prepare()
        except BaseException:
            self._connection.close()
            raise
        # One thread, so that changes reach the disk in their order and nobody's loop waits for it.
        self._writer = ThreadPoolExecutor(1, "inorder-documents")

    def load(self, kind: str) -> Mapping[str, bytes]:
        with self._named("read"):
            rows = self._connection.execute(
                "SELECT name, checksum, document FROM documents WHERE kind = ?", (kind,)
            ).fetchall()
        for name, checksum, document in rows:
            if not isinstance(document, bytes) or crc32(document) != checksum:
                raise JournalDamaged(self._file, 0, f"the {kind} {name} does not match its checksum", unit="row")
        return {name: document for name, _, document in rows}

    def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
        if self._closed:
            return Pending.failed(Closed(f"{self._file} is closed"))
        done: Pending[None] = Pending()
        self._writer.submit(self._settle, done, lambda: self._write(kind, name, document))
        return done

    def close(self) -> None:
        """Finish what was put, and take no more."""
        if not self._closed:
            self._closed = True
            self._writer.shutdown()
            self._connection.close()

    def _settle(self, done: Pending[None], write: Callable[[], None]) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            write()
        except Exception as error:
            if isinstance(error, JournalFailed):
                self._failure = error
            done.set_exception(error)
        else:
            done.set_result(None)

    def _write(self, kind: str, name: str, document: bytes | None) -> None:
        with self._named("write"):  # each statement is a transaction of its own
            if document is None:
                self._connection.execute("DELETE FROM documents WHERE kind = ? AND name = ?", (kind, name))
            else:
                row = (kind, name, crc32(document), document)
                self._connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", row)

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        if not self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            self._connection.executescript(_SCHEMA)
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise JournalTooNew(self._file, version, FORMAT)

    @contextmanager
    def _named(self, operation: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                raise JournalDamaged(self._file, 0, str(error)) from error
            raise JournalFailed(operation, self._file, error) from error
        except UnicodeDecodeError as error:  # SQLite quotes what it stumbles over
            raise JournalDamaged(self._file, 0, error.object.decode(errors="replace")) from error
