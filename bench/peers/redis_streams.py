"""A Redis stream with a consumer group; by default the append-only file is synced before anything is answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import redis

from bench.peers import NewQueue, Queue, servers
from bench.workload import Pair

STREAM, GROUP, CONSUMER = "messages", "group", "consumer"


class Stream:
    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client  # its annotations cannot tell the waiting client from the asyncio one
        self._out: list[bytes] = []

    def publish(self, messages: Sequence[Pair]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, data in messages:
            pipeline.xadd(STREAM, {"key": key, "data": data})
        pipeline.execute()

    def take(self, count: int) -> list[bytes]:
        # Protocol 2: [[stream, [(id, fields), …]]], or nothing.
        answer = self._client.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=count)
        entries = answer[0][1] if answer else []
        self._out = [entry[0] for entry in entries]
        return [fields[b"data"] for _, fields in entries]

    def ack(self) -> None:
        self._client.xack(STREAM, GROUP, *self._out)


@contextmanager
def started(appendfsync: str = "always") -> Iterator[NewQueue]:
    server, port = servers.program("redis-server"), servers.free_port()
    options = {"bind": servers.HOST, "port": port, "appendonly": "yes", "appendfsync": appendfsync, "save": ""}
    with servers.folder() as folder:
        command = [server, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        with (
            servers.running([*command, "--dir", str(folder)], folder, partial(servers.listens, port)),
            closing(redis.Redis(servers.HOST, port, protocol=2)) as client,
        ):

            @contextmanager
            def new() -> Iterator[Queue]:
                client.xgroup_create(STREAM, GROUP, mkstream=True)
                yield Stream(client)
                client.delete(STREAM)

            yield new
