"""Long lists in pages. The token names the last one of a page, so that what is created meanwhile moves nobody."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from inorder.server.status import invalid

T = TypeVar("T")

DEFAULT_SIZE = 100
MAX_SIZE = 1_000


def page(names: Iterable[str], request: Any) -> tuple[list[str], str]:
    """Those of the names that a list request asks for, in order, and the token of the next page."""
    if request.page_size < 0:
        raise invalid(f"page_size: at least 0, not {request.page_size}.")
    ordered = sorted(names)
    first = bisect_right(ordered, _last(request.page_token)) if request.page_token else 0
    end = first + min(request.page_size or DEFAULT_SIZE, MAX_SIZE)
    found = ordered[first:end]
    return found, base64.urlsafe_b64encode(found[-1].encode()).decode() if end < len(ordered) else ""


def listed(
    names: Iterable[str],
    resource_of: Callable[[str], str],
    get: Callable[[str], T | None],
    beginning: str,
    request: Any,
) -> tuple[list[T], str]:
    """Of all that have these names, those on the page whose resources begin so: only at them is looked more closely."""
    resources = {resource_of(name): name for name in names}
    wanted, following = page([resource for resource in resources if resource.startswith(beginning)], request)
    found = (get(resources[resource]) for resource in wanted)
    return [one for one in found if one is not None], following  # others may be deleted meanwhile


def _last(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid(f"Invalid page token (page_token={token[:100]}).") from None
