"""The same calls in JSON: Google's clients by REST, and what curl sends."""

import gzip
import http.client
import json
import selectors
import shutil
import socket
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Conflict, NotFound
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports.rest import PublisherRestTransport
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports.rest import SchemaServiceRestTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports.rest import SubscriberRestTransport
from google.pubsub_v1.types import Encoding, Schema, Subscription, Topic

from inorder.message import Message
from inorder.protocol import PRODUCER_KEY
from inorder.server.http import MAX_HEAD_BYTES
from inorder.server.rest import service
from inorder.server.rest.routes import Route, all_calls
from inorder.server.rest.transcoding import request_of
from inorder.server.security.options import PeerLimits, Security
from inorder.server.services import SERVICES, STREAMS

from .certificates import Authority
from .clients import SUBSCRIPTION, TOPIC
from .conftest import PROJECT, Running, Serve
from .test_security import Tokens
from .test_streaming import wait_until

TRANSPORTS = {
    PublisherClient: PublisherRestTransport,
    SubscriberClient: SubscriberRestTransport,
    SchemaServiceClient: SchemaServiceRestTransport,
}
EMPTY_IN_GZIP = gzip.compress(b"{}", mtime=0)


class Rest:
    """A server's port for REST, as curl sees it."""

    def __init__(self, running: Running, tls: ssl.SSLContext | None = None) -> None:
        self.running = running
        self.port: int = running.run(running.server.start_rest())
        self._tls = tls

    def connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        return http.client.HTTPSConnection("localhost", self.port, timeout=30, context=self._tls)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status, and what was answered."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
        with closing(self.connection()) as connection:
            connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            text = response.read()
        return response.status, json.loads(text) if text.startswith((b"{", b"[")) else text

    def raw(self, sent: bytes) -> bytes:
        """What is answered to these bytes until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(sent)
            answer = b""
            while more := connection.recv(65_536):
                answer += more
        return answer

    def client(self, kind: Any) -> Any:
        transport = TRANSPORTS[kind](
            host=f"127.0.0.1:{self.port}", url_scheme="http", credentials=AnonymousCredentials()
        )
        return kind(transport=transport)


@pytest.fixture
def rest(serve: Serve) -> Rest:
    return Rest(serve(project=PROJECT))


@pytest.fixture
def subscribed(rest: Rest) -> Rest:
    assert rest("PUT", f"/v1/{TOPIC}")[0] == 200
    assert rest("PUT", f"/v1/{SUBSCRIPTION}", {"topic": TOPIC, "enableMessageOrdering": True})[0] == 200
    return rest


def text(data: str) -> str:
    return b64encode(data.encode()).decode()


# -- Google's clients ----------------------------------------------------------------------------------


def test_every_call_has_a_path_but_the_stream() -> None:
    known = {(service, call) for service, calls in SERVICES.items() for call in calls if call not in STREAMS}
    assert {*all_calls()} == known


def test_googles_client_publishes_and_pulls_by_rest(rest: Rest) -> None:
    publisher, subscriber = rest.client(PublisherClient), rest.client(SubscriberClient)
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(
        request={"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True, "labels": {"a": "b"}}
    )
    sent = [{"data": data, "ordering_key": "k", "attributes": {"n": "ü"}} for data in (b"\x00\xff", b"2", b"3")]
    ids = publisher.publish(topic=TOPIC, messages=sent).message_ids
    assert len({*ids}) == 3
    seen: list[bytes] = []
    while len(seen) < 3:
        for received in subscriber.pull(subscription=SUBSCRIPTION, max_messages=10).received_messages:
            assert received.message.attributes == {"n": "ü"}
            assert received.message.publish_time.year > 2000
            seen.append(received.message.data)
            subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[received.ack_id])
    assert seen == [b"\x00\xff", b"2", b"3"]


def test_googles_client_administers_by_rest(rest: Rest) -> None:
    publisher, subscriber = rest.client(PublisherClient), rest.client(SubscriberClient)
    others = [f"{TOPIC}-{number}" for number in range(5)]
    for name in others:
        publisher.create_topic(name=name)
    with pytest.raises(Conflict, match="already exists"):
        publisher.create_topic(name=others[0])
    listed = publisher.list_topics(request={"project": "projects/shop", "page_size": 2})
    assert [topic.name for topic in listed] == others
    updated = publisher.update_topic(
        topic=Topic(name=others[0], labels={"team": "x"}), update_mask={"paths": ["labels"]}
    )
    assert updated.labels == {"team": "x"}
    subscriber.create_subscription(name=SUBSCRIPTION, topic=others[0])
    changed = subscriber.update_subscription(
        subscription=Subscription(name=SUBSCRIPTION, ack_deadline_seconds=77),
        update_mask={"paths": ["ack_deadline_seconds"]},
    )
    assert changed.ack_deadline_seconds == 77
    assert [*publisher.list_topic_subscriptions(topic=others[0])] == [SUBSCRIPTION]
    snapshot = subscriber.create_snapshot(name="projects/shop/snapshots/now", subscription=SUBSCRIPTION)
    publisher.publish(topic=others[0], messages=[{"data": b"x"}])
    received = subscriber.pull(subscription=SUBSCRIPTION, max_messages=1).received_messages
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[received[0].ack_id])
    subscriber.seek(request={"subscription": SUBSCRIPTION, "snapshot": snapshot.name})
    assert subscriber.pull(subscription=SUBSCRIPTION, max_messages=1).received_messages[0].message.data == b"x"
    subscriber.modify_push_config(subscription=SUBSCRIPTION, push_config={})
    publisher.detach_subscription(request={"subscription": SUBSCRIPTION})
    subscriber.delete_snapshot(snapshot=snapshot.name)
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    with pytest.raises(NotFound, match="Resource not found"):
        subscriber.get_subscription(subscription=SUBSCRIPTION)
    publisher.delete_topic(topic=others[0])
    assert [topic.name for topic in publisher.list_topics(project="projects/shop")] == others[1:]


def test_googles_client_makes_schemas_by_rest(rest: Rest) -> None:
    schemas = rest.client(SchemaServiceClient)
    definition = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    wanted = Schema(type_=Schema.Type.AVRO, definition=definition)
    made = schemas.create_schema(parent="projects/shop", schema=wanted, schema_id="orders")
    assert made.name == "projects/shop/schemas/orders"
    assert made.type_ == Schema.Type.AVRO
    schemas.validate_schema(parent="projects/shop", schema=wanted)
    schemas.validate_message(
        request={"parent": "projects/shop", "name": made.name, "message": b'{"a": 1}', "encoding": Encoding.JSON}
    )
    assert [one.revision_id for one in schemas.list_schema_revisions(name=made.name)] == [made.revision_id]
    schemas.delete_schema(name=made.name)


# -- what curl sends -----------------------------------------------------------------------------------


def test_a_message_goes_round_in_json(subscribed: Rest) -> None:
    sent = {"messages": [{"data": text(one), "orderingKey": "k", "attributes": {"a": "b"}} for one in "12"]}
    status, published = subscribed("POST", f"/v1/{TOPIC}:publish", sent)
    assert status == 200
    first, _ = published["messageIds"]
    status, pulled = subscribed("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 1})
    assert status == 200
    [received] = pulled["receivedMessages"]
    message = received["message"]
    assert (message["data"], message["orderingKey"], message["messageId"]) == (text("1"), "k", first)
    assert subscribed("POST", f"/v1/{SUBSCRIPTION}:acknowledge", {"ackIds": [received["ackId"]]}) == (200, {})


def test_the_commands_of_the_page_do_what_it_says(rest: Rest) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    page = Path(__file__).parents[2] / "docs" / "compatibility.md"
    block = page.read_text(encoding="utf-8").partition("## REST")[2].partition("```sh\n")[2].partition("```")[0]
    commands = block.partition("\n")[2].replace(":8086/", f":{rest.port}/").replace("curl ", "curl -sS ")
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, check=True)
    assert done.stdout.rindex('"orderingKey": "user-7"') > done.stdout.index('"messageIds"')


def test_the_largest_message_goes_round(subscribed: Rest) -> None:
    data = b64encode(bytes(9_999_000)).decode()
    assert subscribed("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": data}]})[0] == 200
    [received] = subscribed("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 1})[1]["receivedMessages"]
    assert received["message"]["data"] == data


def test_fields_may_be_spelt_as_in_protobuf(subscribed: Rest) -> None:
    assert (
        subscribed("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": text("x"), "ordering_key": "k"}]})[0] == 200
    )
    assert len(subscribed("GET", "/v1/projects/shop/topics?page_size=1&prettyPrint=false&$.xgafv=2")[1]["topics"]) == 1


def test_parameters_are_fields_of_fields_too(subscribed: Rest) -> None:
    path = f"/v1/{TOPIC}:getIamPolicy?options.requestedPolicyVersion=3"
    assert subscribed("GET", path)[0] == 200
    assert subscribed("GET", f"/v1/{TOPIC}:getIamPolicy?options.nothing=3")[0] == 400
    assert subscribed("GET", f"/v1/{TOPIC}:getIamPolicy?nothing.at.all=3")[0] == 400


def test_a_parameter_that_would_not_be_read_is_refused(subscribed: Rest) -> None:
    for path, name in (
        (f"/v1/{SUBSCRIPTION}:pull?maxMessages=1", "maxMessages"),
        (f"/v1/{TOPIC}:getIamPolicy?options=3&options.requestedPolicyVersion=3", "options"),
        (f"/v1/{TOPIC}:getIamPolicy?options.requestedPolicyVersion=3&options=3", "options"),
    ):
        status, told = subscribed("GET" if "getIam" in path else "POST", path)
        assert (status, told["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert name in told["error"]["message"]


def test_parameters_of_all_of_googles_apis_are_no_fields(subscribed: Rest) -> None:
    system = "$.xgafv=1&access_token=a&alt=json&callback=c&fields=f&key=k&oauth_token=o&prettyPrint=true&quotaUser=q"
    for method, path in (("GET", TOPIC), ("PUT", "projects/shop/topics/another")):
        assert subscribed(method, f"/v1/{path}?{system}&upload_protocol=raw&uploadType=media")[0] == 200


def test_enums_are_words_unless_numbers_are_asked_for(rest: Rest) -> None:
    definition = {"type": "AVRO", "definition": '{"type": "record", "name": "R", "fields": []}'}
    assert rest("POST", "/v1/projects/shop/schemas?schemaId=orders", definition)[1]["type"] == "AVRO"
    path = "/v1/projects/shop/schemas/orders"
    assert rest("GET", f"{path}?$alt=json;enum-encoding=int")[1]["type"] == 2
    assert rest("GET", f"{path}?view=FULL")[1]["type"] == "AVRO"


def test_names_may_be_escaped_and_projects_have_colons(rest: Rest) -> None:
    assert (
        rest("PUT", "/v1/projects/example.com:shop/topics/a%2Bb")[1]["name"] == "projects/example.com:shop/topics/a+b"
    )
    assert rest("GET", "/v1/projects/example.com:shop/topics/a+b")[0] == 200
    for kind, found in (("topics", 1), ("subscriptions", 0), ("snapshots", 0), ("schemas", 0)):
        status, listed = rest("GET", f"/v1/projects/example.com:shop/{kind}")
        assert (status, len(listed.get(kind, []))) == (200, found)


def test_an_escaped_slash_in_a_name_stays_escaped(rest: Rest) -> None:
    assert rest("PUT", "/v1/projects/shop/topics/a%2fb%2Fc")[1]["name"] == "projects/shop/topics/a%2fb%2Fc"


def sent(data: str) -> dict[str, Any]:
    """A request to publish one message whose data are told so."""
    return {"messages": [{"data": data}]}


@pytest.mark.parametrize("encoded", ["/+8=", "_-8=", "_-8", "/+\r\n8=\n"])
def test_data_are_base_64_in_either_alphabet_with_or_without_its_end(subscribed: Rest, encoded: str) -> None:
    assert subscribed("POST", f"/v1/{TOPIC}:publish", sent(encoded))[0] == 200
    _, pulled = subscribed("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 1})
    assert pulled["receivedMessages"][0]["message"]["data"] == "/+8="


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "status", "words"),
    [
        ("GET", "/v1/projects/shop/topics/missing", None, 404, "NOT_FOUND", "Resource not found (resource=missing)"),
        ("PUT", f"/v1/{TOPIC}", None, 409, "ALREADY_EXISTS", "already exists in the project (resource=orders)."),
        ("PUT", "/v1/projects/shop/topics/1st", None, 400, "INVALID_ARGUMENT", "1st"),
        ("POST", f"/v1/{TOPIC}:publish", {"messages": []}, 400, "INVALID_ARGUMENT", "message_count is too small"),
        ("POST", f"/v1/{TOPIC}:publish", {"messages": [{"dato": ""}]}, 400, "INVALID_ARGUMENT", '"dato"'),
        ("POST", f"/v1/{TOPIC}:publish", b"{", 400, "INVALID_ARGUMENT", "not valid JSON for google.pubsub.v1.Publ"),
        ("POST", f"/v1/{TOPIC}:publish", b"\xff", 400, "INVALID_ARGUMENT", "not valid JSON"),
        ("POST", f"/v1/{TOPIC}:publish", b"[" * 5_000, 400, "INVALID_ARGUMENT", "not valid JSON"),
        ("POST", f"/v1/{TOPIC}:publish", {"messages": "\ud800"}, 400, "INVALID_ARGUMENT", "must be in [] which is ?"),
        ("POST", f"/v1/{TOPIC}:publish", [1], 400, "INVALID_ARGUMENT", "not valid JSON"),
        ("PUT", "/v1/projects/shop/topics/another", [], 400, "INVALID_ARGUMENT", "an object is expected"),
        ("POST", f"/v1/{TOPIC}:publish", sent("Hi, world"), 400, "INVALID_ARGUMENT", "messages[0].data: this is"),
        ("POST", f"/v1/{TOPIC}:publish", sent("MQ==MQ=="), 400, "INVALID_ARGUMENT", "no base 64: 'MQ==MQ=='"),
        ("POST", f"/v1/{TOPIC}:setIamPolicy", {"policy": {"etag": "!"}}, 400, "INVALID_ARGUMENT", "policy.etag: this"),
        ("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 0}, 400, "INVALID_ARGUMENT", "max_messages"),
        ("GET", "/v1/projects/shop/topics?pageSize=many", None, 400, "INVALID_ARGUMENT", "many"),
        ("GET", "/v1/projects/shop/topics?size=1", None, 400, "INVALID_ARGUMENT", '"size"'),
        ("GET", "/v1/projects/shop/nothing", None, 404, "NOT_FOUND", "no call at GET /v1/projects/shop/nothing"),
        ("POST", f"/v1/{TOPIC}:destroy", {}, 404, "NOT_FOUND", "no call at POST"),
        ("BREW", f"/v1/{TOPIC}", None, 404, "NOT_FOUND", "no call at BREW"),
    ],
)
def test_what_goes_wrong_is_told_as_google_does(
    subscribed: Rest, method: str, path: str, body: Any, code: int, status: str, words: str
) -> None:
    answered, told = subscribed(method, path, body)
    assert (answered, told["error"]["code"], told["error"]["status"]) == (code, code, status)
    assert words in told["error"]["message"]


def test_with_exactly_once_it_is_told_which_acks_failed(rest: Rest) -> None:
    rest("PUT", f"/v1/{TOPIC}")
    rest("PUT", f"/v1/{SUBSCRIPTION}", {"topic": TOPIC, "enableExactlyOnceDelivery": True})
    code, told = rest("POST", f"/v1/{SUBSCRIPTION}:acknowledge", {"ackIds": ["nonsense"]})
    assert code == 400
    [info] = told["error"]["details"]
    assert info["metadata"] == {"nonsense": "PERMANENT_FAILURE_INVALID_ACK_ID"}


def test_what_grpc_sends_as_bytes_is_no_header(subscribed: Rest) -> None:
    sent = {"messages": [{"data": text("x")}]}
    assert subscribed("POST", f"/v1/{TOPIC}:publish", sent, **{PRODUCER_KEY: "x"})[0] == 200


def test_who_waits_for_the_port_is_told_ok(rest: Rest) -> None:
    assert rest("GET", "/") == (200, b"Ok\n")


def test_calls_by_rest_are_counted_with_the_others(subscribed: Rest) -> None:
    subscribed("GET", "/v1/projects/shop/topics/missing")
    told = subscribed.running.run(subscribed.running.server._exporter.text())
    assert 'inorder_calls_total{call="google.pubsub.v1.Publisher/GetTopic",code="NOT_FOUND"} 1' in told


# -- HTTP ----------------------------------------------------------------------------------------------


def test_a_connection_is_used_again(subscribed: Rest) -> None:
    with closing(subscribed.connection()) as connection:
        for _ in range(3):
            connection.request("GET", f"/v1/{TOPIC}")
            assert json.loads(connection.getresponse().read())["name"] == TOPIC


def test_requests_may_be_sent_one_behind_the_other(subscribed: Rest) -> None:
    one = f"GET /v1/{TOPIC} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    last = f"GET http://x/v1/{TOPIC} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    assert subscribed.raw(one * 4 + last).count(b"HTTP/1.1 200 OK") == 5


def test_a_body_may_come_in_chunks(subscribed: Rest) -> None:
    body = json.dumps({"messages": [{"data": text("x" * 100)}]}).encode()
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\nA: b\r\n\r\n"
    head = f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert b"messageIds" in subscribed.raw(head + chunks)


def test_who_asks_before_it_sends_is_answered(subscribed: Rest) -> None:
    body = json.dumps({"messages": [{"data": text("x")}]}).encode()
    head = f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    answer = subscribed.raw(f"{head}Expect: 100-continue\r\n\r\n".encode() + body)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_who_asks_before_it_sends_too_much_need_not_send_it(rest: Rest) -> None:
    head = f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nContent-Length: 20000000\r\nExpect: 100-continue\r\n\r\n"
    assert rest.raw(head.encode()).startswith(b"HTTP/1.1 413 ")


def test_an_old_client_does_not_know_what_it_means_to_go_on(subscribed: Rest) -> None:
    head = f"GET /v1/{TOPIC} HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"
    assert subscribed.raw(head.encode()).startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_old_client_is_answered_and_its_connection_closed(subscribed: Rest) -> None:
    assert f'"name": "{TOPIC}"'.encode() in subscribed.raw(f"GET /v1/{TOPIC} HTTP/1.0\r\n\r\n".encode())


def test_a_head_alone_has_no_body(subscribed: Rest) -> None:
    for path, status in (("/", 200), (f"/v1/{TOPIC}", 200), ("/v1/x", 404)):
        answer = subscribed.raw(f"HEAD {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # https
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx", 415),
        (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + EMPTY_IN_GZIP[:20], 400),
        (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 23\r\n\r\n" + EMPTY_IN_GZIP + b"x", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET /" + b"b" * MAX_HEAD_BYTES, 431),
    ],
)
def test_what_is_no_request_ends_its_connection_with_a_word(rest: Rest, sent: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100).startswith(b"HTTP/1.1 %d " % status)
    assert rest("GET", "/")[0] == 200


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_body_may_come_in_gzip(subscribed: Rest, in_chunks: bool) -> None:
    data = text("x" * 200_000)
    body = gzip.compress(json.dumps(sent(data)).encode())
    with closing(subscribed.connection()) as connection:
        whole: Any = iter([body[:100], body[100:]]) if in_chunks else body
        headers = {"Content-Encoding": "gzip"}
        connection.request("POST", f"/v1/{TOPIC}:publish", whole, headers, encode_chunked=in_chunks)
        assert connection.getresponse().status == 200
    _, pulled = subscribed("POST", f"/v1/{SUBSCRIPTION}:pull", {"maxMessages": 1})
    assert pulled["receivedMessages"][0]["message"]["data"] == data
    wait_until(lambda: subscribed.running.server._http[0].held == 0)


def test_what_comes_in_gzip_is_no_larger_than_other_requests(rest: Rest) -> None:
    status, told = rest("PUT", f"/v1/{TOPIC}", gzip.compress(bytes(20_000_000)), content_encoding="gzip")
    assert status == 413
    assert b"at most 16000000 bytes" in told
    wait_until(lambda: rest.running.server._http[0].held == 0)


def test_who_sends_too_much_can_read_why(rest: Rest) -> None:
    status, told = rest("POST", f"/v1/{TOPIC}:publish", b" " * 20_000_000)
    assert status == 413
    assert b"at most 16000000 bytes" in told


def test_requests_that_are_begun_and_not_sent_take_no_more_memory_than_there_is_for_all(rest: Rest) -> None:
    begun = f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nContent-Length: 15000000\r\n\r\n".encode()
    connections = [socket.create_connection(("127.0.0.1", rest.port), timeout=30) for _ in range(18)]
    try:
        with selectors.DefaultSelector() as answered:
            for connection in connections:
                connection.sendall(begun)
                answered.register(connection, selectors.EVENT_READ)
            [(refused, _)] = answered.select(30)
        assert refused.fileobj.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")  # type: ignore[union-attr]
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: rest.running.server._http[0].held == 0)
    assert rest("POST", f"/v1/{TOPIC}:publish", b" " * 15_000_000)[0] == 404


def test_there_are_no_more_connections_than_allowed(serve: Serve) -> None:
    rest = Rest(serve(limits=PeerLimits(max_connections=2)))
    with closing(rest.connection()) as one, closing(rest.connection()) as two:
        for connection in (one, two):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"Ok\n"
        assert not answers(rest)
    wait_until(lambda: answers(rest))


def answers(rest: Rest) -> bool:
    try:
        return rest("GET", "/")[0] == 200
    except OSError:  # reset, or closed without a word
        return False


def waits(rest: Rest) -> bool:
    """Whether somebody waits for messages."""
    return bool([*rest.running.server._desks.takers()])


def test_who_goes_while_it_waits_for_a_message_takes_none(subscribed: Rest) -> None:
    broker = subscribed.running.broker
    waiting = subscribed.connection()
    waiting.request("POST", f"/v1/{SUBSCRIPTION}:pull", json.dumps({"maxMessages": 10}))
    wait_until(lambda: waits(subscribed))
    waiting.close()
    wait_until(lambda: not waits(subscribed))
    broker.publish("orders", [Message(b"x", ordering_key="k")])
    [message] = broker.pull("worker", 10)
    assert message.delivery_attempt == 1


def test_what_is_large_is_read_alone_although_its_client_has_gone(
    subscribed: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: list[int] = []
    go_on = threading.Event()

    def read(route: Route, kind: Any, query: Any, body: bytes) -> bytes:
        reading.append(len(body))
        assert go_on.wait(30)
        return request_of(route, kind, query, body)

    monkeypatch.setattr(service, "request_of", read)
    body = json.dumps({"messages": [{"data": b64encode(bytes(service.LARGE_BYTES)).decode()}]})
    for _ in range(2):
        with closing(subscribed.connection()) as connection:
            connection.request("POST", f"/v1/{TOPIC}:publish", body)
            wait_until(lambda: bool(reading))
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(subscribed, "POST", f"/v1/{TOPIC}:publish", json.loads(body))
        time.sleep(0.05)
        begun = len(reading)
        go_on.set()
        assert answer.result(30)[0] == 200
    assert begun == 1


def test_a_server_that_stops_answers_who_waits(subscribed: Rest) -> None:
    with closing(subscribed.connection()) as waiting:
        waiting.request("POST", f"/v1/{SUBSCRIPTION}:pull", json.dumps({"maxMessages": 10}))
        wait_until(lambda: waits(subscribed))
        subscribed.running.stop()
        response = waiting.getresponse()
        assert (response.status, json.loads(response.read())["error"]["status"]) == (503, "UNAVAILABLE")


def test_a_server_that_stops_says_nothing_of_connections_that_are_kept(
    subscribed: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(subscribed.connection()) as kept:
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"Ok\n"
        subscribed.running.stop()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_server_stops_although_somebody_does_not_read_its_answer(subscribed: Rest) -> None:
    subscribed.running.broker.publish("orders", [Message(bytes(9_000_000))])
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        idle.connect(("127.0.0.1", subscribed.port))
        body = b'{"maxMessages": 1}'
        idle.sendall(f"POST /v1/{SUBSCRIPTION}:pull HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        idle.settimeout(30)
        assert idle.recv(15) == b"HTTP/1.1 200 OK"
        subscribed.running.stop()


# -- who may ---------------------------------------------------------------------------------------------


def test_a_page_in_a_browser_can_do_nothing(subscribed: Rest) -> None:
    body = {"messages": [{"data": text("x")}]}
    status, told = subscribed("POST", f"/v1/{TOPIC}:publish", body, Origin="https://example.com")
    assert (status, told["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert subscribed.running.broker.metrics("worker").backlog_messages == 0


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.toml")


def test_tokens_have_the_rights_that_they_have_by_grpc(serve: Serve, tokens: Tokens) -> None:
    secret = tokens.add("publisher", publish=["orders"])
    rest = Rest(serve(project=PROJECT, security=Security(tokens=tokens.path)))
    rest.running.broker.register_topic("orders")
    body = {"messages": [{"data": text("x")}]}
    assert rest("POST", f"/v1/{TOPIC}:publish", body)[0] == 401
    assert rest("POST", f"/v1/{TOPIC}:publish", body, Authorization="Bearer nonsense")[0] == 401
    assert rest("POST", f"/v1/{TOPIC}:publish", body, Authorization=f"Bearer {secret}")[0] == 200
    assert rest("DELETE", f"/v1/{TOPIC}", Authorization=f"Bearer {secret}")[0] == 403


def test_a_peer_that_asks_too_often_is_told_so(serve: Serve) -> None:
    rest = Rest(serve(project=PROJECT, limits=PeerLimits(requests_per_second=0.001, burst=2)))
    statuses = [rest("GET", "/v1/projects/shop/topics")[0] for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_with_a_certificate_it_is_https_and_a_new_one_is_used_at_once(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("localhost")
    security = Security(certificate=pair.certificate, key=pair.key, client_ca=authority.certificate)
    mine = authority.pair("client")
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(mine.certificate, mine.key)
    rest = Rest(serve(security=security), context)
    assert rest("GET", "/")[0] == 200
    before = rest_certificate(rest)
    authority.pair("localhost")  # in the same files
    assert rest_certificate(rest) != before
    stranger = Rest.__new__(Rest)
    stranger.port, stranger._tls = rest.port, ssl.create_default_context(cafile=authority.certificate)
    assert not answers(stranger)


def rest_certificate(rest: Rest) -> bytes | None:
    with closing(rest.connection()) as connection:
        connection.connect()
        return connection.sock.getpeercert(binary_form=True)  # type: ignore[union-attr]
