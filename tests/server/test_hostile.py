"""Clients that behave badly: the others are served, memory stays bounded, nothing is lost, no key is out of order."""

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import PubsubMessage, pubsub

from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument
from inorder.message import Message
from inorder.options import QueueLimits, SubscriptionOptions
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.extensions.delivery import LEASES_AT_ONCE
from inorder.server.extensions.takes import MAX_TAKES
from inorder.testing import ManualClock

from ..integration.tcp_proxy import TcpProxy
from ..integration.test_serve import serving
from .clients import SUBSCRIPTION, TOPIC, Stream, StreamingPullRequest, call, messages
from .conftest import Running, Serve
from .extensions import Extensions
from .test_semantics import failed_ack_ids
from .test_streaming import wait_until
from .test_subscriptions import ack_ids, data, publish, pulled, subscribed

MEGABYTE = 1_000_000
PublishRequest = pubsub.PublishRequest.pb()
PullRequest = pubsub.PullRequest.pb()
PullResponse = pubsub.PullResponse.pb()


class Victim:
    """A server in a process of its own, whose memory can be told from ours."""

    def __init__(self, pid: int, address: str) -> None:
        self.address = address
        self._statm = Path(f"/proc/{pid}/statm")
        self._channels: list[grpc.Channel] = []
        self._publisher = self.channel()

    def channel(self, address: str | None = None) -> grpc.Channel:
        # With its probes a client makes room for more and more that nobody reads, here and not at the server.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),
        ]
        self._channels.append(grpc.insecure_channel(address or self.address, options=options))
        return self._channels[-1]

    def resident(self) -> int:
        return int(self._statm.read_text().split()[1]) * 4096

    def subscribed(self, **fields: Any) -> None:
        channel = self.channel()
        call(channel, "Publisher", "CreateTopic", pubsub.Topic.pb()(name=TOPIC).SerializeToString())
        wanted = pubsub.Subscription.pb()(name=SUBSCRIPTION, topic=TOPIC, **fields)
        call(channel, "Subscriber", "CreateSubscription", wanted.SerializeToString())

    def publish(self, *data: bytes) -> None:
        request = PublishRequest(topic=TOPIC, messages=[{"data": one, "ordering_key": "key"} for one in data])
        call(self._publisher, "Publisher", "Publish", request.SerializeToString())

    def serves(self) -> bool:
        """Somebody else gets what is published, on a subscription of its own."""
        channel, name = self.channel(), f"projects/shop/subscriptions/s{random.getrandbits(60)}"
        wanted = pubsub.Subscription.pb()(name=name, topic=TOPIC)
        call(channel, "Subscriber", "CreateSubscription", wanted.SerializeToString())
        self.publish(b"for others")
        raw = call(channel, "Subscriber", "Pull", PullRequest(subscription=name, max_messages=1).SerializeToString())
        return bool(PullResponse.FromString(raw).received_messages[0].message.data == b"for others")

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here to read the memory of a process from")
    with serving("--data", tmp_path / "data") as (process, address):
        one = Victim(process.pid, address)
        try:
            yield one
        finally:
            one.close()


# -- memory ----------------------------------------------------------------------------------------


MANY = 600


@pytest.mark.parametrize("delay_seconds", [0, 0.002], ids=["near", "far"])
def test_a_client_that_acks_garbage_and_reads_nothing_fills_no_memory(victim: Victim, delay_seconds: float) -> None:
    way = TcpProxy(int(victim.address.rpartition(":")[2]))
    way.delay_seconds = delay_seconds
    victim.subscribed(enable_exactly_once_delivery=True)
    garbage = StreamingPullRequest(ack_ids=[f"{number:0180}" for number in range(1000)]).SerializeToString()
    first = StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10).SerializeToString()
    assert victim.serves()
    before = victim.resident()
    sent = 0

    def requests() -> Iterator[bytes]:
        nonlocal sent
        yield first
        while sent < MANY:  # 110 MB, of which most is never taken
            sent += 1
            yield garbage

    channel = victim.channel(f"127.0.0.1:{way.port}")
    stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests(), timeout=60)
    seen = -1
    while seen != sent < MANY:
        seen = sent
        time.sleep(0.3)
    assert sent * len(garbage) < 30 * MEGABYTE
    assert victim.resident() - before < 30 * MEGABYTE
    assert victim.serves()
    stream.cancel()
    way.close()


