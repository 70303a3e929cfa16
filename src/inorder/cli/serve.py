"""`inorder serve`: a broker for every client of Google's Pub/Sub that sets PUBSUB_EMULATOR_HOST."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from inorder.broker import MessageQueue
from inorder.cli import logs
from inorder.cli.configuration import Given, Setting, add_flags, resolved, shown
from inorder.cli.logs import LogFormat, LogLevel
from inorder.commits import Sync
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.journal.opener import JournalKind
from inorder.options import check_number
from inorder.transport.address import host_and_port

if TYPE_CHECKING:
    from inorder.server import Server

PORT = 8085  # where clients look for Google's emulator
DRAIN_SECONDS = 5.0  # with what follows less than the ten that containers are given to stop

# Messages live until they are acked, and are no part of any cycle: to look for those as often as Python does by default
# took up to half the speed of deliveries from memory, and a fifth of a publish with attributes; of a long backlog none.
GC_THRESHOLDS = (50_000, 20, 100)

SETTINGS = (
    Setting("data", Path, None, "keep everything in this folder", metavar="FOLDER"),
    Setting("memory", bool, False, "keep nothing"),
    Setting("host", str, "127.0.0.1", "the address to listen on"),
    Setting("port", int, PORT, "0: any that is free"),
    Setting(
        "rest_port",
        int,
        None,
        "answer the same calls in JSON, as Google's REST API does, at this port, and without TLS by gRPC too; may be "
        "that of --port; 0: any that is free",
        metavar="PORT",
    ),
    Setting("startup", Path, None, "topics and subscriptions to create, in TOML", metavar="FILE"),
    Setting("project", str, "inorder", "the one whose resources have plain names in the broker"),
    Setting(
        "max_outstanding_per_key",
        int,
        1000,
        "of ordered subscriptions that clients create: how many messages of a key may be out at once, in order and all "
        "with one client; 1 is strict",
        metavar="N",
    ),
    Setting("push_anywhere", bool, False, "push to endpoints on any machine, by HTTPS; else on loopback only"),
    Setting("journal", str, "segments", "how it is kept", choices=get_args(JournalKind)),
    Setting("sync", str, "commit", "when a publish is answered", choices=get_args(Sync)),
    Setting("tls_certificate", Path, None, "serve with TLS: the chain of certificates, in PEM", metavar="FILE"),
    Setting("tls_key", Path, None, "the key of the certificate", metavar="FILE"),
    Setting("client_ca", Path, None, "clients need a certificate that one of these has signed", metavar="FILE"),
    Setting("tokens", Path, None, "clients need one of these tokens, and its rights, in TOML", metavar="FILE"),
    Setting("insecure", bool, False, "listen where others can reach it without TLS and tokens"),
    Setting("max_connections", int, 10_000, "of all peers together", metavar="N"),
    Setting("max_streams_per_peer", int, 1_000, "at once", metavar="N"),
    Setting("max_request_bytes", int, 16_000_000, "of one request", metavar="N"),
    Setting("requests_per_second", float, 0.0, "of one peer; 0: any number", metavar="N"),
    Setting("burst", int, 1_000, "how many of these may come at once", metavar="N"),
    Setting("idle_seconds", float, 600.0, "after which a connection without a call is closed", metavar="SECONDS"),
    Setting("drain_seconds", float, DRAIN_SECONDS, "to wait for acks before it stops", metavar="SECONDS"),
    Setting(
        "metrics_port", int, None, "tell Prometheus how things are at this port; 0: any that is free", metavar="PORT"
    ),
    Setting("metrics_host", str, "127.0.0.1", "the address of that port", metavar="HOST"),
    Setting("log_format", str, "text", "of the log, on stderr", choices=get_args(LogFormat)),
    Setting("log_level", str, "warning", "what is logged at least", choices=get_args(LogLevel)),
)

_log = logging.getLogger(__name__)


def add_to(nouns: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Let the program know this noun."""
    noun = nouns.add_parser("serve", help="serve Google's Pub/Sub clients", description=__doc__)
    add_flags(noun, SETTINGS)
    noun.add_argument("--print-config", action="store_true", help="show each setting and where it came from, and end")
    noun.set_defaults(run=_serve)


