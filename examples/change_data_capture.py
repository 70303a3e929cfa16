"""A replica of a table, fed by its changes: a late update brings a deleted row back, a late delete removes a new one.

Each change carries its place in the database's log. The greatest wins, and a delete leaves a tombstone.
"""

import random

from inorder.patterns import LastWriteWins, fold

# (row, place in the log, database, new content; None: deleted)
CHANGES = [
    ("user-1", 101, "users", {"name": "Ann"}),
    ("user-2", 102, "users", {"name": "Bob"}),
    ("user-1", 103, "users", {"name": "Anne"}),
    ("user-1", 104, "users", None),
    ("user-2", 105, "users", None),
    ("user-2", 106, "users", {"name": "Bob the Second"}),  # created again
    ("user-3", 107, "users", {"name": "Cid"}),
]


def arrivals():
    """The changes after three queues and a retry, one of them twice."""
    changes = [*CHANGES, CHANGES[2]]
    random.Random(1).shuffle(changes)
    return changes


def apply(changes):
    table = {}
    for row, _, _, content in changes:
        if content is None:
            table.pop(row, None)
        else:
            table[row] = content
    return dict(sorted(table.items()))


def without_pattern():
    """Each change as it comes."""
    return apply(arrivals())


def with_pattern():
    """Only what is newer than all that its row has seen. Places in a log are no times, so no drift is checked."""
    return apply(fold(LastWriteWins(max_drift_seconds=None), arrivals()).applied())


def expected():
    """The table itself."""
    return apply(CHANGES)


if __name__ == "__main__":
    print(
        "arrived:        ",
        ", ".join(f"{row}@{place}{'' if content else ' deleted'}" for row, place, _, content in arrivals()),
    )
    print("without pattern:", without_pattern())
    print("with pattern:   ", with_pattern())
