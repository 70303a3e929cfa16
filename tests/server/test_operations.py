"""What those see who operate a server: how it stops, its health, its metrics."""

import contextlib
import queue
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.types import pubsub
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.errors import JournalFailed
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.message import Message
from inorder.protocol import PROTOCOL_KEY, inorder_v1_pb2
from inorder.server.extensions.delivery import TIDY
from inorder.server.metrics import FAMILIES
from inorder.server.reflection import _described
from inorder.testing.faults import Faults, FaultyDisk

from .clients import SUBSCRIPTION, TOPIC, Stream, call, messages
from .conftest import PROJECT, Running, Serve
from .test_streaming import wait_until
from .test_subscriptions import subscribed

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SAMPLE = re.compile(r'([a-z_]+)(?:\{(\w+="[^"]*"(?:,\w+="[^"]*")*)\})? ([0-9.e+-]+)')


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Running:
    running = serve(MessageQueue.open(tmp_path / "data"), project=PROJECT)
    running.broker.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 10}
    running.broker.register_subscription("worker", "orders", options)
    return running


def publish(server: Running, data: str, key: str = "") -> None:
    server.raw_publisher().publish(topic=TOPIC, messages=messages(data, key))


def watch_health(server: Running, service: str = "") -> Any:
    watch = server.channel().unary_stream("/grpc.health.v1.Health/Watch")
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return (health_pb2.HealthCheckResponse.FromString(one).status for one in watch(request, timeout=60))


# -- stopping ----------------------------------------------------------------------------------------


def test_a_server_that_stops_hands_back_what_its_streams_have_so_that_others_go_on(server: Running) -> None:
    publish(server, "abc", "key")
    publish(server, "d")
    stream = Stream(server.channel(), stream_ack_deadline_seconds=600, max_outstanding_messages=10)
    assert sorted(stream.data(4)) == [*"abcd"]
    assert not server.broker.pull("worker", 10)
    server.stop()
    assert stream.code() is grpc.StatusCode.UNAVAILABLE  # which clients repeat
    # A consumer in the process that goes on gets it at once, in order, and nobody is blamed.
    again = [message.data for message in server.broker.pull("worker", 10)]
    assert sorted(again) == [b"a", b"b", b"c", b"d"]
    assert [one for one in again if one != b"d"] == [b"a", b"b", b"c"]
    counters = server.broker.metrics("worker").counters
    assert (counters.redelivered, counters.nacked, counters.expired) == (4, 0, 0)


class OwnStream:
    """A StreamingPull of a client that knows inorder.v1."""

    def __init__(self, server: Running) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.prefix = ""
        self.send(subscription=SUBSCRIPTION, messages=100, bytes=1_000_000)
        method = server.channel().stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=inorder_v1_pb2.Demand.SerializeToString,
            response_deserializer=inorder_v1_pb2.Delivery.FromString,
        )
        self.call = method(iter(self._requests.get, None), metadata=[(PROTOCOL_KEY, "1")], timeout=60)

    def send(self, **fields: Any) -> None:
        self._requests.put(inorder_v1_pb2.Demand(**fields))

    def leases(self, count: int) -> list[int]:
        leases: list[int] = []
        while len(leases) < count:
            delivery = next(self.call)
            self.prefix = delivery.terms.ack_id_prefix or self.prefix
            leases += delivery.messages.leases
        return leases

    def ack(self, leases: list[int]) -> None:
        self.send(ack_id_prefix=self.prefix, acks=leases, number=1, messages=10_000, bytes=10_000_000)

    def code(self) -> grpc.StatusCode:
        """How it ended; waits for that."""
        with contextlib.suppress(grpc.RpcError):
            for _ in self.call:
                pass
        self._requests.put(None)
        code: grpc.StatusCode = self.call.code()
        return code


def test_what_clients_of_our_own_have_is_handed_back_too(server: Running) -> None:
    publish(server, "abc", "key")
    stream = OwnStream(server)
    stream.leases(3)
    assert not server.broker.pull("worker", 10)
    server.stop()
    assert stream.code() is grpc.StatusCode.UNAVAILABLE
    assert [message.data for message in server.broker.pull("worker", 10)] == [b"a", b"b", b"c"]


def test_a_drain_waits_for_clients_of_our_own_too(server: Running) -> None:
    publish(server, "ab", "key")
    stream = OwnStream(server)
    leases = stream.leases(2)
    stopping = threading.Thread(target=lambda: server.run(server.server.stop(drain_seconds=25)))
    stopping.start()
    health = watch_health(server)
    wait_until(lambda: next(health) == NOT_SERVING)
    stream.ack(leases)
    assert stream.code() is grpc.StatusCode.UNAVAILABLE
    stopping.join()
    assert server.broker.metrics("worker").backlog_messages == 0


