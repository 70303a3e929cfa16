"""What a pipeline will do, in plain words, and what a careful reader would ask about it. Nothing here needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from inorder.options import DEFAULT_PARKED
from inorder.spark.addresses import folder_of, shown
from inorder.spark.pipelines.checking import OF_KEYS, WITH_TIMEOUT
from inorder.spark.pipelines.definition import DEFAULT_INTERVAL, Order, Pipeline, Transform, Trigger
from inorder.spark.sinks.topic import InorderTopic
from inorder.transport.address import is_address

TICKS_PER_TIMEOUT: Final = 10  # so a gap is given up at most a tenth of its timeout too late
MIN_TICK_SECONDS: Final = 1.0  # a batch costs some tenths of a second
MAX_TICK_SECONDS: Final = 60.0


def tick_seconds(pipeline: Pipeline, trigger: Trigger) -> float | None:
    """How often a batch must come although no row does: a tenth of the gap timeout, from 1 second to 1 minute.

    None: nothing waits for time, or the run ends by itself.
    """
    if pipeline.order is None or trigger.available_now or pipeline.order.operator not in WITH_TIMEOUT:
        return None
    timeout = pipeline.order.gap_timeout_seconds
    return None if timeout is None else min(max(timeout / TICKS_PER_TIMEOUT, MIN_TICK_SECONDS), MAX_TICK_SECONDS)


def explanation(pipeline: Pipeline, trigger: Trigger | None = None) -> Iterator[tuple[str, str]]:
    """What happens, as pairs of a subject and a sentence."""
    when = trigger or pipeline.trigger
    yield "pipeline", pipeline.name
    yield "source", _source(pipeline)
    yield from _order(pipeline, when)
    for transform in pipeline.transforms:
        yield "then", _transform(transform)
    yield "sink", f"{pipeline.sink_format}: {getattr(pipeline.sink, 'guarantee', 'as the sink says')}"
    yield "runs", _runs(when)
    yield "checkpoint", f"{pipeline.checkpoint}: a run goes on where the last one ended"


def warnings(pipeline: Pipeline, trigger: Trigger | None = None) -> Iterator[str]:
    """What is allowed and may surprise."""
    when, order = trigger or pipeline.trigger, pipeline.order
    if _feeds_itself(pipeline):
        yield "[sink] topic: it is that of the source, so what a batch writes comes again, unless its sql leaves it out"
    if order is None:
        return
    waits = order.operator in WITH_TIMEOUT
    if waits and order.gap_timeout_seconds is None:
        yield (
            "[order] gap_timeout: there is none, so a row that never comes holds up its key, "
            f"until {order.options.get('capacity', DEFAULT_PARKED)} wait behind it"
        )
    if waits and order.gap_timeout_seconds is not None and when.available_now:
        yield (
            "[order] gap_timeout: with available_now time only passes from one run to the next; "
            "a gap is given up by the first run that has rows after its time"
        )
    if order.operator in OF_KEYS and pipeline.sink_format in ("parquet", "inorder", "console"):
        yield (
            f"[sink] {pipeline.sink_format} keeps every change of a key; for a table of the current state take a sink "
            "that replaces rows by their key"
        )


def _feeds_itself(pipeline: Pipeline) -> bool:
    source, sink = pipeline.source, pipeline.sink
    if not isinstance(sink, InorderTopic) or source.url is None or source.topic != sink.topic:
        return False
    if is_address(source.url) or is_address(sink.url):
        return source.url == sink.url
    return folder_of(source.url) == folder_of(sink.url)


def _source(pipeline: Pipeline) -> str:
    source = pipeline.source
    if source.table is not None:
        text = f"the table {source.table}, as it grows"
    elif source.format == "inorder":
        text = f"topic {source.topic} in {shown(source.url or '')}, by position: each message once"
    else:
        text = f"{source.format}{f' in {source.path}' if source.path else ''}, as it grows"
    return f"{text}; of it: {' '.join(source.sql.split())}" if source.sql else text


def _order(pipeline: Pipeline, trigger: Trigger) -> Iterator[tuple[str, str]]:
    order = pipeline.order
    if order is None:
        yield "order", "none is made: rows go on as the source gives them"
        return
    yield "order", _guarantee(order)
    if order.operator in WITH_TIMEOUT:
        yield "gaps", _gaps(pipeline, order, trigger)
    place = pipeline.state or f"{pipeline.checkpoint.rstrip('/')}/inorder"
    buckets = _buckets(order, place)
    yield "state", f"{place}, in {buckets}; a key is always in the same one, and with it in one task"


def _guarantee(order: Order) -> str:
    key, number = order.options["key"], order.number
    return {
        "resequence": f"the rows of each {key} come out in the order of {number}, each number once",
        "apply_versions": f"each {key} only goes forward, by {number}",
        "latest": f"of each {key} the row with the greatest {number} stays, whatever order they come in",
        "merge_fields": f"of each {key} each field has its newest value by {number}, whatever order they come in",
        "deduplicate": f"of each {key} every {number} goes on once; their order is not changed",
    }[order.operator]


def _gaps(pipeline: Pipeline, order: Order, trigger: Trigger) -> str:
    timeout = order.gap_timeout_seconds
    if timeout is None:
        return "a row that never comes is waited for without end"
    text = f"a row that has not come after {timeout:g} s is given up: a row with _fate 'gap' takes its place"
    if trigger.available_now:
        return f"{text}, in the first run with rows after that"
    if pipeline.source.format == "inorder" and pipeline.source.tick_option is not None:
        return f"{text}; every {pipeline.source.tick_option} s somebody looks, also when no row comes"
    return f"{text}; every {tick_seconds(pipeline, trigger):g} s somebody looks, also when no row comes"


def _buckets(order: Order, place: str) -> str:
    if "buckets" in order.options:
        return f"{order.options['buckets']} buckets"
    try:
        written = Path(place.removeprefix("file:"), "manifest.json").read_text(encoding="utf-8")
        manifest, _ = json.JSONDecoder().raw_decode(written)  # behind it stands its checksum
        return f"{manifest['buckets']} buckets, as it began with"
    except (OSError, ValueError, LookupError):
        return "as many buckets as the cluster has cores when it first runs"


def _transform(transform: Transform) -> str:
    return " ".join(transform.sql.split()) if transform.sql is not None else f"the function {transform.python}"


def _runs(trigger: Trigger) -> str:
    if trigger.available_now:
        return "until all is done that was there when it started, then it ends"
    interval = trigger.processing_time if trigger.processing_time is not None else DEFAULT_INTERVAL
    return f"until it is stopped, looking for rows every {interval if isinstance(interval, str) else f'{interval:g} s'}"
