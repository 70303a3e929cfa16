"""The commands on a server: the same words, and nothing left behind."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from inorder import Message, Pending, PubSub, Subscription
from inorder.cli import main

from .test_cli import INORDER
from .test_grpc_faults import wait_until
from .test_serve import serving

POLICY = ("--dead-letter-topic", "dead", "--dead-letter-max-delivery-attempts", "1")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving("--data", tmp_path_factory.mktemp("served") / "data") as (_, address):
        yield f"grpc://{address}"


class Program:
    """Runs commands on a server, each on a connection of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], target: str) -> None:
        self._capsys = capsys
        self._target = target

    def __call__(self, *given: object) -> tuple[int, str, str]:
        code = main([*map(str, given), "--target", self._target])
        return code, *self._capsys.readouterr()

    def json(self, *given: object) -> list[dict[str, Any]]:
        code, out, err = self(*given, "--json")
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def inorder(capsys: pytest.CaptureFixture[str], target: str) -> Iterator[Program]:
    program = Program(capsys, target)
    yield program
    for topic in program.json("topic", "list"):
        program("topic", "delete", topic["topic"], "--yes")
    for subscription in program.json("subscription", "list"):
        program("subscription", "delete", subscription["subscription"], "--yes")


def data(found: list[dict[str, Any]]) -> str:
    return "".join(one["data"] for one in found if "gap" not in one)


@pytest.fixture
def orders(inorder: Program) -> Program:
    inorder.json("topic", "create", "orders", "--message-retention-duration", 600)
    inorder.json("topic", "create", "dead")
    inorder.json("subscription", "create", "morgue", "dead", "--enable-message-ordering")
    inorder.json("subscription", "create", "billing", "orders", "--enable-message-ordering", *POLICY)
    return inorder


def test_messages_go_in_and_out(orders: Program) -> None:
    assert orders.json("publish", "orders", "a", "b", "c", "--ordering-key", "k")[0]["messages"] == 3
    assert data(orders.json("tail", "orders", "-n", 2)) == "bc"
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "abc"
    orders.json("seek", "billing", "--position", 1)
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "bc"
    [shown] = orders.json("subscription", "show", "billing")
    assert (shown["backlog_messages"], shown["counters"]["acked"]) == (0, 5)
    assert orders.json("topic", "show", "orders")[0]["subscriptions"] == ["billing"]
    assert [one["subscription"] for one in orders.json("subscription", "list")] == ["billing", "morgue"]


def test_dead_letters_are_seen_and_go_back(orders: Program) -> None:
    orders.json("publish", "orders", "a", "b", "--ordering-key", "k")
    for _ in range(2):
        orders.json("pull", "billing", "--nack")
    for _ in range(2):
        [seen] = orders.json("dead-letters", "list", "billing")
        assert (seen["data"], seen["source_subscription"], seen["source_delivery_count"]) == ("a", "billing", "1")
    assert orders.json("dead-letters", "replay", "billing")[0]["replayed"] == 2
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "ab"
    assert orders.json("dead-letters", "list", "billing") == []


def test_dead_letters_are_not_published_before_those_that_somebody_holds(orders: Program, target: str) -> None:
    orders.json("subscription", "update", "morgue", "--no-enable-message-ordering")
    orders.json("publish", "dead", "a", "b", "--ordering-key", "k")
    with PubSub(target) as somebody:
        held = somebody.subscription("morgue").pull(1).result()
        code, _, err = orders("dead-letters", "replay", "billing")
        assert code == 2
        assert "1 dead letter of morgue out: somebody works on them" in err
        for message in held:
            message.nack().result()
    assert orders.json("dead-letters", "replay", "billing")[0]["replayed"] == 2
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "ab"


