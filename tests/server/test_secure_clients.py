"""`PubSub("grpc://…")` with certificates and tokens."""

import os
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from inorder import Message, PermissionDenied, PubSub, Unauthenticated, Unavailable
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.security.options import Security
from inorder.transport.address import parse
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.channel import join, leave

from .certificates import Authority, Pair
from .conftest import PROJECT, Running, Serve
from .test_security import Tokens, _look_again
from .test_streaming import wait_until


def replace(file: Path, text: str) -> None:
    """In one step."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    found = Tokens(tmp_path / "tokens.toml")
    found.add("root", admin=["*"])
    return found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def client(authority: Authority) -> Pair:
    return authority.pair("client")


@pytest.fixture
def server(serve: Serve, authority: Authority, tokens: Tokens) -> Running:
    pair = authority.pair("server")
    security = Security(certificate=pair.certificate, key=pair.key, client_ca=authority.certificate, tokens=tokens.path)
    running = serve(project=PROJECT, security=security)
    running.broker.register_topic("orders")
    running.broker.register_subscription("worker", "orders", {"enable_message_ordering": True})
    return running


def url(server: Running, authority: Authority, client: Pair, more: str) -> str:
    return (
        f"grpc://{server.address}?project={PROJECT}&timeout=20&tls=1&ca={authority.certificate}"
        f"&certificate={client.certificate}&key={client.key}&{more}"
    )


def test_publish_and_handle_by_mutual_tls_and_a_token(
    server: Running, authority: Authority, client: Pair, tokens: Tokens
) -> None:
    handled: list[bytes] = []
    with PubSub(url(server, authority, client, f"token={tokens.secrets['root']}")) as pubsub:
        subscription = pubsub.subscription("worker")

        def handle(message: Message) -> None:
            handled.append(message.data)
            message.ack()

        subscription.on("message", handle)
        subscription.open()
        for letter in (b"a", b"b", b"c"):
            pubsub.topic("orders").publish_message(letter, ordering_key="key").result(20)
        wait_until(lambda: len(handled) == 3)
        subscription.close()
    assert handled == [b"a", b"b", b"c"]


def test_a_wrong_token_and_a_missing_right_are_errors_of_their_own(
    server: Running, authority: Authority, client: Pair, tokens: Tokens
) -> None:
    work = tokens.add("work", subscribe=["worker"])
    server.run(_look_again(server))
    with PubSub(url(server, authority, client, "token=root.wrong")) as pubsub, pytest.raises(Unauthenticated):
        pubsub.topic("orders").publish_message(b"a").result(20)
    with PubSub(url(server, authority, client, f"token={work}")) as pubsub:
        with pytest.raises(PermissionDenied, match="'work' has no right to publish"):
            pubsub.topic("orders").publish_message(b"a").result(20)
        assert pubsub.subscription("worker").exists().result(20)
    assert server.broker.metrics("worker").backlog_messages == 0


def test_a_token_in_a_file_may_be_replaced_while_a_client_runs(
    server: Running, authority: Authority, client: Pair, tokens: Tokens, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{tokens.secrets['root']}\n")
    with PubSub(url(server, authority, client, f"token_file={file}")) as pubsub:
        pubsub.topic("orders").publish_message(b"a").result(20)
        second = tokens.add("second", admin=["*"])
        tokens.remove("root")
        server.run(_look_again(server))
        replace(file, second)
        pubsub.topic("orders").publish_message(b"b").result(20)
        file.write_text("half of\nanother one")  # what was read is still good
        pubsub.topic("orders").publish_message(b"c").result(20)
        file.unlink()
        pubsub.topic("orders").publish_message(b"d").result(20)
    assert server.broker.metrics("worker").backlog_messages == 4


def test_a_client_whose_token_is_revoked_is_told_and_what_it_has_goes_to_others(
    server: Running, authority: Authority, client: Pair, tokens: Tokens
) -> None:
    work = tokens.add("work", subscribe=["worker"])
    server.run(_look_again(server))
    seen: list[bytes] = []
    errors: list[Exception] = []
    revoked, closed = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.data)
        assert revoked.wait(60)
        message.ack()  # too late

    with PubSub(url(server, authority, client, f"token={work}")) as pubsub:
        subscription = pubsub.subscription("worker")
        subscription.on("message", handle)
        subscription.on("error", errors.append)
        subscription.on("close", closed.set)
        subscription.open()
        server.broker.publish("orders", [Message(b"a", None, "key"), Message(b"b", None, "key")])
        wait_until(lambda: seen == [b"a"])
        tokens.remove("work")
        wait_until(lambda: [message.data for message in server.broker.pull("worker", 10)] == [b"a"])
        revoked.set()
        assert closed.wait(60)
    assert [type(error) for error in errors] == [Unauthenticated]
    assert seen == [b"a"]
    assert server.broker.metrics("worker").backlog_messages == 2


def file_with(server: Running, folder: Path, token: str) -> Path:
    """A client's file with one of the tokens, which the server knows by then."""
    server.run(_look_again(server))
    file = folder / "token"
    file.write_text(token)
    return file


def test_a_consumer_goes_on_with_the_token_that_is_in_its_file_by_then(
    server: Running, authority: Authority, client: Pair, tokens: Tokens, tmp_path: Path
) -> None:
    first, second = tokens.add("first", subscribe=["worker"]), tokens.add("second", subscribe=["worker"])
    file = file_with(server, tmp_path, first)
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        message.ack()

    with PubSub(url(server, authority, client, f"token_file={file}")) as pubsub:
        subscription = pubsub.subscription("worker")
        subscription.on("message", handle)
        subscription.open()
        server.broker.publish("orders", [Message(b"a", None, "key")])
        wait_until(lambda: seen == [b"a"])
        replace(file, second)
        tokens.remove("first")
        wait_until(lambda: [one.token.name for one in server.server.guard._running] == ["second"])
        server.broker.publish("orders", [Message(b"b", None, "key")])
        wait_until(lambda: seen == [b"a", b"b"])


