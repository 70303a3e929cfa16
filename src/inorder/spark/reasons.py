"""Why Spark failed, in one line: what it raises has hundreds, and the reason is one of them."""

from __future__ import annotations

import re
from typing import Any

_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]*): (?P<what>.+)")
_FROM_QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", re.DOTALL)
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_READING = "[FAILED_READ_FILE"
_OURS = "inorder.errors."


def reason(error: BaseException) -> str:
    """The reason of a failure of Spark, or of anything else."""
    java: Any = getattr(error, "java_exception", None)
    found = reason_in(str((java.getMessage() or java.toString()) if java is not None else error))
    if found.startswith(_READING) and java is not None and (cause := java.getCause()) is not None:
        found += f" {reason_in(str(cause.getMessage() or cause.toString()))}"  # it says which file, and not why
    return found


def reason_in(text: str) -> str:
    """What the last Python traceback ends with, or the last cause, or else the first line."""
    _, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        for line in after.splitlines()[1:]:
            if line[:1].strip() and (raised := _RAISED.match(line)):
                return raised["what"] if raised["kind"].startswith(_OURS) else raised[0]
    if causes := _CAUSED_BY.findall(text):
        return str(causes[-1]).strip()
    return _FROM_QUERY.sub("", text).strip().partition("\n")[0]
