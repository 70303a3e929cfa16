"""inorder.v1.Inorder: all its calls, and what the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import version

from inorder.broker import MessageQueue
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin
from inorder.server.extensions.delivery import Delivery
from inorder.server.extensions.keys import Keys
from inorder.server.extensions.reading import Reading
from inorder.server.extensions.resources import Resources
from inorder.server.extensions.writing import Writing
from inorder.server.names import Names
from inorder.server.status import Context, RawCall, RawStream, unary

SERVICE = "inorder.v1.Inorder"
PROTOCOL = 1


class Extensions:
    """The service, of which the server makes those parts that have to do with others of its own."""

    def __init__(
        self, broker: MessageQueue, names: Names, admin: Admin, resources: Resources, delivery: Delivery
    ) -> None:
        self._names = names
        self._resources = resources
        self._delivery = delivery
        self._stopping = asyncio.Event()
        self._keys = Keys(broker, names, admin, self._stopping)
        self._reading = Reading(broker, names, admin, self._stopping)
        self._writing = Writing(broker, names, admin)

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "Describe": unary(v1.DescribeRequest, self.describe),
            **self._resources.calls(),
            **self._keys.calls(),
            **self._reading.calls(),
            **self._writing.calls(),
            **self._delivery.calls(),
        }

    def streams(self) -> Mapping[str, RawStream]:
        """Those that answer more than once."""
        return {**self._keys.streams(), **self._reading.streams()}

    def stop(self) -> None:
        """End what goes on until its client has enough."""
        self._stopping.set()
        self._reading.stop()

    async def describe(self, request: v1.DescribeRequest, context: Context) -> v1.Description:
        return v1.Description(protocol=PROTOCOL, version=version("inorder"), project=self._names.project, columns=True)
