"""Acks and deadlines by the calls of google.pubsub.v1, for leases that are counted here."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from math import ceil
from typing import Any

from google.pubsub_v1.types import pubsub

from inorder.errors import InvalidArgument, NotFound
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number
from inorder.pending import Pending
from inorder.transport.grpc.calls import Calls

_ACKNOWLEDGE = "/google.pubsub.v1.Subscriber/Acknowledge"
_MODIFY = "/google.pubsub.v1.Subscriber/ModifyAckDeadline"
AT_ONCE = 1_000  # ack ids of a request


class PlainAnswers:
    """The leases of one subscription that are out here. Thread-safe.

    The server does not tell which leases are over. But of an `ordered` subscription, what is out behind a message that
    failed comes again after it: so those leases are over by that.
    """

    def __init__(self, calls: Calls, resource: str, *, ordered: bool) -> None:
        self._ordered = ordered
        self._calls = calls
        self._resource = resource
        self._lock = threading.Lock()
        self._out: dict[int, tuple[str, str]] = {}  # lease → ack id and key
        self._count = 0

    def leased(self, received: Iterable[Any]) -> list[int]:
        """The number of each received message."""
        with self._lock:
            leases: list[int] = []
            for one in received:
                self._count += 1
                self._out[self._count] = one.ack_id, one.message.ordering_key
                leases.append(self._count)
            return leases

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
            if forget:
                for lease in found:
                    del self._out[lease]
            if seconds == 0 and self._ordered:
                self._take_back({key for _, key in found.values() if key})
        over = [lease for lease in leases if lease not in found]
        ack_ids = [ack_id for ack_id, _ in found.values()]
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
