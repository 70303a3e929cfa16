"""A pipeline on a Spark session: the stream, the operator, the transforms and the sink. Nothing runs here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import inorder.spark
from inorder.errors import InorderError, InvalidArgument
from inorder.spark.pipelines.checking import WITH_TIMEOUT
from inorder.spark.pipelines.definition import Pipeline, Source, Transform, Trigger
from inorder.spark.pipelines.explaining import tick_seconds
from inorder.spark.pipelines.fields import NONE
from inorder.spark.reasons import reason
from inorder.spark.source import SourceOptions, StreamReader
from inorder.spark.streams import OrderedStream
from inorder.spark.ticking import with_ticks
from inorder.spark.topics import open_topic

Function: TypeAlias = Callable[[DataFrame], DataFrame]

SOURCE_VIEW: Final = "source"
ROWS_VIEW: Final = "rows"
# What moves rows between tasks. A broadcast does not: only the other side of a join travels.
_MOVES: Final = ("Exchange hashpartitioning", "Exchange rangepartitioning", "Exchange SinglePartition", "RoundRobin")


@dataclass(frozen=True, slots=True)
class Built:
    """A pipeline that Spark has looked at: its columns and its SQL are right."""

    pipeline: Pipeline
    rows: DataFrame  # as the source gives them
    stream: DataFrame | OrderedStream
    functions: tuple[Function, ...]  # the transforms
    outcome: DataFrame  # of a batch of no rows, for its columns and its plan
    moves_rows: bool  # whether the transforms do

    @property
    def loses_order(self) -> bool:
        """Whether transforms undo what the operator did."""
        return self.moves_rows and isinstance(self.stream, OrderedStream)

    def start(self, trigger: Trigger | None = None, gate: Function | None = None) -> StreamingQuery:
        """Start the query, or go on with it, from its checkpoint. `gate` sees each batch first, and may refuse it."""
        pipeline, stream = self.pipeline, self.stream
        when = (trigger or pipeline.trigger).for_spark
        functions = self.functions if gate is None else (gate, *self.functions)
        if isinstance(stream, OrderedStream):
            for function in functions:
                stream = stream.followed_by(function)
            written = stream.write(pipeline.sink)
            return written.start(pipeline.checkpoint, trigger=when, name=pipeline.name, state=pipeline.state)
        sink = pipeline.sink

        def write(rows: DataFrame, batch_id: int) -> None:
            for function in functions:
                rows = function(rows)
            sink(rows, batch_id)

        writer = stream.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", pipeline.checkpoint).queryName(pipeline.name)
        return writer.trigger(**when).start()


def build(spark: SparkSession, pipeline: Pipeline, trigger: Trigger | None = None) -> Built:
    """Let Spark look at all of it. What is wrong is told by the section it stands in."""
    tick = tick_seconds(pipeline, trigger or pipeline.trigger)
    rows = _in("[source]", lambda: source_rows(spark, pipeline.source, tick))
    stream: DataFrame | OrderedStream = rows
    schema = rows.schema
    if pipeline.order is not None:
        if pipeline.order.operator in WITH_TIMEOUT and pipeline.source.format != "inorder":
            rows = with_ticks(rows, tick)
        stream = _in("[order]", lambda: _ordered(rows, pipeline))
        schema = stream.schema
    outcome = spark.range(0, 2, 1, 2).mapInArrow(_no_rows, schema)  # of which Spark does not know that it is empty
    functions = []
    for number, transform in enumerate(pipeline.transforms, start=1):
        place = f"[[transform]] {number}"
        function = _in(place, partial(_function, transform, pipeline.folder))
        outcome = _in(place, partial(_tried, function, outcome))
        functions.append(function)
    if (check := getattr(pipeline.sink, "check", None)) is not None:
        _in("[sink]", lambda: check(outcome.schema))
    return Built(pipeline, rows, stream, tuple(functions), outcome, _moves_rows(outcome))


def _in(place: str, does: Callable[[], Any]) -> Any:
    try:
        return does()
    except (InorderError, PySparkException) as error:
        raise InvalidArgument(f"{place} {reason(error)}") from error


# -- source ----------------------------------------------------------------------------------------


def source_rows(spark: SparkSession, source: Source, tick: float | None) -> DataFrame:
    """The rows of the source, as its SQL has them."""
    rows = _loaded(spark, source, tick)
    if source.sql is None:
        return rows
    rows.createOrReplaceTempView(SOURCE_VIEW)
    return spark.sql(source.sql)


def _loaded(spark: SparkSession, source: Source, tick: float | None) -> DataFrame:
    reader = spark.readStream.options(**source.options)
    if source.table is not None:
        return reader.table(source.table)
    assert source.format is not None
    if source.format == "inorder":
        options = {"url": source.url or "", "topic": source.topic or ""}
        if tick is not None and source.tick_option is None:
            options["tickSeconds"] = f"{tick:g}"
        StreamReader(SourceOptions.of({**source.options, **options}))  # which Spark would only look at in a batch
        open_topic(options["url"], options["topic"]).bounds()
        inorder.spark.register(spark)
        reader = reader.options(**options)
    elif source.schema is not None:
        reader = reader.schema(source.schema)
    elif source.knows_its_schema:
        assert source.path is not None
        reader = reader.schema(spark.read.format(source.format).options(**source.options).load(source.path).schema)
    return reader.format(source.format).load(source.path)


# -- order -----------------------------------------------------------------------------------------


def _ordered(rows: DataFrame, pipeline: Pipeline) -> OrderedStream:
    assert pipeline.order is not None
    options = dict(pipeline.order.options)
    if options.get("max_drift") == NONE:  # a column may have that name
        options["max_drift"] = None
    operator = getattr(inorder.spark, pipeline.order.operator)
    found = operator(rows, **options)
    assert isinstance(found, OrderedStream)
    return found


# -- transforms ------------------------------------------------------------------------------------


def _function(transform: Transform, folder: Path) -> Function:
    if transform.sql is not None:
        return Query(transform.sql)
    assert transform.python is not None
    module_name, _, name = transform.python.partition(":")
    module = _module(module_name, folder)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidArgument(f"python: {module_name} ({module.__file__}) has no function {name!r}")
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Query:
    """A transform by SQL."""

    sql: str

    def __call__(self, rows: DataFrame) -> DataFrame:
        # The session of the rows: a batch has one of its own, and so its own view.
        rows.createOrReplaceTempView(ROWS_VIEW)
        return rows.sparkSession.sql(self.sql)


def _module(name: str, folder: Path) -> ModuleType:
    """A module of the file's folder, or an installed one."""
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        if not path.is_file():
            return importlib.import_module(name)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what it imports
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _let_travel(folder)
        return module
    except ImportError as error:
        raise InvalidArgument(
            f"python: {name} cannot be imported: {error}; it is neither in {folder} nor installed"
        ) from error
    except Exception as error:
        raise InvalidArgument(f"python: {name} cannot be imported: {type(error).__name__}: {error}") from error


