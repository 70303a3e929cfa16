"""The tables of docs/pool.md name what there is: options with defaults and limits, metrics.

A table of options stands below a line that names its class; of its column "allowed" the numbers are tried.
"""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from inorder import Autoscale, PoolMetrics, Retry, WorkerPool
from inorder.clock import SYSTEM_CLOCK
from inorder.errors import InvalidArgument
from inorder.pool import PoolOptions

PAGE = (Path(__file__).parents[2] / "docs" / "pool.md").read_text(encoding="utf-8")
CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (PoolOptions, Retry, Autoscale)}

# What else must be given for a single option to be judged by itself.
NEEDS: dict[str, dict[str, Any]] = {
    "order_buffer_size": {"preserve_order": True, "workers": 1},
    "order_timeout": {"preserve_order": True},
    "minimum_backoff": {"maximum_backoff": 10**9},
    "maximum_backoff": {"minimum_backoff": 0},
    "min_workers": {"max_workers": 10**12},
}

Row = tuple[str, str, str]  # option, default, allowed


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def options_tables() -> dict[str, list[Row]]:
    """The documented rows of each class of options."""
    tables = re.findall(r"^(.*)\n\n\| option \| default .*\n\|[-|]*\n((?:\|.*\n)*)", PAGE, re.MULTILINE)
    documented = {}
    for above, body in tables:
        [name] = [name for name in in_code(above) if name in CLASSES]
        cells = ([cell.strip() for cell in line.split("|")[1:4]] for line in body.splitlines())
        documented[name] = [(option.strip("`"), default, allowed) for option, default, allowed in cells]
    return documented


def all_options() -> list[Any]:
    return [
        pytest.param(CLASSES[name], row, id=f"{name}.{row[0]}")
        for name, rows in options_tables().items()
        for row in rows
    ]


def build(cls: Any, name: str, value: Any) -> None:
    given = {**NEEDS.get(name, {}), name: value}
    WorkerPool(str, **given) if cls is PoolOptions else cls(**given)


def test_every_option_of_a_pool_has_a_row() -> None:
    documented = {name: [option for option, _, _ in rows] for name, rows in options_tables().items()}
    assert documented == {name: [field.name for field in fields(cls)] for name, cls in CLASSES.items()}


@pytest.mark.parametrize(("cls", "row"), all_options())
def test_a_default_is_the_one_that_is_documented(cls: Any, row: Row) -> None:
    name, default, _ = row
    [field] = [field for field in fields(cls) if field.name == name]
    if default == "required":
        assert field.default is MISSING
    else:
        assert eval(default.strip("`"), {"SYSTEM_CLOCK": SYSTEM_CLOCK}) == field.default


@pytest.mark.parametrize(("cls", "row"), all_options())
def test_the_limits_of_an_option_are_those_that_are_documented(cls: Any, row: Row) -> None:
    name, _, phrase = row
    if name in ("fn", "clock"):
        return
    phrase, optional = re.subn(r"^`None`, or ", "", phrase)
    allowed, refused = values(phrase)
    for value in allowed + [None] * optional:
        build(cls, name, value)
    for value in refused + [None] * (not optional):
        with pytest.raises(InvalidArgument):
            build(cls, name, value)


def values(phrase: str) -> tuple[list[Any], list[Any]]:
    """Values that a phrase of the column "allowed" admits, and values that it does not."""
    if match := re.fullmatch(r"whole, at least (\d+)", phrase):
        low = int(match[1])
        return [low, 10**12], [low - 1, low + 0.5, "1", True]
    if match := re.fullmatch(r"above (\d+), up to ([\d,]+)", phrase):
        low, high = int(match[1]), int(match[2].replace(",", ""))
        return [low + 0.001, high], [low, high + 1, "1", True]
    if match := re.fullmatch(r"at least (\d+), up to ([\d,]+)", phrase):
        low, high = int(match[1]), int(match[2].replace(",", ""))
        return [low, high], [low - 0.001, high + 1, "1", True]
    if phrase == "a function":
        return [len], [1]
    names = {**CLASSES, "True": True, "False": False}
    choices = [names.get(choice, choice.strip('"')) for choice in in_code(phrase)]
    assert choices, f"the phrase {phrase!r} is not one that this test can read"
    return [choice() if isinstance(choice, type) else choice for choice in choices], ["something else", 1]


def test_every_field_of_the_metrics_of_a_pool_is_explained() -> None:
    body = PAGE.partition("| field of `PoolMetrics`")[2].partition("\n\n")[0]
    documented = [name for line in body.splitlines()[2:] for name in in_code(line.split("|")[1])]
    assert sorted(documented) == sorted(field.name for field in fields(PoolMetrics))
