"""What a consumer remembers of the states that it has read and written: never more than the database says."""

import contextlib

from inorder.consumers.recent import MAX_BYTES, Recent
from inorder.consumers.store import States, Stored
from inorder.patterns import Resequencer
from inorder.patterns.parking import Line

from .desk import Database


def test_what_was_forgotten_or_is_large_is_read_again(database: Database) -> None:
    store, pattern = database.store(), Resequencer()
    recent: Recent[Line] = Recent(pattern)
    missed = tuple((10 * number, 10 * number + 1) for number in range(MAX_BYTES // 8))
    lines = {"gone": Line(1), "large": Line(2, missed=missed), "small": Line(3)}
    rows = {entity: Stored(1, "broker", 1, pattern.dump(line)) for entity, line in lines.items()}
    assert len(rows["large"].state) > MAX_BYTES
    with store.transaction() as connection:
        States(connection, "worker").save(rows)
        until = connection.until()
    recent.wrote(rows, lines, until)
    recent.committed()
    assert recent.states == {}
    recent.catch_up()
    assert recent.states == {"gone": Line(1), "small": Line(3)}

    with store.transaction() as connection:
        states = States(connection, "worker")
        recent.read(lines, states, connection)
        assert recent.states == lines
        after = {"small": Stored(2, "broker", 2, pattern.dump(Line(4)))}
        states.save(after, {"gone": 1}, recent.rows)
        until = connection.until()
    recent.wrote(after, {"gone": None, "small": Line(4)}, until)
    recent.committed()

    with store.transaction() as connection:
        recent.read(["gone", "small"], States(connection, "worker"), connection)
    assert "gone" not in recent.rows
    assert "gone" not in recent.states
    assert recent.states["small"] == Line(4)


def test_what_was_written_is_known_at_once_and_forgotten_again_if_it_was_not_committed(database: Database) -> None:
    store, pattern = database.store(), Resequencer()
    recent: Recent[Line] = Recent(pattern)
    before, after = (Stored(number, "broker", 1, pattern.dump(Line(number))) for number in (1, 2))

    def write(row: Stored, *, fails: bool) -> object:
        with contextlib.suppress(ZeroDivisionError), store.transaction() as connection:
            states = States(connection, "worker")
            recent.read(["a"], states, connection)
            stamp = recent.stamp
            states.save({"a": row})
            recent.wrote({"a": row}, {"a": Line(row.version)}, connection.until())
            recent.catch_up()
            assert recent.rows["a"] == row
            assert recent.stamp is not stamp
            if fails:
                raise ZeroDivisionError
            recent.committed()
        return recent.stamp

    write(before, fails=False)
    stamp = write(after, fails=True)
    with store.transaction() as connection:
        recent.read(["a"], States(connection, "worker"), connection)
    assert recent.rows["a"] == before
    assert recent.states["a"] == Line(1)
    assert recent.stamp is not stamp


def test_a_stamp_holds_as_long_as_nothing_else_is_found_than_was_known(database: Database) -> None:
    """Whether it was read again or trusted, and also of what is known not to be there."""
    store, other, pattern = database.store(), database.store(), Resequencer()
    recent: Recent[Line] = Recent(pattern)

    def stamp_of(*entities: str) -> object:
        with store.transaction() as connection:
            recent.read(entities, States(connection, "worker"), connection)
            recent.wrote({}, {}, connection.until())
            recent.committed()
        recent.catch_up()
        return recent.stamp

    def save(entity: str, before: int) -> None:
        with other.transaction() as connection:
            States(connection, "worker").save({entity: Stored(before + 1, "broker", 1, pattern.dump(Line(7)))})

    def holds(*entities: str) -> bool:
        stamp = stamp_of()
        with store.transaction() as connection:
            recent.read(entities, States(connection, "worker"), connection)
            recent.committed()
        return recent.stamp is stamp

    assert holds("a", "b")  # none is there
    save("a", 0)
    assert not holds("a", "b")
    assert holds("a", "b")
    save("b", 0)
    assert holds("a")  # nothing has become of this one
    assert not holds("a", "b")
    save("a", 1)
    assert not holds("a")
    with other.transaction() as connection:
        States(connection, "worker").save({}, {"a": 2})
    assert not holds("a")
    assert holds("a", "b")
