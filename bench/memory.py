"""What a queued message costs in memory, and whether it is given back.

Each repetition is a process of its own, whose resident memory is read before, between and after.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.report import Effort, Row, Table, Target, interleaved, spread
from bench.workload import MESSAGE_BYTES, ORDERED, WrongResult
from inorder import Message
from inorder.broker import MessageQueue

KEYS = 1_000
BATCH = 1_000


def measure(effort: Effort) -> Iterator[Table]:
    count = effort.of(1_000_000, 50_000)
    contestants = {name: partial(_in_a_process, name, count) for name in CONTESTANTS}
    runs = interleaved(contestants, effort, warm_up=0)

    def figures(name: str, who: str = "broker") -> list[float]:
        return [run[name] for run in runs[who]]

    yield Table(
        f"Memory of {count:,} messages, {KEYS:,} keys, against a dict of deques of (key, data)",
        "bytes a message",
        [
            Row(
                "while they wait", figures("queued"), figures("queued", "deques"), Target(500, below=True, figure=True)
            ),
            Row("still resident after the last was acked", figures("left")),
        ],
        [f"The deques leave {spread(figures('left', 'deques'))}."],
    )
    yield Table(
        "The same in blocks of Python's allocator",
        "blocks a message",
        [
            Row("while they wait", figures("blocks_queued")),
            Row("still allocated after the last was acked", figures("blocks_left")),
        ],
    )


def _in_a_process(name: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.memory", name, str(count)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if process.returncode:
        raise WrongResult("the process that was to be measured failed")
    figures: dict[str, float] = json.loads(process.stdout)
    return figures


class Broker:
    def __init__(self) -> None:
        self._broker = MessageQueue()
        self._broker.register_topic("t")
        self._broker.register_subscription("s", "t", ORDERED)

    def fill(self, numbers: range) -> None:
        self._broker.publish("t", [Message(_data(number), ordering_key=_key(number)) for number in numbers])

    def drain(self) -> int:
        pulled = self._broker.pull("s", BATCH)
        self._broker.ack([message.ack_id for message in pulled])
        return len(pulled)


class Deques:
    """As little as keeps messages by key."""

    def __init__(self) -> None:
        self._deques: dict[str, deque[tuple[str, bytes]]] = {_key(number): deque() for number in range(KEYS)}

    def fill(self, numbers: range) -> None:
        for number in numbers:
            key = _key(number)
            self._deques[key].append((key, _data(number)))

    def drain(self) -> int:
        return sum(messages.popleft() is not None for messages in self._deques.values() if messages)


CONTESTANTS: dict[str, type[Broker | Deques]] = {"broker": Broker, "deques": Deques}


def _key(number: int) -> str:
    return f"key-{number % KEYS}"


def _data(number: int) -> bytes:
    return b"%d" % number + bytes(MESSAGE_BYTES - len(str(number)))


def _fill_and_drain(name: str, count: int) -> dict[str, float]:
    contestant = CONTESTANTS[name]()
    for first in range(0, 10 * BATCH, BATCH):  # code and free lists are not what is measured
        contestant.fill(range(first, first + BATCH))
    while contestant.drain():
        pass
    before, blocks_before = _resident_bytes(), sys.getallocatedblocks()
    for first in range(0, count, BATCH):
        contestant.fill(range(first, first + BATCH))
    queued, blocks_queued = _resident_bytes(), sys.getallocatedblocks()
    drained = 0
    while taken := contestant.drain():
        drained += taken
    left, blocks_left = _resident_bytes(), sys.getallocatedblocks()
    if drained != count:
        raise WrongResult(f"{drained} of {count} messages came out")
    return {
        "queued": (queued - before) / count,
        "left": (left - before) / count,
        "blocks_queued": (blocks_queued - blocks_before) / count,
        "blocks_left": (blocks_left - blocks_before) / count,
    }


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(_fill_and_drain(sys.argv[1], int(sys.argv[2]))))
