"""A full list is committed beside the reading of the next one, and nothing comes of that but time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from inorder import DeadLetterPolicy
from inorder.consumers import Applied, SqliteStore, Store, recent
from inorder.consumers.store import Commit, Connection, at_once
from inorder.patterns import LastWriteWins, Resequencer, VersionGate
from inorder.testing.clock import ManualClock

from .desk import PATIENCE_SECONDS, SOON, Database, Desk, desk, read, run, wait_until, write_down

PARKING = Resequencer(when_full="gap")
LATEST = VersionGate(mode="latest_only")


class Around:
    """A store with something around each commit."""

    def __init__(self, store: Store, around: Callable[[Callable[[], None], Connection], None]) -> None:
        self.store, self.around = store, around
        self.trouble, self.close, self.in_transaction = store.trouble, store.close, store.in_transaction

    @contextmanager
    def transaction(self, commit: Commit = at_once) -> Iterator[Any]:
        connections: list[Connection] = []

        def commit_it(end: Callable[[], None]) -> None:
            commit(lambda: self.around(end, connections[0]))

        with self.store.transaction(commit_it) as connection:
            connections.append(connection)
            yield connection


class OnlyAtOnce:
    """A store that knows nothing of commits that others make."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.trouble, self.close, self.in_transaction = store.trouble, store.close, store.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.store.transaction() as connection:
            yield connection


class Gate:
    """Holds the commits of full lists until it is opened."""

    def __init__(self) -> None:
        self.closed, self.open = threading.Event(), threading.Event()

    def __call__(self, end: Callable[[], None], _: Connection) -> None:
        if threading.current_thread().name == "inorder-commit":
            self.closed.set()
            assert self.open.wait(PATIENCE_SECONDS)
        end()


def begin(here: Desk) -> None:
    """Have a consumer look for what has fallen due, which it does when it begins, and at once."""
    here.publish([("first", 1)])
    here.drained()


def events(count: int) -> list[tuple[str, int]]:
    return [(f"k{number}", 1) for number in range(count)]


def test_while_a_full_list_is_committed_the_next_one_is_read_and_no_more(database: Database) -> None:
    gate, seen, threads = Gate(), list[str](), set[int]()

    def reading(message: Any) -> tuple[Any, ...]:
        threads.add(threading.get_ident())
        seen.append(message.ordering_key)
        return read(message)

    def apply(event: Applied, raw: Any) -> None:
        threads.add(threading.get_ident())
        write_down(event, raw)

    with desk(database) as here:
        store: Any = Around(database.store(), gate)
        with here.consumer(PARKING, store=store, read=reading, apply=apply, batch=2):
            begin(here)
            here.publish(events(5))
            assert gate.closed.wait(PATIENCE_SECONDS)
            wait_until(lambda: len(seen) == 1 + 4)
            assert here.backlog == 5  # nothing is acked
            gate.open.set()
            here.drained()
        assert here.errors == []
    assert database.effects() == [("first", 1), *events(5)]
    assert len(threads) == 1  # users need not think of several


def test_a_full_list_is_acked_though_nothing_comes_after_it(database: Database) -> None:
    with desk(database) as here, here.consumer(PARKING, batch=2):
        for round in range(3):
            here.publish([(f"k{round}", 1), (f"l{round}", 1)])
            here.drained()
    assert len(database.effects()) == 6


def test_who_uses_the_store_meanwhile_waits_for_the_commit(database: Database) -> None:
    gate = Gate()
    with desk(database) as here:
        here.publish(events(2))
        store = database.store()
        around: Any = Around(store, gate)
        with here.consumer(PARKING, store=around, batch=2):
            assert gate.closed.wait(PATIENCE_SECONDS)
            assert not store.in_transaction()
            counts: list[Any] = []

            def count() -> None:
                with store.transaction() as connection:
                    if database.place.startswith("postgresql"):  # which shows others what there was before
                        run(connection.raw, "LOCK TABLE effects IN EXCLUSIVE MODE")
                    counts.append(run(connection.raw, "SELECT count(*) FROM effects"))

            other = threading.Thread(target=count)
            other.start()
            other.join(0.05)
            assert counts == []
            gate.open.set()
            other.join()
            assert counts == [[(2,)]]


