"""One consumer's side of a subscription, on a stream that is begun anew whenever its connection ends.

What the server may send is said in advance, so a stream brings no more than its consumer has room for. What was out
when a connection ended stays out on the server, and is answered on the next stream. A server that was started again
has forgotten its leases: those that came before are over, and their messages come again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import grpc

from inorder.clock import MICROSECONDS, Clock, Timer
from inorder.errors import (
    InorderError,
    NotFound,
    PermissionDenied,
    SubscriptionNotFound,
    Unauthenticated,
    Unavailable,
)
from inorder.message import KEY, Leased, Recipient, Source, started_us
from inorder.options import MAX_ACK_DEADLINE_SECONDS, MAX_MESSAGE_BYTES, SubscriptionOptions, check_number
from inorder.pending import Pending
from inorder.protocol import PROTOCOL_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import told
from inorder.transport import Taken, TakenLists
from inorder.transport.grpc.answering import CallAnswers, Said, fill
from inorder.transport.grpc.calls import Calls, look_later, pause_after, pauses
from inorder.transport.grpc.columns import arrived
from inorder.transport.grpc.transit import Transit

STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"

_log = logging.getLogger(__name__)


class Terms:
    """What the consumer goes by."""

    options: SubscriptionOptions | None = None


class _Arrived(NamedTuple):
    batch: Leased
    since_us: int  # from when its leases last


class OwnDeliveries:
    """A consumer of a server that knows inorder.v1. Thread-safe.

    A thread reads, and gRPC's thread asks for the next request, which says all that has come up meanwhile.
    """

    def __init__(
        self,
        calls: Calls,
        clock: Clock,
        subscription: str,
        resource: str,
        wake: Callable[[], None],
        report: Callable[[str], None],
        eager: bool,
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._subscription = subscription
        self._resource = resource
        self._wake = wake
        self._report = report
        self._eager = eager
        self.terms = Terms()
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)  # to be said
        self._requests: _Requests | None = None  # of the stream in use
        self._call: Any = None
        # Leases are counted on over starts of the server, so that no two are the same here.
        self.id_prefix = ""
        self.ack_id_prefix = ""  # of the first start
        self._prefix = ""  # of this one
        self._offset = 0
        self._next_lease = 0  # behind all that have come
        self._arrived: list[_Arrived] = []
        self._keeper: Timer | None = None
        self._unsaid: list[Said] = []
        self._unconfirmed: dict[int, list[Said]] = {}
        self._numbers = 0  # of requests
        # Of the stream in use, from first to last.
        self._transit = Transit()
        self._may_come = self._may_come_bytes = 0
        self._told_may_come = self._told_may_come_bytes = 0
        self._came = self._came_bytes = 0
        self._ready = False  # its terms have come
        self._refused: InorderError | None = None  # why the last stream ended
        self._failure: InorderError | None = None  # why nothing will come any more
        self._closing = False
        self._last_said = False
        self._by_calls: CallAnswers | None = None  # when there is no stream any more
        self._woken = threading.Event()  # out of a pause
        self._closed: Pending[None] = Pending()
        self._begun: Pending[None] = Pending()
        threading.Thread(target=self._run, name="inorder-stream", daemon=True).start()
        try:
            self._wait_for_terms()
        except BaseException:  # as Ctrl-C while the server cannot be reached: nobody else would close it
            self.close()
            raise

    def _wait_for_terms(self) -> None:
        try:
            self._begun.result(self._calls.timeout_seconds)
        except TimeoutError:
            raise self._refused or Unavailable(f"no answer from {self._calls.address}") from None

    # -- for the consumer --------------------------------------------------------------------------

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Taken:
        batches, options, since_us = self.lease(max_messages, max_bytes, alone, source, room)
        return Taken([message for batch in batches for message in batch.messages(source)], options, since_us)

    def lease(self, max_messages: int, max_bytes: int, alone: bool, recipient: Recipient, room: int) -> TakenLists:
        with self._lock:
            if self._failure is not None and max_messages:
                raise self._failure
            options = self.terms.options
            taken, self._arrived = self._arrived, []
            batches = [batch for batch, _ in taken]
            if max_messages:
                self._want(max_messages if not self._eager else room, max_bytes, alone, batches)
        return TakenLists(batches, options, min([since_us for _, since_us in taken], default=0))

    def hold(self) -> None:
        with self._lock:
            self._may_come, self._may_come_bytes = self._came, self._came_bytes
            self._told_may_come, self._told_may_come_bytes = -1, -1
            self._more.notify()

    def _want(self, room: int, max_bytes: int, alone: bool, batches: Sequence[Leased]) -> None:
        """Say how much more may come, now that these are taken."""
        if self._closing:
            return
        for batch in batches:
            room -= len(batch.records)
            max_bytes -= batch.size()
        if batches and not self._eager:
            room = 0
        elif alone and not batches and max_bytes < MAX_MESSAGE_BYTES:
            room, max_bytes = 1, MAX_MESSAGE_BYTES  # whatever its size
        self._may_come = self._came + max(room, 0)
        self._may_come_bytes = self._came_bytes + max(max_bytes, 0)
        # Less is said at once; more, when about half of what was said is used up.
        left, left_bytes = self._told_may_come - self._came, self._told_may_come_bytes - self._came_bytes
        if left > room or left_bytes > max_bytes or 2 * left < room or 2 * left_bytes < max_bytes:
            self._told_may_come, self._told_may_come_bytes = -1, -1
            self._more.notify()

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        return self._say(Said(acks=acks, nacks=nacks))

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        try:
            check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS)
        except InorderError as error:
            return Pending.failed(error)
        return self._say(Said(kept=leases, seconds=seconds))

    def release(self, leases: Sequence[int], recipient: Recipient) -> Pending[None]:
        return self._say(Said(released=leases)).map(lambda _: None) if leases else Pending.of(None)

    def close(self) -> Pending[None]:
        with self._lock:
            if not self._closing:
                self._closing = True
                look_later(self._calls.timeout_seconds, self._look)
                self._woken.set()
                self._more.notify()
                if self._keeper is not None:
                    self._keeper.cancel()
        return self._closed

    def _say(self, said: Said) -> Pending[list[int]]:
        with self._lock:
            by_calls = self._by_calls
            if by_calls is None:
                self._unsaid.append(said)
                self._more.notify()
        if by_calls is not None:
            by_calls.say(said)
        return said.reply

    def _deadline_us(self) -> int:
        options = self.terms.options
        return 0 if options is None else round(options.ack_deadline_seconds * MICROSECONDS)

    # -- what is said ------------------------------------------------------------------------------

    def next_request(self, requests: _Requests) -> bytes | None:
        """All that there is to say, as soon as there is something; None at the end of the stream."""
        with self._lock:
            while not self._anything_to_say(requests):
                if requests is not self._requests:
                    return None
                self._more.wait()
            demand = v1.Demand(messages=self._may_come, bytes=self._may_come_bytes)
            if not requests.begun:
                requests.begun = True
                demand.subscription = self._resource
            said: list[Said] = []
            if self._ready:
                said, self._unsaid = self._unsaid, []
                demand.last = self._last_said = self._closing
            if said or demand.last:
                self._numbers += 1
                demand.number = self._numbers
                self._unconfirmed[demand.number] = said
                self._transit.asked(demand.number, self._clock.now_us())
            self._told_may_come, self._told_may_come_bytes = self._may_come, self._may_come_bytes
            prefix, offset = self._prefix, self._offset
        if said:
            fill(demand, said, prefix, offset)
        request: bytes = demand.SerializeToString()
        return request

    def _anything_to_say(self, requests: _Requests) -> bool:
        if requests is not self._requests:
            return False
        if not requests.begun:
            return True
        if not self._ready:
            return False
        return bool(self._unsaid) or self._told_may_come < 0 or (self._closing and not self._last_said)

    # -- what comes --------------------------------------------------------------------------------

    def _run(self) -> None:
        waits, broken = pauses(), False
        while True:
            error: InorderError | None = None
            try:
                call = self._connect()
                for raw in call:
                    self._hear(v1.Delivery.FromString(raw))
                    waits, broken = pauses(), False
            except grpc.RpcError as ended:
                error = self._calls.error_of(ended)
            except InorderError as refused:
                error = refused
            except Exception:  # a mistake of ours: better late than never
                _log.exception("a stream of subscription %r failed", self._subscription)
            if self._finish(error):
                return
            if not broken:  # said once, however often it is tried
                broken = True
                _log.warning("the stream of subscription %r is begun anew: %s", self._subscription, error or "it ended")
            self._refused = error
            self._woken.wait(pause_after(error, waits))
            if self._closing and self._finish(error):
                return

    def _connect(self) -> Any:
        requests = _Requests(self)
        with self._lock:
            self._requests = requests
            self._ready = self._last_said = False
            # What was allowed and has not come may come now.
            self._may_come, self._may_come_bytes = self._may_come - self._came, self._may_come_bytes - self._came_bytes
            self._came = self._came_bytes = 0
            self._transit = Transit()
        self._call = self._calls.stream(STREAMING_PULL, requests, ((PROTOCOL_KEY, "1"),))
        return self._call

    def _hear(self, delivery: v1.Delivery) -> None:
        too_late: list[Said] = []
        confirmed: list[tuple[list[Said], list[int]]] = []
        with self._lock:
            left_us = now_us = self._clock.now_us()
            if delivery.sent_us:  # an older server does not say it
                confirmations = [confirmation.number for confirmation in delivery.confirmations]
                left_us = self._transit.left_us(delivery.sent_us, now_us, confirmations)
            news = delivery.HasField("terms")
            if news:
                too_late = self._take_terms(delivery.terms)
            if delivery.messages.leases:
                news = True
                self._take_in(delivery, left_us)
            for confirmation in delivery.confirmations:
                over = [lease + self._offset for lease in confirmation.over]
                confirmed.append((self._unconfirmed.pop(confirmation.number, []), over))
            if self._closing:
                news = news and self.terms.options is None
                self._close_stream()
        for said in too_late:
            said.too_late()
        for answered, over in confirmed:
            for said in answered:
                said.answered(over)
        for problem in delivery.problems:
            self._report(problem)
        if not self._begun.done():
            self._begun.set_result(None)
        if news:
            self._wake()

    def _take_terms(self, terms: v1.Terms) -> list[Said]:
        """Go by these from now on; returns what was said of leases that are over with the terms before."""
        before, options = self.terms.options, told(SubscriptionOptions, terms.options)
        too_late: list[Said] = []
        if terms.ack_id_prefix != self._prefix:
            if not self._prefix:
                self.id_prefix, self.ack_id_prefix = terms.id_prefix, terms.ack_id_prefix
            elif _serial(terms.ack_id_prefix) != _serial(self._prefix) or terms.id_prefix not in ("", self.id_prefix):
                raise SubscriptionNotFound(self._subscription)  # this is another one of its name, or of another topic
            else:
                passed_us = started_us(terms.ack_id_prefix) - started_us(self.ack_id_prefix)
                self._offset = max(passed_us, self._next_lease)  # its clock may have been set back
            self._prefix = terms.ack_id_prefix
            too_late = [*chain(*self._unconfirmed.values()), *self._unsaid]
            self._unsaid = []
            self._arrived = []
        elif not self._ready:
            self._unsaid = [*chain(*self._unconfirmed.values()), *self._unsaid]  # once more, on this stream
        elif before is None or before.window != options.window:
            self._arrived = []  # taken back, as the rules are others
        if not self._ready:
            self._unconfirmed.clear()
            self._ready = True
        self.terms.options = options
        self._more.notify()
        return too_late

    def _take_in(self, delivery: v1.Delivery, left_us: int) -> None:
        batch = arrived(delivery.messages, self._offset)._replace(ack_id_prefix=self.ack_id_prefix)
        self._next_lease = max(self._next_lease, batch.leases[-1] + 1)  # they are granted one after another
        self._came += len(batch.records)
        self._came_bytes = delivery.sent_bytes
        if self._keeper is None and not self._closing:
            self._keep_later()
        waited_us = delivery.sent_us - delivery.granted_us  # on the server
        self._arrived.append(_Arrived(batch, left_us - waited_us))

    # -- leases of what nobody has taken yet -------------------------------------------------------

    def _keep_later(self) -> None:
        # Whoever takes it believes that the lease is fresh, and has half of its time until it must be extended.
        self._keeper = self._clock.call_at(self._clock.now_us() + self._deadline_us() // 4, self._keep)

    def _keep(self) -> None:
        with self._lock:
            self._keeper = None
            leases = [lease for batch, _ in self._arrived for lease in batch.leases]
            options, asked_us = self.terms.options, self._clock.now_us()
            if not leases or options is None or self._closing:
                return
            self._keep_later()

        def kept(over: list[int]) -> None:
            with self._lock:
                behind = _behind([batch for batch, _ in self._arrived], over) if over else set()
                arrived, self._arrived = self._arrived, []
                for batch, since_us in arrived:
                    since_us = asked_us if batch.leases[-1] <= leases[-1] else since_us  # or it came meanwhile
                    ours = batch.without(behind.union(over)) if over else batch
                    if ours.leases:
                        self._arrived.append(_Arrived(ours, since_us))
            if behind:
                self._say(Said(released=[*behind]))

        self._say(Said(kept=leases, seconds=options.ack_deadline_seconds)).map(kept)

    # -- the end -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """The last takes long to be confirmed. Perhaps nobody is there who could: then the stream ends as it is."""
        if not self._closed.done():
            self._calls.lives().add_done_callback(self._looked)

    def _looked(self, lives: Pending[bool]) -> None:
        if not lives.result() and self._call is not None:
            self._call.cancel()
        look_later(self._calls.timeout_seconds, self._look)

    def _close_stream(self) -> None:
        """End it once nothing is left to be said or confirmed, and nothing can come any more."""
        if not self._last_said or self._unconfirmed:
            return
        if self._arrived:
            leases = [lease for batch, _ in self._arrived for lease in batch.leases]
            self._arrived = []
            self._unsaid.append(Said(released=leases))
        if self._unsaid:
            self._more.notify()
            return
        self._requests = None  # which ends it
        self._by_calls = self._call_answers()
        self._more.notify()

    def _call_answers(self) -> CallAnswers:
        return CallAnswers(self._calls, self._resource, self._prefix, self._offset)

    def _finish(self, error: InorderError | None) -> bool:
        """The stream has ended: whether for good."""
        if self._call is not None:
            self._call.cancel()
        with self._lock:
            self._requests = None
            self._more.notify()
            # The token was good when this stream began. There may be another one by now: the next stream tells.
            revoked = self._ready and isinstance(error, Unauthenticated | PermissionDenied)
            fatal = self._calls.ends_for_good(error) and not revoked
            if not fatal and not self._closing:
                if revoked:
                    self._arrived = []  # the server has given it to others
                return False
            left = [*chain(*self._unconfirmed.values()), *self._unsaid]
            self._unconfirmed, self._unsaid = {}, []
            self._by_calls = self._by_calls or self._call_answers()
            if isinstance(error, NotFound):
                self.terms.options = None
                error = SubscriptionNotFound(self._subscription)
            self._failure = error if fatal else None
            untaken = [] if fatal or revoked else self._arrived
            returned = Said(released=[lease for batch, _ in untaken for lease in batch.leases])
            self._arrived = []
            if self._keeper is not None:
                self._keeper.cancel()
        for said in left:
            if isinstance(error, NotFound):
                said.too_late()
            else:
                self._by_calls.say(said)
        if not self._begun.done():
            self._begun.set_exception(error or Unavailable(f"no answer from {self._calls.address}"))
        if returned.released:
            self._by_calls.say(returned)
        else:
            returned.answered(())
        returned.reply.add_done_callback(lambda _: self._closed.set_result(None))
        if fatal:
            self._wake()
        return True


class _Requests(Iterator[bytes]):
    """What gRPC sends on one stream."""

    def __init__(self, deliveries: OwnDeliveries) -> None:
        self._deliveries = deliveries
        self.begun = False

    def __next__(self) -> bytes:
        request = self._deliveries.next_request(self)
        if request is None:
            raise StopIteration
        return request


def _behind(batches: Sequence[Leased], over: Sequence[int]) -> set[int]:
    """The leases of what came behind these in their keys: the server has taken it back with them, and may say so later.

    Some of it may have come since. It is given back, so that it comes again in any case.
    """
    lost, keys, behind = {*over}, set[str](), set[int]()
    for batch in batches:
        for lease, record in zip(batch.leases, batch.records, strict=True):
            if lease in lost:
                keys.add(record[KEY])
            elif record[KEY] and record[KEY] in keys:
                behind.add(lease)
    return behind


def _serial(prefix: str) -> str:
    """What the ack ids of a subscription have in common over starts of the server."""
    return prefix.split("-", 1)[1]
