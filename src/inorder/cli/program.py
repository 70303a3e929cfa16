"""The program `inorder`: finds the command, and says in one line what went wrong, and in another what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from inorder.cli.colours import Paint
from inorder.cli.commands import parser
from inorder.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED
from inorder.cli.hints import hint
from inorder.errors import InorderError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the program's exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    given = parser(words[0] if words else None).parse_args(words)
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
        print(f"{Paint(sys.stderr).red('inorder:')} {error}", file=sys.stderr)
        if next_step := hint(error, given):
            print(f"  {next_step}", file=sys.stderr)
        return FAILED
    return code
