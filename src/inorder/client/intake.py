"""What one consumer holds: taken within flow control, kept leased, given out one at a time per key.

The handlers and the iterators stand on this. It owns the order and the leases; who calls it owns the
threads and the tasks.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat, starmap
from typing import Any, TypeVar

from inorder.client.lines import KeyedLine, Line, WindowLine
from inorder.clock import MICROSECONDS, Timer
from inorder.errors import Closed, DeadlineExceeded, InorderError, InvalidAckId, NotFound, SubscriptionNotFound
from inorder.message import DATA, KEY, SIZE, AckedTogether, Gap, Message
from inorder.options import MAX_ACK_DEADLINE_SECONDS, FlowControl, SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Terms, Transport

TAKE_AT_ONCE = 100  # or more, if so many are asked for: each time has its price, and other consumers want some, too
STOPPED, OTHER_OPTIONS, LATE = "stopped", "other options", "late"  # doubts that are about all
NEVER_US = sys.maxsize
LONGEST_KEEP_SECONDS = 10  # who asks may be in a transaction, and have others wait for its end
GRACE_US = 2_000  # a broker may round a deadline up to its next millisecond

_log = logging.getLogger(__name__)


class _NoTerms:
    options: SubscriptionOptions | None = None


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
        ahead: int | None = None,
    ) -> None:
        """`ahead` is how many messages may come before somebody asks for them; None: as many as flow control allows."""
        self._clock = transport.clock
        self._subscription = subscription
        self._wake = wake
        self._take_at_once = take_at_once
        self._one_per_key = one_per_key
        self._ahead = ahead
        self._lock = threading.Lock()
        # Two that take at once could mix up the order of a key, and two that send answers wait for each other. So one
        # thread takes, or sends, also for those who come meanwhile: they need not wait, and if all of them did, each
        # message would cost a change of threads.
        self._taking = threading.Lock()
        self._unlooked = False  # the broker may have more, or we more room, than when somebody last looked
        self._flushing = threading.Lock()
        self._flush_missed = False  # somebody came while another one was flushing
        self._line = Line()
        # All by their leases.
        self._out: dict[int, Message] = {}  # given out, and their handlers have not ended
        self._out_before: dict[int, str] = {}  # the keys of those that were given out by other rules
        # While this is empty, what waits here may be given out, and what was given out may be handled; else somebody
        # looks. It has leases that were lost, and those of gap records, which are no messages.
        self.doubts: set[int | str] = set()
        self._held: dict[int, Message] = {}
        self._held_bytes = 0
        self._left: dict[int, Message] = {}  # handled, but the answer is still to come or not sent yet
        # What happened since the last flush: put in without a lock, taken out under it.
        self._acks: deque[Message] = deque()
        self._nacks: deque[Message] = deque()
        self._ended: deque[Message] = deque()  # their handlers have
        self.note_end = self._ended.append  # as `finished`, for who asks for the next ones before it rests
        self._flush_asked = False
        self._collecting = False
        self._nacking: dict[int, str] = {}  # until the broker knows: lease → key
        self._unsettled: set[Pending[Any]] = set()  # answers and returns that the broker has not confirmed
        self._flush_later: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._timer_us = 0
        self._sure_until_us = NEVER_US  # until then all that waits here is known to be ours
        self.stopped = False
        self._gone_back: Pending[None] = Pending()  # what waited here when it was stopped
        self._lost: InorderError | None = None  # why the broker does not know us any more
        self._set_options(SubscriptionOptions())
        self._terms: Terms = _NoTerms()  # for who wakes us before there are any
        self._deliveries = transport.deliveries(subscription, self._look, report, ahead != 0)
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
            lost: list[Message] = []
            with self._lock:
                taken = [] if self.stopped else self._line.take(count)
                messages = taken
                if taken and self._sure_until_us <= self._clock.now_us():
                    self._miss_what_is_late(taken)
                if self.doubts:
                    messages, lost = self._still_held(taken)
                self._out.update(zip([message._lease for message in messages], messages, strict=True))
            if lost:
                self._return([message._lease for message in lost])
            if messages or (not taken and not self._refill(count)):
                return messages

    def _miss_what_is_late(self, taken: Sequence[Message]) -> None:
        """Of these, and of what waits, may be somebody else's by now what nobody has said to be extended."""
        now_us = self._clock.now_us()
        waiting = [*taken, *self._line.messages()]
        self._miss([message._lease for message in waiting if message._until_us <= now_us])
        self._sure_until_us = min(
            (message._until_us for message in waiting if message._until_us > now_us), default=NEVER_US
        )

    def _still_held(self, taken: list[Message]) -> tuple[list[Message], list[Message]]:
        """Those to be given out, and those whose leases were lost while they waited: they will come again."""
        ours: list[Message] = []
        lost: list[Message] = []
        behind: list[Message] = []  # one that was lost
        keys: set[str] = set()
        for message in taken:
            key = message._record[KEY]
            if message._lease not in self._held:
                lost.append(message)
                keys.add(key)
            elif key and key in keys:
                behind.append(message)
            else:
                ours.append(message)
        self._line.put_back(behind)
        self._lose_turns(lost)
        return ours, lost

    def _lose_turns(self, lost: Sequence[Message]) -> None:
        """Nobody has begun these, and the broker has them. What it took back with them must not go before them."""
        self._left.update({message._lease: message for message in lost})
        self._fail({message._lease: message._record[KEY] for message in lost})
        self.doubts.difference_update([message._lease for message in lost])

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
        be no doubt. If it cannot be asked, the answer is no; if it does not answer in time, they are given back, and
        `DeadlineExceeded` is raised.
        """
        ours = [*messages]
        try:
            kept = self._extend([message._lease for message in ours], self._deadline_seconds)
            over = kept.result(min(self._deadline_seconds, LONGEST_KEEP_SECONDS))
        except DeadlineExceeded:
            self.give_back(ours)
            raise
        except InorderError as error:
            _log.warning("leases could not be extended: %s", error)
            return False
        if over:
            self._keep_leases()  # where one was lost, others may have been
        return not over

    def begin(self, message: Message) -> bool:
        """Whether a message that was given out may be handled; it may if there are no `doubts`."""
        if self.stopped:
            self.give_back([message])
        if self._terms.options is not self._options:
            self._follow()
        with self._lock:
            if message._until_us <= self._clock.now_us():
                self._miss([message._lease])
            if message._lease in self._held:
                return True
            del self._out[message._lease]
            self._lose_turns([message])
        self._return([message._lease])
        return False

    def more(self) -> bool:
        """Whether another message is ready here, or may be if one looks."""
        return self._unlooked or self._line.any_ready()

    def _refill(self, count: int) -> bool:
        """Take what the broker has and flow control allows, for who wants so many; whether there is anything now."""
        self.flush()  # an ack may be what the broker waits for, or what the next of the key waits for here
        self._unlooked = True  # first: if another one is at it, it sees this when it is done
        found = False
        while not found and self._unlooked and self._taking.acquire(blocking=False):
            self._unlooked = False
            try:
                found = self._take(count)
            finally:
                self._taking.release()
        return found

    def _look(self) -> None:
        if self._terms.options is not self._options:
            self.doubts.add(OTHER_OPTIONS)
        self._unlooked = True  # first: who has just found something else then sees that there is more
        self._wake()

    def look_ahead(self) -> None:
        """While what was given out is worked on, take in what has come, and let more come."""
        if self._ahead and self._taking.acquire(blocking=False):
            try:
                self._take(0, ahead=True)
            except InorderError as error:  # told when somebody asks for the next ones
                _log.debug("nothing more comes: %s", error)
            finally:
                self._taking.release()

    def _take(self, count: int, *, ahead: bool = False) -> bool:
        with self._lock:
            if self._line.any_ready() and not ahead:
                self._unlooked = not self.stopped  # whoever takes that may be busy with it for long
                return not self.stopped
            if self._lost is not None:
                raise self._lost
            room = self._flow.max_messages - len(self._held)
            if self._ahead:
                room = min(room, self._ahead - self._waiting())
            free = self._flow.max_bytes - self._held_bytes
            if self.stopped or room <= 0 or free <= 0:
                return False
            alone = not self._held
        most = room if ahead else min(room, max(count, self._take_at_once))
        taken = self._deliveries.take(most, free, alone, self, room)
        if len(taken.messages) >= most:
            self._unlooked = True
        return self._hold_taken(*taken)

    def _waiting(self) -> int:
        """How many are held that nobody has been given."""
        held = self._held
        return len(held) - sum(map(held.__contains__, chain(self._out, self._left)))

    def _hold_taken(self, messages: list[Message], options: SubscriptionOptions | None, since_us: int) -> bool:
        """Hold what was taken by these options, leased since then; whether there is anything of it."""
        if self._terms.options is not self._options:
            self._follow()
        with self._lock:
            if options is not self._options and not same_rules(options, self._options):
                messages = []  # taken back when the rules changed
            stopped = self.stopped
            if not stopped:
                self._hold(messages, since_us)
            # The timer comes after half a deadline, which would be too late, or nearly.
            late = since_us + self._deadline_us // 3 < self._clock.now_us()
        leases = [message._lease for message in messages] if stopped or late or options is not self._options else []
        if stopped:
            self._release(leases)
        elif leases:
            self._keep_leases(leases)  # or they came with another deadline
        return bool(messages) and not stopped

    def _hold(self, messages: list[Message], since_us: int) -> None:
        if not messages:
            return
        until_us = since_us + self._deadline_us
        self._sure_until_us = min(self._sure_until_us, until_us)
        for message in messages:
            message._until_us = until_us
        self._held.update(zip([message._lease for message in messages], messages, strict=True))
        sizes = [message._record[SIZE] for message in messages]
        self._held_bytes += sum(sizes)
        if 0 in sizes:
            self.doubts.update([message._lease for message in messages if isinstance(message._record[DATA], Gap)])
        self._line.put(messages)
        if self._timer is None:
            self._set_timer()

    def finished(self, message: Message, _: object = None) -> None:
        """The handler has ended: the lease is no longer kept. Once it is answered, its key goes on."""
        self._ended.append(message)
        if not self._flush_asked:
            self._flush_soon()

    def finished_together(self, messages: Iterable[Message]) -> None:
        """The same for many at once."""
        self._ended.extend(messages)
        if self._ended and not self._flush_asked:
            self._flush_soon()

    def _pass_on(self, message: Message) -> None:
        if message._lease in self._out_before:
            self._end_before(message._lease)
        else:
            self._line.done([message])

    # -- answers in --------------------------------------------------------------------------------

    def ack(self, message: Message, _: Pending[None]) -> None:
        self._acks.append(message)
        if not self._flush_asked:
            self._flush_soon()

    def nack(self, message: Message, _: Pending[None]) -> None:
        self._nacks.append(message)
        self._flush_soon()

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        def extended(over: list[int]) -> None:
            if over:
                raise InvalidAckId(f"{self.ack_id_prefix}{lease}")
            with self._lock:
                if lease in self._held and lease in self._left:
                    self._look_after(self._held[lease])

        return self._extend([lease], seconds).map(extended)

    def ack_together(self, messages: Iterable[Message]) -> Pending[list[None]]:
        """Ack messages in one call to the broker, and let all be known as one: no answer is made to each."""
        acked = AckedTogether()
        answers: list[Pending[None]] = []
        if others := acked.add(messages, self):
            with self.together():  # where ids have nothing in common, all of them are others
                # They know where to, or that they were answered before.
                answers = [message.ack() for message in others]
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
        flush_later = self._flush_later  # `close` forgets it, perhaps at this moment
        if self._collecting:
            return
        if flush_later is None:
            self.flush()
        elif not self._flush_asked:
            self._flush_asked = True
            flush_later()

    def unsent(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._acks or self._nacks or self._ended)

    def flush(self) -> None:
        """Take in what happened, and send the answers that were collected; or another thread is at it, and will."""
        self._flush_asked = False
        while self.unsent() or self._flush_missed:
            if not self._flushing.acquire(blocking=False):
                self._flush_missed = True  # which the other one sees when it is done, unless it is done by now
                if not self._flushing.acquire(blocking=False):
                    return
            missed = self._flush_missed
            if missed:  # not otherwise: somebody may set it at this moment, who has seen that we are at it
                self._flush_missed = False
            try:
                answer = self._flush()
            finally:
                self._flushing.release()
            answer()  # which may call whoever waits for it
            if missed:
                self._wake()  # who came meanwhile looked for more before there was room, or the next of its key ready

    def _flush(self) -> Callable[[], None]:
        """Send what there is; returns what is left to do when others may flush again."""
        with self._lock:
            acked, nacked, ended = _drain(self._acks), _drain(self._nacks), _drain(self._ended)
            acks, nacks = [message._lease for message in acked], [message._lease for message in nacked]
            passed_on = self._let_go(acks)
            if nacks:
                # These keys go on when the broker knows, and has taken back what was out behind the messages.
                self._fail({lease: self._held[lease]._record[KEY] for lease in nacks if lease in self._held})
                self._let_go(nacks)
            self._end(ended, acks if ended == acked else [message._lease for message in ended])
        settled = self._settle(acks, nacks) if acks or nacks else None

        def answer() -> None:
            if settled is not None and settled.done():
                self._sent(acked, nacked, settled)
            elif settled is not None:
                settled.add_done_callback(lambda done: self._sent(acked, nacked, done))
            if passed_on:
                self._wake()

        return answer

    def _end(self, ended: list[Message], leases: list[int]) -> None:
        """Their handlers have ended: keys go on, except where an answer is still to come."""
        gone = _taken_from(self._out, leases)
        assert len(gone) == len(leases), "a message has ended twice, or was not given out"
        if self.doubts:
            self.doubts.difference_update(leases)
        if self._nacking or self._out_before or (self._held and not self._held.keys().isdisjoint(leases)):
            ended = [message for message in ended if self._goes_on(message)]
        self._line.done(ended)

    def _goes_on(self, message: Message) -> bool:
        """Whether the key of a message whose handler has ended does; if not, what has to happen for it is noted."""
        lease = message._lease
        if lease in self._out_before and lease not in self._nacking:
            self._end_before(lease)
            return False
        if lease not in self._held and lease not in self._nacking:
            return True
        self._left[lease] = message
        if lease in self._held:
            self._look_after(message)
        return False

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
        error = settled.exception()
        if isinstance(error, Closed):
            return
        if error is not None or settled.result():
            self._keep_leases()  # where one was lost, others may have been

    def _sent(self, acked: list[Message], nacked: list[Message], settled: Pending[list[int]]) -> None:
        failed = settled.exception()
        over = settled.result() if failed is None else ()
        if nacked:
            self._after_nacks([message._lease for message in nacked])
        answered = acked + nacked
        answers: list[Pending[None]] = [message._settled for message in answered]  # type: ignore[misc]  # one for each
        if failed is None and not over:
            Pending.set_results(answers, repeat(None))
            return
        for message, answer in zip(answered, answers, strict=True):
            if failed is not None:
                answer.set_exception(failed)
            elif message._lease in over:
                answer.set_exception(InvalidAckId(message.ack_id))
            else:
                answer.set_result(None)

    def _fail(self, keys: Mapping[int, str]) -> None:
        """These go back to the broker; by their leases."""
        self._nacking |= keys
        for key in keys.values():
            self._line.fail(key)

    def _after_nacks(self, leases: Collection[int]) -> None:
        """With a message that failed, the broker takes back what is out behind it: let that go, then go on."""
        with self._taking:  # what was out behind may have come, and wait to be taken
            self._hold_taken(*self._deliveries.take(0, 0, False, self, 0))
        with self._lock:
            keys = {self._nacking[lease] for lease in leases if lease in self._nacking}
            behind = [message._lease for key in keys for message in self._line.waiting(key)]

        def go_on(kept: Pending[object]) -> None:
            with self._lock:
                if kept.exception() is not None:  # nobody knows which of them are ours
                    self._let_go(behind)
                # All of them now: one by one each would make it ask for all others.
                lost = [message._lease for key in keys for message in self._line.lose(key, self._held)]
                self.doubts.difference_update(lost)
                if not lost:
                    for lease in leases:
                        self._nacking.pop(lease, None)
                        if message := self._left.pop(lease, None):
                            self._pass_on(message)
                    for key in keys.difference(self._nacking.values()):
                        self._line.go_on(key)
            if lost:  # perhaps by our own clock, and the broker still has them out, with others behind them
                self._release(lost).add_done_callback(lambda _: self._after_nacks(leases))
            else:
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
            self.doubts.discard(OTHER_OPTIONS)  # first: who changes them once more says so again
            before, options = self._options, self._terms.options
            if options is before:  # another thread was faster
                return
            if options is None:
                self._lose(SubscriptionNotFound(self._subscription))
                return
            self._set_options(options)
            if options.window != before.window:
                self._change_line()
        self._keep_leases()
        with self._lock:
            self._set_timer()

    def _set_options(self, options: SubscriptionOptions) -> None:
        self._options = options
        self._flow = options.flow_control or FlowControl()
        self._deadline_seconds = options.ack_deadline_seconds
        self._deadline_us = round(options.ack_deadline_seconds * MICROSECONDS)

    def _change_line(self) -> None:
        """The broker has taken back all that was out, as the rules of order are others. What runs keeps its key."""
        self._miss(list(self._out))
        self._let_go(list(self._held))
        self._left.clear()
        self.doubts.difference_update([message._lease for message in self._line.messages()])
        self._line = Line() if not self._options.window else KeyedLine() if self._one_per_key else WindowLine()
        self._out_before = {lease: message._record[KEY] for lease, message in self._out.items()}
        for key in filter(None, self._out_before.values()):
            self._line.hold(key)

    def _end_before(self, lease: int) -> None:
        key = self._out_before.pop(lease)
        if key and key not in self._out_before.values():
            self._line.release(key)

    def _lose(self, error: InorderError) -> None:
        """The broker does not know us any more, and that is why."""
        self._lost = error
        self._miss(list(self._held))

    # -- leases ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Wake up after half a deadline, which leaves as much again for a slow broker; or when one is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            over_us = [_over_us(message) for lease, message in self._left.items() if lease in self._held]
            self._timer_us = min([self._clock.now_us() + self._deadline_us // 2, *over_us])
            self._timer = self._clock.call_at(self._timer_us, self._on_timer)

    def _look_after(self, message: Message) -> None:
        """Wake up when its lease is over, if nobody does so earlier."""
        if _over_us(message) < self._timer_us:
            self._set_timer()

    def _on_timer(self) -> None:
        """Extend what is being handled or waits here; let go of what nobody will answer any more."""
        self.flush()  # in case that whoever was asked to do so is no more
        if self._terms.options is not self._options:
            self._follow()
        self._keep_leases()
        with self._lock:
            now_us = self._clock.now_us()
            left = [lease for lease in self._left if lease in self._held]
            over = [lease for lease in left if _over_us(self._left[lease]) <= now_us]
            # Of what was given out some may not be begun yet.
            late = any(message._until_us <= now_us for message in self._out.values() if message._lease in self._held)
            (self.doubts.add if late else self.doubts.discard)(LATE)
            self._fail({lease: self._left[lease]._record[KEY] for lease in over})
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
            ours, left = self._held, self._left
            candidates = ours if leases is None else [lease for lease in leases if lease in ours]
            keep: dict[int, list[int]] = {}  # by how much longer than we ask for
            for lease in candidates:
                if lease not in left:
                    # A handler may have asked for longer, or the options of before. It may be over all the same.
                    keep.setdefault(max(ours[lease]._until_us - until_us, 0), []).append(lease)
        kept: list[Pending[list[int]]] = []
        for more_us, some in keep.items():
            # It is more than anybody may ask for if our clock was set back meanwhile.
            seconds = min(self._deadline_seconds + more_us / MICROSECONDS, MAX_ACK_DEADLINE_SECONDS)
            kept.append(self._extend(some, seconds))
            kept[-1].add_done_callback(self._kept)
        return Pending.all(kept)  # type: ignore[return-value]  # of whatever it may be: it is only waited for

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
                passed_on = self._miss(over)
                for message in filter(None, map(self._held.get, leases)):
                    message._until_us = until_us
            if passed_on:
                self._wake()
            return over

        return self._deliveries.extend(leases, seconds).map(extended)

    def _miss(self, leases: Sequence[int]) -> bool:
        """Leases are over, or were taken back: those who were given the messages may not know it."""
        self.doubts.update([lease for lease in leases if lease in self._held and lease not in self._left])
        return self._let_go(leases)

    def _let_go(self, leases: Collection[int]) -> bool:
        """Messages are answered, or their leases are over; whether that makes a key go on."""
        gone = _taken_from(self._held, leases)
        self._held_bytes -= sum([message._record[SIZE] for message in gone]) if self._held else self._held_bytes
        if not self._left:
            return False
        passed_on = False
        for message in gone:
            lease = message._lease
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
            self.doubts.add(STOPPED)
            waiting = [message._lease for message in self._line.messages()]
            self._let_go(waiting)
        closed = self._deliveries.close()
        self._release(waiting)
        returned = Pending.all([closed, *tuple(self._unsettled)])
        returned.add_done_callback(lambda _: self._gone_back.set_result(None))
        return self._gone_back

    def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages that were given out, but that nobody has begun. Nothing of their keys goes before them."""
        with self._lock:
            keys = {message._lease: message._record[KEY] for message in messages if message._lease in self._held}
            self._fail(keys)
            self._let_go(keys)
        if keys:
            self._return(keys)

    def _return(self, leases: Collection[int]) -> None:
        """Their keys go on when the broker has them, and has taken back what was out behind."""
        self._release([*leases]).add_done_callback(lambda _: self._after_nacks(leases))

    def leave(self, message: Message) -> None:
        """Let a message's lease run out, whoever may answer it until then."""
        with self._lock:
            self._let_go([message._lease])

    def close(self) -> Pending[None]:
        """After `stop`, when no handler runs any more: return what was handled but not answered.

        Done when the broker has all that goes back, and all answers.
        """
        self._flush_later = None  # first: what is not flushed now, its sender will flush
        with self._flushing:
            answer = self._flush()
        answer()
        self.flush()  # what somebody left to us meanwhile
        with self._lock:
            rest = list(self._held)
            self._let_go(rest)
            self._set_timer()
        self._release(rest)
        left: list[Pending[Any]] = [self._gone_back, *tuple(self._unsettled)]
        closed: Pending[None] = Pending()
        Pending.all(left).add_done_callback(lambda _: closed.set_result(None))
        return closed

    def _release(self, leases: Sequence[int]) -> Pending[None]:
        released = self._deliveries.release(leases, self)
        self._unsettled.add(released)
        released.add_done_callback(self._unsettled.discard)
        released.add_done_callback(_log_what_stays)
        return released


def _log_what_stays(released: Pending[None]) -> None:
    if (error := released.exception()) is not None:  # they come back when their leases run out, if there is a broker
        _log.debug("messages could not be returned: %s", error)


def same_rules(options: SubscriptionOptions | None, others: SubscriptionOptions | None) -> bool:
    """Whether what was taken by these was not taken back by the others."""
    return options is not None and others is not None and options.window == others.window


def _over_us(message: Message) -> int:
    """When a lease is over, by our clock and surely by the broker's."""
    return message._until_us + GRACE_US


def _taken_from(messages: dict[int, Message], leases: Collection[int]) -> list[Message]:
    """Take out those that are there. Mostly these are all, in their order: then no step for each is needed."""
    if len(leases) == len(messages) and [*messages] == leases:
        taken = [*messages.values()]
        messages.clear()
        return taken
    return [*filter(None, map(messages.pop, leases, repeat(None)))]


T = TypeVar("T")


def _drain(queue: deque[T]) -> list[T]:
    """Take out what is there now; others may put in meanwhile, but not take out."""
    return list(starmap(queue.popleft, repeat((), len(queue))))  # so many calls of it, made in C
