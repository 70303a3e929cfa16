"""Messages to clients that know inorder.v1, and their answers: on streams, and call by call.

A client says how much may be sent to it in all, so what it has is its own affair. Everything it answers is confirmed
once the end of this process cannot undo it. Messages go as columns: nobody makes an object of one on its way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter

from inorder.broker import MessageQueue
from inorder.errors import InorderError, NotFound
from inorder.message import ATTRIBUTES, DATA, KEY, POSITION, PUBLISH_US, Gap, Leased, Record, before_their_place
from inorder.options import MAX_MESSAGE_BYTES
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import to_json
from inorder.server.desk import Desk, FlowControl, stream_numbers
from inorder.server.desks import Desks
from inorder.server.extensions.resources import own_options
from inorder.server.extensions.takes import MAX_NAME_LENGTH, Takes
from inorder.server.limits import MAX_COLUMNS, MAX_PULLED, MAX_RESPONSE_BYTES
from inorder.server.names import Names
from inorder.server.resources import push_target
from inorder.server.status import Context, RawCall, invalid, not_pulled, parsed, subscription_missing, unary, within

# What may wait to be confirmed before no more requests are read: a client may send and never read. And how many
# problems may wait to be told.
MAX_UNHEARD = 100

# What is looked at before others have their turn: a request may name millions of leases, with a deadline for each.
LEASES_AT_ONCE = 20_000
MAX_KEEPS = 10_000
MAX_UNSEEN = 1_000

_position, _key, _data, _attributes, _publish_us = map(itemgetter, (POSITION, KEY, DATA, ATTRIBUTES, PUBLISH_US))

TIDY = 256  # spans of leases that are remembered before somebody looks which of them are over


class Delivery:
    """The calls, and what a StreamingPull is to a client that knows them."""

    def __init__(self, broker: MessageQueue, names: Names, desks: Desks) -> None:
        self._broker = broker
        self._names = names
        self._desks = desks
        self._takes = Takes()

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {"Take": unary(v1.TakeRequest, self.take), "Answer": unary(v1.Demand, self.answer)}

    # -- call by call ------------------------------------------------------------------------------

    async def take(self, request: v1.TakeRequest, context: Context) -> v1.Delivery:
        within("max_messages", request.max_messages, 1, MAX_PULLED)
        name = self._names.subscription(request.subscription)
        found = self._broker.get_subscription(name)
        if found is None:
            raise subscription_missing(request.subscription)
        if push_target(found.options) is not None:
            raise not_pulled()
        if len(request.unseen) > MAX_UNSEEN:
            raise invalid(f"unseen: at most {MAX_UNSEEN} in one request, not {len(request.unseen)}.")
        longest = max(map(len, (request.take, *request.unseen)))
        if longest > MAX_NAME_LENGTH:  # they are remembered
            raise invalid(f"take, unseen: names of up to {MAX_NAME_LENGTH} characters, not {longest}.")
        self._desks.use(name)
        delivery = v1.Delivery()
        records: list[Record] = []  # that are in it, gap records too
        told: list[Leased] = []  # the gaps of these
        room, size = request.max_messages, MAX_RESPONSE_BYTES
        try:
            id_prefix, ack_id_prefix = self._broker.prefixes(name)
            unseen: list[int] = []
            for take in request.unseen:
                leases, untold = self._takes.give_up(take, ack_id_prefix)
                unseen += leases
                told += untold
            if unseen:
                self._broker.release(name, unseen)
            for gaps in told:
                add_columns(delivery.messages, gaps)
                records += gaps.records
            if self._takes.given_up(request.take):
                room = 0
            while room > 0 and size > 0:
                alone = room == request.max_messages
                leased = self._broker.lease(name, room, max_bytes=size, alone=alone)
                early: list[int] = []
                if leased.gaps():
                    places = before_their_place([*records, *leased.records])
                    early = [leased.leases[place - len(records)] for place in places]
                if early:
                    self._broker.release(name, early)
                    leased = leased.without(early)
                add_columns(delivery.messages, leased)
                records += leased.records
                gaps = leased.only(leased.gaps())
                if gaps.leases:
                    self._broker.settle(name, gaps.leases, ())  # told is enough: nobody answers for what is not there
                    told.append(gaps)
                if early or not gaps.leases:
                    break
                room, size = room - len(leased.records) + len(gaps.records), size - leased.size()
        except NotFound:
            raise subscription_missing(request.subscription) from None
        self._takes.brought(request.take, ack_id_prefix, delivery.messages.leases, told)
        delivery.terms.id_prefix, delivery.terms.ack_id_prefix = id_prefix, ack_id_prefix
        return delivery

    async def answer(self, request: v1.Demand, context: Context) -> v1.Confirmation:
        over = await self._all_answered(request.subscription, request)
        await self._broker.written()
        return v1.Confirmation(number=request.number, over=over)

    async def _all_answered(self, resource: str, demand: v1.Demand) -> list[int]:
        over: list[int] = []
        for number, piece in enumerate(_pieces(demand)):
            if number:
                await asyncio.sleep(0)
            over += self._answered(resource, piece)
        return over

    def _answered(self, resource: str, demand: v1.Demand) -> list[int]:
        """Do what a client asks about its leases; those that were over already."""
        name = self._names.subscription(resource)
        acks, nacks = _once(demand.acks), _once(demand.nacks)
        try:
            if self._broker.prefixes(name)[1] != demand.ack_id_prefix:
                return [*acks, *nacks, *(lease for keep in demand.keeps for lease in keep.leases)]
            # Deadlines first: a lease that is answered by the same request is not over by that.
            over = [lease for keep in demand.keeps for lease in self._extended(name, keep)]
            if acks or nacks:
                over += self._broker.settle(name, acks, nacks)
            if demand.releases:
                self._broker.release(name, _once(demand.releases))
        except NotFound:
            raise subscription_missing(resource) from None
        self._desks.settled(resource, (*acks, *nacks), failed=bool(nacks))
        return over

    def _extended(self, name: str, keep: v1.Demand.Keep) -> list[int]:
        return self._broker.extend(name, _once(keep.leases), keep.seconds)

    # -- on a stream -------------------------------------------------------------------------------

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """A StreamingPull, until one side ends it."""
        first = await anext(requests, None)
        if first is None:
            raise invalid("The first request of a stream must name its subscription.")
        demand = parsed(v1.Demand, first)
        resource = demand.subscription
        desk = self._desks.open(resource)
        stream = OwnStream(self._broker, self._names, self._names.subscription(resource), desk)
        reader = asyncio.create_task(self._read(stream, resource, demand, requests))
        desk.join(stream)
        desk.listen(stream)
        try:
            await stream.write(context)
        except asyncio.CancelledError as error:
            if error.args:  # the client has not gone: it may not go on, so it cannot answer either
                desk.take_back(stream)
            raise
        finally:
            reader.cancel()
            stream.give_back()
            desk.ignore(stream)
            desk.leave(stream)

    async def _read(self, stream: OwnStream, resource: str, first: v1.Demand, requests: AsyncIterator[bytes]) -> None:
        try:
            await self._hear(stream, resource, first)
            async for raw in requests:
                await self._hear(stream, resource, parsed(v1.Demand, raw))
                await stream.heard()
            stream.finish()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            stream.end(error)

    async def _hear(self, stream: OwnStream, resource: str, demand: v1.Demand) -> None:
        over = await self._all_answered(resource, demand) if demand.ack_id_prefix else []
        stream.grant(demand.messages, demand.bytes, last=demand.last)
        if not demand.number:
            return
        written = self._broker.written()
        if written.done() and written.exception() is None:
            stream.confirm(demand.number, over)
        else:
            written.add_done_callback(stream.confirm_later(demand.number, over))


def _pieces(demand: v1.Demand) -> Iterator[v1.Demand]:
    """The same in requests that can each be answered in one go, in the order in which all of it counts."""
    if len(demand.keeps) > MAX_KEEPS:
        raise invalid(f"keeps: at most {MAX_KEEPS} in one request, not {len(demand.keeps)}.")
    named = sum(len(keep.leases) for keep in demand.keeps)
    if named + len(demand.acks) + len(demand.nacks) + len(demand.releases) <= LEASES_AT_ONCE:
        yield demand
        return
    prefix = demand.ack_id_prefix
    for keep in demand.keeps:
        for leases in _cut(keep.leases):
            yield v1.Demand(ack_id_prefix=prefix, keeps=[v1.Demand.Keep(leases=leases, seconds=keep.seconds)])
    for leases in _cut(demand.acks):
        yield v1.Demand(ack_id_prefix=prefix, acks=leases)
    for leases in _cut(demand.nacks):
        yield v1.Demand(ack_id_prefix=prefix, nacks=leases)
    for leases in _cut(demand.releases):
        yield v1.Demand(ack_id_prefix=prefix, releases=leases)


def _cut(leases: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(leases), LEASES_AT_ONCE):
        yield leases[first : first + LEASES_AT_ONCE]


def _once(leases: Sequence[int]) -> Sequence[int]:
    """Each of them once; mostly they follow one another, as they were granted, and the broker is quick with a range."""
    named = list(leases)
    run = range(named[0], named[0] + len(named)) if named else range(0)
    return run if named == [*run] else [*dict.fromkeys(named)]


class OwnStream:
    """What is on its way to one client that knows inorder.v1."""

    pushes = False
    once = False
    own = True

    def __init__(self, broker: MessageQueue, names: Names, name: str, desk: Desk) -> None:
        self._number = next(stream_numbers)
        self._broker = broker
        self._names = names
        self._name = name
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self.consumer = desk.consumer()
        self._may_send = self._may_send_bytes = 0  # from first to last
        self._given = self._given_bytes = 0
        self._spans: list[range] = []  # leases that were given, as they were; perhaps all of one are over
        self._tidy_at = TIDY
        self._sent_bytes = 0
        self._sealed: deque[v1.Delivery] = deque()  # of earlier terms
        self._terms: v1.Terms | None = self._terms_now()
        self._waiting: list[Leased] = []
        self._waiting_messages = self._waiting_bytes = 0
        self._granted_us = 0  # since when the first of these has waited
        self._confirmations: list[v1.Confirmation] = []
        self._problems: list[str] = []
        self._heard = asyncio.Event()
        self._heard.set()
        self._changed = asyncio.Event()
        self._changed.set()  # the terms come first
        self._last = False
        self._finished = False
        self._error: Exception | None = None

    def _terms_now(self) -> v1.Terms | None:
        if self._desk.options is None:
            return None
        options = own_options(self._names, self._name, self._desk.options)
        return v1.Terms(
            options=to_json(options),
            id_prefix=self.consumer.id_prefix,
            ack_id_prefix=self.consumer.ack_id_prefix,
        )

    # -- towards the client ------------------------------------------------------------------------

    async def write(self, context: Context) -> None:
        """Send what there is, as it comes, until the stream ends."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while delivery := self._next():
                await context.write(delivery.SerializeToString())
            if self._error is not None:
                raise self._error
            if self._finished:
                return

    def _next(self) -> v1.Delivery | None:
        if self._sealed:
            return self._sealed.popleft()
        if not (self._terms or self._waiting or self._confirmations or self._problems):
            return None
        delivery = self._seal()
        if delivery.messages.leases:
            self._desk.ask()  # the next response is filled while this one is sent
        return delivery

    def _seal(self) -> v1.Delivery:
        delivery = v1.Delivery(
            terms=self._terms,
            confirmations=self._confirmations,
            problems=self._problems,
            sent_us=self._broker.clock.now_us(),
        )
        if self._waiting:
            delivery.granted_us = self._granted_us
            for leased in self._waiting:
                add_columns(delivery.messages, leased)
            self._sent_bytes += self._waiting_bytes
            delivery.sent_bytes = self._sent_bytes
        self._terms, self._confirmations, self._problems = None, [], []
        self._waiting, self._waiting_messages, self._waiting_bytes = [], 0, 0
        self._heard.set()
        return delivery

    def confirm(self, number: int, over: Sequence[int]) -> None:
        """What a request has asked for is done."""
        self._confirmations.append(v1.Confirmation(number=number, over=over))
        if len(self._confirmations) >= MAX_UNHEARD:
            self._heard.clear()
        self._changed.set()

    def confirm_later(self, number: int, over: Sequence[int]) -> Callable[[Pending[None]], None]:
        """The same for whoever is called on any thread, when it is sure."""

        def written(done: Pending[None]) -> None:
            error = done.exception()
            with suppress(RuntimeError):  # the loop is closed, and nobody is left to tell
                if isinstance(error, Exception):
                    self._loop.call_soon_threadsafe(self.end, error)
                else:
                    self._loop.call_soon_threadsafe(self.confirm, number, over)

        return written

    async def heard(self) -> None:
        """Wait until the client has taken enough of what was said."""
        await self._heard.wait()

    def grant(self, messages: int, size: int, *, last: bool) -> None:
        """So much may be sent in all."""
        self._may_send, self._may_send_bytes = messages, size
        if last and not self._last:
            self._last = True
            self.give_back()
        self._desk.ask()

    def finish(self) -> None:
        """The client says no more: it gets what is on its way, and then the end."""
        self._finished = True
        self._changed.set()

    def give_back(self) -> None:
        """What was never sent comes again at once."""
        waiting, self._waiting, self._waiting_messages, self._waiting_bytes = self._waiting, [], 0, 0
        leases = [lease for leased in waiting for lease in leased.leases]
        for delivery in self._sealed:  # which has more than messages to tell, if the client goes on reading
            leases += delivery.messages.leases
            delivery.ClearField("messages")
        with suppress(InorderError):  # a broker that is closed has forgotten them anyway
            self._broker.release(self._name, leases, self.consumer)

    # -- for the desk ------------------------------------------------------------------------------

    def room(self) -> tuple[int, int]:
        size = min(self._may_send_bytes - self._given_bytes, MAX_RESPONSE_BYTES - self._waiting_bytes)
        if size <= 0 or self._last or self._finished or self._error is not None:
            return 0, 0
        return min(self._may_send - self._given, MAX_COLUMNS - self._waiting_messages), size

    def alone(self) -> bool:
        # Only the size of a response is in its way.
        return not self._waiting and self._may_send_bytes - self._given_bytes >= MAX_MESSAGE_BYTES

    def give(self, leased: Leased) -> None:
        count, size = len(leased.records), leased.size()
        self._given += count
        self._given_bytes += size
        if not self._waiting:
            self._granted_us = self._broker.clock.now_us()
        self._waiting.append(leased)
        self._waiting_messages += count
        self._waiting_bytes += size
        self._spans.append(range(leased.leases[0], leased.leases[-1] + 1))  # they follow one another
        if len(self._spans) >= self._tidy_at:
            held = {*self.held()}
            self._spans = [span for span in self._spans if not held.isdisjoint(span)]
            self._tidy_at = max(2 * len(self._spans), TIDY)
        self._changed.set()

    def held(self) -> Sequence[int]:
        leases = [lease for span in self._spans for lease in span]
        over = {*self._broker.over(self._name, leases)}
        return [lease for lease in leases if lease not in over]

    def flow_control(self) -> FlowControl:
        out = len(self.held())
        return FlowControl(self._number, out, out + self._may_send - self._given, self._waiting_messages)

    def end(self, error: Exception) -> None:
        self._error = self._error or error
        self.give_back()  # nobody would take an answer to what is sent now
        self._changed.set()

    def freed(self, lease: int, size: int) -> None:
        """What the client has is its own affair."""

    def terms_changed(self) -> None:
        """What waits came by the terms before."""
        if self._waiting:
            self._sealed.append(self._seal())
        self._terms = self._terms_now()
        self._changed.set()

    def tell(self, problem: str) -> None:
        if len(self._problems) < MAX_UNHEARD:  # the log has all of them, and this client may never read one
            self._problems.append(problem)
        self._changed.set()


def add_columns(columns: v1.Columns, leased: Leased) -> None:
    """Put messages behind those that are there, side by side."""
    if not leased.records:
        return
    place = len(columns.leases)
    records = leased.records
    data, attributes = [*map(_data, records)], [*map(_attributes, records)]
    columns.leases.extend(leased.leases)
    columns.attempts.extend(leased.attempts)
    columns.positions.extend(map(_position, records))
    columns.ordering_keys.extend(map(_key, records))
    columns.publish_us.extend(map(_publish_us, records))
    if {*map(type, data)} == {bytes}:
        columns.data.extend(data)
    else:
        for at, gap in enumerate(data, place):
            if isinstance(gap, Gap):
                columns.gaps[at].CopyFrom(v1.Gap(**{name: getattr(gap, name) for name in gap.__slots__}))
        columns.data.extend(b"" if isinstance(one, Gap) else one for one in data)
    if any(attributes):
        for at, own in enumerate(attributes, place):
            if own and at not in columns.gaps:
                columns.attributes[at].values.update(own)
