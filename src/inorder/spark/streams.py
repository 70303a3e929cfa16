"""A stream through an operator that keeps state, from its DataFrame to a query.

The operator owns the query's `foreachBatch`: so its state and Spark's checkpoint go forward together, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from inorder.clock import Clock, SystemClock
from inorder.errors import InvalidArgument, StateRefused
from inorder.options import SLOTS, check_whole
from inorder.spark.buckets import BucketState, Manifest
from inorder.spark.folders import Folder, whole
from inorder.spark.grouped import in_groups
from inorder.spark.mapping import map_in_arrow
from inorder.spark.operations import Operation
from inorder.spark.outcomes import with_outcome
from inorder.spark.sinks.files import ParquetFolder
from inorder.spark.tasks import BUCKET, BucketTask

Sink: TypeAlias = Callable[[DataFrame, int], None]
Following: TypeAlias = Callable[[DataFrame], DataFrame]

STATE_FOLDER = "inorder"  # in the checkpoint
_LOGS = ("offsets", "commits", "sources/*")  # of Spark, in the checkpoint; in each a file for a batch


@dataclass(frozen=True, slots=True)
class OrderedStream:
    """Rows on their way through an operator. `write` or `to_parquet` says where they go."""

    rows: DataFrame
    operation: Operation
    buckets: int | None = None  # None: as many as the cluster has cores, or as the state has
    aggregated: DataFrame | None = None  # the same by an aggregation of Spark's own, if there is one
    sink: Sink | None = None
    following: tuple[Following, ...] = ()  # what is done to the outcome of a batch before the sink has it

    @property
    def schema(self) -> StructType:
        """Of the outcome, before anything follows."""
        if self.aggregated is not None:
            return StructType([StructField(field.name, field.dataType) for field in self.aggregated.schema.fields])
        return with_outcome(self.rows.schema)

    def followed_by(self, function: Following) -> OrderedStream:
        """Do something more to the outcome of each batch. What moves no rows keeps their order."""
        return replace(self, following=(*self.following, function))

    def write(self, sink: Sink) -> OrderedStream:
        """Hand the outcome of each batch to `sink(rows, batch_id)`.

        A batch may come again, after a failure, with the same rows: what is written under its id should replace what
        was. A sink that reads the rows more than once should `persist` them, or all is done more than once.
        """
        return replace(self, sink=sink)

    def to_parquet(self, path: str) -> OrderedStream:
        """Write each batch to a folder `batch_id=…` below `path`, which a batch that comes again replaces.

        The rows of a key are in order by `batch_id`, and within it in the order of the file they are in.
        """
        return self.write(ParquetFolder(path))

    def dataframe(self) -> DataFrame:
        """The same rows as a streaming DataFrame, for what only takes one: more operators, pipelines, other sinks.

        Its state is Spark's, and it is slower than `start`. Of `latest` and `merge_fields` it is an aggregation, to be
        written in the mode `update`, which also tells keys that came and have not changed. Of the others it is a value
        per bucket that each batch reads and writes whole: good for some hundred thousand keys. With a gap timeout its
        query never ends by itself, also with the trigger `availableNow`: Spark then always has one more batch to run.
        """
        outcome = self.aggregated
        if outcome is None:
            buckets = self.buckets or default_buckets(self.rows.sparkSession)
            outcome = in_groups(self.rows, self.operation, buckets)
        for function in self.following:
            outcome = function(outcome)
        return outcome

    def start(
        self,
        checkpoint: str,
        *,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        state: str | None = None,
        clock: Clock | None = None,
    ) -> StreamingQuery:
        """Start the query. `trigger` is that of Spark, such as {"availableNow": True}.

        The state lies in the checkpoint, or at `state` if the checkpoint is somewhere that only Hadoop reaches.
        """
        if self.sink is None:
            raise InvalidArgument("say where the rows go: write(function) or to_parquet(path), before start")
        checkpoint, state = whole(checkpoint), state if state is None else whole(state)
        run = _Run(self, checkpoint, state, clock)
        buckets = run.open().manifest.buckets
        bucketed = with_bucket(self.rows, self.operation.names.key, buckets)
        writer = bucketed.writeStream.foreachBatch(run).option("checkpointLocation", checkpoint)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        if name is not None:
            writer = writer.queryName(name)
        return writer.start()


class _Run:
    """The query's `foreachBatch`."""

    def __init__(self, stream: OrderedStream, checkpoint: str, state: str | None, clock: Clock | None) -> None:
        self._stream = stream
        self._checkpoint = Folder(checkpoint)
        self._folder = Folder(state if state is not None else f"{checkpoint.rstrip('/')}/{STATE_FOLDER}")
        self._clock = clock
        self._state: BucketState | None = None  # once its query is known
        self._marks: DataFrame | None = None
        self._outcome = stream.schema

    def open(self) -> BucketState:
        """The state, which must fit. Before the query first ran, nobody knows its id."""
        stream, operation = self._stream, self._stream.operation
        query = self._checkpoint.read_json("metadata")["id"] if self._checkpoint.exists("metadata") else None
        recorded = BucketState.recorded_buckets(self._folder)
        if recorded is None and self._checkpoint.sizes("commits"):
            raise StateRefused(
                self._folder.uri, f"there is none, and the checkpoint {self._checkpoint.uri} is of a query that has run"
            )
        manifest = Manifest(
            operator=operation.operator,
            buckets=stream.buckets or recorded or default_buckets(stream.rows.sparkSession),
            columns=operation.columns,
            schema={field.name: field.dataType.simpleString() for field in stream.rows.schema.fields},
            query=query,
        )
        state = BucketState(self._folder, manifest)
        state.open()
        return state

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._state is None:
            self._state = self.open()
        state, operation = self._state, self._stream.operation
        now_us = (self._clock or SystemClock()).now_us()
        pinned = state.begin(batch_id, now_us, operation.changeable)
        task = BucketTask(
            operation=replace(operation, **pinned.options),
            folder=state.folder.uri,
            buckets=state.manifest.buckets,
            batch=pinned.batch,
            now_us=pinned.now_us,
            runs=pinned.runs,
        )
        if self._marks is None:  # to make it takes a tenth of what a small batch does
            self._marks = marks(rows, state.manifest.buckets)
        outcome = map_in_arrow(in_buckets(rows, self._marks, state.manifest.buckets), task, self._outcome)
        for function in self._stream.following:
            outcome = function(outcome)
        assert self._stream.sink is not None
        self._stream.sink(outcome, batch_id)
        if state.missing(batch_id):  # the sink has not read all partitions
            outcome.write.format("noop").mode("overwrite").save()
        # Spark leaves its own files to the system. After a power cut they could be older than the state by far.
        self._checkpoint.sync("metadata", *(f"{log}/{batch}" for log in _LOGS for batch in (batch_id - 1, batch_id)))
        state.commit(pinned)


