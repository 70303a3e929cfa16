"""`for message in subscription`, `async for message in subscription`, and the same by batches and by columns.

What the loop has got is kept leased until it asks for more; it is up to the loop's body to ack or nack
it. Gap records go to the subscription's "gap" listeners, in their place; among columns they are what they are.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from inorder.client.intake import Intake
from inorder.client.listeners import Listeners, finish, finish_here
from inorder.client.stock import NOTHING, Stock
from inorder.errors import FailedPrecondition
from inorder.message import DATA, Gap, Leased, Message, before_their_place
from inorder.pending import Pending
from inorder.transport import Transport

T = TypeVar("T")


class Iteration(ABC, Generic[T]):
    """What all kinds of loop do alike, each for lists of its kind."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._problems: deque[str] = deque()
        self._given = False  # whether the loop has got what is at hand; until then its listeners may end it
        self._ended = False
        self.closed: Pending[None] = Pending()  # the broker has what went back; nobody waits for the loop itself

    @abstractmethod
    def _wake(self) -> None:
        """There may be a message. Called on any thread; returns at once."""

    @abstractmethod
    def _stop(self) -> Pending[None]:
        """Return what the loop has not got; done when the broker has it."""

    @abstractmethod
    def _advance(self) -> Iterator[Sequence[Awaitable[object]] | None]:
        """Let go of the list before and go to the next one, or, when poked or at the end, to none.

        Yields what is to be awaited on the way, or None: then wait to be woken.
        """

    @abstractmethod
    def _at_hand(self) -> T:
        """The list that was gone to."""

    @abstractmethod
    def leave(self) -> None:
        """The loop is over. Whoever left it in the middle may still answer the messages of that moment."""

    def close(self) -> Pending[None]:
        """Have the loop end when it asks for the next message."""
        if not self._ended:
            self._ended = True
            self._stop().hand_to(self.closed)
        self._wake()
        return self.closed

    def at_work(self) -> bool:
        return False

    def needs_this_thread(self) -> bool:
        return False

    @property
    def ended(self) -> bool:
        return self._ended

    def _report(self, problem: str) -> None:
        self._problems.append(problem)
        self._wake()

    def _tell_problems(self) -> Iterator[Sequence[Awaitable[object]]]:
        while self._problems:
            yield self._listeners.tell_error(FailedPrecondition(self._problems.popleft()))

    def _got(self) -> T | None:
        """What the loop gets; nothing if it was ended, perhaps on the way to it: then these go back."""
        if self._ended:
            self.leave()
            return None
        self._given = True
        return self._at_hand()


