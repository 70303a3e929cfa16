"""What was called, how it ended and how long it took: counted, and told to the log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from time import perf_counter
from typing import Any

import grpc

from inorder.server.gates import Method, Served
from inorder.server.status import Context, caller
from inorder.server.tunnel import peer_of

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_log = logging.getLogger(__name__)


class Calls:
    """A gate, the outermost: what the others refuse is counted, too."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()  # by call, as package.Service/Call, and code
        self.seconds: defaultdict[str, float] = defaultdict(float)  # by call, of those that are no streams
        self.streams: Counter[str] = Counter()  # that are open

    def __call__(self, method: Method, call: Served) -> Served:
        name = method.name[1:]
        streams = method.requests or method.responses

        async def run(request: Any, context: Context) -> Any:
            began = perf_counter()
            if streams:
                self.streams[name] += 1
            code = "OK"
            try:
                return await call(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except BaseException:
                code = _CODES.get(_number(context.code()) or 2, "UNKNOWN")  # if it says OK it was not asked to end
                raise
            finally:
                seconds = perf_counter() - began
                self.ended[name, code] += 1
                if streams:
                    self.streams[name] -= 1
                else:
                    self.seconds[name] += seconds
                if _log.isEnabledFor(logging.DEBUG):
                    _tell(name, code, seconds, context)

        return run


def _number(code: Any) -> int:
    return code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)


def _tell(name: str, code: str, seconds: float, context: Context) -> None:
    facts = {"call": name, "code": code, "seconds": round(seconds, 6), "peer": peer_of(context)}
    if token := caller.get():
        facts["token"] = token
    _log.debug("%s ended with %s after %.6f seconds", name, code, seconds, extra={"facts": facts})
