"""The program `inorder`: finds the command, and says in one line what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from inorder.cli import audit, journal, pipeline, serve, token
from inorder.errors import InorderError

FAILED = 2  # as argparse ends when it does not understand
INTERRUPTED = 130  # 128 and the number of the signal, as shells have it
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the program's exit code."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has enough. What is left in the buffer must not complain at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (InorderError, OSError) as error:
        print(f"inorder: {error}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="inorder", description="Keeps messages in order, per key.")
    parser.add_argument("--version", action="version", version=f"inorder {version('inorder')}")
    nouns = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    journal.add_to(nouns)
    audit.add_to(nouns)
    pipeline.add_to(nouns)
    serve.add_to(nouns)
    token.add_to(nouns)
    return parser
