"""What a consumer remembers of the states that it has read and written: never more than the database says."""

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
    assert recent.states == {"gone": Line(1), "small": Line(3)}

    with store.transaction() as connection:
        states = States(connection, "worker")
        recent.read(lines, states, connection)
        assert recent.states == lines
        after = {"small": Stored(2, "broker", 2, pattern.dump(Line(4)))}
        states.save(after, {"gone": 1}, recent.rows)
        until = connection.until()
    recent.wrote(after, {"gone": None, "small": Line(4)}, until)

    with store.transaction() as connection:
        recent.read(["gone", "small"], States(connection, "worker"), connection)
    assert "gone" not in recent.rows
    assert "gone" not in recent.states
    assert recent.states["small"] == Line(4)
