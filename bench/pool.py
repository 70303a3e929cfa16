"""The worker pool: what order costs, what others make of the same work, and what an item costs in time and memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from bench.peers import Missing, ordered_maps
from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.workload import WrongResult
from inorder import WorkerPool

WORKERS = 16
PROCESSES = 2
FAST, SLOW, ONE_IN = 0.001, 0.020, 20  # seconds that items take, and one of how many is slow
MEAN = (FAST * (ONE_IN - 1) + SLOW) / ONE_IN
WINDOW = 2 * WORKERS  # the default
WIDE = round(WORKERS * (1 + SLOW / MEAN))  # the rule of docs/pool.md: room for what others do while a slow one takes

Item = tuple[int, float]  # what comes out, and the seconds that it takes
Contestant = Callable[[], float]


def measure(effort: Effort) -> Iterator[Table]:
    yield _order(effort)
    yield _threads_against_others(effort)
    yield _tasks_against_others(effort)
    yield _overhead(effort)
    yield _memory(effort)


# -- what is worked on, and by which functions: of the module, so that a process can import them -----


def same(item: Any) -> Any:
    return item


async def same_async(item: Any) -> Any:
    return item


def wait(item: Item) -> int:
    time.sleep(item[1])
    return item[0]


async def wait_async(item: Item) -> int:
    await asyncio.sleep(item[1])
    return item[0]


def jittered(count: int) -> list[Item]:
    random = Random(count)
    return [(index, FAST * random.uniform(0.5, 1.5)) for index in range(count)]


def with_slow_ones(count: int) -> list[Item]:
    """The first is slow, and so are some behind it."""
    items = jittered(count)
    for index in {0, *Random(count).sample(range(count), count // ONE_IN)}:
        items[index] = (index, SLOW)
    return items


# -- order, against none -----------------------------------------------------------------------------


def _order(effort: Effort) -> Table:
    waiting, nothing = jittered(effort.of(4_000, 400)), range(effort.of(40_000, 2_000))
    work: dict[str, tuple[Callable[..., float], Target | None]] = {
        "`async def`, 1 ms with jitter": (partial(_rate_async, wait_async, waiting), Target(0.95)),
        "threads, 1 ms with jitter": (partial(_rate, wait, waiting), Target(0.95)),
        "`async def` that does nothing": (partial(_rate_async, same_async, nothing), Target(0.7)),
        "threads, a function that does nothing": (partial(_rate, same, nothing), None),
    }
    contestants: dict[str, Contestant] = {}
    for name, (run, _) in work.items():
        contestants[f"{name}, in order"] = partial(run, preserve_order=True)
        contestants[f"{name}, in any"] = partial(run, preserve_order=False)
    rates = interleaved(contestants, effort)
    return Table(
        f"Pool: in order, against the same pool without order; {WORKERS} workers, a window of {WINDOW}",
        "items/s",
        [Row(name, rates[f"{name}, in order"], rates[f"{name}, in any"], target) for name, (_, target) in work.items()],
    )


def _rate(fn: Callable[..., Any], items: Sequence[Any], **options: Any) -> float:
    start = perf_counter()
    results = list(WorkerPool[int](fn, workers=WORKERS, **options).map(items))
    elapsed = perf_counter() - start
    return _checked(results, items, options["preserve_order"]) / elapsed


def _rate_async(fn: Callable[..., Any], items: Sequence[Any], **options: Any) -> float:
    async def run() -> float:
        start = perf_counter()
        results = [result async for result in WorkerPool[int](fn, workers=WORKERS, **options).map(items)]
        elapsed = perf_counter() - start
        return _checked(results, items, options["preserve_order"]) / elapsed

    return asyncio.run(run())


def _checked(results: Sequence[Any], items: Sequence[Any], in_order: bool = True) -> int:
    """How many there are, if they are right: every index once, and in order if that was asked for."""
    if list(results if in_order else sorted(results)) != list(range(len(items))):
        raise WrongResult(f"{len(results):,} results for {len(items):,} items, or in another order")
    return len(items)


# -- against others ----------------------------------------------------------------------------------


def _threads_against_others(effort: Effort) -> Table:
    items = with_slow_ones(effort.of(1_000, 200))

    def peer(map_: ordered_maps.Map[Any]) -> float:
        start = perf_counter()
        results = map_(wait, items, WORKERS)
        return _checked(results, items) / (perf_counter() - start)

    peers: dict[str, Contestant] = {name: partial(peer, map_) for name, map_ in ordered_maps.THREADS.items()}
    return _against_others("threads", partial(_rate, wait, items, preserve_order=True), peers, effort)


def _tasks_against_others(effort: Effort) -> Table:
    items = with_slow_ones(effort.of(1_000, 200))

    async def run(map_: ordered_maps.AsyncMap[Any]) -> float:
        start = perf_counter()
        results = await map_(wait_async, items, WORKERS)
        return _checked(results, items) / (perf_counter() - start)

    def peer(map_: ordered_maps.AsyncMap[Any]) -> float:
        return asyncio.run(run(map_))

    peers: dict[str, Contestant] = {name: partial(peer, map_) for name, map_ in ordered_maps.TASKS.items()}
    return _against_others("tasks", partial(_rate_async, wait_async, items, preserve_order=True), peers, effort)


def _against_others(kind: str, ours: Callable[..., float], peers: dict[str, Contestant], effort: Effort) -> Table:
    present, missing = _present(peers)
    narrow, wide = f"window of {WINDOW} (default)", f"window of {WIDE}"
    contestants: dict[str, Contestant] = {narrow: ours, wide: partial(ours, order_buffer_size=WIDE), **present}
    rates = interleaved(contestants, effort, warm_up=0)
    rows = []
    for window in (narrow, wide):
        for name in peers:
            unbounded = name in ordered_maps.UNBOUNDED
            # Who keeps everything in memory is not stopped by a slow item, and cannot be matched by a narrow window.
            target = Target(1 if unbounded else 1.5) if window is wide or not unbounded else None
            rows.append(
                Row(f"{window}, against {name}", rates[window], rates.get(name, ()), target, missing.get(name, ""))
            )
    ideal = WORKERS / MEAN
    return Table(
        f"Pool: {WORKERS} {kind}, in order, items of 1 ms with jitter, one in {ONE_IN} of {SLOW * 1000:g} ms",
        "items/s",
        rows,
        [
            f"No pool of {WORKERS} could do more than {number(ideal)} items/s.",
            f"Unbounded, so without a stop at a slow item: {', '.join(sorted(ordered_maps.UNBOUNDED & set(peers)))}.",
            *_versions("aiostream", "streamable", "pypeln"),
        ],
    )


def _present(peers: dict[str, Contestant]) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Those that run here, warmed up, and why the others do not."""
    present, missing = {}, {}
    for name, run in peers.items():
        try:
            run()
        except Missing as reason:
            missing[name] = str(reason)
        else:
            present[name] = run
    return present, missing


