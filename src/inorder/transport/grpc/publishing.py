"""What is published to one topic: batches together in requests, each stored once however often it is sent.

What is handed over while requests are under way goes together in the next one. A publisher hands over no batch of a
key before the one before is answered, so requests that are under way together have no key in common, and it does not
matter which of them comes first. Each of a few lanes has one under way, and numbers its own: the server stores a number
once, and answers as it did when it is sent again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from inorder.errors import OutOfSequence, Unavailable
from inorder.message import Batch
from inorder.pending import Pending
from inorder.protocol import PRODUCER_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.grpc.calls import Calls, later, pauses
from inorder.transport.grpc.channel import Metadata
from inorder.transport.grpc.columns import publish_request, published_ids

PUBLISH = "/google.pubsub.v1.Publisher/Publish"

# Pub/Sub's limits for one request; the second leaves room for what is around the messages.
MAX_MESSAGES = 1_000
MAX_BYTES = 9_000_000

LANES = 4  # one request is made while others travel, are stored, and are read


class Handed:
    """A batch that was handed over, and who waits for its ids."""

    __slots__ = ("answer", "batch", "count", "size")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.count = len(batch[0])
        self.size = sum(batch[3])
        self.answer: Pending[list[str]] = Pending()


@dataclass(slots=True, eq=False)
class Request:
    """What is sent in one go, until it is answered."""

    parts: Sequence[Handed]
    raw: bytes
    pauses: Iterator[float] = field(default_factory=pauses)
    failing_since: float | None = None


class Lane:
    """A line of requests, one after the other, under a name that nobody else has."""

    def __init__(self) -> None:
        self.cancel: Callable[[], object] = lambda: None
        self.begin_anew()

    def begin_anew(self) -> None:
        """The server has forgotten us, or nobody knows whether it has stored the last number."""
        self.producer = uuid.uuid4().hex
        self.number = 0


class Outlet:
    """Publishes to one topic of a server. Thread-safe.

    `once`: the server stores a numbered attempt once. Without that, what is sent again because its answer was lost
    may be stored twice, as with any client of such a server.
    """

    def __init__(self, calls: Calls, resource: str, *, once: bool) -> None:
        self._calls = calls
        self._resource = resource
        self._once = once
        self._lock = threading.Lock()
        self._waiting: deque[Handed] = deque()
        self._alone: deque[Handed] = deque()  # of a request that was refused: each by itself, to learn which was meant
        self._idle = [Lane() for _ in range(LANES)]
        self._busy: set[Lane] = set()
        self._may_wait = True

    def publish(self, batch: Batch) -> Pending[list[str]]:
        handed = Handed(batch)
        with self._lock:
            self._waiting.append(handed)
        self._send()
        return handed.answer

    def stop_waiting(self) -> None:
        """What waits for room, now or later, is given up by the server: it is asked again, and not to wait."""
        with self._lock:
            self._may_wait = False
            cancels = [lane.cancel for lane in self._busy] if self._once else []
        for cancel in cancels:
            cancel()

    def _send(self) -> None:
        """Send what waits, as far as lanes are idle."""
        while True:
            with self._lock:
                if not self._idle or not (self._alone or self._waiting):
                    return
                parts = [self._alone.popleft()] if self._alone else self._together()
                lane = self._idle.pop()
                self._busy.add(lane)
            self._begin(lane, Request(parts, publish_request(self._resource, [part.batch for part in parts])))

    def _together(self) -> list[Handed]:
        parts = [self._waiting.popleft()]
        count, size = parts[0].count, parts[0].size
        while self._waiting:
            first = self._waiting[0]
            count, size = count + first.count, size + first.size
            if count > MAX_MESSAGES or size > MAX_BYTES:
                break
            parts.append(self._waiting.popleft())
        return parts

    def _begin(self, lane: Lane, request: Request) -> None:
        answer, lane.cancel = self._calls.begin(PUBLISH, request.raw, None, self._metadata(lane))
        answer.add_done_callback(lambda done: self._answered(lane, request, done))

    def _metadata(self, lane: Lane) -> Metadata:
        if not self._once:
            return ()
        attempt = v1.Attempt(producer=lane.producer, number=lane.number, now=not self._may_wait)
        return ((PRODUCER_KEY, attempt.SerializeToString()),)

    def _answered(self, lane: Lane, request: Request, done: Pending[bytes]) -> None:
        error = done.exception()
        if error is None:
            lane.number += 1
            self._finished(lane)
            ids, first = published_ids(done.result()), 0
            for part in request.parts:
                part.answer.set_result(ids[first : first + part.count])
                first += part.count
        elif self._calls.worth_repeating(error):
            self._again(lane, request, error)
        elif isinstance(error, OutOfSequence) and lane.number:
            lane.begin_anew()  # the topic is another one, or we were silent for too long: this was not stored
            self._begin(lane, request)
        else:
            self._refused(lane, request, error)

    def _finished(self, lane: Lane) -> None:
        with self._lock:
            self._busy.discard(lane)
            self._idle.append(lane)
        self._send()

    def _again(self, lane: Lane, request: Request, error: BaseException) -> None:
        """The server was not reached, or its answer was lost: the same number once more."""
        now = time.monotonic()
        if request.failing_since is None:
            request.failing_since = now
        if now - request.failing_since > self._calls.timeout_seconds:
            self._refused(lane, request, error)
        else:
            later(next(request.pauses), lambda: self._begin(lane, request))

    def _refused(self, lane: Lane, request: Request, error: BaseException) -> None:
        meant = len(request.parts) == 1 or isinstance(error, Unavailable)
        if isinstance(error, Unavailable):
            lane.begin_anew()
        if not meant:
            with self._lock:
                self._alone.extend(request.parts)
        self._finished(lane)
        if meant:
            for part in request.parts:
                part.answer.set_exception(error)
