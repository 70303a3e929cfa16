"""Every default and every limit, beside its reason. Options are values that cannot be wrong."""

from __future__ import annotations

import difflib
import functools
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, InitVar, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from inorder.errors import InvalidArgument, InvalidFilter, InvalidName

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
DEFAULT_PROJECT = "inorder"  # of plain names, where names have projects
MAX_SOURCE_BYTES = 1_024  # as much as an attribute may hold
MAX_ANNOTATIONS_BYTES = 65_536  # labels and the like: each change of an option writes them down again
MAX_WRITER_LENGTH = 200  # it is part of a file's name, too
DEFAULT_DELIVERY_ATTEMPTS = 5  # Pub/Sub's default where a policy names no number
DAY_SECONDS = 86_400
MAX_SECONDS = 10**9  # thirty years, where nothing says how long is too long: what is longer no clock can add up
SNAPSHOT_SECONDS = 7 * DAY_SECONDS  # how long it lives at most, as with Pub/Sub
MIN_SNAPSHOT_SECONDS = 3_600  # one that would live shorter is not made
MAX_WHOLE = 2**63 - 1  # what everybody else can store: disks, databases, other languages
LAST_PART = MAX_WHOLE  # of what is written in epochs: behind it an epoch has no more

# Patterns.
DEFAULT_PARKED = 1_000  # of one key: disorder spans a few messages, and a missing one should show before memory does
DEFAULT_DRIFT_SECONDS = 60  # clocks that are kept in time differ by far less, and a wrong year by far more
REMEMBERED_GAPS = 100  # of one key: what tells a late event from a duplicate, and must not grow without end
SLOTS = 4_096  # many more than partitions, so that shares differ little; few enough for a table of a page or two

WhenFull = Literal["drop", "block", "error"]
WhenParkingFull = Literal["retry", "gap", "error"]
OnPoison = Literal["dead_letter", "park_key", "block"]

_NAME = r"[A-Za-z][A-Za-z0-9\-_.~+%]*"
_PROJECT = r"[A-Za-z0-9\-_.:]+"  # the dot and the colon stand in projects of a domain, "example.com:shop"
_RESOURCES = {
    collection: re.compile(f"(?:projects/{_PROJECT}/{collection}/)?{_NAME}")
    for collection in ("topics", "subscriptions", "snapshots")
}

T = TypeVar("T")


def check_name(kind: str, name: str) -> str:
    """The name of a subscription, a snapshot or else a topic, bare or as `projects/P/topics/NAME`."""
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name: expected a string, not {type(name).__name__}")
    bare = name.rsplit("/", 1)[-1]
    collection = f"{kind}s" if kind in ("subscription", "snapshot") else "topics"
    if not _RESOURCES[collection].fullmatch(name):
        raise InvalidName(
            f"{kind} name {name[:300]!r}: start with a letter, then letters, digits and -_.~+% only; "
            f"'projects/PROJECT/{collection}/' may stand before it"
        )
    longest = max(map(len, name.split("/")))  # its project counts as well: it is written down as often
    if longest > MAX_NAME_LENGTH:
        raise InvalidName(f"{kind} name: {longest} characters, more than the maximum of {MAX_NAME_LENGTH}")
    if bare.startswith("goog"):
        raise InvalidName(f"{kind} name {name!r}: names that start with 'goog' are reserved")
    return name


def check_annotations(annotations: str) -> None:
    """Refuse what is no text, or too much of it."""
    _check_text("annotations", annotations, MAX_ANNOTATIONS_BYTES)


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


