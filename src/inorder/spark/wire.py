"""Topics of a server, for the data source and the sink: nothing but its address is needed where a task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from google.protobuf import empty_pb2

from inorder.errors import InorderError
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.arrow import packed, unpacked
from inorder.spark.bounds import Bounds
from inorder.transport.address import Address
from inorder.transport.grpc import channel
from inorder.transport.grpc.calls import Calls

SERVICE = "/inorder.v1.Inorder"

T = TypeVar("T")


class Server:
    """The calls of inorder.v1, for who waits for each. All of them may be repeated, and are after a restart."""

    def __init__(self, address: Address) -> None:
        self._channel = channel.join(address)
        self._calls = Calls(self._channel, address.timeout_seconds)

    def call(self, name: str, request: Any, answer: type[T]) -> T:
        raw = self._calls.repeated(f"{SERVICE}/{name}", request.SerializeToString()).result()
        found: T = answer.FromString(raw)  # type: ignore[attr-defined]
        return found

    def read(self, request: Callable[[], v1.ReadTopicRequest]) -> Iterator[v1.ReadTopicResponse]:
        answers = self._calls.answers(f"{SERVICE}/ReadTopic", lambda: request().SerializeToString())
        return map(v1.ReadTopicResponse.FromString, answers)

    def close(self) -> None:
        self._calls.close()
        channel.leave(self._channel)


class WireSlice(NamedTuple):
    """Messages in a row."""

    topic: str
    serial: int  # of the topic
    first: int
    end: int


class WireTopic:
    """A topic of a server, as the driver sees it."""

    def __init__(self, address: Address, topic: str) -> None:
        self._server = Server(address)
        self._topic = address.topic(topic)
        self._bounds: Bounds | None = None  # as they were told last

    def bounds(self) -> Bounds:
        found = self._server.call("TopicBounds", v1.TopicBoundsRequest(topic=self._topic), v1.TopicBoundsResponse)
        self._bounds = Bounds(found.serial, found.begin, found.end, found.created_us)
        return self._bounds

    def position_at(self, time_us: int) -> int:
        request = v1.PositionAtRequest(topic=self._topic, time_us=time_us)
        return self._server.call("PositionAt", request, v1.PositionResponse).position

    def position_after(self, first: int, size: int) -> int:
        request = v1.PositionAfterRequest(topic=self._topic, first=first, bytes=size)
        return self._server.call("PositionAfter", request, v1.PositionResponse).position

    def slices(self, first: int, end: int, count: int) -> list[WireSlice]:
        # Not as they are by now: the topic may be another one, at which nobody has looked.
        bounds = self._bounds or self.bounds()
        ends = [first + (min(end, bounds.end) - first) * part // count for part in range(count + 1)]
        return [WireSlice(self._topic, bounds.serial, begin, stop) for begin, stop in pairwise(ends) if begin < stop]


def read_wire(
    address: Address, wanted: tuple[str, int, int, int], slots: tuple[int, int] | None
) -> Iterator[pa.RecordBatch]:
    """The messages of a slice, or those of them whose keys are in some slots."""
    topic, serial, at, end = wanted
    first_slot, end_slot = slots or (0, 0)

    def request() -> v1.ReadTopicRequest:
        return v1.ReadTopicRequest(
            topic=topic,
            serial=serial,
            first=at,  # where it goes on, if the server is restarted in the middle
            end=end,
            first_slot=first_slot,
            end_slot=end_slot,
        )

    with closing(Server(address)) as server:
        for answer in server.read(request):
            at = answer.end
            yield from unpacked(answer.batches)


class WireStaging:
    """A topic of a server, as a sink sees it."""

    def __init__(self, address: Address, topic: str) -> None:
        self._server = Server(address)
        self._topic = address.topic(topic)

    def close(self) -> None:
        self._server.close()

    def stage(self, writer: str, epoch: int, rows: Iterator[pa.RecordBatch]) -> Sequence[str]:
        parts: list[str] = []
        try:
            for some in rows:
                parts += [self._stage(writer, epoch, piece) for piece, _ in packed(some)]
        except BaseException:
            with suppress(InorderError):  # then they stay there, and nobody sees them
                self.discard(writer, epoch, parts)
            raise
        return parts

    def _stage(self, writer: str, epoch: int, piece: bytes) -> str:
        request = v1.StagePartRequest(topic=self._topic, writer=writer, epoch=epoch, batches=piece)
        return self._server.call("StagePart", request, v1.StagePartResponse).part

    def commit(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        request = v1.CommitEpochRequest(topic=self._topic, writer=writer, epoch=epoch, parts=parts)
        self._server.call("CommitEpoch", request, v1.CommitEpochResponse)

    def discard(self, writer: str, epoch: int, parts: Sequence[str]) -> None:
        request = v1.DiscardPartsRequest(topic=self._topic, writer=writer, epoch=epoch, parts=parts)
        self._server.call("DiscardParts", request, empty_pb2.Empty)
