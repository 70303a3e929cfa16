"""A broker behind a server, as far as a client is concerned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

from inorder.broker import microseconds
from inorder.clock import SYSTEM_CLOCK, Clock
from inorder.errors import Closed, DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable
from inorder.forks import stays_here
from inorder.message import Batch, Gap, Message, check_ordering_key
from inorder.metadata import BlockedKey, Metrics, SubscriptionMetadata, TopicMetadata, Unacked
from inorder.options import SubscriptionOptions, TopicOptions, check_whole
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport import Deliveries
from inorder.transport.address import Address
from inorder.transport.grpc import channel
from inorder.transport.grpc.calls import DESCRIBE, Calls, UnknownCall
from inorder.transport.grpc.outlets import Outlets
from inorder.transport.grpc.own import OwnServer
from inorder.transport.grpc.publishing import Outlet

T = TypeVar("T")


class Server(Protocol):
    """What both kinds of servers can be asked."""

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]: ...

    def delete_topic(self, name: str) -> Pending[None]: ...

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]: ...

    def list_topics(self) -> Pending[list[TopicMetadata]]: ...

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]: ...

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]: ...

    def delete_subscription(self, name: str) -> Pending[None]: ...

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]: ...

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]: ...

    def outlet(self, topic: str) -> Outlet: ...

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]: ...

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> Deliveries: ...

    def seek(self, subscription: str, position: int | None, time_us: int | None) -> Pending[None]: ...

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]: ...

    def resume_key(self, subscription: str, key: str) -> Pending[None]: ...

    def skip(self, subscription: str, key: str) -> Pending[str]: ...

    def unacked(self, subscription: str) -> Pending[Unacked]: ...

    def metrics(self, subscription: str) -> Pending[Metrics]: ...


class GrpcTransport:
    """Calls go over the wire. What the server is, it is asked when it is needed first."""

    answers_at_once = False
    in_order = True

    def __init__(self, target: Address, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._target = target
        self._channel = channel.join(target)
        self._calls = Calls(self._channel, target.timeout_seconds)
        self._lock = threading.Lock()
        self._server: Pending[Server] | None = None
        self._outlets = Outlets(lambda topic: self._with_server(lambda server: Pending.of(server.outlet(topic))))
        self._closed = ""  # or why it is
        stays_here(self)

    def _leave_to_parent(self) -> None:
        # A thread that is not here may hold any lock of ours, or of gRPC's: nothing of it is touched any more.
        self._lock = threading.Lock()
        self._closed = "the connection did not survive a fork: it is the parent's; make another PubSub in this process"

    def _with_server(self, call: Callable[[Server], Pending[T]]) -> Pending[T]:
        """What the server answers, once it is known which kind it is."""
        with self._lock:
            if self._closed:
                return Pending.failed(Closed(self._closed))
            server = self._server
            if server is None or (server.done() and server.exception() is not None):
                server = self._server = self._described()
        return server.then(call)

    def _described(self) -> Pending[Server]:
        described: Pending[Server] = Pending()

        def answered(asked: Pending[bytes]) -> None:
            error = asked.exception()
            if isinstance(error, UnknownCall):
                Pending.run(self._plain_server).hand_to(described)
            elif error is not None:
                described.set_exception(error)
            else:
                server = v1.Description.FromString(asked.result())
                described.set_result(OwnServer(self._calls, self._target, self.clock, server))

        self._calls.repeated(DESCRIBE, v1.DescribeRequest().SerializeToString()).add_done_callback(answered)
        return described

    def _plain_server(self) -> Server:
        if self._target.producer is not None:
            raise FailedPrecondition(
                f"{self._target.address} knows google.pubsub.v1 only, and no producers: leave the option producer out"
            )
        # Google's package, which takes a second to import, is for whoever needs it.
        try:
            from inorder.transport.grpc.plain import PlainServer
        except ModuleNotFoundError as error:
            raise FailedPrecondition(
                f"{self._target.address} knows google.pubsub.v1 only, for which this client needs "
                f"`pip install google-cloud-pubsub`: {error}"
            ) from None
        return PlainServer(self._calls, self._target, self.clock)

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]:
        return self._with_server(lambda server: server.create_topic(name, options))

    def delete_topic(self, name: str) -> Pending[None]:
        return self._with_server(lambda server: server.delete_topic(name))

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]:
        return self._with_server(lambda server: server.get_topic(name))

    def list_topics(self) -> Pending[list[TopicMetadata]]:
        return self._with_server(lambda server: server.list_topics())

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]:
        return self._with_server(lambda server: server.create_subscription(name, topic, options))

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]:
        return self._with_server(lambda server: server.update_subscription(name, changes))

    def delete_subscription(self, name: str) -> Pending[None]:
        return self._with_server(lambda server: server.delete_subscription(name))

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]:
        return self._with_server(lambda server: server.get_subscription(name))

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]:
        return self._with_server(lambda server: server.list_subscriptions(topic))

    # -- messages ----------------------------------------------------------------------------------

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        if self._closed:
            return Pending.failed(Closed(self._closed))
        if not batch[0]:
            return Pending.of([])
        return self._outlets.publish(topic, batch)

    def stop_waiting(self) -> None:
        if not self._closed:
            self._outlets.stop_waiting()

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        return self._with_server(lambda server: server.pull(subscription, max_messages, on_gap))

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> Deliveries:
        """Waits until the server has answered: what a consumer goes by is known to it alone."""
        server = self._with_server(Pending.of)
        try:
            known = server.result(self._target.timeout_seconds)
        except DeadlineExceeded:
            raise Unavailable(f"no answer from {self._target.address}") from None
        return known.deliveries(subscription, wake, report, eager)

    def seek(self, subscription: str, position: int | None, time: datetime | float | None) -> Pending[None]:
        def seek() -> Pending[None]:
            if (position is None) == (time is None):
                raise InvalidArgument("seek: give either a position or a time")
            if position is not None:
                check_whole("position", position, at_least=0)
            time_us = None if time is None else microseconds(time)
            return self._with_server(lambda server: server.seek(subscription, position, time_us))

        return Pending.run(seek).then(lambda sought: sought)

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]:
        return self._with_server(lambda server: server.blocked_keys(subscription))

    def resume_key(self, subscription: str, key: str) -> Pending[None]:
        checked = Pending.run(lambda: check_ordering_key(key))
        return checked.then(lambda _: self._with_server(lambda server: server.resume_key(subscription, key)))

    def skip(self, subscription: str, key: str) -> Pending[str]:
        checked = Pending.run(lambda: check_ordering_key(key))
        return checked.then(lambda _: self._with_server(lambda server: server.skip(subscription, key)))

    def unacked(self, subscription: str) -> Pending[Unacked]:
        return self._with_server(lambda server: server.unacked(subscription))

    def metrics(self, subscription: str) -> Pending[Metrics]:
        return self._with_server(lambda server: server.metrics(subscription))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = "this PubSub is closed"
        self._calls.close()
        channel.leave(self._channel)
