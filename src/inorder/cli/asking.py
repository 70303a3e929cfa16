"""Asks before something is changed that cannot be taken back."""

from __future__ import annotations

import argparse
import sys

from inorder.errors import InvalidArgument


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Let somebody agree before being asked."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def agreed(given: argparse.Namespace, question: str) -> bool:
    """Whether whoever sits there agrees, or has done so."""
    if given.yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question} It asks before it changes anything: give --yes where nobody can answer")
    sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was changed", file=sys.stderr)  # beside the question: who reads JSON has not asked for sentences
    return False
