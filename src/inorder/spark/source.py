"""The Spark data source `inorder`: a topic as a table, and as a stream.

An offset is the position up to which everything was read, so a batch can be read again, by anybody, any number of
times. With `tickSeconds` the offset also counts time: then a batch comes although no message does, which is what
gap timeouts need.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from inorder.clock import MICROSECONDS
from inorder.errors import DataLoss, FailedPrecondition, InvalidArgument
from inorder.options import SLOTS, check_number, check_whole
from inorder.spark.addresses import check_one_url, check_url
from inorder.spark.bounds import Bounds
from inorder.spark.sink import SinkOptions, StreamSink, TableSink
from inorder.spark.topics import TopicReader, open_topic, read

DEFAULT_PARTITIONS = 2
MAX_TICK_SECONDS = 365 * 86_400
ROWS_PER_PARTITION = 100_000  # below that, another task costs more than it saves

SPARK_SCHEMA = (
    "position BIGINT NOT NULL, ordering_key STRING, data BINARY, attributes MAP<STRING, STRING>, "
    "publish_time TIMESTAMP NOT NULL"
)
OPTIONS = (
    "url",
    "topic",
    "startingPosition",
    "startingTimestamp",
    "endingPosition",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "partitions",
    "partitionBy",
    "failOnDataLoss",
    "tickSeconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a source can be told, checked."""

    url: str
    topic: str
    starting_position: int | None  # None: the oldest there is
    starting_time_us: int | None
    ending_position: int | None
    max_rows: int | None
    max_bytes: int | None
    partitions: int
    by_key: bool
    fail_on_data_loss: bool
    tick_us: int | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """From the options of a DataFrameReader, whose names Spark does not tell apart by case."""
        check_one_url(given)
        known = {name.lower(): name for name in OPTIONS}
        options: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() == "path":
                name = "url"
            if name.lower() not in known:
                raise InvalidArgument(f"unknown option {name!r}; there are {', '.join(OPTIONS)}")
            options[known[name.lower()]] = value
        for name in ("url", "topic"):
            if not options.get(name):
                raise InvalidArgument(f"option {name!r} is missing")
        check_url(options["url"])
        if "startingPosition" in options and "startingTimestamp" in options:
            raise InvalidArgument("startingPosition and startingTimestamp: give one of them, not both")
        by = options.get("partitionBy", "position")
        if by not in ("position", "key"):
            raise InvalidArgument(f"partitionBy: 'position' or 'key', not {by!r}")
        tick = _number(options, "tickSeconds", float)
        if tick is not None:
            check_number("tickSeconds", tick, above=0, up_to=MAX_TICK_SECONDS)
        return cls(
            url=options["url"],
            topic=options["topic"],
            starting_position=_position(options.get("startingPosition")),
            starting_time_us=_time_us(options.get("startingTimestamp")),
            ending_position=_whole(options, "endingPosition", 0),
            max_rows=_whole(options, "maxRowsPerTrigger", 1),
            max_bytes=_whole(options, "maxBytesPerTrigger", 1),
            partitions=_whole(options, "partitions", 1) or DEFAULT_PARTITIONS,
            by_key=by == "key",
            fail_on_data_loss=_flag(options, "failOnDataLoss", True),
            tick_us=None if tick is None else max(1, round(tick * MICROSECONDS)),
        )


