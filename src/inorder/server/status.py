"""What went wrong, in gRPC's codes and, where they are known, in Google's words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias
from urllib.parse import quote

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from inorder.errors import (
    InorderError,
    SnapshotAlreadyExists,
    SnapshotNotFound,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.protocol.facts import DETAILS, details_of

Context: TypeAlias = Any  # grpc.aio.ServicerContext, which has no types
Call: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
RawCall: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]
Stream: TypeAlias = Callable[[Any, Context], AsyncIterator[Any]]
RawStream: TypeAlias = Callable[[bytes, Context], AsyncIterator[bytes]]

_INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Clients take 8 KB of metadata, in which three bytes of details are four of text. A call that brings more ends with
# RESOURCE_EXHAUSTED or INTERNAL for them, and they repeat it.
MAX_DETAILS_BYTES = 5_000
MAX_TEXT_LENGTH = 500  # characters, which may be twelve bytes each

_TAKEN = {
    "Topic": TopicAlreadyExists,
    "Subscription": SubscriptionAlreadyExists,
    "Snapshot": SnapshotAlreadyExists,
}

_log = logging.getLogger(__name__)

caller: ContextVar[str] = ContextVar("caller", default="")  # the name of the token by which a call was made


class Refusal(Exception):
    """The answer to a call is no. `fact` is the error that a client of ours raises of it."""

    def __init__(
        self, code: grpc.StatusCode, text: str, details: bytes | None = None, *, fact: InorderError | None = None
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text[:MAX_TEXT_LENGTH]
        self._details = details
        self._fact = fact

    @property
    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        details = self._details
        if details is None and self._fact is not None:
            details = details_of(self._fact, self.code.value[0], self.text)
            if len(quote(self.text)) + len(details) * 4 // 3 > MAX_DETAILS_BYTES:
                details = None  # the text is worth more
        return () if details is None else ((DETAILS, details),)


def invalid(text: str, fact: InorderError | None = None) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text, fact=fact)


def absent(text: str) -> Refusal:
    """What Google's service has and this one has not, on purpose."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, text)


def topic_missing(resource: str) -> Refusal:
    name = _last(resource)
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name}).", fact=TopicNotFound(name))


def subscription_missing(resource: str) -> Refusal:
    name = _last(resource)
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name}).", fact=SubscriptionNotFound(name))


def snapshot_missing(resource: str) -> Refusal:
    name = _last(resource)
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name}).", fact=SnapshotNotFound(name))


def already_exists(kind: str, resource: str) -> Refusal:
    name = _last(resource)
    text = f"Resource already exists in the project (resource={name})."
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, text, fact=_TAKEN[kind](name))


def detached(resource: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"Subscription is detached (resource={_last(resource)}).")


def not_pulled() -> Refusal:
    """The subscription is pushed."""
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, "This method is not supported for this subscription type.")


def shutting_down() -> Refusal:
    """Clients try again elsewhere, or here when the server is back."""
    return Refusal(grpc.StatusCode.UNAVAILABLE, "The server is shutting down.")


def exhausted(text: str, seconds: float) -> Refusal:
    """A client asks for too much; it may try again so many seconds later."""
    delay = duration_pb2.Duration()
    delay.FromMicroseconds(round(seconds * 1_000_000))
    return detailed(grpc.StatusCode.RESOURCE_EXHAUSTED, text, error_details_pb2.RetryInfo(retry_delay=delay))


def within(field: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside the limits as Google does."""
    if value < low:
        raise invalid(
            f"The value for {field} is too small. You passed {value:.12g} in the request, "
            f"but the minimum value is {low:.12g}."
        )
    if value > high:
        raise invalid(
            f"The value for {field} is too large. You passed {value:.12g} in the request, "
            f"but the maximum value is {high:.12g}."
        )


def ack_ids_failed(ack_ids: Iterable[str]) -> Refusal:
    """With exactly-once delivery, the client learns of each ack id that had no effect."""
    text = (
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have "
        "expired or the acknowledgement ids were malformed."
    )
    info = error_details_pb2.ErrorInfo(
        reason="EXACTLY_ONCE_ACKID_FAILURE",
        domain="pubsub.googleapis.com",
        metadata=dict.fromkeys(_few(ack_ids), _INVALID_ACK_ID),
    )
    return detailed(grpc.StatusCode.INVALID_ARGUMENT, text, info)


def detailed(code: grpc.StatusCode, text: str, detail: Any) -> Refusal:
    """One that says more, as a message of google.rpc."""
    status = status_pb2.Status(code=code.value[0], message=text)
    status.details.add().Pack(detail)
    return Refusal(code, text, status.SerializeToString())


def _few(ack_ids: Iterable[str]) -> Iterator[str]:
    """As many as fit, which are seventy of ours; clients take those that are left out as failed too."""
    room = MAX_DETAILS_BYTES - 400
    for ack_id in ack_ids:
        room -= len(ack_id.encode()) + len(_INVALID_ACK_ID) + 8
        if room < 0:
            return
        yield ack_id


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an error; of a mistake of ours only that there was one."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InorderError):
        return Refusal(_CODES[int(error.code)], str(error), fact=error)
    _log.error("a call failed", exc_info=error)
    return Refusal(grpc.StatusCode.INTERNAL, "The server made a mistake, which it has logged.")


async def abort(context: Context, error: Exception) -> None:
    """End a call with what went wrong. Raises."""
    refusal = refusal_of(error)
    await context.abort(refusal.code, refusal.text, refusal.metadata)


def unary(request: Any, call: Call) -> RawCall:
    """A call that takes a parsed request and returns a message, for gRPC."""

    async def run(raw: bytes, context: Context) -> bytes:
        answer: bytes = (await call(parsed(request, raw), context)).SerializeToString()
        return answer

    return guarded(run)


def server_stream(request: Any, call: Stream) -> RawStream:
    """The same for one that returns several messages, one after the other."""

    async def run(raw: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for answer in call(parsed(request, raw), context):
                yield answer.SerializeToString()
        except (asyncio.CancelledError, GeneratorExit):  # the client has gone
            raise
        except Exception as error:
            await abort(context, error)

    return run


def parsed(kind: Any, raw: bytes) -> Any:
    """A message from its bytes."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        # Not INTERNAL, as gRPC itself would have it: that one clients repeat.
        raise invalid(f"The request is not a valid {kind.DESCRIPTOR.full_name}.") from None


def guarded(call: RawCall) -> RawCall:
    """The same for one that reads and writes bytes."""

    async def run(raw: bytes, context: Context) -> bytes:
        try:
            return await call(raw, context)
        except asyncio.CancelledError:  # the client has gone
            raise
        except Exception as error:
            await abort(context, error)
            raise  # never reached: abort does

    return run


def _last(resource: str) -> str:
    return resource.rsplit("/", 1)[-1]
