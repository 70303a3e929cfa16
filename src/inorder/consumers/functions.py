"""What users hand in to be called within a transaction: its work is done when it returns, or it was not done at all.

A coroutine or a generator has done nothing yet when it is returned. To commit, and to ack, would lose the effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from inorder.errors import InvalidArgument
from inorder.options import check_call
from inorder.pending import Pending
from inorder.pool.functions import is_async, is_generator


def check_function(what: str, function: Any) -> None:
    """Refuse what cannot be called, and what does nothing yet when it is called."""
    check_call(what, function)
    if is_async(function) or is_generator(function):
        raise InvalidArgument(
            f"{what}: a def that does its work and returns, not an async def or a generator: "
            f"it is called within a transaction, {function!r}"
        )


def check_done(what: str, returned: Any) -> None:
    """Refuse what a call returned if its work is still to be done; what runs by itself, as a publish does, may."""
    awaitable = inspect.isawaitable(returned) and not isinstance(returned, (Pending, Future))
    if awaitable or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
            returned.close()  # nobody will ever await it, and Python need not tell
        raise InvalidArgument(f"{what}: it returned a {type(returned).__name__}, so its work was not done")


def call(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of a user for its effect."""
    returned = function(*arguments)
    if returned is not None:
        check_done(what, returned)
