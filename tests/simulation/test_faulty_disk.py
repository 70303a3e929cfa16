"""Seeded runs of a broker on a disk that fails: nobody is told what is not true, and what was answered is there.

A failure prints its seed; `live_through(seed)` replays it. DISK_SEEDS says how many runs there are.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Literal

import pytest

from inorder.broker import MessageQueue
from inorder.core import subscription
from inorder.errors import DataLoss, InorderError, JournalFailed
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.message import DATA, POSITION, Message, batch_of
from inorder.options import TopicOptions
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.faults import Faults, FaultyDisk, PowerCut

from .durable_machine import abandon, write_at_once

SEEDS = int(os.environ.get("DISK_SEEDS", "300"))
LIVES = 3
KEYS = ("a", "b", "c", None)
FREE = {"ack_deadline_seconds": 600, "retry_policy": {"minimum_backoff": 1, "maximum_backoff": 2}}
ORDERED = {**FREE, "enable_message_ordering": True}
OPTIONS = {"worker": ORDERED, "audit": FREE, "replay": {**ORDERED, "max_outstanding_per_key": 3}}

Stands = Literal["waits", "done", "either"]  # "either": it was asked for and never answered


@pytest.fixture(autouse=True)
def small_memory(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    monkeypatch.setattr(subscription, "READ_AHEAD", 5)
    monkeypatch.setattr(subscription, "HOT_BYTES", 0)


class Run:
    """One broker in several lives, and what its callers know of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"broker {seed}")
        self.disk = FaultyDisk(seed, sector_bytes=self.random.choice((16, 64, 512)))
        self.clock = ManualClock()
        self.published: dict[int, bytes] = {}  # by position
        self.sent: set[bytes] = set()  # and not answered
        self.known: dict[str, dict[int, Stands]] = {name: {} for name in OPTIONS}
        self.failures: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in OPTIONS}  # at least, at most
        self.loose: set[tuple[str, int]] = set()  # acked or nacked, and not synced since: power may undo it
        self.scratch: Stands = "done"
        self.happened: Counter[str] = Counter()
        self.broker = self.open()
        self.broker.register_topic("orders", TopicOptions(message_retention_duration=10**6))
        for name, options in OPTIONS.items():
            self.broker.register_subscription(name, "orders", options)
        self.broker.close()

    def open(self) -> MessageQueue:
        journal = Journal(SegmentStore(self.disk, segment_bytes=1500), snapshot_bytes=self.random.choice((2000, 9000)))
        return write_at_once(MessageQueue(self.clock, journal))

    def faults(self) -> Faults:
        random = self.random
        match random.choice(("power", "power", "errors", "full", "none")):
            case "power":
                return Faults(power_cut_at=random.randint(1, 80), short_write=0.1)
            case "errors":
                return Faults(short_write=0.2, write_error=0.01, sync_error=0.02)
            case "full":
                return Faults(short_write=0.1, capacity=random.randint(3_000, 20_000))
        return Faults(short_write=0.1)

    # -- what callers do ---------------------------------------------------------------------------

    def work(self) -> None:
        verbs: list[Callable[[], None]] = [self.publish, self.publish_together, self.consume, self.replay, self.change]
        for _ in range(self.random.randint(0, 30)):
            self.random.choices(verbs, (6, 3, 10, 1, 1))[0]()
            self.clock.advance(self.random.choice((0, 0, 0.5, 3)))

    def draft(self) -> Message:
        value = b"%d" % (len(self.sent) + len(self.published) + self.happened["sent"])
        self.happened["sent"] += 1
        self.sent.add(value)
        return Message(value.ljust(self.random.choice((0, 100)), b"."), None, self.random.choice(KEYS))

    def publish(self) -> None:
        messages = [self.draft() for _ in range(self.random.randint(1, 3))]
        self.answered(messages, self.broker.publish("orders", messages))
        self.loose.clear()

    def answered(self, messages: Iterable[Message], ids: Iterable[str]) -> None:
        for message, message_id in zip(messages, ids, strict=True):
            position = int(message_id.rpartition("-")[2])
            assert position not in self.published, f"position {position} was given twice"
            self.published[position] = value_of(message.data)
            self.sent.discard(value_of(message.data))
            for known in self.known.values():
                known.setdefault(position, "waits")  # it may have been pulled and acked since

    def publish_together(self) -> None:
        """Several callers wait for one write, and somebody seeks, acks or deletes meanwhile."""
        answers: list[tuple[Message, Pending[list[str]]]] = []
        told: Counter[int] = Counter()
        for number in range(self.random.randint(1, 4)):
            message = self.draft()
            answer = self.broker._submit("orders", batch_of([message]))
            answer.add_done_callback(lambda _, number=number: told.update([number]))
            answers.append((message, answer))
        try:
            self.random.choice((self.publish, self.consume, self.change))()
            self.broker.durable().result()
            self.loose.clear()
        finally:
            for number, (message, answer) in enumerate(answers):
                if answer.done():
                    assert told[number] == 1, f"{told[number]} answers to one publish"
                    if answer.exception() is None:
                        self.answered([message], answer.result())
                    else:
                        assert isinstance(answer.exception(), JournalFailed)

    def consume(self) -> None:
        name = self.random.choice(list(OPTIONS))
        for message in self.broker.pull(name, self.random.choice((1, 4))):
            known, failures = self.known[name], self.failures[name]
            position = message.position
            assert position is not None
            assert known.get(position, "either") != "done", f"{name}: {position} was acked and came again"
            least, most = failures.get(position, (0, 0))
            assert least < message.delivery_attempt <= most + 1, f"{name}: attempt {message.delivery_attempt}"
            match self.random.choice(("ack", "ack", "nack", "nothing")):
                case "ack":
                    self.loose.add((name, position))
                    known[position] = "either"
                    self.broker.ack(message.ack_id)
                    known[position] = "done"
                case "nack":
                    self.loose.add((name, position))
                    failures[position] = (least, most + 1)
                    self.broker.nack(message.ack_id)
                    failures[position] = (message.delivery_attempt, most + 1)
                    return  # what is out behind it in its key is taken back

    def replay(self) -> None:
        end = max(self.published, default=-1) + 1
        position = self.random.randint(max(0, end - 10), end)
        before = dict(self.known["replay"])
        self.known["replay"] = dict.fromkeys(before, "either")
        self.failures["replay"] = {p: (0, most) for p, (_, most) in self.failures["replay"].items()}
        self.broker.seek("replay", position=position)
        self.known["replay"] = {known: "waits" if known >= position else "done" for known in before}
        self.failures["replay"].clear()
        self.loose.clear()

    def change(self) -> None:
        """A topic comes or goes."""
        there, self.scratch = self.scratch, "either"
        if there == "waits":
            self.broker.unregister_topic("scratch")
            self.scratch = "done"
        else:
            self.broker.register_topic("scratch")
            self.scratch = "waits"
            self.broker.publish("scratch", [Message(b"x" * 200)])

    # -- what must be true -------------------------------------------------------------------------

    def check_stopped(self) -> None:
        """Everybody is told that the journal has failed."""
        calls: dict[str, Callable[[], object]] = {
            "publish": lambda: self.broker.publish("orders", [Message(b"x")]),
            "pull": lambda: self.broker.pull("worker", 1),
            "seek": lambda: self.broker.seek("worker", position=0),
            "register": lambda: self.broker.register_topic("new"),
        }
        for name, call in calls.items():
            try:
                call()
            except JournalFailed:
                continue
            raise AssertionError(f"{name} was answered after the journal failed")

    def check(self) -> None:
        """After a restart: what was answered is there, and what was not is one thing or the other."""
        topic = self.broker._state.topics["orders"]
        book = self.broker._state.book()
        assert topic.next_position > max(self.published, default=-1), "an answered publish is gone"
        stored: dict[int, bytes] = {}
        while records := topic.history.read(max(stored, default=-1) + 1, topic.next_position):
            stored.update((record[POSITION], value_of(record[DATA])) for record in records)
        for position in range(topic.next_position):
            if position not in self.published:
                value = stored.get(position)
                assert value in self.sent, f"{position} is {value!r}, which was never sent"
                self.sent.discard(value)
                self.published[position] = value
                for name in OPTIONS:
                    self.known[name][position] = "either"
        for name, known in self.known.items():
            done, failures = book.subscriptions[name].sorted_done(), book.subscriptions[name].failures
            for position, stands in known.items():
                there: Stands = "done" if position in done else "waits"
                assert stands in ("either", there), f"{name}: {position} is {there}, not {stands}"
                known[position] = there
                if there == "waits":
                    assert stored[position] == self.published[position]
                    least, most = self.failures[name].get(position, (0, 0))
                    times = failures[position].times if position in failures else 0
                    assert least <= times <= most, f"{name}: {position} failed {times} times, not {least} to {most}"
                    self.failures[name][position] = (times, times)
        there = "waits" if self.broker.topic_exists("scratch") else "done"
        assert self.scratch in ("either", there)
        self.scratch = there

    def check_order(self) -> None:
        """All that waits comes, each key in order, and nothing else."""
        for name, known in self.known.items():
            waiting = sorted(position for position, stands in known.items() if stands == "waits")
            came: list[int] = []
            last: dict[str, int] = {}
            for _ in range(10_000):
                self.clock.advance(2)
                messages = self.broker.pull(name, 50)
                for message in messages:
                    assert message.position is not None
                    came.append(message.position)
                    if message.ordering_key and name != "audit":
                        assert last.get(message.ordering_key, -1) < message.position, f"{name}: out of order: {came}"
                        last[message.ordering_key] = message.position
                self.broker.ack([message.ack_id for message in messages])
                if not self.broker.metrics(name).backlog_messages:
                    break
            assert sorted(came) == waiting, f"{name}: {sorted(came)} came, not {waiting}"

    # -- lives -------------------------------------------------------------------------------------

    def live(self) -> None:
        """One life, ended by a fault or well."""
        try:
            self.broker = self.open()
            self.check()
            self.disk.faults = self.faults()
            self.work()
            self.broker.close()
            self.loose.clear()
            self.happened["closed"] += 1
        except JournalFailed as error:
            self.happened[f"failed to {error.operation}"] += 1
            if self.broker._failure is not None:
                self.check_stopped()
            self.broker.close()
        except PowerCut:
            self.happened["power cut"] += 1
            abandon(self.broker)
        for name, position in self.loose:
            self.known[name][position] = "either"
            self.failures[name][position] = (0, self.failures[name].get(position, (0, 0))[1])
        self.loose.clear()
        self.random.choice((self.disk.restart, self.disk.restart, self.disk.restart_without_the_unsynced))()


