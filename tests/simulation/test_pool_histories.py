"""The worker pool keeps its promises whatever the items do and whenever somebody leaves: generated, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.clock import MICROSECONDS
from inorder.pool import Autoscale, ItemError, ItemGap, ItemTimeout, Outputs, PoolMetrics, Results, Retry, WorkerPool
from inorder.testing import ManualClock, run_virtually


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Items that are skipped are what these tests are about."""
    caplog.set_level(logging.CRITICAL, logger="inorder")


# -- what may happen ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """An input, and what the function does with it."""

    index: int
    tenths: int  # of a second, for each attempt
    failures: int  # attempts that fail before one does not
    outputs: int  # 1: a plain value
    key: str | None
    stubborn: bool  # goes on when it is cancelled

    @property
    def seconds(self) -> float:
        return self.tenths / 10

    @property
    def answer(self) -> tuple[Any, ...]:
        return tuple((self.index, number) for number in range(self.outputs))


@dataclass(frozen=True)
class Ending:
    """How the reading ends: by itself, or by somebody."""

    how: Literal["exhausted", "drain", "stop", "cancel", "break"]
    tenths: int = 0  # when
    outputs: int = 0  # for break: after so many


@dataclass(frozen=True)
class Workload:
    items: tuple[Item, ...]
    options: dict[str, Any]
    ending: Ending
    source_tenths: tuple[int, ...]  # before each item; empty: all are at hand
    source_fails: bool
    reader_tenths: int  # after each output
    handler: Literal["none", "def", "async", "raises"]


class Boom(Exception):
    """A function failed."""


class SourceFailed(Exception):
    """So did the source."""


# No time is a multiple of another one's: who comes first is never a matter of chance.
timeouts = st.sampled_from([None, None, 0.05, 0.25, 0.65])
order_timeouts = st.sampled_from([None, None, 0.07, 0.33, 1.01])
policies = st.sampled_from(["skip", "emit", "raise"])
retries = st.builds(
    Retry,
    max_attempts=st.integers(1, 3),
    minimum_backoff=st.sampled_from([0, 0.013, 0.4]),
    maximum_backoff=st.just(0.5),
    then=policies,
)


@st.composite
def pool_options(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "preserve_order": draw(st.booleans()),
        "on_error": draw(policies | retries),
        "process_timeout": draw(timeouts),
        "buffer_size": draw(st.sampled_from([0, 0, 1, 5])),
        "metrics_interval": 0.31,
        "kind": "async",
    }
    if draw(st.booleans()):
        options["partition_key"] = lambda item: item.key
    workers = draw(st.integers(1, 5))
    if draw(st.booleans()):
        options["workers"] = workers
    else:
        smallest = draw(st.integers(1, workers))
        after = draw(st.sampled_from([0, 0.5]))
        options["autoscale"] = Autoscale(
            min_workers=smallest, max_workers=workers, interval=0.11, scale_down_after=after
        )
    if options["preserve_order"]:
        options["order_timeout"] = draw(order_timeouts)
        options["order_buffer_size"] = draw(st.none() | st.integers(workers, 2 * workers + 3))
    return options


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(0, 20))
    tenths = st.sampled_from([0, 0, 1, 2, 5, 20])
    items = tuple(
        Item(
            index,
            draw(tenths),
            draw(st.sampled_from([0, 0, 0, 1, 2, 99])),
            draw(st.sampled_from([1, 1, 1, 0, 2, 3])),
            draw(st.sampled_from([None, "a", "b", "c"])),
            draw(st.sampled_from([False, False, True])),
        )
        for index in range(count)
    )
    options = draw(pool_options())
    ending = draw(
        st.just(Ending("exhausted"))
        | st.builds(Ending, st.sampled_from(["drain", "stop", "cancel"]), tenths=st.integers(0, 30))
        | st.builds(Ending, st.just("break"), outputs=st.integers(1, 10))
    )
    waits = draw(st.just(()) | st.lists(tenths, min_size=count, max_size=count).map(tuple))
    return Workload(
        items,
        options,
        ending,
        waits,
        bool(waits) and draw(st.booleans()),
        draw(st.sampled_from([0, 0, 0, 1, 7])),
        draw(st.sampled_from(["none", "def", "async", "raises"])),
    )


