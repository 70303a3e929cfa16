"""Processes of the tests beside this file.

    python child.py crash PLACE FOLDER WHERE COUNT    consume from a broker in FOLDER, and be killed
    python child.py dispatch PLACE FOLDER WHERE COUNT the same with two handlers by event type
    python child.py race PLACE SEED                   consume the same events as others, from a broker of its own
    python child.py number PLACE BLOCK                print numbers of entities, as they come; a BLOCK of 0 is gapless

PLACE is the database. WHERE is "handler", "commit" or "ack": the process kills itself there, the COUNTth time.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

if __package__:  # a test asks what the events are
    from .desk import Database, desk, open_store, read, run, wait_until, write_down
else:
    from desk import Database, desk, open_store, read, run, wait_until, write_down

from inorder import PubSub
from inorder.consumers import Consumer, Dispatcher, Sequences
from inorder.consumers.store import Commit, at_once
from inorder.patterns import Events, Resequencer

KEYS, NUMBERS = 5, 20
COUNT = 60
PATTERN = Resequencer(when_full="gap")


def all_events() -> list[tuple[Any, ...]]:
    return [(f"k{key}", number) for number in range(1, NUMBERS + 1) for key in range(KEYS)]


class Countdown:
    """Kills the process the so-manieth time it is asked."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingStore:
    """Dies right before or right after a commit."""

    def __init__(self, store: Any, before: Any, after: Any) -> None:
        self.store, self.before, self.after = store, before, after
        self.trouble, self.close, self.in_transaction = store.trouble, store.close, store.in_transaction

    @contextmanager
    def transaction(self, commit: Commit = at_once) -> Iterator[Any]:
        def die(end: Callable[[], None]) -> None:
            def dying() -> None:
                self.before()
                end()
                self.after()

            commit(dying)

        with self.store.transaction(die) as connection:
            yield connection


def crash(place: str, folder: str, where: str, count: str) -> None:
    die = {name: Countdown(int(count) if name == where else 0) for name in ("handler", "commit", "ack")}

    def apply(event: Any, raw: Any) -> None:
        write_down(event, raw)
        die["handler"]()

    store: Any = DyingStore(open_store(place), die["commit"], die["ack"])
    with PubSub(f"file:{folder}") as pubsub:
        subscription = pubsub.subscription("worker")
        with Consumer(subscription, PATTERN, store=store, read=read, apply=apply, batch=7):
            wait_until(lambda: not subscription.metrics().result().backlog_messages)


def dispatch(place: str, folder: str, where: str, count: str) -> None:
    die = {name: Countdown(int(count) if name == where else 0) for name in ("handler", "commit", "ack")}
    events = Events(undecodable="fail")

    def handler(name: str) -> Any:
        def handle(event: Any, raw: Any) -> None:
            statement = "INSERT INTO effects (entity, event) VALUES (:entity, :event)"
            run(raw, statement, entity=event[0], event=json.dumps([name, event[1]]))
            die["handler"]()

        return handle

    for name in ("first", "second"):
        events.handles("Numbered", name=name)(handler(name))
    store: Any = DyingStore(open_store(place), die["commit"], die["ack"])
    with PubSub(f"file:{folder}") as pubsub:
        subscription = pubsub.subscription("worker")
        with Dispatcher(subscription, events, store=store, batch=7):
            wait_until(lambda: not subscription.metrics().result().backlog_messages)


def race(place: str, seed: str) -> None:
    events = all_events()
    Random(seed).shuffle(events)
    with desk(Database(place)) as here:
        here.publish(events)
        here.consume(PATTERN, batch=4)
        assert not here.errors, here.errors


def number(place: str, block: str) -> None:
    store = open_store(place)
    if int(block):
        sequences = Sequences(store, block=int(block))
        for n in range(COUNT):
            print(f"e{n % 2}", sequences.next(f"e{n % 2}"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the rest of its blocks is lost
    sequences = Sequences(store, gapless=True)
    random = Random(os.getpid())
    for n in range(COUNT):
        try:
            with store.transaction() as connection:
                taken = sequences.next(f"e{n % 2}", connection.raw)
                assert random.random() < 0.7, "rolled back"
        except AssertionError:
            continue
        print(f"e{n % 2}", taken, flush=True)


if __name__ == "__main__":
    {"crash": crash, "dispatch": dispatch, "race": race, "number": number}[sys.argv[1]](*sys.argv[2:])
