"""A topic as a source of Spark, and rows of Spark as messages of a topic: rows a second, and small batches.

By the folder of the broker, and over the wire, from a server in a process of its own on the same cores.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from bench.report import Effort, Row, Table, Target, interleaved, number
from bench.spark_rows import ALL, CORES, MISSING, nowhere, session, timed
from bench.workload import MESSAGE_BYTES, WrongResult
from inorder import Message
from inorder.broker import MessageQueue

SOURCE, SINK = Target(250_000, figure=True), Target(150_000, figure=True)
KEYS = 1_000
OVER_THE_WIRE = ", over the wire"
SMALL = 100  # rows of a batch whose latency is measured


def measure(effort: Effort) -> Iterator[Table]:
    if find_spec("pyspark") is None:
        yield Table("Spark, topics", "rows/s", [Row("source", (), missing=MISSING)])
        return
    rows = effort.of(1_000_000, 60_000)
    with session() as spark, TemporaryDirectory(prefix="inorder-bench-") as folder:
        topics = _Topics(spark, Path(folder), rows)
        with _served(Path(folder), rows) as url:
            served = _Topics(spark, Path(folder), rows, url)
            rates = interleaved({**_contestants(topics), **_contestants(served, OVER_THE_WIRE)}, effort)
        names = [*_contestants(topics)]
        yield Table(
            f"Spark, a topic of {rows:,} messages of {MESSAGE_BYTES} bytes, {KEYS:,} keys",
            "rows/s",
            [
                *(Row(name, rates[name], (), SOURCE if name.startswith("source") else SINK) for name in names),
                *(Row(name + OVER_THE_WIRE, rates[name + OVER_THE_WIRE], rates[name]) for name in names),
            ],
            [
                f"{CORES} cores; into a sink that does nothing, the start of a query is part of it",
                "a sink is done when its batch is committed; the owner of the folder publishes it afterwards",
                (
                    "the sink as a stream reads the topic as well; "
                    f"the owner then publishes {number(topics.taken_in())} messages/s"
                ),
                "over the wire: beside the folder in the same moment; the server publishes meanwhile",
            ],
        )
        yield Table(
            f"Spark, a topic: micro-batches of {SMALL} rows",
            "ms",
            [Row("from the trigger to the commit", topics.small_batches())],
        )


def _contestants(topics: _Topics, where: str = "") -> dict[str, Callable[[], float]]:
    return {
        f"source, as a table{where}": topics.table,
        f"source, as a stream{where}": topics.stream,
        f"sink, as a table{where}": topics.write,
        f"sink, as a stream{where}": topics.copy,
    }


def _fill(folder: Path, rows: int) -> None:
    """A topic that is full, and one that is written."""
    with closing(MessageQueue.open(folder)) as queue:
        queue.register_topic("in", {"message_retention_duration": 86_400})
        queue.register_topic("out", {"message_retention_duration": 86_400})
        data = bytes(MESSAGE_BYTES)
        for start in range(0, rows, 1_000):
            queue.publish(
                "in", [Message(data, ordering_key=f"key-{one % KEYS}") for one in range(start, start + 1_000)]
            )


@contextmanager
def _served(folder: Path, rows: int) -> Iterator[str]:
    """The same topics behind a server; its address."""
    _fill(folder / "served", rows)
    command = [sys.executable, "-m", "inorder", "serve", "--port", "0", "--data", str(folder / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"grpc://{process.stdout.readline().strip().rpartition('=')[2]}"
        finally:
            process.terminate()


class _Topics:
    """Both topics, by their folder or by the address of a server."""

    def __init__(self, spark: Any, folder: Path, rows: int, url: str = "") -> None:
        self.spark, self.folder, self.rows = spark, folder, rows
        self._runs = count()
        self._name = "served" if url else "data"
        self._url = url or str(folder / "data")
        if not url:
            _fill(folder / "data", rows)

    def _owner(self) -> MessageQueue:
        return MessageQueue.open(self.folder / "data")

    def _at(self, topic: str) -> dict[str, str]:
        return {"url": self._url, "topic": topic}

    def table(self) -> float:
        begin = perf_counter()
        nowhere(self.spark.read.format("inorder").options(**self._at("in")).load())
        return self.rows / (perf_counter() - begin)

    def stream(self) -> float:
        return self._timed(self._in().writeStream.format("noop"))

    def write(self) -> float:
        rows = self.spark.range(0, self.rows, 1, CORES).selectExpr(
            f"concat('key-', id % {KEYS}) AS ordering_key", f"repeat('x', {MESSAGE_BYTES}) AS data"
        )
        begin = perf_counter()
        rows.write.format("inorder").options(**self._at("out")).mode("append").save()
        return self.rows / (perf_counter() - begin)

    def copy(self) -> float:
        return self._timed(
            self._in().select("ordering_key", "data").writeStream.format("inorder").options(**self._at("out"))
        )

    def taken_in(self) -> float:
        """What the sinks wrote becomes messages, when an owner comes."""
        with closing(self._owner()) as queue:
            begin = perf_counter()
            queue.take_in()
            seconds = perf_counter() - begin
        written = self.spark.read.format("inorder").options(**self._at("out")).load().count()
        if written % self.rows or not written:
            raise WrongResult(f"{written:,} messages, where each run has {self.rows:,}")
        return float(written / seconds)

    def small_batches(self) -> list[float]:
        rows = self._in(maxRowsPerTrigger=SMALL, startingPosition=self.rows - 30 * SMALL)
        writer = rows.writeStream.format("noop").trigger(**ALL)
        run = timed(30 * SMALL, self._checkpoint(), lambda at: writer.option("checkpointLocation", at).start())
        return [float(one) for one in run.batch_ms[5:]]  # by then it has settled

    def _in(self, **options: Any) -> Any:
        return self.spark.readStream.format("inorder").options(**self._at("in"), **options).load()

    def _timed(self, writer: Any) -> float:
        writer = writer.trigger(**ALL)
        return timed(self.rows, self._checkpoint(), lambda at: writer.option("checkpointLocation", at).start()).rate

    def _checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{self._name}-{next(self._runs)}"
