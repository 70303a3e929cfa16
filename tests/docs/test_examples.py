"""Every example runs, and prints a wrong result beside the right one, both of them computed."""

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "quick_tour.py"]


def run(path: Path) -> tuple[dict[str, Any], str]:
    """What an example defines, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        names = runpy.run_path(str(path), run_name="__main__")
    return names, printed.getvalue()


@pytest.mark.timeout(30)  # a second, on a machine that has nothing else to do
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_goes_wrong_without_the_pattern_and_right_with_it(path: Path) -> None:
    names, printed = run(path)
    wrong, right, expected = (names[name]() for name in ("without_pattern", "with_pattern", "expected"))
    assert right == expected
    assert wrong != expected
    assert str(wrong) in printed
    assert str(right) in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_named_on_the_page_of_patterns(path: Path) -> None:
    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    assert f"../examples/{path.name}" in page
