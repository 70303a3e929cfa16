"""Publishing that may be repeated: producers that have names, and epochs, which are staged in parts and committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf import empty_pb2

from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from inorder.journal.incoming import Incoming, check_parts, check_writer, writer_of
from inorder.options import check_whole
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.extensions.folders import folder_of
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, topic_missing, unary

OfWriter: TypeAlias = v1.StagePartRequest | v1.CommitEpochRequest | v1.DiscardPartsRequest


class Writing:
    """The calls."""

    def __init__(self, broker: MessageQueue, names: Names, admin: Admin) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "OpenProducer": unary(v1.OpenProducerRequest, self.open_producer),
            "StagePart": unary(v1.StagePartRequest, self.stage_part),
            "CommitEpoch": unary(v1.CommitEpochRequest, self.commit_epoch),
            "DiscardParts": unary(v1.DiscardPartsRequest, self.discard_parts),
        }

    async def open_producer(self, request: v1.OpenProducerRequest, context: Context) -> v1.OpenProducerResponse:
        topic = self._names.topic(request.topic)
        held = request.held_epoch if request.HasField("held_epoch") else None
        try:
            epoch = await self._admin.run(lambda: self._broker.open_producer(topic, request.producer, held))
        except NotFound:
            raise topic_missing(request.topic) from None
        return v1.OpenProducerResponse(epoch=epoch)

    async def stage_part(self, request: v1.StagePartRequest, context: Context) -> v1.StagePartResponse:
        incoming, writer = self._incoming(request)

        def stage() -> str:
            from inorder.journal.columns import checked
            from inorder.protocol.arrow import unpacked

            messages = [batch for rows in unpacked(request.batches) for batch in checked(rows)]
            try:
                return incoming.stage(writer, request.epoch, messages)
            except OSError as error:
                raise Unavailable(f"the part could not be written: {error}") from None

        return v1.StagePartResponse(part=await self._admin.run(stage))

    async def commit_epoch(self, request: v1.CommitEpochRequest, context: Context) -> v1.CommitEpochResponse:
        """Answered when the epoch is sure to be published, which happens a moment later."""
        incoming, writer = self._incoming(request)
        topic, epoch, parts = self._names.topic(request.topic), request.epoch, [*request.parts]
        check_parts(epoch, parts)
        if len({*parts}) < len(parts):
            raise InvalidArgument("parts: each of them once, or its rows would be published as often as it is named")

        def commit() -> bool:
            # In this order: what is taken in has first been written, and is then no longer committed.
            if incoming.is_committed(writer, epoch) or self._broker.has_written(topic, writer, epoch):
                return False
            if missing := incoming.missing(writer, parts):
                raise FailedPrecondition(f"part {missing[0]!r} was never staged, or discarded since: stage it again")
            try:
                return incoming.commit(writer, epoch, topic, parts)
            except OSError as error:
                raise Unavailable(f"the commit could not be written: {error}") from None

        try:
            return v1.CommitEpochResponse(first=await self._admin.run(commit))
        except NotFound:
            raise topic_missing(request.topic) from None

    async def discard_parts(self, request: v1.DiscardPartsRequest, context: Context) -> empty_pb2.Empty:
        incoming, writer = self._incoming(request)
        epoch, parts = request.epoch, [*request.parts]
        check_parts(epoch, parts)

        def discard() -> None:
            if not incoming.is_committed(writer, epoch):
                incoming.discard(writer, parts)

        await self._admin.run(discard)
        return empty_pb2.Empty()

    def _incoming(self, request: OfWriter) -> tuple[Incoming, str]:
        """Where to write what is asked for, and as whom; it is checked as far as all calls have it in common."""
        folder, topic = folder_of(self._broker), self._names.topic(request.topic)
        if not self._broker.topic_exists(topic):
            raise topic_missing(request.topic)
        check_writer(request.writer)
        check_whole("epoch", request.epoch, at_least=0)
        return Incoming(folder), writer_of(topic, request.writer)