def _versions(*names: str) -> list[str]:
    found = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return [", ".join(found)] if found else []


# -- what an item costs ------------------------------------------------------------------------------


def _overhead(effort: Effort) -> Table:
    many, few = effort.of(40_000, 2_000), effort.of(4_000, 400)
    peers: dict[str, Contestant] = {
        "`async def`": lambda: asyncio.run(_cost_of_gather(many)),
        "threads": partial(_cost_of_executor, many),
        f"{PROCESSES} processes": partial(_cost_of_process_executor, few),
    }
    ours: dict[str, Callable[..., float]] = {
        "`async def`": lambda **options: asyncio.run(_cost_async(many, workers=WORKERS, **options)),
        "threads": partial(_cost, many, workers=WORKERS),
        f"{PROCESSES} processes": partial(_cost, few, kind="process", workers=PROCESSES),
    }
    contestants = dict(peers)
    for kind, run in ours.items():
        contestants[f"{kind}, in order"] = partial(run, preserve_order=True)
        contestants[f"{kind}, in any order"] = partial(run, preserve_order=False)
    costs = interleaved(contestants, effort, warm_up=0)
    return Table(
        "Pool: what an item costs, functions that do nothing; against asyncio.gather and the executors' map",
        "µs an item",
        [
            Row(f"{kind}, {order}", costs[f"{kind}, {order}"], costs[kind])
            for kind in ours
            for order in ("in order", "in any order")
        ],
        ["From the first output on; the executors from the call of map on, with processes that run already."],
    )