# -- what happens ------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """One pass through a pool, seen from all sides."""

    load: Workload
    clock: ManualClock = field(default_factory=ManualClock)
    produced: list[Item] = field(default_factory=list)
    received: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    left: list[Item] | None = None  # what was told to whoever ended it
    told: list[tuple[Item, BaseException]] = field(default_factory=list)
    metrics: list[PoolMetrics] = field(default_factory=list)
    running: dict[int, Item] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    completed: set[int] = field(default_factory=set)
    begun: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    results: Results[Any] = field(init=False)

    def __post_init__(self) -> None:
        handler = {"none": None, "def": self.handle, "async": self.handle_slowly, "raises": self.handle_badly}
        self.pool: WorkerPool[Any] = WorkerPool(
            self.work,
            clock=self.clock,
            on_metrics=self.metrics.append,
            error_handler=handler[self.load.handler],
            **self.load.options,
        )

    async def work(self, item: Item) -> Any:
        assert item.index not in self.running, "one item, twice at once"
        assert len(self.running) < self.pool.options.max_workers, "more at work than there are workers"
        if self.keyed and item.key is not None:
            assert all(other.key != item.key for other in self.running.values()), "two of a key at once"
            if not self.attempts[item.index]:
                self.begun[item.key].append(item.index)
        self.running[item.index] = item
        self.attempts[item.index] += 1
        try:
            await self.take_time(item)
            if self.attempts[item.index] <= item.failures:
                raise Boom(item.index)
            self.completed.add(item.index)
            return item.answer[0] if item.outputs == 1 else Outputs(item.answer)
        finally:
            del self.running[item.index]

    async def take_time(self, item: Item) -> None:
        until_us = self.clock.now_us() + round(item.seconds * MICROSECONDS)
        while self.clock.now_us() < until_us:
            try:
                await asyncio.sleep((until_us - self.clock.now_us()) / MICROSECONDS)
            except asyncio.CancelledError:
                if not item.stubborn:
                    raise

    @property
    def keyed(self) -> bool:
        return self.pool.options.partition_key is not None

    def handle(self, item: Item, error: BaseException) -> None:
        self.told.append((item, error))

    async def handle_slowly(self, item: Item, error: BaseException) -> None:
        self.told.append((item, error))
        await asyncio.sleep(0.3)

    def handle_badly(self, item: Item, error: BaseException) -> None:
        self.told.append((item, error))
        raise ValueError("the handler failed")

    async def source(self) -> AsyncIterator[Item]:
        for item, tenths in zip(self.load.items, self.load.source_tenths, strict=True):
            await asyncio.sleep(tenths / 10)
            self.produced.append(item)
            yield item
        if self.load.source_fails:
            raise SourceFailed

    async def run(self) -> None:
        self.results = self.pool.map(self.source() if self.load.source_tenths else self.load.items)
        loop, ending = asyncio.get_running_loop(), self.load.ending
        reader = asyncio.create_task(self.read())
        if ending.how in ("drain", "stop", "cancel"):
            act = {"drain": self.results.drain, "stop": self.stop, "cancel": reader.cancel}[ending.how]
            loop.call_later(ending.tenths / 10 + 0.003, lambda: None if reader.done() else act())
        try:
            await reader
        except asyncio.CancelledError:
            assert ending.how == "cancel"
        except (Boom, ItemTimeout, SourceFailed) as error:
            self.error = error
        if self.left is None and ending.how != "exhausted":
            self.stop()
        if not self.load.source_tenths:
            self.produced = list(self.load.items[: self.results.metrics().taken])

    def stop(self) -> None:
        self.left = self.results.stop()

    async def read(self) -> None:
        outputs = aiter(self.results)
        try:
            async for output in outputs:
                self.received.append(output)
                room = self.pool.options.window + self.pool.options.buffer_size
                assert self.results.metrics().window_used <= room, "more inside than there is room for"
                if self.load.ending.how == "break" and len(self.received) >= self.load.ending.outputs:
                    break
                await asyncio.sleep(self.load.reader_tenths / 10)
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]


# -- what should happen ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What a plain loop would make of one item."""

    outputs: tuple[Any, ...]
    error: type[BaseException] | None
    attempts: int
    timed_out: int


def expected(item: Item, options: Any) -> Expected:
    limit = options.retry.max_attempts if options.retry else 1
    timed_out = 0
    error: type[BaseException] = Boom
    for attempt in range(1, limit + 1):
        late = options.process_timeout is not None and item.seconds > options.process_timeout
        fails = attempt <= item.failures
        if not fails and (not late or item.stubborn):  # a result that came too late is a result
            return Expected(item.answer, None, attempt, timed_out)
        timed_out += late
        error = ItemTimeout if late else Boom
    return Expected((), error, limit, timed_out)


