"""One key's turn: who may go next so that no key is ever overtaken by itself.

Works on plain tuples, of which it reads the position and the key and nothing else: the broker's
records, and what a worker pool keeps in order. Knows nothing of leases, time or limits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import repeat
from operator import itemgetter
from typing import Any, Generic, TypeVar

from inorder.message import KEY, POSITION

_key = itemgetter(KEY)

LINE_UP = 100  # records without a key that one turn moves behind those that came back

Item = TypeVar("Item", bound=tuple[Any, ...])


class Lanes(Generic[Item]):
    """Records waiting their turn, at most one out per key. Not thread-safe.

    A key is in `_behind` from its first record until nothing of it is left, and costs nothing
    otherwise. Of each key at most one record is ready, so keys take turns. Records without a key
    are free and go oldest first, so those that came back come before the others; but they take turns
    with the keys, which one that fails again and again must not keep waiting.
    """

    def __init__(self) -> None:
        self._ready: deque[Item] = deque()
        self._returned: list[tuple[int, Item]] = []  # a heap: keyless records that came back, or wait for such
        self._turn_of_returned = True
        self._behind: dict[str, deque[Item] | None] = {}  # None: one is ready or out, nothing waits

    def any_ready(self) -> bool:
        """Whether a `take` may find something."""
        return bool(self._ready or self._returned)

    def ready(self) -> int:
        """How many a `take` would find."""
        return len(self._ready) + len(self._returned)

    def put_one(self, record: Item) -> None:
        """A new record, behind everything of its key."""
        key, behind = record[1], self._behind
        if key not in behind:
            if key:
                behind[key] = None
            self._ready.append(record)
        elif (waiting := behind[key]) is None:
            behind[key] = deque((record,))
        else:
            waiting.append(record)

    def put(self, records: Iterable[Item]) -> None:
        """The same for many."""
        behind, ready = self._behind, self._ready
        for record in records:
            key = record[1]
            if key not in behind:
                if key:
                    behind[key] = None
                ready.append(record)
            elif (waiting := behind[key]) is None:
                behind[key] = deque((record,))
            else:
                waiting.append(record)

    def take(self, count: int, consumer: object = None) -> list[Item]:
        """Up to `count` records, which are out from now on."""
        ready = self._ready
        if self._returned:
            return self._take_in_turns(count, consumer)
        if count == 1:
            return [ready.popleft()] if ready else []
        if len(ready) <= count:
            taken = list(ready)
            ready.clear()
            return taken
        return list(map(deque.popleft, repeat(ready, count)))  # in C

    def _take_in_turns(self, count: int, consumer: object) -> list[Item]:
        """One that came back, one of a key, and so on; new ones without a key line up behind what came back."""
        returned = self._returned
        taken: list[Item] = []
        lined_up = 0  # a bound, so that a pull costs what it returns
        while len(taken) < count:
            item = None
            if not (returned and self._turn_of_returned):
                item = self._next(consumer)
                if item is not None and not item[KEY] and returned and lined_up < LINE_UP:
                    heappush(returned, (item[POSITION], item))
                    lined_up += 1
                    continue
            if returned and (item is None or not item[KEY]):
                item = (heappushpop(returned, (item[POSITION], item)) if item else heappop(returned))[1]
            if item is None:
                break
            self._turn_of_returned = item[KEY] != ""
            taken.append(item)
        return taken

    def _next(self, consumer: object) -> Item | None:
        return self._ready.popleft() if self._ready else None

    def untake(self, records: Sequence[Item]) -> None:
        """These were taken a moment ago and go first again, in this order."""
        self._ready.extendleft(reversed(records))

    def done_one(self, record: Item) -> None:
        """It was out and will not come back: the next of its key is ready."""
        if key := record[1]:
            if waiting := self._behind[key]:
                self._ready.append(waiting.popleft())
            else:
                del self._behind[key]

    def done(self, records: Iterable[Item]) -> None:
        """The same for many."""
        behind, ready = self._behind, self._ready
        for record in records:
            key = record[1]
            if key:
                if waiting := behind[key]:
                    ready.append(waiting.popleft())
                else:
                    del behind[key]

    def give_back(self, record: Item) -> None:
        """A record without a key that was out is free again, before all that never were."""
        heappush(self._returned, (record[POSITION], record))

    def hold(self, key: str, records: Sequence[Item]) -> None:
        """What was out of `key`, if anything, returns to its front, and the key waits for `release`."""
        self._to_front(key, records)

    def release(self, key: str) -> None:
        """A held key takes turns again."""
        if waiting := self._behind[key]:
            self._ready.append(waiting.popleft())
        else:
            del self._behind[key]

    def waiting(self, key: str) -> Sequence[Item]:
        """The records of `key` that have no turn yet; a held key's head is the first of them."""
        return self._behind.get(key) or ()

    def crowded(self) -> Iterator[str]:
        """The keys of which a record waits for another one."""
        return (key for key, waiting in self._behind.items() if waiting)

    def replace(self, key: str, index: int, record: Item) -> None:
        """Put `record` in the place of one that waits."""
        waiting = self._behind[key]
        assert waiting
        waiting[index] = record

    def records(self) -> Iterator[Item]:
        """Everything that is not out, each key in its order."""
        yield from self._ready
        yield from (record for _, record in self._returned)
        for waiting in self._behind.values():
            yield from waiting or ()

    def rewrite(self, change: Callable[[Item], Item | None]) -> None:
        """Replace every record that is not out; None removes it, which a key's record never is."""
        self._ready = deque(filter(None, map(change, self._ready)))
        kept = ((position, change(record)) for position, record in sorted(self._returned))
        self._returned = [(position, record) for position, record in kept if record]
        for key, waiting in self._behind.items():
            if waiting:
                self._behind[key] = deque(filter(None, map(change, waiting)))

    def forsake(self, consumer: object) -> None:
        """The consumer has gone. Nothing here is tied to one."""

    def _to_front(self, key: str, records: Sequence[Item]) -> None:
        waiting = self._behind.get(key)
        if waiting is None:
            self._behind[key] = deque(records)
        else:
            waiting.extendleft(reversed(records))


