"""Handlers that wait: ten times the keys should be ten times the throughput, until the processor is busy.

The peer is asyncio at its barest, one queue and one task per key, which does the same waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from math import log10
from statistics import correlation, linear_regression, median
from time import perf_counter, process_time
from typing import NamedTuple

from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.workload import OPTIONS, PATIENCE_SECONDS, Pair, check_acked, check_order, even_pairs, split
from inorder import Message, Pending, PubSub

KEYS = (1, 10, 100, 1_000)
BUSY = 0.9  # share of the time: from there on the processor is what limits


class Run(NamedTuple):
    """One run: messages per second, the share of time in which the loop did not wait, CPU per message."""

    rate: float
    busy: float
    cpu_us: float


Work = Callable[[list[Pair], float, "Stopwatch"], Coroutine[None, None, Run]]  # messages, seconds to wait


def measure(effort: Effort) -> Iterator[Table]:
    yield from _measure(0.001, effort.of((200, 200, 100, 30), (20, 20, 15, 5)), effort, Target(0.9, figure=True))
    yield from _measure(0.01, effort.of((25, 25, 25, 15), (5, 5, 5, 3)), effort, None)


def _measure(wait: float, per_key: Sequence[int], effort: Effort, target: Target | None) -> Iterator[Table]:
    contestants: dict[str, Callable[[], Run]] = {}
    for keys, count in zip(KEYS, per_key, strict=True):
        contestants[f"ours {keys}"] = partial(_run, _handlers, keys, count, wait)
        contestants[f"peer {keys}"] = partial(_run, _bare_asyncio, keys, count, wait)
    runs = interleaved(contestants, effort, warm_up=0)
    rates = {name: [run.rate for run in of_name] for name, of_name in runs.items()}
    title = f"`async def` handlers that wait {wait * 1000:g} ms, against bare asyncio: a queue and a task per key"
    yield Table(
        title,
        "messages/s",
        [Row(f"{keys:,} key{'s' * (keys > 1)}", rates[f"ours {keys}"], rates[f"peer {keys}"]) for keys in KEYS],
        [
            *(f"{keys:,} keys: {_limit(runs[f'ours {keys}'])}" for keys in KEYS[-2:]),
            *(f"{keys:,} keys, bare asyncio: {_limit(runs[f'peer {keys}'])}" for keys in KEYS[-2:]),
        ],
    )
    rows = []
    for points in (KEYS[:-1], KEYS):
        fits = [_fits(points, [rates[f"{who} {keys}"] for keys in points]) for who in ("ours", "peer")]
        (slopes, r_squared), (peer_slopes, peer_r_squared) = fits
        rows.append(Row(f"slope, 1 to {points[-1]:,} keys", slopes, peer_slopes, target))
        rows.append(Row(f"R², 1 to {points[-1]:,} keys", r_squared, peer_r_squared))
    yield Table("The same as a line, log of throughput over log of keys; 1 is proportional", "slope", rows)


def _fits(points: Sequence[int], rates: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Slopes and R², of each repetition one."""
    xs = [log10(keys) for keys in points]
    lines = [[log10(rate) for rate in repetition] for repetition in zip(*rates, strict=True)]
    return [linear_regression(xs, ys).slope for ys in lines], [correlation(xs, ys) ** 2 for ys in lines]


def _limit(runs: Sequence[Run]) -> str:
    busy, cpu_us = median(run.busy for run in runs), median(run.cpu_us for run in runs)
    verdict = "the processor is the limit" if busy >= BUSY else "waiting is the limit"
    return f"the loop is busy {busy:.0%} of the time, {number(cpu_us)} µs of CPU per message: {verdict}"


class Stopwatch(selectors.DefaultSelector):
    """A loop waits here while it has nothing to do, so here is where its idle time can be measured."""

    def __init__(self) -> None:
        super().__init__()
        self._idle = 0.0
        self._start = (0.0, 0.0, 0.0)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        start = perf_counter()
        events = super().select(timeout)
        if timeout is None or timeout > 0:
            self._idle += perf_counter() - start
        return events

    def start(self) -> None:
        self._start = (perf_counter(), process_time(), self._idle)

    def stop(self, count: int) -> Run:
        now = (perf_counter(), process_time(), self._idle)
        elapsed, cpu, idle = (after - before for before, after in zip(self._start, now, strict=True))
        return Run(count / elapsed, 1 - idle / elapsed, cpu / count * 1e6)


def _run(work: Work, keys: int, per_key: int, wait: float) -> Run:
    watch, pairs = Stopwatch(), even_pairs(keys * per_key, keys)
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        return runner.run(work(pairs, wait, watch))


async def _handlers(pairs: list[Pair], wait: float, watch: Stopwatch) -> Run:
    received: list[bytes] = []
    last: asyncio.Future[Pending[None]] = asyncio.get_running_loop().create_future()

    async def handle(message: Message) -> None:
        await asyncio.sleep(wait)
        received.append(message.data)
        acked = message.ack()
        if len(received) == len(pairs):
            last.set_result(acked)

    async with PubSub("memory:") as pubsub:
        topic = await pubsub.topic("t").create()
        subscription = await topic.subscription("s").create(**OPTIONS)
        for part in split(pairs, 1_000):
            await topic.publish_many([Message(data, ordering_key=key) for key, data in part])
        watch.start()
        subscription.on("message", handle).open()
        with contextlib.suppress(TimeoutError):
            await (await asyncio.wait_for(last, PATIENCE_SECONDS))
        run = watch.stop(len(pairs))
        check_acked(await subscription.metrics())
    check_order(received, len(pairs))
    return run


async def _bare_asyncio(pairs: list[Pair], wait: float, watch: Stopwatch) -> Run:
    received: list[bytes] = []
    queues: dict[str, asyncio.Queue[bytes]] = {}
    for key, data in pairs:
        queues.setdefault(key, asyncio.Queue()).put_nowait(data)

    async def consume(messages: asyncio.Queue[bytes]) -> None:
        for _ in range(messages.qsize()):
            data = await messages.get()
            await asyncio.sleep(wait)
            received.append(data)

    watch.start()
    await asyncio.gather(*map(consume, queues.values()))
    run = watch.stop(len(pairs))
    check_order(received, len(pairs))
    return run
