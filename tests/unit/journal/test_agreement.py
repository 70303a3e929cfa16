"""Both stores make the same of the same history, crashes included. SQLite is the oracle."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from inorder.errors import InorderError
from inorder.journal import Location, Store
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.testing.faults import FaultyDisk

SEEDS = 60
STEPS = 60
PART_BYTES = 500


class Seen(NamedTuple):
    """All that a store shows, without its own way to count: the frames stand for their locations."""

    snapshot: bytes | None
    recovered: list[bytes]
    parts: list[list[bytes]]
    report: list[str]


class Segments:
    """Segments on a disk that loses whatever was not synced."""

    def __init__(self, folder: Path) -> None:
        self.disk = FaultyDisk(0)

    def open(self) -> Store:
        return SegmentStore(self.disk, segment_bytes=PART_BYTES)

    def crash(self, store: Store) -> None:
        self.disk.restart_without_the_unsynced()


class Sqlite:
    """SQLite in a real folder. What a crash leaves is what the files hold before anybody closes them."""

    def __init__(self, folder: Path) -> None:
        self.base = folder
        self.lives = 0

    def open(self) -> Store:
        return SqliteStore(Folder(self.base / str(self.lives)), segment_bytes=PART_BYTES)

    def crash(self, store: Store) -> None:
        shutil.copytree(self.base / str(self.lives), self.base / str(self.lives + 1))
        store.close()
        self.lives += 1


def lived(world: Segments | Sqlite, seed: int) -> Iterator[Seen | str | int]:
    """One history, and what the store says at each of its steps."""
    random = Random(seed)
    store: Store | None = None
    known: list[Location] = []
    appended = 0
    for _ in range(STEPS):
        if store is None:
            store = world.open()
            recovered = store.recover()
            bodies = [body for _, body in recovered.frames]
            parts = [[body for _, body in store.read(part.first, part.end)] for part in store.parts()]
            known = [location for part in store.parts() for location, _ in store.read(part.first, part.end)]
            yield Seen(recovered.snapshot, bodies, parts, store.report)
        step, choice, size = random.random(), random.random(), random.choice((0, 3, 30, 200, 600))
        try:
            if step < 0.5:
                appended += 1
                known.append(store.append([b"%d " % appended, b"x" * size]))
            elif step < 0.65:
                store.sync()
            elif step < 0.71:
                store.save_snapshot([b"state %d" % appended])
            elif step < 0.74:
                store.begin_part()
            elif step < 0.82:
                store.sync()  # SQLite cannot commit one thing and not the other
                store.drop(store.parts()[int(choice * len(store.parts()))])
            elif step < 0.90 and known:
                yield sum(1 for _ in store.read(known[int(choice * len(known))]))
            elif step < 0.94:
                store.close()
                store = None
            elif step < 0.98:
                world.crash(store)
                store = None
        except InorderError as error:
            yield type(error).__name__
    if store is not None:
        store.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_stores_agree_on_a_history(seed: int, tmp_path: Path) -> None:
    assert list(lived(Segments(tmp_path), seed)) == list(lived(Sqlite(tmp_path), seed))


def test_the_histories_have_what_they_should(tmp_path: Path) -> None:
    seen = [fact for seed in range(SEEDS) for fact in lived(Segments(tmp_path), seed)]
    assert {"FrameDropped", "InvalidArgument"} <= {fact for fact in seen if isinstance(fact, str)}
    states = [fact for fact in seen if isinstance(fact, Seen)]
    assert any(state.snapshot and state.recovered and len(state.parts) > 3 for state in states)
