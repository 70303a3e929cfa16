"""What else maps a function over items with several workers and keeps their order.

Each is configured as its documentation says, with the same number of workers. Those of `UNBOUNDED` read the whole
source before, or while, the first result waits: no slow item stops them, and memory is what it takes. The others
have as many items under way as they have workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeVar
from warnings import catch_warnings

from bench.peers import Missing

T = TypeVar("T")
Work = Callable[[T], T]
AsyncWork = Callable[[T], Awaitable[T]]
Map = Callable[[Work[T], Sequence[T], int], list[T]]
AsyncMap = Callable[[AsyncWork[T], Sequence[T], int], Awaitable[list[T]]]


def package(name: str) -> Any:
    """A peer that need not be installed."""
    try:
        with catch_warnings(action="ignore"):  # of what it imports itself
            return import_module(name)
    except ImportError as error:
        raise Missing(f"the package {error.name}") from error


# -- threads -----------------------------------------------------------------------------------


def executor(work: Work[T], items: Sequence[T], workers: int) -> list[T]:
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(work, items))


def streamable_threads(work: Work[T], items: Sequence[T], workers: int) -> list[T]:
    return list(package("streamable").stream(items).map(work, concurrency=workers))


def pypeln_threads(work: Work[T], items: Sequence[T], workers: int) -> list[T]:
    thread = package("pypeln").thread
    return list(thread.ordered(thread.map(work, items, workers=workers)))


# -- tasks -------------------------------------------------------------------------------------


async def gather(work: AsyncWork[T], items: Sequence[T], workers: int) -> list[T]:
    free = asyncio.Semaphore(workers)

    async def one(item: T) -> T:
        async with free:
            return await work(item)

    return await asyncio.gather(*map(one, items))


async def aiostream(work: AsyncWork[T], items: Sequence[T], workers: int) -> list[T]:
    stream = package("aiostream").stream
    found: list[T] = await stream.list(stream.map(stream.iterate(items), work, ordered=True, task_limit=workers))
    return found


async def streamable_tasks(work: AsyncWork[T], items: Sequence[T], workers: int) -> list[T]:
    return [result async for result in package("streamable").stream(items).map(work, concurrency=workers)]


async def pypeln_tasks(work: AsyncWork[T], items: Sequence[T], workers: int) -> list[T]:
    task = package("pypeln").task
    return [result async for result in task.ordered(task.map(work, items, workers=workers))]


THREADS: dict[str, Map[Any]] = {
    "ThreadPoolExecutor.map": executor,
    "streamable": streamable_threads,
    "pypeln, ordered": pypeln_threads,
}
TASKS: dict[str, AsyncMap[Any]] = {
    "asyncio.gather and a Semaphore": gather,
    "aiostream": aiostream,
    "streamable": streamable_tasks,
    "pypeln, ordered": pypeln_tasks,
}
UNBOUNDED = {"ThreadPoolExecutor.map", "pypeln, ordered", "asyncio.gather and a Semaphore"}
