"""What a frame says, entry by entry, without repeating it in the books: for tools.

Trusts nothing: a frame that came to the disk and back unchanged may still have been written wrongly.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from inorder.errors import InorderError
from inorder.journal.codec import ACKED, OTHER, PUBLISHED, Batch, acked, batch, book_from_json, entries, unknown
from inorder.journal.findings import Meaning
from inorder.journal.index import index_from_json

# The parts of each event that is kept as JSON, behind its name.
FACTS = {
    "topic_created": ("topic", "serial", "id_prefix", "options", "created_us"),
    "topic_updated": ("topic", "options"),
    "topic_deleted": ("topic",),
    "written": ("topic", "writer", "epoch", "part"),
    "producer_opened": ("topic", "producer", "epoch", "opened_us"),
    "attempted": ("topic", "attempt", "position", "messages", "attempted_us"),
    "subscription_created": ("subscription", "topic", "serial", "options", "created_us"),
    "subscription_updated": ("subscription", "options"),
    "subscription_detached": ("subscription",),
    "subscription_deleted": ("subscription",),
    "failed": ("subscription", "returns"),
    "dead_lettered": ("subscription", "gaps", "gone"),
    "key_resumed": ("subscription", "key"),
    "head_skipped": ("subscription", "key"),
    "sought": ("subscription", "position", "replay_from", "visible"),
    "snapshot_created": ("snapshot", "subscription", "topic", "done", "expires_us", "annotations", "created_us"),
    "snapshot_updated": ("snapshot", "expires_us", "annotations"),
    "snapshot_deleted": ("snapshot",),
    "sought_snapshot": ("subscription", "snapshot", "visible"),
}
EVENTS = ("published", "acked", *FACTS)


class Acks(NamedTuple):
    """These positions are done for a subscription."""

    subscription: str
    positions: Sequence[int]


class Fact(NamedTuple):
    """Any other event: its name, and its parts by their names."""

    event: str
    parts: dict[str, Any]


Said: TypeAlias = Batch | Acks | Fact

_WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error)  # what decoding nonsense may raise


def decoded(body: bytes) -> Iterator[Said]:
    """All that a frame says, in order; raises ValueError where that is nonsense, FailedPrecondition where it is new."""
    found = entries(body)
    while True:
        try:
            kind, entry = next(found)
            said = _decoded(kind, entry)
        except StopIteration:
            return
        except _WRONG as error:
            raise ValueError(str(error) or type(error).__name__) from error
        yield said


def _decoded(kind: int, entry: memoryview) -> Said:
    if kind == PUBLISHED:
        return batch(entry)
    if kind == ACKED:
        name, positions = acked(entry)
        return Acks(name, positions)
    if kind != OTHER:
        raise unknown(f"of kind {kind}")
    event, *parts = json.loads(bytes(entry))
    if event not in FACTS:
        raise unknown(str([event]))
    return Fact(event, dict(zip(FACTS[event], parts, strict=True)))


def wrong_in_frame(body: bytes) -> str:
    """What is wrong with the entries of a frame; nothing if all can be decoded."""
    try:
        for said in decoded(body):
            if isinstance(said, Batch):
                _check(said)
    except _WRONG as error:
        return f"the frame cannot be decoded: {str(error) or type(error).__name__}"
    except InorderError as error:
        return str(error)
    return ""


def wrong_in_snapshot(body: bytes) -> str:
    """What is wrong with a snapshot; nothing if it can be decoded."""
    try:
        plain = json.loads(body)
        book_from_json(plain["book"])
        index_from_json(plain["indexes"])
    except (*_WRONG, InorderError) as error:
        return f"the snapshot cannot be decoded: {str(error) or type(error).__name__}"
    return ""


def _check(found: Batch) -> None:
    """Raise ValueError unless the columns of a batch fit together."""
    width = 8 * (found.messages + 1)
    times = 8 * found.messages if found.own_times else 0
    if not found.messages or width + sum(found.lengths) + times != len(found.columns):
        raise ValueError(f"the batch at position {found.first} has not the length that it says")
    for offsets, length in (
        (found.key_offsets.tolist(), found.lengths[0]),
        (found.data_offsets.tolist(), found.lengths[1]),
    ):
        if offsets[0] != 0 or offsets[-1] != length or offsets != sorted(offsets):
            raise ValueError(f"the offsets of the batch at position {found.first} do not fit its columns")
    str(found.keys, "utf-8")
    attributes = found.attributes()
    if attributes is not None and len(attributes) != found.messages:
        raise ValueError(f"the batch at position {found.first} has attributes of {len(attributes)} messages")


MEANING = Meaning(wrong_in_frame, wrong_in_snapshot)