def test_a_client_that_reads_nothing_fills_no_memory(victim: Victim) -> None:
    victim.subscribed()
    victim.publish(b"x" * MEGABYTE)
    lazy = Stream(victim.channel())
    assert victim.serves()
    before = victim.resident()
    for _ in range(50):
        victim.publish(*[b"x" * MEGABYTE] * 6)
    assert victim.resident() - before < 200 * MEGABYTE  # of 300; 64 are what a subscription keeps in memory
    assert victim.serves()
    lazy.cancel()


def test_a_thousand_streams_of_one_client(victim: Victim) -> None:
    victim.subscribed(enable_message_ordering=True)
    assert victim.serves()
    before = victim.resident()

    async def open_all() -> None:
        async with grpc.aio.insecure_channel(victim.address) as channel:
            method = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
            first = StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10).SerializeToString()
            streams = [method() for _ in range(1000)]
            for stream in streams:
                await stream.write(first)
            await asyncio.gather(*(stream.initial_metadata() for stream in streams))
            assert victim.resident() - before < 100 * MEGABYTE
            assert await asyncio.to_thread(victim.serves)
            for stream in streams:
                stream.cancel()

    asyncio.run(open_all())
    victim.publish(b"a", b"b")
    assert victim.serves()


def test_a_client_that_sends_100_megabytes(victim: Victim) -> None:
    victim.subscribed()
    assert victim.serves()
    before = victim.resident()
    request = PublishRequest(topic=TOPIC, messages=[{"data": b"x" * (100 * MEGABYTE)}]).SerializeToString()
    with pytest.raises(grpc.RpcError) as raised:
        call(victim.channel(), "Publisher", "Publish", request, timeout=30)
    assert raised.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    host, port = victim.address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as plain:
        plain.settimeout(10)
        plain.sendall(b"\xff" * (100 * MEGABYTE))  # not even HTTP
    assert victim.resident() - before < 40 * MEGABYTE
    assert victim.serves()


# -- order -----------------------------------------------------------------------------------------


