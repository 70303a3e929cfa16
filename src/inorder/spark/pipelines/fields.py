"""What may stand in the fields of a pipeline's file, told in words where something else does."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from inorder.errors import InvalidArgument
from inorder.options import MAX_WHOLE
from inorder.spark.durations import seconds


@dataclass(frozen=True, slots=True)
class Field:
    """A field: what is allowed, in words, and whether a value is."""

    allowed: str
    accepts: Callable[[object], bool]
    required: bool = False
    choices: tuple[str, ...] = ()

    def problem(self, value: object) -> str | None:
        """What is wrong with a value."""
        if self.accepts(value):
            return None
        return f"{self.allowed}, not {value!r}{did_you_mean(value, self.choices)}"


Fields = Mapping[str, Field]


def text(what: str = "text", *, required: bool = False) -> Field:
    return Field(what, lambda value: isinstance(value, str) and bool(value.strip()), required)


def column(*, required: bool = False) -> Field:
    return text("the name of a column", required=required)


def whole(at_least: int, up_to: int = MAX_WHOLE) -> Field:
    limit = "" if up_to == MAX_WHOLE else f", up to {up_to}"
    return Field(f"a whole number of at least {at_least}{limit}", lambda value: is_whole(value, at_least, up_to))


def whole_or_choice(at_least: int, choices: object) -> Field:
    names = get_args(choices)
    allowed = f"a whole number of at least {at_least}, or {_or(names)}"
    return Field(allowed, lambda value: is_whole(value, at_least, MAX_WHOLE) or value in names, choices=names)


def flag() -> Field:
    return Field("true or false", lambda value: isinstance(value, bool))


def choice(choices: Collection[str], *, required: bool = False) -> Field:
    names = tuple(choices)
    return Field(f"one of {', '.join(map(repr, names))}", lambda value: value in names, required, names)


def duration(*, or_none: bool = False) -> Field:
    """A time span; TOML has no null, so where there may be none, the word says so."""
    allowed = "seconds above 0, or text such as '30 seconds' or '5 minutes'"

    def accepts(value: object) -> bool:
        if or_none and value == NONE:
            return True
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return False
        try:
            found = seconds("", value)
        except InvalidArgument:
            return False
        return found is not None and 0 < found < float("inf")

    return Field(f"{allowed}, or {NONE!r}" if or_none else allowed, accepts)


def scalars(what: str) -> Field:
    """A table of texts, numbers and flags: what Spark takes as options."""
    return Field(what, lambda value: isinstance(value, dict) and all(map(is_scalar, flat(value).values())))


def owners() -> Field:
    """Which fields each event type writes."""

    def accepts(value: object) -> bool:
        return isinstance(value, dict) and bool(value) and all(map(_is_list_of_text, value.values()))

    return Field("event types with lists of the columns they write", accepts, required=True)


NONE = "none"


def is_whole(value: object, at_least: int, up_to: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= up_to


def is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)


def as_option(value: Any) -> str:
    """A scalar as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def flat(given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Names with dots: TOML reads those that are not quoted as tables in tables."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def problems(place: str, given: Mapping[str, Any], known: Fields) -> Iterator[str]:
    """What is wrong with the fields of a section, one sentence each."""
    for name, value in given.items():
        if name not in known:
            yield f"{place}{unknown(name, known)}"
        elif problem := known[name].problem(value):
            yield f"{place}{name}: {problem}"
    for name, field in known.items():
        if field.required and name not in given:
            yield f"{place}{name}: it is missing; {field.allowed}"


def unknown(name: str, known: Collection[str]) -> str:
    """That there is no such field."""
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    return f"{name}: there is no such field{hint}"


def did_you_mean(name: object, known: Collection[str]) -> str:
    """The nearest of what is known, if one is near."""
    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), folded, 1)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def _or(names: Collection[str]) -> str:
    return " or ".join(map(repr, names))
