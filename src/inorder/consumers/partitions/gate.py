"""Which messages of a partition count: those stored below the seal of the term they were published for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from inorder.consumers.partitions.resizing import Resizer
from inorder.consumers.partitions.router import ENTITY, TERM
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.partitions.table import Table
from inorder.errors import Closed
from inorder.message import Message
from inorder.patterns.partitioning import slot_of
from inorder.pool.functions import is_async

Handler = Callable[[Message], Any]

AGAIN_SECONDS = 0.2  # until the store is asked again that was not there

_log = logging.getLogger(__name__)


class Gate:
    """Stands before a handler. What does not count is acked here: its publisher sends it again, elsewhere."""

    def __init__(self, table: Table, resizer: Resizer, closing: threading.Event | None = None) -> None:
        self._table = table
        self._resizer = resizer
        self._closing = closing or threading.Event()
        self._sealing = threading.Lock()  # of many handlers that find it out at once, one does it

    def counts(self, message: Message) -> bool:
        """Whether a delivered message is to be handled. May wait for the store, after a change of the routes."""
        while True:
            try:
                return self._counts(message)
            except Closed:
                raise
            except Exception as error:
                # No message is blamed for a store that is not there. To wait for it may take long; who closes need not.
                if self._table.store.trouble(error) is None or self._closing.wait(AGAIN_SECONDS):
                    raise
                _log.debug("message %s waits for the store: %s", message.id, error)

    def _counts(self, message: Message) -> bool:
        routes = self._table.current()
        verdict = _verdict(routes, message)
        while verdict is None:
            with self._sealing:
                # A term that is not known here was written by somebody who did not come to tell everybody yet.
                verdict = _verdict(self._table.look().routes, message, latest=True)
                if verdict is None:
                    # The slot is leaving, and nobody has said yet from where on: we can, as well as whoever resizes.
                    self._resizer.seal()
        if not verdict:
            _log.debug("message %s came too late for its partition, and is sent again", message.id)
        return verdict

    def before(self, handler: Handler) -> Handler:
        """The handler for what counts; if it is `async def`, for one loop."""
        return self._before_async(handler) if is_async(handler) else self._before(handler)

    def _before(self, handler: Handler) -> Handler:
        def handle(message: Message) -> Any:
            if self.counts(message):
                return handler(message)
            message.ack()
            return None

        return handle

    def _before_async(self, handler: Handler) -> Handler:
        turn = asyncio.Lock()  # of many handlers that find the routes changed, one reads them

        async def checked(message: Message) -> bool | None:
            routes = await self._table.unchanged()
            return None if routes is None else _verdict(routes, message)

        async def handle(message: Message) -> None:
            verdict = await checked(message)
            if verdict is None:
                async with turn:
                    verdict = await checked(message)
                    if verdict is None:  # the store is not asked on a loop
                        verdict = await asyncio.to_thread(self.counts, message)
            if verdict:
                await handler(message)
            else:
                message.ack()

        return handle


def _verdict(routes: Routes, message: Message, *, latest: bool = False) -> bool | None:
    """None if these routes do not tell. Who publishes to a partition by himself is not asked for a term."""
    attributes = message.attributes
    if TERM not in attributes:
        return True
    # Where keys are ordering keys, an attribute of this name is the publisher's own: copied from elsewhere, perhaps.
    entity = (attributes.get(ENTITY) if routes.strict else "") or message.ordering_key or ""
    slot, number = slot_of(entity), int(attributes[TERM])
    if number > routes.route(slot).terms[-1].number and not latest:
        return None
    verdict = routes.judge(slot, number, message.position)
    return None if verdict == "undecided" else verdict == "counts"