class InorderSource(DataSource):
    """Registered by `inorder.spark.register(spark)`, then `spark.read.format("inorder")`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._checked: SourceOptions | None = None

    @classmethod
    def name(cls) -> str:
        return "inorder"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(SourceOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidArgument('mode("overwrite"): a topic cannot be written over; use mode("append")')
        return TableSink(SinkOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(SinkOptions.of(self.options), schema)


class Part(InputPartition):
    """The work of one task."""

    def __init__(self, slice_: Any, slots: tuple[int, int] | None = None) -> None:
        super().__init__(None)
        self.slice = slice_
        self.slots = slots  # of keys: from the first, up to the second


class _Reading:
    """What both readers do in a task: nothing here but what can be pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # nothing was to be read, and Spark asks all the same
            return
        yield from read(self._options.url, partition.slice, partition.slots)

    def _parts(self, topic: TopicReader, first: int, end: int) -> list[InputPartition]:
        options = self._options
        if not options.by_key:
            count = min(options.partitions, max(1, (end - first) // ROWS_PER_PARTITION))
            return [Part(tuple(one)) for one in topic.slices(first, end, count)]
        # Each task goes over everything and keeps its keys: so a key is in one task, and in order.
        count = min(options.partitions, SLOTS)  # of which there are no more to share
        return [
            Part(tuple(whole), (SLOTS * part // count, SLOTS * (part + 1) // count))
            for whole in topic.slices(first, end, 1)
            for part in range(count)
        ]

    def _start(self, topic: TopicReader, bounds: Bounds) -> int:
        options = self._options
        if options.starting_time_us is not None:
            return topic.position_at(options.starting_time_us)
        if options.starting_position is None:
            return bounds.begin
        return bounds.end if options.starting_position < 0 else options.starting_position


class TableReader(_Reading, DataSourceReader):
    """A topic as it was when the query began."""

    def partitions(self) -> Sequence[InputPartition]:
        topic = open_topic(self._options.url, self._options.topic)
        bounds = topic.bounds()
        end = bounds.end if self._options.ending_position is None else min(self._options.ending_position, bounds.end)
        first = self._start(topic, bounds)
        if not self._options.fail_on_data_loss:
            first = max(first, bounds.begin)
        return self._parts(topic, first, end)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A topic as it grows."""

    def __init__(self, options: SourceOptions) -> None:
        if options.ending_position is not None:
            raise InvalidArgument("endingPosition: a table ends somewhere, and a stream goes on; stop its query there")
        super().__init__(options)
        self._opened: TopicReader | None = None
        self._last_end: int | None = None  # with the trigger availableNow: no further than that

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # tasks need no journal of their own

    def _topic(self) -> TopicReader:
        if self._opened is None:
            self._opened = open_topic(self._options.url, self._options.topic)
        return self._opened

    def initialOffset(self) -> dict[str, int]:
        topic = self._topic()
        bounds = topic.bounds()
        position = self._start(topic, bounds)
        return {**_offset(bounds, position, 0), "began": position}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_end = self._topic().bounds().end

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        topic = self._topic()
        bounds = self._bounds(topic, start)
        end = bounds.end if self._last_end is None else self._last_end
        first = self._first(start["position"], bounds)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            end, max_bytes = min(end, first + limit.max_rows), self._options.max_bytes  # Spark asks for one limit alone
        if max_bytes is not None:
            end = min(end, topic.position_after(first, max_bytes))
        tick = start["tick"]
        if self._options.tick_us is not None and self._last_end is None:
            tick = time.time_ns() // 1000 // self._options.tick_us
        return {**_offset(bounds, max(end, first), tick), "began": start.get("began", start["position"])}

    def reportLatestOffset(self) -> dict[str, int]:
        bounds = self._topic().bounds()
        return _offset(bounds, bounds.end, 0)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        topic = self._topic()
        bounds = self._bounds(topic, end)
        # Of its first batch, Spark notes the end alone. If that comes again, the start is what it would be today: the
        # latest is another one, and so is the earliest once retention has passed the one from which it was planned.
        planned = start["position"] if start.get("began") == end.get("began") else end.get("began", start["position"])
        first = self._first(planned, bounds)
        if end["position"] <= first:
            return []
        self._first(end["position"], bounds)  # a batch that was planned before, and may have been read
        return self._parts(topic, first, end["position"])

    def _bounds(self, topic: TopicReader, start: Mapping[str, int]) -> Bounds:
        bounds = topic.bounds()
        known_us = start.get("created_us", 0), bounds.created_us  # older releases, of us or of a server, lack it
        if start["topic"] != bounds.serial or (all(known_us) and known_us[0] != known_us[1]):
            raise FailedPrecondition(
                f"topic {self._options.topic!r} was deleted and created again since the checkpoint was written, "
                "or is that of another folder; start a new query with a new checkpoint"
            )
        return bounds

    def _first(self, position: int, bounds: Bounds) -> int:
        if position > bounds.end and position != self._options.starting_position:
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"topic {self._options.topic!r} ends before position {bounds.end}, and the query has read up to "
                    f"{position}: it was set back, by a repair or from a copy, so what comes next would be taken for "
                    "read; start with a new checkpoint, or option failOnDataLoss=false goes on at its end"
                )
            return bounds.end
        if position >= bounds.begin:
            return position
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"topic {self._options.topic!r}: positions {position} to {bounds.begin - 1} are no longer retained, "
                "and the query has not read them; option failOnDataLoss=false goes on without them"
            )
        return bounds.begin


def _offset(bounds: Bounds, position: int, tick: int) -> dict[str, int]:
    return {"topic": bounds.serial, "created_us": bounds.created_us, "position": position, "tick": tick}


def _number(options: Mapping[str, str], name: str, kind: type[Any]) -> Any:
    if name not in options:
        return None
    try:
        return kind(options[name])
    except ValueError:
        raise InvalidArgument(f"{name}: a number, not {options[name]!r}") from None


def _whole(options: Mapping[str, str], name: str, at_least: int) -> int | None:
    value = _number(options, name, int)
    if value is not None:
        check_whole(name, value, at_least=at_least)
    return value  # type: ignore[no-any-return]


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"{name}: true or false, not {options[name]!r}")
    return value == "true"


def _position(value: str | None) -> int | None:
    """A position; "earliest" is None, and "latest" is -1."""
    if value is None or value == "earliest":
        return None
    if value == "latest":
        return -1
    try:
        check_whole("startingPosition", int(value), at_least=0)
    except ValueError:
        raise InvalidArgument(f"startingPosition: 'earliest', 'latest' or a position, not {value!r}") from None
    return int(value)


def _time_us(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidArgument(
            f"startingTimestamp: a time as ISO 8601 writes it, such as 2026-01-31T12:00:00+00:00, not {value!r}"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * MICROSECONDS)
