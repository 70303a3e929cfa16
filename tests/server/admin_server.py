"""A server with schemas and policies only, on a loop of its own as another process would be, and Google's clients."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports.grpc import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports.grpc import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport

from inorder.clock import SYSTEM_CLOCK
from inorder.server.documents import Documents
from inorder.server.iam import service as iam
from inorder.server.iam.book import PolicyBook
from inorder.server.schemas import service as schemas
from inorder.server.schemas.book import SchemaBook

EXISTING = {f"projects/shop/{collection}/orders" for collection in ("topics", "subscriptions", "snapshots")}


class AdminServer:
    def __init__(self, documents: Documents) -> None:
        self.book = SchemaBook(documents.load(schemas.KIND))
        policies = PolicyBook(documents.load(iam.KIND))

        def exists(resource: str) -> bool:
            return resource in EXISTING or resource in self.book

        self.policies = iam.PolicyService(policies, documents, SYSTEM_CLOCK, exists)
        self.schemas = schemas.SchemaService(self.book, documents, SYSTEM_CLOCK, self._deleting)

    @asynccontextmanager
    async def _deleting(self, schema: str) -> AsyncIterator[None]:
        await self.policies.forget(schema)
        yield

    async def start(self) -> int:
        self._server = grpc.aio.server()
        for service, calls in ((schemas.SERVICE, self.schemas.calls()), (iam.SERVICE, self.policies.calls())):
            handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        await self._server.stop(None)


class Clients:
    """Google's clients on one channel."""

    def __init__(self, channel: grpc.Channel, book: SchemaBook) -> None:
        with_channel: dict[str, Any] = {"channel": channel, "credentials": AnonymousCredentials()}
        self.schemas = pubsub_v1.SchemaServiceClient(transport=SchemaServiceGrpcTransport(**with_channel))
        self.publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(**with_channel))
        self.subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(**with_channel))
        self.book = book  # what the server has, to be looked at


@contextmanager
def serving(documents: Documents) -> Iterator[Clients]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def made() -> AdminServer:
        return AdminServer(documents)

    server = run(made())
    port = run(server.start())
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield Clients(channel, server.book)
    finally:
        channel.close()
        run(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
