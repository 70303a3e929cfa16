"""A queue in a table of PostgreSQL: COPY in, DELETE … SKIP LOCKED out, and the commit of that is the ack."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg

from bench.peers import NewQueue, Queue, servers
from bench.workload import Pair

CREATE = "CREATE TABLE messages (id bigserial PRIMARY KEY, key text NOT NULL, data bytea NOT NULL)"
COPY = "COPY messages (key, data) FROM STDIN (FORMAT BINARY)"
# An array, because a plan that joins is no better and sometimes reads the whole table.
TAKE = """
    DELETE FROM messages
    WHERE id = ANY (ARRAY(SELECT id FROM messages ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s))
    RETURNING id, key, data
"""

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


class Table:
    def __init__(self, producer: Connection, consumer: Connection) -> None:
        self._producer = producer
        self._consumer = consumer

    def publish(self, messages: Sequence[Pair]) -> None:
        with self._producer.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.set_types(["text", "bytea"])
            for message in messages:
                copy.write_row(message)
        self._producer.commit()

    def take(self, count: int) -> list[bytes]:
        rows = self._consumer.execute(TAKE, (count,), binary=True).fetchall()
        return [data for _, _, data in sorted(rows)]

    def ack(self) -> None:
        self._consumer.commit()


def _answers(address: str) -> bool:
    """It listens a while before it does."""
    with suppress(psycopg.OperationalError), psycopg.connect(address):
        return True
    return False


@contextmanager
def started() -> Iterator[NewQueue]:
    initdb, postgres, port = servers.program("initdb"), servers.program("postgres"), servers.free_port()
    with servers.folder() as folder:
        data = folder / "data"
        servers.run([initdb, "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale"], folder)
        address = f"host={servers.HOST} port={port} user=bench dbname=postgres"
        command = [postgres, "-D", str(data), "-h", servers.HOST, "-p", str(port), "-k", str(folder), "-c", "fsync=on"]
        fast = signal.SIGINT  # at SIGTERM it would wait for its clients
        with (
            servers.running(command, folder, partial(_answers, address), fast),
            psycopg.connect(address, autocommit=True) as admin,
            psycopg.connect(address) as producer,
            psycopg.connect(address, prepare_threshold=0) as consumer,
        ):

            @contextmanager
            def new() -> Iterator[Queue]:
                admin.execute(CREATE)
                yield Table(producer, consumer)
                consumer.rollback()  # a take that finds nothing has begun a transaction, too
                admin.execute("DROP TABLE messages")

            yield new