def test_a_publish_that_waits_goes_on_with_the_token_that_is_in_its_file_by_then(
    server: Running, authority: Authority, client: Pair, tokens: Tokens, tmp_path: Path
) -> None:
    limits = {"max_messages": 1, "when_full": "block"}
    server.broker.register_subscription("narrow", "orders", {"queue_limits": limits})
    first, second = tokens.add("first", publish=["orders"]), tokens.add("second", publish=["orders"])
    file = file_with(server, tmp_path, first)
    with PubSub(url(server, authority, client, f"token_file={file}")) as pubsub:
        topic = pubsub.topic("orders")
        topic.publish_message(b"a", ordering_key="key").result(20)
        waiting = topic.publish_message(b"b", ordering_key="key")
        wait_until(lambda: bool(server.broker._blocked))
        replace(file, second)
        tokens.remove("first")
        wait_until(lambda: [one.token.name for one in server.server.guard._running] == ["second"])
        server.broker.ack(server.broker.pull("narrow", 1))
        waiting.result(20)
    assert [message.data for message in server.broker.pull("narrow", 10)] == [b"b"]


def test_answers_that_are_asked_for_once_go_on_with_the_token_that_is_in_its_file_by_then(
    server: Running, authority: Authority, client: Pair, tokens: Tokens, tmp_path: Path
) -> None:
    first, second = tokens.add("first", subscribe=["worker"]), tokens.add("second", subscribe=["worker"])
    file = file_with(server, tmp_path, first)
    joined = join(parse(url(server, authority, client, f"token_file={file}")))
    request = v1.WatchKeysRequest(subscription="projects/shop/subscriptions/worker", seconds=60)
    answers = Calls(joined, 20).answers("/inorder.v1.Inorder/WatchKeys", request.SerializeToString)
    next(answers)
    replace(file, second)
    tokens.remove("first")
    next(answers)  # of another call: in the first one, nothing new is told
    replace(file, first)
    tokens.remove("second")
    with pytest.raises(Unauthenticated):
        next(answers)
    leave(joined)


def test_a_client_does_not_talk_to_a_server_that_it_cannot_tell(
    server: Running, authority: Authority, client: Pair, tokens: Tokens, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    address = url(server, stranger, client, f"token={tokens.secrets['root']}").replace("timeout=20", "timeout=0.5")
    with PubSub(address) as pubsub, pytest.raises(Unavailable):
        pubsub.topic("orders").exists().result(20)


@pytest.mark.parametrize("option", ["ca", "certificate", "key", "token_file"])
def test_a_file_that_cannot_be_read_is_named(
    server: Running, authority: Authority, client: Pair, option: str, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    given = {"ca": authority.certificate, "certificate": client.certificate, "key": client.key, option: missing}
    address = f"grpc://{server.address}?tls=1&" + "&".join(f"{name}={path}" for name, path in given.items())
    with pytest.raises(InvalidArgument, match=f"{option}: .*missing cannot be read"):
        PubSub(address).topic("orders").exists().result(20)


@pytest.mark.parametrize(
    ("option", "problem"), [("ca", "ca: .*no certificate in PEM"), ("certificate", "do not fit"), ("key", "do not fit")]
)
def test_a_file_that_is_of_no_use_is_named_at_once(
    authority: Authority, client: Pair, option: str, problem: str
) -> None:
    other = authority.pair("other")
    wrong = {"ca": client.key, "certificate": other.certificate, "key": other.key}
    given = {"ca": authority.certificate, "certificate": client.certificate, "key": client.key}
    address = "grpc://127.0.0.1:1?tls=1&" + "&".join(
        f"{name}={path}" for name, path in (given | {option: wrong[option]}).items()
    )
    with pytest.raises(InvalidArgument, match=problem):
        PubSub(address).topic("orders").exists().result(20)


@pytest.mark.parametrize(
    "content", [b"", b"The token:\n\n    root.SECRET\n", b"root.SECRET\x01", "root.SECRÉT".encode()]
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    given = [f"token_file={file}"] + ([f"token={quote(content)}"] if content else [])
    for option in given:
        with pytest.raises(InvalidArgument, match="a token and nothing else is expected") as refused:
            PubSub(f"grpc://127.0.0.1:1?{option}")
        assert "SECR" not in str(refused.value)


def test_two_that_are_not_the_same_share_no_connection() -> None:
    first, again, other = (join(parse(f"grpc://localhost:1?token={token}")) for token in ("a.x", "a.x", "b.x"))
    assert first is again
    assert first is not other
    for channel in (first, again, other):
        leave(channel)


def test_a_token_on_loopback_needs_no_tls(serve: Serve, tokens: Tokens) -> None:
    server = serve(project=PROJECT, security=Security(tokens=tokens.path))
    address = f"grpc://{server.address}?project={PROJECT}&token={tokens.secrets['root']}"
    with PubSub(address) as pubsub:
        pubsub.topic("orders").create().result(20)
    assert server.broker.topic_exists("orders")


def test_no_error_of_an_address_tells_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument) as refused:
        PubSub("grpc://localhost?token=SECRET")
    monkeypatch.setitem(sys.modules, "inorder.transport.grpc.transport", None)
    with pytest.raises(FailedPrecondition, match="pip install") as missing:
        PubSub("grpc://localhost:1?token=SECRET")
    assert "SECRET" not in f"{refused.value} {missing.value}"
