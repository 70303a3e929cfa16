"""What a publisher holds on its way: what is collected, what is sent in one go, and what waits to be let in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from inorder.message import Batch, Entry
from inorder.pending import Pending

# Pub/Sub's limits for one publish request; the second leaves room for what is around the messages.
MAX_REQUEST_MESSAGES = 1_000
MAX_REQUEST_BYTES = 9_000_000


WIDTH = 5  # what there is of a message that waits to be sent: key, data, attributes, size, and who waits for its id
SIZE = 3  # the place of its size among them


def fits(messages: int, size: int) -> bool:
    """Whether so many can be sent in one go."""
    return messages <= MAX_REQUEST_MESSAGES and size <= MAX_REQUEST_BYTES


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

    @classmethod
    def of(cls, rows: list[Any], length: int) -> Collected:
        """Messages that are written one after the other in one list, up to there."""
        return cls(*[rows[column:length:WIDTH] for column in range(WIDTH)])

    def add(self, entry: Entry, answer: Pending[str]) -> None:
        keys, data, attributes, sizes, answers = self
        keys.append(entry[0])
        data.append(entry[1])
        attributes.append(entry[2])
        sizes.append(entry[3])
        answers.append(answer)

    @classmethod
    def together(cls, several: Sequence[Collected]) -> Collected:
        return cls(*[[*chain.from_iterable(column)] for column in zip(*several, strict=True)])

    def fits(self) -> bool:
        """Whether it can be sent in one go; a message alone always is."""
        return len(self.answers) == 1 or fits(len(self.answers), sum(self.sizes))

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


class Tally:
    """How many of each key are collected, and their bytes.

    It looks at what has come since it looked last, so that mostly many are counted at once and in C; and it counts
    key by key only if one could have too many, which mostly none can.
    """

    __slots__ = ("_bound", "_by_key", "_bytes", "_counted", "_counts", "_keys", "_most", "_seen", "_sizes", "_weighed")

    def __init__(self, keys: Sequence[str], sizes: Sequence[int]) -> None:
        self._keys = keys
        self._sizes = sizes
        self._seen = 0  # so many of them
        self._bound = 0  # no key has more
        self._bytes = 0
        self._counted = 0  # so many are part of the following
        self._counts: Counter[str] = Counter()
        self._most = 0
        self._weighed = 0  # and so many of this
        self._by_key: dict[str, int] = {}

    def reaches(self, key: str, count: int) -> bool:
        """Whether there are so many messages of a key."""
        self._look()
        return self._bound >= count and self._count_by_key()[key] >= count

    def exceeds(self, key: str, size: int) -> bool:
        """Whether there are messages of a key, and more bytes of it than so many."""
        self._look()
        return self._bytes > size and self._bytes_by_key().get(key, size) > size

    def most(self, messages: int, size: int) -> tuple[int, int]:
        """No key has more messages, or more bytes. They are counted only when they come near these limits."""
        self._look()
        if 4 * self._bound > 3 * messages:
            self._count_by_key()
        return self._bound, self._bytes if 2 * self._bytes < size else max(self._bytes_by_key().values())

    @property
    def ahead(self) -> int:
        """So many were foreseen that are not collected yet."""
        return self._seen - len(self._keys)

    def foresee(self, keys: Sequence[str], sizes: Sequence[int]) -> tuple[int, int]:
        """These will be collected next. As `most` then, but nothing is counted: that waits until they are."""
        self._bound += len(keys) - len({*keys}) + 1  # if all that come again are of that key
        self._bytes += sum(sizes)
        self._seen += len(keys)
        return self._bound, self._bytes

    def _look(self) -> None:
        if new := self._keys[self._seen :]:
            self.foresee(new, self._sizes[self._seen :])

    def _count_by_key(self) -> Counter[str]:
        if new := self._keys[self._counted :]:
            self._counts.update(new)
            self._most = max(self._most, *map(self._counts.__getitem__, new))
            self._counted += len(new)
        self._bound = self._most
        return self._counts

    def _bytes_by_key(self) -> dict[str, int]:
        by_key = self._by_key
        for key, size in zip(self._keys[self._weighed :], self._sizes[self._weighed :], strict=True):
            by_key[key] = by_key.get(key, 0) + size
        self._weighed = len(self._keys)
        return by_key


class Request:
    """What is sent in one go, and who waits for its ids: each for one of them, or one for all."""

    __slots__ = ("answers", "asked", "batch", "counts", "for_all", "size")

    def __init__(self, batch: Batch, answers: Sequence[Pending[Any]], *, for_all: bool = False) -> None:
        self.batch = batch
        self.answers = answers
        self.for_all = for_all
        self.size = sum(batch[3])
        self.asked = False
        self.counts = True  # against flow control, until it is answered

    def keys(self) -> set[str]:
        return {*filter(None, self.batch[0])}

    def results(self, ids: list[str]) -> list[Any]:
        """What each of the answers is."""
        return [ids] if self.for_all else ids


class Waiting(NamedTuple):
    """A message beyond flow control; `admitted` is for the thread that waits until it is let in."""

    entry: Entry
    answer: Pending[str]
    admitted: Pending[None]
