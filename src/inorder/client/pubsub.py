"""PubSub: where a program begins."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.client.tracing import Tracing
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.pending import Pending
from inorder.transport import Transport
from inorder.transport.address import folder_of, is_address, parse, without_options
from inorder.transport.embedded import EmbeddedTransport


class PubSub:
    """A broker to work with, chosen by `target`:

    - `None`: the in-memory broker that this whole process shares;
    - `"memory:"`: an in-memory broker of its own, gone when it is closed;
    - `"file:./data"` or a `pathlib.Path`: a broker whose memory is that folder, which one process owns at
      a time; `"file:./data?journal=sqlite&sync=interval"` chooses how it is kept;
    - `"grpc://host:port"`: a server in another process, on this machine or another, which keeps the same promises;
      `"grpc://host:port?project=shop&timeout=60"` chooses the project of its names, and for how many seconds a call
      is tried while the server cannot be reached;
    - a `MessageQueue`: that one, for instance with a manual clock.

    With `tracing=True`, what is published and handled makes spans of OpenTelemetry, which the extra
    `inorder[tracing]` brings: one trace for a message, from who published it to who handled it.

    Use it with `with` or `async with`, or call `close`.
    """

    def __init__(self, target: MessageQueue | str | Path | None = None, *, tracing: bool = False) -> None:
        traces = Tracing() if tracing else None
        self._connection = Connection(_transport(target), traces)

    def topic(self, name: str) -> Topic:
        """A handle on a topic, which need not exist yet."""
        return Topic(self._connection, name)

    def subscription(self, name: str) -> Subscription:
        """A handle on an existing subscription. (`topic.subscription(name)` can also create one.)"""
        return Subscription(self._connection, name)

    def topics(self) -> Pending[list[Topic]]:
        """All topics, by name."""
        return self._connection.transport.list_topics().map(
            lambda found: [Topic(self._connection, metadata.name) for metadata in found]
        )

    def subscriptions(self) -> Pending[list[Subscription]]:
        """All subscriptions, by name."""
        return self._connection.transport.list_subscriptions(None).map(
            lambda found: [Subscription(self._connection, metadata.name, metadata.topic) for metadata in found]
        )

    def close(self) -> Pending[None]:
        """Finish running handlers, return what was not begun, send what is collected.

        For a handler that closes it is done at once, or the handler would wait for itself.
        """
        return self._connection.close()

    def __enter__(self) -> PubSub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = self.close()
        if closing.done() or not self._connection.needs_this_thread():
            closing.result()
        elif kind is None:
            raise FailedPrecondition(
                "handlers are at work on this loop, and waiting for them would stop it: use `async with`"
            )

    async def __aenter__(self) -> PubSub:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _transport(target: MessageQueue | str | Path | None) -> Transport:
    if target is None:
        return EmbeddedTransport(MessageQueue.get_instance(), owned=False)
    if isinstance(target, MessageQueue):
        return EmbeddedTransport(target, owned=False)
    if target == "memory:":
        return EmbeddedTransport(MessageQueue(), owned=True)
    if str(target).startswith("memory:"):
        raise InvalidArgument("target: 'memory:' stands alone, as a broker in memory has no folder and no options")
    if isinstance(target, Path):
        return EmbeddedTransport(MessageQueue.open(target), owned=True)
    if str(target).startswith("file:"):
        return EmbeddedTransport(_open(str(target)), owned=True)
    if is_address(str(target)):
        return _connect(str(target))
    raise InvalidArgument(
        'target: None, "memory:", "file:FOLDER", "grpc://HOST:PORT", a path or a MessageQueue, '
        f"not {without_options(str(target))!r}"
    )


def _connect(target: str) -> Transport:
    # Imported by whoever needs it: gRPC costs a tenth of a second, and is an extra.
    try:
        from inorder.transport.grpc.transport import GrpcTransport
    except ModuleNotFoundError as error:
        server = target.partition("?")[0]  # what follows may be secret
        raise FailedPrecondition(f"target {server!r} needs `pip install 'inorder[client]'`: {error}") from None
    return GrpcTransport(parse(target))


def _open(target: str) -> MessageQueue:
    """A durable broker by its address: `file:./data`, with options as in `file:./data?journal=sqlite&sync=interval`."""
    folder, given = folder_of(target)
    options: dict[str, Any] = {**given}
    if "sync_seconds" in options:
        try:
            options["sync_seconds"] = float(options["sync_seconds"])
        except ValueError:
            raise InvalidArgument(f"sync_seconds: a number, not {options['sync_seconds']!r}") from None
    return MessageQueue.open(folder, **options)
