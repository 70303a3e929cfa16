"""What one consumer holds: taken within flow control, kept leased, given out one at a time per key.

The handlers and the iterators stand on this. It owns the order and the leases; who calls it owns the
threads and the tasks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat, starmap
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

from inorder.clock import MICROSECONDS, Timer
from inorder.core.lanes import FreeLanes, Lanes, SparseLanes
from inorder.errors import Closed, InorderError, InvalidAckId, NotFound, SubscriptionNotFound
from inorder.message import KEY, AckedTogether, Message
from inorder.options import FlowControl, SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Transport

TAKE_AT_ONCE = 100  # more than that at a time gains nothing and makes other consumers wait
GRACE_US = 2_000  # a broker may round a deadline up to its next millisecond

# What is held of a message: position and key, as lanes need them, then message, lease, size, and when the
# lease that it came with is over. Plain tuples: a whole burst of them is taken in, and let go of, in C.
Held: TypeAlias = tuple[int, str, Message, int, int, int]
LEASE: Final = 3
UNTIL_US: Final = 5
_message = itemgetter(2)
_lease = itemgetter(LEASE)
_size = itemgetter(4)

_log = logging.getLogger(__name__)


class Intake:
    """The messages of one consumer, from the broker until they are answered. Thread-safe.

    A message counts against flow control until it is acked, nacked or its lease is over. Its lease is
    extended while it waits here and while its handler runs; once the handler has returned without
    an answer, the lease runs out and the message comes again. The next message of a key goes when
    the one before is both handled and answered.

    When the options of the subscription change, it goes by the new ones from the next message on.

    The broker may wake others while it is called, and others may wait for us: so no call to it is made
    while `_lock` is held.
    """

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        wake: Callable[[], None],
        report: Callable[[str], None],
        take_at_once: int = TAKE_AT_ONCE,
        one_per_key: bool = True,
        eager: bool = True,
    ) -> None:
        self._clock = transport.clock
        self._subscription = subscription
        self._wake = wake
        self._take_at_once = take_at_once
        self._one_per_key = one_per_key
        self._lock = threading.Lock()
        self._taking = threading.Lock()  # two that take at once could mix up the order of a key
        self._lanes: Lanes[Held] = FreeLanes()
        self._out: dict[int, Held] = {}  # given out, and their handlers have not ended
        self._out_before: dict[int, str] = {}  # those of them that other lanes gave out: lease → key
        self._held: dict[int, Held] = {}
        self._held_bytes = 0
        self._until_us: dict[int, int] = {}  # when the leases that were extended are over
        self._left: dict[int, Held] = {}  # handled, but the answer is still to come or not sent yet
        # What happened since the last flush: put in without a lock, taken out under it.
        self._acks: deque[tuple[int, Pending[None]]] = deque()
        self._nacks: deque[tuple[int, Pending[None]]] = deque()
        self._ended: deque[int] = deque()  # leases; their handlers have
        self._flush_asked = False
        self._collecting = False
        self._nacking: dict[int, str] = {}  # until the broker knows: lease → key
        self._unsettled: set[Pending[Any]] = set()  # answers and returns that the broker has not confirmed
        self._flush_later: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._timer_us = 0
        self.stopped = False
        self._gone_back: Pending[None] = Pending()  # what waited here when it was stopped
        self._lost: InorderError | None = None  # why the broker does not know us any more
        self._set_options(SubscriptionOptions())
        self._deliveries = transport.deliveries(subscription, wake, report, eager)
        self._terms = self._deliveries.terms
        self.id_prefix = self._deliveries.id_prefix
        self.ack_id_prefix = self._deliveries.ack_id_prefix
        self._follow()

    def collect_answers(self, flush_later: Callable[[], None]) -> None:
        """Send answers together: `flush_later` is asked, once for many of them, to call `flush` soon."""
        self._flush_later = flush_later

    # -- messages out ------------------------------------------------------------------------------

    def next(self) -> Message | None:
        """A message whose turn it is, or None. Call `finished` when its handler has ended."""
        messages = self.next_ones(1)
        return messages[0] if messages else None

    def next_ones(self, count: int) -> list[Message]:
        """Up to so many messages whose turn it is, no two of one key if so asked. Call `finished` for each of them.

        Raises what keeps the broker from delivering here ever again.
        """
        while True:
            if self._terms.options is not self._options:
                self._follow()
            with self._lock:
                taken = [] if self.stopped else self._lanes.take(count)
                out = dict(zip(map(_lease, taken), taken, strict=True))
                if not out.keys() <= self._held.keys():  # leases were lost while they waited: those will come again
                    self._lanes.done([held for held in taken if held[LEASE] not in self._held])
                    out = {lease: held for lease, held in out.items() if lease in self._held}
                self._out |= out
            if out or (not taken and not self._refill()):
                return list(map(_message, out.values()))

    def holds(self, message: Message) -> bool:
        """Whether the lease of a message that was given out is still ours."""
        if self._terms.options is not self._options:
            self._follow()
        return message._lease in self._held

    def held(self, messages: Iterable[Message]) -> list[Message]:
        """Those of messages that were given out whose leases are still ours."""
        if self._terms.options is not self._options:
            self._follow()
        ours = self._held
        return [message for message in messages if message._lease in ours]

    def keep(self, messages: Iterable[Message]) -> bool:
        """Ask the broker to keep the leases of messages that were given out; whether all of them are still ours.

        Where `holds` says what is known here, this is what the broker knows: for a moment before which there must
        be no doubt. If it cannot be asked, the answer is no.
        """
        try:
            return not self._extend([message._lease for message in messages], self._deadline_seconds).result()
        except InorderError as error:
            _log.warning("leases could not be extended: %s", error)
            return False

    def begin(self, message: Message) -> bool:
        """Whether a message that was given out may be handled."""
        if self.stopped:
            self.give_back([message])
        if self.holds(message):
            return True
        self.finished(message)  # it will come again
        return False

    def more(self) -> bool:
        """Whether another message is ready here."""
        return self._lanes.any_ready()

    def _refill(self) -> bool:
        """Take what the broker has and flow control allows; whether there is anything now."""
        self.flush()  # an ack may be what the broker waits for, or what the next of the key waits for here
        with self._taking:
            with self._lock:
                if self._lanes.any_ready():
                    return not self.stopped
                if self._lost is not None:
                    raise self._lost
                room = self._flow.max_messages - len(self._held)
                free = self._flow.max_bytes - self._held_bytes
                if self.stopped or room <= 0 or free <= 0:
                    return False
                alone = not self._held
            taken = self._deliveries.take(min(room, self._take_at_once), free, alone, self, room)
            return self._hold_taken(*taken)

    def _hold_taken(self, messages: list[Message], options: SubscriptionOptions | None) -> bool:
        """Hold what was taken by these options; whether there is anything of it."""
        if self._terms.options is not self._options:
            self._follow()
        with self._lock:
            if options is not self._options and not _same_rules(options, self._options):
                messages = []  # taken back when the rules changed
            stopped = self.stopped
            if not stopped:
                self._hold(messages)
        leases = [message._lease for message in messages] if stopped or options is not self._options else []
        if stopped:
            self._release(leases)
        elif leases:
            self._keep_leases(leases)  # they came with another deadline
        return bool(messages) and not stopped

    def _hold(self, messages: list[Message]) -> None:
        if not messages:
            return
        leases = [message._lease for message in messages]
        positions, keys, _, _, _, sizes, _ = zip(*[message._record for message in messages], strict=True)
        until_us = self._clock.now_us() + self._deadline_us
        held: list[Held] = list(zip(positions, keys, messages, leases, sizes, repeat(until_us)))
        self._held.update(zip(leases, held, strict=True))
        self._held_bytes += sum(sizes)
        self._lanes.put(held)
        if self._timer is None:
            self._set_timer()

    def finished(self, message: Message, _: object = None) -> None:
        """The handler has ended: the lease is no longer kept. Once it is answered, its key goes on."""
        self._ended.append(message._lease)
        if not self._flush_asked:
            self._flush_soon()

    def finished_together(self, messages: Iterable[Message]) -> None:
        """The same for many at once."""
        self._ended.extend([message._lease for message in messages])
        if self._ended and not self._flush_asked:
            self._flush_soon()

    def _pass_on(self, held: Held) -> None:
        if held[LEASE] in self._out_before:
            self._end_before(held[LEASE])
        else:
            self._lanes.done([held])

    # -- answers in --------------------------------------------------------------------------------

    def ack(self, lease: int, answer: Pending[None]) -> None:
        self._acks.append((lease, answer))
        if not self._flush_asked:
            self._flush_soon()

    def nack(self, lease: int, answer: Pending[None]) -> None:
        self._nacks.append((lease, answer))
        self._flush_soon()

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        def extended(over: list[int]) -> None:
            if over:
                raise InvalidAckId(f"{self.ack_id_prefix}{lease}")
            with self._lock:
                if lease in self._held and lease in self._left:
                    self._look_after(lease)

        return self._extend([lease], seconds).map(extended)

    def ack_together(self, messages: Iterable[Message]) -> Pending[list[None]]:
        """Ack messages in one call to the broker, and let all be known as one: no answer is made to each."""
        acked = AckedTogether()
        # The others know where to, or that they were answered before.
        answers = [message.ack() for message in acked.add(messages, self)]
        if leases := acked.leases:
            with self._lock:
                passed_on = self._let_go(leases)
            acked.settle(self._settle(leases, ()))
            answers.append(acked.answer(self.ack_id_prefix))
            if passed_on:
                self._wake()
        return Pending.all(answers)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send the answers that are given meanwhile at the end, in one call to the broker."""
        self._collecting = True
        try:
            yield
        finally:
            self._collecting = False
            self.flush()

    def _flush_soon(self) -> None:
        if self._collecting:
            return
        if self._flush_later is None:
            self.flush()
        elif not self._flush_asked:
            self._flush_asked = True
            self._flush_later()

    def unsent(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._acks or self._nacks or self._ended)

    def flush(self) -> None:
        """Take in what happened, and send the answers that were collected."""
        self._flush_asked = False
        if not self.unsent():
            return
        with self._lock:
            acks, nacks, ended = dict(_drain(self._acks)), dict(_drain(self._nacks)), _drain(self._ended)
            passed_on = self._let_go(acks)
            # These keys go on when the broker knows, and has taken back what was out behind the messages.
            self._nacking |= {lease: self._held[lease][KEY] for lease in nacks if lease in self._held}
            self._let_go(nacks)
            self._end(ended)
        if acks or nacks:
            self._send_answers(acks, nacks)
        if passed_on:
            self._wake()

    def _end(self, leases: list[int]) -> None:
        """Their handlers have ended: keys go on, except where an answer is still to come."""
        ended = list(map(self._out.pop, leases))
        if self._nacking or self._out_before or not self._held.keys().isdisjoint(leases):
            ended = [held for held in ended if self._goes_on(held)]
        self._lanes.done(ended)

    def _goes_on(self, held: Held) -> bool:
        """Whether the key of a message whose handler has ended does; if not, what has to happen for it is noted."""
        lease = held[LEASE]
        if lease in self._out_before and lease not in self._nacking:
            self._end_before(lease)
            return False
        if lease not in self._held and lease not in self._nacking:
            return True
        self._left[lease] = held
        if lease in self._held:
            self._look_after(lease)
        return False

    def _send_answers(self, acks: dict[int, Pending[None]], nacks: dict[int, Pending[None]]) -> None:
        settled = self._settle(list(acks), list(nacks))
        if settled.done():
            self._sent(acks, nacks, settled)
        else:
            settled.add_done_callback(lambda done: self._sent(acks, nacks, done))

    def _settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        settled = self._deliveries.settle(acks, nacks)
        if settled.done():
            self._settled(settled)
        else:
            self._unsettled.add(settled)
            settled.add_done_callback(self._settled)
        return settled

    def _settled(self, settled: Pending[list[int]]) -> None:
        self._unsettled.discard(settled)
        if settled.exception() is None and settled.result():
            self._keep_leases()  # where one was lost, others may have been

    def _sent(
        self, acks: dict[int, Pending[None]], nacks: dict[int, Pending[None]], settled: Pending[list[int]]
    ) -> None:
        failed = settled.exception()
        over = settled.result() if failed is None else ()
        if nacks:
            self._after_nacks(nacks)
        if failed is None and not over:
            Pending.set_results(chain(acks.values(), nacks.values()), repeat(None))
            return
        for lease, answer in chain(acks.items(), nacks.items()):
            if failed is not None:
                answer.set_exception(failed)
            elif lease in over:
                answer.set_exception(InvalidAckId(f"{self.ack_id_prefix}{lease}"))
            else:
                answer.set_result(None)

    def _after_nacks(self, leases: Iterable[int]) -> None:
        """With a message that failed, the broker takes back what is out behind it: let that go, then go on."""
        with self._taking:  # what was out behind may have come, and wait to be taken
            self._hold_taken(*self._deliveries.take(0, 0, False, self, 0))
        with self._lock:
            keys = {self._nacking[lease] for lease in leases if lease in self._nacking}
            behind = [held[LEASE] for key in keys for held in self._lanes.waiting(key)]

        def go_on(_: object) -> None:
            with self._lock:
                for lease in leases:
                    self._nacking.pop(lease, None)
                    if held := self._left.pop(lease, None):
                        self._pass_on(held)
            self._wake()

        self._keep_leases(behind).add_done_callback(go_on)

    # -- options -----------------------------------------------------------------------------------

    @property
    def max_messages(self) -> int:
        """So many may be held at once, by the options in force."""
        options = self._terms.options or self._options
        return (options.flow_control or FlowControl()).max_messages

    def _follow(self) -> None:
        """Go by the options that are in force now; what is held by the old rules is extended, or is ours no more."""
        with self._lock:
            before, options = self._options, self._terms.options
            if options is before:  # another thread was faster
                return
            if options is None:
                self._lose(SubscriptionNotFound(self._subscription))
                return
            self._set_options(options)
            if _window(options) != _window(before):
                self._change_lanes()
        self._keep_leases()
        with self._lock:
            self._set_timer()

    def _set_options(self, options: SubscriptionOptions) -> None:
        self._options = options
        self._flow = options.flow_control or FlowControl()
        self._deadline_seconds = options.ack_deadline_seconds
        self._deadline_us = round(options.ack_deadline_seconds * MICROSECONDS)

    def _change_lanes(self) -> None:
        """The broker has taken back all that was out, as the rules of order are others. What runs keeps its key."""
        self._let_go(list(self._held))
        self._left.clear()
        self._lanes = _lanes(_window(self._options) if self._one_per_key else 0)
        self._out_before = {lease: held[KEY] for lease, held in self._out.items()}
        for key in filter(None, self._out_before.values()):
            self._lanes.hold(key, ())

    def _end_before(self, lease: int) -> None:
        key = self._out_before.pop(lease)
        if key and key not in self._out_before.values():
            self._lanes.release(key)

    def _lose(self, error: InorderError) -> None:
        """The broker does not know us any more, and that is why."""
        self._lost = error
        self._let_go(list(self._held))

    # -- leases ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Wake up after half a deadline, which leaves as much again for a slow broker; or when one is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            over_us = [self._over_us(lease) for lease in self._left if lease in self._held]
            self._timer_us = min([self._clock.now_us() + self._deadline_us // 2, *over_us])
            self._timer = self._clock.call_at(self._timer_us, self._on_timer)

    def _look_after(self, lease: int) -> None:
        """Wake up when this lease is over, if nobody does so earlier."""
        if self._over_us(lease) < self._timer_us:
            self._set_timer()

    def _over_us(self, lease: int) -> int:
        return self._leased_until_us(lease) + GRACE_US

    def _leased_until_us(self, lease: int) -> int:
        return self._until_us.get(lease, self._held[lease][UNTIL_US])

    def _on_timer(self) -> None:
        """Extend what is being handled or waits here; let go of what nobody will answer any more."""
        self.flush()  # in case that whoever was asked to do so is no more
        if self._terms.options is not self._options:
            self._follow()
        self._keep_leases()
        with self._lock:
            now_us = self._clock.now_us()
            over = [lease for lease in self._left if lease in self._held and self._over_us(lease) <= now_us]
            self._nacking |= {lease: self._held[lease][KEY] for lease in over}
            self._let_go(over)
            self._set_timer()
        if over:
            # By the broker's clock too, or from now on. Their keys go on when it has taken back what was out behind.
            self._deliveries.extend(over, 0).add_done_callback(lambda _: self._after_nacks(over))
        self._wake()

    def _keep_leases(self, leases: Iterable[int] | None = None) -> Pending[object]:
        """Extend all that is being handled or waits here, or only these; let go of what is over already."""
        with self._lock:
            until_us = self._clock.now_us() + self._deadline_us
            candidates = self._held if leases is None else [lease for lease in leases if lease in self._held]
            # A handler may have asked for longer than we do.
            keep = [
                lease for lease in candidates if lease not in self._left and self._leased_until_us(lease) <= until_us
            ]
        if not keep:
            return Pending.of(None)
        kept = self._extend(keep, self._deadline_seconds)
        kept.add_done_callback(self._kept)
        return kept  # type: ignore[return-value]  # of whatever it may be: it is only waited for

    def _kept(self, kept: Pending[list[int]]) -> None:
        error = kept.exception()
        if isinstance(error, NotFound | Closed):
            with self._lock:
                self._lose(error)
        elif error is not None:
            _log.warning("leases could not be extended: %s", error)

    def _extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        """Keep leases for so long from now; those that were over are let go of and returned."""
        asked_us = self._clock.now_us()

        def extended(over: list[int]) -> list[int]:
            until_us = asked_us + round(seconds * MICROSECONDS)
            with self._lock:
                passed_on = self._let_go(over)
                ours = self._held
                self._until_us.update({lease: until_us for lease in leases if lease in ours})
            if passed_on:
                self._wake()
            return over

        return self._deliveries.extend(leases, seconds).map(extended)

    def _let_go(self, leases: Iterable[int]) -> bool:
        """Messages are answered, or their leases are over; whether that makes a key go on."""
        gone = list(filter(None, map(self._held.pop, leases, repeat(None))))
        self._held_bytes -= sum(map(_size, gone))
        if not self._until_us and not self._left:
            return False
        for lease in map(_lease, gone):
            self._until_us.pop(lease, None)
        if not self._left:
            return False
        passed_on = False
        for lease in map(_lease, gone):
            if lease in self._left and lease not in self._nacking:
                self._pass_on(self._left.pop(lease))
                passed_on = True
        return passed_on

    # -- the end -----------------------------------------------------------------------------------

    def stop(self) -> Pending[None]:
        """Give out nothing more, and return what nobody has begun. Running handlers may still answer."""
        with self._lock:
            if self.stopped:
                return self._gone_back
            self.stopped = True
            waiting = [held[LEASE] for held in self._lanes.records()]
            self._let_go(waiting)
        closed = self._deliveries.close()
        self._release(waiting)
        returned = Pending.all([closed, *tuple(self._unsettled)])
        returned.add_done_callback(lambda _: self._gone_back.set_result(None))
        return self._gone_back

    def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages that were given out, but that nobody has begun."""
        with self._lock:
            leases = [message._lease for message in messages if message._lease in self._held]
            self._let_go(leases)
        self._release(leases)

    def leave(self, message: Message) -> None:
        """Let a message's lease run out, whoever may answer it until then."""
        with self._lock:
            self._let_go([message._lease])

    def close(self) -> Pending[None]:
        """After `stop`, when no handler runs any more: return what was handled but not answered.

        Done when the broker has all that goes back, and all answers.
        """
        self._flush_later = None  # first: what is not flushed now, its sender will flush
        self.flush()
        with self._lock:
            rest = list(self._held)
            self._let_go(rest)
            self._set_timer()
        self._release(rest)
        left: list[Pending[Any]] = [self._gone_back, *tuple(self._unsettled)]
        closed: Pending[None] = Pending()
        Pending.all(left).add_done_callback(lambda _: closed.set_result(None))
        return closed

    def _release(self, leases: Sequence[int]) -> None:
        released = self._deliveries.release(leases, self)
        self._unsettled.add(released)
        released.add_done_callback(self._unsettled.discard)
        released.add_done_callback(_log_what_stays)


def _log_what_stays(released: Pending[None]) -> None:
    if (error := released.exception()) is not None:  # they come back when their leases run out, if there is a broker
        _log.debug("messages could not be returned: %s", error)


def _same_rules(options: SubscriptionOptions | None, others: SubscriptionOptions | None) -> bool:
    return options is not None and others is not None and _window(options) == _window(others)


def _window(options: SubscriptionOptions) -> int:
    """How many of a key may be out; 0 if keys mean nothing."""
    return options.max_outstanding_per_key if options.enable_message_ordering else 0


def _lanes(window: int) -> Lanes[Held]:
    """For messages that come so: the broker sends no two of a key together, unless it is told to."""
    if not window:
        return FreeLanes()
    return SparseLanes() if window == 1 else Lanes()


T = TypeVar("T")


def _drain(queue: deque[T]) -> list[T]:
    """Take out what is there now; others may put in meanwhile, but not take out."""
    return list(starmap(queue.popleft, repeat((), len(queue))))  # so many calls of it, made in C
