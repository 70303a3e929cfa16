"""What the file of a pipeline may say, section by section, and what is wrong with one that says something else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from inorder.errors import InvalidArgument
from inorder.options import SLOTS
from inorder.patterns.deduplication import DeduplicateIds, DeduplicateSequences, TooOld
from inorder.patterns.independent_fields import IndependentFields
from inorder.patterns.last_write_wins import Stamps
from inorder.patterns.sequencing import DuplicatePolicy, Initial, LatePolicy, Resequencer
from inorder.patterns.versioning import VersionGate, VersionMode
from inorder.spark.addresses import check_url
from inorder.spark.durations import seconds
from inorder.spark.pipelines.fields import (
    Field,
    Fields,
    choice,
    column,
    duration,
    flag,
    flat,
    is_scalar,
    owners,
    problems,
    scalars,
    text,
    unknown,
    whole,
    whole_or_choice,
)

SECTIONS: Final = ("source", "order", "transform", "sink", "trigger", "spark")

TOP: Final[Fields] = {
    "name": text("the name of the query", required=True),
    "checkpoint": text("the folder that remembers how far the pipeline came", required=True),
    "state": text("the folder of the operator's state, where it is not to be in the checkpoint"),
}

SOURCE: Final[Fields] = {
    "format": text("'inorder', 'parquet', 'json', 'csv', 'kafka', 'delta' or any that Spark reads"),
    "table": text("the name of a table that Spark's catalog knows, instead of a format"),
    "url": text("'file:' and the folder of a broker, or its path, or grpc://host:port of a server"),
    "topic": text("the name of a topic"),
    "path": text("where the files are"),
    "schema": text("columns and types, such as 'order_id STRING, sequence BIGINT'"),
    "options": scalars("options of Spark's reader, such as { maxFilesPerTrigger = 1 }"),
    "sql": text("SQL that reads from the view source"),
}
_NEED_SCHEMA: Final = ("json", "csv", "xml")
HAVE_SCHEMA: Final = ("parquet", "orc", "avro")  # in their files
_FILES: Final = (*_NEED_SCHEMA, *HAVE_SCHEMA, "text")

_INVALID: Final = ("error", "quarantine", "drop")
_WHEN_FULL: Final = ("error", "gap")
_BUCKETS: Final = whole(1, SLOTS)
_STATEFUL: Final[Fields] = {
    "invalid": choice(_INVALID),
    "keep_dropped": flag(),
    "buckets": _BUCKETS,
}
_PARKING: Final[Fields] = {
    "position": column(),
    "gap_timeout": duration(),
    "capacity": whole(1),
    "when_full": choice(_WHEN_FULL),
    **_STATEFUL,
}
OPERATORS: Final[Mapping[str, Fields]] = {
    "resequence": {
        "key": column(required=True),
        "sequence": column(required=True),
        "initial": whole_or_choice(0, Initial),
        "late": choice(get_args(LatePolicy)),
        "duplicates": choice(get_args(DuplicatePolicy)),
        **_PARKING,
    },
    "apply_versions": {
        "key": column(required=True),
        "version": column(required=True),
        "mode": choice(get_args(VersionMode)),
        "first_version": whole(0),
        **_PARKING,
    },
    "latest": {
        "key": column(required=True),
        "time": column(required=True),
        "value": column(required=True),
        "producer": column(),
        "stamps": choice(get_args(Stamps)),
        "max_drift": duration(or_none=True),
        "invalid": choice(("error", "drop")),
        "buckets": _BUCKETS,
    },
    "merge_fields": {
        "key": column(required=True),
        "event_type": column(required=True),
        "time": column(required=True),
        "owns": owners(),
        "invalid": choice(("error", "drop")),
        "buckets": _BUCKETS,
    },
    "deduplicate": {
        "key": column(required=True),
        "id": column(),
        "producer": column(),
        "sequence": column(),
        "position": column(),
        "max_age": duration(),
        "max_ids": whole(1),
        "window": whole(1),
        "max_producers": whole(1),
        "too_old": choice(get_args(TooOld)),
        **_STATEFUL,
    },
}
OF_KEYS: Final = ("latest", "merge_fields")  # what comes out of these is what a key is now
WITH_TIMEOUT: Final = ("resequence", "apply_versions")

_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
TRANSFORM: Final[Fields] = {
    "sql": text("SQL that reads from the view rows"),
    "python": Field(
        "module:function, such as 'my_functions:enrich'",
        lambda value: isinstance(value, str) and _FUNCTION.fullmatch(value) is not None,
    ),
}
TRIGGER: Final[Fields] = {"available_now": flag(), "processing_time": duration()}


def file_problems(given: Mapping[str, Any]) -> Iterator[str]:
    """All that can be said without building anything; the sink says for itself what is wrong with it."""
    rest = {name: value for name, value in given.items() if name not in SECTIONS}
    for name in rest:
        if name not in TOP:
            yield unknown(name, (*TOP, *SECTIONS))
    yield from problems("", {name: value for name, value in rest.items() if name in TOP}, TOP)
    for name, check in (
        ("source", _source_problems),
        ("order", _order_problems),
        ("trigger", _trigger_problems),
        ("spark", _spark_problems),
    ):
        section = given.get(name)
        if section is None and name != "source":
            continue
        if section is None:
            yield "[source]: it is missing; where the rows come from"
        elif not isinstance(section, dict):
            yield f"[{name}]: a section, not {section!r}"
        else:
            yield from check(section)
    yield from _transform_problems(given.get("transform", []))
    if "sink" not in given:
        yield "[sink]: it is missing; where the rows go"
    elif not isinstance(given["sink"], dict):
        yield f"[sink]: a section, not {given['sink']!r}"


def _source_problems(given: dict[str, Any]) -> Iterator[str]:
    yield from problems("[source] ", given, SOURCE)
    kind = given.get("format")
    if ("table" in given) == ("format" in given):
        yield "[source] format: " + (
            "it is given, and table too; give one of them" if "table" in given else "it is missing, and table too"
        )
        return
    wanted = ("url", "topic") if kind == "inorder" else ("path",) if kind in _FILES else ()
    for name in wanted:
        if name not in given:
            yield f"[source] {name}: it is missing; format {kind!r} needs {SOURCE[name].allowed}"
    if kind == "inorder" and isinstance(url := given.get("url"), str) and url.strip():
        try:
            check_url(url)
        except InvalidArgument as error:
            yield f"[source] url: {str(error).removeprefix('url: ')}"
    foreign = ("path", "schema") if kind == "inorder" else ("url", "topic")
    for name in foreign if kind is not None else ("url", "topic", "path", "schema"):
        if name in given:
            of = "table" if kind is None else f"format {kind!r}"
            yield f"[source] {name}: it means nothing to {of}"
    if kind in _NEED_SCHEMA and "schema" not in given:
        yield f"[source] schema: it is missing; a stream of {kind} needs {SOURCE['schema'].allowed}"


def _order_problems(given: dict[str, Any]) -> Iterator[str]:
    known = choice(OPERATORS, required=True)
    if (operator := given.get("operator")) is None:
        yield f"[order] operator: it is missing; {known.allowed}"
        return
    if problem := known.problem(operator):
        yield f"[order] operator: {problem}"
        return
    options = {name: value for name, value in given.items() if name != "operator"}
    wrong = [*problems("[order] ", options, OPERATORS[operator])]
    yield from wrong
    if not wrong:
        try:
            _try_pattern(operator, options)
        except InvalidArgument as error:
            yield f"[order] {str(error).replace('_seconds:', ':')}"  # as the file calls it


def _try_pattern(operator: str, given: Mapping[str, Any]) -> None:
    """The pure pattern knows what else may not be."""
    options = {name: value for name, value in given.items() if name in _OF_PATTERN}
    for name in ("gap_timeout", "max_age"):
        if name in options:
            options[f"{name}_seconds"] = seconds(name, options.pop(name))
    if operator == "resequence":
        Resequencer(**options)
    elif operator == "apply_versions":
        VersionGate(**options)
    elif operator == "merge_fields":
        IndependentFields(given["owns"])
    elif operator == "deduplicate":
        by_id, by_number = "id" in given, {"producer", "sequence"} & given.keys()
        if by_id == bool(by_number) or len(by_number) == 1:
            raise InvalidArgument("id: give id, or producer and sequence, and not both")
        foreign = ("window", "max_producers", "too_old") if by_id else ("max_ids",)
        for name in foreign:
            if name in given:
                raise InvalidArgument(f"{name}: it means nothing to deduplication by {'id' if by_id else 'sequence'}")
        pattern: Any = DeduplicateIds if by_id else DeduplicateSequences
        pattern(**options)


_OF_PATTERN: Final = (
    *("initial", "capacity", "when_full", "gap_timeout", "late", "duplicates", "mode", "first_version"),
    *("max_age", "max_ids", "window", "max_producers", "too_old"),
)


def _transform_problems(given: Any) -> Iterator[str]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        yield f"[[transform]]: sections with two brackets, not {given!r}"
        return
    for number, one in enumerate(given, start=1):
        place = f"[[transform]] {number}: "
        yield from problems(place, one, TRANSFORM)
        if len(one.keys() & TRANSFORM.keys()) != 1:
            yield f"{place}give sql or python, one of them"


def _trigger_problems(given: dict[str, Any]) -> Iterator[str]:
    yield from problems("[trigger] ", given, TRIGGER)
    if given.get("available_now") is True and "processing_time" in given:
        yield "[trigger] processing_time: it is given, and available_now = true too; give one of them"


def _spark_problems(given: dict[str, Any]) -> Iterator[str]:
    for name, value in flat(given).items():
        if not name.startswith("spark."):
            yield f"[spark] {name}: a setting of Spark, whose name starts with 'spark.'"
        if not is_scalar(value):
            yield f"[spark] {name}: text, a number, true or false, not {value!r}"
