"""Where messages that a consumer holds wait for their turn: one of a key at a time, or any of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import chain, repeat

from inorder.message import KEY, Message


class Line:
    """No order is promised: first come, first served. Not thread-safe."""

    def __init__(self) -> None:
        self._ready: deque[Message] = deque()

    def any_ready(self) -> bool:
        return bool(self._ready)

    def put(self, messages: Sequence[Message]) -> None:
        self._ready.extend(messages)

    def take(self, count: int) -> list[Message]:
        """Up to `count` messages, which are out from now on."""
        ready = self._ready
        if len(ready) <= count:
            taken = list(ready)
            ready.clear()
            return taken
        return list(map(deque.popleft, repeat(ready, count)))  # in C

    def put_back(self, messages: Sequence[Message]) -> None:
        """These were taken a moment ago, and are the next again."""
        self._ready.extendleft(reversed(messages))

    def done(self, messages: Sequence[Message]) -> None:
        """They were out: the next of their keys are ready."""

    def hold(self, key: str) -> None:
        """Nothing of `key` goes before `release`."""

    def release(self, key: str) -> None:
        """A held key takes turns again."""

    def waiting(self, key: str) -> Sequence[Message]:
        """The messages of `key` that have no turn yet."""
        return ()

    def fail(self, key: str) -> None:
        """A message of `key` has failed, and the broker is about to take back what is out behind it."""

    def lose(self, key: str, held: Container[int]) -> list[Message]:
        """It has: of what waits of `key`, take out all whose leases are not held any more."""
        return []

    def go_on(self, key: str) -> None:
        """Messages of a key that had failed have their turn again."""

    def messages(self) -> Iterator[Message]:
        """Everything that is not out."""
        yield from self._ready


class WindowLine(Line):
    """Several of a key at a time, in order, for whoever keeps it: but nothing behind one that has failed."""

    def __init__(self) -> None:
        super().__init__()
        self._behind: dict[str, list[Message]] = {}  # by the keys that have failed

    def put(self, messages: Sequence[Message]) -> None:
        if not self._behind:
            self._ready.extend(messages)
            return
        for message in messages:
            self._behind.get(message._record[KEY], self._ready).append(message)

    def fail(self, key: str) -> None:
        if key and key not in self._behind:
            self._behind[key] = [message for message in self._ready if message._record[KEY] == key]
            self._ready = deque(message for message in self._ready if message._record[KEY] != key)

    def go_on(self, key: str) -> None:
        self._ready.extendleft(reversed(self._behind.pop(key, ())))

    def waiting(self, key: str) -> Sequence[Message]:
        return self._behind.get(key, ())

    def lose(self, key: str, held: Container[int]) -> list[Message]:
        return _lost(self._behind.get(key), held)

    def messages(self) -> Iterator[Message]:
        yield from self._ready
        yield from chain.from_iterable(self._behind.values())


class KeyedLine(Line):
    """At most one message of a key is ready or out, so no key is overtaken by itself, and keys take turns.

    Mostly the broker sends one of a key at a time: such bursts go in and out without a step for each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._behind: dict[str, deque[Message] | None] = {}  # by the keys ready or out; None: nothing waits

    def put(self, messages: Sequence[Message]) -> None:
        behind, ready = self._behind, self._ready
        keys = dict.fromkeys([message._record[KEY] for message in messages])
        if len(keys) == len(messages) and "" not in keys and (not behind or behind.keys().isdisjoint(keys)):
            behind.update(keys)
            ready.extend(messages)
            return
        for message in messages:
            key = message._record[KEY]
            if key not in behind:
                if key:
                    behind[key] = None
                ready.append(message)
            elif (waiting := behind[key]) is None:
                behind[key] = waiting = deque()
                waiting.append(message)
            else:
                waiting.append(message)

    def done(self, messages: Sequence[Message]) -> None:
        behind = self._behind
        keys = [message._record[KEY] for message in messages]
        if len(keys) == len(behind) and [*behind] == keys and not any(behind.values()):
            behind.clear()
            return
        waiting = [*map(behind.pop, keys, repeat(None))]
        if any(waiting):
            for message, others in zip(messages, waiting, strict=True):
                if others:
                    behind[message._record[KEY]] = others
                    self._ready.append(others.popleft())

    def hold(self, key: str) -> None:
        self._behind.setdefault(key, None)

    def release(self, key: str) -> None:
        if waiting := self._behind.pop(key):
            self._behind[key] = waiting
            self._ready.append(waiting.popleft())

    def waiting(self, key: str) -> Sequence[Message]:
        return self._behind.get(key) or ()

    def lose(self, key: str, held: Container[int]) -> list[Message]:
        return _lost(self._behind.get(key), held)

    def messages(self) -> Iterator[Message]:
        yield from self._ready
        yield from chain.from_iterable(filter(None, self._behind.values()))


def _lost(waiting: list[Message] | deque[Message] | None, held: Container[int]) -> list[Message]:
    if not waiting:
        return []
    ours: list[Message] = []
    lost: list[Message] = []
    for message in waiting:
        (ours if message._lease in held else lost).append(message)
    waiting.clear()
    waiting.extend(ours)
    return lost
