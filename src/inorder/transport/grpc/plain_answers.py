"""Acks and deadlines by the calls of google.pubsub.v1, for leases that are counted here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument, NotFound
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number
from inorder.pending import Pending
from inorder.transport.grpc.calls import Calls, later
from inorder.transport.grpc.plain_rewinds import Rewind

_ACKNOWLEDGE = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"
AT_ONCE = 1_000  # ack ids of a request
LONG_OVER_US = 2 * MAX_ACK_DEADLINE_SECONDS * MICROSECONDS  # since it was kept last, whatever took long on its way


class _Held(NamedTuple):
    """A message that is out here. Its ack id is another one whenever it comes again."""

    ack_id: str
    message_id: str
    key: str
    came: int  # as which of all that came, when it came last
    since_us: int  # kept last


class PlainAnswers:
    """The leases of one subscription that are out here. Thread-safe.

    The server does not tell which leases are over. But a message that comes again was over, and is ours again: so its
    lease goes on here as if nothing had happened. And of an `ordered` subscription, what is out behind a message that
    failed comes again after it: so those leases are over by that.
    """

    def __init__(self, calls: Calls, resource: str, clock: Clock, *, ordered: bool) -> None:
        self._clock = clock
        self._ordered = ordered
        self._resource = resource
        self._lock = threading.Lock()
        self._out: dict[int, _Held] = {}  # by lease; the one that was kept last is the last
        self._leases: dict[str, int] = {}  # of messages that came on a stream, by their ids
        self._rewinds: dict[str, Rewind] = {}  # by the keys that failed, until they come again; in their order
        self._count = 0
        self._acks = _InTurn(partial(self._acknowledge, calls))
        self._deadlines = _InTurn(partial(self._modify, calls))

    def leased(self, received: Iterable[Any]) -> list[int]:
        """The number of each message that somebody has pulled."""
        with self._lock:
            now_us = self._clock.now_us()
            self._forget_long_over(now_us)
            leases: list[int] = []
            for one in received:
                self._count += 1
                leases.append(self._lease(one, now_us))
            return leases

    def arrived(self, received: Iterable[Any]) -> list[tuple[Any, int]]:
        """Of messages that came on a stream those that are news here, and their numbers."""
        news: list[tuple[Any, int]] = []
        early: list[str] = []
        with self._lock:
            now_us = self._clock.now_us()
            self._forget_long_over(now_us)
            for one in received:
                self._count += 1
                message_id = one.message.message_id
                if self._rewinds and not self._is_due(one.message.ordering_key, message_id):
                    early.append(one.ack_id)
                elif (lease := self._leases.get(message_id)) is not None:
                    self._out[lease] = self._out[lease]._replace(ack_id=one.ack_id, came=self._count)
                else:
                    lease = self._leases[message_id] = self._lease(one, now_us)
                    news.append((one, lease))
            if early:
                # Mostly they are over by now. If not, they come again at once, and in their places.
                self._deadlines.say(early, 0)
        return news

    def still_out(self, received: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Those that did not go back since they came."""
        with self._lock:
            return [pair for pair in received if pair[1] in self._out]

    def _lease(self, one: Any, now_us: int) -> int:
        message = one.message
        self._out[self._count] = _Held(one.ack_id, message.message_id, message.ordering_key, self._count, now_us)
        return self._count

    def _is_due(self, key: str, message_id: str) -> bool:
        rewind = self._rewinds.get(key)
        if rewind is not None and not rewind.ends_with(message_id):
            return False
        self._rewinds.pop(key, None)
        return True

    def _forget_long_over(self, now_us: int) -> None:
        """What nobody has answered for is over, and is not to be kept in memory. Nor is what will not come again."""
        while self._out:
            oldest = next(iter(self._out))
            if self._out[oldest].since_us > now_us - LONG_OVER_US:
                break
            self._forget(oldest)
        while self._rewinds:
            key = next(iter(self._rewinds))
            if self._rewinds[key].since_us > now_us - LONG_OVER_US:
                break
            del self._rewinds[key]

    def _forget(self, lease: int) -> None:
        held = self._out.pop(lease, None)
        if held is not None and self._leases.get(held.message_id) == lease:
            del self._leases[held.message_id]

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        if not nacks:
            return self._say(acks, None)
        if not acks:
            return self._say(nacks, 0)
        both = Pending.all([self._say(acks, None), self._say(nacks, 0)])
        return both.map(lambda over: [*over[0], *over[1]])

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        try:
            check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS)
        except InvalidArgument as error:
            return Pending.failed(error)
        return self._say(leases, ceil(seconds))

    def _say(self, leases: Sequence[int], seconds: int | None) -> Pending[list[int]]:
        """Ack, or set a deadline; the reply is those that are not out."""
        with self._lock:
            found = {lease: self._out[lease] for lease in leases if lease in self._out}
            if seconds == 0 and self._ordered:
                self._rewind(found)
            for lease, held in found.items():
                if seconds:
                    del self._out[lease]
                    self._out[lease] = held._replace(since_us=self._clock.now_us())
                else:
                    self._forget(lease)
            over = [lease for lease in leases if lease not in found]
            if not found:
                return Pending.of(over)
            # Here, so that whoever finds these forgotten says what comes of that after this.
            said = (self._deadlines if seconds is not None else self._acks).say(
                [held.ack_id for held in found.values()], seconds
            )
        return said.map(lambda valid: over if valid else [*over, *self._invalid(found)])

    def _invalid(self, leases: Iterable[int]) -> Iterable[int]:
        """All of these, as the server does not say which."""
        with self._lock:
            for lease in leases:
                self._forget(lease)
        return leases

    def _rewind(self, failed: dict[int, _Held]) -> None:
        """With what has failed, forget what is out behind it in its keys."""
        first: dict[str, int] = {}
        for lease, held in failed.items():
            if held.key:
                first[held.key] = min(lease, first.get(held.key, lease))
        if not first:
            return
        places: dict[str, dict[str, int]] = {key: {} for key in first}
        last: dict[str, tuple[int, int]] = {}
        for lease, held in [*self._out.items()]:
            if held.key in first:
                places[held.key][held.message_id] = lease
                last[held.key] = max((held.came, lease), last.get(held.key, (0, 0)))
                if lease > first[held.key]:
                    self._forget(lease)
        for key, lease in first.items():
            before = self._rewinds.pop(key, None)
            self._rewinds[key] = Rewind(lease, places[key], last[key][1], before, self._clock.now_us())

    def _acknowledge(self, calls: Calls, ack_ids: list[str], _: None) -> Pending[bytes]:
        request = pubsub.AcknowledgeRequest.pb()(subscription=self._resource, ack_ids=ack_ids)
        return calls.repeated(_ACKNOWLEDGE, request.SerializeToString())

    def _modify(self, calls: Calls, ack_ids: list[str], seconds: int) -> Pending[bytes]:
        request = pubsub.ModifyAckDeadlineRequest.pb()(
            subscription=self._resource, ack_ids=ack_ids, ack_deadline_seconds=seconds
        )
        return calls.repeated(_MODIFY, request.SerializeToString())