def _let_travel(folder: Path) -> None:
    """Workers do not have the folder: what they run of its modules, whoever imports them, goes with the tasks."""
    for name, module in [*sys.modules.items()]:
        place = folder.joinpath(*name.split("."))
        if getattr(module, "__file__", None) in (f"{place}.py", str(place / "__init__.py")):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _tried(function: Function, rows: DataFrame) -> DataFrame:
    """What a transform makes of a batch of no rows."""
    try:
        found = function(rows)
    except (InorderError, PySparkException):
        raise
    except Exception as error:  # of the user's own function
        raise InvalidArgument(f"python: {type(error).__name__}: {error}") from error
    given: object = found
    if not isinstance(given, DataFrame):
        raise InvalidArgument(f"python: the function returns {type(given).__name__}, and must return a DataFrame")
    found.schema  # noqa: B018 - over Spark Connect, only this is looked at by Spark
    return found


def plans(built: Built) -> str:
    """How Spark reads the source, and what a batch goes through behind the operator."""
    source = built.rows._jdf.queryExecution().analyzed().toString()  # a stream has no other plan before it runs
    batch = built.outcome._jdf.queryExecution().executedPlan().toString()
    return f"the source\n{source}\na batch, behind the operator\n{batch}"


def _no_rows(batches: Iterator[Any]) -> Iterator[Any]:
    return iter(())


def _moves_rows(outcome: DataFrame) -> bool:
    try:
        plan = str(outcome._jdf.queryExecution().executedPlan().toString())
    except (AttributeError, PySparkException):  # Spark Connect does not show it
        return False
    return any(move in plan for move in _MOVES)
