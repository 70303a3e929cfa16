"""Runs the handlers of `Events` behind a subscription: one topic, one consumer, events of all types in order.

The effect of a handler and the mark that it has run are one transaction. When a message comes again, because another of
its handlers failed or its ack was lost, the marked ones are not run again.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.clock import MICROSECONDS
from inorder.consumers.functions import call, check_function
from inorder.consumers.marks import Marks
from inorder.consumers.store import Conflict, Connection, Store
from inorder.consumers.worker import NEVER_US, Answers, Done, OnError, Run, Worker, trouble_of
from inorder.errors import InvalidArgument, NotFound
from inorder.message import Message
from inorder.metadata import SubscriptionMetadata
from inorder.options import MAX_ATTRIBUTE_VALUE_BYTES, MAX_ATTRIBUTES
from inorder.patterns.dispatcher import Events, Handler
from inorder.pending import Pending

REASON = "dead_letter_reason"  # the attribute of a dead letter that says why it is one
TIDY_US = MICROSECONDS  # after the last message, marks are deleted that nobody needs


class Dispatcher(Worker[Sequence[Message]]):
    """Handlers at work. `open` starts them in a thread, `close` ends it; or use it as `with dispatcher:`.

    A handler takes `(event)` or `(event, connection)`: what it writes through the connection is committed once for each
    message, whatever is delivered twice. What it does elsewhere may be done again after a crash. If it raises, its
    message comes again by the subscription's rules, and then only the handlers run that have not succeeded.

    The subscription must be ordered, so that the next event of a key waits for this one. Messages whose policy is
    `"dead_letter"` go to the topic `dead_letters`, with their key, in their order; the attribute
    `dead_letter_reason` says why.
    """

    def __init__(
        self,
        subscription: Subscription,
        events: Events,
        *,
        store: Store,
        dead_letters: Topic | None = None,
        name: str | None = None,
        batch: int = 100,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(subscription, store, name=name, batch=batch, on_error=on_error)
        if dead_letters is None and "dead_letter" in (events.unknown, events.undecodable):
            which = " and ".join(name for name in ("unknown", "undecodable") if getattr(events, name) == "dead_letter")
            raise InvalidArgument(
                f'dead_letters: a topic is needed for {which}="dead_letter"; give one, or choose another policy'
            )
        own = subscription.metadata().result()
        if dead_letters is not None and dead_letters.name == own.topic and _has(dead_letters, own):
            problem = f"another topic than the subscription's own, not {dead_letters.name!r}: they would come again"
            raise InvalidArgument(f"dead_letters: {problem}")
        if not own.options.enable_message_ordering:
            raise InvalidArgument(
                f"subscription {subscription.name!r} does not keep keys in order, so handlers might run out of order; "
                "create it with enable_message_ordering=True"
            )
        self._events = events
        self._dead_letters = dead_letters
        self._takes_connection: dict[Callable[..., Any], bool] = {}
        self._acked: deque[str] = deque()  # messages whose marks are of no use any more
        self._tidied = False
        for event_type in events.event_types:
            for handler in events.handlers(event_type):
                self._wants_connection(handler)

    def close(self) -> None:
        """Finish the transaction at hand, give back what is not begun, and wait for that."""
        was_open = self._run is not None
        super().close()
        if was_open and not self._store.in_transaction():  # a handler may close, too
            try:
                self._tidy()
            except Exception as error:  # then marks stay for longer than they are needed
                self.tell(error)

    # -- messages ----------------------------------------------------------------------------------

    def prepare(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What they say is of interest only with the marks of what has run for them."""
        return messages

    def work(self, prepared: Sequence[Message], connection: Connection, run: Run) -> Done:
        """All handlers of all messages in one transaction, from which a handler that fails is left out."""
        messages, now_us = prepared, self._clock.now_us()
        marks = Marks(connection, self.name)
        forgotten = self._forget_acked(marks)
        done = marks.of([message.id for message in messages])
        taken = _Taken()
        for message in messages:
            self._dispatch(message, done.get(message.id, ()), connection, taken)
        marks.add(taken.marks, now_us)
        if not run.keep(messages):  # a lease was lost on the way: whoever has got it now is to do it
            raise Conflict(self.name, [message.ordering_key or message.id for message in messages])
        run.look_by(now_us + TIDY_US)
        return partial(self._done, taken, forgotten)

    def _done(self, taken: _Taken, forgotten: int) -> Answers:
        """It was committed."""
        self._take_out(forgotten)
        for error, message in taken.problems:
            self.tell(error, [message])
        self._send_dead_letters(taken)
        return Answers(taken.done, taken.failed, lambda acks: self._remember_acks(taken.done, acks))

    def _dispatch(self, message: Message, done: Collection[str], connection: Connection, taken: _Taken) -> None:
        try:
            plan = self._events.plan(message, done)
            for call in plan.calls:
                with connection.attempt():
                    self._call(call.handler, call.event, connection.raw)
                taken.marks.append((message.id, call.handler.name))
        except Exception as error:
            if trouble_of(self._store, error) is not None:
                raise
            connection.check()  # what others have written before may be gone with it
            taken.failed.append(message)
            taken.problems.append((error, message))
        else:
            if plan.verdict == "dead_letter":
                taken.dead.append((message, plan.reason))
            else:
                taken.done.append(message)

    def _call(self, handler: Handler, event: Any, raw: Any) -> None:
        try:
            arguments = (event, raw) if self._wants_connection(handler) else (event,)
            call(f"handler {handler.name!r}", handler.function, *arguments)
        except Exception as error:
            error.add_note(f"in the handler {handler.name!r} of {handler.event_type!r}")
            raise

    def _wants_connection(self, handler: Handler) -> bool:
        function = handler.function
        if function not in self._takes_connection:
            self._takes_connection[function] = takes_connection(handler)
        return self._takes_connection[function]

    def _send_dead_letters(self, taken: _Taken) -> None:
        """Those that were taken in are done; the others come again."""
        if self._dead_letters is None or not taken.dead:
            return
        sent = [(message, self._send(self._dead_letters, message, reason)) for message, reason in taken.dead]
        self._dead_letters.flush().exception()  # of which the sent ones tell
        for message, pending in sent:
            if (error := pending.exception()) is None:
                taken.done.append(message)
                continue
            taken.failed.append(message)
            self.tell(error, [message])
            if message.ordering_key is not None:
                self._dead_letters.resume_publishing(message.ordering_key)

    def _send(self, topic: Topic, message: Message, reason: str) -> Pending[str]:
        attributes = message.attributes
        if len(attributes) < MAX_ATTRIBUTES:
            attributes[REASON] = reason.encode(errors="replace")[:MAX_ATTRIBUTE_VALUE_BYTES].decode(errors="ignore")
        return topic.publish_message(message.data, attributes, message.ordering_key)

    # -- marks that nobody needs any more ----------------------------------------------------------

    def look(self, run: Run) -> int:
        self._tidy()
        return NEVER_US

    def _tidy(self) -> None:
        if self._tidied and not self._acked:
            return
        with self._store.transaction() as connection:
            marks = Marks(connection, self.name)
            forgotten = self._forget_acked(marks)
            marks.forget_old(self._clock.now_us())
        self._take_out(forgotten)
        self._tidied = True

    def _remember_acks(self, messages: Sequence[Message], acks: Sequence[Pending[None]]) -> None:
        for message, ack in zip(messages, acks, strict=True):
            ack.add_done_callback(partial(self._remember_ack, message.id))

    def _remember_ack(self, message_id: str, ack: Pending[None]) -> None:
        if ack.exception() is None:  # or it comes again, and must be known
            self._acked.append(message_id)

    def _forget_acked(self, marks: Marks) -> int:
        """Forget the marks of what was acked; returns how many that are, to be taken out after the commit."""
        acked = [self._acked[place] for place in range(len(self._acked))]
        marks.forget(acked)
        return len(acked)

    def _take_out(self, count: int) -> None:
        with suppress(IndexError):  # of two who close at once, the other one was faster
            for _ in range(count):
                self._acked.popleft()


@dataclass(slots=True)
class _Taken:
    """What became of the messages of one transaction."""

    done: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    dead: list[tuple[Message, str]] = field(default_factory=list)
    marks: list[tuple[str, str]] = field(default_factory=list)
    problems: list[tuple[Exception, Message]] = field(default_factory=list)


def _has(topic: Topic, subscription: SubscriptionMetadata) -> bool:
    """Whether it is one of this topic: another broker may have a topic of the same name."""
    with suppress(NotFound):
        return subscription in [one.metadata().result() for one in topic.subscriptions().result()]
    return False


def takes_connection(handler: Handler) -> bool:
    """Whether a handler takes `(event, connection)`, and not `(event)`; anything else is refused."""
    function = handler.function
    check_function(f"handler {handler.name!r}", function)
    signature = inspect.signature(function)
    for arguments in (2, 1):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 2
    raise InvalidArgument(f"handler {handler.name!r}: takes (event) or (event, connection), not {signature}")
