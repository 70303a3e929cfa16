"""Rows become messages: staged by the tasks, committed by the driver, published by the owner of the folder.

A task writes parts that nobody else knows, so one that is tried again, or runs twice, harms nobody: the driver
commits the parts of the attempts that Spark counts. An epoch, which is a batch of a query, is committed once and
published once, however often it is replayed. Rows of one task keep their order, tasks follow each other in the
order of their partitions, epochs in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.journal.columns import in_utf8
from inorder.journal.incoming import check_writer
from inorder.options import check_name, check_whole
from inorder.spark.addresses import check_one_url, check_url
from inorder.spark.staging import open_staging
from inorder.spark.topics import check_topic

OPTIONS = ("url", "topic", "writer", "epoch")
COLUMNS = {"data": "BINARY or STRING", "ordering_key": "STRING", "attributes": "MAP<STRING, STRING>"}

# Where Spark tells a task which query it works for, and which batch of it.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a sink can be told, checked."""

    url: str
    topic: str
    writer: str | None  # None: the query, or a new one for each write
    epoch: int | None = None  # of a write in foreachBatch: the batch; None: a table, or the batch of the query

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        check_one_url(given)
        known = {name.lower(): name for name in (*OPTIONS, "path", "checkpointLocation", "queryName")}
        options: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise InvalidArgument(f"unknown option {name!r}; there are {', '.join(OPTIONS)}")
            options["url" if name.lower() == "path" else known[name.lower()]] = value
        for name in ("url", "topic"):
            if not options.get(name):
                raise InvalidArgument(f"option {name!r} is missing")
        check_url(options["url"])
        epoch = options.get("epoch")
        if epoch is not None:
            if not epoch.isdecimal():
                raise InvalidArgument(f"epoch: the number of a batch, not {epoch!r}")
            check_whole("epoch", int(epoch), at_least=0)
        if options.get("writer") is not None:
            check_writer(options["writer"])
        return cls(
            url=options["url"],
            topic=check_name("topic", options["topic"]),
            writer=options.get("writer"),
            epoch=None if epoch is None else int(epoch),
        )


def check_schema(schema: StructType) -> None:
    """Refuse columns that are no part of a message, and a table without data."""
    names = {field.name: field.dataType.simpleString() for field in schema.fields}
    allowed = {"data": ("binary", "string"), "ordering_key": ("string",), "attributes": ("map<string,string>",)}
    for name, kind in names.items():
        if name not in COLUMNS:
            raise InvalidArgument(f"column {name!r} is no part of a message: select {', '.join(COLUMNS)}")
        if kind not in allowed[name]:
            raise InvalidArgument(f"column {name!r}: {COLUMNS[name]}, not {kind}")
    if "data" not in names:
        raise InvalidArgument("column 'data' is missing")


@dataclass
class Staged(WriterCommitMessage):
    """What a task has written."""

    writer: str
    partition: int
    parts: tuple[str, ...]


class _Staging:
    """What both writers do alike."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema)
        check_topic(options.url, options.topic)
        self._options = options

    def _stage(self, writer: str, epoch: int, iterator: Iterator[pa.RecordBatch]) -> Staged:
        with open_staging(self._options.url, self._options.topic) as staging:
            parts = staging.stage(writer, epoch, map(in_utf8, iterator))
        return Staged(writer, _context().partitionId(), tuple(parts))

    def _commit(self, epoch: int, messages: list[Any]) -> None:
        staged = sorted((message for message in messages if message is not None), key=lambda one: one.partition)
        if staged:
            with open_staging(self._options.url, self._options.topic) as staging:
                staging.commit(staged[0].writer, epoch, [part for one in staged for part in one.parts])

    def _abort(self, epoch: int, messages: list[Any]) -> None:
        """Remove what was staged; but not if the commit took effect, and only its answer was lost."""
        staged = [message for message in messages if message is not None]
        if staged:
            with open_staging(self._options.url, self._options.topic) as staging:
                staging.discard(staged[0].writer, epoch, [part for one in staged for part in one.parts])


class StreamSink(_Staging, DataSourceStreamArrowWriter):
    """For `writeStream`: the epochs are the batches of the query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        batch = _context().getLocalProperty(BATCH_ID)
        if batch is None:
            raise FailedPrecondition("this version of Spark does not tell a task its batch")
        return self._stage(self._options.writer or _of_query(), int(batch), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._commit(batchId, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._abort(batchId, messages)


class TableSink(_Staging, DataSourceArrowWriter):
    """For `write`: one epoch, of a writer of its own; or, within `foreachBatch`, the epoch of a query that is named."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._epoch = options.epoch or 0
        of_query = options.epoch is not None
        self._writer = options.writer or (None if of_query else f"spark-{uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._stage(self._writer or _of_query(), self._epoch, iterator)

    def commit(self, messages: list[Any]) -> None:
        self._commit(self._epoch, messages)

    def abort(self, messages: list[Any]) -> None:
        self._abort(self._epoch, messages)


def _of_query() -> str:
    """The writer that a query is: its id is that of its checkpoint."""
    query = _context().getLocalProperty(QUERY_ID)
    if query is None:
        raise FailedPrecondition("there is no query to name the writer after: give the option writer with epoch")
    return f"spark-{query}"


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