def test_a_stream_of_our_own_remembers_only_what_is_out(server: Running) -> None:
    port = server.run(server.server.start_metrics())
    stream = OwnStream(server)
    for _ in range(3 * TIDY):
        server.broker.publish("orders", [Message(b"a")])
        stream.ack(stream.leases(1))
    wait_until(lambda: server.broker.metrics("worker").backlog_messages == 0)
    ((_, taker),) = server.server._desks.takers()
    assert len(taker._spans) <= TIDY
    assert [*samples(port)["inorder_stream_outstanding_messages"].values()] == [0]
    stream.call.cancel()


def test_a_drain_waits_for_the_acks_of_what_is_out_and_gives_out_nothing_more(server: Running) -> None:
    publish(server, "ab", "key")
    stream = Stream(server.channel(), protocol_version=1)
    received = stream.received(2)
    stopping = threading.Thread(target=lambda: server.run(server.server.stop(drain_seconds=25)))
    began = time.monotonic()
    stopping.start()
    health = watch_health(server)
    wait_until(lambda: next(health) == NOT_SERVING)
    publish(server, "c", "key")  # is stored, and stays here
    stream.send(ack_ids=[one.ack_id for one in received])
    assert stream.code() is grpc.StatusCode.UNAVAILABLE
    stopping.join()
    assert time.monotonic() - began < 25
    assert [message.data for message in server.broker.pull("worker", 10)] == [b"c"]


def test_a_drain_gives_nothing_more_to_pulls_of_our_own_either(server: Running) -> None:
    publish(server, "a", "held")
    stream = Stream(server.channel())
    (received,) = stream.received(1)
    stopping = threading.Thread(target=lambda: server.run(server.server.stop(drain_seconds=25)))
    stopping.start()
    wait_until(lambda: server.server._desks._stopping)
    publish(server, "b", "free")
    take = server.channel().unary_unary("/inorder.v1.Inorder/Take")
    request = inorder_v1_pb2.TakeRequest(subscription=SUBSCRIPTION, max_messages=10)
    with pytest.raises(grpc.RpcError) as refused:
        take(request.SerializeToString(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    stream.send(ack_ids=[received.ack_id])
    stopping.join()
    assert [message.data for message in server.broker.pull("worker", 10)] == [b"b"]


def test_a_drain_ends_when_its_time_is_over(server: Running) -> None:
    publish(server, "a", "key")
    stream = Stream(server.channel())
    stream.received(1)
    server.run(server.server.stop(drain_seconds=0.1))
    assert stream.code() is grpc.StatusCode.UNAVAILABLE
    assert [message.data for message in server.broker.pull("worker", 10)] == [b"a"]


def test_what_is_being_answered_when_a_server_stops_is_answered(server: Running) -> None:
    answered: list[str] = []
    refused: list[grpc.StatusCode] = []
    request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"a"}]).SerializeToString()

    def publish_until_refused(channel: grpc.Channel) -> None:
        try:
            while True:
                raw = call(channel, "Publisher", "Publish", request, timeout=30)
                answered.extend(pubsub.PublishResponse.pb().FromString(raw).message_ids)
        except grpc.RpcError as error:
            refused.append(error.code())

    threads = [threading.Thread(target=publish_until_refused, args=(server.channel(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) > 20)
    server.stop()
    for thread in threads:
        thread.join()
    # One that was on its way in the very moment may be cancelled by gRPC itself.
    assert {*refused} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    topic = server.broker.get_topic("orders")
    assert topic is not None
    assert len(answered) == len({*answered}) == topic.published


def test_a_stream_that_is_opened_again_in_the_moment_its_server_stops_is_to_try_again(serve: Serve) -> None:
    """Google's client opens it from the thread that tells it of the end, and gives up for good if it is cancelled."""
    codes: list[grpc.StatusCode] = []
    for _ in range(20):
        server = serve()
        subscribed(server)
        channel = server.channel()
        again: list[Stream] = []
        streams = [Stream(channel) for _ in range(5)]
        wait_until(lambda server=server: len([*server.server._desks.takers()]) == 5)
        for stream in streams:
            stream._call.add_done_callback(lambda _, channel=channel, again=again: again.append(Stream(channel)))
        server.stop()
        wait_until(lambda again=again: len(again) == 5)
        codes += [stream.code() for stream in (*streams, *again)]
    assert {*codes} == {grpc.StatusCode.UNAVAILABLE}


# -- health and reflection ---------------------------------------------------------------------------


def test_health_says_serving_and_not_serving_once_the_server_stops(server: Running) -> None:
    watches = [watch_health(server), watch_health(server, "google.pubsub.v1.Publisher")]
    assert [next(watch) for watch in watches] == [SERVING, SERVING]
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert [next(watch) for watch in watches] == [NOT_SERVING, NOT_SERVING]
    stopping.join()


def test_a_question_about_health_that_is_no_message_is_an_invalid_argument(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    check = server.channel().unary_unary("/grpc.health.v1.Health/Check")
    watch = server.channel().unary_stream("/grpc.health.v1.Health/Watch")
    for ask in (check, lambda *raw, **options: next(watch(*raw, **options))):
        with pytest.raises(grpc.RpcError) as refused:
            ask(b"\xff\xff", timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records  # or anybody could fill the log


def test_health_of_a_service_that_is_not_there_is_not_found(server: Running) -> None:
    check = server.channel().unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as raised:
        check(health_pb2.HealthCheckRequest(service="nobody").SerializeToString(), timeout=30)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_broker_whose_journal_has_failed_is_not_serving(serve: Serve) -> None:
    disk = FaultyDisk(0)
    server = serve(MessageQueue(journal=Journal(SegmentStore(disk))), project=PROJECT)
    server.broker.register_topic("orders")
    port = server.run(server.server.start_metrics())
    health = watch_health(server)
    assert next(health) == SERVING
    assert samples(port)["inorder_serving"][""] == 1
    disk.faults = Faults(sync_error=1)
    request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"a"}]).SerializeToString()
    with pytest.raises(grpc.RpcError):
        call(server.channel(), "Publisher", "Publish", request, timeout=30)
    assert next(health) == NOT_SERVING
    disk.faults = Faults()
    assert samples(port)["inorder_serving"][""] == 0


def test_a_consumer_goes_on_when_a_server_whose_journal_had_failed_is_started_again(serve: Serve) -> None:
    disk = FaultyDisk(0)
    server = serve(MessageQueue(journal=Journal(SegmentStore(disk))), project=PROJECT)
    server.broker.register_topic("orders")
    server.broker.register_subscription("worker", "orders")
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        message.ack()

    with PubSub(f"grpc://{server.address}?project={PROJECT}") as pubsub:
        pubsub.subscription("worker").on("message", handle).open()
        server.broker.publish("orders", [Message(b"a")])
        wait_until(lambda: seen == [b"a"])
        disk.faults = Faults(sync_error=1)
        with pytest.raises(JournalFailed):
            server.broker.publish("orders", [Message(b"lost")])
        disk.faults = Faults()
        wait_until(lambda: not [*server.server._desks.takers()])  # all were told
        server.stop()
        disk.kill()
        again = serve(MessageQueue(journal=Journal(SegmentStore(disk))), port=server.port, project=PROJECT)
        again.broker.publish("orders", [Message(b"b")])
        wait_until(lambda: seen[-1] == b"b")


def test_reflection_lists_what_is_served(server: Running) -> None:
    reflect = server.channel().stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    served = {name.rpartition("/")[0][1:] for name in server.server.calls}
    symbols = [*served, "google.pubsub.v1.PubsubMessage"]
    questions = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols),
    ]
    services, *files = reflect(iter(questions), timeout=30)
    assert {service.name for service in services.list_services_response.service} == served
    for symbol, file in zip(symbols, files, strict=True):
        assert file.file_descriptor_response.file_descriptor_proto, symbol