def test_what_a_client_never_acks_others_get_in_order_when_its_time_is_over(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscribed(server, enable_message_ordering=True)
    publish(server, "abcde", "key")
    silent = Stream(server.channel(), max_outstanding_messages=5)
    assert silent.data(5) == "abcde"
    other = Stream(server.channel())
    publish(server, "f", "key")  # behind what is out
    publish(server, "xyz", "another")
    received = other.received(3)
    assert data(received) == "xyz"
    other.send(ack_ids=ack_ids(received))
    wait_until(lambda: server.broker.metrics(SUBSCRIPTION).outstanding_messages == 5)
    silent.cancel()
    [desk] = server.server._desks._open.values()
    wait_until(lambda: len(desk._takers) == 1)  # or it could get them once more
    clock.advance(11)
    assert other.data(6) == "abcdef"
    other.cancel()


@pytest.mark.parametrize("seed", range(4))
def test_nacks_expiries_and_cut_streams_of_several_clients_keep_every_key_in_order(serve: Serve, seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock), max_outstanding_per_key=chance.choice([1, 3, 1000]))
    subscribed(server, enable_message_ordering=True, enable_exactly_once_delivery=bool(seed % 2))
    handled: dict[str, list[int]] = {f"k{number}": [] for number in range(5)}
    count = 40
    done = threading.Event()

    def handle(response: Any, chance: random.Random) -> tuple[list[str], list[str]]:
        """As clients do that serialise by key: what is behind one that failed fails too."""
        failed: set[str] = set()
        acked, nacked = [], []
        for one in response.received_messages:
            key = one.message.ordering_key
            if key in failed or chance.random() < 0.15:
                failed.add(key)
                nacked.append(one.ack_id)
            else:
                handled[key].append(int(one.message.data))
                acked.append(one.ack_id)
        return acked, nacked

    turn = threading.Lock()
    alive: set[Stream] = set()  # a stream that is not among them has nothing to handle: its leases may be over

    def consume(chance: random.Random) -> None:
        channel = server.channel()
        while not done.is_set():
            with turn:
                stream = Stream(channel, max_outstanding_messages=chance.choice([0, 1, 7]))
                alive.add(stream)
            with contextlib.suppress(grpc.RpcError, StopIteration):
                for _ in range(chance.randrange(1, 15)):
                    response = stream.read()
                    with turn:
                        if stream not in alive:
                            break
                        acked, nacked = handle(response, chance)
                        stream.send(
                            ack_ids=acked, modify_deadline_ack_ids=nacked, modify_deadline_seconds=[0] * len(nacked)
                        )
            stream.cancel()  # with what is on its way, which comes again when its time is over

    threads = [threading.Thread(target=consume, args=(random.Random(100 * seed + number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    publisher = server.raw_publisher()
    for number in range(count):
        publisher.publish(
            topic=TOPIC, messages=[PubsubMessage(data=b"%d" % number, ordering_key=key) for key in handled]
        )
    progress, deadline = -1, time.monotonic() + 60
    while server.broker.metrics(SUBSCRIPTION).backlog_messages and time.monotonic() < deadline:
        before, progress = progress, sum(map(len, handled.values()))
        if before == progress:  # nobody handles anything: what is out was on its way to a stream that was cut
            with turn:  # a client that is merely slow loses its leases too, and must not handle what it read
                for stream in alive:
                    stream.cancel()
                alive.clear()
                clock.advance(11)
        time.sleep(0.1)
    done.set()
    server.stop()
    for thread in threads:
        thread.join()
    for key, numbers in handled.items():
        # What is behind one that fails may have been handled already, and is handled again.
        last = sorted({*numbers}, key=lambda number: len(numbers) - numbers[::-1].index(number))
        assert last == [*range(count)], f"{key} is out of order: {numbers}"


class Cutter:
    """Stands between clients and a server, and cuts each connection after so many bytes of the client."""

    def __init__(self, address: str, after: int) -> None:
        host, port = address.split(":")
        self._target = host, int(port)
        self.after = after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._copy, args=(server, client, 1 << 60), daemon=True).start()
                threading.Thread(target=self._copy, args=(client, server, self.after), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with contextlib.suppress(OSError):
            while limit > 0 and (piece := source.recv(min(limit, 4096))):
                limit -= len(piece)
                target.sendall(piece)
        self.cuts += limit <= 0
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_connections_cut_half_way_lose_nothing_that_was_answered(serve: Serve) -> None:
    server = serve()
    subscriber = subscribed(server, enable_message_ordering=True)
    cutter = Cutter(server.address, 3000)
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100)]
    answered = 0
    with grpc.insecure_channel(cutter.address, options=options) as channel:
        for number in range(60):
            batch = [{"data": b"%d" % number, "ordering_key": "key", "attributes": {"x": "y" * 100}}] * 3
            request = PublishRequest(topic=TOPIC, messages=batch).SerializeToString()
            while answered <= number:
                with contextlib.suppress(grpc.RpcError):
                    call(channel, "Publisher", "Publish", request)
                    answered += 1
    cutter.close()
    assert cutter.cuts >= 3
    numbers = [int(one.message.data) for one in pulled(subscriber, 1000)]
    assert numbers == sorted(numbers)
    assert all(numbers.count(number) >= 3 for number in range(60))


# -- what is no request ----------------------------------------------------------------------------

METHODS = {
    "Publisher": "CreateTopic UpdateTopic Publish GetTopic ListTopics ListTopicSubscriptions DeleteTopic "
    "DetachSubscription",
    "Subscriber": "CreateSubscription GetSubscription UpdateSubscription ListSubscriptions DeleteSubscription "
    "ModifyAckDeadline Acknowledge Pull Seek",
    "SchemaService": "CreateSchema GetSchema ListSchemas ListSchemaRevisions CommitSchema RollbackSchema "
    "DeleteSchemaRevision DeleteSchema ValidateSchema ValidateMessage",
}


def ended(channel: grpc.Channel, service: str, method: str, request: bytes) -> grpc.StatusCode:
    answer = channel.unary_unary(f"/google.pubsub.v1.{service}/{method}").future(request, timeout=5)
    code: grpc.StatusCode = answer.code()
    return code


def test_what_is_no_protobuf_is_the_fault_of_the_client(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    chance = random.Random(7)
    channel = server.channel()
    text = TOPIC.encode()
    whole = b"\x0a%c%b\x12\x03\x0a\x01x" % (len(text), text)
    for service, methods in METHODS.items():
        for method in methods.split():
            for _ in range(12):
                raw = bytearray(whole)
                for _ in range(chance.randrange(1, 6)):
                    raw[chance.randrange(len(raw))] = chance.randrange(256)
                for one in (bytes(raw), chance.randbytes(chance.randrange(1, 50)), b""):
                    code = ended(channel, service, method, one)
                    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (method, one)
    stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter([b"\xff\xff"]))
    assert stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    publish(server, "a")
    assert data(pulled(server.subscriber())) == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"expiration_policy": {"ttl": {"seconds": 315_576_000_001}}},
        {"expiration_policy": {"ttl": {"seconds": 86_400, "nanos": 2_000_000_000}}},
        {"message_retention_duration": {"seconds": 1 << 62}},
        {"retry_policy": {"minimum_backoff": {"seconds": 1, "nanos": -1}}},
        {"filter": "x" * MEGABYTE},
        {"labels": {"é" * MEGABYTE: "x"}},
    ],
)
def test_absurd_values_are_told_as_invalid(serve: Serve, fields: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        subscribed(serve(), **fields)


def test_limits_are_told_to_the_digit(serve: Serve) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=r"You passed 2678401 in the request.* 2678400"):
        subscribed(serve(), message_retention_duration={"seconds": 2_678_401})


