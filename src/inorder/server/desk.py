"""Who gets what of one subscription: its streams and pulls take turns.

The broker wakes the desk when something may be ready. The desk then hands out, to each who has room, a little and
in every round twice as much, so that few messages are shared as evenly as many. A key of which something is out
stays with whom it went to; that is the broker's doing, to whom each taker is a consumer of its own.

Lives on one loop. Only `wake` is called by other threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple, Protocol

from inorder.broker import MessageQueue
from inorder.errors import InorderError
from inorder.message import SIZE, Leased, Source
from inorder.options import SubscriptionOptions
from inorder.server.limits import MAX_PULLED, MAX_RESPONSE_BYTES
from inorder.server.resources import exactly_once, push_target
from inorder.server.status import detached, not_pulled, subscription_missing

IN_A_ROW = 4_000  # messages handed out before others on the loop have their turn
GRACE_SECONDS = 5  # for answers to what was on a stream that has ended, if its client seems not to have read it
LOOK_SECONDS = 1.0  # how often a taker without room finds out that its leases have run out


class FlowControl(NamedTuple):
    """How much of what it may have a stream has."""

    number: int  # of the stream: none has that of another one
    messages: int
    max_messages: int
    unsent: int  # of these messages
    size: int | None = None  # None: only its client knows
    max_bytes: int | None = None


stream_numbers = count(1)


class Taker(Protocol):
    """One who wants messages."""

    consumer: Source  # as whom it takes
    pushes: bool  # whether it sends to the subscription's endpoint, and not to a client that asked
    once: bool  # whether it is done as soon as it has something
    own: bool  # whether it knows gap records, and counts by itself what it has

    def room(self) -> tuple[int, int]:
        """How many messages it can take now, and how many bytes."""

    def alone(self) -> bool:
        """Whether it may get one message that is larger than its room."""

    def give(self, leased: Leased) -> None: ...

    def end(self, error: Exception) -> None:
        """There is nothing to take any more."""

    def freed(self, lease: int, size: int) -> None:
        """One message of so many bytes that it had, with this lease, is not out any more."""

    def held(self) -> Sequence[int]:
        """The leases that it has, if it is one that counts them by itself."""


class Listener(Protocol):
    """One who wants to know more."""

    def terms_changed(self) -> None:
        """What is given from now on comes by other options."""

    def tell(self, problem: str) -> None:
        """What a person should know."""


class Desk:
    """One subscription, while somebody wants its messages or answers them."""

    def __init__(self, broker: MessageQueue, name: str, resource: str, closed: Callable[[Desk], None]) -> None:
        self._broker = broker
        self._name = name
        self._resource = resource
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._takers: deque[Taker] = deque()
        self._out: dict[int, tuple[Taker, int]] = {}  # lease → who has it, and its bytes
        self._gifts = count(1)
        self._silent: dict[int, int] = {}  # those of which nobody has said anything yet → with which gift they went
        self._heard_of: dict[Taker, int] = {}  # the last gift of which its taker has said something
        self._asked = False
        self._giving = True
        self._look: asyncio.TimerHandle | None = None
        self._listeners: list[Listener] = []
        self._watch = broker.watch(name, self.wake, self._report)
        self._read(self._watch.options)

    def _read(self, options: SubscriptionOptions | None) -> None:
        self.options = options
        if options is not None:
            self.pushed = push_target(options) is not None
            self.exactly_once = exactly_once(options)
            self.ordered = options.enable_message_ordering
            self.counts_attempts = options.dead_letter_policy is not None
            self.ack_deadline_seconds = options.ack_deadline_seconds
            for listener in self._listeners:
                listener.terms_changed()

    def look(self) -> None:
        """Know the options in force."""
        if self._watch.options is not self.options:
            self._read(self._watch.options)

    # -- takers ------------------------------------------------------------------------------------

    def consumer(self, *, stays: bool = False) -> Source:
        return self._broker.consumer(self._name, stays=stays)

    def over(self) -> bool:
        """Whether the subscription was deleted: one of the same name is another one."""
        return self._watch.options is None

    def join(self, taker: Taker) -> None:
        self._takers.append(taker)
        self.ask()

    def leave(self, taker: Taker) -> None:
        """It takes no more. What it has stays out until it is answered or its time is over, which is soon for some."""
        if taker in self._takers:
            self._takers.remove(taker)
            leases = [lease for lease, held in self._out.items() if held[0] is taker]
            unread = self._unread(taker, leases)
            self._forget(leases)
            with suppress(InorderError):
                self._broker.extend(self._name, unread, GRACE_SECONDS)
                self._broker.release(self._name, (), taker.consumer)  # keys that waited for its room
        self.close_if_idle()

    def _unread(self, taker: Taker, leases: Sequence[int]) -> list[int]:
        """Those that probably came to a client when it did not listen any more.

        Google's clients tell the server of each message as soon as they have read it, by a later deadline. When they
        are about to end they give back what they have, get other messages, and never look at them: without this, all
        of these would wait for the deadline. Some answer when their stream has ended: so there is time for that. Of a
        client that does not tell, nothing is known.
        """
        silent = [(lease, self._silent[lease]) for lease in leases if lease in self._silent]
        last = self._heard_of.pop(taker, 0)
        tells = last and all(gift > last for _, gift in silent)
        # Where an ack must count, one that is on its way from a client that has lost its connection must.
        return [lease for lease, _ in silent] if tells and not self.exactly_once and not taker.pushes else []

    def _forget(self, leases: Iterable[int]) -> None:
        for lease in leases:
            del self._out[lease]
            self._silent.pop(lease, None)

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def ignore(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def _report(self, problem: str) -> None:
        """Called on any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nobody is left to tell
            self._loop.call_soon_threadsafe(self._tell, problem)

    def _tell(self, problem: str) -> None:
        for listener in self._listeners:
            listener.tell(problem)

    def close_if_idle(self) -> None:
        if not self._takers:
            self.close()

    def close(self) -> None:
        """Nobody is here any more."""
        self._broker.unwatch(self._name, self._watch)
        if self._look is not None:
            self._look.cancel()
        self._closed(self)

    def end(self, error: Exception) -> None:
        """Tell all that there is nothing to take any more."""
        for taker in tuple(self._takers):
            taker.end(error)

    def take_back(self, taker: Taker) -> None:
        """It cannot answer any more: what it has comes again at once, without blame."""
        leases = [lease for lease, held in self._out.items() if held[0] is taker]
        self._forget(leases)
        with suppress(InorderError):  # a broker that is closed has forgotten them anyway
            self._broker.release(self._name, [*leases, *taker.held()], taker.consumer)

    def takers(self) -> Sequence[Taker]:
        """Those who are here, in the order of their turns."""
        return tuple(self._takers)

    def give_no_more(self, error: Exception) -> None:
        """Whoever has something may still answer it; pulls that wait are over."""
        self._giving = False
        for taker in self.takers():
            if taker.once:
                taker.end(error)

    def out(self) -> int:
        """How many messages are to be answered by those who are here."""
        self._forget_what_is_over()
        return len(self._out) + sum(len(taker.held()) for taker in self._takers)

    def stop(self, error: Exception) -> None:
        """End it for all who are here, and go on with what they have wherever else somebody takes it."""
        self._giving = False
        for taker in self.takers():
            taker.end(error)
            self.take_back(taker)

    # -- handing out -------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be ready. Called on any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nobody is left to wake
            self._loop.call_soon_threadsafe(self.ask)

    def ask(self) -> None:
        """Hand out, soon, once for all who ask."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self.hand_out)

    def hand_out(self) -> None:
        """Give what there is to those who have room."""
        self._asked = False
        try:
            self.look()
            if self.options is None:
                raise subscription_missing(self._resource)
            for taker in [taker for taker in self._takers if taker.pushes != self.pushed]:
                taker.end(not_pulled())
            given = self._give_in_turns() if self._giving else 0
            if not given and self._takers:
                self._find_out_why()
        except Exception as error:
            self.end(error)
            return
        if given >= IN_A_ROW:
            self.ask()

    def _give_in_turns(self) -> int:
        """Rounds, until nothing is left to give, nobody has room, or enough was given for now.

        The next time begins behind who got something last: else the first one would get all that comes one by one.
        """
        share = MAX_PULLED if len(self._takers) == 1 else 1
        total = 0
        last: Taker | None = None
        while total < IN_A_ROW:
            given = 0
            for _ in range(len(self._takers)):
                self._takers.rotate(-1)
                taker = self._takers[-1]
                if count := self._give(taker, share):
                    given += count
                    last = taker
            if not given:
                break
            total += given
            share = min(2 * share, MAX_PULLED)
        if last is not None:
            self._takers.rotate(-1 - self._takers.index(last))
        return total

    def _give(self, taker: Taker, share: int) -> int:
        room, size = taker.room()
        if room <= 0 or taker.pushes != self.pushed:
            return 0
        leased = self._broker.lease(
            self._name,
            min(room, share),
            taker.consumer,
            max_bytes=min(size, MAX_RESPONSE_BYTES),
            alone=taker.alone(),
        )
        if self._watch.options is not self.options:  # perhaps what was taken was then taken back, by new rules
            self._read(self._watch.options)
            leased = leased.without({*self._broker.over(self._name, leased.leases)})
            if taker.pushes != self.pushed:  # and by these it is for others
                self._broker.release(self._name, leased.leases)
                return 0
        count = len(leased.records)
        if not count:
            return 0
        if taker.own:
            taker.give(leased)
            return count
        if gaps := leased.gaps():
            # The protocol has no word for a message that will not come: it is as if there were none.
            self._broker.settle(self._name, gaps, ())
            leased = leased.without(gaps)
        gift = next(self._gifts)
        for lease, record in zip(leased.leases, leased.records, strict=True):
            self._out[lease] = taker, record[SIZE]
            self._silent[lease] = gift
        if leased.records:
            taker.give(leased)
        return count

    def _find_out_why(self) -> None:
        """Nothing could be given: the subscription may be detached, or leases may be over that fill somebody's room."""
        found = self._broker.get_subscription(self._name)
        if found is not None and found.detached and not found.topic_deleted:
            self.end(detached(self._resource))
        elif self._look is None and any(taker.room()[0] <= 0 for taker in self._takers):
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._forget_what_is_over()
        self.ask()

    def _forget_what_is_over(self) -> None:
        self._free(self._broker.over(self._name, self._out))

    def _free(self, leases: Iterable[int]) -> None:
        if not self._out:  # as those have it who count by themselves
            return
        for lease in leases:
            if held := self._out.pop(lease, None):
                self._silent.pop(lease, None)
                held[0].freed(lease, held[1])

    # -- answers -----------------------------------------------------------------------------------

    def settled(self, leases: Iterable[int], *, failed: bool) -> None:
        """These were answered: whoever had them has room. A key takes back what was out behind one that failed."""
        self.told_of(leases)
        self._free(leases)
        if failed and self.ordered:
            self._forget_what_is_over()
        self.ask()

    def told_of(self, leases: Iterable[int]) -> None:
        """A client has said something of these: so it has read them."""
        if not self._silent:
            return
        for lease in leases:
            if gift := self._silent.pop(lease, 0):
                taker = self._out[lease][0]
                self._heard_of[taker] = max(gift, self._heard_of.get(taker, 0))