def value_of(data: bytes) -> bytes:
    return data.rstrip(b".")


def live_through(seed: int) -> Counter[str]:
    """Some lives on one disk, the last of them a good one. Returns what happened, to see that everything does."""
    run = Run(seed)
    try:
        for _ in range(LIVES):
            run.live()
        run.broker = run.open()
        run.check()
        run.check_order()
        run.broker.close()
    except (AssertionError, InorderError, LookupError) as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return run.happened


def rot(seed: int) -> str:
    """One bit turns around while nobody looks: that is said, or nothing is lost.

    The machine is well otherwise. What a power cut and a flipped bit do together to the very last frame cannot be
    told from a frame that never was whole.
    """
    run = Run(seed)
    run.broker = run.open()
    run.work()
    if run.random.random() < 0.5:
        run.broker.close()
    abandon(run.broker)
    run.disk.kill()
    name = run.random.choice([name for name in run.disk.names() if name != "lock" and run.disk.read(name)])
    byte = run.disk.flip_bit(name)
    try:
        run.broker = run.open()
        run.check()
        run.check_order()
        run.broker.close()
    except DataLoss:
        return "said"
    except (AssertionError, InorderError, LookupError) as error:
        raise AssertionError(f"seed {seed}, byte {byte} of {name}: {error!r}") from error
    return "harmless"


def test_what_was_answered_is_there_whatever_the_disk_does() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += live_through(seed)
    for kind in ("closed", "power cut", "failed to write", "failed to sync", "failed to save"):
        assert happened[kind] > SEEDS // 100, f"{kind} happened too seldom: {happened}"


def test_a_flipped_bit_is_said_or_harmless() -> None:
    outcomes = Counter(rot(seed) for seed in range(SEEDS // 2))
    assert outcomes["said"] > SEEDS // 20, outcomes
    assert outcomes["harmless"] > 0, outcomes
