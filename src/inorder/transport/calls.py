"""The calls of inorder.v1, for a program that waits for each.

Each of them may be repeated, and is while the server cannot be reached: it may just be starting again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import grpc

from inorder.errors import InorderError, Unavailable
from inorder.protocol.facts import DETAILS, error_of
from inorder.transport.address import Address
from inorder.transport.channels import channel

SERVICE = "inorder.v1.Inorder"
PAUSE_SECONDS = 0.05  # before the first repetition, doubled with each
MAX_PAUSE_SECONDS = 1.0


class Answer(Protocol):
    """A message of the protocol."""

    @staticmethod
    def FromString(data: bytes) -> Any: ...  # noqa: N802


T = TypeVar("T", bound=Answer)


class Calls:
    """One connection to a server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._channel = channel(address)

    def call(self, name: str, request: Any, answer: type[T]) -> T:
        """The answer to a request. What the server refuses is raised as it was raised there."""
        method = self._channel.unary_unary(
            f"/{SERVICE}/{name}", request_serializer=_bytes, response_deserializer=answer.FromString
        )
        for pause in self._pauses():
            try:
                found: T = method(request, timeout=self._address.timeout_seconds)
                return found
            except grpc.RpcError as error:
                self._wait(error, pause)
        raise AssertionError("there is always another pause, or an error")

    def stream(self, name: str, request: Callable[[], Any], answer: type[T]) -> Iterator[T]:
        """All answers. `request` is asked again where the connection was lost in the middle."""
        method = self._channel.unary_stream(
            f"/{SERVICE}/{name}", request_serializer=_bytes, response_deserializer=answer.FromString
        )
        pauses = self._pauses()
        while True:
            answers = method(request())
            try:
                for found in answers:
                    yield found
                    pauses = self._pauses()
                return
            except grpc.RpcError as error:
                self._wait(error, next(pauses))
            finally:
                answers.cancel()

    def close(self) -> None:
        self._channel.close()

    def _pauses(self) -> Iterator[float | None]:
        """How long to wait before the next try; None: there is none."""
        end, pause = time.monotonic() + self._address.timeout_seconds, PAUSE_SECONDS
        while time.monotonic() < end:
            yield pause
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        yield None

    def _wait(self, error: Any, pause: float | None) -> None:
        """Wait to try again, or raise what cannot be helped so."""
        raised = self._raised(error)
        if not isinstance(raised, Unavailable) or pause is None:
            raise raised from None
        time.sleep(pause)

    def _raised(self, error: Any) -> InorderError:
        details = dict(error.trailing_metadata() or ()).get(DETAILS)
        text = error.details() or ""
        if details is None and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unavailable(f"grpc://{self._address.address} cannot be reached: {text}")
        return error_of(error.code().value[0], text, details)


def _bytes(request: Any) -> bytes:
    raw: bytes = request.SerializeToString()
    return raw
