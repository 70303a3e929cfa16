"""Messages that were asked for, one call at a time, and their answers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence

from inorder.errors import InvalidAckId
from inorder.message import DATA, Gap, Message
from inorder.options import MAX_ACK_DEADLINE_SECONDS, check_number, check_whole
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.grpc.answering import CallAnswers, Said
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.columns import arrived

TAKE = "/inorder.v1.Inorder/Take"
MAX_TAKEN = 1_000  # by one call
MAX_UNSEEN = 1_000  # answers that a server is told to be lost: so many do not get lost within a lease


class Puller:
    """Pulls from one subscription."""

    def __init__(self, calls: Calls, resource: str) -> None:
        self._calls = calls
        self._resource = resource
        self._sources: dict[str, PulledFrom] = {}  # by what their ack ids begin with
        self._unseen = Unseen()

    def pull(self, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        def take() -> Pending[bytes]:
            check_whole("max_messages", max_messages)
            taking = _Taking(self._resource, min(max_messages, MAX_TAKEN), self._unseen)
            taken = self._calls.renewed(TAKE, taking.request)
            taken.add_done_callback(taking.ended)
            return taken

        def taken(response: bytes) -> Pending[list[Message]]:
            delivery = v1.Delivery.FromString(response)
            messages = arrived(delivery.messages).messages(self._source(delivery.terms))
            gaps = [message._record[DATA] for message in messages if isinstance(message._record[DATA], Gap)]
            if not gaps:
                return Pending.of(messages)
            return _told(gaps, on_gap).map(
                lambda _: [message for message in messages if not isinstance(message._record[DATA], Gap)]
            )

        return Pending.run(take).then(lambda taking: taking).then(taken)

    def _source(self, terms: v1.Terms) -> PulledFrom:
        source = self._sources.get(terms.ack_id_prefix)
        if source is None:
            answers = CallAnswers(self._calls, self._resource, terms.ack_id_prefix)
            source = self._sources[terms.ack_id_prefix] = PulledFrom(answers, terms)
        return source


def _told(gaps: Sequence[Gap], on_gap: Callable[[Gap], object]) -> Pending[None]:
    """Done when it was told of these: on a thread of its own, as here all answers of the server come.

    Whoever listens may wait for one of them.
    """
    told: Pending[None] = Pending()

    def tell() -> None:
        Pending.run(lambda: [on_gap(gap) for gap in gaps]).map(lambda _: None).hand_to(told)

    threading.Thread(target=tell, name="inorder-gaps", daemon=True).start()
    return told


class Unseen:
    """Takes whose answers were lost: the server gives back what they have brought, before it brings more. Thread-safe.

    Else what comes behind that in its key would come before it, where several of a key may be out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._takes: dict[str, None] = {}

    def add(self, take: str) -> None:
        with self._lock:
            self._takes[take] = None
            if len(self._takes) > MAX_UNSEEN:
                del self._takes[next(iter(self._takes))]

    def all(self) -> list[str]:
        with self._lock:
            return [*self._takes]

    def told(self, takes: Sequence[str]) -> None:
        with self._lock:
            for take in takes:
                self._takes.pop(take, None)


class _Taking:
    """One pull, however often the server is asked."""

    def __init__(self, resource: str, max_messages: int, unseen: Unseen) -> None:
        self._resource = resource
        self._max_messages = max_messages
        self._unseen = unseen
        self._take = ""
        self._told: list[str] = []

    def request(self) -> bytes:
        if self._take:
            self._unseen.add(self._take)
        self._take, self._told = uuid.uuid4().hex, self._unseen.all()
        request = v1.TakeRequest(
            subscription=self._resource, max_messages=self._max_messages, take=self._take, unseen=self._told
        )
        raw: bytes = request.SerializeToString()
        return raw

    def ended(self, taken: Pending[bytes]) -> None:
        if taken.exception() is None:
            self._unseen.told(self._told)
        else:
            self._unseen.add(self._take)


class PulledFrom:
    """Where messages came from, and so where their answers go."""

    def __init__(self, answers: CallAnswers, terms: v1.Terms) -> None:
        self.id_prefix = terms.id_prefix
        self.ack_id_prefix = terms.ack_id_prefix
        self._answers = answers

    def ack(self, message: Message, answer: Pending[None]) -> None:
        self._say(Said(acks=[message._lease]), message._lease).hand_to(answer)

    def nack(self, message: Message, answer: Pending[None]) -> None:
        self._say(Said(nacks=[message._lease]), message._lease).hand_to(answer)

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        checked = Pending.run(lambda: check_number("seconds", seconds, up_to=MAX_ACK_DEADLINE_SECONDS))
        return checked.then(lambda _: self._say(Said(kept=[lease], seconds=seconds), lease))

    def _say(self, said: Said, lease: int) -> Pending[None]:
        def replied(over: list[int]) -> None:
            if over:
                raise InvalidAckId(f"{self.ack_id_prefix}{lease}")

        self._answers.say(said)
        return said.reply.map(replied)
