"""The Spark session that a command runs on: quiet, and ended with the command; or the one that is there."""

from __future__ import annotations

import argparse
import locale
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from inorder.errors import FailedPrecondition, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_BESIDE_SPARK = ("numpy", "pandas", "pyarrow")  # which PySpark needs for what we do, and does not bring along


def add_conf(parser: argparse.ArgumentParser) -> None:
    """What a user may say about the session."""
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark, such as its memory"
    )


@contextmanager
def session(
    who: str,
    conf: Mapping[str, str],
    *,
    quiet: Mapping[str, str],
    log_level: Literal["error", "off"] = "error",
    remote: str | None = None,
) -> Iterator[SparkSession]:
    """A session for `who`, such as "the audit", with the settings that were asked for.

    With `remote` it is one of Spark Connect, whose server has its own; here we start one, and keep it `quiet`.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise FailedPrecondition(f"{who} runs on Spark, which is not here: pip install 'inorder[spark]'") from None
    for name in _BESIDE_SPARK:
        if find_spec(name) is None:
            raise FailedPrecondition(f"{who} needs {name}, which is not here: pip install 'inorder[spark]'")
    from inorder.spark.quiet import java_options
    from inorder.spark.reasons import reason

    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver"):
        logging.getLogger(logger).disabled = True  # what they log, the error says
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark takes the first python3 on the path
    if sys.stderr.isatty():
        print("starting Spark, which takes some seconds", file=sys.stderr)
    ours = SparkSession.getActiveSession() is None
    try:
        builder = SparkSession.builder if remote is None else SparkSession.builder.remote(remote)
        settings = {**conf}
        if remote is None:
            java = java_options(conf.get(_JAVA_OPTIONS, ""), log_level=log_level)
            settings = {"spark.app.name": f"inorder: {who}", **_QUIET, **quiet, **conf, _JAVA_OPTIONS: java}
            if sys.getfilesystemencoding() == "utf-8" and locale.getencoding().lower() not in ("utf-8", "utf8"):
                os.environ["LC_ALL"] = "C.UTF-8"  # or Java names files otherwise than we do, where LC_ALL is C
            if settings["spark.master"].startswith("local"):
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # without a network, a name may lead nowhere
        for name, value in settings.items() if ours else ():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    except (PySparkException, ImportError) as error:
        if remote is not None:
            raise FailedPrecondition(
                f"--remote: no session at {remote}: {reason(error)}; it needs pip install 'pyspark[connect]'"
            ) from None
        raise FailedPrecondition(
            f"Spark does not start; it needs Java 17 or newer, by JAVA_HOME: {reason(error)}"
        ) from None
    except Py4JError as error:  # Java is there, and a setting or the network is not as Spark needs it
        raise FailedPrecondition(f"Spark does not start: {reason(error)}") from None
    try:
        yield spark
    except Exception as error:  # of any kind, as PySpark makes something else of it in some places
        if remote is None and _has_ended():
            raise Unavailable(
                "Spark has ended in the middle of it; if the machine had no memory left for it, "
                "--conf spark.driver.memory=2g, or less, may help"
            ) from error
        raise
    finally:
        if ours:
            with suppress(ConnectionError):  # it is not there any more
                spark.stop()


def _has_ended() -> bool:
    """Whether the Java is gone that runs Spark here."""
    from pyspark import SparkContext

    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.1)  # it may take a moment to end after its connections have
    return process.poll() is not None
