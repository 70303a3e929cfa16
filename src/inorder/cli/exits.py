"""How the program ends: every exit code, with what it means. docs/cli.md has the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DONE: Final = 0
NO: Final = 1
FAILED: Final = 2  # as argparse ends when it does not understand
HUNG_UP: Final = 129  # 128 and the number of the signal, as shells have it
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TERMINATED: Final = 143

MEANING: Final[Mapping[int, str]] = {
    DONE: "done",
    NO: "done, and the answer is no: a journal is damaged, a log or a load is not in order, a batch of a pipeline "
    "failed, or whoever was asked did not agree",
    FAILED: "the call is wrong, or it was refused: the reason is on standard error, and what to do next below it",
    HUNG_UP: "its terminal was closed",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "whoever read the output has read enough",
    TERMINATED: "ended by a TERM",
}
