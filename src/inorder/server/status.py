"""What went wrong, in gRPC's codes and, where they are known, in Google's words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from inorder.errors import InorderError

Context: TypeAlias = Any  # grpc.aio.ServicerContext, which has no types
Call: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
RawCall: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

_INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"  # where clients look for more than a code and a text

# Clients take 8 KB of metadata. A call that brings more ends with RESOURCE_EXHAUSTED for them, and they repeat it.
MAX_DETAILS_BYTES = 7_000
MAX_TEXT_LENGTH = 500  # characters, which may be twelve bytes each

_log = logging.getLogger(__name__)

caller: ContextVar[str] = ContextVar("caller", default="")  # the name of the token by which a call was made


class Refusal(Exception):
    """The answer to a call is no."""

    def __init__(self, code: grpc.StatusCode, text: str, metadata: tuple[tuple[str, bytes], ...] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.metadata = metadata


def invalid(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)


def absent(text: str) -> Refusal:
    """What Google's service has and this one has not, on purpose."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, text)


def topic_missing(resource: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={_last(resource)}).")


def subscription_missing(resource: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Subscription does not exist (resource={_last(resource)}).")


def snapshot_missing(resource: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Snapshot does not exist (resource={_last(resource)}).")


def already_exists(kind: str, resource: str) -> Refusal:
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, f"{kind} already exists (resource={_last(resource)}).")


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
    return _detailed(grpc.StatusCode.RESOURCE_EXHAUSTED, text, error_details_pb2.RetryInfo(retry_delay=delay))


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
    return _detailed(grpc.StatusCode.INVALID_ARGUMENT, text, info)


def _detailed(code: grpc.StatusCode, text: str, detail: Any) -> Refusal:
    status = status_pb2.Status(code=code.value[0], message=text)
    status.details.add().Pack(detail)
    return Refusal(code, text, ((_DETAILS, status.SerializeToString()),))


def _few(ack_ids: Iterable[str]) -> Iterator[str]:
    """As many as fit, which are all of a hundred of ours; clients take those that are left out as failed too."""
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
        return Refusal(_CODES[int(error.code)], str(error))
    _log.error("a call failed", exc_info=error)
    return Refusal(grpc.StatusCode.INTERNAL, "The server made a mistake, which it has logged.")


async def abort(context: Context, error: Exception) -> None:
    """End a call with what went wrong. Raises."""
    refusal = refusal_of(error)
    await context.abort(refusal.code, refusal.text[:MAX_TEXT_LENGTH], refusal.metadata)


def unary(request: Any, call: Call) -> RawCall:
    """A call that takes a parsed request and returns a message, for gRPC."""

    async def run(raw: bytes, context: Context) -> bytes:
        answer: bytes = (await call(parsed(request, raw), context)).SerializeToString()
        return answer

    return guarded(run)


def parsed(kind: Any, raw: bytes) -> Any:
    """A message of google.pubsub.v1 from its bytes."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        # Not INTERNAL, as gRPC itself would have it: that one clients repeat.
        raise invalid(f"The request is not a valid google.pubsub.v1.{kind.DESCRIPTOR.name}.") from None


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
