"""What one consumer holds as columns: lists that were leased, kept, and given out one after the other.

Where an `Intake` has an object for each message, and its turn, here a list is one thing. That asks for one rule more:
as soon as the broker has taken anything back, because it failed or its lease was over, all that waits here goes back,
too. Some of it lay behind that in the same keys, and nobody has to find out which: all of it comes again, in order.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from inorder.client.intake import same_rules
from inorder.clock import MICROSECONDS, Timer
from inorder.errors import Closed, InorderError, InvalidAckId, NotFound, SubscriptionNotFound
from inorder.message import Leased
from inorder.options import FlowControl, SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Transport

NOTHING = Leased((), (), [])

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    """A list, leased from that time on."""

    leased: Leased
    since_us: int


class Stock:
    """The lists of one consumer, from the broker until they are answered. Thread-safe, for one who asks for them.

    The broker may wake others while it is called, and others may wait for us: so no call to it is made while `_lock`
    is held.
    """

    def __init__(
        self,
        transport: Transport,
        subscription: str,
        wake: Callable[[], None],
        report: Callable[[str], None],
        size: int,
        ahead: int,
    ) -> None:
        """`ahead` is how many messages may come before somebody asks for them."""
        self._clock = transport.clock
        self._subscription = subscription
        self._wake = wake
        self._size = size
        self._ahead = ahead
        self._lock = threading.Lock()
        self._waiting: deque[_Held] = deque()
        self._at_hand = _Held(NOTHING, 0)  # what of it is not answered
        self._prefix: str | None = None  # of the ack ids of all lists
        self._returning = 0  # so many answers must come before anything is given out
        self._returns = 0  # how often that began
        self._unsettled: set[Pending[Any]] = set()  # answers and returns that the broker has not confirmed
        self._timer: Timer | None = None
        self._left = False
        self._lost: InorderError | None = None  # why the broker does not know us any more
        self.stopped = False
        self._gone_back: Pending[None] = Pending()  # what waited here when it was stopped
        self._deliveries = transport.deliveries(subscription, wake, report, ahead > 0)
        self.ack_id_prefix = self._deliveries.ack_id_prefix  # which makes it a `Recipient`
        self._options: SubscriptionOptions | None = self._deliveries.terms.options
        self._flow = FlowControl()
        self._deadline_seconds = 0.0
        self._deadline_us = 0
        self._set_options(self._options)

    def _set_options(self, options: SubscriptionOptions | None) -> None:
        if options is not None:
            self._flow = options.flow_control or FlowControl()
            self._deadline_seconds = options.ack_deadline_seconds
            self._deadline_us = round(options.ack_deadline_seconds * MICROSECONDS)

    # -- messages out ------------------------------------------------------------------------------

    def next(self) -> Leased | None:
        """The next list, if there is one now. What is left of the one before has failed.

        Raises what keeps the broker from delivering here ever again.
        """
        self.fail_rest()
        self._follow()
        self._give_back_what_is_late()
        if not self._waiting:
            self._take()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            if self.stopped or self._returning or not self._waiting:
                return None
            self._at_hand = self._cut()
            given = self._at_hand.leased
            self._prefix = given.ack_id_prefix
        if self._ahead:
            try:
                self._take()
            except InorderError as error:  # told when somebody asks for the next one
                _log.debug("nothing more comes: %s", error)
        return given

    def _cut(self) -> _Held:
        """Up to as many messages as a list may have, of what waits."""
        first, size = self._waiting.popleft(), self._size
        if len(first.leased.leases) > size:
            self._waiting.appendleft(_Held(_part(first.leased, slice(size, None)), first.since_us))
            return _Held(_part(first.leased, slice(size)), first.since_us)
        together, room = [first], size - len(first.leased.leases)
        while self._waiting and len(self._waiting[0].leased.leases) <= room:
            together.append(self._waiting.popleft())
            room -= len(together[-1].leased.leases)
        if len(together) == 1:
            return first
        return _Held(_joined([held.leased for held in together]), min(held.since_us for held in together))

    def _take(self) -> None:
        """Take what the broker has and flow control allows, and let more come."""
        with self._lock:
            ours = [held.leased for held in self._holding()]
            waiting = sum(len(held.leased.leases) for held in self._waiting)
            room = self._flow.max_messages - sum(len(leased.leases) for leased in ours)
            room = min(room, self._ahead - waiting if self._ahead else self._size)
            free = self._flow.max_bytes - sum(leased.size() for leased in ours)
            if self.stopped or self._returning or self._lost or room <= 0 or free <= 0:
                return
            options, returns = self._options, self._returns
        taken = self._deliveries.lease(room, free, not ours, self, room)
        rules_changed = taken.options is not options and not same_rules(taken.options, options)
        with self._lock:
            # What has come may lie behind what the broker has taken back meanwhile.
            outdated = rules_changed or returns != self._returns
            if outdated:
                self._begin_return()
            else:
                self._waiting.extend(_Held(leased, taken.since_us) for leased in taken.batches)
                if self._timer is None and self._waiting:
                    self._set_timer()
        if outdated:
            self._give_back(_leases(taken.batches))
        else:
            self._follow()  # they may have come with another deadline

    def _holding(self) -> list[_Held]:
        """All that is not answered."""
        return [held for held in (self._at_hand, *self._waiting) if held.leased.leases]

    # -- answers in --------------------------------------------------------------------------------

    def ack(self, leased: Leased) -> Pending[None]:
        """These of the list at hand are done."""
        return self._say(leased, done=True)

    def nack(self, leased: Leased) -> Pending[None]:
        """These of the list at hand have failed."""
        return self._say(leased, done=False)

    def _say(self, leased: Leased, *, done: bool) -> Pending[None]:
        if leased.ack_id_prefix != self._prefix:  # of another subscription, where its numbers mean others
            return nobodys(leased)

        def check(over: list[int]) -> None:
            if over:
                raise InvalidAckId(*(f"{leased.ack_id_prefix}{lease}" for lease in over))

        return self._answer(leased.leases, done=done).map(check)

    def fail_rest(self) -> None:
        """What of the list at hand is not answered has failed."""
        with self._lock:
            left = self._at_hand.leased.leases
        self._answer(left, done=False)

    def _answer(self, leases: Sequence[int], *, done: bool) -> Pending[list[int]]:
        """Tell the broker what became of the list at hand, or a part of it; the reply is those that are not ours."""
        others: list[int] = []
        with self._lock:
            left = self._at_hand.leased
            if leases == left.leases:
                self._at_hand.leased = NOTHING
            else:
                ours = {*left.leases}
                others = [lease for lease in leases if lease not in ours]
                leases = [*dict.fromkeys(filter(ours.__contains__, leases))]
                self._at_hand.leased = left.without({*leases})
            if leases and not done:
                self._begin_return()
        if not leases:
            return Pending.of(others)
        if not done:
            self._deliveries.hold()
        settled = self._deliveries.settle(leases, ()) if done else self._deliveries.settle((), leases)
        self._note(settled)
        settled.add_done_callback(self._acked if done else self._return)
        return settled.map(lambda over: [*over, *others]) if others else settled

    def _acked(self, settled: Pending[list[int]]) -> None:
        error = settled.exception()
        if isinstance(error, Closed):
            return
        if error is not None or settled.result():  # what they were come again, and not behind what waits
            self._have_lost(())

    def _have_lost(self, leases: Iterable[int]) -> None:
        with self._lock:
            self._at_hand.leased = self._at_hand.leased.without({*leases})
            self._begin_return()
        self._deliveries.hold()
        self._return()

    # -- what goes back ----------------------------------------------------------------------------

    def _begin_return(self) -> None:
        """From now until `_return` nothing is given out."""
        self._returning += 1
        self._returns += 1

    def _return(self, _: object = None) -> None:
        """The broker has answered, and all is here that it had sent before: let what waits come again.

        With what it takes back now, too, it may take back what is on its way. So that is looked at again.
        """
        came = self._deliveries.lease(0, 0, False, self, 0).batches
        with self._lock:
            leases = _leases((*(held.leased for held in self._waiting), *came))
            self._waiting.clear()
            if not leases:
                self._returning -= 1
        if leases:
            self._release(leases).add_done_callback(self._return)
        else:
            self._wake()

    def _give_back_what_is_late(self) -> None:
        """What has waited here for as long as a lease lasts, as nobody could extend it, may be somebody else's."""
        with self._lock:
            over_us = self._clock.now_us() - self._deadline_us
            if all(held.since_us > over_us for held in self._waiting):
                return
            leases = _leases(held.leased for held in self._waiting)
            self._waiting.clear()
            self._begin_return()
        self._give_back(leases)

    def _give_back(self, leases: Sequence[int]) -> None:
        self._deliveries.hold()
        self._release(leases).add_done_callback(self._return)

    def _release(self, leases: Sequence[int]) -> Pending[None]:
        released = self._deliveries.release(leases, self)
        self._note(released)
        return released

    def _note(self, unsettled: Pending[Any]) -> None:
        self._unsettled.add(unsettled)
        unsettled.add_done_callback(self._unsettled.discard)

    # -- leases ------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Extend them after half a deadline, which leaves as much again for a slow broker."""
        self._timer = self._clock.call_at(self._clock.now_us() + self._deadline_us // 2, self._keep)

    def _keep(self) -> None:
        with self._lock:
            held = [] if self._left else self._holding()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            if not held:
                return
            self._set_timer()
            asked_us = self._clock.now_us()
        leases = _leases(one.leased for one in held)
        self._deliveries.extend(leases, self._deadline_seconds).add_done_callback(partial(self._kept, held, asked_us))

    def _kept(self, held: Sequence[_Held], asked_us: int, kept: Pending[list[int]]) -> None:
        error = kept.exception()
        if isinstance(error, NotFound | Closed):
            self._lose(error)
        elif error is not None:
            _log.warning("leases could not be extended: %s", error)
        elif over := kept.result():
            self._have_lost(over)
        else:
            with self._lock:
                for one in held:
                    one.since_us = max(one.since_us, asked_us)

    def _follow(self) -> None:
        """Go by the options in force. If those of order changed, the broker has taken back all that was out."""
        before, options = self._options, self._deliveries.terms.options
        if options is before:
            return
        self._options = options
        self._set_options(options)
        if options is None:
            self._lose(SubscriptionNotFound(self._subscription))
        elif not same_rules(options, before):
            self._have_lost(())
        else:
            self._keep()  # by the deadline that is in force now

    def _lose(self, error: InorderError) -> None:
        with self._lock:
            self._lost = error
        self._wake()

    # -- the end -----------------------------------------------------------------------------------

    def stop(self) -> Pending[None]:
        """Give out nothing more, and return what waits. The list at hand may still be answered."""
        with self._lock:
            if self.stopped:
                return self._gone_back
            self.stopped = True
            self._returns += 1
            leases = _leases(held.leased for held in self._waiting)
            self._waiting.clear()
        closed = self._deliveries.close()
        self._release(leases)
        Pending.all([closed, *tuple(self._unsettled)]).add_done_callback(lambda _: self._gone_back.set_result(None))
        return self._gone_back

    def leave(self, *, given: bool) -> None:
        """After `stop`: nobody is there any more. A list that was given out may be answered while its leases last."""
        with self._lock:
            self._left = True
            leases = () if given else self._at_hand.leased.leases
            if not given:
                self._at_hand.leased = NOTHING
            if self._timer is not None:
                self._timer.cancel()
        self._release(leases)


def _part(leased: Leased, part: slice) -> Leased:
    leases, attempts, records, prefix = leased
    return Leased(leases[part], attempts[part], records[part], prefix)


def _joined(lists: Sequence[Leased]) -> Leased:
    leases, attempts, records, prefixes = zip(*lists, strict=True)
    return Leased([*chain(*leases)], [*chain(*attempts)], [*chain(*records)], prefixes[0])


def _leases(lists: Iterable[Leased]) -> list[int]:
    return [lease for leased in lists for lease in leased.leases]


def nobodys(leased: Leased) -> Pending[None]:
    """The answer about leases that are not ours."""
    return Pending.failed(InvalidAckId(*leased.ack_ids())) if leased.leases else Pending.of(None)
