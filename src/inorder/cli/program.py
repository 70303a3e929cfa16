"""The program `inorder`: finds the command, and says in one line what went wrong, and in another what to do."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from inorder.cli.colours import Paint
from inorder.cli.commands import parser
from inorder.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED
from inorder.cli.hints import hint
from inorder.cli.showing import CLOSED
from inorder.errors import InorderError

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # by their numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the program's exit code."""
    _hold_streams()
    words = sys.argv[1:] if arguments is None else arguments
    given = argparse.Namespace()
    try:
        parser(words[0] if words else None).parse_args(words, given)
        code: int = given.run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has enough. What is left in the buffer must not complain at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (InorderError, OSError) as error:
        with suppress(OSError):  # whoever read what goes wrong may be gone, too; the exit code tells it all the same
            _tell(error, given)
        return FAILED
    except Exception:  # a mistake of ours, which must not look as if the answer were no
        with suppress(OSError):
            traceback.print_exc()
        return FAILED
    return code


def _tell(error: InorderError | OSError, given: argparse.Namespace) -> None:
    print(f"{Paint(sys.stderr).red('inorder:')} {_told(error)}", file=sys.stderr)
    if next_step := hint(error, given):
        print(f"  {next_step}", file=sys.stderr)


def _told(error: InorderError | OSError) -> str:
    """Without the number that the system has for it."""
    return re.sub(r"^\[Errno \d+\] ", "", str(error)) if isinstance(error, OSError) else str(error)


def _hold_streams() -> None:
    """A stream that was closed leads nowhere, and one that knows few letters escapes the others.

    Otherwise the next file that is opened, a journal perhaps, would have its number, and get all that is written there.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        stream = getattr(sys, name)
        if stream is None:
            CLOSED.add(name)
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  for as long as we live
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
