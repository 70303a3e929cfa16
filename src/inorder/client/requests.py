"""What a publisher holds on its way: what is collected, what is sent in one go, and what waits to be let in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from inorder.message import Batch, Entry
from inorder.pending import Pending

# Pub/Sub's limits for one publish request; the second leaves room for what is around the messages.
MAX_REQUEST_MESSAGES = 1_000
MAX_REQUEST_BYTES = 9_000_000


class Collected(NamedTuple):
    """Messages that wait to be sent, as columns in their order, and beside them those who wait for their ids."""

    keys: list[str]
    data: list[bytes]
    attributes: list[Mapping[str, str] | None]
    sizes: list[int]
    answers: list[Pending[str]]

    @classmethod
    def nothing(cls) -> Collected:
        return cls([], [], [], [], [])

    def add(self, entry: Entry, answer: Pending[str]) -> None:
        keys, data, attributes, sizes, answers = self
        keys.append(entry[0])
        data.append(entry[1])
        attributes.append(entry[2])
        sizes.append(entry[3])
        answers.append(answer)

    def extend(self, others: Collected) -> None:
        for entry, answer in others.rows():
            self.add(entry, answer)

    def rows(self) -> Iterable[tuple[Entry, Pending[str]]]:
        keys, data, attributes, sizes, answers = self
        return zip(zip(keys, data, attributes, sizes, strict=True), answers, strict=True)

    def by_key(self) -> dict[str, Collected]:
        found: dict[str, Collected] = {}
        for entry, answer in self.rows():
            found.setdefault(entry[0], Collected.nothing()).add(entry, answer)
        return found

    def part(self, rows: slice) -> Collected:
        keys, data, attributes, sizes, answers = self
        return Collected(keys[rows], data[rows], attributes[rows], sizes[rows], answers[rows])

    def split(self, keys: Collection[str]) -> tuple[Collected, Collected]:
        """The messages of these keys, and the others."""
        these, others = Collected.nothing(), Collected.nothing()
        for entry, answer in self.rows():
            (these if entry[0] in keys else others).add(entry, answer)
        return these, others


class Request:
    """What is sent in one go, and who waits for its ids: each for one of them, or one for all."""

    __slots__ = ("answers", "batch", "for_all", "size")

    def __init__(self, batch: Batch, answers: Sequence[Pending[Any]], *, for_all: bool = False) -> None:
        self.batch = batch
        self.answers = answers
        self.for_all = for_all
        self.size = sum(batch[3])

    def keys(self) -> set[str]:
        return {*filter(None, self.batch[0])}

    def fits(self) -> bool:
        return len(self.batch[0]) <= MAX_REQUEST_MESSAGES and self.size <= MAX_REQUEST_BYTES

    def results(self, ids: list[str]) -> list[Any]:
        """What each of the answers is."""
        return [ids] if self.for_all else ids


class Waiting(NamedTuple):
    """A message beyond flow control; `admitted` is for the thread that waits until it is let in."""

    entry: Entry
    answer: Pending[str]
    admitted: Pending[None]
