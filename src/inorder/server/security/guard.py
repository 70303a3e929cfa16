"""Every call has a token with the right to it, as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from inorder.server.chores import now_and_then
from inorder.server.gates import Method, Served
from inorder.server.security.rights import OPEN, RULES, Needed, needed
from inorder.server.security.tokens import MAX_TOKEN_LENGTH, Token, TokenFile
from inorder.server.status import Context, Refusal, abort, caller, invalid

LOOK_SECONDS = 1.0  # how often the file is looked at, and with it all that is running
FIRST_SECONDS = 30.0  # within which a stream says what it wants
_SCHEME = "bearer "  # in whatever letters

_NO_TOKEN = "The call has no valid token: send metadata `authorization: Bearer TOKEN`."


@dataclass(eq=False, slots=True)
class Running:
    """A call that a token was good for when it began."""

    task: asyncio.Task[Any]
    token: Token
    needs: Sequence[Needed]
    refusal: Refusal | None = None  # why it must end


class Guard:
    """A gate. Calls of tokens that are no longer good end within a moment."""

    def __init__(self, tokens: TokenFile, look_seconds: float = LOOK_SECONDS) -> None:
        self._tokens = tokens
        self._look_seconds = look_seconds
        self._running: set[Running] = set()

    def __call__(self, method: Method, call: Served) -> Served:
        rule = RULES.get(method.name)
        if method.name in RULES and rule is OPEN:
            return call

        async def run(request: Any, context: Context) -> Any:
            running: Running | None = None
            try:
                token = self._who(context)
                if rule is None:
                    raise Refusal(grpc.StatusCode.PERMISSION_DENIED, f"Nobody has the right to call {method.name}.")
                if method.requests and rule:
                    first = await _first(request)
                    needs = needed(rule, first)
                    request = _all(first, request)
                else:
                    needs = needed(rule, request) if rule else []
                _check(token, needs)
                task = asyncio.current_task()
                assert task is not None
                running = Running(task, token, needs)
                self._running.add(running)
                return await call(request, context)
            except asyncio.CancelledError:
                if running is None or running.refusal is None:
                    raise  # the client has gone
                running.task.uncancel()
                await abort(context, running.refusal)
            except Refusal as refusal:
                await abort(context, refusal)
            finally:
                if running is not None:
                    self._running.discard(running)

        return run

    def _who(self, context: Context) -> Token:
        presented = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        if len(presented) == 1 and isinstance(presented[0], str) and presented[0].lower().startswith(_SCHEME):
            secret = presented[0][len(_SCHEME) :].strip()
            token = self._tokens.find(secret) if len(secret) <= MAX_TOKEN_LENGTH else None
            if token is not None:
                caller.set(token.name)
                return token
        raise Refusal(grpc.StatusCode.UNAUTHENTICATED, _NO_TOKEN)

    async def run(self) -> None:
        """Look at the file now and then."""
        await now_and_then(self._look_seconds, "looking at the tokens", self._look)

    async def _look(self) -> None:
        self.look_again()

    def look_again(self) -> None:
        """Know what the file says, and end what it does not allow any more."""
        self._tokens.look_again()
        for running in tuple(self._running):
            token = self._tokens.again(running.token)
            try:
                if token is None:
                    raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "The token is no longer valid.")
                _check(token, running.needs)
            except Refusal as refusal:
                if running.refusal is None:
                    running.refusal = refusal
                    running.task.cancel(refusal)


def _check(token: Token, needs: Sequence[Needed]) -> None:
    for need in needs:
        if not need.granted(token):
            raise Refusal(
                grpc.StatusCode.PERMISSION_DENIED,
                f"Token {token.name!r} has no right to {' or '.join(need.rights)} (resource={need.resource[:300]}).",
            )


async def _first(requests: AsyncIterator[bytes]) -> bytes:
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        raise Refusal(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"The stream said nothing for {FIRST_SECONDS:g} seconds."
        ) from None
    if first is None:
        raise invalid("A stream needs a first request.")
    return first


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for one in rest:
        yield one
