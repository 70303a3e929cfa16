"""inorder.v1.Inorder: all its calls, and what the server is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.extensions.delivery import Delivery
from inorder.server.extensions.keys import Keys
from inorder.server.extensions.resources import Resources
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, RawStream, topic_missing, unary

SERVICE = "inorder.v1.Inorder"
PROTOCOL = 1


class Extensions:
    """The service. `changed` is told the broker's name of each subscription that is made or changed."""

    def __init__(
        self, broker: MessageQueue, names: Names, admin: Admin, delivery: Delivery, changed: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._delivery = delivery
        self._resources = Resources(broker, names, admin, changed)
        self._keys = Keys(broker, names, admin)

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "Describe": unary(v1.DescribeRequest, self.describe),
            **self._resources.calls(),
            **self._keys.calls(),
            **self._delivery.calls(),
            "OpenProducer": unary(v1.OpenProducerRequest, self.open_producer),
        }

    def streams(self) -> Mapping[str, RawStream]:
        """Those that answer more than once."""
        return self._keys.streams()

    def stop(self) -> None:
        """End what goes on until its client has enough."""
        self._keys.stop()

    async def describe(self, request: v1.DescribeRequest, context: Context) -> v1.Description:
        return v1.Description(protocol=PROTOCOL, version=version("inorder"), project=self._names.project)

    async def open_producer(self, request: v1.OpenProducerRequest, context: Context) -> v1.OpenProducerResponse:
        topic = self._names.topic(request.topic)
        try:
            epoch = await self._admin.run(lambda: self._broker.open_producer(topic, request.producer))
        except NotFound:
            raise topic_missing(request.topic) from None
        return v1.OpenProducerResponse(epoch=epoch)
