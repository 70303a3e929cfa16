"""A subscription as users see it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

from inorder.client.connection import Connection
from inorder.client.iteration import (
    ColumnIteration,
    InTask,
    InThread,
    Iteration,
    MessageIteration,
    TaskColumns,
    TaskIteration,
    ThreadColumns,
    ThreadIteration,
)
from inorder.client.listeners import Handler, Listeners, finish_here
from inorder.client.stock import nobodys
from inorder.client.stream import Stream, open_stream
from inorder.clock import Clock
from inorder.errors import FailedPrecondition, SubscriptionNotFound
from inorder.message import Gap, Leased, Message
from inorder.metadata import BlockedKey, Metrics, SubscriptionMetadata, Unacked
from inorder.options import SubscriptionOptions, build, check_flag, check_name, check_whole, named
from inorder.pending import Pending

H = TypeVar("H", bound=Handler)
Loop = TypeVar("Loop", bound=Iteration[Any])
T = TypeVar("T")
In = TypeVar("In", bound=Iteration[Any])


class Subscription:
    """A handle on a subscription: it need not exist yet. Listeners and `open` belong to this handle."""

    def __init__(self, connection: Connection, name: str, topic: str | None = None) -> None:
        self.name = check_name("subscription", name)
        self.topic = topic
        self._connection = connection
        self._transport = connection.transport
        self._listeners = Listeners(name)
        self._options: dict[str, Any] = {}  # set before the subscription exists
        self._stream: Stream | None = None
        self._opening = threading.RLock()
        self._iterations: set[Iteration[Any]] = set()

    @property
    def clock(self) -> Clock:
        """The one that the broker goes by."""
        return self._transport.clock

    # -- existence and options ---------------------------------------------------------------------

    def create(
        self, options: SubscriptionOptions | Mapping[str, Any] | None = None, /, **more: Any
    ) -> Pending[Subscription]:
        """Create the subscription; it gets what is published from now on."""

        def create() -> Pending[None]:
            if self.topic is None:
                raise FailedPrecondition(
                    f"subscription {self.name!r} names no topic: create it by topic.subscription({self.name!r})"
                )
            given = {**self._options, **named(SubscriptionOptions, options, more)}
            return self._transport.create_subscription(self.name, self.topic, build(SubscriptionOptions, given))

        return Pending.run(create).then(lambda created: created).map(lambda _: self)

    def exists(self) -> Pending[bool]:
        """Whether the subscription was created, and not deleted since."""
        return self._transport.get_subscription(self.name).map(lambda metadata: metadata is not None)

    def delete(self) -> Pending[None]:
        """Delete the subscription and all that waits in it."""
        return self._transport.delete_subscription(self.name)

    def metadata(self) -> Pending[SubscriptionMetadata]:
        """Its topic, its options and when it was created. `NotFound` if it is not there."""

        def found(metadata: SubscriptionMetadata | None) -> SubscriptionMetadata:
            if metadata is None:
                raise SubscriptionNotFound(self.name)
            return metadata

        return self._transport.get_subscription(self.name).map(found)

    def set_options(
        self, options: SubscriptionOptions | Mapping[str, Any] | None = None, /, **more: Any
    ) -> Pending[None]:
        """Change options; of a subscription that does not exist yet, those it will be created with."""

        def change(exists: bool) -> Pending[None]:
            changes = named(SubscriptionOptions, options, more)
            if exists:
                return self._transport.update_subscription(self.name, changes)
            build(SubscriptionOptions, {**self._options, **changes})
            self._options.update(changes)
            return Pending.of(None)

        return self.exists().then(change)

    # -- handlers ----------------------------------------------------------------------------------

    @overload
    def on(self, event: str) -> Callable[[H], H]: ...

    @overload
    def on(self, event: str, handler: Handler) -> Subscription: ...

    def on(self, event: str, handler: Handler | None = None) -> Any:
        """Listen to "message", "error", "gap" or "close"; without a handler, a decorator.

        The message handler may be `def` (it runs in a thread) or `async def` (it runs on the loop
        that calls `open`). It answers by `message.ack()` or `message.nack()`; an exception is a
        nack. If it returns without an answer, the message comes again when its lease is over.
        """
        if handler is not None:
            self._listen(event, handler)
            return self

        def decorate(function: H) -> H:
            self._listen(event, function)
            return function

        return decorate

    def _listen(self, event: str, handler: Handler) -> None:
        tracing = self._connection.tracing
        if tracing is not None and event == "message" and callable(handler):
            handler = tracing.handling(self.name, handler)
        self._listeners.add(event, handler)

    def open(self) -> Subscription:
        """Start handling messages: one at a time per key, side by side across keys."""
        with self._opening:
            if self._is_open():
                raise FailedPrecondition(f"subscription {self.name!r} is open already; use another handle for another")
            stream = self._stream = open_stream(self._transport, self.name, self._listeners, self._connection.opened)
        stream.closed.add_done_callback(lambda _: self._connection.forget(stream))
        return self

    def close(self) -> Pending[None]:
        """Finish what runs, give the rest back, end loops over this handle.

        For a handler that closes it is done at once, or the handler would wait for itself; "close" tells the end.
        """
        if self._connection.is_the_parents:  # as what is open here is, and its threads: nobody would ever end it
            return Pending.of(None)
        gone_back = [iteration.close() for iteration in tuple(self._iterations)]
        with self._opening:  # its first handler may be faster than `open`, and close it
            stream = self._stream
        closed = Pending.of(None) if stream is None else stream.close()
        return Pending.all([closed, *gone_back]).map(lambda _: None) if gone_back else closed

    def _is_open(self) -> bool:
        """Whether messages are handled: nobody has closed it, and the broker has not ended it either."""
        stream = self._stream
        return stream is not None and not stream.closed.done()

    def _is_at_work(self) -> bool:
        """Whether it is one of its own handlers or listeners that asks."""
        stream = self._stream
        return stream is not None and stream.at_work()

    # -- without handlers --------------------------------------------------------------------------

    def pull(self, max_messages: int = 1) -> Pending[list[Message]]:
        """Up to so many messages that are there now, leased. "gap" listeners are told what is missing."""
        told: list[Pending[None]] = []

        def tell(gap: Gap) -> None:
            told.append(finish_here(self._listeners.tell_gap(gap)))

        pulled = self._transport.pull(self.name, max_messages, tell)
        if not told:
            return pulled
        # On a loop, `async def` listeners are only begun by now: what comes behind a gap waits until they know of it.
        return pulled.then(lambda messages: Pending.all(told).map(lambda _: messages))

    def __iter__(self) -> Iterator[Message]:
        """Messages, as they come, until `close`. Answer each before asking for the next."""
        return (message for batch in self.batches(1) for message in batch)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages, as they come, until `close`. Answer each before asking for the next."""
        async for batch in self.batches(1):
            for message in batch:
                yield message

    def batches(self, max_messages: int = 100, *, one_per_key: bool = True, ahead: int = 0) -> Batches:
        """Lists of messages, as they come, until `close`: for whoever can do many at once, as a database can.

        Of a key a list has no more than one; with `one_per_key=False` as many as `max_outstanding_per_key`, in
        order, for whoever keeps that order. Read it by `for` or by `async for`, and answer for all before asking
        for the next list.

        As many lists as `ahead` says may come, and are kept leased, while the loop works on one: from a server that
        saves the wait for each, but other consumers do not get what waits here.
        """
        check_whole("max_messages", max_messages)
        check_flag("one_per_key", one_per_key)
        check_whole("ahead", ahead, at_least=0)
        return Batches(self, max_messages, one_per_key, ahead)

    def columns(self, max_messages: int = 1_000, *, ahead: int = 0) -> ColumnBatches:
        """Lists of messages, as they come, until `close`, as columns: for whoever needs no object of each message.

        Of a key a list has as many as `max_outstanding_per_key` lets out, in order. A gap record is among them, and its
        data is a `Gap`. `ahead` is as in `batches`. Answer for all of a list before asking for the next: what is not
        answered by then has failed.
        """
        check_whole("max_messages", max_messages)
        check_whole("ahead", ahead, at_least=0)
        return ColumnBatches(self, max_messages, ahead)

    def _begin(self, kind: Callable[..., Loop], *how: Any) -> Loop:
        iteration = kind(self._transport, self.name, self._listeners, *how)
        self._connection.opened(iteration)
        self._iterations.add(iteration)
        iteration.closed.add_done_callback(lambda _: self._forget(iteration))
        return iteration

    def _end_soon(self, iteration: Iteration[Any]) -> None:
        # A loop that was left is ended by the garbage collector, which may run in the middle of anything,
        # with any lock held. So the work is left to the clock's thread.
        self._transport.clock.call_at(0, partial(self._end, iteration))

    def _end(self, iteration: Iteration[Any]) -> None:
        iteration.leave()
        self._forget(iteration)

    def _forget(self, iteration: Iteration[Any]) -> None:
        self._connection.forget(iteration)
        self._iterations.discard(iteration)

    # -- keys, replay and what is going on ---------------------------------------------------------

    def seek(self, *, time: datetime | float | None = None, position: int | None = None) -> Pending[None]:
        """Deliver again from a time or a position on; what is older counts as acked."""
        return self._transport.seek(self.name, position, time)

    def blocked_keys(self) -> Pending[list[BlockedKey]]:
        """The keys that wait for their first message, and why."""
        return self._transport.blocked_keys(self.name)

    def resume_key(self, ordering_key: str) -> Pending[None]:
        """Try a parked key, or one that waits for its retry, again: as if its first message had never failed."""
        return self._transport.resume_key(self.name, ordering_key)

    def skip(self, ordering_key: str) -> Pending[str]:
        """Give up the first message of a key that is parked or waits for its retry; returns its id. The key goes on."""
        return self._transport.skip(self.name, ordering_key)

    def unacked(self) -> Pending[Unacked]:
        """What is still to be acked, by key: so that somebody can wait until all before a position is done."""
        return self._transport.unacked(self.name)

    def metrics(self) -> Pending[Metrics]:
        """Counters, backlog and head-of-line times of this subscription."""
        return self._transport.metrics(self.name)

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, topic={self.topic!r})"


