"""What a server does now and then, for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)


async def now_and_then(seconds: float, what: str, chore: Callable[[], Awaitable[None]]) -> None:
    """Do it again and again, with such pauses. One that failed is logged: the next may do what it has left undone."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except Exception:
            _log.exception("%s failed, and is tried again in %g seconds", what, seconds)
