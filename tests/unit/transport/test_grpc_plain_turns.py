"""Requests that go one after the other."""

from collections.abc import Callable, Sequence

import pytest

from inorder.errors import Closed, NotFound
from inorder.pending import Pending
from inorder.transport.grpc import plain_turns
from inorder.transport.grpc.plain_turns import AT_ONCE, InTurn

PATIENCE_SECONDS = 10


def test_who_waits_in_line_waits_no_longer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(plain_turns.time, "monotonic", lambda: now)
    sent: list[tuple[Sequence[str], float, Pending[bytes]]] = []

    def send(ack_ids: Sequence[str], seconds: float) -> Pending[bytes]:
        sent.append((ack_ids, seconds, Pending()))
        return sent[-1][2]

    put_off: list[Callable[[], object]] = []
    monkeypatch.setattr(plain_turns, "later", lambda _, call: put_off.append(call))
    turns = InTurn(send, timeout_seconds=60)
    turns.say(["a"])
    put_off.pop()()
    now = 130.0
    turns.say(["b"])
    now = 150.0
    sent[0][2].set_result(b"")
    assert [(ack_ids, seconds) for ack_ids, seconds, _ in sent] == [(["a"], 60), (["b"], 40)]
    turns.say(["c"])
    now = 500.0
    sent[1][2].set_result(b"")
    assert sent[2][:2] == (["c"], 0)


def test_a_line_of_requests_that_fail_at_once_is_no_tower_of_calls() -> None:
    turns = InTurn(lambda *_: Pending.failed(Closed("it is")), timeout_seconds=60)
    said = [turns.say([f"{number}"] * AT_ONCE) for number in range(1_000)]
    assert {type(one.exception(PATIENCE_SECONDS)) for one in said} == {Closed}
    assert isinstance(turns.say(["a"]).exception(PATIENCE_SECONDS), Closed)


def test_a_request_that_cannot_be_sent_holds_up_no_other() -> None:
    def send(ack_ids: Sequence[str], seconds: float) -> Pending[bytes]:
        if ack_ids == ["a"]:
            raise RuntimeError("no room for a thread")
        return Pending.of(b"")

    turns = InTurn(send, timeout_seconds=60)
    assert isinstance(turns.say(["a"]).exception(PATIENCE_SECONDS), RuntimeError)
    assert turns.say(["b"]).result(PATIENCE_SECONDS) is True


def test_what_the_server_does_not_know_is_no_error() -> None:
    turns = InTurn(lambda *_: Pending.failed(NotFound("no such subscription")), timeout_seconds=60)
    assert turns.say(["a", "b"]).result(PATIENCE_SECONDS) is False


def test_nothing_to_say_is_said_at_once() -> None:
    turns = InTurn(lambda *_: pytest.fail("there is nothing to send"), timeout_seconds=60)
    assert turns.say([]).result(0) is True
