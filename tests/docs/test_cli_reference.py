"""docs/cli.md is what the code says: `make reference` writes it."""

import re
from dataclasses import fields
from pathlib import Path

from inorder.cli import exits
from inorder.cli.commands import parser
from inorder.cli.reference import page
from inorder.cli.tree import tree
from inorder.spark.findings import Findings

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_reference_is_that_of_the_code() -> None:
    assert page() == PAGE, "run `make reference`"


def test_every_exit_code_is_in_the_table() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert documented == {value for value in vars(exits).values() if isinstance(value, int)}


def test_every_command_and_every_argument_is_explained() -> None:
    for node in tree(parser()).walk():
        assert node.description, node.path
        for argument in (*node.words, *node.options):
            assert argument.text, (node.path, argument)
        if any("--json" in option.names for option in node.options):
            assert node.fields, f"{node.path} has --json, and its fields are not documented"


def test_every_field_of_an_audit_is_explained() -> None:
    [node] = [node for node in tree(parser()).walk() if node.path == ("audit",)]
    assert {*node.fields} == {field.name for field in fields(Findings)} | {"in_order", "verdict", "imbalance"}