class Judge:
    """Compares what was observed with what should have happened."""

    def __init__(self, seen: Observed) -> None:
        self.seen = seen
        self.options = seen.pool.options
        self.expected = {item.index: expected(item, self.options) for item in seen.load.items}
        self.whole: set[int] = set()  # items of which everything was received
        self.gaps: set[int] = set()

    def judge(self) -> None:
        self.judge_outputs()
        self.judge_end()
        self.judge_what_is_left()
        self.judge_execution()
        self.judge_metrics()

    def outputs_of(self, index: int) -> list[Any]:
        wanted = self.expected[index]
        if wanted.error is not None and self.options.when_failed == "emit":
            return [(index, wanted.error, wanted.attempts)]
        return list(wanted.outputs)

    def judge_outputs(self) -> None:
        received = [self.plain(output) for output in self.seen.received]
        while received:
            index = received[0][0]
            if received[0][1] == "gap":
                self.gaps.add(index)
                part = received[:1]
            else:
                wanted = self.outputs_of(index)
                part = received[: len(wanted)]
                assert part == wanted[: len(part)]
                if len(part) < len(wanted):
                    assert self.seen.load.ending.how in ("stop", "cancel", "break"), "outputs of an item are missing"
                    self.check_place(index)
                    return
            self.check_place(index)
            self.whole.add(index)
            received = received[len(part) :]

    def plain(self, output: Any) -> tuple[Any, ...]:
        if isinstance(output, ItemGap):
            assert self.options.order_timeout is not None
            assert output == ItemGap(
                "", output.item.index, output.item.index, 1, "order_timeout", self.seen.load.items[output.item.index]
            )
            return (output.item.index, "gap")
        if isinstance(output, ItemError):
            assert output.item is self.seen.load.items[output.index]
            return (output.index, type(output.error), output.attempts)
        return output  # type: ignore[no-any-return]

    def check_place(self, index: int) -> None:
        """Everything before it was received, if there was anything, and none of it was."""
        assert index not in self.whole, "the same item came out twice"
        if self.options.preserve_order:
            before = {number for number in range(index) if self.outputs_of(number)}
            assert before <= self.whole, "overtaken, or lost"
            assert all(number <= index for number in self.whole), "out of order"

    def judge_end(self) -> None:
        seen, how = self.seen, self.seen.load.ending.how
        raising = [
            item.index
            for item in seen.produced
            if self.options.when_failed == "raise" and self.expected[item.index].error and item.index not in self.gaps
        ]
        if isinstance(seen.error, Boom | ItemTimeout):
            assert raising
            if self.options.preserve_order:
                assert type(seen.error) is self.expected[raising[0]].error
                assert max(self.whole, default=-1) < raising[0]
                self.complete(range(raising[0]))
        elif how in ("exhausted", "drain"):
            assert not raising, "an error was not raised"
            self.complete(item.index for item in seen.produced)
            if how == "exhausted":
                assert len(seen.produced) == len(seen.load.items)
                assert isinstance(seen.error, SourceFailed) == seen.load.source_fails

    def complete(self, indices: Any) -> None:
        for index in indices:
            assert index in self.whole or not self.outputs_of(index), "lost"

    def judge_what_is_left(self) -> None:
        """A forced stop tells every input that was taken and not put out, in order."""
        seen = self.seen
        if seen.left is None:
            return
        left = [item.index for item in seen.left]
        assert left == sorted(set(left))
        assert not self.whole.intersection(left), "put out, and said to be left"
        for item in seen.produced:
            if item.index in self.whole or item.index in left:
                continue
            assert not self.outputs_of(item.index), "neither put out nor left"
            assert self.seen.attempts[item.index], "neither worked on nor left"

    def judge_execution(self) -> None:
        for key, begun in self.seen.begun.items():
            assert begun == sorted(begun), f"{key} began out of order"
        for index, attempts in self.seen.attempts.items():
            assert attempts <= self.expected[index].attempts
        assert not self.seen.running

    def judge_metrics(self) -> None:
        seen, last, autoscale = self.seen, self.seen.results.metrics(), self.options.autoscale
        for metrics in (*seen.metrics, last):
            assert metrics.busy + metrics.idle + metrics.blocked == metrics.workers <= self.options.max_workers
            assert metrics.workers >= (autoscale.min_workers if autoscale else self.options.max_workers)
            assert metrics.window_used <= metrics.window + self.options.buffer_size
            assert metrics.buffered_results <= metrics.window_used == metrics.taken - metrics.emitted
        assert last.taken == len(seen.produced)
        assert last.gaps >= len(self.gaps)
        told = Counter(item.index for item, _ in seen.told)
        assert not told or max(told.values()) == 1, "an error was told twice"
        for item, error in seen.told:
            assert type(error) is self.expected[item.index].error
        if seen.load.ending.how != "exhausted" or isinstance(seen.error, Boom | ItemTimeout) or last.gaps:
            return
        wanted = self.expected.values()
        assert last.emitted == last.taken
        assert last.retries == sum(one.attempts - 1 for one in wanted)
        assert last.failed == sum(one.error is not None for one in wanted)
        assert last.timed_out == sum(one.timed_out for one in wanted)
        assert seen.load.handler == "none" or len(told) == last.failed
        assert last.late_results == 0


def check(load: Workload) -> None:
    seen = Observed(load)
    run_virtually(seen.run(), seen.clock, limit_seconds=600)
    Judge(seen).judge()
    assert seen.clock.next_due_us() is None, "a timer is left"


@given(workloads())
@settings(max_examples=10 * settings().max_examples, report_multiple_bugs=False)
def test_a_pool_does_what_a_plain_loop_would(load: Workload) -> None:
    check(load)