class _Said(NamedTuple):
    ack_ids: Sequence[str]
    seconds: Any
    valid: Pending[bool]


class _InTurn:
    """Requests one after the other: what is said while one is under way goes together with the next.

    If each ack were a request, a server that answers slowly would be sent a thousand of them; it would send one message
    for each, these would be acked one by one, and it would go on like that. And nacks must not overtake each other.
    """

    def __init__(self, send: Callable[[list[str], Any], Pending[bytes]]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: list[_Said] = []
        self._under_way = False

    def say(self, ack_ids: Sequence[str], seconds: int | None) -> Pending[bool]:
        """The reply is whether the server knows all of these ack ids, as far as it tells."""
        said = [
            _Said(ack_ids[start : start + AT_ONCE], seconds, Pending()) for start in range(0, len(ack_ids), AT_ONCE)
        ]
        with self._lock:
            self._waiting += said
            if not self._under_way:
                later(0, self._next)  # not here, where it may be interrupted, as by Ctrl-C: others wait for it
                self._under_way = True
        return said[0].valid if len(said) == 1 else Pending.all([one.valid for one in said]).map(all)

    def _next(self) -> None:
        with self._lock:
            together = self._go_together()
            self._under_way = bool(together)
        if not together:
            return
        ack_ids = [ack_id for said in together for ack_id in said.ack_ids]

        def finished(sent: Pending[bytes]) -> None:
            error = sent.exception()
            valid = not isinstance(error, InvalidArgument | NotFound)
            for said in together:
                if error is not None and valid:
                    said.valid.set_exception(error)
                else:
                    said.valid.set_result(valid)
            self._next()

        self._send(ack_ids, together[0].seconds).add_done_callback(finished)

    def _go_together(self) -> list[_Said]:
        """What waits first, and with it what is the same and finds room."""
        room, count = AT_ONCE, 0
        for said in self._waiting:
            room -= len(said.ack_ids)
            if room < 0 or said.seconds != self._waiting[0].seconds:
                break
            count += 1
        together, self._waiting = self._waiting[:count], self._waiting[count:]
        return together
