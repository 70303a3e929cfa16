"""Who may call, and what: TLS, tokens, rights, and tokens that are taken away."""

import asyncio
import hmac
import logging
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.types import pubsub, schema
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from inorder.clock import SYSTEM_CLOCK
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.options import SubscriptionOptions
from inorder.protocol import inorder_v1_pb2
from inorder.server.security.guard import Guard
from inorder.server.security.options import Security
from inorder.server.security.rights import RULES, needed
from inorder.server.security.tls import _Certificates
from inorder.server.security.tokens import TokenFile, new_token, read

from .certificates import Authority
from .clients import SUBSCRIPTION, TOPIC, Stream, StreamingPullRequest
from .conftest import PROJECT, Running, Serve
from .test_streaming import wait_until

PUBLISHER, SUBSCRIBER = "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber"
OTHER = "projects/shop/topics/other"

Publish = pubsub.PublishRequest.pb()
Subscription = pubsub.Subscription.pb()


class Tokens:
    """A file of tokens, and the secrets that are not in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, str] = {}
        self.secrets: dict[str, str] = {}

    def add(self, name: str, expires: datetime | None = None, **grants: Sequence[str]) -> str:
        self.secrets[name], self._entries[name] = new_token(name, grants, expires)  # type: ignore[arg-type]
        self.write("\n\n".join(self._entries.values()))
        return self.secrets[name]

    def remove(self, name: str) -> None:
        del self._entries[name]
        self.write("\n\n".join(self._entries.values()))

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    found = Tokens(tmp_path / "tokens.toml")
    found.add("root", admin=["*"])
    return found


@pytest.fixture
def server(serve: Serve, tokens: Tokens) -> Running:
    running = serve(project=PROJECT, security=Security(tokens=tokens.path))
    running.broker.register_topic("orders")
    running.broker.register_topic("other")
    running.broker.register_subscription("worker", "orders", SubscriptionOptions(enable_message_ordering=True))
    return running


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def ask(channel: grpc.Channel, token: str | None, service: str, method: str, request: Any) -> bytes:
    metadata = [] if token is None else bearer(token)
    answer: bytes = channel.unary_unary(f"/{service}/{method}")(
        request.SerializeToString(), timeout=30, metadata=metadata
    )
    return answer


def code(work: Callable[..., object], *given: Any, **named: Any) -> grpc.StatusCode:
    """How a call ends that does not succeed."""
    with pytest.raises(grpc.RpcError) as raised:
        work(*given, **named)
    return raised.value.code()


def publish(topic: str = TOPIC) -> Any:
    return Publish(topic=topic, messages=[{"data": b"a"}])


class TokenStream(Stream):
    """A StreamingPull with a token."""

    def __init__(self, channel: grpc.Channel, token: str, **first: Any) -> None:
        super().__init__(_WithToken(channel, token), **first)  # type: ignore[arg-type]


class _WithToken:
    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self._channel, self._token = channel, token

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        method = self._channel.stream_stream(*arguments, **named)
        return lambda requests, timeout: method(requests, timeout=timeout, metadata=bearer(self._token))


# -- the table ---------------------------------------------------------------------------------------


def test_each_call_of_each_service_has_a_rule_and_no_rule_is_for_a_call_that_nobody_knows(server: Running) -> None:
    described = {
        f"/{service.full_name}/{method.name}"
        for file in (inorder_v1_pb2, iam_policy_pb2, health_pb2, reflection_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    wrapped = {
        f"/{service}/{call}"
        for service, client in (
            (PUBLISHER, PublisherClient),
            (SUBSCRIBER, SubscriberClient),
            ("google.pubsub.v1.SchemaService", SchemaServiceClient),
        )
        for call in _calls_of(client)
    }
    assert not (server.server.calls | described | wrapped) - set(RULES)
    assert not set(RULES) - described - wrapped


def _calls_of(client: Any) -> set[str]:
    """The calls that Google's client knows, by their names in the protocol."""
    names = (name for name in vars(client.get_transport_class()) if not name.startswith("_"))
    return {"".join(part.capitalize() for part in name.split("_")) for name in names} - _NO_CALLS


