"""One key's turn: who may go next so that no key is ever overtaken by itself.

Works on plain tuples, of which it reads the position and the key and nothing else: the broker's
records, and what a worker pool keeps in order. Knows nothing of leases, time or limits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import repeat
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

from inorder.message import KEY, POSITION

_key = itemgetter(KEY)

LINE_UP = 100  # records without a key that one turn moves behind those that came back
SPARE_LANES = 1_000  # of which each takes as much memory as three messages

Item = TypeVar("Item", bound=tuple[Any, ...])


class Lanes(Generic[Item]):
    """Records waiting their turn, at most one out per key. Not thread-safe.

    A key is in `_behind` from its first record until nothing of it is left, and costs nothing
    otherwise; "", of records without one, may stay there. Of each key at most one record is ready,
    so keys take turns. Records without a key are free and go oldest first, so those that came back
    come before the others; but they take turns with the keys, which one that fails again and again
    must not keep waiting.
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
            behind[key] = None
            self._ready.append(record)
        elif not key:
            self._ready.append(record)
        elif (waiting := behind[key]) is None:
            behind[key] = waiting = deque()
            waiting.append(record)
        else:
            waiting.append(record)

    def put(self, records: Iterable[Item]) -> None:
        """The same for many."""
        behind, ready = self._behind, self._ready
        for record in records:
            key = record[1]
            if key not in behind:
                behind[key] = None
                ready.append(record)
            elif not key:
                ready.append(record)
            elif (waiting := behind[key]) is None:
                behind[key] = waiting = deque()  # empty at first: to make it of a tuple takes longer
                waiting.append(record)
            else:
                waiting.append(record)

    def take(self, count: int, consumer: object = None) -> list[Item]:
        """Up to `count` records, which are out from now on."""
        ready = self._ready
        if self._returned:
            return self._take_in_turns(count, consumer)
        if count == 1:
            return [ready.popleft()] if ready else []
        if len(ready) > 2 * count:
            return list(map(deque.popleft, repeat(ready, count)))  # in C
        taken = list(ready)  # much faster, also if some of it goes back
        ready.clear()
        if len(taken) > count:
            ready.extend(taken[count:])
            del taken[count:]
        return taken

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

    def done_all(self, records: Sequence[Item]) -> None:
        """The same where these are all that was out, and no key is held: then what is left tells whose turn it is."""
        ready, behind = self._ready, self._behind
        if len(behind) > 2 * len(records):
            self.done(records)
            return
        crowded = [*filter(None, behind.values())]
        self._behind = behind = dict.fromkeys(map(_key, ready))
        for waiting in crowded:
            key = waiting[0][KEY]
            if key not in behind:
                ready.append(waiting.popleft())
            behind[key] = waiting

    def give_back(self, record: Item) -> None:
        """A record without a key that was out is free again, before all that never were."""
        heappush(self._returned, (record[POSITION], record))

    def hold(self, key: str, records: Sequence[Item], *, nacked: bool = False) -> None:
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

    def replace_all(self, key: str, records: Sequence[Item]) -> None:
        """Put these in the place of all that wait."""
        waiting = self._behind[key]
        assert waiting
        waiting.clear()
        waiting.extend(records)

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
        for waiting in self._behind.values():
            if waiting:
                changed = list(filter(None, map(change, waiting)))
                waiting.clear()
                waiting.extend(changed)

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

    def done_all(self, records: Sequence[Item]) -> None:
        """As `done`."""


class _Lane(deque[Item]):
    """What waits of one key, and how the key stands."""

    __slots__ = ("has_turn", "is_aside", "is_held", "kept_from", "key", "out", "owner")

    __eq__ = object.__eq__  # no two are the same, whatever waits in them
    __hash__ = object.__hash__  # type: ignore[assignment]  # which a deque has none of

    def __init__(self, key: str = "") -> None:  # without one it is copied
        super().__init__()
        self.key = key
        self.has_turn = False  # is in line
        self.is_aside = False  # and its turn is only for its owner
        self.is_held = False
        self.kept_from: int | None = None  # the position from which on its owner is to get it again
        self.out = 0
        self.owner: object = None  # who has what is out, or is to have it again


