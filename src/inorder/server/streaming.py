"""StreamingPull: messages as they come, acks and deadlines on the way back, until one side ends it.

A stream gets no more than its client has room for, and one response at a time waits to be sent: whoever reads
nothing holds up nobody else. What is out when a stream ends stays out until it is answered, by a call or on another
stream, or until its time is over, as with Google: a client that has lost its connection goes on with what it has.
What its client seems not to have read comes again soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import grpc.aio
from google.pubsub_v1.types import pubsub

from inorder.broker import MessageQueue
from inorder.errors import InorderError
from inorder.message import Leased, Message
from inorder.options import MAX_MESSAGE_BYTES
from inorder.protocol import PROTOCOL_KEY
from inorder.server.answers import Answers, Outcome, check_ack_ids, check_deadline, outcome
from inorder.server.desk import Desk, FlowControl, stream_numbers
from inorder.server.desks import Desks
from inorder.server.extensions.delivery import Delivery
from inorder.server.limits import MAX_PULLED, MAX_RESPONSE_BYTES
from inorder.server.names import Names
from inorder.server.resources import ACK_DEADLINE_SECONDS, Proto
from inorder.server.status import Context, abort, invalid, parsed, within
from inorder.server.wire import received

# What may be out on a stream whose client sets no limit: it must end somewhere.
MAX_OUTSTANDING_MESSAGES = 10_000
MAX_OUTSTANDING_BYTES = 100_000_000

# What may wait to be said, beside messages, before no more requests are read: a client may send and never read.
MAX_SAID = 100
MAX_SAID_BYTES = 1_000_000

HEARTBEATS = 1  # the protocol version from which a client wants an answer to each empty request

StreamingPullRequest = pubsub.StreamingPullRequest.pb()
StreamingPullResponse = pubsub.StreamingPullResponse.pb()


class StreamingPull:
    """The call, for every client; what is not Google's is `delivery`'s."""

    def __init__(self, broker: MessageQueue, names: Names, desks: Desks, delivery: Delivery) -> None:
        self._delivery = delivery
        self._broker = broker
        self._names = names
        self._desks = desks
        self._answers = Answers(broker, names)

    async def __call__(self, requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            if (PROTOCOL_KEY, "1") in context.invocation_metadata():
                await self._delivery.stream(requests, context)
            else:
                await self._serve(requests, context)
        except asyncio.CancelledError:  # the client has gone
            raise
        except grpc.aio.InternalError:  # the same, noticed by a write that was under way
            raise asyncio.CancelledError from None
        except Exception as error:
            await abort(context, error)

    async def _serve(self, requests: AsyncIterator[bytes], context: Context) -> None:
        first = await anext(requests, None)
        if first is None:
            raise invalid("The first request of a stream must name its subscription.")
        request = parsed(StreamingPullRequest, first)
        resource = request.subscription
        within("stream_ack_deadline_seconds", request.stream_ack_deadline_seconds, *ACK_DEADLINE_SECONDS)
        desk = self._desks.open(resource)
        stream = Stream(self._broker, self._names.subscription(resource), desk, request)
        reader = asyncio.create_task(self._read(stream, resource, request, requests))
        desk.join(stream)
        try:
            await context.send_initial_metadata(())
            await stream.write(context)
        except asyncio.CancelledError as error:
            if error.args:  # the client has not gone: it may not go on, so it cannot answer either
                desk.take_back(stream)
            raise
        finally:
            reader.cancel()
            stream.give_back()
            desk.leave(stream)

    async def _read(self, stream: Stream, resource: str, first: Proto, requests: AsyncIterator[bytes]) -> None:
        try:
            await self._answer(stream, resource, first)
            await stream.heard()
            async for raw in requests:
                request = parsed(StreamingPullRequest, raw)
                _check_later(request)
                if request.stream_ack_deadline_seconds:
                    stream.deadline_seconds = request.stream_ack_deadline_seconds
                if request.ByteSize() == 0:
                    if stream.heartbeats:
                        stream.say(b"")
                else:
                    await self._answer(stream, resource, request)
                await stream.heard()
            stream.finish()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            stream.end(error)

    async def _answer(self, stream: Stream, resource: str, request: Proto) -> None:
        """What a request acks, gives back and wants to keep longer."""
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            raise invalid(
                f"modify_deadline_seconds has {len(request.modify_deadline_seconds)} entries, "
                f"and modify_deadline_ack_ids has {len(request.modify_deadline_ack_ids)}."
            )
        for seconds in request.modify_deadline_seconds:
            check_deadline(seconds)
        acked = self._ack(stream, resource, list(request.ack_ids))
        modified = self._modify(stream, resource, request)
        if not (request.ack_ids or request.modify_deadline_ack_ids):
            return
        written = self._broker.written()
        if stream.desk.exactly_once:
            await written
            stream.say(_confirmation(acked, modified))
        else:
            check_ack_ids([*acked.invalid, *modified.invalid])

    def _ack(self, stream: Stream, resource: str, ack_ids: Sequence[str]) -> Outcome:
        if not ack_ids:
            return Outcome([], [])
        found = self._answers.find(resource, ack_ids)
        over = self._answers.ack(resource, found.leases)
        stream.desk.settled(found.leases, failed=False)
        return outcome(ack_ids, found, self._answers.prefix(resource), over)

    def _modify(self, stream: Stream, resource: str, request: Proto) -> Outcome:
        by_seconds: dict[int, list[str]] = {}
        for ack_id, seconds in zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True):
            by_seconds.setdefault(seconds, []).append(ack_id)
        total = Outcome([], [])
        for seconds, ack_ids in by_seconds.items():
            found = self._answers.find(resource, ack_ids)
            over = self._answers.extend(resource, found.leases, seconds)
            if seconds == 0:
                stream.desk.settled(found.leases, failed=True)
            else:
                stream.desk.told_of(found.leases)
            result = outcome(ack_ids, found, self._answers.prefix(resource), over)
            total = Outcome(total.done + result.done, total.invalid + result.invalid)
        return total


def _check_later(request: Proto) -> None:
    if request.subscription:
        raise invalid("The subscription is named by the first request of a stream, and by no other.")
    if request.max_outstanding_messages or request.max_outstanding_bytes:
        raise invalid("Flow control is set by the first request of a stream, and by no other.")
    if request.protocol_version:
        raise invalid("The protocol_version is set by the first request of a stream, and by no other.")
    if request.stream_ack_deadline_seconds:
        within("stream_ack_deadline_seconds", request.stream_ack_deadline_seconds, *ACK_DEADLINE_SECONDS)


def _confirmation(acked: Outcome, modified: Outcome) -> bytes:
    response: Any = StreamingPullResponse()
    if any(acked):
        response.acknowledge_confirmation.ack_ids.extend(acked.done)
        response.acknowledge_confirmation.invalid_ack_ids.extend(acked.invalid)
    if any(modified):
        response.modify_ack_deadline_confirmation.ack_ids.extend(modified.done)
        response.modify_ack_deadline_confirmation.invalid_ack_ids.extend(modified.invalid)
    raw: bytes = response.SerializeToString()
    return raw


class Stream:
    """What one client has, and what is on its way to it."""

    pushes = False
    once = False
    own = False

    def __init__(self, broker: MessageQueue, name: str, desk: Desk, first: Proto) -> None:
        self._number = next(stream_numbers)
        self._broker = broker
        self._name = name
        self.desk = desk
        self.consumer = desk.consumer(stays=True)
        self.deadline_seconds: int = first.stream_ack_deadline_seconds
        self.heartbeats: bool = first.protocol_version >= HEARTBEATS
        limit = first.max_outstanding_messages
        self._max_messages: int = limit if 0 < limit < MAX_OUTSTANDING_MESSAGES else MAX_OUTSTANDING_MESSAGES
        limit = first.max_outstanding_bytes
        self._max_bytes: int = limit if 0 < limit < MAX_OUTSTANDING_BYTES else MAX_OUTSTANDING_BYTES
        self._out = 0  # messages
        self._out_bytes = 0
        self._waiting: dict[int, Message] = {}  # lease → to be sent
        self._waiting_bytes = 0
        self._said: list[bytes] = []  # the same for all else
        self._said_bytes = 0
        self._heard = asyncio.Event()
        self._heard.set()
        self._changed = asyncio.Event()
        self._finished = False
        self._error: Exception | None = None

    # -- towards the client ------------------------------------------------------------------------

    async def write(self, context: Context) -> None:
        """Send what there is, as it comes, until the stream ends."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._said or (self._waiting and self._error is None):
                said, self._said, self._said_bytes = self._said, [], 0
                self._heard.set()
                for one in said:
                    await context.write(one + _properties(self.desk))
                if self._waiting and self._error is None:  # or they were given back
                    messages, self._waiting, self._waiting_bytes = [*self._waiting.values()], {}, 0
                    self.desk.ask()  # the next response is filled while this one is sent
                    body = received(messages, self.desk.counts_attempts)
                    await context.write(b"".join(body) + _properties(self.desk))
            if self._error is not None:
                raise self._error
            if self._finished:
                return

    def say(self, response: bytes) -> None:
        """Send something that is no message."""
        self._said.append(response)
        self._said_bytes += len(response)
        if len(self._said) >= MAX_SAID or self._said_bytes >= MAX_SAID_BYTES:
            self._heard.clear()
        self._changed.set()

    async def heard(self) -> None:
        """Wait until the client has taken enough of what was said."""
        await self._heard.wait()

    def finish(self) -> None:
        """The client says no more: it gets what is on its way, and then the end."""
        self._finished = True
        self._take_no_more()
        self._changed.set()

    def _take_no_more(self) -> None:
        """Keys that are kept for it are free, although it may take long until a client that does not read is gone."""
        with suppress(InorderError):
            self._broker.release(self._name, (), self.consumer)

    def give_back(self) -> None:
        """What was never sent comes again at once."""
        with suppress(InorderError):  # a broker that is closed has forgotten them anyway
            self._broker.release(self._name, [*self._waiting], self.consumer)

    # -- for the desk ------------------------------------------------------------------------------

    def room(self) -> tuple[int, int]:
        size = min(self._max_bytes - self._out_bytes, MAX_RESPONSE_BYTES - self._waiting_bytes)
        if size <= 0 or self._finished or self._error is not None:
            return 0, 0
        return min(self._max_messages - self._out, MAX_PULLED - len(self._waiting)), size

    def alone(self) -> bool:
        # Beside others too, if only the size of a response is in its way.
        return not self._waiting and (not self._out or self._max_bytes - self._out_bytes >= MAX_MESSAGE_BYTES)

    def give(self, leased: Leased) -> None:
        size = leased.size()
        self._out += len(leased.records)
        self._out_bytes += size
        self._waiting_bytes += size
        self._waiting.update(zip(leased.leases, leased.messages(self.consumer), strict=True))
        if self.deadline_seconds != self.desk.ack_deadline_seconds:
            self._broker.extend(self._name, leased.leases, self.deadline_seconds)
        self._changed.set()

    def end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self.give_back()  # nobody would take an answer to what is sent now, and the client may read nothing
        self._changed.set()

    def freed(self, lease: int, size: int) -> None:
        self._out -= 1
        self._out_bytes -= size
        if self._waiting.pop(lease, None) is not None:  # it is too late to send it
            self._waiting_bytes -= size

    def held(self) -> Sequence[int]:
        return ()

    # -- for whoever looks -------------------------------------------------------------------------

    def flow_control(self) -> FlowControl:
        unsent = len(self._waiting)
        return FlowControl(self._number, self._out, self._max_messages, unsent, self._out_bytes, self._max_bytes)


def _properties(desk: Desk) -> bytes:
    """The field subscription_properties, which tells clients on every response whether to keep keys in order."""
    body = (b"\x08\x01" if desk.exactly_once else b"") + (b"\x10\x01" if desk.ordered else b"")
    return b"\x22%c%b" % (len(body), body)