_NO_CALLS = {
    *("CreateChannel", "GrpcChannel", "Close", "Kind", "Host"),
    *("SetIamPolicy", "GetIamPolicy", "TestIamPermissions"),  # of another service
}

NEEDS: list[tuple[str, Any, list[tuple[str, str]]]] = [
    (f"/{PUBLISHER}/Publish", publish(), [("publish", TOPIC)]),
    (
        f"/{PUBLISHER}/CreateTopic",
        pubsub.Topic.pb()(name=TOPIC, schema_settings={"schema": "projects/shop/schemas/one"}),
        [("admin", TOPIC), ("publish", "projects/shop/schemas/one")],  # or any other to the schema
    ),
    (
        f"/{PUBLISHER}/UpdateTopic",
        pubsub.UpdateTopicRequest.pb()(topic={"name": TOPIC, "schema_settings": {"schema": "_deleted-schema_"}}),
        [("admin", TOPIC)],
    ),
    (f"/{SUBSCRIBER}/StreamingPull", StreamingPullRequest(subscription=SUBSCRIPTION), [("subscribe", SUBSCRIPTION)]),
    (
        f"/{SUBSCRIBER}/CreateSubscription",
        Subscription(name=SUBSCRIPTION, topic=TOPIC, dead_letter_policy={"dead_letter_topic": OTHER}),
        [("admin", SUBSCRIPTION), ("subscribe", TOPIC), ("publish", OTHER)],
    ),
    (
        f"/{SUBSCRIBER}/CreateSubscription",
        Subscription(topic=TOPIC),
        [("admin", "projects/shop/subscriptions/*"), ("subscribe", TOPIC)],
    ),
    (
        f"/{SUBSCRIBER}/UpdateSubscription",
        pubsub.UpdateSubscriptionRequest.pb()(
            subscription={"name": SUBSCRIPTION, "dead_letter_policy": {"dead_letter_topic": OTHER}}
        ),
        [("admin", SUBSCRIPTION), ("publish", OTHER)],
    ),
    (
        f"/{SUBSCRIBER}/Seek",
        pubsub.SeekRequest.pb()(subscription=SUBSCRIPTION, snapshot="projects/shop/snapshots/one"),
        [("subscribe", SUBSCRIPTION), ("subscribe", "projects/shop/snapshots/one")],
    ),
    (
        f"/{SUBSCRIBER}/CreateSnapshot",
        pubsub.CreateSnapshotRequest.pb()(subscription=SUBSCRIPTION),
        [("admin", "projects/shop/snapshots/*"), ("subscribe", SUBSCRIPTION)],
    ),
    (
        "/google.pubsub.v1.SchemaService/CreateSchema",
        schema.CreateSchemaRequest.pb()(parent="projects/shop", schema_id="one"),
        [("admin", "projects/shop/schemas/one")],
    ),
    (
        "/google.pubsub.v1.SchemaService/DeleteSchemaRevision",
        schema.DeleteSchemaRevisionRequest.pb()(name="projects/shop/schemas/one@1"),
        [("admin", "projects/shop/schemas/one")],
    ),
    (
        "/inorder.v1.Inorder/CreateSubscription",
        inorder_v1_pb2.CreateSubscriptionRequest(
            subscription=SUBSCRIPTION, topic=TOPIC, options='{"dead_letter_policy": {"dead_letter_topic": "other"}}'
        ),
        [("admin", SUBSCRIPTION), ("subscribe", TOPIC), ("publish", OTHER)],
    ),
    (
        "/inorder.v1.Inorder/ListSubscriptions",
        inorder_v1_pb2.ListSubscriptionsRequest(project="projects/shop"),
        [("admin", "projects/shop")],
    ),
]


