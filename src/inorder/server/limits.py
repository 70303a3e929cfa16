"""What one request may hold, as Pub/Sub has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat

from inorder.errors import InvalidMessage
from inorder.message import Batch, check_ordering_key, make_entry
from inorder.options import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    MAX_ORDERING_KEY_BYTES,
    RESERVED_ATTRIBUTE_PREFIX,
)
from inorder.server.status import within

MAX_REQUEST_BYTES = 10_000_000
MAX_PUBLISHED = 1_000
MAX_PULLED = 1_000
MAX_COLUMNS = 4_000  # for clients that take columns: what a request or a response costs by itself is a millisecond
MAX_RESPONSE_BYTES = 3_000_000  # of messages: with names, ids and times it stays below the 4 MiB that clients take
CLIENTS_PREFIX = "googclient_"  # attributes that Google's clients add by themselves, to trace a message


def check_request_size(size: int) -> None:
    within("request_size", size, 0, MAX_REQUEST_BYTES)


def check_batch(batch: Batch, *, most: int = MAX_PUBLISHED, may_be_empty: bool = False) -> None:
    """Refuse a batch that has a message which Pub/Sub would refuse. Mostly a look at whole columns is enough.

    To a client of ours a message `may_be_empty`, as it may be in the broker.
    """
    keys, data, attributes, sizes = batch
    within("message_count", len(keys), 1, most)
    fine = _short(keys, MAX_ORDERING_KEY_BYTES) and b"" not in data and max(sizes) <= MAX_MESSAGE_BYTES
    if not fine or not _fine(list(filter(None, attributes))):
        for key, one, own in zip(keys, data, attributes, strict=True):
            _check_message(key, one, own, may_be_empty)


def _fine(attributes: list[Mapping[str, str]]) -> bool:
    """Whether these break no limit, as far as that can be told without looking at each."""
    if not attributes:
        return True
    names, values = list(chain(*attributes)), list(chain(*(own.values() for own in attributes)))
    return (
        max(map(len, attributes)) <= MAX_ATTRIBUTES
        and _short(names, MAX_ATTRIBUTE_KEY_BYTES)
        and _short(values, MAX_ATTRIBUTE_VALUE_BYTES)
        and "" not in names
        and not any(map(str.startswith, names, repeat(RESERVED_ATTRIBUTE_PREFIX)))
    )


def _short(texts: Sequence[str], limit: int) -> bool:
    """Whether none of them has more bytes than that; a letter that is not ASCII may have four."""
    together = "".join(texts)
    return len(together) <= limit // 4 or (together.isascii() and max(map(len, texts)) <= limit)


def _check_message(key: str, data: bytes, attributes: Mapping[str, str] | None, may_be_empty: bool) -> None:
    if not data and not attributes and not may_be_empty:
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
