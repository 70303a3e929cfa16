"""A pipeline as it runs: started, watched batch by batch, and ended between two batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from inorder.errors import Aborted, InvalidArgument, PipelineFailed
from inorder.spark.counts import Counts, last_counts
from inorder.spark.folders import Folder
from inorder.spark.pipelines.building import Built
from inorder.spark.pipelines.definition import Trigger
from inorder.spark.pipelines.stopping import Stop
from inorder.spark.reasons import reason
from inorder.spark.streams import STATE_FOLDER, OrderedStream

LOOK_SECONDS: Final = 0.2


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


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets batches pass until the run is to stop: so a query ends between two of them.

    Spark can only interrupt a query, and a batch that is interrupted in Python leaves pages of complaints.
    """

    stop: Stop

    REFUSED: ClassVar = "this pipeline is being stopped, so no batch begins"

    def __call__(self, rows: DataFrame) -> DataFrame:
        if self.stop.wanted:
            raise Aborted(self.REFUSED)
        return rows


class Run:
    """A run of a pipeline, until its rows end or somebody asks it to stop."""

    def __init__(self, built: Built, trigger: Trigger | None = None, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()
        self._built = built
        self._trigger = trigger
        self._told = -1  # the last batch

    def watch(self, tell: Callable[[Progress], object]) -> None:
        """Run until the end, and tell of each batch that is done."""
        if self.stop.wanted:
            return
        query = self._started()
        try:
            self._until_the_end(query, tell)
            if query.isActive:
                query.stop()
                return
            error = query.exception()
            if error is not None and Gate.REFUSED not in str(error):
                raise PipelineFailed(f"{self._last_batch()} failed: {reason(error)}") from None
        finally:
            self._tell(query, tell)
            if query.isActive:
                query.stop()

    def _started(self) -> StreamingQuery:
        try:
            return self._built.start(self._trigger, Gate(self.stop))
        except PySparkException as error:
            raise InvalidArgument(f"the pipeline does not start: {reason(error)}") from error

    def _until_the_end(self, query: StreamingQuery, tell: Callable[[Progress], object]) -> None:
        while query.isActive:
            with suppress(StreamingQueryException):  # told at the end, with what came before
                query.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type] # which takes parts of a second too
            self._tell(query, tell)
            if self.stop.at_once or (self.stop.wanted and not query.status["isTriggerActive"]):
                return

    def _tell(self, query: StreamingQuery, tell: Callable[[Progress], object]) -> None:
        new = [*_done(query.recentProgress, self._told)]
        counts = self._last_counts() if new else {}
        for batch, rows, seconds in new:
            tell(Progress(batch, rows, seconds, counts.get(batch)))
            self._told = batch

    def _last_counts(self) -> dict[int, Counts]:
        if not isinstance(self._built.stream, OrderedStream):
            return {}
        pipeline = self._built.pipeline
        folder = Folder(pipeline.state or f"{pipeline.checkpoint.rstrip('/')}/{STATE_FOLDER}")
        return last_counts(folder, after=self._told)

    def _last_batch(self) -> str:
        """The one that was begun last, as Spark notes it before it begins; or the next one, if that is done."""
        checkpoint = Folder(self._built.pipeline.checkpoint)
        begun, done = (
            max((int(name) for name in checkpoint.sizes(log) if name.isdecimal()), default=-1)
            for log in ("offsets", "commits")
        )
        return f"batch {max(begun, done + 1)}"


def _done(progress: list[Any], told: int) -> Iterator[tuple[int, int, float]]:
    for one in progress:
        # While nothing happens Spark tells so, under the number of a batch that is still to come.
        if one["batchId"] > told and "addBatch" in one["durationMs"]:
            # Their sum is there too, but not over Spark Connect.
            rows = sum(source["numInputRows"] for source in one["sources"])
            yield one["batchId"], rows, one["durationMs"]["triggerExecution"] / 1000
