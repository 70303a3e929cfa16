"""What one request may hold, as Pub/Sub has it."""

from __future__ import annotations

from collections.abc import Mapping

from inorder.errors import InvalidMessage
from inorder.message import Batch, check_ordering_key, make_entry
from inorder.options import MAX_MESSAGE_BYTES, MAX_ORDERING_KEY_BYTES, RESERVED_ATTRIBUTE_PREFIX
from inorder.server.status import invalid, within

MAX_REQUEST_BYTES = 10_000_000
MAX_RECEIVED_BYTES = 16_000_000  # what is beyond the limit but below this gets an answer that says so
MAX_PUBLISHED = 1_000
MAX_PULLED = 1_000
MAX_RESPONSE_BYTES = 3_000_000  # of messages: with names, ids and times it stays below the 4 MiB that clients take
CLIENTS_PREFIX = "googclient_"  # attributes that Google's clients add by themselves, to trace a message


def check_request_size(size: int) -> None:
    if size > MAX_REQUEST_BYTES:
        raise invalid(f"Request payload size exceeds the limit: {MAX_REQUEST_BYTES} bytes.")


def check_batch(batch: Batch) -> None:
    """Refuse a batch that has a message which Pub/Sub would refuse. Mostly a look at whole columns is enough."""
    keys, data, attributes, sizes = batch
    within("message_count", len(keys), 1, MAX_PUBLISHED)
    text = "".join(keys)
    short = len(text) <= MAX_ORDERING_KEY_BYTES or max(map(len, keys)) <= MAX_ORDERING_KEY_BYTES
    if any(attributes) or b"" in data or not short or not text.isascii() or max(sizes) > MAX_MESSAGE_BYTES:
        for key, one, own in zip(keys, data, attributes, strict=True):
            _check_message(key, one, own)


def _check_message(key: str, data: bytes, attributes: Mapping[str, str] | None) -> None:
    if not data and not attributes:
        raise InvalidMessage(
            "One or more messages in the publish request is empty. "
            "Each message must contain either non-empty data, or at least one attribute."
        )
    if key:
        check_ordering_key(key)
    # What clients add is judged by the same limits, under a name of the same length that is not reserved.
    judged = {
        f"xxxx{name[len(RESERVED_ATTRIBUTE_PREFIX) :]}" if name.startswith(CLIENTS_PREFIX) else name: value
        for name, value in (attributes or {}).items()
    }
    make_entry(data, judged, key or None)
