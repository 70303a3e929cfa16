"""What a store promises to whoever keeps states in it, on every database."""

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from inorder.consumers import SqliteStore, SqlStore, sqlite_store
from inorder.consumers.store import Conflict, Connection, States, Store, Stored
from inorder.errors import Closed, FailedPrecondition, InvalidArgument

from ... import postgres
from ..interrupts import is_interrupted
from .desk import PATIENCE_SECONDS, Database, close_in_a_fork, run


def change(before: int, state: bytes = b"state", *, wake_at_us: int | None = None) -> Stored:
    return Stored(before + 1, "broker", 1, state, wake_at_us)


def save(store: Store, **changes: Stored) -> None:
    with store.transaction() as connection:
        States(connection, "worker").save(changes)


def save_knowing(store: Store, **changes: Stored) -> None:
    """With what is there."""
    with store.transaction() as connection:
        states = States(connection, "worker")
        states.save(changes, before=states.load(changes))


def forget(store: Store, **versions: int) -> None:
    with store.transaction() as connection:
        States(connection, "worker").save({}, versions)


def load(store: Store, *entities: str) -> dict[str, tuple[int, bytes]]:
    with store.transaction() as connection:
        found = States(connection, "worker").load(entities)
        return {entity: (row.version, bytes(row.state)) for entity, row in found.items()}


def test_what_was_saved_is_there_for_whoever_opens_the_database(database: Database) -> None:
    save(database.store(), a=change(0, b"\x00\xff"), b=change(0))
    assert load(database.store(), "a", "b", "c") == {"a": (1, b"\x00\xff"), "b": (1, b"state")}


def test_states_of_consumers_with_other_names_are_strangers(database: Database) -> None:
    store = database.store()
    save(store, a=change(0))
    with store.transaction() as connection:
        assert States(connection, "other").load(["a"]) == {}


def test_no_entities_are_found_where_none_are_asked_for(database: Database) -> None:
    assert load(database.store()) == {}


@pytest.mark.parametrize("entity", ["größe", "日本", "😀", "it's", 'say "x"', "%", "a\nb", ":x", "123", "null", " "])
def test_entities_are_told_apart_whatever_their_names(database: Database, entity: str) -> None:
    store = database.store()
    with store.transaction() as connection:
        States(connection, "worker").save({entity: change(0), "other": change(0)})
    assert load(store, entity) == {entity: (1, b"state")}


def insert(connection: Connection, number: int) -> None:
    run(connection.raw, "INSERT INTO effects (entity, event, fate) VALUES ('a', :event, 'x')", event=f"[{number}]")


