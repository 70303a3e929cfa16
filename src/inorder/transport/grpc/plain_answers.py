"""Acks and deadlines by the calls of google.pubsub.v1, for leases that are counted here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument, NotFound
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number
from inorder.pending import Pending
from inorder.transport.grpc.calls import Calls, later

_ACKNOWLEDGE = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"
AT_ONCE = 1_000  # ack ids of a request
LONG_OVER_US = 2 * MAX_ACK_DEADLINE_SECONDS * MICROSECONDS  # since it was kept last, whatever took long on its way


class PlainAnswers:
    """The leases of one subscription that are out here. Thread-safe.

    The server does not tell which leases are over. But of an `ordered` subscription, what is out behind a message that
    failed comes again after it: so those leases are over by that.
    """

    def __init__(self, calls: Calls, resource: str, clock: Clock, *, ordered: bool) -> None:
        self._clock = clock
        self._ordered = ordered
        self._resource = resource
        self._lock = threading.Lock()
        # Lease → ack id, key, and since when; the one that was kept last is the last.
        self._out: dict[int, tuple[str, str, int]] = {}
        self._count = 0
        self._acks = _InTurn(partial(self._acknowledge, calls))
        self._deadlines = _InTurn(partial(self._modify, calls))

    def leased(self, received: Iterable[Any]) -> list[int]:
        """The number of each received message."""
        with self._lock:
            leases: list[int] = []
            now_us = self._clock.now_us()
            self._forget_long_over(now_us)
            for one in received:
                self._count += 1
                self._out[self._count] = one.ack_id, one.message.ordering_key, now_us
                leases.append(self._count)
            return leases

    def _forget_long_over(self, now_us: int) -> None:
        """What nobody has answered for is over, and is not to be kept in memory."""
        while self._out:
            oldest = next(iter(self._out))
            if self._out[oldest][2] > now_us - LONG_OVER_US:
                return
            del self._out[oldest]

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        acked = self._say(acks, None, forget=True)
        nacked = self._say(nacks, 0, forget=True)
        return Pending.all([acked, nacked]).map(lambda over: [*over[0], *over[1]])

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        try:
            check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS)
        except InvalidArgument as error:
            return Pending.failed(error)
        return self._say(leases, ceil(seconds), forget=seconds == 0)

    def _say(self, leases: Sequence[int], seconds: int | None, *, forget: bool) -> Pending[list[int]]:
        """Ack, or set a deadline; the reply is those that are not out."""
        with self._lock:
            found = {lease: self._out[lease] for lease in leases if lease in self._out}
            for lease, (ack_id, key, _) in found.items():
                del self._out[lease]
                if not forget:
                    self._out[lease] = ack_id, key, self._clock.now_us()
            if seconds == 0 and self._ordered:
                self._take_back({key for _, key, _ in found.values() if key})
        over = [lease for lease in leases if lease not in found]
        if not found:
            return Pending.of(over)
        said = self._deadlines if seconds is not None else self._acks
        return said.say([ack_id for ack_id, _, _ in found.values()], seconds).map(
            lambda valid: over if valid else [*over, *found]  # all of these, as the server does not say which
        )

    def _take_back(self, keys: Collection[str]) -> None:
        if keys:
            self._out = {lease: held for lease, held in self._out.items() if held[1] not in keys}

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
        return Pending.all([one.valid for one in said]).map(all)

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
