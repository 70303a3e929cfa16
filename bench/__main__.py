"""Measures what the documentation claims, against a peer in the same run.

    python -m bench                     everything, in about nine minutes
    python -m bench core pull           only these subjects
    python -m bench backlog             10 million messages on disk; minutes, and only when it is named
    python -m bench spark spark-topics  the operators on Spark, its source and sink; minutes, and only when named
    python -m bench --quick             less of everything, to see that it works
    python -m bench --json FILE         every repetition, for other programs

Each figure is the median of its repetitions, with the least and the most. Ours and the peer take
turns and the ratio is taken in each repetition, so noise of the machine hits both. Nothing fails
because a figure is bad.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.report import Effort, Table, load, machine
from bench.workload import MESSAGE_BYTES, WrongResult

# The modules of this package that measure. Each is imported when its turn comes: what one of them imports, every search
# for garbage looks through, also while another one measures.
SUBJECTS = (
    *("core", "broker", "api", "latency", "scaling", "pull", "memory", "patterns", "forwarder", "consumers", "queues"),
    *("durable", "recovery", "pool", "server", "client", "backlog", "spark", "spark-topics"),
)
ONLY_BY_NAME = {"backlog", "spark", "spark-topics"}  # take minutes


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as at Ctrl-C: what was started is ended first
    arguments = _arguments()
    effort = Effort(arguments.quick, max(5, arguments.repetitions))
    report: dict[str, Any] = {"machine": machine(), "quick": effort.quick, "repetitions": effort.repetitions}
    report["load before"] = load()
    for name, value in report["machine"].items():
        print(f"{name:8} {value}")
    print(f"\nMessages of {MESSAGE_BYTES} bytes; {effort.repetitions} repetitions: median (least–most).", end=" ")
    print("This run is a quick one: do not quote it." if effort.quick else "")
    start = perf_counter()
    for subject in arguments.subjects or [name for name in SUBJECTS if name not in ONLY_BY_NAME]:
        report[subject] = []
        try:
            for table in _measure(subject, effort):
                print(f"\n{table}", flush=True)
                report[subject].append(table.as_json())
        except WrongResult as error:
            print(f"\n{subject}: no figures, because the work was done wrong: {error}", flush=True)
    report["load after"] = load()
    print(f"\nMeasured in {perf_counter() - start:.0f} s.", end=" ")
    print(f"Load of the machine: {report['load before']} before, {report['load after']} after.")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _measure(subject: str, effort: Effort) -> Iterator[Table]:
    found: Iterator[Table] = import_module(f"bench.{subject.replace('-', '_')}").measure(effort)
    return found


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m bench", None, __doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="subject",
        help=f"one of {', '.join(SUBJECTS)}; all but {', '.join(ONLY_BY_NAME)} by default",
    )
    parser.add_argument("--quick", action="store_true", help="measure less, in a few minutes")
    parser.add_argument("--repetitions", type=int, default=5, help="five or more; five by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file as well")
    arguments = parser.parse_args()
    for subject in arguments.subjects:
        if subject not in SUBJECTS:
            parser.error(f"there is no subject {subject!r}, only {', '.join(SUBJECTS)}")
    return arguments


if __name__ == "__main__":
    main()