@pytest.mark.parametrize(("call", "request_", "needs"), NEEDS, ids=[call for call, _, _ in NEEDS])
def test_a_call_needs_a_right_to_each_resource_it_names(call: str, request_: Any, needs: list[tuple[str, str]]) -> None:
    rule = RULES[call]
    assert rule is not None
    assert [(need.rights[0], need.resource) for need in needed(rule, request_.SerializeToString())] == needs


# -- tokens and rights -------------------------------------------------------------------------------


def test_a_call_without_a_token_or_with_a_wrong_one_is_unauthenticated(server: Running, tokens: Tokens) -> None:
    channel, secret = server.channel(), tokens.secrets["root"]
    assert code(ask, channel, None, PUBLISHER, "Publish", publish()) is grpc.StatusCode.UNAUTHENTICATED
    for wrong in ("", "root", "root.", f"{secret}x", secret.swapcase(), "nobody.x", "root." + "x" * 600, "."):
        assert code(ask, channel, wrong, PUBLISHER, "Publish", publish()) is grpc.StatusCode.UNAUTHENTICATED, wrong
    call = channel.unary_unary(f"/{PUBLISHER}/Publish")
    for metadata in (
        [("authorization", f"Basic {secret}")],
        [*bearer(secret), *bearer("other")],  # which of the two would count?
        [("authorization", secret)],
    ):
        outcome = code(call, publish().SerializeToString(), metadata=metadata, timeout=30)
        assert outcome is grpc.StatusCode.UNAUTHENTICATED
    assert server.broker.metrics("worker").backlog_messages == 0
    assert ask(channel, secret, PUBLISHER, "Publish", publish())
    call(publish().SerializeToString(), metadata=[("authorization", f"bearer {secret}")], timeout=30)