def _serve(given: argparse.Namespace) -> int:
    found = _in_one_place(resolved(given, SETTINGS, os.environ))
    settings = argparse.Namespace(**{name: one.value for name, one in found.items()})
    options = _checked(settings)
    if given.print_config:
        print(*shown(found), sep="\n")
        return 0
    folder = _folder(settings)
    logs.configure(settings.log_format, settings.log_level)
    from inorder.server import Server
    from inorder.server.sqlite_documents import SqliteDocuments
    from inorder.server.startup import create

    gc.set_threshold(*GC_THRESHOLDS)
    broker = (
        MessageQueue() if folder is None else MessageQueue.open(folder, journal=settings.journal, sync=settings.sync)
    )
    documents = None
    try:
        documents = None if folder is None else SqliteDocuments(folder)
        server = Server(broker, documents=documents, **options)
        if settings.startup is not None:
            create(
                settings.startup,
                broker,
                server.names,
                window=settings.max_outstanding_per_key,
                push_anywhere=settings.push_anywhere,
            )
        asyncio.run(_run(server, settings, folder))
    finally:
        if documents is not None:
            documents.close()
        broker.close()
    _log.info("stopped")
    return 0


def _checked(settings: argparse.Namespace) -> dict[str, Any]:
    """What the server is to be made with: of settings that it would take."""
    for name in ("port", "rest_port", "metrics_port"):
        port = getattr(settings, name)
        if port is not None and not 0 <= port <= 65_535:
            raise InvalidArgument(f"--{name.replace('_', '-')}: 0 to 65535, not {port}")
    check_number("--drain-seconds", settings.drain_seconds, at_least=0, up_to=86_400)
    try:
        from inorder.server import Server
        from inorder.server.security.options import PeerLimits, Security
    except ImportError as error:
        needed = "pip install 'inorder[server]'"
        raise FailedPrecondition(f"the server needs {error.name}, which is not here: {needed}") from None
    options: dict[str, Any] = {
        "project": settings.project,
        "max_outstanding_per_key": settings.max_outstanding_per_key,
        "push_anywhere": settings.push_anywhere,
        "security": Security(
            certificate=settings.tls_certificate,
            key=settings.tls_key,
            client_ca=settings.client_ca,
            tokens=settings.tokens,
            insecure=settings.insecure,
        ),
        "limits": PeerLimits(
            max_connections=settings.max_connections,
            max_streams_per_peer=settings.max_streams_per_peer,
            max_request_bytes=settings.max_request_bytes,
            requests_per_second=settings.requests_per_second,
            burst=settings.burst,
            idle_seconds=settings.idle_seconds,
        ),
    }
    options["security"].check_host(settings.host)
    if _one_port(settings):
        options["security"].check_one_port()
    Server(MessageQueue(), **options)  # which looks at the others
    return options


def _one_port(settings: argparse.Namespace) -> bool:
    """Whether gRPC and REST are wanted at the same one, and not each at any that is free."""
    same: bool = settings.port == settings.rest_port != 0
    return same


def _in_one_place(found: dict[str, Given]) -> dict[str, Given]:
    """Of data and memory the one that counts more: a file that had both would be refused."""
    data, memory = found["data"], found["memory"]
    if not data.value or not memory.value:
        return found
    if data.rank == memory.rank:
        raise InvalidArgument(f"data and memory are both set ({data.source}, {memory.source}): give one of them")
    if data.rank < memory.rank:
        return found | {"memory": data._replace(value=False)}
    return found | {"data": memory._replace(value=None)}


def _folder(settings: argparse.Namespace) -> Path | None:
    """Where to keep everything; None for memory."""
    if settings.memory:
        return None
    if isinstance(settings.data, Path):
        return settings.data
    raise InvalidArgument("one of the arguments --data --memory is required")


async def _run(server: Server, settings: argparse.Namespace, folder: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)  # as with a kill, nothing is lost that was answered
        _log.info("stops by signal %d; a second one ends it at once", number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    one_port = _one_port(settings)
    port = await server.start(settings.host, settings.port, rest=one_port)
    drain_seconds = 0.0
    try:
        rest_port = port if one_port else None
        metrics_port = None
        if settings.rest_port is not None and not one_port:
            rest_port = await server.start_rest(settings.host, settings.rest_port)
        if settings.metrics_port is not None:
            metrics_port = await server.start_metrics(settings.metrics_host, settings.metrics_port)
        kept = "in memory" if folder is None else f"from {folder}"
        address = host_and_port(settings.host, port)
        # What Google's clients read for an emulator is for one without TLS.
        reached = f"grpc://{address}?tls=1" if settings.tls_certificate else f"PUBSUB_EMULATOR_HOST={address}"
        print(f"inorder serves {kept}: {reached}", flush=True)
        if rest_port is not None:
            scheme = "https" if settings.tls_certificate else "http"
            print(f"inorder answers REST: {scheme}://{host_and_port(settings.host, rest_port)}/v1", flush=True)
        if metrics_port is not None:
            metrics = host_and_port(settings.metrics_host, metrics_port)
            print(f"inorder tells metrics: http://{metrics}/metrics", flush=True)
        _log.info("serves %s at %s", kept, address)
        await stop.wait()
        drain_seconds = settings.drain_seconds
    finally:
        await server.stop(drain_seconds)
