"""Publishing that may be repeated: producers that have names."""

from __future__ import annotations

from collections.abc import Mapping

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, topic_missing, unary


class Writing:
    """The calls."""

    def __init__(self, broker: MessageQueue, names: Names, admin: Admin) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {"OpenProducer": unary(v1.OpenProducerRequest, self.open_producer)}

    async def open_producer(self, request: v1.OpenProducerRequest, context: Context) -> v1.OpenProducerResponse:
        topic = self._names.topic(request.topic)
        try:
            epoch = await self._admin.run(lambda: self._broker.open_producer(topic, request.producer))
        except NotFound:
            raise topic_missing(request.topic) from None
        return v1.OpenProducerResponse(epoch=epoch)
