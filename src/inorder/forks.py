"""What a forked process does first of all.

It is a copy of its parent with one thread: what others held is held for ever, and what they do, the parent does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Heirloom(Protocol):
    """Something that only the process that made it can use."""

    def _leave_to_parent(self) -> None:
        """Called in a forked process: hold nothing, and let nobody use it."""


_calls: list[Callable[[], object]] = []
_heirlooms: weakref.WeakSet[Heirloom] = weakref.WeakSet()


def after_fork(call: Callable[[], object]) -> None:
    """Have forked processes make this call, one after the other, before they leave what is their parent's."""
    _calls.append(call)


def stays_here(heirloom: Heirloom) -> None:
    """Have forked processes leave it to their parent, for as long as somebody needs it."""
    _heirlooms.add(heirloom)


def _in_child() -> None:
    for call in _calls:
        call()
    for heirloom in _heirlooms:
        heirloom._leave_to_parent()


if hasattr(os, "register_at_fork"):  # else nobody forks
    os.register_at_fork(after_in_child=_in_child)
