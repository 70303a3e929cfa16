"""A backlog that is bigger than the memory it may take: published as a whole, then consumed.

One process does it, once, because it takes minutes and its peak hardly varies.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench import ours
from bench.peers import Missing
from bench.report import Effort, Row, Table, Target, number
from bench.workload import MESSAGE_BYTES, Pair, WrongResult

KEYS = 1_000
BATCH = 1_000


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(10_000_000, 300_000)
    title, target = f"Durable backlog of {count:,} messages, {KEYS:,} keys", Target(1, below=True, figure=True)
    name = "most memory that was resident"
    try:
        ours.check()
    except Missing as reason:
        yield Table(title, "GB", [Row(name, (), (), target, str(reason))])
        return
    process = subprocess.run([sys.executable, "-m", "bench.backlog", str(count)], stdout=subprocess.PIPE, check=False)
    if process.returncode:
        raise WrongResult("the process that was to be measured failed")
    run: dict[str, float] = json.loads(process.stdout)
    notes = [f"Published at {number(run['published'])} and consumed at {number(run['consumed'])} messages/s."]
    yield Table(title, "GB", [Row(name, [run["peak"]], (), target)], notes)


def _publish_and_consume(count: int) -> dict[str, float]:
    with (
        TemporaryDirectory(prefix="inorder-bench-") as folder,
        closing(ours.new_broker(Path(folder, "data"))) as broker,
    ):
        queue = ours.Broker(broker)
        start = perf_counter()
        for first in range(0, count, BATCH):
            queue.publish([_message(number) for number in range(first, min(first + BATCH, count))])
        published = perf_counter()
        _consume(queue, count)
        consumed = perf_counter()
    return {
        "peak": _peak_bytes() / 1e9,
        "published": count / (published - start),
        "consumed": count / (consumed - published),
    }


def _consume(queue: ours.Broker, count: int) -> None:
    """All of them, each key in order."""
    expected, received = list(range(KEYS)), 0
    while taken := queue.take(BATCH):
        queue.ack()
        received += len(taken)
        for sent in map(int, taken):
            if sent != expected[sent % KEYS]:
                raise WrongResult(f"message {expected[sent % KEYS]:,} expected, {sent:,} came")
            expected[sent % KEYS] += KEYS
    if received != count:
        raise WrongResult(f"{received:,} of {count:,} messages came out")


def _message(number: int) -> Pair:
    return f"key-{number % KEYS}", str(number).encode().ljust(MESSAGE_BYTES)


def _peak_bytes() -> int:
    """Of this program. The peak that getrusage knows may be that of the process which started it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(_publish_and_consume(int(sys.argv[1]))))
