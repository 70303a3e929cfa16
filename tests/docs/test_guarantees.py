"""Every promise in docs/guarantees.md names a test that proves it, and that test is there."""

import re
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"

REFERENCE = re.compile(r"`([\w/.-]+\.py::[\w:]+)`")
PROOF = "the test that proves it"


def rows(markdown: str) -> list[dict[str, str]]:
    """The rows of all tables that have a column for tests, by the names of their columns."""
    found: list[dict[str, str]] = []
    header: list[str] = []
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            header = []
        elif not header:
            header = cells
        elif PROOF in header and not set(line) <= set("|-: "):
            assert len(cells) == len(header), f"a row with {len(cells)} cells, not {len(header)}: {line}"
            found.append(dict(zip(header, cells, strict=True)))
    return found


def without_proof(markdown: str) -> list[str]:
    """The promises that name no test."""
    return [next(iter(row.values())) for row in rows(markdown) if not REFERENCE.findall(row[PROOF])]


def is_test(reference: str) -> bool:
    """Whether a file has that test, in a class or not, inherited or not."""
    file, *names = reference.split("::")
    module = file.removesuffix(".py").replace("/", ".")
    if find_spec(module) is None:
        return False
    found: Any = import_module(module)
    for name in names:
        found = getattr(found, name, None)
    return callable(found) and names[-1].startswith("test_")


def unknown(references: Iterable[str]) -> list[str]:
    """The references to tests that are not there."""
    return [reference for reference in references if not is_test(reference)]


def test_every_promise_names_a_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rows(page)
    assert not without_proof(page)


def test_every_test_that_is_named_exists() -> None:
    assert not unknown(REFERENCE.findall(PAGE.read_text(encoding="utf-8")))


def test_a_promise_without_a_test_is_found() -> None:
    page = f"| promise | {PROOF} |\n|---|---|\n| kept | `x.py::test_x` |\n| bare | - |\n\n| other |\n|---|\n| x |\n"
    assert without_proof(page) == ["bare"]


@pytest.mark.parametrize(
    "reference",
    [
        "tests/docs/no_such_file.py::test_x",
        "tests/docs/test_guarantees.py::test_x",
        "tests/conformance/test_memory_queue.py::TestMemoryQueue::test_x",
    ],
)
def test_a_test_that_does_not_exist_is_found(reference: str) -> None:
    assert unknown([reference]) == [reference]


def test_tests_are_found_in_files_in_classes_and_when_they_are_inherited() -> None:
    assert not unknown(
        [
            "tests/docs/test_guarantees.py::test_every_promise_names_a_test",
            "tests/conformance/test_memory_queue.py::TestOnlyInMemory::test_a_message_may_have_exactly_10_megabytes",
            "tests/conformance/test_memory_queue.py::TestMemoryQueue::test_a_published_message_can_be_pulled",
        ]
    )
