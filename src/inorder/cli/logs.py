"""What a server logs, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_OURS = "inorder"


class JsonLines(logging.Formatter):
    """One object in each line: time, level, logger, message, and whatever facts come with it."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        """`ascii_only` is for a stream that does not know all letters: what it makes of others is no JSON."""
        super().__init__()
        self._ascii_only = ascii_only

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=self._ascii_only)


def configure(style: LogFormat, level: LogLevel) -> None:
    """Log to stderr. `level` is for what inorder says; of others, whatever they say, only warnings."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonLines(ascii_only=(sys.stderr.encoding or "").lower() != "utf-8"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(_OURS).setLevel(level.upper())
