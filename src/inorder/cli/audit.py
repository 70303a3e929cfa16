"""`inorder audit`: prove that the events of each key in a log are in order, or say where they are not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inorder.cli.exits import DONE, NO
from inorder.cli.pairs import pairs
from inorder.cli.sessions import add_conf, session
from inorder.cli.showing import print_json, visible
from inorder.cli.verbs import Verbs, add_verb
from inorder.cli.wording import counted, table
from inorder.errors import InvalidArgument
from inorder.spark.addresses import shown
from inorder.spark.findings import KINDS, Findings
from inorder.spark.wording import duration, sentence, share

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from inorder.spark import Audit

_FIELDS: Final = {
    "in_order": "whether nothing was found but what is allowed",
    "verdict": "in one sentence",
    "source": "what was audited",
    "columns": "what the audit was told, or knew: key, sequence, arrival_order, time, arrival_time, runs, partition",
    "allowed": "kinds that are only counted",
    "events": "all of them",
    "unkeyed": "events without a key",
    "unplaced": "events without a number or time to be placed by",
    "keys": "how many",
    "broken_keys": "keys with anything that is not allowed",
    "reordered": "events that were overtaken",
    "gaps": "how many",
    "missing": "numbers in these gaps",
    "duplicates": "how many",
    "overlapping": "handlers that ran at once; null if they were not told",
    "unmeasured_runs": "handlers without a start or an end, or with an end before their start",
    "untimed": "events without a time of arrival",
    "farthest": "events of its key between the latest event and its overtaker",
    "longest_wait_us": "how long a buffer had to wait for the latest event",
    "buffer": "events per key that a buffer must hold to repair it",
    "timeout_us": "and how long it must wait",
    "watermark_us": "and the watermark that drops none",
    "lateness": "a histogram: at_least events late, count",
    "waits": "a histogram: at_least microseconds late, count",
    "hot_keys": "the keys with most events",
    "worst_keys": "the keys with most to be said of",
    "partitions": "what falls to each: name, events, share",
    "split_keys": "keys in more than one partition",
    "violations": "the first few, each with its kind, key and position",
    "imbalance": "the load of the hottest partition as a multiple of an equal share",
}
_EPILOG = """\
Columns are named, or written as SQL expressions, such as "attributes['sequence']" or "timestamp_millis(at)".
Exit code: 0 in order, 1 broken, 2 if the log cannot be read or the call is wrong.

  inorder audit events.parquet --key order_id --sequence version --html audit.html
  inorder audit ./data --topic orders --sequence "attributes['sequence']"
  inorder audit events.csv --key user --time happened_at --json
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "prove that a log is in order, per key, or say where it is not"
    noun = add_verb(nouns, "audit", _audit, text, fields=_FIELDS, more=_EPILOG)
    noun.add_argument("source", metavar="SOURCE", help="a file, a folder of files, or the folder of a broker")
    noun.add_argument(
        "--format", help="inorder, parquet, json, csv, or any that Spark reads; told by the name if it can"
    )
    noun.add_argument("--topic", help="of the broker")
    noun.add_argument("--key", help="the events that belong together; ordering_key in a topic")
    noun.add_argument("--sequence", help="their numbers, each one more than the last")
    noun.add_argument("--time", help="when they happened: their order, where they have no numbers")
    noun.add_argument(
        "--position",
        action="append",
        help="in which order they arrived; more than once for several columns; known of topics, Parquet, and one file",
    )
    noun.add_argument("--arrival-time", help="when they arrived; publish_time in a topic")
    noun.add_argument("--start", help="when their handlers began")
    noun.add_argument("--end", help="and ended")
    noun.add_argument("--partition", help="where they are stored")
    noun.add_argument(
        "--partitions", type=int, default=8, help="without --partition: spread over so many; 8 by default"
    )
    noun.add_argument("--allow", metavar="KINDS", default="", help=f"only count these; of {', '.join(KINDS[1:])}")
    noun.add_argument("--top", type=int, default=10, help="so many violations and keys are shown; 10 by default")
    noun.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts as well")
    noun.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of Spark's reader")
    add_conf(noun)


def _audit(given: argparse.Namespace) -> int:
    if given.html is not None and not given.html.absolute().parent.is_dir():
        raise InvalidArgument(f"--html: there is no folder {given.html.absolute().parent}")
    if given.html is not None and given.html.is_dir():  # which would be found out when all is done
        raise InvalidArgument(f"--html: a file, and {given.html} is a folder")
    options = pairs("--option", given.option)
    if given.topic is not None:
        options["topic"] = given.topic
    quiet = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    with session("the audit", pairs("--conf", given.conf), quiet=quiet, log_level="off") as spark:
        audited = _audited(spark, given, options)
    if given.html is not None:
        given.html.write_text(audited.as_html(), encoding="utf-8")
    if given.json:
        print_json(audited.findings.as_dict())
    else:
        print("\n".join(_told(audited.findings)))
    return DONE if audited.in_order else NO


def _audited(spark: SparkSession, given: argparse.Namespace, options: dict[str, str]) -> Audit:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from inorder.spark import audit
    from inorder.spark.logs import open_log
    from inorder.spark.reasons import reason

    source = shown(given.source)  # on a page, which others may see
    try:
        log = open_log(spark, given.source, given.format, options)
        return audit(
            log.rows,
            key=given.key,
            sequence=given.sequence,
            time=given.time,
            position=given.position or log.position,
            arrival_time=given.arrival_time,
            start=given.start,
            end=given.end,
            partition=given.partition,
            partitions=given.partitions,
            allow=[kind.strip() for kind in given.allow.split(",") if kind.strip()],
            top=given.top,
            source=source if given.topic is None else f"topic {given.topic} in {source}",
        )
    except (PySparkException, Py4JJavaError) as error:  # the latter where PySpark has no name, as for a missing jar
        raise InvalidArgument(f"{source} cannot be read: {reason(error)}") from None


def _told(found: Findings) -> Iterator[str]:
    yield found.verdict
    yield f"order of arrival: {found.columns.arrival_order}"
    if found.unkeyed:
        yield f"{counted(found.unkeyed, 'event')} without a key: no order is promised to them"
    if found.missing:
        yield f"{counted(found.missing, 'number')} missing in {counted(found.gaps, 'gap')}"
    if found.untimed:
        yield f"{counted(found.untimed, 'event')} without a time of arrival"
    if found.reordered:
        yield f"latest event: {counted(found.farthest, 'event')} of its key behind its overtaker"
        yield f"to repair it: {', '.join(_advice(found))}"
    if found.hot_keys:
        hottest = found.hot_keys[0]
        yield f"hottest key: {visible(hottest.key)}, {counted(hottest.events, 'event')} ({share(hottest.share)})"
        yield f"hottest of {counted(found.partition_count, 'partition')}: {found.imbalance:.2f} times an equal share"
    if found.split_keys:
        yield f"{counted(found.split_keys, 'key')} in more than one partition"
    if found.violations:
        yield ""
        cells = ((one.position, one.kind, one.key, sentence(one, found)) for one in found.violations)
        rows = [[visible(cell) for cell in row] for row in cells]  # keys and positions are as somebody wrote them
        yield from table(("position", "what", "key", "what happened"), rows)


def _advice(found: Findings) -> Iterator[str]:
    yield f"a buffer of {counted(found.buffer, 'event')} per key"
    if found.longest_wait_us is not None:
        yield f"a timeout of more than {duration(found.longest_wait_us, at_least=True)}"
    if found.watermark_us is not None:
        yield f"a watermark of {duration(found.watermark_us, at_least=True)}"
