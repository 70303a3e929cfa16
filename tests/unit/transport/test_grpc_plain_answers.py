"""What is said of leases to a server that knows google.pubsub.v1 only."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub

from inorder.errors import InvalidArgument, Unavailable
from inorder.options import MAX_ACK_DEADLINE_SECONDS
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.grpc import plain_answers
from inorder.transport.grpc.plain_answers import AT_ONCE, PlainAnswers


class Server:
    """Answers when the test says so. Stands for `Calls`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int | None, list[str], Pending[bytes]]] = []
        self._put_off: list[Callable[[], object]] = []
        monkeypatch.setattr(plain_answers, "later", lambda _, call: self._put_off.append(call))

    def repeated(self, method: str, request: bytes) -> Pending[bytes]:
        seconds = None
        asked: Any
        if method.endswith("Acknowledge"):
            asked = pubsub.AcknowledgeRequest.deserialize(request)
        else:
            asked = pubsub.ModifyAckDeadlineRequest.deserialize(request)
            seconds = asked.ack_deadline_seconds
        self.asked.append((seconds, list(asked.ack_ids), Pending()))
        return self.asked[-1][2]

    def answer(self, error: Exception | None = None) -> tuple[int | None, list[str]]:
        """Answer the first request; returns the deadline that it asked for, or None if it was an ack."""
        self.listen()
        seconds, ack_ids, answer = self.asked.pop(0)
        if error is None:
            answer.set_result(b"")
        else:
            answer.set_exception(error)
        return seconds, ack_ids

    def listen(self) -> None:
        while self._put_off:
            self._put_off.pop(0)()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def answers_to(server: Any, *, ordered: bool = True, clock: ManualClock | None = None) -> PlainAnswers:
    return PlainAnswers(server, "worker", clock or ManualClock(), ordered=ordered)


def received(*ack_ids: str) -> list[Any]:
    """Messages of the key by which their ack ids begin; those that come again have a stroke at the end."""
    return [
        SimpleNamespace(ack_id=ack_id, message=SimpleNamespace(ordering_key=ack_id[0], message_id=ack_id.rstrip("'")))
        for ack_id in ack_ids
    ]


def arrived(answers: PlainAnswers, *ack_ids: str) -> list[int]:
    return [lease for _, lease in answers.arrived(received(*ack_ids))]


def test_leases_that_nobody_answers_are_forgotten_when_they_are_long_over(server: Server) -> None:
    clock = ManualClock()
    answers = answers_to(server, ordered=False, clock=clock)
    [kept, *others] = answers.leased(received("kept", "a", "b"))
    for _ in range(4):
        clock.advance(MAX_ACK_DEADLINE_SECONDS)
        extended = answers.extend([kept], MAX_ACK_DEADLINE_SECONDS)
        server.answer()
        assert extended.result(0) == []
    [new] = answers.leased(received("new"))
    assert len(answers._out) == 2
    settled = answers.settle([*others, kept, new], ())
    assert server.answer() == (None, ["kept", "new"])
    assert settled.result(0) == others


def test_what_is_said_while_a_request_is_under_way_goes_together_with_the_next(server: Server) -> None:
    answers = answers_to(server)
    leases = arrived(answers, *(f"a{number}" for number in range(AT_ONCE + 3)))
    acked = [answers.settle([lease], ()) for lease in leases[:2]]
    server.listen()
    acked += [answers.settle([lease], ()) for lease in leases[2:]]
    assert server.answer() == (None, ["a0", "a1"])
    assert [answer.done() for answer in acked[:3]] == [True, True, False]
    assert server.answer() == (None, [f"a{number}" for number in range(2, AT_ONCE + 2)])
    assert server.answer(Unavailable("nobody is there")) == (None, [f"a{AT_ONCE + 2}"])
    assert acked[-2].result(0) == []
    assert isinstance(acked[-1].exception(0), Unavailable)


def test_nacks_keep_their_order_also_beside_deadlines(server: Server) -> None:
    answers = answers_to(server)
    one, two, other = arrived(answers, "a1", "b1", "c1")
    answers.settle((), [one])
    answers.extend([other], 10)
    answers.settle((), [two])
    assert [server.answer() for _ in range(3)] == [(0, ["a1"]), (10, ["c1"]), (0, ["b1"])]


def test_a_request_that_the_server_refuses_leaves_nothing_out(server: Server) -> None:
    answers = answers_to(server)
    leases = arrived(answers, "a1", "a2")
    kept = answers.extend(leases, 10)
    server.answer(InvalidArgument("there is no such ack id"))
    assert kept.result(0) == leases
    assert len(arrived(answers, "a1'", "a2'")) == 2


def test_a_nack_leaves_what_is_out_before_it_and_takes_what_is_behind_it(server: Server) -> None:
    answers = answers_to(server)
    before, failed, behind, other = arrived(answers, "a1", "a2", "a3", "b1")
    answers.settle((), [failed])
    assert server.answer() == (0, ["a2"])
    settled = answers.settle([before, behind, other], ())
    assert server.answer() == (None, ["a1", "b1"])
    assert settled.result(0) == [behind]


def test_a_message_that_comes_again_while_it_is_held_is_held_by_its_new_ack_id(server: Server) -> None:
    answers = answers_to(server)
    leases = arrived(answers, "a1", "a2")
    assert len(arrived(answers, "a1'", "a2'", "a3")) == 1, "those that are held are no news"
    settled = answers.settle(leases, ())
    assert server.answer() == (None, ["a1'", "a2'"])
    assert settled.result(0) == []


def test_what_was_sent_before_a_nack_was_heard_is_no_news(server: Server) -> None:
    answers = answers_to(server)
    failed, _ = arrived(answers, "a1", "a2")
    answers.settle((), [failed])
    assert server.answer() == (0, ["a1"])
    assert arrived(answers, "a3", "a4") == []
    assert server.answer() == (0, ["a3", "a4"]), "in case that it is not over"
    assert len(arrived(answers, "a1'", "a2'", "a3'", "a4'")) == 4


def test_a_key_that_does_not_come_again_is_forgotten_when_that_is_long_over(server: Server) -> None:
    clock = ManualClock()
    answers = answers_to(server, clock=clock)
    answers.settle((), arrived(answers, "a1"))
    clock.advance(MAX_ACK_DEADLINE_SECONDS)
    answers.settle((), arrived(answers, "b1"))
    clock.advance(MAX_ACK_DEADLINE_SECONDS)
    assert len(arrived(answers, "a2", "b2")) == 1


def test_what_was_pulled_and_comes_again_is_news(server: Server) -> None:
    answers = answers_to(server, ordered=False)
    assert answers.leased(received("a1")) != answers.leased(received("a1'"))
