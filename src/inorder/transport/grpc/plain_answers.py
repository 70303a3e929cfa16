"""Acks and deadlines by the calls of google.pubsub.v1, for leases that are counted here."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import takewhile
from math import ceil
from operator import lt
from typing import Any, NamedTuple

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number
from inorder.pending import Pending
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.plain_rewinds import Rewind
from inorder.transport.grpc.plain_turns import InTurn, all_known, in_parts, known_by

_ACKNOWLEDGE = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"

LONG_OVER_US = 2 * MAX_ACK_DEADLINE_SECONDS * MICROSECONDS  # whatever took long on its way

Over = Pending[list[int]]  # of the leases that something was said of, those that are not out


class _Held(NamedTuple):
    """A message that is out here. Its ack id is another one whenever it comes again."""

    ack_id: str
    message_id: str
    key: str
    came: int  # as which of all that came, when it came last
    until_us: int  # when its lease is over, unless the server counts from an earlier moment


_Failed = list[tuple[Rewind, int]]  # keys, and when the lease is over of the first message that failed


class PlainAnswers:
    """The leases of one subscription that are out here. Thread-safe. The server does not tell which are over."""

    def __init__(
        self, calls: Calls, resource: str, clock: Clock, lease_seconds: float = MAX_ACK_DEADLINE_SECONDS
    ) -> None:
        self._calls = calls
        self._resource = resource
        self._clock = clock
        self._lease_us = round(lease_seconds * MICROSECONDS)
        self._lock = threading.Lock()
        self._out: dict[int, _Held] = {}  # by lease; the one that was kept last is the last
        self._count = 0
        self._acks = InTurn(self._acknowledge, calls.timeout_seconds)
        self._nacks = InTurn(partial(self._modify, 0), calls.timeout_seconds)

    def leased(self, received: Iterable[Any]) -> list[int]:
        """The number of each message that somebody has pulled."""
        with self._lock:
            now_us = self._clock.now_us()
            self._tidy(now_us)
            leases: list[int] = []
            for one in received:
                self._count += 1
                leases.append(self._lease(one, now_us))
            return leases

    def _lease(self, one: Any, now_us: int) -> int:
        message, until_us = one.message, now_us + self._lease_us
        self._hold(self._count, _Held(one.ack_id, message.message_id, message.ordering_key, self._count, until_us))
        return self._count

    def _hold(self, lease: int, held: _Held) -> None:
        self._out[lease] = held

    def _tidy(self, now_us: int) -> None:
        """What nobody has answered for is over, and is not to be kept in memory."""
        while self._out:
            oldest = next(iter(self._out))
            if self._out[oldest].until_us > now_us - LONG_OVER_US:
                return
            self._forget(oldest)

    def _forget(self, lease: int) -> None:
        self._out.pop(lease, None)

    # -- what is said ------------------------------------------------------------------------------

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Over:
        if not nacks:
            return self._ack(acks)
        if not acks:
            return self._nack(nacks)
        return Pending.all([self._ack(acks), self._nack(nacks)]).map(lambda over: [*over[0], *over[1]])

    def extend(self, leases: Sequence[int], seconds: float) -> Over:
        try:
            check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS)
        except InvalidArgument as error:
            return Pending.failed(error)
        return self._keep(leases, ceil(seconds)) if seconds else self._nack(leases)

    def _ack(self, leases: Sequence[int]) -> Over:
        with self._lock:
            found = self._found(leases)
            for lease in found:
                self._forget(lease)
            said = self._acks.say([held.ack_id for held in found.values()])
        said.add_done_callback(partial(self._acked, found))
        return said.map(partial(_over, leases, found))

    def _acked(self, found: dict[int, _Held], said: Pending[bool]) -> None:
        """The server has these, or not."""

    def _nack(self, leases: Sequence[int]) -> Over:
        with self._lock:
            found = self._found(leases)
            failed, behind = self._rewind(found)
            for lease in found:
                self._forget(lease)
            # The server takes those behind back anyway, unless it takes what failed for dead, and so for done. Said
            # here, so that whoever finds these forgotten says what comes of that after this.
            said = self._nacks.say([held.ack_id for held in (*found.values(), *behind)])
        said.add_done_callback(partial(self._heard, failed))
        return said.map(partial(_over, leases, found))

    def _heard(self, failed: _Failed, said: Pending[bool]) -> None:
        gone_back = said.exception() is None and said.result()
        with self._lock:
            for rewind, until_us in failed:
                if gone_back:
                    rewind.went_back(self._clock.now_us())
                else:
                    rewind.lost(until_us)

    def _rewind(self, found: dict[int, _Held]) -> tuple[_Failed, list[_Held]]:
        """Begin to pass over what comes early of the keys of these, and forget what is out behind them.

        Returns also until when the leases of the first ones last. Nothing comes early of what was pulled.
        """
        return [], []

    def _keep(self, leases: Sequence[int], seconds: int) -> Over:
        with self._lock:
            found = self._found(leases)
            until_us = self._clock.now_us() + seconds * MICROSECONDS
            for lease, held in found.items():
                del self._out[lease]
                self._out[lease] = held._replace(until_us=until_us)
        # Not in turn: each makes the others of no account, and while nobody answers they would only wait in line.
        sent = [
            known_by(self._modify(seconds, some, self._calls.timeout_seconds))
            for some in in_parts([held.ack_id for held in found.values()])
        ]

        def over(known: bool) -> list[int]:
            if not known:
                self._lose(found)
            return _over(leases, found, known)

        kept = all_known(sent).map(over)
        # What is known here is told at once, whatever becomes of the others.
        return Pending.of(_over(leases, found, True)) if len(found) < len(leases) else kept

    def _found(self, leases: Iterable[int]) -> dict[int, _Held]:
        return {lease: self._out[lease] for lease in leases if lease in self._out}

    def _lose(self, found: dict[int, _Held]) -> None:
        """The server does not know all of these, and does not say which."""
        with self._lock:
            self._let_come_again(self._found(found))

    def _let_come_again(self, lost: dict[int, _Held]) -> None:
        """These are not ours any more, and the server has not been told so."""
        failed, _ = self._rewind(lost)
        for rewind, until_us in failed:
            rewind.lost(until_us)
        for lease in lost:
            self._forget(lease)

    def _acknowledge(self, ack_ids: Sequence[str], timeout_seconds: float) -> Pending[bytes]:
        request = pubsub.AcknowledgeRequest.pb()(subscription=self._resource, ack_ids=ack_ids)
        return self._calls.repeated(_ACKNOWLEDGE, request.SerializeToString(), timeout_seconds)

    def _modify(self, seconds: int, ack_ids: Sequence[str], timeout_seconds: float) -> Pending[bytes]:
        request = pubsub.ModifyAckDeadlineRequest.pb()(
            subscription=self._resource, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        return self._calls.repeated(_MODIFY, request.SerializeToString(), timeout_seconds)


class StreamAnswers(PlainAnswers):
    """The same for what comes on a stream, and so comes again there.

    A message that comes again was over, and is ours again: so its lease goes on here as if nothing had happened. And of
    an `ordered` subscription, what is out behind a message that failed comes again after it: so those leases are over
    by that.
    """

    def __init__(self, calls: Calls, resource: str, clock: Clock, lease_seconds: float, *, ordered: bool) -> None:
        super().__init__(calls, resource, clock, lease_seconds)
        self._ordered = ordered
        self._leases: dict[str, int] = {}  # by the ids of their messages
        self._of_keys: dict[str, dict[int, None]] = {}  # the leases of each key, in their order
        self._rewinds: dict[str, Rewind] = {}  # by the keys that failed, until they come again; in their order

    def arrived(self, received: Iterable[Any]) -> list[tuple[Any, int]]:
        """Those of these messages that are news here, and their numbers."""
        news: list[tuple[Any, int]] = []
        with self._lock:
            now_us = self._clock.now_us()
            self._tidy(now_us)
            for one in received:
                self._count += 1
                message_id = one.message.message_id
                if self._rewinds and self._is_early(one.message, now_us):
                    continue
                if (lease := self._leases.get(message_id)) is not None:
                    held = self._out.pop(lease)
                    self._out[lease] = held._replace(
                        ack_id=one.ack_id, came=self._count, until_us=now_us + self._lease_us
                    )
                else:
                    news.append((one, self._lease(one, now_us)))
        return news

    def still_out(self, received: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Those that did not go back since they came."""
        with self._lock:
            return [pair for pair in received if pair[1] in self._out]

    def _is_early(self, message: Any, now_us: int) -> bool:
        """Whether it came before one of its key that failed. If it does not, all that follows is in its place."""
        rewind = self._rewinds.get(message.ordering_key)
        if rewind is not None and not rewind.ends_with(message.message_id, now_us):
            return True
        self._rewinds.pop(message.ordering_key, None)
        return False

    def _hold(self, lease: int, held: _Held) -> None:
        super()._hold(lease, held)
        self._leases[held.message_id] = lease
        if self._ordered and held.key:
            self._of_keys.setdefault(held.key, {})[lease] = None

    def _tidy(self, now_us: int) -> None:
        super()._tidy(now_us)
        while self._rewinds:
            key = next(iter(self._rewinds))
            if not self._rewinds[key].is_over(now_us):
                return
            del self._rewinds[key]

    def _forget(self, lease: int) -> None:
        held = self._out.pop(lease, None)
        if held is None:
            return
        del self._leases[held.message_id]
        if of_key := self._of_keys.get(held.key):
            del of_key[lease]
            if not of_key:
                del self._of_keys[held.key]

    def _acked(self, found: dict[int, _Held], said: Pending[bool]) -> None:
        """If they are not, or nobody knows, they come again, and what is behind them after them."""
        if not self._ordered or (said.exception() is None and said.result()):
            return
        with self._lock:
            # Those that have come again meanwhile are out as others.
            unknown = {lease: held for lease, held in found.items() if held.message_id not in self._leases}
            for lease, held in unknown.items():
                self._hold(lease, held)
            for key in {held.key for held in unknown.values() if held.key}:
                self._of_keys[key] = dict.fromkeys(sorted(self._of_keys[key]))
            self._let_come_again(unknown)

    def _rewind(self, found: dict[int, _Held]) -> tuple[_Failed, list[_Held]]:
        first: dict[str, int] = {}
        if self._ordered:
            for lease, held in found.items():
                if held.key:
                    first[held.key] = min(lease, first.get(held.key, lease))
        failed: _Failed = []
        behind: list[_Held] = []
        for key, lease in first.items():
            rewind = self._rewinds.pop(key, None) or self._rewind_of(key)
            rewind.fail(found[lease].message_id, lease)
            self._rewinds[key] = rewind
            failed.append((rewind, found[lease].until_us))
            for other in [*takewhile(partial(lt, lease), reversed(self._of_keys[key]))][::-1]:
                if other not in found:
                    behind.append(self._out[other])
                    self._forget(other)
        return failed, behind

    def _rewind_of(self, key: str) -> Rewind:
        out = {lease: self._out[lease] for lease in self._of_keys[key]}
        last = max(out, key=lambda lease: out[lease].came)
        return Rewind(self._lease_us, {held.message_id: lease for lease, held in out.items()}, last)


def _over(leases: Sequence[int], found: Collection[int], known: bool) -> list[int]:
    """All of them, if the server does not know some, as it does not say which."""
    return [lease for lease in leases if lease not in found] if known else [*leases]
