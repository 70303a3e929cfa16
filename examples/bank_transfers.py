"""Transfers of an account: a withdrawal before its deposit is refused, and a repeated one is paid twice.

The bank numbers the transfers of each account. The consumer applies them by number, each once, and the balance is in
the same transaction as the progress.
"""

import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from inorder import Message, PubSub
from inorder.consumers import Consumer, SqliteStore
from inorder.patterns import Resequencer

TRANSFERS = [("anna", 1, 100), ("anna", 2, -80), ("anna", 3, 50), ("anna", 4, -60), ("ben", 1, 20), ("ben", 2, -5)]
ARRIVE = [1, 0, 4, 1, 3, 2, 5, 5]  # anna's withdrawal before her deposit, and again; ben's twice


def book(balances, account, amount):
    """What every bank does: no account goes below zero."""
    if balances.get(account, 0) + amount >= 0:
        balances[account] = balances.get(account, 0) + amount


def without_pattern():
    """As they come."""
    balances = {}
    for index in ARRIVE:
        account, _, amount = TRANSFERS[index]
        book(balances, account, amount)
    return dict(sorted(balances.items()))


def with_pattern():
    """By number: what is early is parked, in the database, and what was booked is not booked again."""

    def read(message):
        account, number, _ = json.loads(message.data)
        return account, number

    def transfer(event, database):
        account, _, amount = event.json()
        database.execute("INSERT OR IGNORE INTO accounts VALUES (?, 0)", [account])
        balances = dict(database.execute("SELECT * FROM accounts WHERE name = ?", [account]))
        book(balances, account, amount)
        database.execute("UPDATE accounts SET balance = ? WHERE name = ?", [balances[account], account])

    with tempfile.TemporaryDirectory() as folder, PubSub("memory:") as pubsub:
        path = Path(folder) / "bank.db"
        topic = pubsub.topic("transfers").create().result()
        subscription = topic.subscription("ledger").create().result()
        topic.publish_many([Message(json.dumps(TRANSFERS[index]).encode()) for index in ARRIVE]).result()

        with closing(sqlite3.connect(path)) as database, closing(SqliteStore(path)) as store:
            database.execute("CREATE TABLE accounts (name PRIMARY KEY, balance)")
            with Consumer(subscription, Resequencer(), store=store, read=read, apply=transfer):
                while subscription.metrics().result().backlog_messages:
                    time.sleep(0.01)  # yours would run for ever
            return dict(database.execute("SELECT * FROM accounts ORDER BY name"))


def expected():
    balances = {}
    for account, _, amount in TRANSFERS:
        book(balances, account, amount)
    return balances


if __name__ == "__main__":
    print("arrived:        ", [TRANSFERS[index] for index in ARRIVE])
    print("without pattern:", without_pattern())
    print("with pattern:   ", with_pattern())