def test_a_wrong_token_is_compared_like_a_right_one(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    constant_time = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return constant_time(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = read(tokens.path, PROJECT)
    for presented in (tokens.secrets["root"], "root.wrong", "nobody.wrong", ""):
        found.find(presented, 0)
    assert compared == [(64, 64)] * 4


def test_a_token_does_what_it_has_the_right_to_and_nothing_else(server: Running, tokens: Tokens) -> None:
    shop = tokens.add("shop", publish=["ord*"])
    work = tokens.add("work", subscribe=["worker"])
    boss = tokens.add("boss", admin=["topics/*"])
    server.run(_look_again(server))
    channel = server.channel()
    get = pubsub.GetTopicRequest.pb()(topic=TOPIC)
    pull = pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=1, return_immediately=True)
    create = Subscription(name=SUBSCRIPTION + "-2", topic=TOPIC)
    allowed = [
        (shop, PUBLISHER, "Publish", publish()),
        (shop, PUBLISHER, "GetTopic", get),
        (boss, PUBLISHER, "Publish", publish(OTHER)),
        (boss, PUBLISHER, "GetTopic", get),
        (work, SUBSCRIBER, "Pull", pull),
    ]
    for token, service, method, request in allowed:
        ask(channel, token, service, method, request)
    denied = [
        (shop, PUBLISHER, "Publish", publish(OTHER)),
        (shop, SUBSCRIBER, "Pull", pull),
        (shop, PUBLISHER, "DeleteTopic", pubsub.DeleteTopicRequest.pb()(topic=TOPIC)),
        (shop, PUBLISHER, "ListTopics", pubsub.ListTopicsRequest.pb()(project="projects/shop")),
        (work, PUBLISHER, "Publish", publish()),
        (work, SUBSCRIBER, "CreateSubscription", create),
        (work, PUBLISHER, "GetTopic", get),
        (boss, SUBSCRIBER, "Pull", pull),
        (boss, SUBSCRIBER, "CreateSubscription", create),
        (shop, PUBLISHER, "Publish", publish("projects/elsewhere/topics/orders")),
        (shop, PUBLISHER, "Publish", publish("no resource at all")),
    ]
    for token, service, method, request in denied:
        outcome = code(ask, channel, token, service, method, request)
        assert outcome is grpc.StatusCode.PERMISSION_DENIED, (token.partition(".")[0], method)
    assert TokenStream(server.channel(), shop).code() is grpc.StatusCode.PERMISSION_DENIED


async def _look_again(server: Running) -> None:
    server.server.guard.look_again()


def test_a_topic_that_is_named_twice_is_judged_by_the_name_that_counts(server: Running, tokens: Tokens) -> None:
    shop = tokens.add("shop", publish=["orders"])
    server.run(_look_again(server))
    channel = server.channel()
    allowed_last = Publish(topic=OTHER).SerializeToString() + publish().SerializeToString()
    allowed_first = publish().SerializeToString() + Publish(topic=OTHER).SerializeToString()
    call = channel.unary_unary(f"/{PUBLISHER}/Publish")
    assert code(call, allowed_first, metadata=bearer(shop), timeout=30) is grpc.StatusCode.PERMISSION_DENIED
    call(allowed_last, metadata=bearer(shop), timeout=30)
    assert server.broker.get_topic("other").published == 0  # type: ignore[union-attr]
    assert server.broker.get_topic("orders").published == 1  # type: ignore[union-attr]


def test_a_call_that_is_no_message_is_invalid_and_one_that_nobody_knows_is_unimplemented(
    server: Running, tokens: Tokens
) -> None:
    channel, metadata = server.channel(), bearer(tokens.secrets["root"])
    for raw in (b"\xff\xff", b"\x0a\x02\xff\xff"):
        outcome = code(channel.unary_unary(f"/{PUBLISHER}/Publish"), raw, metadata=metadata, timeout=30)
        assert outcome is grpc.StatusCode.INVALID_ARGUMENT
    outcome = code(channel.unary_unary(f"/{PUBLISHER}/Anything"), b"", metadata=metadata, timeout=30)
    assert outcome is grpc.StatusCode.UNIMPLEMENTED


def test_health_needs_no_token_and_reflection_does(server: Running, tokens: Tokens) -> None:
    channel = server.channel()
    answer = ask(channel, None, "grpc.health.v1.Health", "Check", health_pb2.HealthCheckRequest())
    assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING
    reflect = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    question = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    assert code(lambda: list(reflect(iter([question]), timeout=30))) is grpc.StatusCode.UNAUTHENTICATED
    assert list(reflect(iter([question]), timeout=30, metadata=bearer(tokens.secrets["root"])))


# -- tokens that change ------------------------------------------------------------------------------


def test_a_revoked_token_ends_its_streams_and_its_calls_soon(server: Running, tokens: Tokens) -> None:
    work, other = tokens.add("work", subscribe=["worker"]), tokens.add("other", subscribe=["worker"])
    server.run(_look_again(server))
    revoked, kept = TokenStream(server.channel(), work), TokenStream(server.channel(), other)
    waiting = (
        server.channel()
        .unary_unary(f"/{SUBSCRIBER}/Pull")
        .future(
            pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=1).SerializeToString(),
            metadata=bearer(work),
            timeout=60,
        )
    )
    wait_until(lambda: len(server.server.guard._running) == 3)
    tokens.remove("work")
    assert revoked.code() is grpc.StatusCode.UNAUTHENTICATED
    assert waiting.code() is grpc.StatusCode.UNAUTHENTICATED
    again = code(ask, server.channel(), work, SUBSCRIBER, "GetSubscription", _get())
    assert again is grpc.StatusCode.UNAUTHENTICATED
    # What comes now goes to who may still read it.
    ask(server.channel(), tokens.secrets["root"], PUBLISHER, "Publish", publish())
    assert kept.data(1) == "a"
    kept.cancel()


