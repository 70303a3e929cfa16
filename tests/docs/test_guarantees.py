"""Every promise in docs/guarantees.md names a test that proves it, and pytest finds that test."""

import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

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


@cache
def collected() -> frozenset[str]:
    """All tests that pytest finds, inherited ones included, without their parameters."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return frozenset(line.split("[")[0] for line in result.stdout.splitlines() if "::" in line)


def unknown(references: Iterable[str]) -> list[str]:
    """The references that pytest does not find."""
    return [reference for reference in references if reference not in collected()]


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
