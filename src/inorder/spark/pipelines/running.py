"""A pipeline as it runs: started, watched batch by batch, and ended between two batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.patterns.step import DUPLICATE, GAP, LATE, QUARANTINED, STALE
from inorder.spark.counts import Counts, last_counts
from inorder.spark.folders import Folder
from inorder.spark.pipelines.building import Built
from inorder.spark.pipelines.definition import Trigger
from inorder.spark.reasons import reason
from inorder.spark.streams import STATE_FOLDER, OrderedStream

LOOK_SECONDS: Final = 0.2
TOLD_FATES: Final = (GAP, LATE, DUPLICATE, STALE, QUARANTINED)  # what a reader wants to know of; the rest went well


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch that is done."""

    batch: int
    rows: int  # that came
    seconds: float
    counts: Counts | None = None  # of an operator that keeps state, if they are still there

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class PipelineFailed(FailedPrecondition):
    """A batch could not be done. What was done before it stays, and another run goes on there."""


class Run:
    """A run of a pipeline. `stop` may be called by any thread, and by a signal."""

    def __init__(self, built: Built, trigger: Trigger | None = None) -> None:
        self._built = built
        self._trigger = trigger
        self._stops = 0  # how often it was asked to
        self._told = -1  # the last batch

    @property
    def stopping(self) -> bool:
        return self._stops > 0

    @property
    def at_once(self) -> bool:
        return self._stops > 1

    def stop(self) -> None:
        """End after the batch that runs; called again, at once."""
        self._stops += 1

    def watch(self, tell: Callable[[Progress], object]) -> None:
        """Run until the end: that of the rows, or `stop`."""
        query = self._started()
        try:
            self._until_the_end(query, tell)
            stopped = query.isActive
            if stopped:
                query.stop()
            self._tell(query, tell)
            if not stopped and (error := query.exception()) is not None:
                raise PipelineFailed(f"batch {self._told + 1} failed: {reason(error)}") from None
        finally:
            if query.isActive:
                query.stop()

    def _started(self) -> StreamingQuery:
        try:
            return self._built.start(self._trigger)
        except PySparkException as error:
            raise InvalidArgument(f"the pipeline does not start: {reason(error)}") from error

    def _until_the_end(self, query: StreamingQuery, tell: Callable[[Progress], object]) -> None:
        last: int | None = None  # when it was to stop
        while query.isActive:
            with suppress(StreamingQueryException):  # told at the end, with what came before
                query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type] # which takes parts of a second too
            self._tell(query, tell)
            if self.stopping:
                last = self._told if last is None else last
                if self.at_once or self._told > last or not query.status["isTriggerActive"]:
                    return

    def _tell(self, query: StreamingQuery, tell: Callable[[Progress], object]) -> None:
        new = [*_done(query.recentProgress, self._told)]
        counts = self._last_counts() if new else None
        for batch, rows, seconds in new:
            of_it = counts[1] if counts is not None and counts[0] == batch else None
            tell(Progress(batch, rows, seconds, of_it))
            self._told = batch

    def _last_counts(self) -> tuple[int, Counts] | None:
        if not isinstance(self._built.stream, OrderedStream):
            return None
        pipeline = self._built.pipeline
        return last_counts(Folder(pipeline.state or f"{pipeline.checkpoint.rstrip('/')}/{STATE_FOLDER}"))


def _done(progress: list[Any], told: int) -> Iterator[tuple[int, int, float]]:
    for one in progress:
        # While nothing happens Spark tells so, under the number of a batch that is still to come.
        if one["batchId"] > told and "addBatch" in one["durationMs"]:
            yield one["batchId"], one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000
