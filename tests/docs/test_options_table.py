"""The tables of docs/guide.md name what there is: options with defaults and limits, errors, metrics, gaps.

A table of options stands below a line that names its class. Its column "allowed" is written in a few set
phrases, so that this file can try both sides of every limit.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from inorder import errors, metadata, options
from inorder.errors import InorderError, InvalidArgument
from inorder.message import Message

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"

Row = dict[str, str]

# What else must be given for a single option, or for an instance of a class, to be judged by itself.
NEEDS: dict[str, dict[str, Any]] = {
    "DeadLetterPolicy": {"dead_letter_topic": "dead"},
    "on_poison": {"enable_message_ordering": True},
    "max_outstanding_per_key": {"enable_message_ordering": True},
    "minimum_backoff": {"maximum_backoff": 86_400},
    "maximum_backoff": {"minimum_backoff": 0},
    "max_delivery_attempts": {"dead_letter_topic": "dead"},
    "source": {"dead_letter_topic": "dead"},
}
NO_CHOICE = "something else"


def tables(markdown: str) -> Iterator[tuple[str, list[Row]]]:
    """Each table with the last line of text above it."""
    above, rows = "", []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            header, _, *body = rows
            yield above, [dict(zip(header, row, strict=True)) for row in body]
            above, rows = line, []
        elif line:
            above = line


def table_with(*columns: str) -> list[Row]:
    found = [row for _, rows in tables(GUIDE.read_text()) for row in rows if tuple(row)[: len(columns)] == columns]
    assert found, f"docs/guide.md has no table with the columns {columns}"
    return found


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def options_tables() -> dict[type, list[Row]]:
    """The documented rows of each class of options."""
    documented: dict[type, list[Row]] = {}
    for above, rows in tables(GUIDE.read_text()):
        if tuple(rows[0])[:3] == ("option", "default", "allowed"):
            [cls] = [getattr(options, name) for name in in_code(above) if is_dataclass(getattr(options, name, None))]
            documented[cls] = rows
    return documented


def all_options() -> list[Any]:
    return [
        pytest.param(cls, row, id=f"{cls.__name__}.{row['option'].strip('`')}")
        for cls, rows in options_tables().items()
        for row in rows
    ]


def classes_of_options() -> set[type]:
    return {cls for _, cls in inspect.getmembers(options, is_dataclass) if inspect.isclass(cls)}


def build(cls: type, name: str, value: Any) -> Any:
    return cls(**{**NEEDS.get(name, {}), name: value})


def test_every_class_of_options_has_a_table_and_every_option_a_row() -> None:
    documented = {cls: [row["option"].strip("`") for row in rows] for cls, rows in options_tables().items()}
    assert documented == {cls: [field.name for field in fields(cls)] for cls in classes_of_options()}


def test_other_names_of_options_are_told() -> None:
    for cls, aliases in options.ALIASES.items():
        rows = {row["option"].strip("`"): row["what it does"] for row in options_tables()[cls]}
        for alias, name in aliases.items():
            assert f"`{alias}` is another name for it" in rows[name]


@pytest.mark.parametrize(("cls", "row"), all_options())
def test_a_default_is_the_one_that_is_documented(cls: type, row: Row) -> None:
    [field] = [field for field in fields(cls) if field.name == row["option"].strip("`")]  # type: ignore[arg-type]
    if row["default"] == "required":
        assert (field.default, field.default_factory) == (MISSING, MISSING)
    else:
        [default] = in_code(row["default"])
        assert eval(default, vars(options).copy()) == field.default


@pytest.mark.parametrize(("cls", "row"), all_options())
def test_the_limits_of_an_option_are_those_that_are_documented(cls: type, row: Row) -> None:
    name = row["option"].strip("`")
    allowed, refused = values(row["allowed"])
    for value in allowed:
        build(cls, name, value)
    for value in refused:
        with pytest.raises(InvalidArgument):
            build(cls, name, value)


def values(phrase: str) -> tuple[list[Any], list[Any]]:
    """Values that a phrase of the column "allowed" admits, and values that it does not."""
    phrase, optional = re.subn(r"^`None`, or ", "", phrase)
    number = phrase.replace(",", "")
    allowed, refused = ([None], []) if optional else ([], [None])
    if match := re.fullmatch(r"above (\d+) up to (\d+)", number):
        low, high = map(int, match.groups())
        return [*allowed, low + 0.001, high], [*refused, low, high + 0.001, "1", True]
    if match := re.fullmatch(r"(\d+) to (\d+)", number):
        low, high = map(int, match.groups())
        return [*allowed, low, high], [*refused, low - 0.001, high + 0.001, "1", True]
    if match := re.fullmatch(r"whole at least (\d+)", number):
        low = int(match[1])
        return [*allowed, low, 10**12], [*refused, low - 1, low + 0.5, "1", True]
    if match := re.fullmatch(r"up to (\d+) bytes", number):
        beginning, rest = 'attributes:"', int(match[1]) - 13
        return [*allowed, f'{beginning}{"x" * rest}"'], [*refused, f'{beginning}{"x" * (rest + 1)}"', 1]
    if match := re.fullmatch(r"an? `(\w+)`", phrase):
        cls = getattr(options, match[1])
        instance = cls(**NEEDS.get(match[1], {}))
        mapping = {field.name: getattr(instance, field.name) for field in fields(cls)}
        return [*allowed, instance, mapping], [*refused, 1, {"no such option": 1}]
    if phrase == "a topic name":
        return [*allowed, "dead", "projects/p/topics/dead"], [*refused, "", "1", "goog-dead", "x" * 256]
    choices = [ast.literal_eval(choice) for choice in in_code(phrase)]
    assert choices, f"the phrase {phrase!r} is not one that this test can read"
    return [*allowed, *choices], [*refused, NO_CHOICE, 1]


def test_the_table_of_errors_has_every_class_with_its_code() -> None:
    documented = sorted((row["class"].strip("`"), int(row["code"])) for row in table_with("code", "class", "when"))
    assert documented == sorted(
        (name, int(cls.code))
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, InorderError) and cls is not InorderError
    )


@pytest.mark.parametrize(
    ("column", "cls"),
    [
        ("field of `Metrics`", metadata.Metrics),
        ("field of `counters`", metadata.Counters),
        ("field of `BlockedKey`", metadata.BlockedKey),
        ("field of `Unacked`", metadata.Unacked),
        ("field of `TopicMetadata`, from `topic.metadata()`", metadata.TopicMetadata),
        ("field of `SubscriptionMetadata`, from `subscription.metadata()`", metadata.SubscriptionMetadata),
    ],
)
def test_every_field_of_what_a_broker_tells_is_explained(column: str, cls: type) -> None:
    documented = {name for row in table_with(column) for name in in_code(row[column])}
    assert documented == {field.name for field in fields(cls)} - {"counters"}  # type: ignore[arg-type]


def test_every_field_of_a_message_is_explained() -> None:
    documented = {row["field"].strip("`") for row in table_with("field", "what it is")}
    assert documented == {name for name, _ in inspect.getmembers(Message, lambda member: isinstance(member, property))}
