"""Logs by their address: which format it is, and in which order the events in it arrived, where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it

from inorder.errors import InvalidArgument, NotFound
from inorder.journal.reading import existing_journal
from inorder.spark import register
from inorder.spark.addresses import folder_of, shown
from inorder.spark.arrival import LINE_POSITION
from inorder.spark.folders import whole
from inorder.transport.address import is_address

_BY_ENDING = {"parquet": "parquet", "json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv"}
_PACKED = {"gz", "bz2", "zst", "snappy"}


class Log(NamedTuple):
    """A log, and the columns of its order of arrival: None where an audit finds out itself, or must be told."""

    rows: DataFrame
    position: tuple[str, ...] | None


def open_log(spark: SparkSession, source: str, kind: str | None, options: Mapping[str, str]) -> Log:
    """The log at an address; `options` are those of Spark's reader for its format."""
    kind = (kind or _kind(source)).lower()
    has_topic = "topic" in {name.lower() for name in options}
    if has_topic and kind != "inorder":
        raise InvalidArgument(f"topic: it means nothing to format {kind!r}; a broker has topics")
    if kind == "inorder":
        register(spark)
        if not has_topic:
            what = "a server" if is_address(source) else "the folder of a broker"
            raise InvalidArgument(f"{shown(source)} is {what}: name the topic")
    if kind == "kafka":
        return Log(spark.read.format(kind).options(**{"subscribe": source, **options}).load(), None)
    if ":" not in source or kind != "inorder":
        source = whole(source)  # Spark may have been started elsewhere, and reads nothing relative behind `file:`
    # Where Spark reads only some columns of CSV, it does not see that a line ends too early.
    given = {"header": "true", "columnPruning": "false", **options} if kind == "csv" else dict(options)
    if kind in ("csv", "json") and "mode" not in {name.lower() for name in options}:
        given["mode"] = "FAILFAST"  # else a line that cannot be read is an event without a key, which breaks nothing
    rows = spark.read.format(kind).options(**given).load(source)
    return _numbered(rows) if kind in ("csv", "json") else Log(rows, None)


def _numbered(rows: DataFrame) -> Log:
    """Of one file of text, the order is that of its lines. Of several, nobody knows which was first.

    Each block of the file is read by one task, from its first line to its last, so the numbers that the task gives
    rise within a block; they are given here, before anything moves the rows.
    """
    if len(rows.inputFiles()) != 1:
        return Log(rows, None)
    block, line = LINE_POSITION
    start, number = F.col("_metadata.file_block_start"), F.monotonically_increasing_id()
    return Log(rows.withColumn(block, start).withColumn(line, number), LINE_POSITION)


def _kind(source: str) -> str:
    """By the ending of the name, or by what is in the folder."""
    if is_address(source):
        return "inorder"
    if found := _BY_ENDING.get(_ending(source)):
        return found
    path = Path(folder_of(source)) if "://" not in source else Path(source)
    if path.is_dir():
        with suppress(NotFound):
            existing_journal(path)
            return "inorder"
        if (path / "_delta_log").is_dir():
            return "delta"
        found_in = {_BY_ENDING[ending] for one in path.rglob("*") if (ending := _ending(one.name)) in _BY_ENDING}
        if len(found_in) == 1:
            return found_in.pop()
    elif "://" not in source and not path.exists():
        raise NotFound(f"there is no file or folder {source}")
    raise InvalidArgument(f"{source}: cannot tell what it is; name its format, such as parquet, json, csv or inorder")


def _ending(name: str) -> str:
    parts = name.lower().rstrip("/").split(".")
    while parts and parts[-1] in _PACKED:
        parts.pop()
    return parts[-1] if len(parts) > 1 else ""
