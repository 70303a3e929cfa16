"""Opening a folder whose broker died, against reading its files once with their checksum.

Nothing is dropped from the page cache, for either. Opening may write, so each time it is a copy that
is opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench import ours
from bench.peers import Missing
from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.workload import WrongResult, random_pairs, split

KEYS = 1_000
BATCH = 1_000
CHUNK_BYTES = 1 << 20


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(1_000_000, 20_000)
    title, target = f"Recovery of {count:,} messages, half of them acked", Target(2, below=True)
    name = "open the folder, against reading its files with zlib.crc32"
    try:
        ours.check()
    except Missing as reason:
        yield Table(title, "seconds", [Row(name, (), (), target, str(reason))])
        return
    with TemporaryDirectory(prefix="inorder-bench-") as temporary:
        folder = Path(temporary, "data")
        if subprocess.run([sys.executable, "-m", "bench.recovery", folder, str(count)], check=False).returncode:
            raise WrongResult("the process that was to fill the journal failed")
        seconds = opening_and_reading(folder, count - count // 2, effort)
        size = sum(file.stat().st_size for file in _files(folder))
    rate = number(size / 1e6 / median(seconds["read"]))
    notes = [f"{number(size / 1e6)} MB of files, read and checksummed at {rate} MB/s."]
    yield Table(title, "seconds", [Row(name, seconds["open"], seconds["read"], target)], notes)


def opening_and_reading(folder: Path, waiting: int, effort: Effort) -> dict[str, list[float]]:
    """Seconds of both, in turns, for a folder in which so many messages wait."""
    return interleaved({"open": partial(_open, folder, waiting), "read": partial(_read, folder)}, effort)


def _open(folder: Path, waiting: int) -> float:
    with TemporaryDirectory(prefix="inorder-bench-") as temporary:
        copy = shutil.copytree(folder, Path(temporary, "data"))
        start = perf_counter()
        broker = ours.open_broker(copy)
        elapsed = perf_counter() - start
        with closing(broker):
            if ours.backlog(broker) != waiting:
                raise WrongResult(f"{ours.backlog(broker):,} messages came back, not {waiting:,}")
    return elapsed


def _read(folder: Path) -> float:
    start = perf_counter()
    for path in _files(folder):
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                checksum = zlib.crc32(chunk, checksum)
    return perf_counter() - start


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fill_and_die(folder: Path, count: int) -> None:
    queue = ours.Broker(ours.new_broker(folder))
    for batch in split(random_pairs(count, KEYS), BATCH):
        queue.publish(batch)
    left = count // 2
    while left:
        left -= len(queue.take(min(left, BATCH)))
        queue.ack()
    os._exit(0)  # without a word to the broker, as in a crash


if __name__ == "__main__":
    _fill_and_die(Path(sys.argv[1]), int(sys.argv[2]))
