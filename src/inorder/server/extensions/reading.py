"""A topic by positions: for those who read it whole, in whatever order and as often as they like, and ack nothing.

What is read comes from the journal, beside the broker, which goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition, InvalidArgument, NotFound
from inorder.journal.reading import JournalReader, Slice, read_slice
from inorder.options import SLOTS, check_whole
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.extensions.folders import folder_of
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, RawStream, server_stream, shutting_down, topic_missing, unary

READ_BYTES = 3_000_000  # are read before they are sent, about

T = TypeVar("T")


class Reading:
    """The calls. `stopping` is set when the server stops."""

    def __init__(self, broker: MessageQueue, names: Names, admin: Admin, stopping: asyncio.Event) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._stopping = stopping
        self._journal: JournalReader | None = None  # since somebody reads; it knows of all topics what a broker knows
        # One thread for it, as it bears no more, and of its own, as to open a large journal takes a while.
        self._thread = ThreadPoolExecutor(1, "inorder-reading")

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "TopicBounds": unary(v1.TopicBoundsRequest, self.topic_bounds),
            "PositionAt": unary(v1.PositionAtRequest, self.position_at),
            "PositionAfter": unary(v1.PositionAfterRequest, self.position_after),
        }

    def streams(self) -> Mapping[str, RawStream]:
        """Those that answer more than once."""
        return {"ReadTopic": server_stream(v1.ReadTopicRequest, self.read_topic)}

    def stop(self) -> None:
        """Take no more questions; what is being read is read."""
        self._thread.shutdown(wait=False)

    async def topic_bounds(self, request: v1.TopicBoundsRequest, context: Context) -> v1.TopicBoundsResponse:
        found = await self._ask(request.topic, lambda journal, topic: journal.topic(topic))
        return v1.TopicBoundsResponse(
            serial=found.serial, begin=found.begin, end=found.end, created_us=found.created_us
        )

    async def position_at(self, request: v1.PositionAtRequest, context: Context) -> v1.PositionResponse:
        time_us = request.time_us
        position = await self._ask(request.topic, lambda journal, topic: journal.position_at(topic, time_us))
        return v1.PositionResponse(position=position)

    async def position_after(self, request: v1.PositionAfterRequest, context: Context) -> v1.PositionResponse:
        first, size = request.first, request.bytes
        position = await self._ask(request.topic, lambda journal, topic: journal.position_after(topic, first, size))
        return v1.PositionResponse(position=position)

    async def read_topic(self, request: v1.ReadTopicRequest, context: Context) -> AsyncIterator[v1.ReadTopicResponse]:
        for name in ("first", "end"):
            check_whole(name, getattr(request, name), at_least=0)
        slots = _slots(request)

        def slices(journal: JournalReader, topic: str) -> list[Slice]:
            if request.HasField("serial") and journal.topic(topic).serial != request.serial:
                raise FailedPrecondition(
                    f"topic {request.topic!r} was deleted and created again since it was looked at"
                )
            return journal.slices(topic, request.first, request.end, 1)

        for wanted in await self._ask(request.topic, slices):
            answers = self._answers(wanted, slots)
            while (answer := await self._admin.run(partial(next, answers, None))) is not None:
                if self._stopping.is_set():
                    raise shutting_down()
                yield answer

    def _answers(self, wanted: Slice, slots: tuple[int, int] | None) -> Iterator[v1.ReadTopicResponse]:
        from inorder.journal.columns import of_slots, record_batches
        from inorder.protocol.arrow import packed

        for batch in record_batches(read_slice(folder_of(self._broker), wanted), size=READ_BYTES):
            kept = batch if slots is None else of_slots(batch, *slots)
            for piece, rows in packed(kept) if kept.num_rows else ():
                is_last = _last(rows) == _last(kept)
                # What follows the last was looked at as well, and nobody needs to ask for it again.
                yield v1.ReadTopicResponse(batches=piece, end=_last(batch if is_last else rows) + 1)

    async def _ask(self, resource: str, question: Callable[[JournalReader, str], T]) -> T:
        folder = folder_of(self._broker)
        topic = self._names.topic(resource)
        if self._stopping.is_set():
            raise shutting_down()

        def ask() -> T:
            if self._journal is None:
                self._journal = JournalReader(folder)
            else:
                self._journal.refresh()
            return question(self._journal, topic)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except NotFound:
            raise topic_missing(resource) from None


def _last(batch: Any) -> int:
    """The position of its last row."""
    position: int = batch.column("position")[-1].as_py()
    return position


def _slots(request: v1.ReadTopicRequest) -> tuple[int, int] | None:
    first, end = request.first_slot, request.end_slot
    if not first and not end:
        return None
    if not first < end <= SLOTS:
        raise InvalidArgument(
            f"first_slot and end_slot: 0 to {SLOTS}, the second above the first, not {first} and {end}"
        )
    return first, end
