"""A consumer's side of a stream, with a server that says what the test has it say."""

import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from inorder import Message
from inorder.broker import MessageQueue
from inorder.clock import MICROSECONDS
from inorder.errors import Aborted, DeadlineExceeded, InorderError, PermissionDenied, ResourceExhausted, Unavailable
from inorder.options import SubscriptionOptions
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import to_json
from inorder.server.extensions.delivery import add_columns
from inorder.testing.clock import ManualClock
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.stream import OwnDeliveries

from ..interrupts import is_interrupted

PATIENCE_SECONDS = 30
OPTIONS = SubscriptionOptions(enable_message_ordering=True, max_outstanding_per_key=10)


class Server:
    """A broker whose deliveries the test hands over, as the calls of one client."""

    address, timeout_seconds = "nowhere", PATIENCE_SECONDS
    ends_for_good, _closed = Calls.ends_for_good, False

    def __init__(self) -> None:
        self.begun = False
        self.clock = ManualClock()
        self.broker = MessageQueue(clock=self.clock)
        self.broker.register_topic("orders")
        self.broker.register_subscription("worker", "orders", OPTIONS)
        self._sent: queue.SimpleQueue[bytes | InorderError | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[v1.Demand] = queue.SimpleQueue()
        watch = self.broker.watch("worker", lambda: None, print)
        self._terms = v1.Terms(options=to_json(OPTIONS), id_prefix=watch.id_prefix, ack_id_prefix=watch.ack_id_prefix)

    def stream(self, method: str, requests: Iterator[bytes], metadata: object) -> "Server":
        self.begun = True
        self.send(v1.Delivery(terms=self._terms))

        def hear() -> None:
            for request in requests:
                self._heard.put(v1.Demand.FromString(request))

        threading.Thread(target=hear, daemon=True).start()
        return self

    def __iter__(self) -> Iterator[bytes]:
        for said in iter(self._sent.get, None):
            if isinstance(said, InorderError):
                raise said
            yield said

    def cancel(self) -> None:
        ended, self._sent = self._sent, queue.SimpleQueue()
        ended.put(None)

    def end(self, error: InorderError) -> None:
        """The stream ends so."""
        self._sent.put(error)

    def repeated(self, method: str, request: bytes) -> Pending[bytes]:
        self._heard.put(v1.Demand.FromString(request))
        return Pending.of(v1.Confirmation().SerializeToString())

    def lives(self) -> Pending[bool]:
        return Pending.of(True)

    def send(self, delivery: v1.Delivery) -> None:
        self._sent.put(delivery.SerializeToString())

    def deliver(self, *texts: str, key: str = "k", granted_us: int = 0, sent_us: int = 0) -> list[int]:
        self.broker.publish("orders", [Message(text.encode(), ordering_key=key) for text in texts])
        leased, delivery = self.broker.lease("worker", 100), v1.Delivery(granted_us=granted_us, sent_us=sent_us)
        add_columns(delivery.messages, leased)
        self.send(delivery)
        return [*leased.leases]

    def heard(self, field: str) -> v1.Demand:
        """The next request that says something of this kind."""
        while True:
            demand = self._heard.get(timeout=PATIENCE_SECONDS)
            if getattr(demand, field):
                return demand


def test_what_came_behind_a_message_that_was_lost_is_given_back_and_not_given_out() -> None:
    server, woken = Server(), threading.Semaphore(0)
    calls: Any = server
    deliveries = OwnDeliveries(calls, server.clock, "worker", "worker", woken.release, print, True)
    [first, _] = server.deliver("1", "2")
    server.deliver("a", key="other")
    for _ in range(3):  # the terms, and twice messages
        assert woken.acquire(timeout=PATIENCE_SECONDS)
    server.clock.advance(3)
    asked = server.heard("keeps")
    [third] = server.deliver("3")  # while the server is asked
    assert woken.acquire(timeout=PATIENCE_SECONDS)
    server.send(v1.Delivery(confirmations=[v1.Confirmation(number=asked.number, over=[first, first + 1])]))
    assert [*server.heard("releases").releases] == [third]
    taken = deliveries.take(100, 10**9, True, server.broker.consumer("worker"), 100)
    assert [message.data for message in taken.messages] == [b"a"]
    server.cancel()


def test_leases_last_since_they_were_granted_however_long_they_were_on_their_way() -> None:
    server, woken = Server(), threading.Semaphore(0)
    calls: Any = server
    deliveries = OwnDeliveries(calls, server.clock, "worker", "worker", woken.release, print, True)
    assert woken.acquire(timeout=PATIENCE_SECONDS)
    begin_us = server.clock.now_us()
    apart_us = 3_600 * MICROSECONDS  # the clock of the server is ahead

    def since_us(granted: int, sent: int) -> float:
        """Seconds from the begin on, as those by the clock of the server."""
        granted_us, sent_us = (begin_us + apart_us + seconds * MICROSECONDS for seconds in (granted, sent))
        server.deliver("1", granted_us=granted_us, sent_us=sent_us)
        assert woken.acquire(timeout=PATIENCE_SECONDS)
        taken = deliveries.take(100, 10**9, True, server.broker.consumer("worker"), 100)
        return (taken.since_us - begin_us) / MICROSECONDS

    assert since_us(granted=0, sent=0) == 0
    server.clock.advance(7)
    assert since_us(granted=2, sent=3) == 2
    assert since_us(granted=7, sent=7) == 7
    server.cancel()


def test_leases_that_were_kept_last_since_that_was_asked_for() -> None:
    server, woken = Server(), threading.Semaphore(0)
    calls: Any = server
    deliveries = OwnDeliveries(calls, server.clock, "worker", "worker", woken.release, print, True)
    server.deliver("1")
    for _ in range(2):
        assert woken.acquire(timeout=PATIENCE_SECONDS)
    server.clock.advance(3)
    asked = server.heard("keeps")
    asked_us = server.clock.now_us()
    server.clock.advance(1)
    server.send(v1.Delivery(confirmations=[v1.Confirmation(number=asked.number)]))
    server.deliver("2")
    assert woken.acquire(timeout=PATIENCE_SECONDS)
    taken = deliveries.take(100, 10**9, True, server.broker.consumer("worker"), 100)
    assert ([message.data for message in taken.messages], taken.since_us) == ([b"1", b"2"], asked_us - 500_000)
    server.cancel()


def test_what_nobody_has_taken_goes_back_although_the_stream_ends_while_it_is_closed() -> None:
    server, woken = Server(), threading.Semaphore(0)
    calls: Any = server
    deliveries = OwnDeliveries(calls, server.clock, "worker", "worker", woken.release, print, True)
    leases = server.deliver("1", "2")
    for _ in range(2):
        assert woken.acquire(timeout=PATIENCE_SECONDS)
    closed = deliveries.close()
    assert server.heard("last")
    server.end(Unavailable("cut"))
    assert [*server.heard("releases").releases] == leases
    closed.result(PATIENCE_SECONDS)


def test_a_consumer_whose_beginning_is_interrupted_at_any_step_is_none() -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        server: Any = Server()
        begin = partial(OwnDeliveries, server, server.clock, "worker", "worker", lambda: None, print, True)
        went_through = not is_interrupted(begin, step, "inorder.transport.grpc.stream")
        if not went_through and server.begun:
            assert server.heard("last"), f"step {step}"
        server.cancel()
    assert step > 2


@pytest.mark.parametrize("kind", [Unavailable, DeadlineExceeded, ResourceExhausted, Aborted, PermissionDenied])
def test_a_stream_that_somebody_on_the_way_has_ended_is_begun_anew(kind: type[InorderError]) -> None:
    server, woken = Server(), threading.Semaphore(0)
    calls: Any = server
    deliveries = OwnDeliveries(calls, server.clock, "worker", "worker", woken.release, print, True)
    server.end(kind("it took too long"))
    for _ in range(2):  # the terms of both
        assert woken.acquire(timeout=PATIENCE_SECONDS)
    server.deliver("1")
    assert woken.acquire(timeout=PATIENCE_SECONDS)
    source: Any = None
    assert [message.data for message in deliveries.take(10, 1_000, False, source, 10).messages] == [b"1"]