@contextmanager
def with_parents(database: Database) -> Iterator[Store]:
    """A store whose table of children wants parents, at the latest when it is committed."""
    store: Any = database.store()
    if isinstance(store, SqliteStore):
        store._database.execute("PRAGMA foreign_keys = ON")
    elif database.place.startswith("sqlite"):
        from sqlalchemy import event

        event.listen(store._engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
        store._engine.dispose()
    with store.transaction() as connection:
        run(connection.raw, "CREATE TABLE parents (name TEXT PRIMARY KEY)")
        late = "DEFERRABLE INITIALLY DEFERRED"
        run(connection.raw, f"CREATE TABLE children (name TEXT REFERENCES parents (name) {late})")
    yield store


@pytest.mark.parametrize("ordered", [False, True])
def test_an_effect_that_the_commit_refuses_is_alone_and_comes_again_in_its_place(
    database: Database, ordered: bool
) -> None:
    """As a deferred constraint is: nothing is wrong before the commit."""
    refused = list[str]()

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.fields == ("bad", 2) and len(refused) < 3:
            run(raw, "INSERT INTO children (name) VALUES ('nobody')")

    def note(error: BaseException, messages: Any) -> None:
        refused.extend(message.ordering_key for message in messages)

    with desk(database, enable_message_ordering=ordered, retry_policy=SOON) as here, with_parents(database) as store:
        here.publish([(key, version) for version in range(1, 5) for key in ("good", "bad", "well")])
        with here.consumer(PARKING, store=store, apply=apply, on_error=note, batch=3):
            here.drained()
    assert refused == ["bad"] * 3
    for key in ("good", "bad", "well"):
        assert database.effects(key) == [(key, version) for version in range(1, 5)]


def test_a_database_that_goes_away_before_the_commit_is_waited_for_and_nobody_is_blamed(postgres_url: str) -> None:
    from ... import postgres

    clock, gone = ManualClock(), list[str]()

    def end_connection(end: Callable[[], None], connection: Connection) -> None:
        if threading.current_thread().name == "inorder-commit" and len(gone) < 3:
            gone.append("once more")
            (mine,) = run(connection.raw, "SELECT pg_backend_pid()")[0]
            with create_engine(url, poolclass=NullPool).connect() as other:  # a store would wait for locks of this one
                run(other, "SELECT pg_terminate_backend(:pid)", pid=mine)
        end()

    with postgres.schema(postgres_url) as url:
        database = Database(url)
        with desk(database, clock) as here:
            here.pubsub.topic("dead").create().result()
            here.subscription.set_options(dead_letter_policy=DeadLetterPolicy("dead", 5)).result()
            store: Any = Around(database.store(), end_connection)
            with here.consumer(PARKING, store=store, batch=3):
                here.publish([(f"k{number}", version) for version in (1, 2) for number in range(6)])
                wait_until(lambda: clock.advance(1) or not here.backlog)
        assert len(gone) == len(here.errors) == 3
        for number in range(6):
            assert database.effects(f"k{number}") == [(f"k{number}", 1), (f"k{number}", 2)]
        database.close()


def test_closing_while_a_commit_is_unfinished_waits_for_it_and_acks(database: Database) -> None:
    gate = Gate()
    with desk(database, ack_deadline_seconds=600) as here:
        store: Any = Around(database.store(), gate)
        consumer = here.consumer(PARKING, store=store, batch=2).open()
        here.publish(events(10))
        assert gate.closed.wait(PATIENCE_SECONDS)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        gate.open.set()
        closing.join()
        done = len(database.effects())
        assert done in (2, 4)  # the list that was read meanwhile may have been begun
        assert here.backlog == 10 - done
        here.consume(PARKING)  # at once: nobody waits for a lease to run out
    assert sorted(database.effects()) == events(10)
    assert "inorder-commit" not in [thread.name for thread in threading.enumerate()]


def test_a_store_that_only_commits_at_once_will_do(database: Database) -> None:
    with desk(database) as here:
        here.publish(events(10))
        store: Any = OnlyAtOnce(database.store())
        here.consume(PARKING, store=store, batch=2)
        assert here.errors == []
    assert database.effects() == events(10)


def test_a_commit_that_goes_on_when_the_state_of_a_key_is_needed_again_is_taken_for_granted(database: Database) -> None:
    """Each list has the key of the one before, whose state is not committed yet when the next one is read."""
    with desk(database) as here:
        here.publish([("a", version) for version in (1, 2, 2, 3, 1, 5, 4, 6)])
        here.consume(LATEST, batch=1)
    assert database.effects() == [("a", version) for version in (1, 2, 3, 5, 6)]


def test_what_falls_due_is_not_put_off_by_lists_that_are_always_full(database: Database) -> None:
    clock = ManualClock()
    with desk(database, clock) as here, here.consumer(Resequencer(gap_timeout_seconds=10), batch=1):
        here.publish([("a", 1), ("a", 3)])
        here.drained()
        number = 0

        def more() -> bool:
            nonlocal number
            number += 1
            here.publish([(f"k{number}", 1), (f"l{number}", 1)])
            clock.advance(1)
            return len(database.effects("a")) == 2

        wait_until(more)
        here.drained()
    assert database.effects("a") == [("a", 1), ("a", 3)]


def test_what_could_not_be_committed_is_given_back_by_who_closes_meanwhile(database: Database) -> None:
    """It comes to others at once, and has not failed."""
    began, go_on = threading.Event(), threading.Event()

    def fail(end: Callable[[], None], connection: Connection) -> None:
        if threading.current_thread().name == "inorder-commit":
            began.set()
            assert go_on.wait(PATIENCE_SECONDS)
            run(connection.raw, "INSERT INTO children (name) VALUES ('nobody')")
        end()

    with desk(database, ack_deadline_seconds=600) as here, with_parents(database) as inner:
        store: Any = Around(inner, fail)
        store.trouble = lambda _: "wait"  # as if the database had gone
        consumer = here.consumer(PARKING, store=store, batch=2).open()
        begin(here)
        here.publish(events(2))
        assert began.wait(PATIENCE_SECONDS)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        wait_until(lambda: not consumer._is_open())
        go_on.set()
        closing.join()
        assert len(here.errors) == 1
        again = here.queue.pull("worker", 10)
        assert sorted((message.ordering_key, message.delivery_attempt) for message in again) == [("k0", 1), ("k1", 1)]
    assert database.effects() == [("first", 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_an_error_handler_raises_in_the_end_no_thread_is_left(database: Database) -> None:
    gate = Gate()

    def fail(end: Callable[[], None], connection: Connection) -> None:
        gate(lambda: None, connection)
        if gate.closed.is_set():
            run(connection.raw, "INSERT INTO children (name) VALUES ('nobody')")
        end()

    def give_up(_: BaseException, __: object) -> None:
        raise SystemExit(3)

    def reading(message: Any) -> tuple[Any, ...]:
        if message.ordering_key == "k2":  # with which the loop ends, before it is known how the commit went
            gate.open.set()
            raise SystemExit(4)
        return read(message)

    with desk(database) as here, with_parents(database) as inner:
        store: Any = Around(inner, fail)
        store.trouble = lambda _: "wait"
        consumer = here.consumer(PARKING, store=store, read=reading, on_error=give_up, batch=2).open()
        begin(here)
        here.publish(events(3))
        consumer._run._thread.join(PATIENCE_SECONDS)  # type: ignore[union-attr]
        consumer.close()
    wait_until(lambda: "inorder-commit" not in [thread.name for thread in threading.enumerate()])


def test_an_answer_that_nobody_waited_for_is_not_taken_for_that_of_the_next_commit(database: Database) -> None:
    """A store of somebody's own raises behind the commit, which may have gone well or not."""
    raised = list[int]()

    class Behind(Around):
        @contextmanager
        def transaction(self, commit: Commit = at_once) -> Iterator[Any]:
            with super().transaction(commit) as connection:
                yield connection
            if commit is not at_once and len(raised) < 3:
                raised.append(1)
                raise ZeroDivisionError

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        if event.key == "k5":
            run(raw, "INSERT INTO children (name) VALUES ('nobody')")

    with desk(database) as here, with_parents(database) as inner:
        here.pubsub.topic("dead").create().result()
        here.subscription.set_options(dead_letter_policy=DeadLetterPolicy("dead", 5)).result()
        store: Any = Behind(inner, lambda end, _: end())
        here.publish(events(12))
        here.consume(PARKING, store=store, apply=apply, batch=2)
    assert len(raised) == 3
    assert sorted(database.effects()) == sorted(event for event in events(12) if event[0] != "k5")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_that_cannot_be_told_fails_its_own_message_alone(database: Database) -> None:
    def reading(message: Any) -> tuple[Any, ...]:
        if message.ordering_key == "k1":
            raise Unspeakable
        return read(message)

    with desk(database) as here:
        here.pubsub.topic("dead").create().result()
        here.subscription.set_options(dead_letter_policy=DeadLetterPolicy("dead", 5)).result()
        here.publish(events(4))
        here.consume(PARKING, read=reading, batch=2)
    assert sorted(database.effects()) == [("k0", 1), ("k2", 1), ("k3", 1)]


def test_read_is_called_outside_of_transactions_whichever_try_it_is(database: Database) -> None:
    failed = list[str]()

    def reading(message: Any) -> tuple[Any, ...]:
        assert not store.in_transaction()
        return read(message)

    def apply(event: Applied, raw: Any) -> None:
        if event.key not in failed:
            failed.append(event.key)
            raise ZeroDivisionError
        write_down(event, raw)

    store = database.store()
    with desk(database, retry_policy=SOON) as here:
        here.publish(events(4))
        here.consume(PARKING, store=store, read=reading, apply=apply, batch=2)
    assert sorted(database.effects()) == events(4)


def test_what_was_planned_by_a_state_that_is_gone_is_planned_anew_though_all_others_were_let_go_of(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tombstone is forgotten, which the consumer is about to find when it has no room for what it knows."""
    monkeypatch.setattr(recent, "MAX_ENTITIES", 2)
    clock = ManualClock()
    pattern = LastWriteWins(max_drift_seconds=None, tombstone_retention_seconds=100)
    with desk(database, clock) as here, here.consumer(pattern, batch=3):
        here.publish([("a", 1, "p", 1), ("b", 1, "p", 1), ("k", 5, "p", None)])
        here.drained()
        gone = "SELECT 1 FROM inorder_states WHERE entity = 'k'"
        wait_until(lambda: clock.advance(10) or not database.read(gone))
        here.publish([("k", 4, "p", "late")])
        here.drained()
    assert database.effects("k") == [("k", 5, "p", None), ("k", 4, "p", "late")]
