"""Starts servers in folders of their own, for this bench only, and always stops and removes them."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from bench.peers import Missing

HOST = "127.0.0.1"
START_SECONDS = 15
STOP_SECONDS = 10

# Where Debian keeps servers that a user's PATH does not name.
_PLACES = (f"{sys.prefix}/bin", *os.get_exec_path(), "/usr/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin")))


def program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        raise Missing(name)
    return found


def version(name: str) -> str:
    """What it says of itself, without the details of its build."""
    command = [program(name), "--version"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    return said.partition(" sha=")[0].strip().removeprefix(f"{name}: ")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that the servers may write to, gone in the end."""
    path = Path(tempfile.mkdtemp(prefix="inorder-bench-"))
    try:
        user = _user()
        if user is not None:
            shutil.chown(path, user)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run(command: Sequence[str | Path], where: Path) -> None:
    """Run a program to its end, as the user that the servers run as."""
    process = subprocess.run(
        command, cwd=where, user=_user(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if process.returncode:
        raise Missing(f"{Path(command[0]).name} failed: {_last_line(process.stdout)}")


@contextmanager
def running(
    command: Sequence[str | Path], where: Path, ready: Callable[[], bool], stop: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """A server, from when it is ready; it has ended when this ends."""
    log = where / "log"
    with log.open("wb") as output:
        # In a session of its own, so that Ctrl-C reaches the bench alone, which then stops the server.
        process = subprocess.Popen(
            command, cwd=where, user=_user(), stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = monotonic() + START_SECONDS
        while not ready():
            if process.poll() is not None or monotonic() > deadline:
                raise Missing(f"{Path(command[0]).name} did not start: {_last_line(log.read_text(errors='replace'))}")
            sleep(0.02)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def _user() -> str | None:
    """Root starts no server as itself: PostgreSQL refuses that, and the others need no such power."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody", "root") if name in names)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]
