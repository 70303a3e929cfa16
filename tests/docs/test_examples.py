"""Every example runs, and prints a wrong result beside the right one, both of them computed."""

import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORIES = ("quick_tour.py", "whole_story.py")  # of `make tour` and `make run`
PLAIN_TERMINAL = {**os.environ, "PYTHONIOENCODING": "ascii"}  # not all of them know UTF-8
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in STORIES]


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


def test_the_quick_tour_ends_well() -> None:
    tour = [sys.executable, ROOT / "examples" / STORIES[0]]
    told = subprocess.run(tour, capture_output=True, text=True, check=True, env=PLAIN_TERMINAL)
    assert told.stdout


@pytest.mark.timeout(600)  # it starts Spark; about a minute on two quiet cores
def test_the_whole_story_repairs_what_was_wrong(tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine, and Spark needs 17 or later")
    story = [sys.executable, ROOT / "examples" / STORIES[1]]
    told = subprocess.run(story, capture_output=True, text=True, check=True, cwd=tmp_path, env=PLAIN_TERMINAL).stdout
    before, after = (line for line in told.splitlines() if "events of" in line and " keys" in line)
    assert "reordered" in before, told
    assert "in order" in after, told
