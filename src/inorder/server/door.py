"""A door that closes before the server does: who comes later is told to try again, who is inside is answered.

A server of gRPC that stops just cancels the calls that it has received and not begun, and clients do not repeat what
was cancelled. So they are told before. Streams that are open stay so until the last moment: a client whose stream ends
opens another one at once, and has to know by then that the server goes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from inorder.server.gates import Method, Served
from inorder.server.health import HEALTH
from inorder.server.status import Context, abort, shutting_down

GRACE_SECONDS = 0.05  # for those who have sent something before they could know


class Door:
    """A gate for all calls but those about health."""

    def __init__(self) -> None:
        self._open = True
        self._inside = 0  # calls that are no streams
        self._empty = asyncio.Event()

    def __call__(self, method: Method, call: Served) -> Served:
        if method.name.startswith(f"/{HEALTH}/"):
            return call
        counts = not method.responses

        async def run(request: Any, context: Context) -> Any:
            if not self._open:
                await abort(context, shutting_down())
            self._inside += counts
            try:
                return await call(request, context)
            finally:
                self._inside -= counts
                if not self._open and not self._inside:
                    self._empty.set()

        return run

    async def close(self, seconds: float) -> None:
        """Let nobody in any more, and wait until all calls are answered, or for so long."""
        self._open = False
        if self._inside:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
            await asyncio.sleep(GRACE_SECONDS)
