"""What shells are offered. Bash is asked itself; zsh and fish are where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from inorder.cli import main
from inorder.cli.commands import parser
from inorder.cli.tree import tree


@pytest.fixture(params=["bash", "zsh", "fish"])
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", request.param]) == 0
    file = tmp_path / f"inorder.{request.param}"
    file.write_text(capsys.readouterr().out)
    return file


def offered(script: Path, *words: str) -> list[str]:
    """What the shell would offer for the last word."""
    shell = script.suffix[1:]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if shell == "fish":
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{' '.join(words)}'"]
        found = subprocess.check_output(command, text=True)
        return [line.split("\t")[0] for line in found.splitlines()]
    if shell == "zsh":  # its own part of the work is done by stand-ins, as it does it at a prompt only
        code = (
            "compdef() { }; _files() { print FILES }; _message() { }; compadd() { shift; print -l -- $@ }; "
            "_describe() { print -l -- ${(M)offered:#$words[CURRENT]*} | cut -d: -f1 }; "
            f'source {script}; words=("$@"); CURRENT=$#words; _inorder'
        )
        return subprocess.check_output(["zsh", "-f", "-c", code, "zsh", *words], text=True).split()
    code = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _inorder; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.check_output(["bash", "-c", code, "bash", *words], text=True).split()


def test_commands_options_and_values_are_offered(script: Path) -> None:
    assert offered(script, "inorder", "pu") == ["publish", "pull"]
    assert {"create", "list", "show", "delete"} <= set(offered(script, "inorder", "topic", ""))
    assert offered(script, "inorder", "publish", "orders", "--ordering-key-") == ["--ordering-key-field"]
    assert sorted(offered(script, "inorder", "publish", "orders", "--format", "")) == [
        *("json", "messages", "text", "whole")
    ]
    assert {"bash", "zsh", "fish"} <= set(offered(script, "inorder", "completion", ""))


def test_every_command_and_option_is_in_the_script(script: Path) -> None:
    text = script.read_text()
    for node in tree(parser()).walk():
        assert " ".join(["inorder", *node.path]) in text
        for name in (name for option in node.options for name in option.names):
            assert name.lstrip("-") in text
