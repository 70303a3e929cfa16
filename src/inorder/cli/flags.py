"""Options as flags, made from their dataclasses so that none can be missing.

An option inside another one, as those of `retry_policy`, has a flag of its own; the whole is taken away by
`--no-retry-policy`. Values are checked by the options themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from inorder.errors import InvalidArgument
from inorder.options import ALIASES, SubscriptionOptions, TopicOptions

_NONE: Final = "none"

HELP: Final[Mapping[type, Mapping[str, str]]] = {
    TopicOptions: {
        "message_retention_duration": "seconds for which messages are kept, also those that all have acked",
        "annotations": "a text that is kept with the topic",
    },
    SubscriptionOptions: {
        "enable_message_ordering": "the messages of a key one after the other",
        "ack_deadline_seconds": "within which a message must be acked, or it comes again",
        "retry_policy": "a failed message comes again at once",
        "retry_policy.minimum_backoff": "seconds until a failed message comes again, doubled with each attempt",
        "retry_policy.maximum_backoff": "seconds, at most",
        "dead_letter_policy": "no message becomes a dead letter",
        "dead_letter_policy.dead_letter_topic": "where a message goes that failed too often",
        "dead_letter_policy.max_delivery_attempts": "after so many deliveries that failed",
        "dead_letter_policy.source": "what dead letters tell of where they came from; by default its name",
        "flow_control": "as much may be out as consumers ask for",
        "flow_control.max_messages": "so many may be out at once",
        "flow_control.max_bytes": "so many may be out at once",
        "message_retention_duration": "seconds for which a message waits to be acked",
        "retain_acked_messages": "keep them as well, so that a seek can go back to them",
        "queue_limits": "as many may wait as the broker's default is",
        "queue_limits.max_messages": "so many may wait to be acked",
        "queue_limits.max_bytes": "so many may wait to be acked",
        "queue_limits.when_full": "what happens to what comes on top",
        "on_poison": "what happens to a message that failed too often",
        "max_outstanding_per_key": "so many of a key may be out at once, in order",
        "filter": 'only messages with such attributes, as in attributes.type = "order"',
        "annotations": "a text that is kept with the subscription",
    },
}


class Flag(NamedTuple):
    """One option, wherever it stands."""

    path: tuple[str, ...]  # the option, or the one that holds it and then itself
    kind: Any  # of its value
    optional: bool  # None is a value of it
    default: Any

    @property
    def dest(self) -> str:
        return f"option:{'.'.join(self.path)}"

    @property
    def name(self) -> str:
        """`--ack-deadline-seconds`, `--retry-minimum-backoff`, `--dead-letter-topic`."""
        *holders, option = self.path
        for holder in holders:
            prefix = holder.removesuffix("_policy").removesuffix("_limits")
            if not option.startswith(prefix):
                option = f"{prefix}_{option}"
        return _as_flag(option)


def flags_of(cls: type[Any]) -> Iterator[Flag]:
    """Every option of a class, those inside others included and before the one that holds them."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        kind, optional = _without_none(hints[field.name])
        if is_dataclass(kind):
            inner = get_type_hints(kind)
            for part in fields(kind):
                part_kind, part_optional = _without_none(inner[part.name])
                yield Flag((field.name, part.name), part_kind, part_optional, part.default)
        yield Flag((field.name,), kind, optional, field.default)


def add_flags(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """A flag for each option; what is not given is not in the namespace."""
    group = parser.add_argument_group("options of the " + cls.__name__.removesuffix("Options").lower())
    others = {name: alias for alias, name in ALIASES.get(cls, {}).items()}
    for flag in flags_of(cls):
        text = HELP[cls][".".join(flag.path)]
        if is_dataclass(flag.kind):
            group.add_argument(
                _taken_away(flag),
                dest=flag.dest,
                action="store_const",
                const=None,
                default=argparse.SUPPRESS,
                help=f"{text} (the default)",
            )
            continue
        if flag.default not in (MISSING, ""):
            text += f" ({_shown(flag.default)})"
        names = [flag.name, *([_as_flag(others[flag.path[0]])] if flag.path[0] in others else [])]
        if flag.kind is bool:
            group.add_argument(
                *names, dest=flag.dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
        elif get_origin(flag.kind) is Literal:
            group.add_argument(
                *names, dest=flag.dest, choices=get_args(flag.kind), default=argparse.SUPPRESS, help=text
            )
        else:
            group.add_argument(
                *names,
                dest=flag.dest,
                type=_Value(flag.kind, flag.optional),
                default=argparse.SUPPRESS,
                metavar="TEXT" if flag.kind is str else "N",
                help=text,
            )


def given_options(given: argparse.Namespace, cls: type[Any], current: object = None) -> dict[str, Any]:
    """The options that were given. A part of an option changes that part of the `current` one, if there is any."""
    found: dict[str, Any] = {}
    for flag in flags_of(cls):
        if not hasattr(given, flag.dest):
            continue
        value = getattr(given, flag.dest)
        if len(flag.path) == 1:
            if flag.path[0] in found:  # by its parts, which came before
                raise InvalidArgument(f"{_taken_away(flag)}: not together with the parts of what it takes away")
            found[flag.path[0]] = value
            continue
        holder, part = flag.path
        if holder not in found:
            before = getattr(current, holder, None)
            found[holder] = {} if before is None else asdict(before)
        found[holder][part] = value
    return found


class _Value:
    """What a text stands for; argparse says whose value it is when it stands for nothing."""

    def __init__(self, kind: type, optional: bool) -> None:
        self._kind = kind
        self._optional = optional
        self.__name__ = {int: "whole number", float: "number"}.get(kind, "text")  # as argparse calls it

    def __call__(self, text: str) -> Any:
        if self._optional and text == _NONE:
            return None
        return self._kind(text)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    [kind] = kinds
    return kind, len(kinds) < len(get_args(hint))


def _taken_away(flag: Flag) -> str:
    """`--no-retry-policy`."""
    return f"--no-{_as_flag(flag.path[0])[2:]}"


def _shown(default: object) -> str:
    if default is None:
        return _NONE
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else f"{default}"


def _as_flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
