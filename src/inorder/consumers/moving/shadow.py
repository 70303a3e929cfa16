"""Compares what two consumers make of the same messages: one at the source, one at the target of a forwarder.

Each side runs its own handler and says what came of it. Messages are matched by their id at the source, which
forwarded messages carry. What is compared is up to the handlers: a row, a sum, a digest, the data itself.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from inorder.consumers.moving.forwarding import Origin, is_barrier, origin_of
from inorder.message import Message
from inorder.options import check_whole

Kind = Literal["different", "reordered", "missing", "unknown"]
Handle = Callable[[Message], Any]

NOTHING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same on both sides.

    `different`: the results differ. `reordered`: the target had a later message of the key first (`missing` if the
    source's side came later still). `missing`: one side has not had it, and its result is None. `unknown`: the target
    had a message that no forwarder has sent.
    """

    kind: Kind
    ordering_key: str | None
    source_id: str
    source: Any
    target: Any


class Shadow:
    """Wrap both handlers: `old.on("message", shadow.source(handle))`, `new.on("message", shadow.target(handle))`.

    A wrapped handler runs yours, keeps what it returns, and acks. What comes again is compared once. At most `max_open`
    results wait for their other side, beyond that the oldest is reported as missing; and as many that were compared are
    known when they come again. Thread-safe.
    """

    def __init__(self, report: Callable[[Difference], object], *, max_open: int = 100_000) -> None:
        check_whole("max_open", max_open)
        self._report = report
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[str | None, Any, Any]] = OrderedDict()  # key, and both results
        self._compared: OrderedDict[str, None] = OrderedDict()  # the latest
        self._newest: dict[str, int] = {}  # the highest position of a key that the target has had
        self._found: Counter[str] = Counter(same=0)

    def source(self, handle: Handle) -> Callable[[Message], None]:
        """A handler for the source's messages."""

        def run(message: Message) -> None:
            if not is_barrier(message):
                self._compare(message.ordering_key, message.id, handle(message), NOTHING)
            message.ack()

        return run

    def target(self, handle: Handle) -> Callable[[Message], None]:
        """A handler for the target's messages."""

        def run(message: Message) -> None:
            origin = origin_of(message)
            if origin is None:
                self._tell(Difference("unknown", message.ordering_key, "", None, handle(message)))
            elif (turn := self._turn(message.ordering_key, origin)) != "over":
                result = handle(message)
                if turn == "now":
                    self._newest[message.ordering_key or ""] = origin.position
                else:
                    self._tell(Difference("reordered", message.ordering_key, origin.id, None, result))
                self._compare(message.ordering_key, origin.id, NOTHING, result)
            message.ack()

        return run

    def finish(self) -> Counter[str]:
        """Report what still waits for its other side as missing; how many were the same, and of each difference."""
        with self._lock:
            left, self._open = self._open, OrderedDict()
        for source_id, (key, source, target) in left.items():
            self._tell(_missing(key, source_id, source, target))
        with self._lock:
            return self._found.copy()

    def _turn(self, key: str | None, origin: Origin) -> Literal["now", "late", "over"]:
        """Whether a message of the target comes in order, after a later one of its key, or once more."""
        with self._lock:
            _, source, target = self._open.get(origin.id, (key, NOTHING, NOTHING))
            if target is not NOTHING or origin.id in self._compared:
                return "over"
            if key is None or origin.position > self._newest.get(key, -1):
                return "now"
            return "over" if source is NOTHING else "late"

    def _compare(self, key: str | None, source_id: str, source: Any, target: Any) -> None:
        with self._lock:
            if source_id in self._compared:
                return
            _, known_source, known_target = self._open.pop(source_id, (key, NOTHING, NOTHING))
            source = known_source if source is NOTHING else source
            target = known_target if target is NOTHING else target
            oldest = None
            if source is NOTHING or target is NOTHING:
                self._open[source_id] = (key, source, target)
                oldest = self._open.popitem(last=False) if len(self._open) > self._max_open else None
            else:
                self._compared[source_id] = None
                if len(self._compared) > self._max_open:
                    self._compared.popitem(last=False)
                if source == target:
                    self._found["same"] += 1
                    return
        if oldest is not None:
            self._tell(_missing(oldest[1][0], oldest[0], *oldest[1][1:]))
        elif source is not NOTHING and target is not NOTHING:
            self._tell(Difference("different", key, source_id, source, target))

    def _tell(self, difference: Difference) -> None:
        with self._lock:
            self._found[difference.kind] += 1
        self._report(difference)


def _missing(key: str | None, source_id: str, source: Any, target: Any) -> Difference:
    return Difference(
        "missing", key, source_id, None if source is NOTHING else source, None if target is NOTHING else target
    )
