"""A bar on the terminal while something takes long; nothing anywhere else."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TextIO

PATIENCE_SECONDS = 0.5  # what is done by then needs no bar
_REDRAW_SECONDS = 0.1
_WIDTH = 30
_CLEAR = "\r\x1b[K"


class Bar:
    """Call it with what is done and what there is in all. On leaving `with`, it is gone."""

    def __init__(self, label: str, stream: TextIO, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._label = label
        self._stream = stream
        self._wanted = stream.isatty()
        self._next = monotonic() + patience_seconds
        self._drawn = False

    def __call__(self, done: float, total: float) -> None:
        if not self._wanted or monotonic() < self._next:
            return
        self._next = monotonic() + _REDRAW_SECONDS
        share = done / total if total else 1
        filled = round(share * _WIDTH)
        self._stream.write(f"{_CLEAR}{self._label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}")
        self._stream.flush()
        self._drawn = True

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
