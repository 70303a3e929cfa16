"""Real processes: one that is killed in the middle loses nothing and does nothing twice; several may share a name."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inorder import Message, PubSub

from .child import KEYS, NUMBERS, all_events
from .desk import PATIENCE_SECONDS, Database

CHILD = Path(__file__).with_name("child.py")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(CHILD), *arguments], stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> int:
    _, said = process.communicate(timeout=2 * PATIENCE_SECONDS)
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
    return process.returncode


def check(database: Database) -> None:
    """Every event once, each entity in order."""
    for key in range(KEYS):
        assert database.effects(f"k{key}") == [(f"k{key}", number) for number in range(1, NUMBERS + 1)]


@pytest.mark.parametrize("where", ["handler", "commit", "ack"])
def test_a_process_that_is_killed_loses_nothing_and_does_nothing_twice(
    database: Database, tmp_path: Path, where: str
) -> None:
    folder = tmp_path / "broker"
    events = all_events()
    with PubSub(f"file:{folder}") as pubsub:
        topic = pubsub.topic("events").create().result()
        topic.subscription("worker").create().result()
        mixed = [events[(place * 37) % len(events)] for place in range(len(events))]
        topic.publish_many([Message(json.dumps(event).encode(), {}, event[0]) for event in mixed]).result()
    for count in ("2", "9"):
        assert end(start("crash", database.place, str(folder), where, count)) == -signal.SIGKILL
    assert end(start("crash", database.place, str(folder), where, "-1")) == 0
    check(database)


@pytest.mark.parametrize("where", ["handler", "commit", "ack"])
def test_a_dispatcher_that_is_killed_runs_each_handler_once_and_in_order(
    database: Database, tmp_path: Path, where: str
) -> None:
    folder = tmp_path / "broker"
    events = all_events()[:40]
    with PubSub(f"file:{folder}") as pubsub:
        topic = pubsub.topic("events").create().result()
        topic.subscription("worker").create(enable_message_ordering=True).result()
        kind = {"event_type": "Numbered"}
        topic.publish_many([Message(json.dumps(event).encode(), kind, event[0]) for event in events]).result()
    for count in ("2", "4"):  # acks of several keys may go together, but those of one key do not
        assert end(start("dispatch", database.place, str(folder), where, count)) == -signal.SIGKILL
    assert end(start("dispatch", database.place, str(folder), where, "-1")) == 0
    for key in range(KEYS):
        expected = [(name, number) for number in range(1, 9) for name in ("first", "second")]
        assert database.effects(f"k{key}") == expected


def test_processes_that_get_the_same_events_do_each_once(database: Database) -> None:
    """ordering-guarantees Gotcha 1: each has a broker of its own, so all race on all entities, and on the tables."""
    processes = [start("race", database.place, str(seed)) for seed in range(3)]
    assert [end(process) for process in processes] == [0, 0, 0]
    check(database)
