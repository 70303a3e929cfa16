"""Colours, where a person looks: on a terminal, and not with NO_COLOR."""

from __future__ import annotations

import os
from typing import TextIO

_RESET = "\x1b[0m"


class Paint:
    """Paints texts that are written to one stream; leaves them as they are where nobody would see it."""

    def __init__(self, stream: TextIO) -> None:
        self.wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def bold(self, text: str) -> str:
        return self._painted("\x1b[1m", text)

    def dim(self, text: str) -> str:
        return self._painted("\x1b[2m", text)

    def red(self, text: str) -> str:
        return self._painted("\x1b[31m", text)

    def green(self, text: str) -> str:
        return self._painted("\x1b[32m", text)

    def cyan(self, text: str) -> str:
        return self._painted("\x1b[36m", text)

    def _painted(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self.wanted and text else text
