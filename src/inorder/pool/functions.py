"""The kinds of functions that users write, each made callable in the one way that a worker needs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from inorder.pool.outcomes import Outputs


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether what a function returns is to be awaited, or iterated asynchronously."""
    return _is(inspect.iscoroutinefunction, fn) or _is(inspect.isasyncgenfunction, fn)


def is_generator(fn: Callable[..., Any]) -> bool:
    """Whether a call of it does nothing yet, as what it returns is to be iterated."""
    return _is(inspect.isgeneratorfunction, fn) or _is(inspect.isasyncgenfunction, fn)


def _is(kind: Callable[[object], bool], fn: Callable[..., Any]) -> bool:
    return kind(fn) or kind(getattr(fn, "__call__", None))  # noqa: B004 - an object that is called has its kind there


def synchronous(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    """A function to be called on any thread, which returns one value, or `Outputs`."""
    if _is(inspect.isgeneratorfunction, fn):
        return lambda item: Outputs(fn(item))
    if is_async(fn):
        awaited = asynchronous(fn)
        return lambda item: asyncio.run(awaited(item))
    return fn


def asynchronous(fn: Callable[..., Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A function to be awaited, which returns one value, or `Outputs`."""
    if _is(inspect.isasyncgenfunction, fn):

        async def collect(item: Any) -> Outputs:
            async with aclosing(fn(item)) as outputs:  # it ends here, also when it is left in the middle
                return Outputs([output async for output in outputs])

        return collect
    if is_async(fn):
        return fn
    called = synchronous(fn)

    async def call(item: Any) -> Any:
        result = called(item)
        return await result if inspect.isawaitable(result) else result

    return call
