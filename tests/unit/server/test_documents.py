"""Documents: what was awaited is there afterwards; on disk, also for the next process."""

import asyncio
import gc
import sqlite3
from collections.abc import Awaitable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from inorder.errors import Closed, JournalDamaged, JournalFailed, JournalTooNew, TopicAlreadyExists
from inorder.pending import Pending
from inorder.server.documents import Documents, MemoryDocuments, to_the_end
from inorder.server.sqlite_documents import FILE, SqliteDocuments
from inorder.server.status import invalid


async def use(documents: Documents) -> None:
    await documents.put("schema", "a", b"1")
    await documents.put("schema", "b", b"2")
    await documents.put("schema", "a", b"\x00" * 100_000)
    await documents.put("policy", "a", b"")
    await documents.put("schema", "b", None)
    await documents.put("schema", "never there", None)


def test_documents_are_replaced_and_deleted_by_kind_and_name() -> None:
    documents = MemoryDocuments()
    asyncio.run(use(documents))
    assert documents.load("schema") == {"a": b"\x00" * 100_000}
    assert documents.load("policy") == {"a": b""}
    assert documents.load("none") == {}


def test_documents_on_disk_are_there_again(tmp_path: Path) -> None:
    with closing(SqliteDocuments(tmp_path)) as documents:
        asyncio.run(use(documents))
    with closing(SqliteDocuments(tmp_path)) as documents:
        assert documents.load("schema") == {"a": b"\x00" * 100_000}
        assert documents.load("policy") == {"a": b""}


def test_closing_finishes_what_was_put_and_takes_no_more(tmp_path: Path) -> None:
    async def put() -> None:
        documents = SqliteDocuments(tmp_path)
        written = [documents.put("schema", str(number), b"x") for number in range(20)]
        documents.close()
        documents.close()
        for one in written:
            await one
        with pytest.raises(Closed):
            await documents.put("schema", "late", b"x")

    asyncio.run(put())
    with closing(SqliteDocuments(tmp_path)) as documents:
        assert len(documents.load("schema")) == 20


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE documents SET document = x'00' WHERE kind = 'schema'", "schema a"),
        ("UPDATE documents SET document = 'text' WHERE kind = 'schema'", "schema a"),
        ("ALTER TABLE documents RENAME COLUMN checksum TO czecksum", "no such column: checksum"),
    ],
)
def test_damage_is_told(tmp_path: Path, statement: str, problem: str) -> None:
    with closing(SqliteDocuments(tmp_path)) as documents:
        asyncio.run(use(documents))
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(statement)
        connection.commit()
    with closing(SqliteDocuments(tmp_path)) as documents, pytest.raises(JournalDamaged, match=problem):
        documents.load("schema")
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole.replace(b"BLOB NOT NULL", b"BLOB NOT NUL\xcc"))
    with pytest.raises(JournalDamaged, match="malformed database schema"):
        SqliteDocuments(tmp_path)
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(JournalDamaged):
        SqliteDocuments(tmp_path)


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_is_refused(tmp_path: Path, version: int) -> None:
    SqliteDocuments(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(JournalTooNew, match=f"format {version}"):
        SqliteDocuments(tmp_path)


def test_a_full_disk_stops_it(small_disk: Path) -> None:
    async def fill() -> None:
        with closing(SqliteDocuments(small_disk)) as documents:
            await documents.put("schema", "small", b"x")
            with pytest.raises(JournalFailed):
                await documents.put("schema", "large", bytes(1_000_000))
            with pytest.raises(JournalFailed):
                await documents.put("schema", "small", b"y")

    asyncio.run(fill())
    with closing(SqliteDocuments(small_disk)) as documents:
        assert documents.load("schema") == {"small": b"x"}


def test_a_change_goes_on_when_the_client_has_gone() -> None:
    class Slow(MemoryDocuments):
        def __init__(self) -> None:
            super().__init__()
            self.durable: Pending[None] = Pending()

        def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
            super().put(kind, name, document)
            return self.durable

    async def run() -> Mapping[str, bytes]:
        documents, memory, changed = Slow(), {}, asyncio.Event()

        async def change() -> None:
            await documents.put("schema", "a", b"1")
            memory["a"] = b"1"
            changed.set()

        client = asyncio.ensure_future(to_the_end(change()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        documents.durable.set_result(None)
        await changed.wait()
        return memory

    assert asyncio.run(run()) == {"a": b"1"}


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (TopicAlreadyExists("orders"), []),
        (invalid("no such thing"), []),
        (KeyError("orders"), ["a call failed whose client has gone"]),
    ],
)
def test_what_is_refused_to_a_client_that_has_gone_is_not_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, logged: list[str]
) -> None:
    async def run() -> None:
        gone = asyncio.Event()

        async def change() -> None:
            await gone.wait()
            raise error

        client = asyncio.ensure_future(to_the_end(change()))
        await asyncio.sleep(0)
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        gone.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(run())
    gc.collect()  # by which asyncio finds what nobody has looked at
    assert [record.getMessage() for record in caplog.records] == logged
