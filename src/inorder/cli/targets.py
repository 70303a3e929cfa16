"""Which broker a command works on: `--target`, or else the environment."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from inorder.cli.exits import HUNG_UP, TERMINATED
from inorder.client.pubsub import PubSub
from inorder.errors import InvalidArgument
from inorder.journal.reading import existing_journal
from inorder.transport import address
from inorder.transport.address import is_address, without_options

VARIABLE: Final = "INORDER_TARGET"
_TIMEOUT_SECONDS: Final = 10  # of calls to a server
_ENDS: Final = {signal.SIGHUP: HUNG_UP, signal.SIGTERM: TERMINATED}


def add_target(parser: argparse.ArgumentParser) -> None:
    """Let a command be told its broker."""
    parser.add_argument(
        "--target", metavar="TARGET", help=f"the broker: file:FOLDER or grpc://HOST:PORT; by default ${VARIABLE}"
    )


def target_of(given: argparse.Namespace) -> str:
    """What was asked for, if a command can do anything with it."""
    target: str = os.environ.get(VARIABLE, "") if given.target is None else given.target
    if not target:
        raise InvalidArgument(f"no target: give --target file:FOLDER or grpc://HOST:PORT, or set {VARIABLE}")
    if target.startswith("memory:"):
        raise InvalidArgument(
            "target 'memory:' is of no use here, as it ends with the command: "
            "file:FOLDER stays, and `inorder serve --memory` is a server for grpc://HOST:PORT"
        )
    if not target.startswith("file:") and not is_address(target):
        raise InvalidArgument(f"target: file:FOLDER or grpc://HOST:PORT, not {without_options(target)!r}")
    return target


def folder_of(target: str) -> Path | None:
    """Of a broker in a folder, that."""
    if not target.startswith("file:"):
        return None
    folder, _ = address.folder_of(target)
    return Path(folder)


def path_of(text: str) -> Path:
    """The folder that a command is given: a path, or one with `file:` before it, as it stands in a target."""
    if not text:  # as of a variable that is not set; for Python it is the folder where the program was started
        raise InvalidArgument("a path, not ''")
    if is_address(text):
        raise InvalidArgument(f"a path, not the address of a server, {without_options(text)!r}")
    return folder_of(text) or Path(text)


@contextmanager
def connected(given: argparse.Namespace, *, create: bool = False) -> Iterator[PubSub]:
    """The broker, to work with. A folder is made only by who wants to `create` something in it."""
    target = target_of(given)
    if (place := folder_of(target)) is not None and not create:
        existing_journal(place)  # a name that is misspelt must not become one more broker
    with _ended_by_signals(), _unlogged("inorder.client.publisher"), PubSub(_impatient(target)) as pubsub:
        yield pubsub


def _impatient(target: str) -> str:
    """Who waits for a command wants to know soon that there is no server, unless the target says otherwise."""
    if not is_address(target) or "timeout=" in target:
        return target
    return f"{target}{'&' if '?' in target else '?'}timeout={_TIMEOUT_SECONDS}"


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """What this one logs, the error says."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A TERM, or a terminal that is closed, ends a command as Ctrl-C does.

    What it has made for itself is removed, and what it holds given back. Who starts it may have it ignore either.
    """

    def end(number: int, frame: Any) -> None:
        raise SystemExit(_ENDS[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
