"""One consumer's side of a subscription of a server that knows google.pubsub.v1 only.

Messages come on a stream; answers go by calls, as those of Google's own clients do. The server counts what is out, and
sends no more than the subscription's flow control when the stream is begun.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock, Timer
from inorder.errors import InorderError, NotFound, SubscriptionNotFound
from inorder.message import Leased, Message, Recipient, Record, Source, delivered
from inorder.options import FlowControl, SubscriptionOptions
from inorder.pending import Pending
from inorder.transport import Taken, TakenLists
from inorder.transport.grpc.calls import Calls, pause_after, pauses
from inorder.transport.grpc.plain_answers import StreamAnswers
from inorder.transport.grpc.stream import STREAMING_PULL, Terms

MIN_STREAM_SECONDS = 10  # the shortest deadline that a stream may have

_log = logging.getLogger(__name__)


class PlainDeliveries:
    """A consumer. Thread-safe."""

    def __init__(
        self,
        calls: Calls,
        clock: Clock,
        subscription: str,
        resource: str,
        options: SubscriptionOptions,
        answers: StreamAnswers,
        wake: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._subscription = subscription
        self._resource = resource
        self._answers = answers
        self._wake = wake
        self.terms = Terms()
        self.terms.options = options
        self.id_prefix = ""
        self.ack_id_prefix = ""
        self._options = options
        self._lock = threading.Lock()
        self._arrived: list[tuple[Any, int]] = []  # messages and leases
        self._since_us = 0  # from when these leases last
        self._keeper: Timer | None = None
        self._failure: InorderError | None = None
        self._hang_up = threading.Event()
        self._closed: Pending[None] = Pending()
        self._call: Any = None
        self._over = threading.Event()  # the stream in use is
        threading.Thread(target=self._run, name="inorder-stream", daemon=True).start()

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Taken:
        received, since_us = self._received(max_messages)
        messages = read(received, lambda prefix: From(prefix, source))
        return Taken(messages, self.terms.options, since_us)

    def lease(self, max_messages: int, max_bytes: int, alone: bool, recipient: Recipient, room: int) -> TakenLists:
        received, since_us = self._received(max_messages)
        leases = [lease for _, lease in received]
        attempts = [max(one.delivery_attempt, 1) for one, _ in received]
        records = [_record(one.message, _split(one.message.message_id)[1]) for one, _ in received]
        # Google's ack ids have nothing in common, so these begin with what our numbers are of.
        batches = [Leased(leases, attempts, records, f"{self._subscription}-")] if leases else []
        return TakenLists(batches, self.terms.options, since_us)

    def hold(self) -> None:
        """The server knows no such word."""

    def _received(self, max_messages: int) -> tuple[list[tuple[Any, int]], int]:
        """What has come, and from when its leases last.

        Who asks for none wants what may be over with something that failed. That is not handed out here, and what comes
        again by now is not over: it would go back as well, and come again, and so on.
        """
        if not max_messages:
            return [], 0
        with self._lock:
            if self._failure is not None:
                raise self._failure
            received, self._arrived = self._arrived, []
            return self._answers.still_out(received), self._since_us

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        return self._answers.settle(acks, nacks)

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        return self._answers.extend(leases, seconds)

    def release(self, leases: Sequence[int], recipient: Recipient) -> Pending[None]:
        return self._answers.settle((), leases).map(lambda _: None)

    def close(self) -> Pending[None]:
        self._hang_up.set()
        with self._lock:
            call = self._call
            self._over.set()
        if call is not None:
            call.cancel()
        return self._closed

    # -- what comes --------------------------------------------------------------------------------

    def _run(self) -> None:
        waits = pauses()
        while not self._hang_up.is_set():
            error: InorderError | None = None
            try:
                with self._lock:
                    if self._hang_up.is_set():
                        break
                    self._over = threading.Event()
                    self._call = self._calls.stream(STREAMING_PULL, self._requests(self._over), ())
                for raw in self._call:
                    self._hear(pubsub.StreamingPullResponse.pb().FromString(raw).received_messages)
                    waits = pauses()
            except grpc.RpcError as ended:
                error = self._calls.error_of(ended)
            except InorderError as refused:
                error = refused
            except Exception:  # a mistake of ours: better late than never
                _log.exception("a stream of subscription %r failed", self._subscription)
            self._over.set()
            if error is not None and self._calls.ends_for_good(error) and not self._hang_up.is_set():
                self._fail(error)
                break
            self._hang_up.wait(pause_after(error, waits))
        with self._lock:
            left, self._arrived = self._arrived, []  # nothing more comes, and nobody has taken this
        returned = self._answers.settle((), [lease for _, lease in left])
        returned.add_done_callback(lambda _: self._closed.set_result(None))

    def _requests(self, over: threading.Event) -> Iterator[bytes]:
        flow = self._options.flow_control or FlowControl()
        first = pubsub.StreamingPullRequest.pb()(
            subscription=self._resource,
            stream_ack_deadline_seconds=stream_deadline_seconds(self._options),
            max_outstanding_messages=flow.max_messages,
            max_outstanding_bytes=flow.max_bytes,
        )
        yield first.SerializeToString()
        over.wait()

    def _hear(self, received: Iterable[Any]) -> None:
        news = self._answers.arrived(received)
        if not news:
            return
        with self._lock:
            if not self._arrived:
                self._since_us = self._clock.now_us()
            self._arrived += news
            if self._keeper is None:
                self._keep_later()
        self._wake()

    def _keep_later(self) -> None:
        # Whoever takes it believes that the lease is fresh, and has half of its time until it must be extended.
        due_us = self._clock.now_us() + round(self._options.ack_deadline_seconds * MICROSECONDS) // 4
        self._keeper = self._clock.call_at(due_us, self._keep)

    def _keep(self) -> None:
        with self._lock:
            leases = [lease for _, lease in self._arrived]
            self._keeper = None
            asked_us = self._clock.now_us()
            if leases and not self._hang_up.is_set():
                self._keep_later()

        def kept(_: object) -> None:
            with self._lock:
                self._since_us = max(self._since_us, asked_us)  # what came meanwhile came later than that

        if leases:
            self._answers.extend(leases, self._options.ack_deadline_seconds).map(kept)

    def _fail(self, error: InorderError) -> None:
        with self._lock:
            if isinstance(error, NotFound):
                self.terms.options = None
                error = SubscriptionNotFound(self._subscription)
            self._failure = error
        self._wake()


def stream_deadline_seconds(options: SubscriptionOptions) -> int:
    """For so long the server waits for an answer to what comes on a stream."""
    return max(MIN_STREAM_SECONDS, round(options.ack_deadline_seconds))


class From:
    """Where a message came from whose id begins so; answers go where they always go."""

    def __init__(self, id_prefix: str, source: Any) -> None:
        self.id_prefix = id_prefix
        self.ack_id_prefix = ""
        self.ack = source.ack
        self.nack = source.nack
        self.modify_ack_deadline = source.modify_ack_deadline


def read(received: Iterable[tuple[Any, int]], source_of: Callable[[str], Source]) -> list[Message]:
    """Received messages and their leases as ours. Ids end with a number, which is the position."""
    sources: dict[str, Source] = {}
    messages: list[Message] = []
    for one, lease in received:
        prefix, number = _split(one.message.message_id)
        source = sources.get(prefix)
        if source is None:
            source = sources[prefix] = source_of(prefix)
        messages += delivered([_record(one.message, number)], [max(one.delivery_attempt, 1)], [lease], source)
    return messages


def _split(message_id: str) -> tuple[str, int]:
    digits = len(message_id) - len(message_id.rstrip("0123456789"))
    number = message_id[len(message_id) - digits :]
    if not number or (number[0] == "0" and number != "0"):  # written again, it would be another
        return message_id, 0
    return message_id[: len(message_id) - digits], int(number)


def _record(message: Any, position: int) -> Record:
    attributes = dict(message.attributes) or None
    size = len(message.data) + len(message.ordering_key.encode())
    size += sum(len(name.encode()) + len(value.encode()) for name, value in (attributes or {}).items())
    time_us = message.publish_time.seconds * MICROSECONDS + message.publish_time.nanos // 1000
    return position, message.ordering_key, message.data, attributes, time_us, size, time_us
