"""Runs a pattern behind a subscription, its state beside the effect: both are in the database, or neither is.

A batch of messages is one transaction: read the states of their keys, take the step, let the handler write what
the step lets through, write the states, commit; then the messages are acked. A crash in between has changed
nothing, and the messages come again. What is parked is in the state, so its message is acked too.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from inorder.client.subscription import Batches, Subscription
from inorder.clock import MICROSECONDS, Timer
from inorder.consumers.store import Change, Conflict, States, Store, Stored
from inorder.errors import FailedPrecondition, InorderError, InvalidArgument, InvalidEvent
from inorder.message import Message
from inorder.options import check_whole
from inorder.patterns.step import APPLIED, GAP, QUARANTINED, RETRY, Batch, Fate, Missing, Pattern, Step, check_event

S = TypeVar("S")

TRIES = 10  # of a transaction that others were faster than
WAIT_US = MICROSECONDS  # before the store is asked again after an error
NEVER_US = 2**62

_log = logging.getLogger(__name__)


class StoredPattern(Pattern[S], Protocol[S]):
    """A pattern whose state can be stored."""

    def dump(self, state: S) -> bytes: ...

    def load(self, data: bytes) -> S: ...


@dataclass(frozen=True, slots=True)
class Applied:
    """An event to apply: what was read of it, and the message it came in, perhaps long ago."""

    key: str
    fields: tuple[Any, ...]  # what `read` returned; the first is the key
    fate: Fate  # "released", or "late" if its turn was over and the policy lets it through
    message_id: str
    data: bytes
    attributes: Mapping[str, str]

    def json(self) -> Any:
        """The data, read as JSON."""
        return json.loads(self.data)


class _Envelope(NamedTuple):
    """What is kept of a message while its event is parked: the last field of the event, in plain values."""

    message_id: str
    data: bytes
    attributes: dict[str, str]


Read = Callable[[Message], tuple[Any, ...]]
Apply = Callable[[Applied, Any], object]
OnGap = Callable[[Missing, Any], object]
OnError = Callable[[BaseException, Sequence[Message]], object]


class Consumer(Generic[S]):
    """A pattern at work. `open` starts it in a thread of its own, `close` ends it; or use it as `with consumer:`.

    `read` makes an event of a message: a tuple, the key first, then what the pattern reads. `apply(event, connection)`
    is called, in order, for what the pattern lets through, within the transaction: what it writes there is
    committed together with the state, once, whatever is delivered twice. A message that `read` refuses, or that
    the pattern quarantines, goes to the table `inorder_quarantine`. If `apply` raises, the messages it failed
    for come again by the subscription's rules, and the others of the batch are not held up.

    Several consumers of one `name` may run at once, in any number of processes.
    """

    def __init__(
        self,
        subscription: Subscription,
        pattern: StoredPattern[S],
        *,
        store: Store,
        read: Read,
        apply: Apply,
        name: str | None = None,
        batch: int = 100,
        on_gap: OnGap | None = None,
        on_error: OnError | None = None,
    ) -> None:
        check_whole("batch", batch)
        for what, function in (("read", read), ("apply", apply)):
            if not callable(function):
                raise InvalidArgument(f"{what}: something to call, not {function!r}")
        self.name = subscription.name if name is None else name
        self._subscription = subscription
        self._clock = subscription.clock
        self._pattern = pattern
        self._store = store
        self._read = read
        self._apply = apply
        self._on_gap = on_gap
        self._on_error = on_error
        self._batch = batch
        self._batches: Batches | None = None
        self._thread: threading.Thread | None = None
        self._timer: Timer | None = None
        self._timer_us = NEVER_US
        self._wake_us = 0  # when to look into the store for what is due
        refuse_livelock(subscription, pattern)

    # -- life --------------------------------------------------------------------------------------

    def open(self) -> Consumer[S]:
        if self._thread is not None:
            raise FailedPrecondition(f"consumer {self.name!r} is open already")
        self._batches = self._subscription.batches(self._batch)
        self._thread = threading.Thread(target=self._run, args=(self._batches,), name="inorder-consumer", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Finish the transaction at hand, give back what is not begun, and wait for that."""
        thread, self._thread = self._thread, None
        if thread is None or self._batches is None:
            return
        self._batches.close()
        if thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Consumer[S]:
        return self if self._thread is not None else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, batches: Batches) -> None:
        try:
            batches.poke()  # what was parked before we came may be due
            for messages in batches:
                if messages:
                    self.handle(messages, batches.holds)
                self._keep_time(batches)
        except InorderError as error:  # the broker does not know us any more
            self._tell(error, [])
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _keep_time(self, batches: Batches) -> None:
        """Do what is due, and come back when more is."""
        try:
            if self._wake_us <= self._clock.now_us():
                self.wake_up()
        except Exception as error:  # the database, for example: then later
            self._tell(error, [])
            self._wake_us = self._clock.now_us() + WAIT_US
        if self._wake_us != self._timer_us:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_us = self._wake_us
            self._timer = self._clock.call_at(self._wake_us, batches.poke) if self._wake_us < NEVER_US else None

    # -- messages ----------------------------------------------------------------------------------

    def handle(self, messages: Sequence[Message], holds: Callable[[Message], bool]) -> None:
        """Take messages through the pattern and answer them. What fails is tried alone, so that others go on."""
        try:
            self._handle(messages, holds)
        except Exception as error:
            if len(messages) == 1:
                messages[0].nack()
                self._tell(error, messages)
                return
            for message in messages:
                self.handle([message], holds)

    def _handle(self, messages: Sequence[Message], holds: Callable[[Message], bool]) -> None:
        for left in reversed(range(TRIES)):
            ours = [message for message in messages if holds(message)]  # another one will do the rest
            try:
                again = self._transact(ours, holds)
            except Conflict:
                if not left:
                    raise
            else:
                for message in ours:
                    message.nack() if message.id in again else message.ack()
                return

    def _transact(self, messages: Sequence[Message], holds: Callable[[Message], bool]) -> set[str]:
        """The ids of those that were not taken, and must come again."""
        now_us = self._clock.now_us()
        with self._store.transaction() as connection:
            states = States(connection, self.name)
            events, fences = self._events(messages, states, now_us)
            stored = states.load(fences.keys())
            batch = self._step(stored, events, states, now_us)
            self._take_effect(batch.emit, connection.raw, states, now_us)
            states.save(
                {
                    key: Change(
                        stored[key].version if key in stored else None,
                        fences[key],
                        None if state is None else self._pattern.dump(state),
                        batch.wakes.get(key),
                    )
                    for key, state in batch.states.items()
                }
            )
            if not all(map(holds, messages)):  # a lease was lost on the way: whoever has got it now is to do it
                raise Conflict(self.name, fences.keys())
        self._wake_us = min([self._wake_us, *batch.wakes.values()])
        return {_envelope(event).message_id for fate, event in batch.emit if fate == RETRY}

    def _events(
        self, messages: Sequence[Message], states: States, now_us: int
    ) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
        """The events of messages, and for each key the number of its newest delivery."""
        events: list[tuple[Any, ...]] = []
        fences: dict[str, int] = {}
        for message in messages:
            envelope = _Envelope(message.id, message.data, message.attributes)
            try:
                event = (*self._read(message), tuple(envelope))
                check_event(event, 2)
            except Exception as error:
                _quarantine(states, message.ordering_key or "", envelope, f"cannot be read: {error}", now_us)
                continue
            events.append(event)
            fences[event[0]] = max(fences.get(event[0], 0), message.fencing_token)
        return events, fences

    def _step(
        self, stored: Mapping[str, Stored], events: list[tuple[Any, ...]], states: States, now_us: int
    ) -> Batch[S]:
        """What the pattern says to all events that it can read."""
        known = {key: self._pattern.load(row.state) for key, row in stored.items()}
        while True:
            try:
                return self._pattern.on_messages(known, events, now_us)
            except InvalidEvent as error:
                _quarantine(states, error.event[0], _envelope(error.event), f"cannot be read: {error}", now_us)
                events = [event for event in events if event is not error.event]

    def _take_effect(self, emitted: Iterable[tuple[Fate, Any]], raw: Any, states: States, now_us: int) -> None:
        for fate, event in emitted:
            if fate in APPLIED:
                envelope = _envelope(event)
                self._apply(Applied(event[0], event[:-1], fate, *envelope), raw)
            elif fate == QUARANTINED:
                _quarantine(states, event[0], _envelope(event), "quarantined by the pattern", now_us)
            elif fate == GAP and self._on_gap is not None:
                self._on_gap(event, raw)

    # -- time --------------------------------------------------------------------------------------

    def wake_up(self) -> None:
        """Do what has fallen due without a message, such as giving up a gap."""
        while True:
            with self._store.transaction() as connection:
                states = States(connection, self.name)
                due = states.due(self._clock.now_us(), self._batch)
                next_us = states.next_wake_us()
            if not due:
                self._wake_us = NEVER_US if next_us is None else next_us
                return
            for key in due:
                with suppress(Conflict):  # somebody else was faster
                    self._wake(key)

    def _wake(self, key: str) -> None:
        now_us = self._clock.now_us()
        with self._store.transaction() as connection:
            states = States(connection, self.name)
            row = states.load([key]).get(key)
            if row is None:
                return
            step: Step[S] = self._pattern.on_timer(self._pattern.load(row.state), now_us)
            self._take_effect(step.emit, connection.raw, states, now_us)
            state = None if step.state is None else self._pattern.dump(step.state)
            states.save({key: Change(row.version, row.fence, state, step.wake_at_us)})

    def _tell(self, error: BaseException, messages: Sequence[Message]) -> None:
        if self._on_error is None:
            _log.error("consumer %r: %s", self.name, error, exc_info=error)
            return
        try:
            self._on_error(error, messages)
        except Exception:
            _log.exception("the error handler of consumer %r failed", self.name)


def _envelope(event: tuple[Any, ...]) -> _Envelope:
    return _Envelope(*event[-1])


def _quarantine(states: States, key: str, envelope: _Envelope, reason: str, now_us: int) -> None:
    states.quarantine(
        {
            "message_id": envelope.message_id,
            "entity": key,
            "reason": reason,
            "since_us": now_us,
            "data": envelope.data,
            "attributes": json.dumps(envelope.attributes),
        }
    )


def refuse_livelock(subscription: Subscription, pattern: object) -> None:
    """Refuse a pattern that sends messages back, behind a subscription that keeps each key in order.

    The message that is sent back blocks its key, and the one that it waits for may stand behind it, for ever.
    """
    if not getattr(pattern, "may_retry", False):
        return
    options = subscription.metadata().result().options
    if options.enable_message_ordering:
        raise InvalidArgument(
            f"{type(pattern).__name__}: it may send a message back until another one has come, but subscription "
            f"{subscription.name!r} keeps keys in order, so that one may wait behind it for ever; park what comes "
            'early (future="park", when_full="gap"), or subscribe without enable_message_ordering'
        )
