"""What README.md and docs/*.md show is true: their Python blocks run, and print what they say.

The blocks of one page run in order and share their names, so a page reads as one program. A `text` block
right after a Python block is what that block prints. Shell blocks are not run, but name only targets that
the Makefile has.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^ *(?P<marks>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
BEFORE_OUTPUT = re.compile(r"\s*((prints|output):?)?\s*", re.IGNORECASE)
MAKE = re.compile(r"(?:^|[;&|$])\s*(?:\w+=\S+\s+)*make\b(?P<arguments>[^;&|#\n]*)", re.MULTILINE)
TARGET = re.compile(r"^([\w-]+)\s*:(?!=)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `line` is the line of its opening fence, counted from 1."""

    page: str
    line: int
    language: str
    text: str
    prose_before: str  # all that stands between the previous block and this one

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, markdown: str) -> Iterator[Block]:
    lines = iter(enumerate(markdown.splitlines(), start=1))
    prose: list[str] = []
    for number, line in lines:
        if not (fence := FENCE.match(line)):
            prose.append(line)
            continue
        body = "\n".join(until_closed(lines, fence["marks"], f"{page}:{number}"))
        yield Block(page, number, fence["language"], textwrap.dedent(body), "\n".join(prose))
        prose = []


def until_closed(lines: Iterable[tuple[int, str]], marks: str, place: str) -> Iterator[str]:
    for _, line in lines:
        if set(line.strip()) == {marks[0]} and len(line.strip()) >= len(marks):
            return
        yield line
    raise AssertionError(f"{place}: the block is never closed")


def with_output(blocks: list[Block]) -> Iterator[tuple[Block, str | None]]:
    """Each Python block, with the output its page promises."""
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            yield block, following.text if following and is_output(following) else None


def is_output(block: Block) -> bool:
    """Whether the block, if it follows a Python block, says what that one prints."""
    return block.language == "text" and BEFORE_OUTPUT.fullmatch(block.prose_before) is not None


def run_page(blocks: list[Block]) -> None:
    """Run the Python blocks in one namespace and, where they await, in one loop."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block, promised in with_output(blocks):
            printed = run_block(block, names, runner)
            if promised is not None:
                assert printed.rstrip("\n") == promised, f"{block.place}: printed something else"


def run_block(block: Block, names: dict[str, Any], runner: asyncio.Runner) -> str:
    """Run one block and return what it printed."""
    # The empty lines let a traceback show the line numbers of the page.
    source = "\n" * block.line + block.text
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            code = compile(source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            outcome = eval(code, names)
            if inspect.iscoroutine(outcome):
                runner.run(outcome)
        except Exception as error:
            raise AssertionError(f"{block.place}: raised {error!r}") from error
    return output.getvalue()


def unknown_targets(blocks: list[Block], makefile: str) -> list[str]:
    known = set(TARGET.findall(makefile))
    return [
        f"{block.place}: the Makefile has no target {target!r}"
        for block in blocks
        if block.language == "bash"
        for command in MAKE.finditer(block.text)
        for target in command["arguments"].split()
        if "=" not in target and not target.startswith("-") and target not in known
    ]


def read_page(path: Path) -> list[Block]:
    name = path.relative_to(ROOT).as_posix()
    assert path.exists(), f"{name} is missing"
    return list(blocks_of(name, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_python_blocks_of_a_page_run(path: Path, tmp_path: Path) -> None:
    blocks = read_page(path)
    with contextlib.chdir(tmp_path):
        run_page(blocks)


def test_each_python_block_of_the_readme_is_a_program_that_a_type_checker_takes(tmp_path: Path) -> None:
    programs = [block for block in read_page(ROOT / "README.md") if block.language == "python"]
    for block in programs:
        (tmp_path / f"line_{block.line}.py").write_text(block.text, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--config-file=", "--cache-dir=cache", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert checked.stdout == f"Success: no issues found in {len(programs)} source files\n"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_shell_blocks_of_a_page_name_targets_that_exist(path: Path) -> None:
    unknown = unknown_targets(read_page(path), (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert not unknown, "\n".join(unknown)


def made_up(*parts: str) -> list[Block]:
    """A page whose fences are written as '''."""
    return list(blocks_of("page.md", "\n".join(parts).replace("'''", "```")))


def test_blocks_share_names_await_and_print() -> None:
    run_page(
        made_up(
            "'''python\nimport asyncio\nx = await asyncio.sleep(0, 41)\nprint(x)\n'''",
            "prints\n\n'''text\n41\n'''",
            "1. In a list:\n\n   '''python\n   if x:\n       print(x + 1)\n   '''\n\n'''text\n42\n'''",
            "Prose, so what follows is no output.\n\n'''text\n43\n'''\n'''toml\n[x]\n'''",
        )
    )


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("Prose.\n\n'''python\n\n1 / 0\n'''", r"page\.md:3: raised ZeroDivisionError"),
        ("'''python\nif\n'''", r"page\.md:1: raised SyntaxError\(.*'page\.md', 2,"),
        ("'''python\nprint(1)\n'''\nOutput:\n'''text\n2\n'''", r"page\.md:1: printed something else"),
        ("'''python\npass", r"page\.md:1: the block is never closed"),
    ],
    ids=["an error", "a syntax error", "another output", "an open fence"],
)
def test_a_wrong_block_is_named_by_its_place(page: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_page(made_up(page))


def test_an_unknown_make_target_is_named() -> None:
    page = made_up(
        "'''bash",
        "git clone x && make setup",
        "X=1 make -s test PYTHON=python3  # make sure",
        "make tea",
        "'''",
    )
    assert unknown_targets(page, "A := b\nsetup:\n\ntest: setup\n") == ["page.md:1: the Makefile has no target 'tea'"]