class FreeLanes(Lanes[Item]):
    """No order is promised, so no key waits: oldest first, and what came back before the rest."""

    def put_one(self, record: Item) -> None:
        self._ready.append(record)

    def put(self, records: Iterable[Item]) -> None:
        self._ready.extend(records)

    def _take_in_turns(self, count: int, consumer: object) -> list[Item]:
        taken = [heappop(self._returned)[1] for _ in range(min(count, len(self._returned)))]
        return taken + self.take(count - len(taken)) if len(taken) < count else taken

    def done_one(self, record: Item) -> None:
        """Nobody waited for it."""

    def done(self, records: Iterable[Item]) -> None:
        """Nobody waited for them."""


class WindowedLanes(Lanes[Item]):
    """Up to `window` items of a key out at once, in order, all with one consumer.

    Here a key waits in full, and a token in the line of those that are ready stands for its turn. A
    key that has items out belongs to the consumer that took them, because two of them would lose
    its order; its token waits aside when somebody else comes upon it.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = window
        self._line: deque[str | Item] = deque()  # tokens of keys, and items without a key
        self._has_token: set[str] = set()
        self._aside: dict[object, dict[str, None]] = {}  # tokens that only this consumer may use, in their order
        self._aside_for: dict[str, object] = {}  # whose they are
        self._held: set[str] = set()
        self._out: dict[str, int] = {}
        self._owner: dict[str, object] = {}

    def any_ready(self) -> bool:
        return bool(self._line or self._aside_for or self._returned)

    def ready(self) -> int:
        return len(self._line) + len(self._returned)  # at least: a key may have more than one turn

    def put_one(self, record: Item) -> None:
        self.put((record,))

    def put(self, records: Iterable[Item]) -> None:
        line, behind = self._line, self._behind
        for record in records:
            key = record[KEY]
            if not key:
                line.append(record)
            elif waiting := behind.get(key):
                waiting.append(record)
            else:
                if waiting is None:
                    behind[key] = deque((record,))
                else:  # others of the key are out
                    waiting.append(record)
                self._queue(key)

    def take(self, count: int, consumer: object = None) -> list[Item]:
        if self._returned:
            return self._take_in_turns(count, consumer)
        return self._take(count, consumer)

    def untake(self, records: Sequence[Item]) -> None:
        for record in reversed(records):
            key = record[KEY]
            if not key:
                self._line.appendleft(record)
                continue
            self._back_in(key)
            self._to_front(key, (record,))
            if key in self._has_token:
                self._line.remove(key)
            self._has_token.add(key)
            self._line.appendleft(key)

    def done_one(self, record: Item) -> None:
        if key := record[KEY]:
            self._back_in(key)
            self._go_on(key)

    def done(self, records: Iterable[Item]) -> None:
        # As `done_one` does, but counted in C, and written out: a key takes one step, however many of it are done.
        out, behind, tokens = self._out, self._behind, self._has_token
        for key, count in Counter(map(_key, records)).items():
            if not key:
                continue
            left = out[key] - count
            if left:
                out[key] = left
                if key not in tokens and behind[key]:
                    self._queue(key)
                continue
            del out[key], self._owner[key]
            if key in self._aside_for:
                self._no_longer_aside(key)
                self._line.append(key)
            elif not behind[key]:
                del behind[key]
            elif key not in tokens:
                self._queue(key)

    def hold(self, key: str, records: Sequence[Item]) -> None:
        for _ in records:
            self._back_in(key)
        self._to_front(key, records)
        self._held.add(key)

    def release(self, key: str) -> None:
        self._held.discard(key)
        self._go_on(key)

    def records(self) -> Iterator[Item]:
        yield from (turn for turn in self._line if not isinstance(turn, str))
        yield from super().records()

    def rewrite(self, change: Callable[[Item], Item | None]) -> None:
        line = (turn if isinstance(turn, str) else change(turn) for turn in self._line)
        self._line = deque(turn for turn in line if turn is not None)
        super().rewrite(change)

    def forsake(self, consumer: object) -> None:
        for key in self._aside.pop(consumer, ()):
            del self._aside_for[key]
            self._line.append(key)

    def _next(self, consumer: object) -> Item | None:
        taken = self._take(1, consumer)
        return taken[0] if taken else None

    def _take(self, count: int, consumer: object) -> list[Item]:
        taken: list[Item] = []
        while len(taken) < count and (aside := self._aside.get(consumer)):
            key = next(iter(aside))
            self._no_longer_aside(key)
            self._has_token.discard(key)
            if self._may_go(key):
                taken.append(self._go(key, consumer))
        # `_may_go`, `_go` and `_queue` written out: calling them cost more than all else here.
        line, behind, out, owners, tokens = self._line, self._behind, self._out, self._owner, self._has_token
        held, window = self._held, self._window
        while line and len(taken) < count:
            turn = line.popleft()
            if not isinstance(turn, str):
                taken.append(turn)
                continue
            waiting, already = behind.get(turn), out.get(turn, 0)
            if not waiting or already >= window or turn in held:
                tokens.discard(turn)
                continue
            if not already:
                owners[turn] = consumer
            elif (owner := owners[turn]) is not consumer:
                self._aside_for[turn] = owner
                self._aside.setdefault(owner, {})[turn] = None
                continue
            out[turn] = already + 1
            taken.append(waiting.popleft())
            if waiting and already + 1 < window:
                line.append(turn)
            else:
                tokens.discard(turn)
        return taken

    def _may_go(self, key: str) -> bool:
        return bool(self._behind.get(key)) and key not in self._held and self._out.get(key, 0) < self._window

    def _go(self, key: str, consumer: object) -> Item:
        waiting = self._behind[key]
        assert waiting
        self._out[key] = self._out.get(key, 0) + 1
        self._owner[key] = consumer
        record = waiting.popleft()
        self._queue(key)
        return record

    def _queue(self, key: str) -> None:
        """Give the key a token, if it may go and has none."""
        if key not in self._has_token and self._may_go(key):
            self._has_token.add(key)
            self._line.append(key)

    def _back_in(self, key: str) -> None:
        """One item of the key is no longer out; with the last one the key belongs to nobody."""
        self._out[key] -= 1
        if not self._out[key]:
            del self._out[key]
            del self._owner[key]
            if key in self._aside_for:
                self._no_longer_aside(key)
                self._line.append(key)

    def _no_longer_aside(self, key: str) -> None:
        """With its last token a consumer is forgotten: some come for one pull and never again."""
        owner = self._aside_for.pop(key)
        del self._aside[owner][key]
        if not self._aside[owner]:
            del self._aside[owner]

    def _go_on(self, key: str) -> None:
        if self._behind[key] or key in self._out:
            self._queue(key)
        else:
            del self._behind[key]
