"""A broker behind google.pubsub.v1 and inorder.v1, on one loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import grpc
import grpc.aio

from inorder.broker import MessageQueue
from inorder.clock import SYSTEM_CLOCK
from inorder.errors import Unavailable
from inorder.options import DEFAULT_PROJECT, check_whole
from inorder.server import publisher, subscriber
from inorder.server.admin import Admin
from inorder.server.desks import Desks
from inorder.server.documents import Documents, MemoryDocuments
from inorder.server.expiry import Expiry
from inorder.server.extensions import service as extensions
from inorder.server.extensions.delivery import Delivery
from inorder.server.extensions.service import Extensions
from inorder.server.iam import service as iam
from inorder.server.iam.book import PolicyBook
from inorder.server.iam.service import PolicyService
from inorder.server.limits import MAX_RECEIVED_BYTES
from inorder.server.names import Names
from inorder.server.publisher import Publisher
from inorder.server.push.pushes import Pushes
from inorder.server.resources import MAX_OUTSTANDING_PER_KEY, topic_schema, without_schema
from inorder.server.schemas import service as schemas
from inorder.server.schemas.book import SchemaBook
from inorder.server.schemas.service import SchemaService
from inorder.server.snapshots import Snapshots
from inorder.server.streaming import StreamingPull
from inorder.server.subscriber import Subscriber

STOP_SECONDS = 2.0  # for calls that are being answered

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RECEIVED_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # or a second server on the port would get some of the clients
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients that wait for messages ask whether we live
    ("grpc.keepalive_permit_without_calls", 1),
)


class Server:
    """Serves a broker, which stays the caller's to close.

    `project` is the one whose resources have plain names in the broker. `max_outstanding_per_key` is for ordered
    subscriptions that clients create here: how many messages of a key may be out at once, in order and all on one
    stream; 1 is strict. `push_anywhere`: subscriptions may be pushed to any machine by HTTPS, and not only to this one.
    """

    def __init__(
        self,
        broker: MessageQueue,
        *,
        project: str = DEFAULT_PROJECT,
        max_outstanding_per_key: int = MAX_OUTSTANDING_PER_KEY,
        documents: Documents | None = None,
        push_anywhere: bool = False,
    ) -> None:
        check_whole("max_outstanding_per_key", max_outstanding_per_key)
        self._broker = broker
        self.names = Names(project)
        self._window = max_outstanding_per_key
        self._documents = documents or MemoryDocuments()
        self._push_anywhere = push_anywhere
        self._grpc: Any = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Take calls from now on; returns the port, which is any that is free if none is named."""
        self.names.check(self._broker)
        self._admin = Admin()
        self._desks = Desks(self._broker, self.names)
        self._pushes = Pushes(self._broker, self.names, self._desks, anywhere=self._push_anywhere)
        book = SchemaBook(self._documents.load(schemas.KIND))
        policies = PolicyService(
            PolicyBook(self._documents.load(iam.KIND)), self._documents, SYSTEM_CLOCK, self._exists(book)
        )

        async def deleted(schema: str) -> None:
            await policies.forget(schema)
            for topic in self._broker.get_all_topics():
                settings = topic_schema(topic.options)
                if settings is not None and settings.schema == schema:
                    await self._admin.run(partial(self._broker.update_topic, topic.name, without_schema(topic.options)))

        snapshots = Snapshots(self._broker, self.names, self._admin, policies.forget)

        async def topic_deleted(topic: str) -> None:
            for resource in (topic, *snapshots.of_topic(self.names.topic(topic))):
                await policies.forget(resource)

        delivery = Delivery(self._broker, self.names, self._desks)
        self._extensions = Extensions(self._broker, self.names, self._admin, delivery, self._pushes.refresh)
        calls = {
            extensions.SERVICE: self._extensions.calls(),
            schemas.SERVICE: SchemaService(book, self._documents, SYSTEM_CLOCK, deleted).calls(),
            iam.SERVICE: policies.calls(),
            publisher.SERVICE: {
                **Publisher(self._broker, self.names, self._admin, book, topic_deleted).calls(),
                **snapshots.publisher_calls(),
            },
            subscriber.SERVICE: {
                **Subscriber(
                    self._broker,
                    self.names,
                    self._admin,
                    self._desks,
                    self._pushes,
                    self._window,
                    self._push_anywhere,
                    policies.forget,
                ).calls(),
                **snapshots.calls(),
            },
        }
        handlers = {
            service: {name: grpc.unary_unary_rpc_method_handler(call) for name, call in of_service.items()}
            for service, of_service in calls.items()
        }
        for name, stream in self._extensions.streams().items():
            handlers[extensions.SERVICE][name] = grpc.unary_stream_rpc_method_handler(stream)
        streaming = StreamingPull(self._broker, self.names, self._desks, delivery)
        handlers[subscriber.SERVICE]["StreamingPull"] = grpc.stream_stream_rpc_method_handler(streaming.__call__)
        self._grpc = grpc.aio.server(options=_OPTIONS)
        self._grpc.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(service, named) for service, named in handlers.items())
        )
        try:
            bound: int = self._grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            self._admin.close()
            raise Unavailable(f"cannot listen on {host}:{port}: {error}") from None
        await self._grpc.start()
        self.expiry = Expiry(self._broker, self.names, self._admin, self._desks, policies.forget)
        self._pushes.start()
        self._expiring = asyncio.create_task(self.expiry.run())
        return bound

    def _exists(self, book: SchemaBook) -> Any:
        def exists(resource: str) -> bool:
            match resource.split("/")[2]:
                case "topics":
                    return self._broker.topic_exists(self.names.topic(resource))
                case "subscriptions":
                    return self._broker.subscription_exists(self.names.subscription(resource))
                case "snapshots":
                    return self._broker.get_snapshot(self.names.snapshot(resource)) is not None
            return resource in book

        return exists

    async def stop(self) -> None:
        """End streams and pulls so that their clients try again, answer the other calls, take no more."""
        self._expiring.cancel()
        await self._pushes.stop()
        self._desks.stop()
        self._extensions.stop()
        await self._grpc.stop(STOP_SECONDS)
        self._admin.close()
