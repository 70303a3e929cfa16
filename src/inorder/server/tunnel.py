"""gRPC at the port for REST: whoever speaks HTTP/2 there is carried on, byte by byte, to a gRPC server behind it.

That one listens at a socket in a folder that nobody else may enter. Each connection to it is named after the peer that
it stands for: so a call says by itself who has made it, also when the connection has already gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from inorder.errors import Unavailable
from inorder.server.status import Context

CHUNK_BYTES = 262_144  # at once, as much as the loop reads of a socket
LINGER_SECONDS = 1.0  # for one end to close, when the other has
STOP_SECONDS = 0.3  # for what the server behind has said last
_SHORT = "/tmp"  # the name of a socket has about a hundred bytes, of which other folders may take most

_log = logging.getLogger(__name__)


def peer_name(host: str, port: int) -> str:
    """A peer as gRPC names it."""
    return quote(f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}", safe=":")


def peer_of(context: Context) -> str:
    """Who has called; through a tunnel, whom it stands for."""
    peer: str = context.peer()
    return unquote(peer.rpartition("/")[2]) if peer.startswith("unix:") else peer


class Tunnel:
    """The way to a gRPC server, which is to listen at `address`."""

    def __init__(self) -> None:
        try:
            self._folder = tempfile.mkdtemp(prefix="inorder-", dir=_SHORT if os.access(_SHORT, os.W_OK) else None)
        except OSError as error:
            raise Unavailable(
                f"gRPC at the port for REST needs a folder for temporary files, as TMPDIR names one: {error.strerror}"
            ) from None
        self._socket = os.path.join(self._folder, "grpc")
        self.address = f"unix:{self._socket}"
        self._carrying: set[asyncio.Task[Any]] = set()
        self._stopped = False

    async def carry(
        self, peer: tuple[str, int], begun: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on what a connection has begun with, and then all that comes and goes, until it ends."""
        if self._stopped:
            return
        try:
            end = self._connect(peer_name(*peer))
        except OSError as error:
            _log.warning("a connection by HTTP/2 from %s is not carried on: %s", peer[0], error)
            return
        task = asyncio.current_task()
        assert task is not None
        behind_reader, behind_writer = await asyncio.open_unix_connection(sock=end)
        self._carrying.add(task)
        try:
            behind_writer.write(begun)
            await _until_both_have_ended(_pass_on(reader, behind_writer), _pass_on(behind_reader, writer))
        finally:
            self._carrying.discard(task)
            behind_writer.transport.abort()

    def _connect(self, name: str) -> socket.socket:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.setblocking(False)  # where too many wait to be accepted, one more is refused
            path = os.path.join(self._folder, name)
            end.bind(path)
            os.unlink(path)  # the name stays with the socket
            end.connect(self._socket)
        except OSError:
            end.close()
            raise
        return end

    def stop(self) -> None:
        """Let nobody in any more."""
        self._stopped = True

    async def close(self) -> None:
        """The server behind has stopped: pass on what it has said last, or as much as goes in a moment."""
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes, no faster than it is taken, and then that no more comes."""
    with suppress(OSError):  # one of them has gone, so it is over as well
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.write_eof()


async def _until_both_have_ended(*ways: Coroutine[Any, Any, None]) -> None:
    """As HTTP/2 does not go on in one direction, the second has only a moment more than the first."""
    running = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(running, timeout=LINGER_SECONDS)
    finally:
        for way in running:
            way.cancel()
        await asyncio.gather(*running, return_exceptions=True)
