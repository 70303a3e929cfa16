"""`inorder pipeline`: run a pipeline that is written in a file, or look at it first."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inorder.cli.batches import BATCH_FIELDS, Lines
from inorder.cli.exits import DONE, INTERRUPTED, NO
from inorder.cli.pairs import pairs
from inorder.cli.sessions import add_conf, session
from inorder.cli.showing import print_json
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.errors import InvalidArgument, PipelineFailed
from inorder.spark.pipelines.checking import TRIGGER
from inorder.spark.pipelines.definition import Pipeline, Trigger, read_pipeline
from inorder.spark.pipelines.explaining import explanation, warnings
from inorder.spark.pipelines.stopping import Stop
from inorder.spark.sinks.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKED: Final = {
    "file": "its path",
    "columns": "with which rows go out; null if Spark is not here to tell",
}
_EXPLAINED: Final = {
    "subject": "what a sentence is about",
    "sentence": "in plain words",
}
_EPILOG = """\
Exit code of run: 0 all done, or stopped by Ctrl-C (or a TERM) after a whole batch; 1 a batch failed; 2 the file is
wrong or nothing could start; 130 stopped at once by a second Ctrl-C. Whatever ended it, the next run goes on from the
checkpoint. Exit code of check and explain: 0 the file is right, 2 it is not.

  inorder pipeline check pipeline.toml
  inorder pipeline run pipeline.toml --available-now
  inorder pipeline run pipeline.toml --master spark://host:7077 --conf spark.executor.memory=4g
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "run a pipeline that is written in a file, or look at it first"
    verbs = add_noun(nouns, "pipeline", text, more=_EPILOG)

    verb = _verb(verbs, "run", _run, "run it, or go on where the last run ended", BATCH_FIELDS)
    when = verb.add_mutually_exclusive_group()
    when.add_argument("--available-now", action="store_true", help="end when all is done that is there now")
    when.add_argument("--processing-time", metavar="TEXT", help="run until it is stopped, a batch every '10 seconds'")
    verb.add_argument("--quiet", action="store_true", help="no progress")

    _verb(verbs, "check", _check, "say what is wrong with it, its columns and its SQL; nothing runs", _CHECKED)

    verb = _verb(verbs, "explain", _explain, "say in plain words what it will do", _EXPLAINED)
    verb.add_argument(
        "--plan", action="store_true", help="with Spark's plans, of the source and of what a batch goes through"
    )


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: Mapping[str, str]) -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields)
    verb.add_argument("file", type=Path, metavar="FILE", help="the file, or the folder of a pipeline.toml")
    place = verb.add_mutually_exclusive_group()
    place.add_argument("--master", metavar="URL", help="of a cluster; local[*] by default")
    place.add_argument("--remote", metavar="URL", help="a server of Spark Connect, sc://host, instead")
    add_conf(verb)
    return verb


@contextmanager
def _on_spark(given: argparse.Namespace, pipeline: Pipeline) -> Iterator[SparkSession]:
    # What Spark would log of a batch that fails are pages, and the reason is told in a line.
    quiet = {"spark.ui.showConsoleProgress": "false"}
    conf = {**pipeline.spark, **pairs("--conf", given.conf)}
    if given.master is not None:
        conf["spark.master"] = given.master
    with session("a pipeline", conf, quiet=quiet, log_level="off", remote=given.remote) as spark:
        yield spark


# -- run -------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    trigger = trigger_of(given, pipeline)
    if given.json and isinstance(pipeline.sink, Console):
        raise InvalidArgument("--json: [sink] format = 'console' prints its tables among the lines; choose one of them")
    _warn(warnings(pipeline, trigger))
    stop = Stop()
    with _on_spark(given, pipeline) as spark, _signals(stop):
        from inorder.spark.pipelines.building import build
        from inorder.spark.pipelines.running import Run

        built = build(spark, pipeline, trigger)
        if built.loses_order:
            _warn([_LOSES_ORDER])
        lines = Lines(sys.stderr, quiet=given.quiet, as_json=sys.stdout if given.json else None)
        try:
            Run(built, trigger, stop).watch(lines)
        except PipelineFailed as error:
            lines.end()
            print(f"inorder: {error}", file=sys.stderr)
            return NO
        lines.end()
        print(lines.summary(stopped=stop.wanted), file=sys.stderr)
    return INTERRUPTED if stop.at_once else DONE


def trigger_of(given: argparse.Namespace, pipeline: Pipeline) -> Trigger:
    """When a batch runs: as was asked for, or else as the file says."""
    if given.available_now:
        return Trigger(available_now=True)
    if given.processing_time is None:
        return pipeline.trigger
    interval: float | str = given.processing_time
    with suppress(ValueError):  # a number is one of seconds, as in the file
        interval = float(given.processing_time)
    if problem := TRIGGER["processing_time"].problem(interval):
        raise InvalidArgument(f"--processing-time: {problem}")
    return Trigger(processing_time=interval)


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C and TERM end the run between two batches, and not Python in the middle of something."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        stop.ask()
        if stop.asked > 2:  # nothing listens, perhaps because a cluster does not answer
            raise KeyboardInterrupt
        if not stop.at_once:
            with suppress(RuntimeError):  # the signal may have come in the middle of a line
                print("\nending after this batch; once more ends it at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- check and explain -----------------------------------------------------------------------------


def _check(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    told, columns = [*warnings(pipeline)], None
    if _spark_is_here():
        with _on_spark(given, pipeline) as spark:
            from inorder.spark.pipelines.building import build

            built = build(spark, pipeline)
            if built.loses_order:
                told.append(_LOSES_ORDER)
            columns = [*built.outcome.columns]
    if given.json:
        print_json({"file": str(given.file), "columns": columns})
    elif columns is not None:
        print(f"{given.file}: right; rows go out with {', '.join(columns)}")
    else:
        print(f"{given.file}: right as far as it goes; columns and SQL were not looked at, as Spark is not here")
    _warn(told)
    return DONE


_LOSES_ORDER = (
    "[[transform]]: one of them moves rows between tasks (a join, GROUP BY, ORDER BY, DISTINCT or repartition), "
    "so the rows of a key are no longer in order behind it"
)


def _explain(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    pairs_told = [*explanation(pipeline)]
    width = max(len(subject) for subject, _ in pairs_told)
    for subject, sentence in pairs_told:
        if given.json:
            print_json({"subject": subject, "sentence": sentence})
        else:
            print(f"{subject:{width}}  {sentence}")
    _warn(warnings(pipeline))
    if given.plan:
        if given.remote is not None:
            raise InvalidArgument("--plan: not over Spark Connect, whose plans are on the server")
        with _on_spark(given, pipeline) as spark:
            from inorder.spark.pipelines.building import build, plans

            text = plans(build(spark, pipeline))
            if given.json:
                print_json({"subject": "plan", "sentence": text})
            else:
                print(f"\n{text}")
    return DONE


def _spark_is_here() -> bool:
    with suppress(ImportError):
        import pyspark  # noqa: F401

        return True
    return False


def _warn(told: Iterable[str]) -> None:
    for warning in told:
        print(f"inorder: note: {warning}", file=sys.stderr)