def test_a_seek_to_a_time_that_cannot_be_is_told_as_invalid(serve: Serve) -> None:
    server = serve()
    subscribed(server)
    request = pubsub.SeekRequest.pb()(subscription=SUBSCRIPTION)
    request.time.seconds, request.time.nanos = 253_402_300_799, 2_000_000_000
    with pytest.raises(grpc.RpcError) as raised:
        call(server.channel(), "Subscriber", "Seek", request.SerializeToString())
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_thousand_ack_ids_that_fail_do_not_fill_the_metadata_that_clients_take(serve: Serve) -> None:
    clock = ManualClock()
    server = serve(MessageQueue(clock=clock))
    subscriber = subscribed(server, enable_exactly_once_delivery=True)
    server.raw_publisher().publish(topic=TOPIC, messages=messages("a" * 1000))
    received = ack_ids(pulled(subscriber, 1000))
    clock.advance(11)
    with pytest.raises(exceptions.InvalidArgument) as raised:
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=received)
    assert 70 <= len(failed_ack_ids(raised.value)) < 1000


def test_ack_ids_of_another_subscription_have_no_effect(server: Running) -> None:
    subscriber = subscribed(server)
    other = "projects/shop/subscriptions/other"
    subscriber.create_subscription(name=other, topic=TOPIC)
    publish(server, "a")
    received = ack_ids(pulled(subscriber))
    subscriber.acknowledge(subscription=other, ack_ids=received)
    subscriber.modify_ack_deadline(subscription=other, ack_ids=received, ack_deadline_seconds=0)
    assert server.broker.metrics(other).backlog_messages == 1
    assert server.broker.metrics(SUBSCRIPTION).outstanding_messages == 1


def test_a_stream_ends_with_its_subscription_though_another_has_its_name(server: Running) -> None:
    subscriber = subscribed(server)
    stream = Stream(server.channel())
    publish(server, "a")
    received = stream.received(1)
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    assert stream.code() == grpc.StatusCode.NOT_FOUND
    publish(server, "b")
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received))
    again = Stream(server.channel())
    assert again.data(1) == "b"
    again.cancel()
    wait_until(lambda: not server.server._desks._open)


def test_what_a_take_brought_that_nobody_saw_comes_again_before_what_is_behind(serve: Serve) -> None:
    server = serve()
    server.broker.register_topic("orders")
    options = SubscriptionOptions(enable_message_ordering=True, max_outstanding_per_key=10)
    server.broker.register_subscription("worker", "orders", options)
    server.broker.publish("orders", [Message(b"%d" % number, ordering_key="k") for number in range(4)])
    ours = Extensions(server.channel())
    name = "projects/inorder/subscriptions/worker"
    assert [*ours.Take(subscription=name, max_messages=2, take="a").messages.data] == [b"0", b"1"]
    assert [*ours.Take(subscription=name, max_messages=1, take="b").messages.data] == [b"2"]
    again = ours.Take(subscription=name, max_messages=3, take="d", unseen=["a", "c"]).messages
    assert ([*again.data], [*again.attempts]) == ([b"0", b"1", b"2"], [1, 1, 1])
    for late in ("a", "c"):  # they were sent before, and come only now
        assert not ours.Take(subscription=name, max_messages=1, take=late).messages.data
    assert not server.broker.over("worker", again.leases)
    for wrong in ({"unseen": ["a"] * 1_001}, {"unseen": ["a", "b" * 65]}, {"take": "a" * 65}):
        with pytest.raises(InvalidArgument):
            ours.Take(subscription=name, max_messages=1, **wrong)


