"""Every default and every limit, beside its reason. Options are values that cannot be wrong."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, InitVar, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from inorder.errors import InvalidArgument, InvalidName

# What Pub/Sub allows in one message.
MAX_MESSAGE_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
RESERVED_ATTRIBUTE_PREFIX = "goog"

MAX_ACK_DEADLINE_SECONDS = 600
MAX_FILTER_BYTES = 256
MAX_NAME_LENGTH = 255
DEFAULT_DELIVERY_ATTEMPTS = 5  # Pub/Sub's default where a policy names no number
DAY_SECONDS = 86_400

WhenFull = Literal["drop", "block", "error"]
OnPoison = Literal["dead_letter", "park_key", "block"]

_RESOURCE = re.compile(r"(?:projects/[^/\s]+/(?:topics|subscriptions)/)?[A-Za-z][A-Za-z0-9\-_.~+%]*")

T = TypeVar("T")


def check_name(kind: str, name: str) -> str:
    """A topic or subscription name as Pub/Sub takes it, bare or as `projects/P/topics/NAME`."""
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name: expected a string, not {type(name).__name__}")
    bare = name.rsplit("/", 1)[-1]
    if not _RESOURCE.fullmatch(name):
        raise InvalidName(f"{kind} name {name[:300]!r}: start with a letter, then letters, digits and -_.~+% only")
    if len(bare) > MAX_NAME_LENGTH:
        raise InvalidName(f"{kind} name: {len(bare)} characters, more than the maximum of {MAX_NAME_LENGTH}")
    if bare.startswith("goog"):
        raise InvalidName(f"{kind} name {name!r}: names that start with 'goog' are reserved")
    return name


def build(cls: type[T], given: T | Mapping[str, Any] | None, /, **more: Any) -> T:
    """Options of class `cls` from an instance, a mapping or keywords; a misspelt name is an error."""
    if isinstance(given, cls):
        return merge(given, more)
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgument(f"options: expected {cls.__name__} or a mapping, not {type(given).__name__}")
    checked = known(cls, {**(given or {}), **more})
    for field in fields(cls):  # type: ignore[arg-type]
        if field.default is MISSING and field.name not in checked:
            raise InvalidArgument(f"option {field.name!r} is missing")
    return cls(**checked)


def merge(options: T, changes: Mapping[str, Any]) -> T:
    """The same options with some of them changed, checked again as a whole."""
    if not isinstance(changes, Mapping):
        raise InvalidArgument(f"options: expected a mapping, not {type(changes).__name__}")
    if not changes:
        return options
    current = {field.name: getattr(options, field.name) for field in fields(options)}  # type: ignore[arg-type]
    return type(options)(**{**current, **known(type(options), changes)})


def known(cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` under its proper names: aliases resolved, unknown names refused with the closest one."""
    aliases = ALIASES.get(cls, {})
    names = [field.name for field in fields(cls)]
    result: dict[str, Any] = {}
    for name, value in given.items():
        proper = aliases.get(name, name)
        if proper not in names:
            close = difflib.get_close_matches(str(name), [*names, *aliases], 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
            raise InvalidArgument(f"unknown option {name!r}{hint}")
        if proper in result:
            raise InvalidArgument(f"option {proper!r} is given twice, also as {name!r}")
        result[proper] = value
    return result


def check_number(name: str, value: object, *, above: float | None = None, at_least: float = 0, up_to: float) -> None:
    """Refuse anything but a finite number within the limits, naming both."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    # Nothing compares true with NaN, so this refuses what is no number as well.
    if not ((number > above if above is not None else number >= at_least) and number <= up_to):
        low = f"above {above:g}" if above is not None else f"at least {at_least:g}"
        high = "" if math.isinf(up_to) else f", up to {up_to:g}"
        raise InvalidArgument(f"{name}: {low}{high}, not {value!r}")


def check_whole(name: str, value: object, *, at_least: int = 1) -> None:
    """Refuse anything but an integer of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidArgument(f"{name}: a whole number of at least {at_least}, not {value!r}")


def _choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        allowed = ", ".join(repr(choice) for choice in get_args(choices))
        raise InvalidArgument(f"{name}: one of {allowed}, not {value!r}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}: True or False, not {value!r}")


def _nested(options: object, name: str, cls: type[Any], *, optional: bool = True) -> None:
    """Let a field that holds options be given as a mapping too."""
    value = getattr(options, name)
    if value is None and optional:
        return
    try:
        object.__setattr__(options, name, build(cls, value))
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How much may be under way at once. A single larger message is let through alone."""

    max_messages: int = 1_000
    max_bytes: int = 100_000_000

    def __post_init__(self) -> None:
        check_whole("max_messages", self.max_messages)
        check_whole("max_bytes", self.max_bytes)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds until a failed message comes again: doubled with each attempt, between the two."""

    minimum_backoff: float = 10
    maximum_backoff: float = 600

    def __post_init__(self) -> None:
        check_number("minimum_backoff", self.minimum_backoff, up_to=DAY_SECONDS)
        check_number("maximum_backoff", self.maximum_backoff, up_to=DAY_SECONDS)
        if self.minimum_backoff > self.maximum_backoff:
            raise InvalidArgument(
                f"minimum_backoff: at most maximum_backoff ({self.maximum_backoff}), not {self.minimum_backoff}"
            )

    def backoff(self, failed_attempts: int) -> float:
        """Seconds to wait after so many failed deliveries."""
        doublings = min(failed_attempts - 1, 64)  # beyond that the maximum has long been reached
        return float(min(self.minimum_backoff * 2**doublings, self.maximum_backoff))


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """Where a message goes that failed `max_delivery_attempts` times."""

    dead_letter_topic: str
    max_delivery_attempts: int = DEFAULT_DELIVERY_ATTEMPTS

    def __post_init__(self) -> None:
        check_name("dead_letter_topic", self.dead_letter_topic)
        check_whole("max_delivery_attempts", self.max_delivery_attempts)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much one subscription may hold unacked, and what happens to what comes on top.

    "drop": this subscription misses it (an ordered one is told by a gap record); "block": the
    publisher waits; "error": the publish is refused whole. None means: no limit.
    """

    max_messages: int | None = 10_000
    max_bytes: int | None = 100_000_000
    when_full: WhenFull = "drop"

    def __post_init__(self) -> None:
        if self.max_messages is not None:
            check_whole("max_messages", self.max_messages)
        if self.max_bytes is not None:
            check_whole("max_bytes", self.max_bytes)
        _choice("when_full", self.when_full, WhenFull)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """How a topic keeps its messages."""

    message_retention_duration: float | None = None  # seconds; None: only until all have acked

    def __post_init__(self) -> None:
        if self.message_retention_duration is not None:
            check_number("message_retention_duration", self.message_retention_duration, above=0, up_to=31 * DAY_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """How a subscription delivers. Names are Pub/Sub's where it has one."""

    enable_message_ordering: bool = False
    ack_deadline_seconds: float = 10  # Pub/Sub's default
    retry_policy: RetryPolicy | None = None  # None: at once
    dead_letter_policy: DeadLetterPolicy | None = None
    flow_control: FlowControl | None = None  # None: the broker hands out whatever is asked for
    message_retention_duration: float = 7 * DAY_SECONDS
    retain_acked_messages: bool = False
    queue_limits: QueueLimits = QueueLimits()
    on_poison: OnPoison = "dead_letter"
    max_outstanding_per_key: int = 1
    filter: str = ""
    message_ordering: InitVar[bool | None] = None  # another spelling of enable_message_ordering
    ack_deadline: InitVar[float | None] = None  # another spelling of ack_deadline_seconds

    def __post_init__(self, message_ordering: bool | None, ack_deadline: float | None) -> None:
        if message_ordering is not None:
            object.__setattr__(self, "enable_message_ordering", message_ordering)
        if ack_deadline is not None:
            object.__setattr__(self, "ack_deadline_seconds", ack_deadline)
        _flag("enable_message_ordering", self.enable_message_ordering)
        check_number("ack_deadline_seconds", self.ack_deadline_seconds, above=0, up_to=MAX_ACK_DEADLINE_SECONDS)
        _nested(self, "retry_policy", RetryPolicy)
        _nested(self, "dead_letter_policy", DeadLetterPolicy)
        _nested(self, "flow_control", FlowControl)
        _nested(self, "queue_limits", QueueLimits, optional=False)
        check_number("message_retention_duration", self.message_retention_duration, above=0, up_to=31 * DAY_SECONDS)
        _flag("retain_acked_messages", self.retain_acked_messages)
        _choice("on_poison", self.on_poison, OnPoison)
        check_whole("max_outstanding_per_key", self.max_outstanding_per_key)
        if self.on_poison == "park_key" and not self.enable_message_ordering:
            raise InvalidArgument("on_poison: 'park_key' needs enable_message_ordering=True, there are no keys")
        if len(str(self.filter).encode(errors="replace")) > MAX_FILTER_BYTES or type(self.filter) is not str:
            raise InvalidArgument(f"filter: a string of at most {MAX_FILTER_BYTES} bytes, not {self.filter!r}")

    @property
    def max_failures(self) -> int | None:
        """After so many failed deliveries a message is poison; None: never."""
        if self.on_poison == "block":
            return None
        if self.dead_letter_policy is not None:
            return self.dead_letter_policy.max_delivery_attempts
        return DEFAULT_DELIVERY_ATTEMPTS if self.on_poison == "park_key" else None


@dataclass(frozen=True, slots=True)
class Batching:
    """When a publisher sends what it has collected for a key: at whichever limit comes first.

    `max_milliseconds=0` sends each message at once.
    """

    max_messages: int = 100
    max_bytes: int = 1_000_000
    max_milliseconds: float = 0

    def __post_init__(self) -> None:
        check_whole("max_messages", self.max_messages)
        check_whole("max_bytes", self.max_bytes)
        check_number("max_milliseconds", self.max_milliseconds, up_to=60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How a topic handle publishes."""

    message_ordering: bool | None = None  # False refuses ordering keys
    batching: Batching = Batching()
    flow_control: FlowControl = FlowControl()

    def __post_init__(self) -> None:
        if self.message_ordering is not None:
            _flag("message_ordering", self.message_ordering)
        _nested(self, "batching", Batching, optional=False)
        _nested(self, "flow_control", FlowControl, optional=False)


# The specifications use both spellings.
ALIASES: Mapping[type, Mapping[str, str]] = {
    SubscriptionOptions: {
        "message_ordering": "enable_message_ordering",
        "ack_deadline": "ack_deadline_seconds",
    }
}
