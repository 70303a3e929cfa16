"""A message as the request that pushes it, wrapped in JSON or as it is."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from inorder.clock import MICROSECONDS
from inorder.message import Message
from inorder.server.push.config import PushTarget

Headers = list[tuple[str, str]]

_METADATA = "x-goog-pubsub-"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # what the name of a header may be
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")  # no control characters: they could begin another header
# Those by which a request is read: a message has no say in them, nor in those that say what is known of it.
_RESERVED = {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}


def request_of(message: Message, target: PushTarget, subscription: str, attempt: int | None) -> tuple[Headers, bytes]:
    """The headers and the body. `attempt` is which delivery of the message this is, if those are counted."""
    if target.wrapped:
        return [("content-type", "application/json")], _wrapped(message, subscription, attempt)
    headers = [*_metadata(message, subscription, attempt)] if target.metadata else []
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("content-type", "application/octet-stream"))
    return headers, message.data


def _wrapped(message: Message, subscription: str, attempt: int | None) -> bytes:
    time = publish_time(message)
    inner: dict[str, Any] = {}
    if attributes := message.attributes:
        inner["attributes"] = attributes
    if data := message.data:
        inner["data"] = base64.b64encode(data).decode()
    # Google has both spellings, for handlers that were written for its first version.
    inner |= {"messageId": message.id, "message_id": message.id, "publishTime": time, "publish_time": time}
    if key := message.ordering_key:
        inner["orderingKey"] = key
    outer: dict[str, Any] = {"message": inner, "subscription": subscription}
    if attempt is not None:
        outer["deliveryAttempt"] = attempt
    return json.dumps(outer, ensure_ascii=False).encode()


def _metadata(message: Message, subscription: str, attempt: int | None) -> Iterator[tuple[str, str]]:
    """The message's attributes that can be headers, and what else is known of it."""
    for name, value in message.attributes.items():
        taken = name.lower() in _RESERVED or name.lower().startswith(_METADATA)
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value) and not taken:
            yield name, value
    yield f"{_METADATA}subscription-name", subscription
    yield f"{_METADATA}message-id", message.id
    yield f"{_METADATA}publish-time", publish_time(message)
    if (key := message.ordering_key) and _VALUE.fullmatch(key):
        yield f"{_METADATA}ordering-key", key
    if attempt is not None:
        yield f"{_METADATA}delivery-attempt", str(attempt)


def publish_time(message: Message) -> str:
    """As protobuf's JSON has it: three digits behind the second, or six."""
    time = message.publish_time or datetime.fromtimestamp(0, UTC)
    exact = time.microsecond % (MICROSECONDS // 1_000) == 0
    return time.isoformat(timespec="milliseconds" if exact else "microseconds").replace("+00:00", "Z")