def _get() -> Any:
    return pubsub.GetSubscriptionRequest.pb()(subscription=SUBSCRIPTION)


def test_a_right_that_is_taken_away_ends_what_needs_it_and_one_that_is_given_counts(
    server: Running, tokens: Tokens
) -> None:
    secret = tokens.add("work", subscribe=["worker"])
    server.run(_look_again(server))
    stream = TokenStream(server.channel(), secret)
    wait_until(lambda: len(server.server.guard._running) == 1)
    tokens.write(tokens.path.read_text().replace('subscribe = ["worker"]', 'publish = ["orders"]'))
    assert stream.code() is grpc.StatusCode.PERMISSION_DENIED
    ask(server.channel(), secret, PUBLISHER, "Publish", publish())


def test_a_broken_file_keeps_the_tokens_in_force_and_the_log_says_so(
    server: Running, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    before = tokens.path.read_text()
    beyond_python = ("x = " + "[" * 3_000, "x = " + "1" * 5_000, before + "publish = 0x" + "f" * 5_000)
    for broken in ("[[tokens", '[[tokens]]\nname = "x"\n', before + before, *beyond_python):
        caplog.clear()
        tokens.write(broken)
        server.run(_look_again(server))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "the tokens stay as they were" in caplog.text
        ask(server.channel(), tokens.secrets["root"], SUBSCRIBER, "GetSubscription", _get())
    tokens.path.unlink()
    server.run(_look_again(server))
    server.run(_look_again(server))
    ask(server.channel(), tokens.secrets["root"], SUBSCRIBER, "GetSubscription", _get())
    assert caplog.text.count("the tokens stay as they were") == 2  # for the last of them, and for none
    tokens.add("late", admin=["*"])
    server.run(_look_again(server))
    ask(server.channel(), tokens.secrets["late"], SUBSCRIBER, "GetSubscription", _get())


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process has as many open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_of_tokens_that_cannot_be_read_for_a_moment_is_read_later(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    file = TokenFile(tokens.path, "shop", SYSTEM_CLOCK)
    tokens.add("late", admin=["*"])
    with no_more_files():
        file.look_again()
        file.look_again()
    assert caplog.text.count("the tokens stay as they were") == 1
    assert file.find(tokens.secrets["late"]) is None
    file.look_again()
    assert file.find(tokens.secrets["late"]) is not None


def test_certificates_that_cannot_be_read_for_a_moment_are_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    used, later = authority.pair("server"), authority.pair("later")
    certificates = _Certificates(used.certificate, used.key, None)
    os.replace(later.certificate, used.certificate)
    os.replace(later.key, used.key)
    with no_more_files():
        assert certificates.changed() is None
        assert certificates.changed() is None
    assert caplog.text.count("the certificates stay as they were") == 1
    assert certificates.changed() is not None
    assert certificates.changed() is None


def test_looking_at_the_tokens_goes_on_after_an_error(tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    async def looked_twice() -> None:
        looks, again = 0, asyncio.Event()

        class Faulty(TokenFile):
            def look_again(self) -> None:
                nonlocal looks
                looks += 1
                if looks == 1:
                    raise RuntimeError("nobody thought of this")
                again.set()

        guard = Guard(Faulty(tokens.path, "shop", SYSTEM_CLOCK), look_seconds=0)
        task = asyncio.create_task(guard.run())
        await asyncio.wait_for(again.wait(), 30)
        task.cancel()

    asyncio.run(looked_twice())
    assert "looking at the tokens failed, and is tried again" in caplog.text


def test_a_token_is_good_until_it_expires(serve: Serve, tokens: Tokens) -> None:
    now = datetime.now(UTC)
    old = tokens.add("old", now - timedelta(seconds=1), admin=["*"])
    young = tokens.add("young", now + timedelta(hours=1), admin=["*"])
    found = read(tokens.path, PROJECT)
    now_us = round(now.timestamp() * 1_000_000)
    assert found.find(old, now_us) is None
    token = found.find(young, now_us)
    assert token is not None
    assert token.name == "young"
    assert found.again(token, now_us) is not None
    assert found.again(token, now_us + 2 * 3600 * 1_000_000) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tokens = 3", "write [[tokens]], once for each"),
        ("[other]", "write [[tokens]], once for each"),
        ('[[tokens]]\nname = "a b"', "token 1: name: 1 to 64 letters, digits, - and _, not 'a b'"),
        ('[[tokens]]\nname = "a"', "token 1: sha256: 64 digits from 0 to f"),
        ('[[tokens]]\nname = "a"\nsha256 = "my-secret-token"', "token 1: sha256: 64 digits from 0 to f"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\nexpires = 2030-01-01', "expires: a date, a time and a zone"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\nadmin = ["x"]', "admin: say topics/x or subscriptions/x"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\npublish = "x"', "publish: a list of names, not 'x'"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\npublish = ["a b"]', "publish: names, in which * is any"),
        (f'[[tokens]]\nname = "a"\nsha256 = "{"0" * 64}"\nsecret = "x"', "not 'secret'"),
    ],
)
def test_a_file_of_tokens_that_is_wrong_says_where_and_shows_no_secret(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        read(path, PROJECT)
    assert problem in str(raised.value)
    assert "my-secret-token" not in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "resource", "matches"),
    [
        ("*", "projects/any/topics/any", True),
        ("orders", "projects/shop/topics/orders", True),
        ("orders", "projects/shop/topics/orders2", False),
        ("orders", "projects/other/topics/orders", False),
        ("o*s", "projects/shop/topics/orders", True),
        ("o*", "projects/shop/topics/o/x", False),
        ("a.c", "projects/shop/topics/abc", False),
        ("subscriptions/w*", "projects/shop/subscriptions/worker", True),
        ("projects/*/topics/orders", "projects/other/topics/orders", True),
        ("projects/shop/*", "projects/shop/topics/orders", False),
        ("projects/shop*", "projects/shop", True),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, resource: str, matches: bool) -> None:
    tokens = Tokens(tmp_path / "tokens.toml")
    secret = tokens.add("one", publish=[pattern])
    token = read(tokens.path, PROJECT).find(secret, 0)
    assert token is not None
    assert token.may("publish", resource) is matches
    assert not token.may("subscribe", resource)
    assert not token.may("admin", resource)


def test_no_secret_is_logged_or_told(server: Running, tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = tokens.secrets["root"]
    wrong = f"{secret}-wrong"
    told: list[str] = []
    for token in (secret, wrong):
        for request in (publish(), publish("nonsense")):
            try:
                ask(server.channel(), token, PUBLISHER, "Publish", request)
            except grpc.RpcError as error:
                told.append(str(error))
    tokens.write(f'[[tokens]]\nname = "root"\nsha256 = "{secret}"\n')
    server.run(_look_again(server))
    assert "the tokens stay as they were" in caplog.text
    assert secret.partition(".")[2] not in caplog.text + "".join(told)


# -- TLS ---------------------------------------------------------------------------------------------


def secure(address: str, authority: Authority, **more: bytes) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes(), **more)
    return grpc.secure_channel(address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


def check_health(channel: grpc.Channel) -> None:
    with channel:
        ask(channel, None, "grpc.health.v1.Health", "Check", health_pb2.HealthCheckRequest())


def test_tls_keeps_out_who_speaks_without_and_shows_a_certificate(serve: Serve, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair = authority.pair("server")
    server = serve(security=Security(certificate=pair.certificate, key=pair.key))
    check_health(secure(server.address, authority))
    assert code(check_health, secure(server.address, stranger)) is grpc.StatusCode.UNAVAILABLE
    assert code(check_health, grpc.insecure_channel(server.address)) is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_keeps_out_who_has_no_certificate_of_the_authority(serve: Serve, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, client, forged = authority.pair("server"), authority.pair("client"), stranger.pair("forged")
    server = serve(security=Security(certificate=pair.certificate, key=pair.key, client_ca=authority.certificate))

    def connect(one: Any) -> grpc.Channel:
        return secure(
            server.address, authority, private_key=one.key.read_bytes(), certificate_chain=one.certificate.read_bytes()
        )

    check_health(connect(client))
    assert code(check_health, connect(forged)) is grpc.StatusCode.UNAVAILABLE
    assert code(check_health, secure(server.address, authority)) is grpc.StatusCode.UNAVAILABLE


def test_tokens_and_tls_together_serve_a_client_of_google(serve: Serve, tmp_path: Path, tokens: Tokens) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    server = serve(project=PROJECT, security=Security(certificate=pair.certificate, key=pair.key, tokens=tokens.path))
    bearer_credentials = grpc.access_token_call_credentials(tokens.secrets["root"])
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authority.certificate.read_bytes()), bearer_credentials
    )
    transport = PublisherClient.get_transport_class()(
        channel=grpc.secure_channel(server.address.replace("127.0.0.1", "localhost"), credentials)
    )
    client = PublisherClient(transport=transport)
    client.create_topic(name=TOPIC)
    assert client.publish(topic=TOPIC, messages=[{"data": b"a"}]).message_ids
    transport.close()


def test_new_certificates_are_used_without_a_restart_and_bad_ones_are_not(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    used, later = old.pair("server"), new.pair("later")
    server = serve(security=Security(certificate=used.certificate, key=used.key))
    check_health(secure(server.address, old))
    os.replace(later.certificate, used.certificate)  # whose key is still to come
    check_health(secure(server.address, old))
    assert "the certificates stay as they were" in caplog.text
    os.replace(later.key, used.key)
    check_health(secure(server.address, new))
    assert code(check_health, secure(server.address, old)) is grpc.StatusCode.UNAVAILABLE


def test_certificates_that_do_not_fit_are_refused_by_name(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.pair("one"), authority.pair("other")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    wrong: list[tuple[dict[str, Path], str]] = [
        ({"certificate": one.certificate, "key": other.key}, "do not fit"),
        ({"certificate": nonsense, "key": one.key}, "do not fit"),
        ({"certificate": tmp_path / "missing", "key": one.key}, "tls_certificate: "),
        ({"certificate": one.certificate, "key": one.key, "client_ca": nonsense}, "client_ca: "),
        ({"certificate": one.certificate}, "give both"),
        ({"client_ca": one.certificate}, "needs tls_certificate"),
    ]
    for options, problem in wrong:
        with pytest.raises(InvalidArgument, match=problem):
            serve(security=Security(**options))


@pytest.mark.parametrize(
    ("host", "security", "missing"),
    [
        ("127.0.0.1", Security(), ""),
        ("127.1.2.3", Security(), ""),
        ("::1", Security(), ""),
        ("localhost", Security(), ""),
        ("0.0.0.0", Security(), "needs TLS"),
        ("::", Security(), "needs TLS"),
        ("example.org", Security(), "needs TLS"),
        ("0.0.0.0", Security(tokens=Path("t")), "needs TLS"),
        ("0.0.0.0", Security(certificate=Path("c"), key=Path("k")), "needs tokens"),
        ("0.0.0.0", Security(certificate=Path("c"), key=Path("k"), tokens=Path("t")), ""),
        ("0.0.0.0", Security(certificate=Path("c"), key=Path("k"), client_ca=Path("a")), ""),
        ("0.0.0.0", Security(insecure=True), ""),
    ],
)
def test_an_address_that_others_reach_needs_protection(host: str, security: Security, missing: str) -> None:
    if not missing:
        security.check_host(host)
        return
    with pytest.raises(FailedPrecondition, match=missing):
        security.check_host(host)