def test_what_reflection_says_of_googles_services_is_what_their_clients_do() -> None:
    sent: dict[str, tuple[str, str]] = {}

    def made(method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> None:
        if method.startswith("/google.pubsub.v1."):  # and not of policies
            sent[method] = _kind(request_serializer), _kind(response_deserializer)

    for client in (PublisherClient, SubscriberClient, SchemaServiceClient):
        kind = client.get_transport_class()
        transport = kind(channel=grpc.insecure_channel("localhost:1"), credentials=AnonymousCredentials())
        transport._stubs.clear()
        transport._logged_channel = SimpleNamespace(unary_unary=made, stream_stream=made, close=lambda: None)
        for name in vars(kind):
            if isinstance(getattr(kind, name), property):
                getattr(transport, name)
        transport.grpc_channel.close()
    file = _described()
    described = {
        f"/{file.package}.{service.name}/{method.name}": (method.input_type[1:], method.output_type[1:])
        for service in file.service
        for method in service.method
    }
    assert described == sent


def _kind(function: Any) -> str:
    """The message that a function reads or writes."""
    kind = function.__self__
    name: str = (kind.pb() if hasattr(kind, "pb") else kind).DESCRIPTOR.full_name
    return name


# -- metrics -----------------------------------------------------------------------------------------


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = response.read().decode()
        return text


def samples(port: int) -> dict[str, dict[str, float]]:
    """What Prometheus would know: by metric and labels."""
    found: dict[str, dict[str, float]] = {}
    kind = ""
    for line in scrape(port).splitlines():
        if line.startswith("# TYPE "):
            kind = line.split()[2]
            found[kind] = {}
        elif not line.startswith("#"):
            parsed = SAMPLE.fullmatch(line)
            assert parsed is not None, line
            assert parsed[1] == kind
            found[parsed[1]][parsed[2] or ""] = float(parsed[3])
    return found


def test_metrics_tell_of_topics_subscriptions_streams_journal_and_calls(server: Running) -> None:
    port = server.run(server.server.start_metrics())
    publish(server, "abc", "key")
    server.broker.update_subscription("worker", {"max_outstanding_per_key": 1})
    stream = Stream(server.channel(), max_outstanding_messages=5, max_outstanding_bytes=1000)
    received = stream.received(1)
    stream.send(modify_deadline_ack_ids=[received[0].ack_id], modify_deadline_seconds=[0])
    again = stream.received(1)
    with pytest.raises(grpc.RpcError):
        call(server.channel(), "Publisher", "GetTopic", b"")
    found = samples(port)
    of_worker = f'subscription="{SUBSCRIPTION}"'
    assert found["inorder_serving"] == {"": 1}
    assert found["inorder_published_total"] == {f'topic="{TOPIC}"': 3}
    expected = {
        "backlog_messages": 3,
        "outstanding_messages": 1,
        "blocked_keys": 1,
        "parked_keys": 0,
        "delivered_total": 2,
        "redelivered_total": 1,
        "nacked_total": 1,
        "acked_total": 0,
    }
    for name, value in expected.items():
        assert found[f"inorder_{name}"] == {of_worker: value}, name
    assert found["inorder_oldest_unacked_seconds"][of_worker] > 0
    assert found["inorder_head_of_line_seconds"][of_worker] > 0
    (labels,) = found["inorder_stream_outstanding_messages"]
    assert labels.startswith(f"{of_worker},stream=")
    assert found["inorder_stream_outstanding_messages"][labels] == 1
    assert found["inorder_stream_max_outstanding_messages"][labels] == 5
    assert found["inorder_stream_max_outstanding_bytes"][labels] == 1000
    assert found["inorder_stream_outstanding_bytes"][labels] == server.broker.metrics("worker").outstanding_bytes
    assert found["inorder_commits_total"][""] >= found["inorder_syncs_total"][""] > 0
    assert found["inorder_sync_seconds_total"][""] >= found["inorder_slowest_sync_seconds"][""] > 0
    assert found["inorder_written_bytes_total"][""] > 0
    calls = found["inorder_calls_total"]
    assert calls['call="google.pubsub.v1.Publisher/Publish",code="OK"'] == 1
    assert calls['call="google.pubsub.v1.Publisher/GetTopic",code="INVALID_ARGUMENT"'] == 1
    assert found["inorder_call_seconds_total"]['call="google.pubsub.v1.Publisher/Publish"'] > 0
    assert found["inorder_open_streams"] == {'call="google.pubsub.v1.Subscriber/StreamingPull"': 1}
    stream.send(ack_ids=[again[0].ack_id])
    stream.cancel()
    wait_until(lambda: samples(port)["inorder_open_streams"].popitem()[1] == 0)
    assert (
        samples(port)["inorder_calls_total"]['call="google.pubsub.v1.Subscriber/StreamingPull",code="CANCELLED"'] == 1
    )


def test_the_list_of_metrics_is_that_of_the_page_and_of_what_is_served(server: Running) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(inorder_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert listed == {name: family.kind for name, family in FAMILIES.items()}
    port = server.run(server.server.start_metrics())
    assert set(samples(port)) == set(FAMILIES)


def test_what_was_seen_is_told_again_where_looking_takes_long(server: Running) -> None:
    port = server.run(server.server.start_metrics())
    of_worker = f'subscription="{SUBSCRIPTION}"'
    assert samples(port)["inorder_backlog_messages"][of_worker] == 0
    publish(server, "a")
    wait_until(lambda: samples(port)["inorder_backlog_messages"][of_worker] == 1)


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/../etc/passwd"])
def test_nothing_else_is_at_the_port_of_the_metrics(server: Running, path: str) -> None:
    port = server.run(server.server.start_metrics())
    with pytest.raises(urllib.error.HTTPError) as raised:
        scrape(port, path)
    assert raised.value.code == 404
    raised.value.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\xff\x00\r\n\r\n"]
)
def test_nonsense_at_the_port_of_the_metrics_holds_up_nobody(server: Running, sent: bytes) -> None:
    port = server.run(server.server.start_metrics())
    with socket.create_connection(("127.0.0.1", port), timeout=30) as rude:
        rude.sendall(sent)
        assert samples(port)["inorder_serving"] == {"": 1}


def test_labels_are_quoted() -> None:
    from inorder.server.metrics import _quoted

    assert _quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