def test_it_is_told_that_somebody_holds_dead_letters(orders: Program, target: str) -> None:
    orders.json("publish", "dead", "a", "b", "--ordering-key", "k")
    with PubSub(target) as somebody:
        somebody.subscription("morgue").pull(1).result()
        for verb in (("replay", "billing"), ("drop", "billing", "--yes")):
            code, _, err = orders("dead-letters", *verb)
            assert code == 0
            assert "1 dead letter of morgue out: somebody works on them" in err


def test_an_interruption_forgets_no_dead_letters(orders: Program, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the answer to a pull is on its way: what it brings goes back."""
    orders.json("publish", "dead", "a", "b", "--ordering-key", "k")

    pulls: list[Pending[list[Message]]] = []
    pull, result = Subscription.pull, Pending.result

    def noted(self: Subscription, *given: int) -> Pending[list[Message]]:
        pulls.append(pull(self, *given))
        return pulls[0]

    def interrupted(self: Pending[Any], *given: float) -> Any:
        found = result(self, *given)
        if self in pulls:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Subscription, "pull", noted)
    monkeypatch.setattr(Pending, "result", interrupted)
    assert orders("dead-letters", "replay", "billing")[0] == 130
    assert orders.json("dead-letters", "replay", "billing")[0]["replayed"] == 2


def test_parked_keys_are_resumed(orders: Program) -> None:
    orders.json(
        "subscription", "update", "billing", "--on-poison", "park_key", "--dead-letter-max-delivery-attempts", 1
    )
    orders.json("publish", "orders", "a", "--ordering-key", "k")
    orders.json("pull", "billing", "--nack")
    assert [key["ordering_key"] for key in orders.json("keys", "parked", "billing")] == ["k"]
    orders.json("keys", "resume", "billing", "k")
    assert data(orders.json("pull", "billing", "--ack")) == "a"


def test_errors_say_what_to_do(orders: Program, target: str) -> None:
    code, _, err = orders("publish", "nowhere", "x")
    assert (code, f"inorder topic create nowhere --target {target}" in err) == (2, True)
    code, _, err = orders("pull", "nobody")
    assert (code, f"inorder subscription create nobody TOPIC --target {target}" in err) == (2, True)


def test_a_load_is_judged(orders: Program) -> None:
    [found] = orders.json("bench", "--seconds", 0.2, "--keys", 4)
    assert found["in_order"]
    assert found["handled"] == found["published"] > 0


ENDS = [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)]


def _hear_signals() -> None:
    """Who runs the tests in the background may not hear them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_who_follows_leaves_no_subscription_behind(
    orders: Program, target: str, number: signal.Signals, code: int
) -> None:
    orders.json("publish", "orders", "a")
    command = [*INORDER, "tail", "orders", "-f", "--json", "--target", target]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, "INORDER_TARGET": "file:elsewhere"},
        preexec_fn=_hear_signals,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["data"] == "a"
            orders.json("publish", "orders", "b")
            assert json.loads(process.stdout.readline())["data"] == "b"
            assert len(orders.json("subscription", "list", "--topic", "orders")) == 2
            process.send_signal(number)
            assert process.wait() == code
        finally:
            process.kill()
    assert [one["subscription"] for one in orders.json("subscription", "list", "--topic", "orders")] == ["billing"]


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_load_that_is_interrupted_leaves_nothing_behind_and_says_nothing(
    orders: Program, target: str, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        [*INORDER, "bench", "--seconds", "60", "--target", target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_signals,
    ) as process:
        try:
            wait_until(lambda: any(_delivered(orders, one) for one in orders.json("topic", "list")))
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (code, b"", b"")
    assert [one["topic"] for one in orders.json("topic", "list")] == ["dead", "orders"]
    assert "inorder-bench" not in str(orders.json("subscription", "list"))


def _delivered(inorder: Program, topic: dict[str, Any]) -> bool:
    """Whether the load on a topic has begun."""
    name = topic["topic"]
    if not name.startswith("inorder-bench") or not inorder.json("subscription", "list", "--topic", name):
        return False
    [shown] = inorder.json("subscription", "show", name)
    return bool(shown["counters"]["delivered"])
