"""A Spark that starts without telling about it, and logs errors alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_LOGGING = "-Dlog4j2.configurationFile="


def java_options(given: str = "", *, log_level: Literal["error", "off"] = "error") -> str:
    """For `spark.driver.extraJavaOptions`: those that are given, and a quiet log, unless they name another."""
    if _LOGGING in given:
        return given
    file = Path(__file__).with_name("log4j2.properties").as_uri()
    return f"{given} {_LOGGING}{file} -Dinorder.log.level={log_level}".strip()
