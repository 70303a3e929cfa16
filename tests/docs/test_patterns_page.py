"""docs/patterns.md tells the truth in its tables too: options with their defaults, fates, test vectors, tests."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import pytest

from inorder import RetryPolicy
from inorder.consumers import Forwarder
from inorder.patterns import SETTLED, Fate, LastWriteWins, Resequencer, VersionGate, slot_of

from .test_guarantees import REFERENCE, unknown

PAGE = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")

Row = list[str]


def tables(*columns: str) -> Iterator[list[Row]]:
    """The rows of each table with these columns."""
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]
        if header == [*columns]:
            yield rows


def option_rows() -> list[tuple[Any, Row]]:
    found = list(tables("option", "default", "what it does"))
    patterns = (Resequencer(), VersionGate(), LastWriteWins())
    return [(pattern, row) for pattern, rows in zip(patterns, found, strict=True) for row in rows]


@pytest.mark.parametrize("pattern", [Resequencer(), VersionGate(), LastWriteWins()], ids=lambda one: type(one).__name__)
def test_every_option_has_a_row(pattern: Any) -> None:
    documented = [name for one, row in option_rows() if one == pattern for name in re.findall(r"`(\w+)`", row[0])]
    assert documented == [field.name for field in fields(pattern) if field.init]


@pytest.mark.parametrize(("pattern", "row"), [one for one in option_rows() if "`" in one[1][1]], ids=str)
def test_a_default_is_the_one_that_is_documented(pattern: Any, row: Row) -> None:
    assert getattr(pattern, row[0].strip("`")) == eval(row[1].strip("`"))


def test_every_fate_is_explained_and_settles_as_it_says() -> None:
    [rows] = tables("fate", "the event", "settled")
    assert {row[0].strip("`") for row in rows} == {*get_args(Fate)}
    assert {row[0].strip("`") for row in rows if row[2] == "yes"} == SETTLED


def test_the_test_vectors_are_right() -> None:
    """ordering-guarantees Pattern 2: what another language is checked against."""
    [rows] = tables("key", "CRC-32", "slot")
    for key, crc, slot in ([cell.strip("`") for cell in row] for row in rows):
        assert f"{crc32(key.encode()):08x}" == crc
        assert slot_of(key) == int(slot)


def test_every_argument_of_the_forwarder_has_a_row_with_its_default() -> None:
    [rows] = tables("argument", "default", "what it does")
    documented = {row[0].strip("`"): eval(row[1].strip("`"), {"RetryPolicy": RetryPolicy}) for row in rows}
    parameters = inspect.signature(Forwarder).parameters.values()
    assert documented == {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


# The gotchas of ordering-guarantees, in its order.
GOTCHAS = [
    "Distributed consumers",
    "Retry against sequence numbers",
    "Sequence number generation",
    "Dead letters leave a gap",
    "Clock skew",
    "Hot partitions",
    "Rebalancing",
]


def gotchas() -> dict[str, str]:
    """The paragraphs by their titles."""
    part = PAGE.split("## What breaks order", 1)[1]
    titles_and_texts = re.split(r"^### (.+)$", part, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def test_every_gotcha_has_a_paragraph_and_names_its_tests() -> None:
    found = gotchas()
    assert [*found] == GOTCHAS
    assert all(REFERENCE.findall(text) for text in found.values())


def test_every_test_that_is_named_exists() -> None:
    assert not unknown(REFERENCE.findall(PAGE))


def test_every_link_leads_somewhere() -> None:
    folder = Path(__file__).parents[2] / "docs"
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert link[1:] in anchors if link.startswith("#") else (folder / link).exists(), link
