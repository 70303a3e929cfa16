"""All commands there are. Only the one that is asked for is imported, so that none pays for the others."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Final

from inorder.cli.verbs import Command

# And the modules that know them.
NOUNS: Final[Mapping[str, str]] = {
    "topic": "topic",
    "subscription": "subscription",
    "publish": "publish",
    "pull": "pull",
    "tail": "tail",
    "seek": "seek",
    "keys": "keys",
    "dead-letters": "dead_letters",
    "bench": "bench",
    "serve": "serve",
    "token": "token",
    "journal": "journal",
    "audit": "audit",
    "pipeline": "pipeline",
    "completion": "completion",
}


def parser(only: str | None = None) -> Command:
    """What understands the command line; of a known command `only` that."""
    program = Command(prog="inorder", description="Keeps messages in order, per key.")
    program.add_argument("--version", action="version", version=f"inorder {version('inorder')}")
    nouns = program.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for noun, module in NOUNS.items():
        if only in (noun, None) or only not in NOUNS:
            import_module(f"inorder.cli.{module}").add_to(nouns)
    return program
