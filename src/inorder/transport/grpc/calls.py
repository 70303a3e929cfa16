"""A call and its answer, as a `Pending`: repeated while the server cannot be reached, where repeating is safe, and when
it says that it has time later.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar

import grpc

from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.errors import (
    Aborted,
    Closed,
    DeadlineExceeded,
    FailedPrecondition,
    InorderError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from inorder.pending import Pending
from inorder.protocol.facts import DETAILS, error_of, retry_seconds
from inorder.transport.grpc.channel import Channel, Metadata

T = TypeVar("T")

DESCRIBE = "/inorder.v1.Inorder/Describe"

PROBE_SECONDS = 5.0  # within which a server answers that lives, even one that has much to do

# Between two tries: at first soon, as a restart may be over; never for long, as somebody waits.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

_chance = SystemRandom()  # not Python's own, which a program may have seeded, in each of its processes alike

# What becomes of a call whose connection ends, as gRPC tells it.
_BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


class UnknownCall(FailedPrecondition):
    """The server does not know the call."""


class Busy(ResourceExhausted):
    """The server takes no more from here for a moment: nothing was done, and it says when to come again."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class Calls:
    """The calls of one client. Thread-safe."""

    def __init__(self, channel: Channel, timeout_seconds: float) -> None:
        self._channel = channel
        self.timeout_seconds = timeout_seconds
        self._closed = False

    @property
    def address(self) -> str:
        return self._channel.address

    def once(self, method: str, request: bytes) -> Pending[bytes]:
        """Send it once: if the connection ends meanwhile, nobody knows whether it was done."""
        return self._tried(
            method, lambda: request, self.timeout_seconds, lambda error: isinstance(error, Busy), wait=True
        )

    def repeated(self, method: str, request: bytes, timeout_seconds: float | None = None) -> Pending[bytes]:
        """Send it until it is answered, for as long as calls may take."""
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        return self._tried(method, lambda: request, seconds, self.worth_repeating, wait=False)

    def renewed(self, method: str, request: Callable[[], bytes]) -> Pending[bytes]:
        """The same with a request that is made anew each time."""
        return self._tried(method, request, self.timeout_seconds, self.worth_repeating, wait=False)

    def _tried(
        self,
        method: str,
        request: Callable[[], bytes],
        seconds: float,
        again: Callable[[BaseException | None], bool],
        *,
        wait: bool,
    ) -> Pending[bytes]:
        answer: Pending[bytes] = Pending()
        give_up = time.monotonic() + seconds

        def attempt(pauses: Iterator[float]) -> None:
            left = max(give_up - time.monotonic(), 0.001)
            self.begin(method, request(), left, (), wait=wait)[0].add_done_callback(partial(finished, pauses))

        def finished(pauses: Iterator[float], done: Pending[bytes]) -> None:
            error = done.exception()
            pause = pause_after(error, pauses)
            if not again(error) or time.monotonic() + pause > give_up:
                done.hand_to(answer)
            else:
                later(pause, partial(attempt, pauses))

        attempt(pauses())
        return answer

    def worth_repeating(self, error: BaseException | None) -> bool:
        """Whether the server was not reached, or has no time now, as opposed to having said no."""
        return type(error) in (Unavailable, Busy) and not self._closed

    def ends_for_good(self, error: BaseException | None) -> bool:
        """Whether a stream that ended so is not begun anew: it was refused, or we have closed it ourselves.

        A stream has no end of its own: all else is the doing of its server, which may be started again, or of somebody
        on the way to it.
        """
        passing = isinstance(error, Unavailable | DeadlineExceeded | Aborted | ResourceExhausted)
        return error is not None and (self._closed or not passing)

    def begin(
        self, method: str, request: bytes, timeout: float | None, metadata: Metadata, *, wait: bool = False
    ) -> tuple[Pending[bytes], Callable[[], object]]:
        """Send it once; returns the answer, and how to stop waiting for it."""
        answer: Pending[bytes] = Pending()
        try:
            if self._closed:
                raise Closed("this PubSub is closed")
            call = self._channel.call(method, request, timeout, metadata, wait=wait)
        except InorderError as error:
            return Pending.failed(error), lambda: None
        except ValueError:  # the channel was closed a moment ago
            return Pending.failed(Closed("this PubSub is closed")), lambda: None

        def finished(done: Any) -> None:
            code = done.code()
            if code is grpc.StatusCode.OK:
                answer.set_result(done.result())
            else:
                answer.set_exception(self.error_of(done))

        call.add_done_callback(finished)
        return answer, call.cancel

    def lives(self) -> Pending[bool]:
        """Whether anything comes back from the server, be it that it does not know the call."""
        seconds = min(self.timeout_seconds, PROBE_SECONDS)
        answer, _ = self.begin(DESCRIBE, b"", seconds, ())
        lives: Pending[bool] = Pending()
        answer.add_done_callback(lambda done: lives.set_result(not isinstance(done.exception(), DeadlineExceeded)))
        return lives

    def answers(self, method: str, request: Callable[[], bytes]) -> Iterator[bytes]:
        """All answers to a request, for somebody who waits for them; asked for again where the connection ends.

        And where some have come, if somebody on the way has ended it, as a proxy does after a while, or its token was
        revoked: there may be another one by now.
        """
        waits, give_up = pauses(), time.monotonic() + self.timeout_seconds
        while True:
            call, answered = self._channel.answers(method, request()), False
            try:
                for answer in call:
                    answered = True
                    yield answer
                    waits, give_up = pauses(), time.monotonic() + self.timeout_seconds
                return
            except grpc.RpcError:
                error = self.error_of(call)
                pause = pause_after(error, waits)
                goes_on = isinstance(error, Unauthenticated) or not self.ends_for_good(error)
                again = self.worth_repeating(error) or (answered and goes_on)
                if not again or time.monotonic() + pause > give_up:
                    raise error from None
                time.sleep(pause)
            finally:
                call.cancel()

    def stream(self, method: str, requests: Iterator[bytes], metadata: Metadata) -> Any:
        """As the channel's."""
        if self._closed:
            raise Closed("this PubSub is closed")
        return self._channel.stream(method, requests, metadata)

    def error_of(self, call: Any) -> InorderError:
        """What a call that failed stands for."""
        code, text = call.code(), call.details() or ""
        if self._closed and code in _BROKEN:
            return Closed("this PubSub is closed")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnknownCall(text)
        details = [value for key, value in call.trailing_metadata() or () if key == DETAILS]
        # What we have cancelled may have the details of an answer that came at the same moment: they do not count.
        if code is grpc.StatusCode.CANCELLED or (code in _BROKEN and not details):
            return Unavailable(f"no answer from {self.address}: {text}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"no answer from {self.address} in time")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and details:
            seconds = retry_seconds(details[0])
            if seconds is not None:
                return Busy(text, seconds)
        return error_of(code.value[0], text, details[0] if details else None)

    def close(self) -> None:
        self._closed = True


def pauses() -> Iterator[float]:
    """How long to wait before each next try; a little by chance, so that not all come back at once."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause * _chance.uniform(0.5, 1)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def pause_after(error: BaseException | None, waits: Iterator[float]) -> float:
    """The next pause, or the one that the server has asked for."""
    pause = next(waits)
    return max(error.seconds, FIRST_PAUSE_SECONDS) if isinstance(error, Busy) else pause


def later(seconds: float, call: Callable[[], object]) -> None:
    """Do it after a pause, by the time of this machine whatever the clock of a test says."""
    SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now_us() + round(seconds * MICROSECONDS), call)


def call_back(answer: Pending[T], callback: Callable[[Pending[T]], None]) -> None:
    """Call it when the answer is there, on another thread: this one may be interrupted in the middle, as by Ctrl-C."""
    here = True

    def answered(done: Pending[T]) -> None:
        if here:
            later(0, partial(callback, done))
        else:
            callback(done)

    answer.add_done_callback(answered)
    here = False


def look_later(seconds: float, look: Callable[[], object]) -> None:
    """The same with a method of somebody whom this does not keep: who is done by then may be gone."""
    there = weakref.WeakMethod(look)

    def call() -> None:
        found = there()
        if found is not None:
            found()

    later(max(seconds, FIRST_PAUSE_SECONDS), call)