def named(cls: type[Any], given: object, more: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `cls` by their proper names: all of an instance, or those of a mapping, and keywords on top."""
    if given is None or isinstance(given, Mapping):
        return known(cls, {**(given or {}), **more})
    if not isinstance(given, cls):
        raise InvalidArgument(f"options: expected {cls.__name__} or a mapping, not {type(given).__name__}")
    return {field.name: getattr(given, field.name) for field in fields(cls)} | known(cls, more)


def known(cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` under its proper names: aliases resolved, unknown names refused with the closest one."""
    aliases = ALIASES.get(cls, {})
    names = [field.name for field in fields(cls)]
    result: dict[str, Any] = {}
    as_given: dict[str, str] = {}
    for name, value in given.items():
        proper = aliases.get(name, name)
        if proper not in names:
            close = difflib.get_close_matches(str(name), [*names, *aliases], 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
            raise InvalidArgument(f"unknown option {name!r}{hint}")
        if proper in result:
            raise InvalidArgument(f"option {proper!r} is given twice, as {as_given[proper]!r} and as {name!r}")
        result[proper], as_given[proper] = value, name
    return result


def check_number(name: str, value: object, *, above: float | None = None, at_least: float = 0, up_to: float) -> None:
    """Refuse anything but a number within the limits, naming both."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    # Nothing compares true with NaN, so this refuses what is no number as well.
    if not ((number > above if above is not None else number >= at_least) and number <= up_to):
        low = f"above {above:.15g}" if above is not None else f"at least {at_least:.15g}"
        raise InvalidArgument(f"{name}: {low}, up to {up_to:.15g}, not {_shown(value)}")


def check_whole(name: str, value: object, *, at_least: int = 1) -> None:
    """Refuse anything but an integer of at least so much that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= MAX_WHOLE:
        high = f", up to {MAX_WHOLE}" if isinstance(value, int) and value > MAX_WHOLE else ""
        raise InvalidArgument(f"{name}: a whole number of at least {at_least}{high}, not {_shown(value)}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        return "a number of that size"


def _check_filter(text: object) -> None:
    try:
        if isinstance(text, str) and len(text.encode()) <= MAX_FILTER_BYTES:
            return
    except UnicodeEncodeError as error:
        raise InvalidFilter(error.object, error.start, f"not valid UTF-8, {error.reason}") from None
    raise InvalidArgument(f"filter: a string of at most {MAX_FILTER_BYTES} bytes, not {reprlib.repr(text)}")


def check_short_text(name: str, text: object, limit: int) -> None:
    """Refuse what is no text of 1 to so many characters, or cannot be written down."""
    if not isinstance(text, str) or not 0 < len(text) <= limit:
        raise InvalidArgument(f"{name}: a string of 1 to {limit} characters, not {text!r}")
    if not text.isascii():
        _check_text(name, text, 4 * limit)


def _check_text(name: str, text: object, limit: int) -> None:
    try:
        if isinstance(text, str) and len(text.encode()) <= limit:
            return
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name}: not valid UTF-8, {error.reason} at {error.start}") from None
    raise InvalidArgument(f"{name}: a string of at most {limit} bytes, not {reprlib.repr(text)}")


def check_choice(name: str, value: object, choices: Any, *, or_else: str = "") -> None:
    """Refuse anything but one of the choices of a `Literal`; what else would do, if anything, is told with them."""
    if value not in get_args(choices):
        allowed = [*map(repr, get_args(choices)), *([or_else] if or_else else [])]
        raise InvalidArgument(f"{name}: one of {', '.join(allowed)}, not {value!r}")


def check_call(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise InvalidArgument(f"{name}: something to call, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False, also what only counts as one of them."""
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
    """Where a message goes that failed `max_delivery_attempts` times.

    With a `source`, as "projects/P/subscriptions/S", it tells there where it came from, in the attributes that
    Pub/Sub gives to dead letters.
    """

    dead_letter_topic: str
    max_delivery_attempts: int = DEFAULT_DELIVERY_ATTEMPTS
    source: str = ""

    def __post_init__(self) -> None:
        check_name("dead_letter_topic", self.dead_letter_topic)
        check_whole("max_delivery_attempts", self.max_delivery_attempts)
        _check_text("source", self.source, MAX_SOURCE_BYTES)


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
        check_choice("when_full", self.when_full, WhenFull)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """How a topic keeps its messages."""

    message_retention_duration: float | None = None  # seconds; None: only until all have acked
    annotations: str = ""  # kept with the topic for whoever wants to; means nothing here

    def __post_init__(self) -> None:
        check_annotations(self.annotations)
        if self.message_retention_duration is not None:
            check_number("message_retention_duration", self.message_retention_duration, above=0, up_to=31 * DAY_SECONDS)


def _by_either_name(cls: type[T]) -> type[T]:
    """Let an option be given under its other spelling too, but not under both."""
    init = cls.__init__

    @functools.wraps(init)
    def init_by_either_name(self: T, **given: Any) -> None:
        init(self, **known(cls, given))

    cls.__init__ = init_by_either_name  # type: ignore[assignment]
    return cls


class _OtherSpellings:
    """Where the specifications spell an option in two ways, it can be read in both."""

    __slots__ = ()
    enable_message_ordering: bool
    ack_deadline_seconds: float

    @property
    def message_ordering(self) -> bool:
        return self.enable_message_ordering

    @property
    def ack_deadline(self) -> float:
        return self.ack_deadline_seconds


# The options of a subscription that are options themselves.
POLICIES: Mapping[str, type[Any]] = {
    "retry_policy": RetryPolicy,
    "dead_letter_policy": DeadLetterPolicy,
    "flow_control": FlowControl,
    "queue_limits": QueueLimits,
}


@_by_either_name
@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions(_OtherSpellings):
    """How a subscription delivers. Names are Pub/Sub's where it has one."""

    enable_message_ordering: bool = False
    ack_deadline_seconds: float = 10  # Pub/Sub's default
    retry_policy: RetryPolicy | None = None  # None: at once
    dead_letter_policy: DeadLetterPolicy | None = None
    flow_control: FlowControl | None = None  # None: the broker hands out whatever is asked for
    message_retention_duration: float = 7 * DAY_SECONDS
    retain_acked_messages: bool = False
    queue_limits: QueueLimits | None = None  # None: `QueueLimits()` in memory, no limits on disk
    on_poison: OnPoison = "dead_letter"
    max_outstanding_per_key: int = 1
    filter: str = ""
    annotations: str = ""  # kept with the subscription for whoever wants to; means nothing here
    if TYPE_CHECKING:  # as `_by_either_name` takes them; a real InitVar would get in the way of `replace`
        message_ordering: InitVar[bool] = False
        ack_deadline: InitVar[float] = 10

    def __post_init__(self) -> None:  # type: ignore[override]
        check_flag("enable_message_ordering", self.enable_message_ordering)
        check_number("ack_deadline_seconds", self.ack_deadline_seconds, above=0, up_to=MAX_ACK_DEADLINE_SECONDS)
        for name, policy in POLICIES.items():
            _nested(self, name, policy)
        check_number("message_retention_duration", self.message_retention_duration, above=0, up_to=31 * DAY_SECONDS)
        check_flag("retain_acked_messages", self.retain_acked_messages)
        check_choice("on_poison", self.on_poison, OnPoison)
        check_whole("max_outstanding_per_key", self.max_outstanding_per_key)
        # Whoever asks for either means to keep keys in order, and would learn too late that nobody does.
        if self.on_poison == "park_key" and not self.enable_message_ordering:
            raise InvalidArgument("on_poison: 'park_key' needs enable_message_ordering=True, there are no keys")
        if self.max_outstanding_per_key > 1 and not self.enable_message_ordering:
            raise InvalidArgument(
                f"max_outstanding_per_key: {self.max_outstanding_per_key} needs enable_message_ordering=True, "
                "there are no keys"
            )
        _check_filter(self.filter)
        check_annotations(self.annotations)

    @property
    def window(self) -> int:
        """How many of a key may be out; 0 if keys mean nothing. When that changes, all that is out is taken back."""
        return self.max_outstanding_per_key if self.enable_message_ordering else 0

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

    `max_milliseconds=0` sends each message at once, or with what other tasks publish in the same turn of the loop.
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
            check_flag("message_ordering", self.message_ordering)
        _nested(self, "batching", Batching, optional=False)
        _nested(self, "flow_control", FlowControl, optional=False)


# The specifications use both spellings.
ALIASES: Mapping[type, Mapping[str, str]] = {
    SubscriptionOptions: {
        "message_ordering": "enable_message_ordering",
        "ack_deadline": "ack_deadline_seconds",
    }
}