class MessageIteration(Iteration[list[Message]]):
    """Some messages at a time; those before are let go of."""

    def __init__(
        self, transport: Transport, subscription: str, listeners: Listeners, size: int, one_per_key: bool, ahead: int
    ) -> None:
        super().__init__(listeners)
        self._size = size
        self._current: list[Message] = []
        self._aside: list[Message] = []
        self._told_end = False
        self._poked = False
        # No more than what the loop works on, or has asked for: others share the rest, and nothing has to go back.
        self._intake = Intake(transport, subscription, self._wake, self._report, size, one_per_key, ahead * size)

    def _stop(self) -> Pending[None]:
        return self._intake.stop()

    def _at_hand(self) -> list[Message]:
        return self._current

    def poke(self) -> None:
        """Have the loop go round, with no messages if there are none. Called on any thread; returns at once."""
        self._poked = True
        self._wake()

    def holds(self, message: Message) -> bool:
        """Whether the lease of a message that the loop has got is still ours."""
        return self._intake.holds(message)

    def held(self, messages: Iterable[Message]) -> list[Message]:
        """Those of messages that the loop has got whose leases are still ours."""
        return self._intake.held(messages)

    def keep(self, messages: Iterable[Message]) -> bool:
        """Extend the leases of messages that the loop has got; whether the broker says, in time, that all are ours."""
        return self._intake.keep(messages)

    def ack(self, messages: Iterable[Message]) -> Pending[list[None]]:
        """Ack messages, all of them in one call to the broker."""
        return self._intake.ack_together(messages)

    def answer(self, done: Iterable[Message], failed: Iterable[Message]) -> list[Pending[None]]:
        """Ack and nack messages, all of them in one call to the broker; returns the answers to the acks."""
        with self._intake.together():
            for message in failed:
                message.nack()
            return [message.ack() for message in done]

    def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages that nobody has begun: they come again at once, and have not failed."""
        self._intake.give_back(messages)

    def set_aside(self) -> None:
        """The list at hand stays with the loop when that goes on, until `let_go`."""
        self._aside += self._current
        self._current = []

    def let_go(self) -> None:
        """What was set aside is answered."""
        aside, self._aside = self._aside, []
        self._let_go(aside)

    def _got(self) -> list[Message] | None:
        if self._aside and not self._told_end:
            self._told_end = self._ended
            self._given = True
            return self._current  # once more, so that the loop can do something about what was set aside
        return super()._got()

    def leave(self) -> None:
        self.close()
        aside, self._aside = self._aside, []
        for message in (*aside, *(self._current if self._given else ())):
            self._intake.leave(message)
        self._intake.close()

    def _advance(self) -> Iterator[Sequence[Awaitable[object]] | None]:
        while True:
            self._let_go(self._current)
            self._current, self._given = [], False
            yield from self._tell_problems()
            if self._ended:
                return
            self._current = self._intake.next_ones(self._size)
            if self._current:
                self._intake.look_ahead()
            if self._intake.doubts and Gap in {type(message._record[DATA]) for message in self._current}:
                yield from self._tell_gaps()
                if not self._current:
                    continue
            if self._current or self._poked:
                self._poked = False
                return
            yield None

    def _tell_gaps(self) -> Iterator[Sequence[Awaitable[object]]]:
        """Tell of the gap records among the messages; they are none. Those behind a message come with the next ones."""
        early = {*before_their_place(message._record for message in self._current)}
        too_early = [message for index, message in enumerate(self._current) if index in early]
        self._intake.give_back(too_early)
        self._let_go(too_early)
        self._current = [message for index, message in enumerate(self._current) if index not in early]
        gaps = [message for message in self._current if isinstance(message._record[DATA], Gap)]
        self._current = [message for message in self._current if not isinstance(message._record[DATA], Gap)]
        for gap in gaps:
            yield self._listeners.tell_gap(gap._record[DATA])
            gap.ack()
        self._let_go(gaps)

    def _let_go(self, messages: Iterable[Message]) -> None:
        self._intake.finished_together(messages)


class ColumnIteration(Iteration[Leased]):
    """A list at a time, as columns; what is left of the one before has failed."""

    def __init__(self, transport: Transport, subscription: str, listeners: Listeners, size: int, ahead: int) -> None:
        super().__init__(listeners)
        self._current = NOTHING
        self._stock = Stock(transport, subscription, self._wake, self._report, size, ahead * size)

    def ack(self, leased: Leased) -> Pending[None]:
        """These of the list that the loop has got are done."""
        return self._stock.ack(leased)

    def nack(self, leased: Leased) -> Pending[None]:
        """These of the list that the loop has got have failed."""
        return self._stock.nack(leased)

    def leave(self) -> None:
        self.close()
        self._stock.leave(given=self._given)

    def _stop(self) -> Pending[None]:
        return self._stock.stop()

    def _at_hand(self) -> Leased:
        return self._current

    def _advance(self) -> Iterator[Sequence[Awaitable[object]] | None]:
        while True:
            self._stock.fail_rest()
            self._given = False
            yield from self._tell_problems()
            if self._ended:
                return
            if (found := self._stock.next()) is not None:
                self._current = found
                return
            yield None


class InThread(Iteration[T]):
    """Blocks the thread until there is a message."""

    def __init__(self, *args: Any) -> None:
        self._arrived = threading.Event()
        super().__init__(*args)

    def _wake(self) -> None:
        self._arrived.set()

    def next(self) -> T | None:
        """The next messages, as soon as there are some; None when closed."""
        for left in self._advance():
            if left is not None:
                finish_here(left)
            else:
                self._arrived.wait()
                self._arrived.clear()
        return self._got()


class InTask(Iteration[T]):
    """Suspends the task until there is a message."""

    def __init__(self, transport: Transport, *args: Any) -> None:
        self._clock = transport.clock
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(transport, *args)  # type: ignore[arg-type]  # of the kind of lists, which is next in line

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # it was closed: nobody will ask for more, or answer what was given
            if not self._ended:
                self._clock.call_at(0, self.leave)  # not here: whoever wakes us expects that we return at once

    async def next(self) -> T | None:
        """The next messages, as soon as there are some; None when closed."""
        for left in self._advance():
            if left is not None:
                await finish(left)
            else:
                await self._arrived.wait()
                self._arrived.clear()
        return self._got()


class ThreadIteration(InThread[list[Message]], MessageIteration):
    """A `for` loop over messages."""


class TaskIteration(InTask[list[Message]], MessageIteration):
    """An `async for` loop over messages."""


class ThreadColumns(InThread[Leased], ColumnIteration):
    """A `for` loop over columns."""


class TaskColumns(InTask[Leased], ColumnIteration):
    """An `async for` loop over columns."""
