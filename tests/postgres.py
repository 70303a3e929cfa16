"""A PostgreSQL for tests: the one that INORDER_TEST_POSTGRES names, or one started from the machine's packages."""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

HOST = "127.0.0.1"
PATIENCE_SECONDS = 30


@contextmanager
def server() -> Iterator[str]:
    """Its URL, with a driver. Skips the test where there is none, and says what is missing."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: make setup")
    pytest.importorskip("psycopg", reason="psycopg is not installed: make setup")
    if given := os.environ.get("INORDER_TEST_POSTGRES"):
        yield given
        return
    programs = {name: program(name) for name in ("initdb", "postgres")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"no PostgreSQL: {' and '.join(missing)} not found, and INORDER_TEST_POSTGRES is not set")
    user = unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="inorder-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        # It is never cut off from power, so nothing has to be synced.
        create = [programs["initdb"], "--no-sync", "--auth=trust", "--username=inorder", "--pgdata", folder / "data"]
        made = subprocess.run(create, cwd=folder, user=user, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no PostgreSQL: initdb failed: {made.stderr.strip()}")
        with started([programs["postgres"], "-D", folder / "data"], folder, user) as port:
            yield f"postgresql+psycopg://inorder@{HOST}:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def schema(url: str) -> Iterator[str]:
    """The URL of an empty schema in that database, gone in the end."""
    import sqlalchemy

    name = f"inorder_{uuid4().hex}"
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    try:
        yield f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{name}"
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def started(command: list[str | Path], folder: Path, user: str | None) -> Iterator[int]:
    """The port on which it listens."""
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
    options = ["-p", str(port), "-h", HOST, "-k", "", "-c", "fsync=off", "-c", "deadlock_timeout=50ms"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], cwd=folder, user=user, stdout=log, stderr=log)
    try:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not listens(port):
            if process.poll() is not None or time.monotonic() > give_up:
                pytest.skip(f"no PostgreSQL: it did not start: {(folder / 'log').read_text()[-500:]}")
            time.sleep(0.01)
        yield port
    finally:
        process.send_signal(signal.SIGINT)  # at once, whoever is connected
        process.wait(PATIENCE_SECONDS)


def listens(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(host=HOST, port=port, user="inorder", dbname="postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def program(name: str) -> str | None:
    """Debian keeps servers where a PATH does not look."""
    places = [*os.get_exec_path(), *sorted(glob.glob("/usr/lib/postgresql/*/bin"))]
    return shutil.which(name, path=os.pathsep.join(places))


def unprivileged() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in ("postgres", "nobody") if name in names), None)
    if user is None:
        pytest.skip("no PostgreSQL: it refuses to run as root, and there is neither a user postgres nor nobody")
    return user
