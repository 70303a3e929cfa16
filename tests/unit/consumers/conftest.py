"""Every test of consumers runs on each database that a store can be opened on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ... import postgres
from .desk import Database


@pytest.fixture(params=["sqlite", "sqlalchemy-sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "postgresql":
        with postgres.schema(request.getfixturevalue("postgres_url")) as url:
            made = Database(url)
            yield made
            made.close()
        return
    path = str(tmp_path / "store.db")
    made = Database(path if request.param == "sqlite" else f"sqlite:///{path}")
    yield made
    made.close()
