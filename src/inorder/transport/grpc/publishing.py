"""What is published to one topic: batches together in requests, in order, each stored once however often it is sent.

Several requests are under way at a time. The server stores attempts by their numbers: one that comes before its
predecessor is refused, and so is what comes after one that failed. When anything goes wrong, nothing more is sent
until all that is under way has come back; then it is known what was stored, and the rest goes on from there.

What is handed over while requests are under way goes together in the next one.

Who publishes may be interrupted, as by Ctrl-C, wherever something is called. So on that thread nothing is begun that
others depend on unless the thread of the timers can finish it, and nothing of what comes back is looked at there.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias

from inorder.errors import (
    DeadlineExceeded,
    InorderError,
    InvalidArgument,
    KeyPaused,
    NotFound,
    OutOfSequence,
    PermissionDenied,
    ProducerFenced,
    QueueFull,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from inorder.message import Batch
from inorder.pending import Pending
from inorder.protocol import PRODUCER_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.grpc.calls import Busy, Calls, call_back, later, look_later, pause_after, pauses
from inorder.transport.grpc.channel import Metadata
from inorder.transport.grpc.columns import ids_of_columns, publish_columns, publish_request, published_ids

PUBLISH = "/google.pubsub.v1.Publisher/Publish"
OPEN = "/inorder.v1.Inorder/OpenProducer"

# Pub/Sub's limits for one request; the second leaves room for what is around the messages.
MAX_MESSAGES = 1_000
MAX_BYTES = 9_000_000
MAX_COLUMNS = 4_000  # messages, where it takes columns

MAX_UNDER_WAY = 3  # one is made, one travels, one is stored; more of them would only be smaller

# After these nobody knows whether a request was stored: its answer was lost, somebody on the way to the server gave up,
# which we never do, or its token was revoked meanwhile.
_DOUBTFUL = (Unavailable, DeadlineExceeded, Unauthenticated, PermissionDenied)

# With these a server refuses the request as such, or has looked for an earlier try of it: then it was not stored.
_NOT_STORED = (InvalidArgument, NotFound, OutOfSequence, QueueFull)


class Handed:
    """A batch that was handed over, and who waits for its ids."""

    __slots__ = ("answer", "batch", "count", "size")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.count = len(batch[0])
        self.size = sum(batch[3])
        self.answer: Pending[list[str]] = Pending()

    def any_of(self, keys: Collection[str]) -> str:
        """One of these keys that it has; empty if none."""
        return next((key for key in self.batch[0] if key in keys), "")

    def only_of(self, keys: Collection[str]) -> bool:
        return all(key in keys for key in self.batch[0])


Failed: TypeAlias = tuple[Handed, BaseException]
"""A batch, and why it fails."""


class Request:
    """What is sent in one go, until it is answered."""

    __slots__ = ("answer", "cancel", "doubt", "error", "number", "parts", "raw", "revoked", "sent")

    def __init__(self, parts: Sequence[Handed], raw: bytes) -> None:
        self.parts = parts
        self.raw = raw
        self.number: int | None = None  # in its epoch, from when it is sent first: the same however often it goes
        self.answer: Pending[bytes] | None = None  # that is to come back, as it travels
        self.sent = 0.0  # when, as it travels
        self.error: InorderError | None = None  # what it came back with
        self.doubt: InorderError | None = None  # since it came back with this, nobody knows whether it was stored
        self.revoked = False  # whether it came back because the server did not know its token
        self.cancel: Callable[[], object] = lambda: None


class Outlet:
    """Publishes to one topic of a server. Thread-safe.

    `once`: the server stores a numbered attempt once. Without that, one request is under way at a time, and what is
    sent again because its answer was lost may be stored twice, as with any client of such a server.

    `columns`: it takes them as they are.

    `producer` is a name that nobody else may have: whoever takes it later has it alone, and we are refused.
    """

    def __init__(
        self,
        calls: Calls,
        topic: str,
        resource: str,
        *,
        once: bool,
        producer: str | None = None,
        columns: bool = False,
    ) -> None:
        self._calls = calls
        self._topic = topic
        self._resource = resource
        self._once = once
        self._name = producer
        self._columns = columns
        self._write = publish_columns if columns else publish_request
        self._most = MAX_COLUMNS if columns else MAX_MESSAGES
        self._lock = threading.Lock()
        self._waiting: list[Handed] = []
        self._under_way: deque[Request] = deque()
        self._stalled = False  # something went wrong: first all must come back
        self._making: list[Handed] | None = None  # the first of those that wait, by somebody, into a request
        self._may_wait = True
        self._hurried = False  # what is under way was called back, to be sent again at once
        self._pauses = pauses()
        self._failing_since: float | None = None
        self._watched = False  # somebody looks whether anything comes back
        self._opening = False
        self._held: int | None = None  # the last epoch that was ours
        self._fenced: ProducerFenced | None = None
        self._untold: Counter[str] = Counter()  # keys of batches that have failed, until each was told
        self._why: BaseException | None = None  # they have
        self._begin_anew()

    def publish(self, batch: Batch) -> Pending[list[str]]:
        handed = Handed(batch)
        try:
            with self._lock:
                if self._fenced is not None:
                    return Pending.failed(self._fenced)
                if self._untold and self._why is not None and handed.any_of(self._untold):
                    return Pending.failed(self._why)
                self._waiting.append(handed)
            self._send()
        except BaseException:  # as Ctrl-C: others publish here, too
            later(0, self._send)
            raise
        return handed.answer

    def stop_waiting(self) -> None:
        """What waits for room, now or later, is given up by the server: it is asked again, and not to wait."""
        with self._lock:
            self._may_wait = False
            cancels = [request.cancel for request in self._under_way] if self._once else []
            self._hurried = bool(cancels)
        for cancel in cancels:
            cancel()

    # -- sending -----------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Count from 0 under a name that nobody else has; under a given name, in an epoch that must be asked for."""
        self._producer = self._name or uuid.uuid4().hex
        self._epoch = 0 if self._name is None else None
        self._next = 0
        for request in self._under_way:
            request.number = request.doubt = None  # whoever is in doubt is not sent under another name

    def _open(self) -> None:
        """Ask for an epoch; what waits is sent when it is there."""
        with self._lock:
            if self._opening or self._epoch is not None:
                return
            self._opening = True
        # With what we had: else we would take the name back from whoever has taken it meanwhile.
        request = v1.OpenProducerRequest(topic=self._resource, producer=self._producer, held_epoch=self._held)
        self._calls.repeated(OPEN, request.SerializeToString()).add_done_callback(self._opened)

    def _opened(self, done: Pending[bytes]) -> None:
        error = done.exception()
        with self._lock:
            self._opening = False
            failed = [] if error is None else self._to_tell([(part, error) for part in self._all_parts()], error)
            if error is None:
                self._held = self._epoch = v1.OpenProducerResponse.FromString(done.result()).epoch
            elif isinstance(error, ProducerFenced):
                self._fenced = error
        if error is None:
            self._go_on()
        else:
            self._tell(failed)

    def _all_parts(self) -> list[Handed]:
        """All that is not answered; none of it will be sent."""
        parts = [part for request in self._under_way for part in request.parts] + [*self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        self._stalled = False
        return parts

    def _send(self) -> None:
        """Send what waits, as far as it may be under way. One thread does, so that it goes in order."""
        parts: list[Handed] | None = None
        request: Request | None = None
        try:
            while True:
                with self._lock:
                    full = len(self._under_way) >= (MAX_UNDER_WAY if self._once else 1)
                    if self._making is not None or self._stalled or full or not self._waiting:
                        return
                    if self._epoch is None:
                        later(0, self._open)
                        return
                    parts = self._together()
                    self._making = parts
                raw = self._write(self._resource, [part.batch for part in parts])
                with self._lock:
                    self._making = None
                    if self._goes_next(parts):
                        request = Request(parts, raw)
                        self._begin(request, len(parts))
                if request is not None:
                    self._listen(request)
                    request = None
        except BaseException:
            if parts is not None and self._making is parts:
                self._making = None
            if request is not None:
                later(0, partial(self._listen, request))  # perhaps once more: what comes back is heard once
            raise

    def _together(self) -> list[Handed]:
        """The first of those that wait, as many as go in one request."""
        count = size = 0
        for place, part in enumerate(self._waiting):
            count, size = count + part.count, size + part.size
            if place and (count > self._most or size > MAX_BYTES):
                return self._waiting[:place]
        return self._waiting[:]

    def _goes_next(self, parts: list[Handed]) -> bool:
        """Not if all must come back meanwhile, or if some of it had to fail with what was before it."""
        return not self._stalled and self._waiting[: len(parts)] == parts

    def _begin(self, request: Request, new: int = 0) -> None:
        """Send a request, with the lock held, or it could be overtaken. If it is new, so many waited for it.

        Then it is to be listened to, without the lock.
        """
        try:
            if new:  # without a call up to its number: it waits, or is under way and in its place
                del self._waiting[:new]
                self._under_way += (request,)
            if request.number is None:
                # Only then: it, and what is behind it, may have been stored under the number that it has.
                request.number, self._next = self._next, self._next + 1
            request.sent = time.monotonic()
            self._watch(self._calls.timeout_seconds)
            request.answer, request.cancel = self._calls.begin(PUBLISH, request.raw, None, self._metadata(request))
        except BaseException:  # as Ctrl-C: perhaps it was sent, so it goes once more under its number
            request.answer = Pending.failed(Unavailable("the request was interrupted"))
            raise

    def _listen(self, request: Request) -> None:
        if request.answer is not None:
            call_back(request.answer, partial(self._answered, request))

    def _metadata(self, request: Request) -> Metadata:
        if not self._once:
            return ()
        attempt = v1.Attempt(
            producer=self._producer,
            epoch=self._epoch,
            number=request.number,
            now=not self._may_wait,
            columns=self._columns,
        )
        return ((PRODUCER_KEY, attempt.SerializeToString()),)

    # -- what does not come back --------------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        """Look later whether the server is still there. The lock is held."""
        if not self._watched:
            look_later(seconds, self._look)
            self._watched = True

    def _look(self) -> None:
        with self._lock:
            self._watched = False
            since = self._silent_since()
            if since is None:
                return
            left = since + self._calls.timeout_seconds - time.monotonic()
            if left > 0:
                self._watch(left)
                return
            self._watched = True
        # A request may wait for room for as long as it likes. So another call tells whether anybody is there.
        self._calls.lives().add_done_callback(partial(self._looked, since))

    def _looked(self, since: float, lives: Pending[bool]) -> None:
        cancels: list[Callable[[], object]] = []
        with self._lock:
            self._watched = False
            if not lives.result() and self._silent_since() == since:
                self._failing_since = self._failing_since or since
                cancels = [request.cancel for request in self._under_way if request.answer is not None]
            self._watch(self._calls.timeout_seconds)
        for cancel in cancels:
            cancel()

    def _silent_since(self) -> float | None:
        """When the first was sent of those that have not come back."""
        return min((request.sent for request in self._under_way if request.answer is not None), default=None)

    # -- what comes back ---------------------------------------------------------------------------

    def _answered(self, request: Request, done: Pending[bytes]) -> None:
        error = done.exception()
        if type(error) is NotFound:
            error = TopicNotFound(
                self._topic
            )  # a server that says only that something is missing can mean nothing else
        with self._lock:
            if request.answer is not done:  # it was heard before
                return
            request.answer = None
            if isinstance(error, InorderError):
                request.error = error
                if isinstance(error, _DOUBTFUL):
                    request.doubt = error
                elif isinstance(error, _NOT_STORED):
                    request.doubt = None
                self._stalled = True
            else:
                self._under_way.remove(request)
                self._failing_since = None
            recover = self._stalled and all(one.answer is None for one in self._under_way)
        if error is None:
            ids, first = self._ids(request, done.result()), 0
            for part in request.parts:
                part.answer.set_result(ids[first : first + part.count])
                first += part.count
        if recover:
            self._recover()
        else:
            self._send()

    def _ids(self, request: Request, raw: bytes) -> list[str]:
        return ids_of_columns(raw, sum(part.count for part in request.parts)) if self._columns else published_ids(raw)

    def _recover(self) -> None:
        """All has come back: what was not stored goes again, in order, except for what must not."""
        failed: list[Failed] = []
        pause = 0.0
        with self._lock:
            if self._under_way:
                error = self._under_way[0].error
                if self._worth_repeating(self._under_way[0]) and not self._too_long():
                    pause = 0.0 if self._hurried and not isinstance(error, Busy) else pause_after(error, self._pauses)
                    self._hurried = False
                else:
                    failed = self._to_tell(self._give_up(error), error)
        self._tell(failed)
        if pause:
            later(pause, self._go_on)
        else:
            self._go_on()

    def _to_tell(self, failed: list[Failed], why: BaseException | None) -> list[Failed]:
        self._untold = Counter(key for part, _ in failed for key in part.batch[0] if key)
        self._why = why
        return failed

    def _tell(self, failed: list[Failed]) -> None:
        """Who is told may publish at once: on a key of which another batch is still to be told, that fails as well."""
        for part, why in failed:
            with self._lock:
                for key in filter(None, part.batch[0]):
                    self._untold[key] -= 1
                    if not self._untold[key]:
                        del self._untold[key]
            part.answer.set_exception(why)

    def _worth_repeating(self, request: Request) -> bool:
        if self._once and isinstance(request.error, Unauthenticated) and not request.revoked:
            request.revoked = True  # there may be another token by now: it is tried once
            return True
        return isinstance(request.error, DeadlineExceeded) or self._calls.worth_repeating(request.error)

    def _too_long(self) -> bool:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        return now - self._failing_since > self._calls.timeout_seconds

    def _give_up(self, error: InorderError | None) -> list[Failed]:
        """The first was refused, and nothing after it was stored; or nobody knows. Returns what fails, and why."""
        if isinstance(error, ProducerFenced):
            self._fenced = error
            return [(part, error) for part in self._all_parts()]
        self._failing_since, self._pauses = None, pauses()
        if error is None or (isinstance(error, OutOfSequence) and self._once):
            self._begin_anew()
            return []  # the topic is another one, or we were silent for too long: all of it goes again
        refused = self._under_way.popleft()
        if refused.doubt is not None:
            # So is what was sent behind it: under the new name it might be stored once more.
            in_doubt = [refused, *(request for request in self._under_way if request.doubt is not None)]
            self._under_way = deque(request for request in self._under_way if request not in in_doubt)
            self._begin_anew()
            return self._with_those_behind(
                [(part, request.doubt or error) for request in in_doubt for part in request.parts], refused.doubt
            )
        self._begin_anew()
        if len(refused.parts) > 1:
            # One of the batches was meant: each by itself tells which.
            alone = [Request([part], self._write(self._resource, [part.batch])) for part in refused.parts]
            self._under_way.extendleft(reversed(alone))
            return []
        return self._with_those_behind([(part, error) for part in refused.parts], error)

    def _with_those_behind(self, failed: list[Failed], error: InorderError) -> list[Failed]:
        """What fails, and what cannot be stored any more because one of its keys did."""
        keys = {key for part, _ in failed for key in part.batch[0] if key}
        behind = [part for request in self._under_way for part in request.parts]
        left = [part for part in behind if not part.any_of(keys)]
        late = [part for part in (*behind, *self._waiting) if part.any_of(keys)]
        if late:
            self._under_way = deque(Request([part], self._write(self._resource, [part.batch])) for part in left)
            self._waiting = [part for part in self._waiting if not part.any_of(keys)]
        return [
            *failed,
            # A batch that has others too shares their fate, and is told what it was.
            *((part, KeyPaused(part.any_of(keys)) if part.only_of(keys) else error) for part in late),
        ]

    def _go_on(self) -> None:
        with self._lock:
            ready = self._epoch is not None
            again = [*self._under_way] if ready else []
            if ready:
                self._stalled = False
                for request in again:
                    self._begin(request)
        if not ready:
            self._open()
            return
        for request in again:
            self._listen(request)
        self._send()