def with_bucket(rows: DataFrame, key: str, buckets: int) -> DataFrame:
    """The rows, each behind the number of its bucket."""
    quoted = f"`{key.replace('`', '``')}`"
    slot = f"shiftright(pmod(crc32(cast(cast({quoted} AS STRING) AS BINARY)) * -1640531535L, 4294967296L), 20)"
    return rows.select(F.expr(f"cast(coalesce({slot} * {buckets} div {SLOTS}, 0) AS INT)").alias(BUCKET), "*")


def marks(bucketed: DataFrame, buckets: int) -> DataFrame:
    """A row for each bucket that only names it, to go with rows like these."""
    return bucketed.sparkSession.range(0, buckets, 1, 1).select(
        F.expr("cast(-1 - id AS INT)").alias(BUCKET),
        *(F.lit(None).cast(field.dataType).alias(field.name) for field in bucketed.schema.fields[1:]),
    )


def in_buckets(bucketed: DataFrame, marks: DataFrame, buckets: int) -> DataFrame:
    """Each bucket in a partition, with its mark: so there is a task for it although nothing came."""
    return bucketed.union(marks).repartitionById(buckets, F.expr(f"if({BUCKET} < 0, -1 - {BUCKET}, {BUCKET})"))


def default_buckets(spark: SparkSession) -> int:
    """About the cores of the cluster."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # Spark Connect has no context
        raise InvalidArgument("buckets: over Spark Connect, say how many; about as many as the cores") from None


def check_buckets(buckets: int | None) -> None:
    if buckets is not None:
        check_whole("buckets", buckets)
        if buckets > SLOTS:
            raise InvalidArgument(f"buckets: up to {SLOTS}, not {buckets}")
