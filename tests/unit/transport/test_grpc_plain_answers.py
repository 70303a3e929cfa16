"""What is said of leases to a server that knows google.pubsub.v1 only."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub

from inorder.errors import InvalidArgument, ResourceExhausted, Unavailable
from inorder.options import MAX_ACK_DEADLINE_SECONDS
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.grpc import plain_turns
from inorder.transport.grpc.plain_answers import PlainAnswers, StreamAnswers
from inorder.transport.grpc.plain_turns import AT_ONCE

LEASE_SECONDS = 10


class Server:
    """Answers when the test says so. Stands for `Calls`."""

    timeout_seconds = 60.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int | None, list[str], Pending[bytes]]] = []
        self._put_off: list[Callable[[], object]] = []
        monkeypatch.setattr(plain_turns, "later", lambda _, call: self._put_off.append(call))

    def repeated(self, method: str, request: bytes, timeout_seconds: float) -> Pending[bytes]:
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


def answers_to(server: Any, clock: ManualClock | None = None, *, ordered: bool = True) -> StreamAnswers:
    return StreamAnswers(server, "worker", clock or ManualClock(), LEASE_SECONDS, ordered=ordered)


def received(*ack_ids: str) -> list[Any]:
    """Messages of the key by which their ack ids begin; those that come again have a stroke at the end."""
    return [
        SimpleNamespace(ack_id=ack_id, message=SimpleNamespace(ordering_key=ack_id[0], message_id=ack_id.rstrip("'")))
        for ack_id in ack_ids
    ]


def arrived(answers: StreamAnswers, *ack_ids: str) -> list[int]:
    return [lease for _, lease in answers.arrived(received(*ack_ids))]


def test_leases_that_nobody_answers_are_forgotten_when_they_are_long_over(server: Server) -> None:
    clock = ManualClock()
    answers = PlainAnswers(server, "worker", clock)
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


def test_deadlines_wait_for_nobody_and_acks_do_not_wait_for_nacks(server: Server) -> None:
    answers = answers_to(server)
    one, two, three, other = arrived(answers, "a1", "b1", "c1", "d1")
    answers.settle((), [one])
    server.listen()
    answers.settle((), [two])
    answers.settle([three], ())
    answers.extend([other], 10)
    server.listen()
    assert [(seconds, ack_ids) for seconds, ack_ids, _ in server.asked] == [(0, ["a1"]), (10, ["d1"]), (None, ["c1"])]
    assert server.answer() == (0, ["a1"])
    assert [(seconds, ack_ids) for seconds, ack_ids, _ in server.asked][-1] == (0, ["b1"])


def test_a_request_that_the_server_refuses_leaves_nothing_out(server: Server) -> None:
    answers = answers_to(server)
    leases = arrived(answers, "a1", "a2")
    kept = answers.extend(leases, 10)
    server.answer(InvalidArgument("there is no such ack id"))
    assert kept.result(0) == leases
    assert arrived(answers, "a3") == [], "nothing goes before them"
    assert len(arrived(answers, "a1'", "a2'")) == 2


def test_a_nack_leaves_what_is_out_before_it_and_takes_what_is_behind_it(server: Server) -> None:
    answers = answers_to(server)
    before, failed, behind, other = arrived(answers, "a1", "a2", "a3", "b1")
    answers.settle((), [failed])
    assert server.answer() == (0, ["a2", "a3"])
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
    assert server.answer() == (0, ["a1", "a2"])
    assert arrived(answers, "a3", "a4") == []
    assert len(arrived(answers, "a1'", "a2'", "a3'", "a4'")) == 4
    assert not server.asked, "what is passed over costs no attempt"


def test_what_comes_while_a_nack_is_lost_waits_for_what_failed(server: Server) -> None:
    answers = answers_to(server)
    failed, _ = arrived(answers, "a1", "a2")
    nacked = answers.settle((), [failed])
    server.answer(ResourceExhausted("too often"))
    assert isinstance(nacked.exception(0), ResourceExhausted)
    assert arrived(answers, "a3", "a4", "a3'", "a4'") == []
    assert len(arrived(answers, "a1'", "a2'", "a3''")) == 3


@pytest.mark.parametrize("error", [InvalidArgument("no such ack id"), ResourceExhausted("too often")])
def test_what_was_not_acked_after_all_comes_before_what_is_behind_it(server: Server, error: Exception) -> None:
    answers = answers_to(server)
    first, second, third = arrived(answers, "a1", "a2", "a3")
    acked = answers.settle([first, second], ())
    server.answer(error)
    assert acked.exception(0) is not None or acked.result(0) == [first, second]
    assert answers.extend([third], 10).result(0) == [third], "it is behind them"
    assert arrived(answers, "a4") == []
    assert len(arrived(answers, "a1'", "a2'", "a3'", "a4'")) == 4


def test_what_came_again_before_its_ack_was_refused_is_out(server: Server) -> None:
    answers = answers_to(server)
    first, second = arrived(answers, "a1", "a2")
    answers.settle([first], ())
    [again] = arrived(answers, "a1'", "a2'")
    server.answer(InvalidArgument("there is no such ack id"))
    settled = answers.settle([again, second], ())
    assert server.answer() == (None, ["a1'", "a2'"])
    assert settled.result(0) == []


def test_leases_that_are_known_to_be_over_are_told_whatever_becomes_of_the_others(server: Server) -> None:
    answers = answers_to(server)
    gone, kept = arrived(answers, "a1", "b1")
    answers.settle([gone], ())
    extended = answers.extend([gone, kept], 10)
    assert extended.result(0) == [gone]
    server.listen()
    assert [ack_ids for _, ack_ids, _ in server.asked] == [["b1"], ["a1"]]


def test_messages_that_all_failed_for_the_last_time_hold_up_no_other_for_longer_than_a_lease(server: Server) -> None:
    clock = ManualClock()
    answers = answers_to(server, clock)
    for lease in reversed(arrived(answers, "a1", "a2", "a3")):
        answers.settle((), [lease])
        server.listen()
    for _ in range(2):  # the first goes alone, the others go together
        server.answer()
    assert arrived(answers, "a4", "a5") == []
    clock.advance(LEASE_SECONDS)
    assert len(arrived(answers, "a4'", "a5'")) == 2
    assert not server.asked


def test_a_key_of_which_nothing_comes_again_is_not_held_up_for_long(server: Server) -> None:
    clock = ManualClock()
    answers = answers_to(server, clock)
    for key in ("a1", "b1"):
        answers.settle((), arrived(answers, key))
        server.answer()
        clock.advance(60)
    assert len(arrived(answers, "a2", "c1")) == 2
    assert len(answers._rewinds) == 0
    assert len(arrived(answers, "b2")) == 1


def test_no_place_is_kept_for_what_is_not_out_any_more(server: Server) -> None:
    answers = answers_to(server)
    leases = arrived(answers, "a1", "a2", "b1", "b2")
    answers.settle(leases[:2], leases[3:])
    assert answers._of_keys == {"b": {leases[2]: None}}
    assert [*answers._leases] == ["b1"]


def test_what_was_pulled_and_comes_again_is_news(server: Server) -> None:
    answers = PlainAnswers(server, "worker", ManualClock())
    assert answers.leased(received("a1")) != answers.leased(received("a1'"))
