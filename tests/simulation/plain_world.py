"""A server of google.pubsub.v1 as a model: what it has out, on which stream, and what is on its way.

It stands for `Calls`, and is a transport of its own. Nothing happens in it by itself: whoever drives it says what is
sent, read, answered or cut. The thread that reads does so only while it is waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS
from inorder.errors import InorderError, InvalidArgument, ResourceExhausted, Unavailable
from inorder.options import SubscriptionOptions
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.grpc import plain_stream, plain_turns
from inorder.transport.grpc.plain_answers import StreamAnswers
from inorder.transport.grpc.plain_stream import PlainDeliveries

DEADLINE_SECONDS = 10
WINDOW = 12  # so many are out on a stream, and of a key
LAST_ATTEMPT = 3  # what fails so often will not come any more
PATIENCE_SECONDS = 20

OPTIONS = SubscriptionOptions(
    enable_message_ordering=True, max_outstanding_per_key=1_000, ack_deadline_seconds=DEADLINE_SECONDS
)


class Out(NamedTuple):
    """A message that is out."""

    ack_id: str
    stream: Stream
    until_us: int


class Asked(NamedTuple):
    """A request, and where its answer goes."""

    method: str
    request: bytes
    answer: Pending[bytes]


class Stream:
    """Responses on their way to one client, who reads them one by one."""

    def __init__(self) -> None:
        self.unread: deque[bytes] = deque()
        self._read: deque[bytes | None] = deque()
        self._changed = threading.Condition()
        self._reading = False
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._reading = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._read or self._over, PATIENCE_SECONDS)
                self._reading = False
                if self._over:
                    return
                response = self._read.popleft()
            if response is None:
                raise Unavailable("the connection was cut")
            yield response

    def pass_on(self, response: bytes | None) -> None:
        """Have the client read this, and wait until it is done with it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._reading, PATIENCE_SECONDS)
            self._reading = False
            self._read.append(response)
            self._changed.notify_all()
            if response is not None:
                assert self._changed.wait_for(lambda: self._reading, PATIENCE_SECONDS)

    def cancel(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


class PlainWorld:
    """The server, the way to it, and the transport of its client."""

    timeout_seconds = 60.0

    def __init__(self, random: Random, monkeypatch: Any, keys: str, messages: int) -> None:
        self.clock = ManualClock()
        self.asked: deque[Asked] = deque()
        self.requests = 0
        self._made: list[PlainDeliveries] = []
        self.unacked: dict[str, list[int]] = {key: [*range(messages)] for key in keys}
        self.dead: set[tuple[str, int]] = set()
        self.dead_take_back = True  # what is out behind them, as others that fail do
        self.refusing = 0.0  # of the nacks and of the deadlines
        self._random = random
        self._out: dict[tuple[str, int], Out] = {}
        self._failed: dict[tuple[str, int], int] = {}
        self._ack_ids = 0
        self._streams: deque[Stream] = deque()
        self._begun = threading.Condition()
        self._put_off: deque[Callable[[], object]] = deque()
        monkeypatch.setattr(plain_turns, "later", lambda _, call: self._put_off.append(call))
        monkeypatch.setattr(plain_stream, "pause_after", lambda *_: 0)
        self._stream = Stream()

    # -- for the client ----------------------------------------------------------------------------

    def deliveries(self, subscription: str, wake: Callable[[], None], report: object, eager: bool) -> PlainDeliveries:
        calls: Any = self
        answers = StreamAnswers(calls, subscription, self.clock, DEADLINE_SECONDS, ordered=True)
        made = PlainDeliveries(calls, self.clock, subscription, subscription, OPTIONS, answers, wake)
        self._made.append(made)
        self._await_stream()
        return made

    def stream(self, method: str, requests: Iterator[bytes], metadata: object) -> Stream:
        with self._begun:
            self._streams.append(Stream())
            self._begun.notify_all()
            return self._streams[-1]

    def repeated(self, method: str, request: bytes, timeout_seconds: float) -> Pending[bytes]:
        self.asked.append(Asked(method, request, Pending()))
        return self.asked[-1].answer

    def ends_for_good(self, error: InorderError) -> bool:
        return False

    def _await_stream(self) -> None:
        with self._begun:
            assert self._begun.wait_for(lambda: self._streams, PATIENCE_SECONDS)
            self._stream = self._streams.popleft()

    # -- what happens ------------------------------------------------------------------------------

    def send(self) -> bool:
        """Send more of some key that this stream may have, in order."""
        keys = [key for key in self.unacked if self._next_of(key) is not None]
        room = WINDOW - sum(out.stream is self._stream for out in self._out.values())
        if not keys or room <= 0:
            return False
        key = self._random.choice(keys)
        response = pubsub.StreamingPullResponse.pb()()
        for _ in range(self._random.randint(1, room)):
            number = self._next_of(key)
            if number is None:
                break
            self._ack_ids += 1
            ack_id = f"{key}-{number}-{self._ack_ids}"
            self._out[key, number] = Out(ack_id, self._stream, self.clock.now_us() + DEADLINE_SECONDS * MICROSECONDS)
            one = response.received_messages.add(ack_id=ack_id)
            one.message.message_id, one.message.data, one.message.ordering_key = f"{key}{number}", b"%d" % number, key
        self._stream.unread.append(response.SerializeToString())
        return True

    def _next_of(self, key: str) -> int | None:
        """The first of a key that is not out, unless the key is another stream's."""
        for number in self.unacked[key]:
            out = self._out.get((key, number))
            if out is None:
                return number
            if out.stream is not self._stream:
                return None
        return None

    def read(self) -> bool:
        """The client reads a response."""
        if not self._stream.unread:
            return False
        self._stream.pass_on(self._stream.unread.popleft())
        return True

    def answer(self) -> bool:
        """Do what a request asks for that is under way, and say so; or the answer is lost, and it comes again."""
        self._run_put_off()
        if not self.asked:
            return False
        at = self._random.randrange(len(self.asked))
        method, request, answer = self.asked[at]
        if self._random.random() < self.refusing and not method.endswith("Acknowledge"):
            del self.asked[at]
            answer.set_exception(self._random.choice([ResourceExhausted("too often"), InvalidArgument("no such id")]))
            return True
        self._do(method, request)
        if self._random.random() < 0.9:
            del self.asked[at]
            answer.set_result(b"")
        return True

    def hear(self) -> None:
        """Do what the first request asks for. Its answer takes longer."""
        self._run_put_off()
        if self.asked:
            method, request, _ = self.asked[0]
            self._do(method, request)

    def _run_put_off(self) -> None:
        while self._put_off:
            self._put_off.popleft()()

    def _do(self, method: str, request: bytes) -> None:
        if method.endswith("Acknowledge"):
            for key, number in self._those(pubsub.AcknowledgeRequest.deserialize(request).ack_ids):
                del self._out[key, number]
                self.unacked[key].remove(number)
            return
        asked = pubsub.ModifyAckDeadlineRequest.deserialize(request)
        until_us = self.clock.now_us() + asked.ack_deadline_seconds * MICROSECONDS
        for key, number in self._those(asked.ack_ids):
            if asked.ack_deadline_seconds:
                self._out[key, number] = self._out[key, number]._replace(until_us=until_us)
            elif (key, number) in self._out:  # or it went back with one before it
                self._fail(key, number)
                if (key, number) in self.dead and not self.dead_take_back:
                    del self._out[key, number]
                else:
                    self._take_back(key, number)

    def _those(self, ack_ids: Any) -> list[tuple[str, int]]:
        """What is out by these ack ids."""
        wanted = {*ack_ids}
        return [place for place, out in [*self._out.items()] if out.ack_id in wanted]

    def _fail(self, key: str, number: int) -> None:
        self._failed[key, number] = self._failed.get((key, number), 0) + 1
        if self._failed[key, number] == LAST_ATTEMPT:
            self.unacked[key].remove(number)
            self.dead.add((key, number))

    def _take_back(self, key: str, number: int) -> None:
        """With a message all go back that are out behind it."""
        for place in [place for place in self._out if place[0] == key and place[1] >= number]:
            del self._out[place]

    def cut(self) -> None:
        """The connection ends, with all that is on its way from here."""
        before = self._stream
        before.unread.clear()
        before.pass_on(None)
        self._await_stream()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._expire()

    def _expire(self) -> None:
        for (key, number), out in [*self._out.items()]:
            if out.until_us <= self.clock.now_us() and (key, number) in self._out:
                self._take_back(key, number)

    def close(self) -> None:
        """End the thread that reads."""
        for made in self._made:
            made.close()
        while self.asked:
            self.asked.popleft().answer.set_result(b"")

    def done(self) -> bool:
        return not any(self.unacked.values())
