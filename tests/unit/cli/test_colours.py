"""Colours are for people at terminals who want them."""

import io

import pytest

from inorder.cli.colours import Paint


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_painted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Paint(Terminal()).red("no") == "\x1b[31mno\x1b[0m"
    assert Paint(Terminal()).bold("") == ""
    assert Paint(io.StringIO()).red("no") == "no"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_not_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert Paint(Terminal()).red("no") == "no"
