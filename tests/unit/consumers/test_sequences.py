"""Sequence numbers: each once, increasing, durable; in blocks, or without a hole."""

import os
import subprocess
import sys
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inorder.consumers import Applied, Sequences, SqliteStore, sequences
from inorder.errors import Closed, FailedPrecondition, InvalidArgument
from inorder.patterns import Resequencer

from .desk import PATIENCE_SECONDS, Database, close_in_a_fork, desk, read, run, wait_until

CHILD = Path(__file__).with_name("child.py")


@pytest.mark.parametrize("block", [1, 3, 100])
def test_numbers_of_each_entity_count_from_one(database: Database, block: int) -> None:
    with Sequences(database.store(), block=block) as numbers:
        assert [numbers.next("a") for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
        assert [numbers.next("b") for _ in range(2)] == [1, 2]


def test_names_are_strangers_and_the_first_number_may_be_another(database: Database) -> None:
    store = database.store()
    assert Sequences(store, name="orders").next("a") == 1
    assert Sequences(store, name="payments", first=0).next("a") == 0
    assert Sequences(store, name="orders").next("a") == 2


@pytest.mark.parametrize("block", [1, 10])
def test_what_is_closed_leaves_no_hole(database: Database, block: int) -> None:
    for expected in ([1, 2, 3], [4, 5, 6]):
        with Sequences(database.store(), block=block) as numbers:
            assert [numbers.next("a") for _ in range(3)] == expected


def test_what_ends_without_closing_leaves_a_hole_and_repeats_nothing(database: Database) -> None:
    store = database.store()
    assert Sequences(store, block=10).next("a") == 1
    assert Sequences(store, block=10).next("a") == 11


def test_a_rest_is_not_given_back_where_somebody_has_taken_what_is_behind_it(database: Database) -> None:
    store = database.store()
    first, second = Sequences(store, block=10), Sequences(store, block=10)
    assert (first.next("a"), second.next("a")) == (1, 11)
    first.close()
    assert second.next("a") == 12
    second.close()
    assert Sequences(store).next("a") == 13


def test_closed_sequences_give_no_numbers(database: Database) -> None:
    numbers = Sequences(database.store(), block=10)
    numbers.next("a")
    numbers.close()
    numbers.close()
    with pytest.raises(Closed):
        numbers.next("a")


def test_threads_share_a_block_and_each_sees_numbers_grow(database: Database) -> None:
    numbers = Sequences(database.store(), block=7)
    seen: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int]) -> None:
        mine += [numbers.next("a") for _ in range(50)]

    threads = [threading.Thread(target=take, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for mine in seen for number in mine) == list(range(1, 201))
    assert all(mine == sorted(mine) for mine in seen)


def test_entities_that_are_too_many_give_their_numbers_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_ENTITIES", 3)
    numbers = Sequences(database.store(), block=10)
    for entity in "abcdef":
        assert numbers.next(entity) == 1
    assert len(numbers._ready) <= 3
    assert [numbers.next(entity) for entity in "abcdef"] == [2] * 6


def test_of_entities_that_are_too_many_those_stay_that_were_given_a_block_last(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_ENTITIES", 3)
    numbers = Sequences(database.store(), block=2)
    assert [numbers.next(entity) for entity in "abaacd"] == [1, 1, 2, 3, 1, 1]
    assert [*numbers._ready] == ["a", "c", "d"]


# -- without holes ---------------------------------------------------------------------------------------


def test_a_gapless_number_is_given_back_by_a_rollback(database: Database) -> None:
    store = database.store()
    numbers = Sequences(store, gapless=True)
    with store.transaction() as connection:
        assert numbers.next("a", connection.raw) == 1
        assert numbers.next("a", connection) == 2

    def fail() -> None:
        with store.transaction() as connection:
            assert numbers.next("a", connection.raw) == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.transaction() as connection:
        assert numbers.next("a", connection.raw) == 3


def test_a_handler_may_number_what_it_writes(database: Database) -> None:
    """The effect, its number, and that the event is done: one transaction."""
    store = database.store()
    numbers = Sequences(store, name="invoices", gapless=True)
    failed: list[int] = []

    def apply(event: Applied, raw: Any) -> None:
        number = numbers.next("invoice", raw)
        run(raw, "INSERT INTO effects (entity, event) VALUES ('i', :event)", event=f"[{number}]")
        if len(failed) < 3:
            failed.append(number)
            raise ZeroDivisionError

    with desk(database) as here:
        here.publish([(f"k{number}", 1) for number in range(10)])
        here.consume(Resequencer(when_full="gap"), apply=apply, store=store)
    assert database.effects() == [(number,) for number in range(1, 11)]


@pytest.mark.parametrize("name", ["", None, 7, "a\0b", "\ud800"])
def test_sequences_have_a_name_and_a_store(database: Database, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="name: a string"):
        Sequences(database.store(), name=name)
    with pytest.raises(InvalidArgument, match="store: a SqliteStore"):
        Sequences(name)


def test_a_gapless_number_needs_a_transaction_that_is_under_way(database: Database) -> None:
    store = database.store()
    numbers = Sequences(store, gapless=True)
    with pytest.raises(InvalidArgument, match="your transaction"):
        numbers.next("a")
    with pytest.raises(InvalidArgument, match="connection"):
        numbers.next("a", object())
    with store.transaction() as connection:
        raw = connection.raw
    with pytest.raises(InvalidArgument, match="connection"):
        numbers.next("a", raw)


def test_numbers_in_blocks_are_not_taken_in_a_transaction(database: Database) -> None:
    store = database.store()
    numbers = Sequences(store, block=2)
    with store.transaction() as connection:
        with pytest.raises(FailedPrecondition, match="gapless"):
            numbers.next("a")
        with pytest.raises(InvalidArgument, match="gapless"):
            numbers.next("a", connection.raw)
    assert numbers.next("a") == 1


def test_what_sequences_are_made_of_is_checked(database: Database) -> None:
    store = database.store()
    for wrong in ({"block": 0}, {"first": -1}, {"gapless": 1}, {"gapless": True, "block": 10}):
        with pytest.raises(InvalidArgument):
            Sequences(store, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key"):
        Sequences(store).next("")


# -- processes -------------------------------------------------------------------------------------------


def numbered_by_processes(database: Database, block: int) -> list[list[tuple[str, int]]]:
    command = [sys.executable, str(CHILD), "number", database.place, str(block)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = []
    for process in processes:
        out, err = process.communicate(timeout=2 * PATIENCE_SECONDS)
        assert not err, err
        lines = [line.split() for line in out.splitlines()]
        results.append([(entity, int(number)) for entity, number in lines])
    return results


@pytest.mark.parametrize("block", [1, 8])
def test_processes_that_are_killed_never_share_a_number(database: Database, block: int) -> None:
    """ordering-guarantees Gotcha 3."""
    results = numbered_by_processes(database, block)
    everything = [pair for result in results for pair in result]
    assert len(set(everything)) == len(everything) == 3 * 60
    for result in results:
        for entity in ("e0", "e1"):
            mine = [number for name, number in result if name == entity]
            assert all(before < after for before, after in pairwise(mine))


def test_processes_that_roll_back_leave_no_hole_when_gapless(database: Database) -> None:
    """ordering-guarantees Gotcha 3."""
    results = numbered_by_processes(database, 0)
    for entity in ("e0", "e1"):
        taken = sorted(number for result in results for name, number in result if name == entity)
        assert taken == list(range(1, len(taken) + 1))


def test_a_forked_process_is_told_to_open_its_own(tmp_path: Path) -> None:
    """Blocks and connections are the parent's."""
    database = Database(str(tmp_path / "store.db"))
    store = database.store()
    numbers = Sequences(store, block=10)
    numbers.next("a")
    child = os.fork()
    if not child:
        told = 0
        try:
            numbers.next("a")
        except FailedPrecondition:
            told += 1
        try:
            with store.transaction():
                pass
        except FailedPrecondition:
            told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    database.close()


def test_a_forked_process_closes_sequences_of_its_parent_while_that_takes_a_number(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "store.db")) as store, closing(SqliteStore(tmp_path / "store.db")) as other:
        numbers = Sequences(store)
        taker = threading.Thread(target=numbers.next, args=("a",))
        with other.transaction():
            taker.start()
            wait_until(numbers._taking.locked)
            close_in_a_fork(numbers)
        taker.join()
        assert numbers.next("a") == 2


def test_a_hole_is_waited_for_until_the_gap_timeout(database: Database) -> None:
    """ordering-guarantees Gotcha 4: What the loss of a block means to a consumer."""
    store = database.store()
    lost, found = Sequences(store, block=3), Sequences(store, block=3)
    events = [("a", lost.next("a")), ("a", found.next("a"))]
    gaps: list[Any] = []
    pattern = Resequencer(gap_timeout_seconds=0.05, when_full="gap")
    with desk(database) as here:
        here.publish(events)
        with here.consumer(pattern, on_gap=lambda missing, _: gaps.append(missing[:3]), read=read):
            wait_until(lambda: database.effects() == [("a", 1), ("a", 4)])
    assert gaps == [("a", 2, 3)]