def _cost(count: int, **options: Any) -> float:
    results = iter(WorkerPool[Any](same, **options).map(range(count)))
    next(results)
    start = perf_counter()
    left = sum(1 for _ in results)
    return (perf_counter() - start) / left * 1e6


async def _cost_async(count: int, **options: Any) -> float:
    results = aiter(WorkerPool[Any](same_async, **options).map(range(count)))
    await anext(results)
    start, left = perf_counter(), 0
    async for _ in results:
        left += 1
    return (perf_counter() - start) / left * 1e6


async def _cost_of_gather(count: int) -> float:
    start = perf_counter()
    await ordered_maps.gather(same_async, range(count), WORKERS)
    return (perf_counter() - start) / count * 1e6


def _cost_of_executor(count: int) -> float:
    start = perf_counter()
    ordered_maps.executor(same, range(count), WORKERS)
    return (perf_counter() - start) / count * 1e6


def _cost_of_process_executor(count: int) -> float:
    with ProcessPoolExecutor(PROCESSES) as processes:
        list(processes.map(same, range(PROCESSES * 10)))
        start = perf_counter()
        for _ in processes.map(same, range(count)):
            pass
        return (perf_counter() - start) / count * 1e6


# -- memory ------------------------------------------------------------------------------------------


def _memory(effort: Effort) -> Table:
    count = effort.of(1_000_000, 20_000)
    contestants = {kind: partial(_in_a_process, kind, count) for kind in ("async", "thread")}
    runs = interleaved(contestants, effort, warm_up=0)
    return Table(
        f"Pool: memory at the end of {count:,} inputs, against a tenth of them; in order, functions that do nothing",
        "MB",
        [
            Row(name, [run[1] for run in runs[kind]], [run[0] for run in runs[kind]], Target(1.02, below=True))
            for kind, name in (
                ("async", "`async def`, read from an async generator"),
                ("thread", "threads, read from a generator"),
            )
        ],
    )


def _in_a_process(kind: str, count: int) -> tuple[float, float]:
    process = subprocess.run(
        [sys.executable, "-m", "bench.pool", kind, str(count)], stdout=subprocess.PIPE, check=False
    )
    if process.returncode:
        raise WrongResult("the process that was to be measured failed")
    at_a_tenth, at_the_end = json.loads(process.stdout)
    return at_a_tenth, at_the_end


def _resident(kind: str, count: int) -> tuple[float, float]:
    """Megabytes after a tenth of the inputs, and after the last."""
    at: dict[int, float] = {}

    def note(index: int) -> None:
        if index + 1 in (count // 10, count):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            at[index + 1] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    async def numbers() -> Any:
        for index in range(count):
            yield index

    async def run() -> None:
        async for index in WorkerPool[int](same_async, workers=WORKERS, preserve_order=True).map(numbers()):
            note(index)

    if kind == "async":
        asyncio.run(run())
    else:
        for index in WorkerPool[int](same, workers=WORKERS, preserve_order=True).map(index for index in range(count)):
            note(index)
    return at[count // 10], at[count]


if __name__ == "__main__":
    print(json.dumps(_resident(sys.argv[1], int(sys.argv[2]))))
