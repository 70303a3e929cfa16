"""What is said of leases: acks, nacks, deadlines and returns, gathered into requests, each with the reply to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inorder.errors import InorderError, NotFound
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.grpc.calls import Calls, later

ANSWER = "/inorder.v1.Inorder/Answer"


@dataclass(slots=True, eq=False)
class Said:
    """One thing that was said, and the reply: those of its leases that were over already."""

    acks: Sequence[int] = ()
    nacks: Sequence[int] = ()
    kept: Sequence[int] = ()
    seconds: float = 0
    released: Sequence[int] = ()
    stale: Sequence[int] = ()  # those that were over before anybody could be asked
    reply: Pending[list[int]] = field(default_factory=Pending)

    def answered(self, over: Iterable[int]) -> None:
        over = {*over, *self.stale}
        named = (*self.acks, *self.nacks, *self.kept) if over else ()
        self.reply.set_result([lease for lease in named if lease in over])

    def too_late(self) -> None:
        """All its leases are over."""
        self.reply.set_result([*self.acks, *self.nacks, *self.kept])


def fill(demand: v1.Demand, said: Iterable[Said], prefix: str, offset: int) -> None:
    """Put all that was said into one request. Of several deadlines of a lease the last counts.

    Leases below `offset` are those of a server that is no more. This one knows nothing of them: they are over.
    """
    demand.ack_id_prefix = prefix
    kept: dict[int, float] = {}
    for one in said:
        if offset:
            one.stale = [lease for lease in (*one.acks, *one.nacks, *one.kept) if lease < offset]
        demand.acks.extend(_numbers(one.acks, offset))
        demand.nacks.extend(_numbers(one.nacks, offset))
        demand.releases.extend(_numbers(one.released, offset))
        kept.update(dict.fromkeys(_numbers(one.kept, offset), one.seconds))
    by_seconds: dict[float, list[int]] = {}
    for lease, seconds in kept.items():
        by_seconds.setdefault(seconds, []).append(lease)
    for seconds, leases in by_seconds.items():
        demand.keeps.add(leases=leases, seconds=seconds)


def _numbers(leases: Sequence[int], offset: int) -> Sequence[int]:
    """As the server counts them."""
    return leases if not offset else [lease - offset for lease in leases if lease >= offset]


class CallAnswers:
    """Says it by calls, one after the other: what comes while one is under way goes together with the next."""

    def __init__(self, calls: Calls, subscription: str, prefix: str, offset: int = 0) -> None:
        self._calls = calls
        self._subscription = subscription
        self._prefix = prefix
        self._offset = offset
        self._lock = threading.Lock()
        self._waiting: list[Said] = []
        self._under_way = False

    def say(self, said: Said) -> None:
        with self._lock:
            self._waiting.append(said)
            if not self._under_way:
                later(0, self._send)  # not here, where it may be interrupted, as by Ctrl-C: others wait for it
                self._under_way = True

    def _send(self) -> None:
        with self._lock:
            said, self._waiting = self._waiting, []
            self._under_way = bool(said)
        if not said:
            return
        demand = v1.Demand(subscription=self._subscription)
        fill(demand, said, self._prefix, self._offset)

        def finished(answer: Pending[bytes]) -> None:
            error = answer.exception()
            over = v1.Confirmation.FromString(answer.result()).over if error is None else ()
            for one in said:
                if isinstance(error, NotFound):
                    one.too_late()  # the leases of a subscription go with it
                elif isinstance(error, InorderError):
                    one.reply.set_exception(error)
                else:
                    one.answered([lease + self._offset for lease in over])
            self._send()

        self._calls.repeated(ANSWER, demand.SerializeToString()).add_done_callback(finished)
