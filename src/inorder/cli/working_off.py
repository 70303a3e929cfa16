"""Messages of a subscription worked off in order: each is acked after something was done with it, and not before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final

from inorder.client.subscription import Subscription
from inorder.errors import InorderError
from inorder.message import Message
from inorder.options import MAX_ACK_DEADLINE_SECONDS
from inorder.pending import Pending

_AT_ONCE: Final = 1_000  # in one pull, and in one batch
_BATCH_BYTES: Final = 5_000_000


class WorkingOff:
    """One round over what waits `before` a position. On leaving `with`, what was not done is given back.

    What comes meanwhile stands behind it, and is left to the next round: it may well come because of this one.
    """

    def __init__(
        self, subscription: Subscription, wanted: Callable[[Message], bool], limit: int | None, *, before: int
    ) -> None:
        self._subscription = subscription
        self._wanted = wanted
        self._limit = limit
        self._before = before
        self._held: list[Message] = []  # to be done
        self._others: list[Message] = []  # not wanted, and held so that they do not come again
        self._later: list[Message] = []  # the same, of what has come meanwhile
        self._pulling: Pending[list[Message]] = Pending.of([])  # which an interruption must not forget
        self.done = 0

    @property
    def left(self) -> int:
        """How many were there that were not wanted."""
        return len(self._others)

    def batches(self) -> Iterator[list[Message]]:
        """What waits, by positions. A batch is acked when the next one is asked for."""
        while self._gather():
            while self._held:
                batch = self._next_batch()
                yield batch
                Pending.all([message.ack() for message in batch]).result()
                del self._held[: len(batch)]
                self.done += len(batch)

    def _gather(self) -> bool:
        """Lease all that can be had now: of an ordered key that is its first message, else there is order in all."""
        while room := self._room():
            self._pulling = self._subscription.pull(room)
            pulled = self._pulling.result()
            if not pulled:
                break
            for message in pulled:
                self._pile_of(message).append(message)
            Pending.all([message.modify_ack_deadline(MAX_ACK_DEADLINE_SECONDS) for message in pulled]).result()
        self._held.sort(key=lambda message: message.position)
        return bool(self._held)

    def _pile_of(self, message: Message) -> list[Message]:
        if message.position >= self._before:
            return self._later
        return self._held if self._wanted(message) else self._others

    def _room(self) -> int:
        return _AT_ONCE if self._limit is None else min(self._limit - self.done - len(self._held), _AT_ONCE)

    def _next_batch(self) -> list[Message]:
        size = 0
        for count, message in enumerate(self._held[:_AT_ONCE]):
            size += message.length
            if count and size > _BATCH_BYTES:
                return self._held[:count]
        return self._held[:_AT_ONCE]

    def __enter__(self) -> WorkingOff:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        messages = {*self._held, *self._others, *self._later}
        with suppress(InorderError):
            messages.update(self._pulling.result())
        with suppress(InorderError):  # a broker that is gone gives them back by itself
            _give_back(messages)


def _give_back(messages: Iterable[Message]) -> None:
    # The oldest last: what comes back stands before what waits.
    ordered = sorted(messages, key=lambda message: message.position, reverse=True)
    Pending.all([message.nack() for message in ordered]).result()