def test_what_was_raised_undoes_the_transaction(database: Database) -> None:
    store = database.store()

    def fail() -> None:
        with store.transaction() as connection:
            insert(connection, 1)
            States(connection, "worker").save({"a": change(0)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert load(store, "a") == {}
    assert database.effects() == []


def test_an_attempt_that_fails_undoes_itself_alone(database: Database) -> None:
    def fail(connection: Connection) -> None:
        with connection.attempt():
            insert(connection, 2)
            raise ZeroDivisionError

    with database.store().transaction() as connection:
        insert(connection, 1)
        with pytest.raises(ZeroDivisionError):
            fail(connection)
        with connection.attempt():
            insert(connection, 3)
    assert database.effects() == [(1,), (3,)]


def test_more_entities_are_found_than_a_statement_has_parameters(database: Database) -> None:
    store = database.store()
    save(store, e0=change(0), e69999=change(0))
    assert load(store, *map("e{}".format, range(70_000))) == {"e0": (1, b"state"), "e69999": (1, b"state")}


@pytest.mark.parametrize("stale", [0, 1, 3])
def test_a_version_that_is_not_there_any_more_is_not_overwritten(database: Database, stale: int) -> None:
    store = database.store()
    save(store, a=change(0, b"1"))
    save(store, a=change(1, b"2"))
    with pytest.raises(Conflict, match="another consumer has changed 'a'"):
        save(store, a=change(stale, b"lost"), b=change(0))
    with pytest.raises(Conflict, match="another consumer has changed 'a'"):
        save_knowing(store, a=change(stale, b"lost"), b=change(0))
    assert load(store, "a", "b") == {"a": (2, b"2")}


def test_what_is_forgotten_is_gone_and_only_if_it_is_as_it_was(database: Database) -> None:
    store = database.store()
    save(store, a=change(0), b=change(0))
    forget(store, a=1)
    with pytest.raises(Conflict, match="another consumer has changed 'b'"):
        forget(store, b=7)
    assert load(store, "a", "b") == {"b": (1, b"state")}


def test_many_are_written_and_counted_at_once(database: Database) -> None:
    store = database.store()
    names = [f"e{number}" for number in range(500)]
    save(store, **{name: change(0) for name in names})
    with store.transaction() as connection:
        kept, gone = {name: change(1, b"2") for name in names[1::2]}, dict.fromkeys(names[::2], 1)
        States(connection, "worker").save(kept, gone)
    assert load(store, *names) == dict.fromkeys(names[1::2], (2, b"2"))


def test_what_is_due_comes_page_by_page_in_the_order_of_time(database: Database) -> None:
    store = database.store()
    times = {"a": 30, "b": 10, "c": 20, "d": 20, "e": 99, "f": None}
    save(store, **{name: change(0, wake_at_us=at_us) for name, at_us in times.items()})
    with store.transaction() as connection:
        states = States(connection, "worker")
        assert states.due(30, (-1, ""), 3) == [(10, "b"), (20, "c"), (20, "d")]
        assert states.due(30, (20, "c"), 3) == [(20, "d"), (30, "a")]
        assert states.due(30, (30, "a"), 3) == []
        assert states.next_wake_us(30) == 99
        assert states.next_wake_us(99) is None


def test_a_time_to_wake_up_is_as_it_was_written_last_whatever_else_is_known(database: Database) -> None:
    store = database.store()
    times = {"a": 10, "b": None, "c": 10, "d": None}
    save(store, **{name: change(0, wake_at_us=at_us) for name, at_us in times.items()})
    after = {"a": 10, "b": 20, "c": None, "d": None}
    save_knowing(store, **{name: change(1, b"2", wake_at_us=at_us) for name, at_us in after.items()})
    with store.transaction() as connection:
        states = States(connection, "worker")
        assert {name: row.wake_at_us for name, row in states.load(after).items()} == after
        assert states.due(99, (-1, ""), 9) == [(10, "a"), (20, "b")]
    assert load(store, *times) == dict.fromkeys(times, (2, b"2"))


def test_a_message_is_put_into_quarantine_once(database: Database) -> None:
    store = database.store()
    row = ("m1", "a", "x", 1, b"\x00", "{}")
    for _ in range(2):
        with store.transaction() as connection:
            States(connection, "worker").quarantine(row)
    assert database.read("SELECT message_id, entity FROM inorder_quarantine") == [("m1", "a")]


def test_a_closed_store_says_so_and_that_is_nobody_s_fault(database: Database) -> None:
    store = database.store()
    store.close()
    with pytest.raises(Closed, match="this store is closed") as raised, store.transaction():
        pass
    assert store.trouble(raised.value) == "wait"
    assert store.trouble(ValueError("the work's own")) is None


def test_who_reads_an_entity_keeps_others_from_writing_it(database: Database) -> None:
    """Two that read, add one and write lose nothing, on however many stores."""
    save(database.store(), a=change(0, b"0"))

    def add(store: Store) -> None:
        for _ in range(20):
            with store.transaction() as connection:
                states = States(connection, "worker")
                row = states.load(["a"])["a"]
                states.save({"a": change(row.version, b"%d" % (int(row.state) + 1))})

    threads = [threading.Thread(target=add, args=(database.store(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load(database.store(), "a") == {"a": (61, b"60")}


def test_what_nobody_else_has_changed_is_as_the_last_transaction_left_it(database: Database) -> None:
    """A database that cannot tell says None; one that can notices other stores, and other users of this one."""
    store, other = database.store(), database.store()

    def change_something(changed: Store, entity: str) -> tuple[Any, Any]:
        with changed.transaction() as connection:
            before = connection.as_of()
            States(connection, "worker").save({entity: change(0)})
            return before, connection.until()

    before, until = change_something(store, "a")
    if before is None:
        assert until is None
        return
    for _ in range(2):  # who only reads has changed nothing
        with store.transaction() as connection:
            assert connection.as_of() == until
            assert connection.as_of() == until  # as long as it is under way
            assert States(connection, "worker").entities() == ["a"]
    change_something(store, "b")
    with store.transaction() as connection:
        assert connection.as_of() != until
        until = connection.until()
    change_something(other, "c")
    with store.transaction() as connection:
        assert connection.as_of() != until
        until = connection.until()


def test_the_log_of_sqlite_may_be_as_long_as_the_file_makes_it_worth_while(tmp_path: Path) -> None:
    def pages_of_log(store: SqliteStore) -> int:
        with store.transaction() as connection:
            return int(connection.query("PRAGMA wal_autocheckpoint", {})[0][0])

    with closing(SqliteStore(tmp_path / "store.db")) as store:
        assert pages_of_log(store) == sqlite_store.LEAST_CHECKPOINT_PAGES
        save(store, large=change(0, bytes(5_000_000)))
        for _ in range(sqlite_store.BETWEEN_LOOKS):
            save(store)
        assert 4_000 < pages_of_log(store) < sqlite_store.MOST_CHECKPOINT_PAGES
        save(store, larger=change(0, bytes(50_000_000)))
    with closing(SqliteStore(tmp_path / "store.db")) as store:
        assert pages_of_log(store) == sqlite_store.MOST_CHECKPOINT_PAGES


def test_what_was_committed_is_not_told_to_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SqliteStore) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with closing(SqliteStore(tmp_path / "store.db")) as store:
        monkeypatch.setattr(SqliteStore, "_limit_log", fail)
        for number in range(sqlite_store.BETWEEN_LOOKS):
            save(store, a=change(number))
        assert load(store, "a") == {"a": (sqlite_store.BETWEEN_LOOKS, b"state")}


def test_a_transaction_that_is_interrupted_at_any_step_is_over_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "store.db")) as store, closing(SqliteStore(tmp_path / "store.db")) as other:
        step, went_through = 0, False
        while not went_through:
            step += 1
            went_through = not is_interrupted(lambda: load(store, "a"), step, "inorder.consumers", "contextlib")
            assert load(store, "a") == load(other, "a") == {}
        assert step > 10


def test_a_file_that_is_damaged_is_nobody_s_fault(tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_bytes(bytes(range(256)) * 100)
    with closing(sqlite3.connect(tmp_path / "damaged.db")) as damaged, pytest.raises(sqlite3.DatabaseError) as raised:
        damaged.execute("SELECT * FROM inorder_states")
    with closing(SqliteStore(tmp_path / "store.db")) as store:
        assert store.trouble(raised.value) == "wait"


def test_a_copy_of_a_database_that_is_only_read_is_nobody_s_fault(postgres_url: str) -> None:
    """As after a failover: what answers is there, and what takes writes is elsewhere."""
    with postgres.schema(postgres_url) as url, closing(SqlStore(url)) as store:
        with store.transaction() as connection:
            run(connection.raw, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        with pytest.raises(DBAPIError, match="read-only transaction") as raised:
            save(store, a=change(0))
        assert store.trouble(raised.value) == "wait"


def test_an_engine_that_commits_each_statement_by_itself_is_refused(postgres_url: str) -> None:
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with pytest.raises(InvalidArgument, match="an engine with transactions"):
        SqlStore(engine)
    engine.dispose()


def test_a_database_that_each_thread_has_for_itself_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="in memory, each thread would have one of its own"):
        SqlStore("sqlite://")


@pytest.mark.parametrize(
    ("database", "error", "complaint"),
    [
        ("nonsense", InvalidArgument, r"^database: a URL such as 'postgresql\+psycopg://.*: Could not parse"),
        (
            "foo://host/name",
            InvalidArgument,
            r"^database: a URL such as .*: Can't load plugin: sqlalchemy\.dialects:foo",
        ),
        (
            "postgresql+psycopg://host:secret/name",
            InvalidArgument,
            r": its port, or an option behind '\?', cannot be read$",
        ),
        (
            "sqlite:///store.db?timeout=secret",
            InvalidArgument,
            r": its port, or an option behind '\?', cannot be read$",
        ),
        (None, InvalidArgument, r"^database: a URL, or an Engine of SQLAlchemy, not None$"),
        ("oracle://host/name", FailedPrecondition, r"^store: the driver of the database is not installed: No module"),
        (
            "postgresql+psycopg://me:secret@127.0.0.1:1/name",
            FailedPrecondition,
            r"^store: .* cannot be used: connection",
        ),
        (
            "sqlite:////nowhere/store.db",
            FailedPrecondition,
            r"^store: .* cannot be used: unable to open database file$",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_told_in_words(database: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint) as raised:
        SqlStore(database)
    assert "cret" not in str(raised.value)


def test_a_driver_of_postgresql_that_is_missing_is_told_with_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)
    with pytest.raises(FailedPrecondition, match=r"pg8000.* is in `pip install 'inorder\[postgresql\]'`$"):
        SqlStore("postgresql+pg8000://me@host/name")


def test_a_forked_process_closes_the_store_of_its_parent_in_the_middle_of_a_transaction(database: Database) -> None:
    store = database.store()
    begun, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with store.transaction() as connection:
            States(connection, "worker").save({"a": change(0)})
            begun.set()
            assert go_on.wait(PATIENCE_SECONDS)

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(PATIENCE_SECONDS)
    close_in_a_fork(store)
    go_on.set()
    writer.join()
    assert load(store, "a") == {"a": (1, b"state")}


def test_a_forked_process_leaves_the_connections_of_its_parent_open(postgres_url: str) -> None:
    with postgres.schema(postgres_url) as url, closing(SqlStore(url)) as store:
        sessions: list[Any] = []
        for _ in range(2):
            with store.transaction() as connection:
                sessions += run(connection.raw, "SELECT pg_backend_pid()")
            close_in_a_fork(store)
        assert sessions[0] == sessions[1]


def test_a_file_without_a_name_is_refused_as_sqlite_would_delete_it_at_the_end() -> None:
    with pytest.raises(InvalidArgument, match=r"^path: that of a file, not ''$"):
        SqliteStore("")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"^store: '.*/missing/x\.db' cannot be opened: unable to open"):
        SqliteStore(tmp_path / "missing" / "x.db")
