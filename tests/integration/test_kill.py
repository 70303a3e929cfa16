"""`kill -9`, many times: what a broker answered for is there afterwards, in order, and what was acked stays away.

One folder lives through many short lives. Each ends at a random moment, some of them while the broker opens.
KILLS says how many there are.
"""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.core.ledger import Book
from inorder.testing.history import History, anomalies

from .victim import SCRATCH, SUBSCRIPTIONS, TOPIC, opened

VICTIM = Path(__file__).parent / "victim.py"
KILLS = int(os.environ.get("KILLS", "20"))


class Promises:
    """All that any life was told, and what must be true because of it."""

    def __init__(self) -> None:
        self.histories = {name: History() for name in SUBSCRIPTIONS}
        self.position_of: dict[str, int] = {}  # of answered messages, by value
        self.named: dict[int, str] = {}  # by position, all that was ever answered or delivered
        self.acking: dict[str, set[str]] = {name: set() for name in SUBSCRIPTIONS}
        self.acked: dict[str, set[str]] = {name: set() for name in SUBSCRIPTIONS}
        self.nacking: dict[str, Counter[str]] = {name: Counter() for name in SUBSCRIPTIONS}
        self.nacked: dict[str, Counter[str]] = {name: Counter() for name in SUBSCRIPTIONS}
        self.prefix = ""
        self.changed = self.changing = ""
        self.seen: Counter[str] = Counter()

    def hear(self, kind: str, *rest: Any) -> None:
        self.seen[kind] += 1
        match kind:
            case "publishing":
                for history in self.histories.values():
                    history.publishing(*rest)
            case "published":
                key, value, message_id = rest
                for history in self.histories.values():
                    history.published(key, value)
                self.position_of[value] = self.name(value, message_id)
            case "changing":
                (self.changing,) = rest
            case "changed":
                (self.changed,) = rest
                self.changing = ""
            case "started":
                self.check_delivery(*rest)
            case "acking" | "acked":
                name, key, value, _ = rest
                getattr(self.histories[name], kind)(key, value)
                getattr(self, kind)[name].add(value)
            case "nacking" | "nacked":
                name, key, value, _ = rest
                if kind == "nacking":
                    self.histories[name].failed(key, value)
                getattr(self, kind)[name][value] += 1

    def name(self, value: str, message_id: str) -> int:
        """Every message has one id and one position for ever."""
        prefix, _, number = message_id.rpartition("-")
        self.prefix = self.prefix or prefix
        assert prefix == self.prefix, f"{message_id} does not begin as the others, with {self.prefix}"
        assert self.named.setdefault(int(number), value) == value, f"{message_id} is of two messages"
        return int(number)

    def check_delivery(
        self, name: str, key: str, value: str, ack_id: str, message_id: str, position: int, attempt: int
    ) -> None:
        self.histories[name].started(key, value)
        assert self.name(value, message_id) == position
        assert self.position_of.get(value, position) == position, f"{value} was at {self.position_of[value]}"
        assert value not in self.acked[name], f"{value} came again to {name}, which had acked it"
        fewest, most = 1 + self.nacked[name][value], 1 + self.nacking[name][value]
        assert fewest <= attempt <= most, f"attempt {attempt} of {value}, not {fewest} to {most}"

    def check_books(self, broker: MessageQueue) -> None:
        """After a kill: everything is as those who were answered know it."""
        book: Book = broker._state.book()
        assert book.topics[TOPIC].next_position > max(self.position_of.values(), default=-1)
        history = broker._state.topics[TOPIC].history
        for name in SUBSCRIPTIONS:
            done = book.subscriptions[name].sorted_done()
            pending = [position for position in self.position_of.values() if position not in done]
            lost = {self.named[p] for p in self.position_of.values() if p in done} - self.acking[name]
            assert not lost, f"{name}: answered, never acked, and gone: {sorted(lost)[:5]}"
            back = {self.named[p] for p in pending} & self.acked[name]
            assert not back, f"{name}: acked, and there again: {sorted(back)[:5]}"
            for position in pending:
                (record,) = history.read(position, position + 1)
                assert record[2].decode().strip() == self.named[position]
            failures = book.subscriptions[name].failures
            for position in pending:
                known, value = failures.get(position), self.named[position]
                times = known.times if known else 0
                assert self.nacked[name][value] <= times <= self.nacking[name][value]
        self.check_changes(broker)

    def check_changes(self, broker: MessageQueue) -> None:
        topic, subscription = broker.topic_exists(SCRATCH), broker.get_subscription(SCRATCH)
        now = (topic, subscription is not None)
        after = {
            "": (False, False),
            "topic": (True, False),
            "subscription": (True, True),
            "message": (True, True),
            "no subscription": (True, False),
            "no topic": (False, False),
        }
        assert now in {after[self.changed], after[self.changing or self.changed]}
        self.changed, self.changing = {(False, False): "", (True, False): "topic", (True, True): "message"}[now], ""


def live(folder: Path, kind: str, promises: Promises, random: Random, life: int) -> None:
    """One life, killed at some moment: now and then while it opens, mostly while all are busy."""
    command = [sys.executable, str(VICTIM), str(folder), kind, str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        opening = random.random() < 0.2
        said = [] if opening else [process.stdout.readline()]
        timer = threading.Timer(random.uniform(0.05, 0.25) if opening else random.uniform(0, 0.3), process.kill)
        timer.start()
        said += process.stdout.readlines()
        timer.cancel()
    for line in said:
        promises.hear(*json.loads(line))
    assert process.returncode == -9, f"the process ended by itself, with {process.returncode}"


def drain(broker: MessageQueue, promises: Promises) -> None:
    """Consume all that is left."""
    for name in SUBSCRIPTIONS:
        broker.update_subscription(name, {"retry_policy": None})
        for _ in range(100_000):
            messages = broker.pull(name, 1000)
            for message in messages:
                key, value = message.ordering_key, message.data.decode().strip()
                rest = (message.ack_id, message.id, message.position, message.delivery_attempt)
                promises.hear("started", name, key, value, *rest)
                promises.hear("acking", name, key, value, "")
            broker.ack([message.ack_id for message in messages])
            for message in messages:
                promises.hear("acked", name, message.ordering_key, message.data.decode().strip(), "")
            if not broker.metrics(name).backlog_messages:
                break


@pytest.mark.parametrize(("kind", "kills"), [("segments", KILLS), ("sqlite", -(-KILLS // 3))])
def test_what_was_answered_survives_every_kill(kind: str, kills: int, tmp_path: Path) -> None:
    random, promises = Random(f"kill {kind} {kills}"), Promises()
    snapshots: set[str] = set()
    for life in range(kills):
        live(tmp_path, kind, promises, random, life)
        if not promises.seen["open"]:
            continue
        broker = opened(tmp_path, kind)
        try:
            promises.check_books(broker)
        finally:
            broker.close()
        snapshots |= {path.name for path in tmp_path.glob("*.snapshot")}
    broker = opened(tmp_path, kind)
    drain(broker, promises)
    broker.close()
    for name, history in promises.histories.items():
        found = anomalies(history)
        assert not found, f"{name}: {found}"
        assert not found.duplicates, f"{name}: {found}"
    assert promises.seen["acked"] > 10 * kills, f"too little happened: {promises.seen}"
    if kind == "segments":
        assert len(snapshots) > 1, "no snapshot was saved"
