"""A broker behind google.pubsub.v1 and inorder.v1, on one loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from inorder.broker import MessageQueue
from inorder.clock import SYSTEM_CLOCK
from inorder.errors import NotFound, Unavailable
from inorder.options import DEFAULT_PROJECT, check_whole
from inorder.server import publisher, subscriber
from inorder.server.admin import Admin
from inorder.server.calls import Calls
from inorder.server.desks import Desks
from inorder.server.documents import Documents, MemoryDocuments
from inorder.server.door import Door
from inorder.server.expiry import Expiry
from inorder.server.extensions import service as extensions
from inorder.server.extensions.delivery import Delivery
from inorder.server.extensions.resources import Resources
from inorder.server.extensions.service import Extensions
from inorder.server.gates import Gates, Method
from inorder.server.health import HEALTH, Health
from inorder.server.http import HttpServer
from inorder.server.iam import service as iam
from inorder.server.iam.book import PolicyBook
from inorder.server.iam.service import PolicyService
from inorder.server.metrics import Exporter
from inorder.server.names import Names
from inorder.server.publisher import Publisher
from inorder.server.push.pushes import Pushes
from inorder.server.reflection import REFLECTION, reflecting
from inorder.server.resources import MAX_OUTSTANDING_PER_KEY, topic_schema, without_schema
from inorder.server.rest.service import Rest
from inorder.server.schemas import service as schemas
from inorder.server.schemas.book import SchemaBook
from inorder.server.schemas.service import SchemaService
from inorder.server.scraping import scraping
from inorder.server.security import peers, tls
from inorder.server.security.guard import Guard
from inorder.server.security.options import PeerLimits, Security
from inorder.server.security.tokens import TokenFile
from inorder.server.snapshots import Snapshots
from inorder.server.streaming import StreamingPull
from inorder.server.subscriber import Subscriber
from inorder.server.tunnel import Tunnel
from inorder.transport.address import host_and_port

_log = logging.getLogger(__name__)

STOP_SECONDS = 2.0  # for calls that are being answered, and then for streams that are ending
GOODBYE_SECONDS = 0.01  # for gRPC to tell clients that their connections end
LOOK_SECONDS = 0.5  # between two looks whether the broker still works

Handlers: TypeAlias = Mapping[str, Any]  # of a service, for gRPC: each call by its name

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # or a second server on the port would get some of the clients
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),  # clients that wait for messages ask whether we live
    ("grpc.keepalive_permit_without_calls", 1),
    # What is kept of a stream before we read it. By itself gRPC keeps more the further away it believes a client to be:
    # ten times as much of one that is some milliseconds away, and it need only say so.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)


class Server:
    """Serves a broker, which stays the caller's to close.

    `project` is the one whose resources have plain names in the broker. `max_outstanding_per_key` is for ordered
    subscriptions that clients create here: how many messages of a key may be out at once, in order and all on one
    stream; 1 is strict. `push_anywhere`: subscriptions may be pushed to any machine by HTTPS, and not only to this one.
    `security` says who may call, and `limits` how much one may ask for.
    """

    def __init__(
        self,
        broker: MessageQueue,
        *,
        project: str = DEFAULT_PROJECT,
        max_outstanding_per_key: int = MAX_OUTSTANDING_PER_KEY,
        documents: Documents | None = None,
        push_anywhere: bool = False,
        security: Security | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        check_whole("max_outstanding_per_key", max_outstanding_per_key)
        self._broker = broker
        self.names = Names(project)
        self._window = max_outstanding_per_key
        self._documents = documents or MemoryDocuments()
        self._push_anywhere = push_anywhere
        self._security = security or Security()
        self._limits = limits or PeerLimits()
        self._grpc: list[Any] = []
        self._http: list[HttpServer] = []
        self._tunnels: list[Tunnel] = []

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, rest: bool = False) -> int:
        """Take calls from now on; returns the port, which is any that is free if none is named.

        With `rest` it answers in JSON as well, and gRPC has no port of its own, at which it would be faster.
        """
        self._security.check_host(host)
        if rest:
            self._security.check_one_port()
        credentials = tls.server_credentials(self._security)
        self.guard = self._guard()
        self.names.check(self._broker)
        self._admin = Admin()
        self._desks = Desks(self._broker, self.names)
        self._pushes = Pushes(self._broker, self.names, self._desks, anywhere=self._push_anywhere)
        policies, handlers = self._served()
        counted = Calls()
        self._gated(handlers, counted)
        try:
            if rest:
                bound = await self.start_rest(host, port)
            else:
                bound = await self._start_grpc(host_and_port(host, port), credentials)
        except Unavailable:
            await self._close()
            if not rest and (reason := await _refusal(host, port)):
                raise Unavailable(f"cannot listen on {host_and_port(host, port)}: {reason}") from None
            raise
        self._exporter = Exporter(self._broker, self.names, self._admin, self._desks, counted)
        self._chores = [asyncio.create_task(self.guard.run())] if self.guard else []
        self.expiry = Expiry(self._broker, self.names, self._admin, self._desks, policies.forget)
        self._pushes.start()
        self._chores += [asyncio.create_task(self.expiry.run()), asyncio.create_task(self._look_at_broker())]
        return bound

    def _served(self) -> tuple[PolicyService, Mapping[str, Handlers]]:
        """The calls of all services, and who knows the policies of what they make."""
        book = SchemaBook(self._documents.load(schemas.KIND))
        policies = PolicyService(
            PolicyBook(self._documents.load(iam.KIND)), self._documents, SYSTEM_CLOCK, self._exists(book)
        )

        @asynccontextmanager
        async def deleting(schema: str) -> AsyncIterator[None]:
            await policies.forget(schema)
            async with self._admin.changing:  # until the schema is gone no topic changes, or is made that has it
                for topic in self._broker.get_all_topics():
                    settings = topic_schema(topic.options)
                    if settings is not None and settings.schema == schema:
                        change = partial(self._broker.update_topic, topic.name, without_schema(topic.options))
                        with suppress(NotFound):  # it was deleted meanwhile
                            await self._admin.run(change)
                await self._admin.run(self._broker.sync)  # before the schema goes, which is on disk at once
                yield

        snapshots = Snapshots(self._broker, self.names, self._admin, policies.forget)

        async def topic_deleted(topic: str) -> None:
            for resource in (topic, *snapshots.of_topic(self.names.topic(topic))):
                await policies.forget(resource)

        delivery = Delivery(self._broker, self.names, self._desks)
        resources = Resources(self._broker, self.names, self._admin, self._desks.used, self._pushes.refresh)
        self._extensions = Extensions(self._broker, self.names, self._admin, resources, delivery)
        self._calls = {
            extensions.SERVICE: self._extensions.calls(),
            schemas.SERVICE: SchemaService(book, self._documents, SYSTEM_CLOCK, deleting).calls(),
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
            for service, of_service in self._calls.items()
        }
        for name, stream in self._extensions.streams().items():
            handlers[extensions.SERVICE][name] = grpc.unary_stream_rpc_method_handler(stream)
        streaming = StreamingPull(self._broker, self.names, self._desks, delivery)
        handlers[subscriber.SERVICE]["StreamingPull"] = grpc.stream_stream_rpc_method_handler(streaming.__call__)
        self._health = Health()
        handlers[HEALTH] = {**self._health.handlers()}
        self._health.serve(handlers)
        handlers[REFLECTION] = {**reflecting(handlers)}
        return policies, handlers

    def _gated(self, handlers: Mapping[str, Handlers], counted: Calls) -> None:
        """Every call goes through all gates, whatever service it is of, and whichever way it comes."""
        self.calls = {f"/{service}/{call}" for service, named in handlers.items() for call in named}
        self._door = Door()
        self._gates = Gates(counted, self._door, peers.Peers(self._limits), *([self.guard] if self.guard else []))
        self._handlers = tuple(
            grpc.method_handlers_generic_handler(service, named) for service, named in handlers.items()
        )

    async def _start_grpc(self, address: str, credentials: Any = None) -> int:
        server = grpc.aio.server(interceptors=[self._gates], options=[*_OPTIONS, *peers.options(self._limits)])
        server.add_generic_rpc_handlers(self._handlers)
        try:
            if credentials is None:
                bound: int = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: {error}") from None
        await server.start()
        self._grpc.append(server)
        return bound

    async def _look_at_broker(self) -> None:
        """A broker that has stopped by itself will not come back: say so to those who ask how things are."""
        while self._broker.failure is None:  # noqa: ASYNC110  it stops on whatever thread it likes
            await asyncio.sleep(LOOK_SECONDS)
        self._health.stop()

    async def start_metrics(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Tell Prometheus how things are, at a port of their own; returns it. The server has been started."""
        metrics = scraping(self._exporter.text)
        bound = await metrics.start(host, port)
        self._http.append(metrics)
        return bound

    async def start_rest(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Answer the calls in JSON as well, at a port of their own; returns it. The server has been started.

        Without TLS, that port takes gRPC, too, as long as there is a folder for the socket that this needs.
        """
        self._security.check_host(host)
        calls = {
            name: self._gates.around(Method(name, requests=False, responses=False), call)
            for service, of_service in self._calls.items()
            for name, call in ((f"/{service}/{call}", raw) for call, raw in of_service.items())
        }
        tunnel = await self._start_tunnel()
        limits = self._limits
        rest = HttpServer(
            "REST",
            Rest(calls).answer,
            max_body=limits.max_request_bytes,
            max_connections=limits.max_connections,
            idle_seconds=limits.idle_seconds,
            http2=None if tunnel is None else tunnel.carry,
        )
        bound = await rest.start(host, port, tls.http_context(self._security))
        self._http.append(rest)
        return bound

    async def _start_tunnel(self) -> Tunnel | None:
        """The way to gRPC through the port for REST, if there can be one."""
        if self._security.certificate is not None:
            return None
        try:
            tunnel = Tunnel()
            self._tunnels.append(tunnel)
            await self._start_grpc(tunnel.address)
        except Unavailable as error:
            if not self._grpc:  # or nobody could call by gRPC at all
                raise
            _log.warning("the port for REST takes no gRPC: %s", error)
            return None
        return tunnel

    def _guard(self) -> Guard | None:
        tokens = self._security.tokens
        return None if tokens is None else Guard(TokenFile(tokens, self.names.project, SYSTEM_CLOCK))

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

    async def stop(self, drain_seconds: float = 0) -> None:
        """Wait so long at most for answers to what is out; end streams and pulls so that their clients try again, and
        take back what they have; answer the other calls; take no more.
        """
        self._health.stop()
        self._exporter.serving = False
        self._pushes.finish()
        await self._desks.drain(drain_seconds)
        await self._pushes.stop()
        await self._door.close(STOP_SECONDS)
        for chore in self._chores:
            chore.cancel()
        for tunnel in self._tunnels:
            tunnel.stop()
        await self._close()

    async def _close(self) -> None:
        closing = [asyncio.create_task(server.stop(STOP_SECONDS)) for server in self._grpc]
        # A client whose stream ends opens another one at once. It has to hear before that its connection ends, too:
        # what still comes through that one gRPC cancels, and clients do not repeat what was cancelled.
        try:
            await asyncio.sleep(GOODBYE_SECONDS)
        finally:
            self._desks.stop()
            self._extensions.stop()
            self._health.close()
        await asyncio.gather(*closing)
        for tunnel in self._tunnels:
            await tunnel.close()
        for http in self._http:
            await http.stop()
        self._admin.close()


async def _refusal(host: str, port: int) -> str | None:
    """Why nobody can listen there, in the words of the system, which gRPC keeps to itself."""
    try:
        listening = await asyncio.start_server(lambda *_: None, host, port)
    except OSError as error:
        return error.strerror
    listening.close()
    return None