class _Lists(Generic[T, In]):
    """The messages of a subscription list by list; one loop, which ends when this or the subscription is closed."""

    _name: ClassVar[str]  # of the call that makes it

    def __init__(
        self,
        subscription: Subscription,
        in_thread: Callable[..., InThread[T]],
        in_task: Callable[..., InTask[T]],
        *how: Any,
    ) -> None:
        self._subscription = subscription
        self._in_thread = in_thread
        self._in_task = in_task
        self._how = how
        self._iteration: In | None = None
        self._closed = False

    def __iter__(self) -> Iterator[T]:
        iteration = self._begin(self._in_thread)
        try:
            while (found := iteration.next()) is not None:
                yield found
        finally:
            self._subscription._end_soon(iteration)

    async def __aiter__(self) -> AsyncIterator[T]:
        iteration = self._begin(self._in_task)
        try:
            while (found := await iteration.next()) is not None:
                yield found
        finally:
            self._subscription._end_soon(iteration)

    @property
    def closed(self) -> bool:
        """Whether the list at hand is the last one."""
        return self._closed or (self._iteration is not None and self._iteration.ended)

    def close(self) -> None:
        """End the loop when it asks for the next list."""
        self._closed = True
        if self._iteration is not None:
            self._iteration.close()

    def _begin(self, kind: Callable[..., Loop]) -> Loop:
        if self._iteration is not None:
            raise FailedPrecondition(f"{self._name} can be read by one loop; call {self._name}() again for another")
        iteration = self._subscription._begin(kind, *self._how)
        self._iteration = cast(In, iteration)  # which both kinds of loop are
        if self._closed:
            iteration.close()
        return iteration


