"""What one consumer holds: taken within flow control, kept leased, given out one at a time per key.

The handlers and the iterators stand on this. It owns the order and the leases; who calls it owns the
threads and the tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from inorder.clock import MICROSECONDS, Timer
from inorder.core.lanes import FreeLanes, Lanes
from inorder.errors import Closed, InorderError, InvalidAckId
from inorder.message import KEY, POSITION, SIZE, Message
from inorder.options import FlowControl, SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Transport

TAKE_AT_ONCE = 100  # more than that at a time gains nothing and makes other consumers wait

Held: TypeAlias = tuple[int, str, Message]  # position, key, message: what lanes need to know

_log = logging.getLogger(__name__)


class Intake:
    """The messages of one consumer, from the broker until they are answered. Thread-safe.

    A message counts against flow control until it is acked, nacked or its lease is over. Its lease is
    extended while it waits here and while its handler runs; once the handler has returned without
    an answer, the lease runs out and the message comes again.
    """

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        options: SubscriptionOptions,
        wake: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        self._clock = transport.clock
        self._deadline_seconds = options.ack_deadline_seconds
        self._deadline_us = round(options.ack_deadline_seconds * MICROSECONDS)
        self._flow = options.flow_control or FlowControl()
        self._wake = wake
        self._lock = threading.RLock()
        self._lanes: Lanes[Held] = Lanes() if options.enable_message_ordering else FreeLanes()
        self._held: dict[int, Message] = {}
        self._held_bytes = 0
        self._left: dict[int, int] = {}  # lease → when it is surely over; handled, but not answered
        self._timer: Timer | None = None
        self._stopped = False
        self._acks: dict[int, Pending[None]] = {}
        self._nacks: dict[int, Pending[None]] = {}
        self._flush_later: Callable[[], None] | None = None
        self._deliveries = transport.deliveries(subscription, wake, report)
        self.id_prefix = self._deliveries.id_prefix
        self.ack_id_prefix = self._deliveries.ack_id_prefix

    def collect_answers(self, flush_later: Callable[[], None]) -> None:
        """Send answers together: `flush_later` is asked, once for many of them, to call `flush` soon."""
        self._flush_later = flush_later

    # -- messages out ------------------------------------------------------------------------------

    def next(self) -> Message | None:
        """A message whose turn it is, or None. Call `finished` when its handler has ended."""
        with self._lock:
            while not self._stopped:
                if not self._lanes.any_ready():
                    self._refill()
                taken = self._lanes.take(1)
                if not taken:
                    return None
                if taken[0][2]._lease in self._held:
                    return taken[0][2]
                self._lanes.done(taken)  # its lease was lost while it waited: it will come again
            return None

    def more(self) -> bool:
        """Whether another message is ready here."""
        return self._lanes.any_ready()

    def _refill(self) -> None:
        if self._acks or self._nacks:
            self.flush()
        count = min(self._flow.max_messages - len(self._held), TAKE_AT_ONCE)
        free = self._flow.max_bytes - self._held_bytes
        if count <= 0 or free <= 0:
            return
        messages = self._deliveries.take(count, free, not self._held, self)
        if not messages:
            return
        held: list[Held] = []
        for message in messages:
            record = message._record
            self._held[message._lease] = message
            self._held_bytes += record[SIZE]
            held.append((record[POSITION], record[KEY], message))
        self._lanes.put(held)
        if self._timer is None:
            self._set_timer()

    def finished(self, message: Message) -> None:
        """The handler has ended: the next message of the key may go, the lease is no longer kept."""
        with self._lock:
            record = message._record
            self._lanes.done([(record[POSITION], record[KEY], message)])
            if message._lease in self._held and message._settled is None:
                self._left[message._lease] = self._clock.now_us() + self._deadline_us

    # -- answers in --------------------------------------------------------------------------------

    def ack(self, lease: int) -> Pending[None]:
        return self._answer(lease, self._acks)

    def nack(self, lease: int) -> Pending[None]:
        return self._answer(lease, self._nacks)

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        try:
            if self._deliveries.extend([lease], seconds):
                raise InvalidAckId(f"{self.ack_id_prefix}{lease}")
        except InorderError as error:
            return Pending.failed(error)
        with self._lock:
            if lease in self._left:
                self._left[lease] = self._clock.now_us() + round(seconds * MICROSECONDS)
        return Pending.of(None)

    def _answer(self, lease: int, answers: dict[int, Pending[None]]) -> Pending[None]:
        with self._lock:
            answer: Pending[None] = Pending()
            first = not self._acks and not self._nacks
            answers[lease] = answer
            message = self._held.pop(lease, None)
            if message is not None:
                self._held_bytes -= message._record[SIZE]
                self._left.pop(lease, None)
        if self._flush_later is None:
            self.flush()
        elif first:
            self._flush_later()
        return answer

    def flush(self) -> None:
        """Send the answers that were collected."""
        with self._lock:
            acks, self._acks = self._acks, {}
            nacks, self._nacks = self._nacks, {}
        if not acks and not nacks:
            return
        try:
            over = self._deliveries.settle(list(acks), list(nacks))
        except InorderError as error:
            for answer in (*acks.values(), *nacks.values()):
                answer.set_exception(error)
            return
        for lease in over:
            answer = acks.pop(lease) if lease in acks else nacks.pop(lease)
            answer.set_exception(InvalidAckId(f"{self.ack_id_prefix}{lease}"))
        for answer in acks.values():
            answer.set_result(None)
        for answer in nacks.values():
            answer.set_result(None)

    # -- leases ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        # Half of the deadline leaves as much again for a slow answer of the broker.
        self._timer = self._clock.call_at(self._clock.now_us() + self._deadline_us // 2, self._on_timer)

    def _on_timer(self) -> None:
        """Extend what is being handled or waits here; let go of what nobody will answer any more."""
        with self._lock:
            self._timer = None
            now_us = self._clock.now_us()
            for lease in [lease for lease, until_us in self._left.items() if until_us <= now_us]:
                self._let_go(lease)
            keep = [lease for lease in self._held if lease not in self._left]
            if keep:
                try:
                    for lease in self._deliveries.extend(keep, self._deadline_seconds):
                        self._let_go(lease)
                except InorderError as error:  # the subscription is gone, and its leases with it
                    _log.debug("leases could not be extended: %s", error)
            if self._held:
                self._set_timer()
        self._wake()

    def _let_go(self, lease: int) -> None:
        """The lease is over: the message will come again, here or elsewhere."""
        message = self._held.pop(lease, None)
        self._left.pop(lease, None)
        if message is not None:
            self._held_bytes -= message._record[SIZE]

    # -- the end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give out nothing more, and return what nobody has begun. Running handlers may still answer."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            waiting = [message._lease for _, _, message in self._lanes.records()]
            for lease in waiting:
                self._let_go(lease)
        self._deliveries.close()
        self._release(waiting)

    def close(self) -> None:
        """After `stop`, when no handler runs any more: return what was handled but not answered."""
        self.flush()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            rest = list(self._held)
            self._held.clear()
            self._left.clear()
        self._release(rest)

    def _release(self, leases: list[int]) -> None:
        try:
            self._deliveries.release(leases, self)
        except Closed:  # a closed broker holds no leases
            _log.debug("the broker was closed before its messages were returned")