class WindowedLanes(Lanes[Item]):
    """Up to `window` items of a key out at once, in order, all with one consumer.

    Here a key waits in full, and its lane is in line for a turn. A key that has items out belongs to the consumer that
    took them, because two of them would lose its order; its lane waits aside when somebody else comes upon it. One of
    the consumers that stay keeps a key of which later items were taken back with the one that it nacked, until it has
    got through what it gets again: it may be about to handle those, and nobody can tell it that it has lost them.
    """

    def __init__(self, window: int, staying: Container[object] = ()) -> None:
        super().__init__()
        self._window = window
        self._staying = staying
        self._lanes: dict[str, _Lane[Item]] = {}
        self._behind = cast(dict[str, deque[Item] | None], self._lanes)  # all that is asked of a key that waits
        self._line: deque[_Lane[Item] | Item] = deque()  # and items without a key
        self._aside: dict[object, dict[str, _Lane[Item]]] = {}  # lanes that only this consumer may use, in their order
        self._kept: dict[object, set[_Lane[Item]]] = {}  # lanes that a consumer keeps
        self._spare: list[_Lane[Item]] = []  # of keys of which nothing is left: to make one takes longer than its use

    def any_ready(self) -> bool:
        return bool(self._line or self._aside or self._returned)

    def ready(self) -> int:
        return len(self._line) + len(self._returned)  # at least: a key may have more than one turn

    def put_one(self, record: Item) -> None:
        self.put((record,))

    def put(self, records: Iterable[Item]) -> None:
        line, lanes, spare = self._line, self._lanes, self._spare
        for record in records:
            key = record[1]
            if key in lanes:
                lane = lanes[key]
                lane.append(record)
                if not lane.has_turn and len(lane) == 1:
                    self._line_up(lane)
            elif key:
                lanes[key] = lane = spare.pop() if spare else _Lane()
                lane.key = key
                lane.append(record)
                lane.has_turn = True
                line.append(lane)
            else:
                line.append(record)

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
            lane = self._lanes[key]
            self._back_in(lane)
            lane.appendleft(record)
            if lane.has_turn:
                self._line.remove(lane)
            lane.has_turn = True
            self._line.appendleft(lane)

    def done_one(self, record: Item) -> None:
        if key := record[KEY]:
            lane = self._lanes[key]
            if lane.kept_from is not None and record[POSITION] >= lane.kept_from:
                self._keep_no_longer(lane)
            self._back_in(lane)
            self._go_on(lane)

    def done(self, records: Iterable[Item]) -> None:
        if self._kept:
            for record in records:
                self.done_one(record)
            return
        # As `done_one` does, but counted in C: a key takes one step, however many of it are done.
        lanes, spare = self._lanes, self._spare
        for key, count in Counter(map(_key, records)).items():
            if key:
                lane = lanes[key]
                lane.out = out = lane.out - count
                if not out:
                    if lane.is_aside:
                        self._disown(lane)
                    lane.owner = None
                if lane:
                    if not lane.has_turn:
                        self._line_up(lane)
                elif not out:
                    del lanes[key]
                    if not (lane.has_turn or lane.is_held) and len(spare) < SPARE_LANES:
                        lane.key = ""
                        spare.append(lane)

    def done_all(self, records: Sequence[Item]) -> None:
        self.done(records)

    def hold(self, key: str, records: Sequence[Item], *, nacked: bool = False) -> None:
        self._to_front(key, records)
        lane = self._lanes[key]
        if nacked and len(records) > 1 and lane.owner in self._staying:
            lane.kept_from = records[0][POSITION]
            self._kept.setdefault(lane.owner, set()).add(lane)
        elif lane.kept_from is not None and not (nacked and records[0][POSITION] < lane.kept_from):
            self._keep_no_longer(lane)
        for _ in records:
            self._back_in(lane)
        lane.is_held = True

    def release(self, key: str) -> None:
        lane = self._lanes[key]
        lane.is_held = False
        self._go_on(lane)

    def records(self) -> Iterator[Item]:
        yield from (turn for turn in self._line if not isinstance(turn, _Lane))
        yield from super().records()

    def rewrite(self, change: Callable[[Item], Item | None]) -> None:
        line = (turn if isinstance(turn, _Lane) else change(turn) for turn in self._line)
        self._line = deque(turn for turn in line if turn is not None)
        super().rewrite(change)

    def forsake(self, consumer: object) -> None:
        for lane in self._aside.pop(consumer, {}).values():
            lane.is_aside = False
            self._line.append(lane)
        for lane in tuple(self._kept.get(consumer, ())):
            self._keep_no_longer(lane)

    def _next(self, consumer: object) -> Item | None:
        taken = self._take(1, consumer)
        return taken[0] if taken else None

    def _take(self, count: int, consumer: object) -> list[Item]:
        taken: list[Item] = []
        line, window = self._line, self._window
        while len(taken) < count and (aside := self._aside.get(consumer)):
            lane = next(iter(aside.values()))
            self._no_longer_aside(lane)
            lane.has_turn = False
            if self._may_go(lane):
                lane.out += 1
                taken.append(lane.popleft())
                self._line_up(lane)
        while line and (room := count - len(taken)) > 0:
            for turn in map(deque.popleft, repeat(line, min(room, len(line)))):
                if not isinstance(turn, _Lane):
                    taken.append(turn)
                    continue
                lane, out = turn, turn.out + 1
                if not lane or out > window or lane.is_held:
                    lane.has_turn = False
                    continue
                if lane.owner is not consumer:
                    if out > 1 or lane.kept_from is not None:
                        lane.is_aside = True
                        self._aside.setdefault(lane.owner, {})[lane.key] = lane
                        continue
                    lane.owner = consumer
                lane.out = out
                taken.append(lane.popleft())
                if lane and out < window:
                    line.append(lane)
                else:
                    lane.has_turn = False
        return taken

    def _may_go(self, lane: _Lane[Item]) -> bool:
        return bool(lane) and lane.out < self._window and not lane.is_held

    def _line_up(self, lane: _Lane[Item]) -> None:
        """Give it a turn, if it may go and has none."""
        if not lane.has_turn and self._may_go(lane):
            lane.has_turn = True
            self._line.append(lane)

    def _go_on(self, lane: _Lane[Item]) -> None:
        if lane or lane.out:
            self._line_up(lane)
        else:
            del self._lanes[lane.key]

    def _back_in(self, lane: _Lane[Item]) -> None:
        """One item of the key is no longer out; with the last one the key belongs to nobody, unless it is kept."""
        lane.out -= 1
        if not lane.out and lane.kept_from is None:
            self._disown(lane)

    def _keep_no_longer(self, lane: _Lane[Item]) -> None:
        lane.kept_from = None
        self._kept[lane.owner].remove(lane)
        if not self._kept[lane.owner]:
            del self._kept[lane.owner]
        if not lane.out:
            self._disown(lane)

    def _disown(self, lane: _Lane[Item]) -> None:
        if lane.is_aside:
            self._no_longer_aside(lane)
            self._line.append(lane)
        lane.owner = None

    def _no_longer_aside(self, lane: _Lane[Item]) -> None:
        """With its last lane a consumer is forgotten: some come for one pull and never again."""
        lane.is_aside = False
        del self._aside[lane.owner][lane.key]
        if not self._aside[lane.owner]:
            del self._aside[lane.owner]

    def _to_front(self, key: str, records: Sequence[Item]) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        lane.extendleft(reversed(records))
