"""`inorder serve`: a broker for every client of Google's Pub/Sub that sets PUBSUB_EMULATOR_HOST."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from inorder.broker import MessageQueue
from inorder.commits import Sync
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.journal.opener import JournalKind

if TYPE_CHECKING:
    from inorder.server import Server

PORT = 8085  # where clients look for Google's emulator

# Messages live until they are acked, and are no part of any cycle: to look for those as often as Python does by default
# took up to half the speed of deliveries from memory, and a fifth of a publish with attributes; of a long backlog none.
GC_THRESHOLDS = (50_000, 20, 100)


def add_to(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Let the program know this noun."""
    noun = nouns.add_parser("serve", help="serve Google's Pub/Sub clients", description=__doc__)
    where = noun.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, metavar="FOLDER", help="keep everything in this folder")
    where.add_argument("--memory", action="store_true", help="keep nothing")
    noun.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    noun.add_argument("--port", type=int, default=PORT, help="0: any that is free (%(default)s)")
    noun.add_argument("--startup", type=Path, metavar="FILE", help="topics and subscriptions to create, in TOML")
    noun.add_argument(
        "--project", default="inorder", help="the one whose resources have plain names in the broker (%(default)s)"
    )
    noun.add_argument(
        "--max-outstanding-per-key",
        type=int,
        default=1000,
        metavar="N",
        help="of ordered subscriptions that clients create: how many messages of a key may be out at once, in order "
        "and all with one client; 1 is strict (%(default)s)",
    )
    noun.add_argument(
        "--push-anywhere", action="store_true", help="push to endpoints on any machine, by HTTPS; else on loopback only"
    )
    noun.add_argument("--journal", choices=get_args(JournalKind), default="segments", help="(%(default)s)")
    noun.add_argument(
        "--sync", choices=get_args(Sync), default="commit", help="when a publish is answered (%(default)s)"
    )
    noun.set_defaults(run=_serve)


def _serve(given: argparse.Namespace) -> int:
    try:
        from inorder.server import Server
        from inorder.server.sqlite_documents import SqliteDocuments
        from inorder.server.startup import create
    except ImportError as error:
        needed = "pip install 'inorder[server]'"
        raise FailedPrecondition(f"the server needs {error.name}, which is not here: {needed}") from None
    if not 0 <= given.port <= 65_535:
        raise InvalidArgument(f"--port: 0 to 65535, not {given.port}")
    gc.set_threshold(*GC_THRESHOLDS)
    window = given.max_outstanding_per_key
    broker = MessageQueue() if given.memory else MessageQueue.open(given.data, journal=given.journal, sync=given.sync)
    documents = None
    try:
        documents = None if given.memory else SqliteDocuments(given.data)
        server = Server(
            broker,
            project=given.project,
            max_outstanding_per_key=window,
            documents=documents,
            push_anywhere=given.push_anywhere,
        )
        if given.startup is not None:
            create(given.startup, broker, server.names, window=window, push_anywhere=given.push_anywhere)
        asyncio.run(_run(server, given))
    finally:
        if documents is not None:
            documents.close()
        broker.close()
    return 0


async def _run(server: Server, given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = await server.start(given.host, given.port)
    kept = "in memory" if given.memory else f"from {given.data}"
    print(f"inorder serves {kept}: PUBSUB_EMULATOR_HOST={given.host}:{port}", flush=True)
    await stop.wait()
    await server.stop()
