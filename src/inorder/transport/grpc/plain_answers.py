"""Acks and deadlines by the calls of google.pubsub.v1, for leases that are counted here."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from math import ceil
from typing import Any

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument, NotFound
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number
from inorder.pending import Pending
from inorder.transport.grpc.calls import Calls

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
        self._calls = calls
        self._resource = resource
        self._lock = threading.Lock()
        # Lease → ack id, key, and since when; the one that was kept last is the last.
        self._out: dict[int, tuple[str, str, int]] = {}
        self._count = 0

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
        ack_ids = [ack_id for ack_id, _, _ in found.values()]
        calls = [
            self._send(ack_ids[start : start + AT_ONCE], seconds, list(found)[start : start + AT_ONCE])
            for start in range(0, len(ack_ids), AT_ONCE)
        ]
        return Pending.all(calls).map(lambda invalid: [*over, *(lease for some in invalid for lease in some)])

    def _take_back(self, keys: Collection[str]) -> None:
        if keys:
            self._out = {lease: held for lease, held in self._out.items() if held[1] not in keys}

    def _send(self, ack_ids: list[str], seconds: int | None, leases: list[int]) -> Pending[list[int]]:
        if seconds is None:
            request = pubsub.AcknowledgeRequest.pb()(subscription=self._resource, ack_ids=ack_ids)
            sent = self._calls.repeated(_ACKNOWLEDGE, request.SerializeToString())
        else:
            request = pubsub.ModifyAckDeadlineRequest.pb()(
                subscription=self._resource, ack_ids=ack_ids, ack_deadline_seconds=seconds
            )
            sent = self._calls.repeated(_MODIFY, request.SerializeToString())
        reply: Pending[list[int]] = Pending()

        def finished(done: Pending[bytes]) -> None:
            error = done.exception()
            if isinstance(error, InvalidArgument | NotFound):
                reply.set_result(leases)
            elif error is not None:
                reply.set_exception(error)
            else:
                reply.set_result([])

        sent.add_done_callback(finished)
        return reply
