"""Errors over the wire: a status of gRPC has the code of the kind, and google.rpc.ErrorInfo beside it names the fact.

domain     inorder.v1
reason     the name of a class of `inorder.errors`
metadata   what the error is asked for, each as JSON; `message` is its text, if the status says it in other words
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from inorder import errors
from inorder.errors import FailedPrecondition, InorderError

DOMAIN = "inorder.v1"
DETAILS = "grpc-status-details-bin"  # the metadata where clients look for more than a code and a text

_FACTS = {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, InorderError)}
_KINDS = {int(one.code): one for one in _FACTS.values() if InorderError in one.__bases__}


def details_of(error: InorderError, code: int, text: str) -> bytes:
    """What stands beside a status that says `text` of an error."""
    facts = {name: json.dumps(value) for name, value in vars(error).items() if _plain(value)}
    if str(error) != text:
        facts["message"] = json.dumps(str(error))
    status: Any = status_pb2.Status(code=code, message=text)
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain=DOMAIN, reason=type(error).__name__, metadata=facts))
    details: bytes = status.SerializeToString()
    return details


def error_of(code: int, text: str, details: bytes | None = None) -> InorderError:
    """The error that a status stands for: the fact, or the kind if no fact is told."""
    info = _info(details or b"")
    fact = _FACTS.get(info.reason)
    if fact is None:
        # A code that no kind has is a mistake or a refusal: to say it again cannot help.
        return _KINDS.get(code, FailedPrecondition)(text)
    facts = {name: value for name, text in info.metadata.items() for value in _read(text) if not name.startswith("_")}
    error = fact.__new__(fact)
    Exception.__init__(error, str(facts.pop("message", text)))  # its own would put the words around the fact
    for name, value in facts.items():
        setattr(error, name, value)
    return error


def retry_seconds(details: bytes | None) -> float | None:
    """After which a server says that the same may be asked again; None if it does not."""
    for retry in _told(error_details_pb2.RetryInfo, details or b""):
        return max(float(retry.retry_delay.ToTimedelta().total_seconds()), 0.0)
    return None


def _info(details: bytes) -> Any:
    for info in _told(error_details_pb2.ErrorInfo, details):
        if info.domain == DOMAIN:
            return info
    return error_details_pb2.ErrorInfo()


def _told(kind: Any, details: bytes) -> list[Any]:
    """What stands beside a status, as far as it is of this kind."""
    try:
        found = [(kind(), detail) for detail in status_pb2.Status.FromString(details).details]
        return [one for one, detail in found if detail.Is(kind.DESCRIPTOR) and detail.Unpack(one)]
    except DecodeError:  # of somebody else
        return []


def _read(text: str) -> list[Any]:
    """One value, or none of what another version may have written."""
    try:
        return [json.loads(text)]
    except ValueError:
        return []


def _plain(value: object) -> bool:
    return isinstance(value, str | int) or (isinstance(value, tuple) and all(map(_plain, value)))
