"""Entity versioning: an event applies only to the version of its entity that it was made for.

Reads `(key, version, …)` of an event: the key names the entity, the version grows by one with each change. The
state is a `Line`; the entity is at the version before the expected one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.options import DEFAULT_PARKED, MAX_WHOLE, WhenParkingFull, check_choice, check_flag, check_whole
from inorder.patterns.encoding import load
from inorder.patterns.parking import Line, Numbered, Parking
from inorder.patterns.step import (
    DUPLICATE,
    RELEASED,
    RETRY,
    STALE,
    Event,
    Outcome,
    check_event_number,
)

VersionMode = Literal["every", "latest_only"]
FuturePolicy = Literal["park", "retry"]


class Versioned(NamedTuple):
    """An event with a version, for whoever likes names; any tuple that starts alike will do."""

    key: str
    version: int
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionGate(Numbered):
    """Lets an entity only go forward: what is stale is ignored, also when it comes after what is newer.

    With `mode="every"` each version is applied after the one before it. A future one is parked until its turn
    (`capacity`, `when_full` and `gap_timeout_seconds` are those of the `Resequencer`), or, with `future="retry"`,
    not taken. On a key-ordered subscription a retry would never end: the missing version waits behind the one
    that comes again and again. So `"retry"` needs `key_ordered=False`, or, where it is what happens when the parking
    is full, a gap timeout that makes room.

    With `mode="latest_only"`, for events that carry the whole state, whatever is newer is applied at once.

    An entity that is not known is at the version before `first_version`; `start` says that it is further.
    """

    mode: VersionMode = "every"
    future: FuturePolicy = "park"
    key_ordered: bool = True
    first_version: int = 1
    capacity: int = DEFAULT_PARKED
    when_full: WhenParkingFull = "error"
    gap_timeout_seconds: float | None = None
    _parking: Parking = field(init=False, repr=False, compare=False)

    STATE: ClassVar = "versioning/1"
    FIELDS: ClassVar = 2

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, VersionMode)
        check_choice("future", self.future, FuturePolicy)
        check_flag("key_ordered", self.key_ordered)
        check_whole("first_version", self.first_version, at_least=0)
        object.__setattr__(self, "_parking", Parking(self.capacity, self.when_full, self.gap_timeout_seconds))
        if self.future == "retry" and self.key_ordered:
            raise InvalidArgument(
                "future: 'retry' needs key_ordered=False; on a key-ordered subscription the missing version waits "
                "behind the one that is retried, for ever"
            )
        if self.when_full == "retry" and self.key_ordered and self.gap_timeout_seconds is None:
            raise InvalidArgument(
                "when_full: 'retry' needs key_ordered=False or gap_timeout_seconds; else the missing version waits "
                "behind the one that is retried, for ever"
            )
        # Whoever sets a timeout expects to be told of gaps, and would learn too late that nothing ever waits.
        if self.gap_timeout_seconds is not None and (self.future == "retry" or self.mode == "latest_only"):
            raise InvalidArgument(
                f"gap_timeout_seconds: {self.gap_timeout_seconds:g} needs mode='every' and future='park', "
                "nothing waits otherwise"
            )

    @property
    def may_retry(self) -> bool:
        """Whether an event may be sent back, to come again."""
        return self.mode == "every" and "retry" in (self.future, self.when_full)

    def start(self, version: int) -> Line:
        """The state of an entity that is at this version."""
        check_whole("version", version, at_least=0)
        return Line(version + 1)

    def load(self, data: bytes) -> Line:
        """What `dump` wrote."""
        line = load(self.STATE, data, Line)
        self.check_parked(len(line.parked))
        return line

    def check_parked(self, count: int) -> None:
        """Refuse so many parked events, left by another mode, if none would ever be released."""
        if count and self.mode == "latest_only":
            raise FailedPrecondition(
                f"{count} events are parked, which mode='latest_only' would never release; "
                "let mode='every' finish them first"
            )

    def _take(self, state: Line | None, event: Event, now_us: int, emit: list[Outcome]) -> Line:
        version = event[1]
        if type(version) is not int or not 0 <= version <= MAX_WHOLE:
            check_event_number("version", version, event)
        line = Line(self.first_version) if state is None else state
        if version < line.expected:
            was_applied = version == line.expected - 1 and version >= self.first_version
            emit.append((DUPLICATE if was_applied else STALE, event))
        elif self.mode == "latest_only":
            emit.append((RELEASED, event))
            return line._replace(expected=version + 1)
        elif version > line.expected and self.future == "retry":
            emit.append((RETRY, event))
        else:
            return self._parking.take(line, version, event, now_us, emit)
        return line
