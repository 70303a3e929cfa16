"""A stream of NATS JetStream in files, published to by tasks that each wait for the answer.

`sync_interval: always` syncs before it answers; the server of Debian 12 (2.9.10) does not know it.
By default NATS answers first and syncs every two minutes: a power cut loses what was answered for
meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import nats
from nats.js import JetStreamContext
from nats.js.api import StorageType

from bench.peers import Missing, NewPublisher, servers

STREAM = "messages"


class Stream:
    def __init__(self, context: JetStreamContext) -> None:
        self._context = context
        self._consumer: JetStreamContext.PullSubscription | None = None

    async def publish(self, key: str, data: bytes) -> None:
        await self._context.publish(f"{STREAM}.{key}", data)

    async def take_and_ack(self, count: int) -> list[bytes]:
        """The data of the next ones, which are done by that."""
        if self._consumer is None:
            self._consumer = await self._context.pull_subscribe(f"{STREAM}.*", "bench")
        messages = await self._consumer.fetch(count)
        for message in messages:
            await message.ack()
        return [message.data for message in messages]

    async def stored(self) -> int:
        count: int = (await self._context.stream_info(STREAM)).state.messages
        return count


@contextmanager
def started(sync_always: bool) -> Iterator[NewPublisher]:
    server, port = servers.program("nats-server"), servers.free_port()
    sync = "sync_interval: always" if sync_always else ""
    with servers.folder() as folder:
        config = folder / "nats.conf"
        config.write_text(
            f'listen: "{servers.HOST}:{port}"\njetstream {{\n  store_dir: "{folder / "store"}"\n  {sync}\n}}\n'
        )
        _check(server, config)
        with servers.running([server, "-c", config], folder, partial(servers.listens, port)):
            yield partial(_stream, port)


def _check(server: str, config: Path) -> None:
    try:
        servers.run([server, "-t", "-c", config], config.parent)
    except Missing as refused:
        raise Missing(f"a nats-server newer than {servers.version('nats-server')}") from refused


@asynccontextmanager
async def _stream(port: int) -> AsyncIterator[Stream]:
    """A client belongs to one event loop, so each run has its own."""
    client = await nats.connect(f"nats://{servers.HOST}:{port}")
    try:
        context = client.jetstream()
        await context.add_stream(name=STREAM, subjects=[f"{STREAM}.*"], storage=StorageType.FILE)
        yield Stream(context)
        await context.delete_stream(STREAM)
    finally:
        await client.close()