def test_a_gap_that_a_take_told_to_nobody_is_told_again_in_its_place(serve: Serve) -> None:
    server = serve()
    server.broker.register_topic("orders")
    options = SubscriptionOptions(enable_message_ordering=True, queue_limits=QueueLimits(max_messages=1))
    server.broker.register_subscription("worker", "orders", options)
    server.broker.publish("orders", [Message(b"0", ordering_key="k"), Message(b"1", ordering_key="k")])
    ours = Extensions(server.channel())
    name = "projects/inorder/subscriptions/worker"
    taken = ours.Take(subscription=name, max_messages=9, take="a").messages
    assert [*taken.data] == [b"0"]
    server.broker.settle("worker", [*taken.leases], ())
    server.broker.publish("orders", [Message(b"2", ordering_key="k")])
    first = ours.Take(subscription=name, max_messages=9, take="b").messages
    assert [*first.data] == [b"", b"2"]
    for take, unseen in (("c", "b"), ("d", "c")):  # which may be lost as well
        again = ours.Take(subscription=name, max_messages=9, take=take, unseen=[unseen]).messages
        assert [*again.data] == [b"", b"2"]
        assert again.gaps[0] == first.gaps[0]
    assert not ours.Take(subscription=name, max_messages=9, take="e").messages.data


def test_a_server_remembers_so_many_takes(serve: Serve) -> None:
    server = serve()
    takes = server.server._extensions._delivery._takes
    for number in range(2 * MAX_TAKES):
        takes.brought(f"{number}", "p-", [number, number + 1, number + 5])
    assert len(takes._brought) == MAX_TAKES
    assert takes.give_up("0", "p-") == ([], ())
    assert takes.give_up(f"{2 * MAX_TAKES - 1}", "of another start") == ([], ())
    last = 2 * MAX_TAKES - 2
    assert takes.give_up(f"{last}", "p-") == ([last, last + 1, last + 5], ())


def test_who_names_a_million_leases_holds_up_nobody(serve: Serve) -> None:
    server = serve()
    server.broker.register_topic("orders")
    server.broker.register_subscription("worker", "orders")
    server.broker.publish("orders", [Message(b"a"), Message(b"b"), Message(b"c")])
    ours = Extensions(server.channel())
    name = "projects/inorder/subscriptions/worker"
    taken = ours.Take(subscription=name, max_messages=3)
    acked, nacked, kept = taken.messages.leases
    nonsense = range(10**6, 10**6 + 10 * LEASES_AT_ONCE)
    demand = v1.Demand(
        subscription=name,
        ack_id_prefix=taken.terms.ack_id_prefix,
        acks=[*nonsense, acked],
        nacks=[nacked],
        keeps=[v1.Demand.Keep(leases=[kept], seconds=60)],
    )

    async def turns_of_others() -> int:
        """While the request is answered."""
        delivery = server.server._extensions._delivery
        answer, turns = asyncio.create_task(delivery.answer(demand, None)), 0
        while not answer.done():
            await asyncio.sleep(0)
            turns += 1
        assert [*(await answer).over] == [*nonsense]
        return turns

    assert server.run(turns_of_others()) > 10
    metrics = server.broker.metrics("worker")
    assert (metrics.counters.acked, metrics.counters.nacked, metrics.outstanding_messages) == (1, 1, 1)
    with pytest.raises(InvalidArgument, match="keeps: at most 10000 in one request"):
        ours.Answer(
            subscription=name, ack_id_prefix=taken.terms.ack_id_prefix, keeps=[v1.Demand.Keep(seconds=1)] * 10_001
        )
