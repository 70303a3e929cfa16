"""Where the sink writes: one small interface, and its form for a folder whose owner publishes what it finds.

The other one is for servers: see `inorder.spark.wire`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Protocol

import pyarrow as pa

from inorder.journal.columns import checked
from inorder.journal.incoming import Incoming, writer_of
from inorder.journal.reading import existing_journal
from inorder.spark.addresses import folder_of
from inorder.spark.topics import wire
from inorder.transport.address import is_address, parse


class Staging(Protocol):
    """A topic, as a sink sees it: parts that nobody sees become an epoch of a writer, or nothing."""

    def stage(self, writer: str, epoch: int, rows: Iterator[pa.RecordBatch]) -> Sequence[str]:
        """Write rows durably; returns the names of the parts, in their order."""

    def commit(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        """Have an epoch published, unless it was committed before."""

    def discard(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        """Remove parts, unless their epoch is committed."""


class FolderStaging:
    """For a topic of a durable broker, by its folder."""

    def __init__(self, folder: str, topic: str) -> None:
        self._incoming = Incoming(existing_journal(folder).path)
        self._topic = topic

    def stage(self, writer: str, epoch: int, rows: Iterator[pa.RecordBatch]) -> Sequence[str]:
        batches = (batch for some in rows for batch in checked(some))
        return [self._incoming.stage(writer_of(self._topic, writer), epoch, batches)]

    def commit(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        self._incoming.commit(writer_of(self._topic, writer), epoch, self._topic, parts)

    def discard(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        writer = writer_of(self._topic, writer)
        if not self._incoming.is_committed(writer, epoch):
            self._incoming.discard(writer, parts)


def open_staging(url: str, topic: str) -> AbstractContextManager[Staging]:
    """The topic at an address: `file:./data`, the path of a folder, or `grpc://host:port`."""
    if is_address(url):
        return closing(wire().WireStaging(parse(url), topic))
    return nullcontext(FolderStaging(folder_of(url), topic))
