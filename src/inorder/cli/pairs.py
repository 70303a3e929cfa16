"""NAME=VALUE, as flags have it more than once."""

from __future__ import annotations

from collections.abc import Sequence

from inorder.errors import InvalidArgument


def pairs(name: str, given: Sequence[str]) -> dict[str, str]:
    """Each of them by its name; `name` is the flag's."""
    for one in given:
        if "=" not in one:
            raise InvalidArgument(f"{name}: NAME=VALUE, not {one!r}")
    return dict(one.split("=", 1) for one in given)
