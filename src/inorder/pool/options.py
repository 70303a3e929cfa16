"""What a pool can be told. Options are values that cannot be wrong."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from inorder.clock import SYSTEM_CLOCK, Clock
from inorder.errors import InvalidArgument
from inorder.options import MAX_SECONDS, check_call, check_choice, check_flag, check_number, check_whole
from inorder.pool.functions import is_async
from inorder.pool.metrics import PoolMetrics
from inorder.pool.scaling import Autoscale

Kind = Literal["async", "thread", "process"]
WhenFailed = Literal["skip", "emit", "raise"]

TASKS = 32  # they cost little while they wait, but whom they call has limits too


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try a failed item again, in its place, after a time that doubles; then do what `then` says."""

    max_attempts: int = 5  # the first one counts
    minimum_backoff: float = 0.1
    maximum_backoff: float = 5.0
    then: WhenFailed | None = None  # None: "skip" if there is an error_handler, else "raise"

    def __post_init__(self) -> None:
        check_whole("max_attempts", self.max_attempts)
        check_number("minimum_backoff", self.minimum_backoff, up_to=MAX_SECONDS)
        check_number("maximum_backoff", self.maximum_backoff, at_least=self.minimum_backoff, up_to=MAX_SECONDS)
        if self.then is not None:
            check_choice("then", self.then, WhenFailed)

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return min(self.maximum_backoff, self.minimum_backoff * 2.0 ** min(failures - 1, 1000))


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Everything a `WorkerPool` goes by, checked."""

    fn: Callable[..., Any]
    workers: int | None = None
    autoscale: Autoscale | None = None
    preserve_order: bool = False
    order_buffer_size: int | None = None
    partition_key: Callable[[Any], Hashable] | None = None
    order_timeout: float | None = None
    on_error: WhenFailed | Retry | None = None
    process_timeout: float | None = None
    kind: Kind | None = None
    buffer_size: int = 0
    error_handler: Callable[[Any, BaseException], object] | None = None
    on_metrics: Callable[[PoolMetrics], object] | None = None
    metrics_interval: float = 1.0
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        check_call("fn", self.fn)
        if self.kind is not None:
            check_choice("kind", self.kind, Kind)
        self._check_workers()
        self._check_order()
        self._check_errors()
        if self.process_timeout is not None:
            check_number("process_timeout", self.process_timeout, above=0, up_to=MAX_SECONDS)
        check_whole("buffer_size", self.buffer_size, at_least=0)
        if self.on_metrics is not None:
            _check_plain_call("on_metrics", self.on_metrics)
        check_number("metrics_interval", self.metrics_interval, above=0, up_to=MAX_SECONDS)
        self._check_clock()
        if self.work_kind == "process":
            _check_travels(self.fn)

    def _check_workers(self) -> None:
        if self.autoscale is not None and not isinstance(self.autoscale, Autoscale):
            raise InvalidArgument(f"autoscale: an Autoscale(...), not {self.autoscale!r}")
        if self.workers is not None:
            check_whole("workers", self.workers)
            if self.autoscale is not None:
                raise InvalidArgument("workers: a fixed number, or autoscale, but not both")

    def _check_order(self) -> None:
        check_flag("preserve_order", self.preserve_order)
        if self.partition_key is not None:
            _check_plain_call("partition_key", self.partition_key)
        if self.order_buffer_size is not None:
            check_whole("order_buffer_size", self.order_buffer_size)
            if self.preserve_order and self.order_buffer_size < self.max_workers:
                raise InvalidArgument(
                    f"order_buffer_size: at least the number of workers, {self.max_workers}, "
                    f"not {self.order_buffer_size}: the rest would never have work"
                )
        if self.order_timeout is not None:
            check_number("order_timeout", self.order_timeout, above=0, up_to=MAX_SECONDS)
            if not self.preserve_order:
                raise InvalidArgument("order_timeout: means something with preserve_order=True only")

    def _check_errors(self) -> None:
        if self.on_error is not None and not isinstance(self.on_error, Retry):
            check_choice("on_error", self.on_error, WhenFailed, or_else="a Retry(...)")
        if self.error_handler is not None:
            check_call("error_handler", self.error_handler)

    def _check_clock(self) -> None:
        """Without the time each worker would end before its first item, and the next one would take its place."""
        if isinstance(self.clock, type) or not hasattr(self.clock, "now_us"):
            raise InvalidArgument(f"clock: a clock, not {self.clock!r}")

    @property
    def work_kind(self) -> Kind:
        """Where the function runs: as a task if it is `async def`, else in threads, unless told otherwise."""
        return self.kind or ("async" if is_async(self.fn) else "thread")

    @property
    def max_workers(self) -> int:
        """How many there may be; those of an autoscale at the most."""
        if self.autoscale is not None:
            return self.autoscale.max_workers
        if self.workers is not None:
            return self.workers
        cores = os.cpu_count() or 1
        return {"async": TASKS, "thread": min(32, cores + 4), "process": cores}[self.work_kind]

    @property
    def window(self) -> int:
        """How many inputs may be inside: taken from the source, and not put out yet."""
        in_order = self.order_buffer_size if self.preserve_order else None
        return in_order or self.max_workers * 2

    @property
    def retry(self) -> Retry | None:
        return self.on_error if isinstance(self.on_error, Retry) else None

    @property
    def when_failed(self) -> WhenFailed:
        """What becomes of an item in the end."""
        told = self.on_error.then if isinstance(self.on_error, Retry) else self.on_error
        return told or ("raise" if self.error_handler is None else "skip")


def _check_plain_call(name: str, call: Callable[..., Any]) -> None:
    """Refuse also what would have to be awaited: a coroutine has a hash, so each item would have a key of its own."""
    check_call(name, call)
    if is_async(call):
        raise InvalidArgument(f"{name}: a def, not an async def: what that returns is not awaited")


def _check_travels(fn: Callable[..., Any]) -> None:
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise InvalidArgument(
            f"fn: a worker process has to import it, so it must be a function of a module, not {fn!r} ({error})"
        ) from None
