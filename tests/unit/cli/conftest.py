"""The program, run in this process on a folder of its own."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inorder.cli import main
from inorder.cli.commands import parser
from inorder.cli.tree import Node, tree


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def documented(arguments: tuple[str, ...]) -> Node:
    """The command that arguments begin with."""
    node = tree(parser())
    for word in arguments:
        node = next((child for child in node.children if child.path[-1] == word), node)
    return node


class Program:
    """Runs commands on one target."""

    def __init__(self, capsys: pytest.CaptureFixture[str], target: str) -> None:
        self.target = target
        self._capsys = capsys

    def __call__(self, *given: object) -> Ran:
        code = main([*map(str, given), "--target", self.target])
        return Ran(code, *self._capsys.readouterr())

    def ok(self, *given: object) -> list[str]:
        """The lines it prints, of a command that must succeed and has nothing to complain about."""
        ran = self(*given)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.lines

    def json(self, *given: object) -> list[dict[str, Any]]:
        """The objects it prints, whose fields must all be documented."""
        fields = documented(tuple(map(str, given))).fields
        found = [json.loads(line) for line in self.ok(*given, "--json")]
        for one in found:
            assert set(one) <= set(fields), f"{given}: not documented: {set(one) - set(fields)}"
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def inorder(capsys: pytest.CaptureFixture[str], folder: Path) -> Program:
    """A program that works on a folder which does not exist yet."""
    return Program(capsys, f"file:{folder}?sync=none")