class Batches(_Lists[list[Message], MessageIteration]):
    """The messages of a subscription by lists."""

    _name = "batches"

    def __init__(self, subscription: Subscription, *how: Any) -> None:
        super().__init__(subscription, ThreadIteration, TaskIteration, *how)
        self._poked = False

    def poke(self) -> None:
        """Have the loop go round, with an empty list if there are no messages. Returns at once, on any thread."""
        self._poked = True  # perhaps before there is a loop
        if self._iteration is not None:
            self._iteration.poke()

    def holds(self, message: Message) -> bool:
        """Whether the lease of a message of the list at hand is still ours, as far as is known here."""
        return self._iteration is not None and self._iteration.holds(message)

    def held(self, messages: Iterable[Message]) -> list[Message]:
        """Those of the list at hand for which `holds` is true."""
        return [] if self._iteration is None else self._iteration.held(messages)

    def keep(self, messages: Iterable[Message]) -> bool:
        """Extend the leases of messages of the list at hand; whether the broker says that all are still ours.

        If it does not answer in time, they are given back, and `DeadlineExceeded` is raised.
        """
        return self._iteration is not None and self._iteration.keep(messages)

    def ack(self, messages: Iterable[Message]) -> Pending[list[None]]:
        """Ack messages of the list at hand in one go: much faster than one by one."""
        return Pending.of([]) if self._iteration is None else self._iteration.ack(messages)

    def answer(self, done: Iterable[Message] = (), failed: Iterable[Message] = ()) -> list[Pending[None]]:
        """Ack and nack messages of the list at hand, in one call to the broker; returns the answers to the acks."""
        return [] if self._iteration is None else self._iteration.answer(done, failed)

    def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages of the list at hand that nobody has begun: they come again at once, and have not failed."""
        if self._iteration is not None:
            self._iteration.give_back(messages)

    def set_aside(self) -> None:
        """Go on to the next list while this one is still at hand: until `let_go`, which is after its answers."""
        if self._iteration is not None:
            self._iteration.set_aside()

    def let_go(self) -> None:
        """What was set aside is answered; the next of its keys may come."""
        if self._iteration is not None:
            self._iteration.let_go()

    def _begin(self, kind: Callable[..., Loop]) -> Loop:
        iteration = super()._begin(kind)
        if self._poked:
            self.poke()
        return iteration


class ColumnBatches(_Lists[Leased, ColumnIteration]):
    """The messages of a subscription as columns.

    A list is answered whole, or in parts: `columns.ack(leased.without(failed))`.
    """

    _name = "columns"

    def __init__(self, subscription: Subscription, *how: Any) -> None:
        super().__init__(subscription, ThreadColumns, TaskColumns, *how)

    def ack(self, leased: Leased) -> Pending[None]:
        """Messages of the list at hand are done; `InvalidAckId` names those that are not ours, or no longer."""
        return nobodys(leased) if self._iteration is None else self._iteration.ack(leased)

    def nack(self, leased: Leased) -> Pending[None]:
        """Messages of the list at hand have failed: they come again, in their places."""
        return nobodys(leased) if self._iteration is None else self._iteration.nack(leased)
