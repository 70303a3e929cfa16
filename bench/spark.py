"""The operators on Spark, against the least that any of them could do: a shuffle by key and a sort, without state.

Rows are files of Parquet, a few per micro-batch; what comes out is thrown away. Disordered rows are up to some
thousand places from where they belong. "by entity" is a resequencer written with `transformWithState`, the API that
Spark has for such things, with a state per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.spark_rows import ALL, CORES, FAR, MISSING, Rows, Timed, nowhere, session

WARM_UP = 3  # rounds until Java has compiled what all of them use
FEW_KEYS, MANY_KEYS = 10_000, 100_000

AS_FAST = Target(0.75)
BY_ENTITY = Target(4)
HALF = Target(0.5)

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def measure(effort: Effort) -> Iterator[Table]:
    if find_spec("pyspark") is None:
        yield Table("Spark", "rows/s", [Row("operators", (), missing=MISSING)])
        return
    count, batches = effort.of(1_000_000, 60_000), effort.of(5, 2)
    with session() as spark:
        for keys in (FEW_KEYS, MANY_KEYS):
            with Rows(spark, count, keys, batches) as rows:
                yield _streams(rows, effort)
                yield _tables(rows, effort)
                if keys == FEW_KEYS:
                    yield _by_entity(rows, effort)


def _streams(rows: Rows, effort: Effort) -> Table:
    ours = {
        "resequence": partial(_ordered, rows, _resequenced),
        "latest": partial(_ordered, rows, _latest),
        "merge_fields": partial(_ordered, rows, _merged),
    }
    runs = interleaved({**ours, "sort": partial(_sorted, rows)}, effort, warm_up=effort.of(WARM_UP, 1))
    rates = {name: [run.rate for run in found] for name, found in runs.items()}
    return Table(
        f"{_title(rows)}, against a shuffle and a sort",
        "rows/s",
        [Row(name, rates[name], rates["sort"], AS_FAST) for name in ours],
        [
            f"{CORES} cores; a micro-batch and the start of a query are part of it, the first {WARM_UP} rounds are not",
            "rows go to Python by number, not by size: spark.sql.execution.arrow.maxBytesPerBatch, see docs/spark.md",
            *(f"{name}: a batch in {number(runs[name][-1].typical_ms)} ms" for name in (*ours, "sort")),
            *(f"{name}: {number(runs[name][-1].state_bytes / 1e6)} MB of state in two versions" for name in ours),
        ],
    )


def _title(rows: Rows) -> str:
    return f"Spark, streams: {rows.rows:,} rows of {rows.keys:,} keys in {rows.batches} batches"


def _by_entity(rows: Rows, effort: Effort) -> Table:
    has_protobuf = find_spec("google") is not None and find_spec("google.protobuf") is not None
    if has_protobuf:
        both = {"ours": partial(_ordered, rows, _resequenced), "by entity": partial(_resequenced_by_entity, rows)}
        rates = {name: [run.rate for run in found] for name, found in interleaved(both, effort).items()}
        row = Row("resequence", rates["ours"], rates["by entity"], BY_ENTITY)
    else:
        missing = "protobuf, which transformWithState needs; make bench-peers installs it"
        row = Row("resequence", (), missing=missing)
    return Table(f"{_title(rows)}, against transformWithState keyed by entity", "rows/s", [row])


def _resequenced(stream: Any) -> Any:
    from inorder.spark import resequence

    return resequence(stream, key="key", sequence="number", position="position", capacity=FAR)


def _latest(stream: Any) -> Any:
    from inorder.spark import latest

    return latest(stream, key="key", time="position", value="value")


def _merged(stream: Any) -> Any:
    from inorder.spark import merge_fields

    owns = {"a": ["value"], "b": ["number"]}
    return merge_fields(stream, key="key", event_type="kind", time="position", owns=owns)


def _ordered(rows: Rows, make: Callable[[Any], Any]) -> Timed:
    ordered = make(rows.stream()).write(nowhere)
    return rows.run(lambda checkpoint: ordered.start(checkpoint, trigger=ALL))


def _sorted(rows: Rows) -> Timed:
    def write(batch: Any, batch_id: int) -> None:
        nowhere(batch.repartition(CORES, "key").sortWithinPartitions("key", "number"))

    return rows.run(partial(_started, rows.stream().writeStream, write))


def _resequenced_by_entity(rows: Rows) -> Timed:
    from bench.peers.spark_by_entity import resequenced_by_entity

    rows.spark.conf.set(PROVIDER, ROCKS_DB)  # which transformWithState needs, and nobody else is to pay for
    try:
        return rows.run(partial(_started, resequenced_by_entity(rows.stream()).writeStream, nowhere))
    finally:
        rows.spark.conf.unset(PROVIDER)


def _started(writer: Any, write: Callable[[Any, int], None], checkpoint: str) -> Any:
    return writer.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(**ALL).start()


def _tables(rows: Rows, effort: Effort) -> Table:
    from inorder.spark import resequence

    def ours() -> float:
        return rows.written(resequence(rows.table(), key="key", sequence="number", position="position"))

    def plain() -> float:
        return rows.written(rows.table().repartition(CORES, "key").sortWithinPartitions("key", "number"))

    rates = interleaved({"ours": ours, "sort": plain}, effort)
    return Table(
        f"Spark, a table of {rows.rows:,} rows of {rows.keys:,} keys, against a shuffle and a sort",
        "rows/s",
        [Row("resequence", rates["ours"], rates["sort"], HALF)],
    )
