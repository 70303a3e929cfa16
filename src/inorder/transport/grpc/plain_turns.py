"""Requests of one kind, one after the other: what is said while one is under way goes together with the next.

If each ack were a request, a server that answers slowly would be sent a thousand of them; it would send one message for
each, these would be acked one by one, and it would go on like that. And nacks must not overtake each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from inorder.errors import InvalidArgument, NotFound
from inorder.pending import Pending
from inorder.transport.grpc.calls import call_back, later

AT_ONCE = 1_000  # ack ids of a request

Send = Callable[[Sequence[str], float], Pending[bytes]]  # ack ids, and within how many seconds it must be answered


class InTurn:
    """Thread-safe."""

    def __init__(self, send: Send, timeout_seconds: float) -> None:
        self._send = send
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._waiting: list[_Said] = []
        self._under_way = False

    def say(self, ack_ids: Sequence[str]) -> Pending[bool]:
        """The reply is whether the server knows all of these ack ids, as far as it tells."""
        give_up = time.monotonic() + self._timeout_seconds  # however many others have to be answered before
        said = [_Said(some, give_up, Pending()) for some in in_parts(ack_ids)]
        with self._lock:
            self._waiting += said
            if not self._under_way and said:
                later(0, self._next)  # not here, where it may be interrupted, as by Ctrl-C: others wait for it
                self._under_way = True
        return all_known([one.known for one in said])

    def _next(self) -> None:
        with self._lock:
            together = self._go_together()
            self._under_way = bool(together)
        if not together:
            return
        ack_ids = [ack_id for said in together for ack_id in said.ack_ids]

        def finished(known: Pending[bool]) -> None:
            for said in together:
                known.hand_to(said.known)
            self._next()

        # By the time of the last, who should not have to pay for the first.
        seconds = max(together[-1].give_up - time.monotonic(), 0)
        sent = Pending.run(lambda: self._send(ack_ids, seconds)).then(lambda sending: sending)
        call_back(known_by(sent), finished)

    def _go_together(self) -> list[_Said]:
        """What waits first, and with it what finds room."""
        room, count = AT_ONCE, 0
        for said in self._waiting:
            room -= len(said.ack_ids)
            if room < 0:
                break
            count += 1
        together, self._waiting = self._waiting[:count], self._waiting[count:]
        return together


class _Said(NamedTuple):
    ack_ids: Sequence[str]
    give_up: float
    known: Pending[bool]


def in_parts(ack_ids: Sequence[str]) -> list[Sequence[str]]:
    """As many at a time as a request may have."""
    return [ack_ids[start : start + AT_ONCE] for start in range(0, len(ack_ids), AT_ONCE)]


def known_by(sent: Pending[bytes]) -> Pending[bool]:
    """Whether a request was done; not if the server does not know what it names."""
    known: Pending[bool] = Pending()

    def finished(done: Pending[bytes]) -> None:
        error = done.exception()
        if error is None or isinstance(error, InvalidArgument | NotFound):
            known.set_result(error is None)
        else:
            known.set_exception(error)

    sent.add_done_callback(finished)
    return known


def all_known(known: Sequence[Pending[bool]]) -> Pending[bool]:
    return known[0] if len(known) == 1 else Pending.all(known).map(all)
