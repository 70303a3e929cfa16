"""The messages that are measured with, and the check that all of them arrived in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from random import Random
from typing import Any, TypeVar

from inorder import Columns, Metrics
from inorder.options import QueueLimits, SubscriptionOptions

T = TypeVar("T")
Pair = tuple[str, bytes]  # ordering key, data

MESSAGE_BYTES = 200

# Nothing that is measured is dropped, and no lease ends by itself.
OPTIONS: dict[str, Any] = {
    "enable_message_ordering": True,
    "ack_deadline_seconds": 600,
    "queue_limits": QueueLimits(max_messages=None, max_bytes=None),
}
ORDERED = SubscriptionOptions(**OPTIONS)

PATIENCE_SECONDS = 30  # a run that takes longer has lost a message


class WrongResult(Exception):
    """Messages were lost, repeated or out of order: what was measured is not the work."""


def random_pairs(count: int, keys: int) -> list[Pair]:
    """Messages of keys in random order, the same order in every run."""
    return _pairs(Random(count).choices(range(keys), k=count), keys)


def even_pairs(count: int, keys: int) -> list[Pair]:
    """Messages of keys in turn."""
    return _pairs((number % keys for number in range(count)), keys)


def _pairs(chosen: Iterable[int], keys: int) -> list[Pair]:
    """Every key and every payload is an object of its own, as in a program that reads them from somewhere."""
    sent = [0] * keys
    pairs: list[Pair] = []
    for key in chosen:
        pairs.append((f"key-{key}", f"{key} {sent[key]}".encode().ljust(MESSAGE_BYTES)))
        sent[key] += 1
    return pairs


_key, _data = itemgetter(0), itemgetter(1)


def side_by_side(pairs: Sequence[Pair]) -> Columns:
    """The same as columns."""
    return Columns([*map(_key, pairs)], [*map(_data, pairs)])


def split(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """The same items in batches."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def check_order(received: Sequence[bytes], count: int) -> None:
    """Every message once, each key in its order."""
    if len(received) != count:
        raise WrongResult(f"{len(received):,} of {count:,} messages arrived")
    expected: dict[bytes, int] = {}
    for data in received:
        key, number = data.split()
        if int(number) != expected.get(key, 0):
            raise WrongResult(f"key {key.decode()}: message {expected.get(key, 0)} expected, {number.decode()} came")
        expected[key] = int(number) + 1


def check_acked(metrics: Metrics) -> None:
    """Nothing is left of what was published."""
    if metrics.backlog_messages:
        raise WrongResult(f"{metrics.backlog_messages:,} messages were not acked")
