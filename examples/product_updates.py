"""`ProductUpdated` carries the whole product, so an old one that comes late puts an old price back.

The consumer keeps the version beside the product: check and write are one transaction, whatever is delivered twice.
"""

import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from inorder import Message, PubSub
from inorder.consumers import Consumer, SqliteStore
from inorder.patterns import VersionGate

UPDATES = [
    {"id": "product-1", "version": 1, "name": "Kettle", "price": 30},
    {"id": "product-1", "version": 2, "name": "Kettle", "price": 25},
    {"id": "product-1", "version": 3, "name": "Kettle, steel", "price": 28},
]
ARRIVE = [0, 2, 2, 1]  # version 3 comes twice; version 2 was retried and is late

UPSERT = "INSERT INTO products VALUES (:id, :name, :price) ON CONFLICT (id) DO UPDATE SET name=:name, price=:price"


def without_pattern():
    """Whatever comes is written."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE products (id PRIMARY KEY, name, price)")
        for index in ARRIVE:
            database.execute(UPSERT, UPDATES[index])
        return database.execute("SELECT * FROM products").fetchall()


def with_pattern():
    """What is older than what is there is ignored."""

    def read(message):
        update = json.loads(message.data)
        return update["id"], update["version"]

    def write(event, database):
        database.execute(UPSERT, event.json())

    with tempfile.TemporaryDirectory() as folder, PubSub("memory:") as pubsub:
        path = Path(folder) / "shop.db"
        topic = pubsub.topic("products").create().result()
        subscription = topic.subscription("shop").create().result()
        topic.publish_many([Message(json.dumps(UPDATES[index]).encode()) for index in ARRIVE]).result()

        with closing(sqlite3.connect(path)) as database, closing(SqliteStore(path)) as store:
            database.execute("CREATE TABLE products (id PRIMARY KEY, name, price)")
            with Consumer(subscription, VersionGate(mode="latest_only"), store=store, read=read, apply=write):
                while subscription.metrics().result().backlog_messages:
                    time.sleep(0.01)  # yours would run for ever
            return database.execute("SELECT * FROM products").fetchall()


def expected():
    newest = max(UPDATES, key=lambda update: update["version"])
    return [(newest["id"], newest["name"], newest["price"])]


if __name__ == "__main__":
    print("arrived:        ", "versions", [UPDATES[index]["version"] for index in ARRIVE])
    print("without pattern:", without_pattern())
    print("with pattern:   ", with_pattern())
