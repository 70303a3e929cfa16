"""`dispatch`: the handlers of `inorder.patterns.Events`, run over rows in the order in which they stand.

It moves no row. So behind `resequence` or `apply_versions` handlers see the rows of a key in order, in the task that
put them in order. A task may run again, and its handlers with it: what they return is exactly once in what the batch
writes, and what else they do is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from inorder.errors import InvalidArgument
from inorder.message import Message
from inorder.patterns.dispatcher import Events
from inorder.patterns.step import APPLIED
from inorder.spark.mapping import map_in_arrow
from inorder.spark.outcomes import FATE
from inorder.spark.streams import OrderedStream

COLUMNS: Final = ("_event_type", "_verdict", "_reason", "_results")
_RESULTS: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final = (pa.string(), pa.string(), pa.string(), _RESULTS)


def dispatch(
    rows: DataFrame | OrderedStream,
    events: Events,
    *,
    data: str = "data",
    attributes: str | None = None,
    event_type: str | None = None,
) -> Any:
    """Run the handlers of each row's event type, and add what came of it; returns what `rows` is, going on.

    `_verdict` is `run`, `ack` or `dead_letter`, as `Events.plan` says, `_reason` says why nothing ran, and `_results`
    has of each handler what it returned, as JSON. The event type is where `events` looks for it: in the map
    `attributes`, or in the JSON of `data`; or it is the column `event_type`. Rows that an operator before has not
    released are not dispatched.
    """
    task = Dispatching(events, data, attributes, event_type)

    def dispatched(outcome: DataFrame) -> DataFrame:
        _check(outcome.schema, data, attributes, event_type)
        return map_in_arrow(outcome, task, _with_results(outcome.schema))

    if not isinstance(rows, OrderedStream):
        return dispatched(rows)
    if not rows.following:  # else the columns are those that it makes, which only a batch shows
        _check(rows.schema, data, attributes, event_type)
    return rows.followed_by(dispatched)


@dataclass(frozen=True, slots=True)
class Dispatching:
    """The work of a task."""

    events: Events
    data: str
    attributes: str | None
    event_type: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`."""
        for batch in batches:
            told = [self._told(*row) for row in zip(*self._columns(batch), strict=True)]
            added = zip(*told, strict=True) if told else [()] * len(COLUMNS)
            columns = [pa.array(list(values), kind) for values, kind in zip(added, _TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *COLUMNS])

    def _columns(self, batch: pa.RecordBatch) -> list[list[Any]]:
        nothing = [None] * batch.num_rows
        return [
            nothing if name is None or name not in batch.schema.names else batch.column(name).to_pylist()
            for name in (FATE, self.data, self.attributes, self.event_type)
        ]

    def _told(self, fate: str | None, data: Any, attributes: Any, event_type: str | None) -> tuple[Any, ...]:
        if fate is not None and fate not in APPLIED:
            return None, None, None, None
        found = dict(attributes or ())
        if event_type is not None:
            found[self.events.type_attribute] = event_type
        body = data.encode() if isinstance(data, str) else data or b""
        plan = self.events.plan(Message(body, found))
        results = {call.handler.name: json.dumps(call.handler.function(call.event)) for call in plan.calls}
        return plan.event_type, plan.verdict, plan.reason or None, list(results.items())


def _with_results(rows: StructType) -> StructType:
    texts = [StructField(name, StringType()) for name in COLUMNS[:-1]]
    results = StructField(COLUMNS[-1], MapType(StringType(), StringType()))
    return StructType([*rows.fields, *texts, results])


def _check(schema: StructType, data: str, attributes: str | None, event_type: str | None) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    for taken in types:  # Spark does not tell names apart by case, unless it is told to
        if taken.lower() in COLUMNS:
            raise InvalidArgument(f"the rows have a column {taken!r} already; rename it, or drop it")
    text_to_text = MapType(StringType(), StringType()).simpleString()
    for role, name, kinds in (
        ("data", data, (BinaryType().simpleString(), StringType().simpleString())),
        ("attributes", attributes, (text_to_text,)),
        ("event_type", event_type, (StringType().simpleString(),)),
    ):
        if name is None:
            continue
        if name not in types:
            raise InvalidArgument(f"{role}: there is no column {name!r}, only {', '.join(types)}")
        if types[name].simpleString() not in kinds:
            raise InvalidArgument(f"{role}: {name!r} is {types[name].simpleString()}, and must be {' or '.join(kinds)}")
