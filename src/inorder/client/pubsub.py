"""PubSub: where a program begins."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.pending import Pending
from inorder.transport import Transport
from inorder.transport.embedded import EmbeddedTransport


class PubSub:
    """A broker to work with, chosen by `target`:

    - `None`: the in-memory broker that this whole process shares;
    - `"memory:"`: an in-memory broker of its own, gone when it is closed;
    - a `MessageQueue`: that one, for instance with a manual clock.

    Use it with `with` or `async with`, or call `close`.
    """

    def __init__(self, target: MessageQueue | str | Path | None = None) -> None:
        self._connection = Connection(_transport(target))

    def topic(self, name: str) -> Topic:
        """A handle on a topic, which need not exist yet."""
        return Topic(self._connection, name)

    def subscription(self, name: str) -> Subscription:
        """A handle on an existing subscription. (`topic.subscription(name)` can also create one.)"""
        return Subscription(self._connection, name)

    def topics(self) -> Pending[list[Topic]]:
        return self._connection.transport.list_topics().map(
            lambda found: [Topic(self._connection, metadata.name) for metadata in found]
        )

    def subscriptions(self) -> Pending[list[Subscription]]:
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
    raise InvalidArgument(f'target: None, "memory:" or a MessageQueue, not {target!r}')
