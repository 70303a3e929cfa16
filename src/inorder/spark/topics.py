"""Where the data source reads: one small interface, and its form for a folder that its owner writes meanwhile.

The other one is for servers: see `inorder.spark.wire`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from inorder.errors import FailedPrecondition, InorderError
from inorder.journal.columns import of_slots, record_batches
from inorder.journal.reading import JournalReader, Slice, read_slice
from inorder.spark.addresses import folder_of
from inorder.spark.bounds import Bounds
from inorder.transport.address import is_address, parse


class TopicReader(Protocol):
    """A topic, as the driver sees it. Not thread-safe."""

    def bounds(self) -> Bounds:
        """What can be read at the moment."""

    def position_at(self, time_us: int) -> int:
        """The first message that was stored at a time or later."""

    def position_after(self, first: int, size: int) -> int:
        """So far one may read from `first` on for about so many bytes."""

    def slices(self, first: int, end: int, count: int) -> list[Any]:
        """The work in up to so many parts, each a plain value that any process can read by `read`.

        It is of the topic that `bounds` has told of, and no more of it.
        """


class FolderTopic:
    """A topic of a durable broker, by its folder."""

    def __init__(self, folder: str, topic: str) -> None:
        self._folder = folder
        self._topic = topic
        self._journal = JournalReader(folder)

    def bounds(self) -> Bounds:
        self._journal.refresh()
        view = self._journal.topic(self._topic)
        return Bounds(view.serial, view.begin, view.end, view.created_us)

    def position_at(self, time_us: int) -> int:
        return self._journal.position_at(self._topic, time_us)

    def position_after(self, first: int, size: int) -> int:
        return self._journal.position_after(self._topic, first, size)

    def slices(self, first: int, end: int, count: int) -> list[Slice]:
        return self._journal.slices(self._topic, first, end, count)


def open_topic(url: str, topic: str) -> TopicReader:
    """The topic at an address: `file:./data`, the path of a folder, or `grpc://host:port`."""
    if is_address(url):
        opened: TopicReader = wire().WireTopic(parse(url), topic)
        return opened
    return FolderTopic(folder_of(url), topic)


def read(url: str, wanted: Any, slots: tuple[int, int] | None = None) -> Iterator[pa.RecordBatch]:
    """The messages of a slice, anywhere that the address means the same; with `slots`, of their keys only."""
    if is_address(url):
        yield from wire().read_wire(parse(url), wanted, slots)
        return
    for batch in record_batches(read_slice(folder_of(url), Slice(*wanted))):
        yield batch if slots is None else of_slots(batch, *slots)


def wire() -> Any:
    """What servers need, and folders do not."""
    try:
        from inorder.spark import wire as found
    except ImportError as error:
        raise FailedPrecondition(f"url: grpc:// needs `pip install 'inorder[client]'`: {error}") from None
    return found


def check_topic(url: str, topic: str) -> None:
    """Refuse a topic that a folder does not have, as its owner will look when nobody waits. A server says so itself."""
    if is_address(url):
        return
    try:
        _known(folder_of(url), topic).bounds()
    except (InorderError, OSError):  # of a folder that may have been another one then
        _known.cache_clear()
        _known(folder_of(url), topic).bounds()


@lru_cache(4)
def _known(folder: str, topic: str) -> FolderTopic:
    """Kept, as a stream asks for each batch, and to open a large journal takes a while."""
    return FolderTopic(folder, topic)
